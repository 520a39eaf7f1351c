// What stands behind nq_context: configuration, logger, libraries (each loaded when first needed), cache, loaded kernels.
#pragma once

#include "cache/store.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "jit/compile.h"
#include "plan/plan.h"
#include "support/environment.h"
#include "support/log.h"

#include <memory>
#include <mutex>
#include <string>

namespace nq {

struct ContextConfig {
    bool jit = true;
    std::string cache_dir;  // "" for none
    bool cache_shared = false;
    std::string nvrtc;      // "" to search
    std::string libcuda;    // "" to search
    std::vector<std::string> cuda_homes;
    nq_log_callback log_callback = nullptr;
    void* log_payload = nullptr;
    nq_log_level log_level = NQ_LOG_WARN;
};

Result<ContextConfig> make_config(const nq_context_options* options, const Environment& environment);

}  // namespace nq
