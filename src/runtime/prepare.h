// From a problem to a kernel that is ready to launch.
#pragma once

#include "runtime/context.h"

namespace nq {

// The device is that of the stream's context, or of the current one for NULL.
Result<const Kernel*> prepare(Context& context, const Problem& problem, const PlanOverride& override, CUstream stream);

// As prepare, but while the stream is being captured only what is prepared already: NOT_PREPARED, and the capture goes
// on.
Result<const Kernel*> prepare_for_run(Context& context, const Problem& problem, CUstream stream);

}  // namespace nq
