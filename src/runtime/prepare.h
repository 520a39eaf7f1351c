// From a problem to a kernel that is ready to launch.
#pragma once

#include "runtime/context.h"

namespace nq {

// threads_per_row: 0, or a plan override. The device is that of the stream's context, or of the current one for NULL.
Result<const Kernel*> prepare(Context& context, const Problem& problem, std::uint32_t threads_per_row, CUstream stream);

// As prepare, but while the stream is being captured only what is prepared already: NOT_PREPARED, and the capture goes
// on.
Result<const Kernel*> prepare_for_run(Context& context, const Problem& problem, CUstream stream);

}  // namespace nq
