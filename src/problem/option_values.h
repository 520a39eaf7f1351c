// A problem in the words of the command line: what a message tells people to type, and what a record of problems consists of.
#pragma once

#include "problem/arch.h"
#include "problem/problem.h"

#include <string>

namespace nq {

// "normquant warmup --hidden 7168 --arch sm_90 --format nvfp4 --layout linear": the kernels of this problem and no others. Options at
// their default are left out.
std::string warmup_command(const Problem& problem, const Arch& arch);

// {"hidden":7168,"op":"rmsnorm",...}: one problem of a manifest, every option said. Without the target.
std::string manifest_text(const Problem& problem);

}  // namespace nq
