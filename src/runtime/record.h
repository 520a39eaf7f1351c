// NORMQUANT_RECORD: the problems that a program prepares, one a line, as `normquant warmup --manifest` reads them.
#pragma once

#include "runtime/context.h"

namespace nq {

// Adds a line unless the file has it. Many processes may share the file. Trouble is one warning.
void record(Context& context, const Problem& problem, const Arch& arch);

}  // namespace nq
