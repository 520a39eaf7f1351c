// NORMQUANT_DUMP_DIR: what a compile reads and makes, as files for people and their tools:
//   KEY.cu, KEY.ptx, KEY.cubin, KEY.log    the unit, what NVRTC made of it, what it said
//   KEY.json                               problem, plan, target, options, NVRTC
//   include-DIGEST/normquant/              the headers that the unit includes
#pragma once

#include "jit/compile.h"
#include "runtime/cubin.h"

namespace nq {

// Replaces what is there. Trouble is one warning a process.
void dump(Context& context, const CubinRequest& request, const Nvrtc& nvrtc, const Result<Compiled>& compiled);

}  // namespace nq
