// The targets that --arch names: as they are (sm_90), by GPU (h200), or all.
#pragma once

#include "cuda/nvrtc.h"
#include "problem/arch.h"
#include "support/result.h"

#include <string>
#include <vector>

namespace nq::cli {

// What a GPU's name stands for follows from what compiles, as in nq_prepare. nullptr: an NVRTC that knows every target.
// `all` is one target for every kind of GPU that the NVRTC at hand compiles for; left_out says which it does not, and why.
Result<std::vector<Arch>> targets_of(const std::vector<std::string>& names, const Nvrtc* nvrtc,
                                     std::vector<std::string>& left_out);

std::vector<std::string> target_names();           // sm_80, ...
std::vector<std::string> target_names_and_gpus();  // and a100, ..., all

}  // namespace nq::cli
