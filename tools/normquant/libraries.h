// The driver and NVRTC as a context would find them, for commands that look at them directly.
#pragma once

#include "device.h"
#include "runtime/context.h"

namespace nq::cli {

// What a context created without options is configured with: the environment alone.
Result<ContextConfig> environment_config();

// Device 0, or why there is none.
Result<Device> open_first_device();

}  // namespace nq::cli
