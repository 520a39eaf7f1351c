#pragma once

#include "runtime/kernel.h"

namespace nq {

// Checks, chooses a variant, launches. No lock, no allocation, no log line unless something is wrong.
Outcome launch(const Kernel& kernel, const nq_tensors* tensors, CUstream stream);

}  // namespace nq
