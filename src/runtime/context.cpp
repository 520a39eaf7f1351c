#include "runtime/context.h"

#include "problem/struct_size.h"

#include <fmt/format.h>

#include <unistd.h>

#include <utility>

namespace nq {

Result<ContextConfig> make_config(const nq_context_options* options, const Environment& environment) {
    constexpr nq_context_options kDefaults = NQ_CONTEXT_OPTIONS_INIT;
    if (options != nullptr) {
        if (Outcome size = check_struct_size("nq_context_options", options, sizeof *options); !size) {
            return std::move(size).error();
        }
    } else {
        options = &kDefaults;
    }
    const auto refuse = [](const char* field, std::uint32_t value, const char* accepted) {
        return Error{NQ_ERR_INVALID_ARGUMENT,
                     fmt::format("nq_context_options.{} is {}; accepted: {}", field, value, accepted),
                     {}};
    };
    if (options->jit > NQ_JIT_OFF) {
        return refuse("jit", options->jit, "NQ_JIT_DEFAULT (0), NQ_JIT_ON (1), NQ_JIT_OFF (2)");
    }
    if (options->log_level > NQ_LOG_OFF) {
        return refuse("log_level", options->log_level,
                      "NQ_LOG_DEFAULT (0), NQ_LOG_DEBUG (1), NQ_LOG_INFO (2), NQ_LOG_WARN (3), NQ_LOG_ERROR (4), NQ_LOG_OFF (5)");
    }
    if (options->reserved != 0) return refuse("reserved", options->reserved, "0");

    const auto choose = [](const char* option, const std::optional<std::string>& variable,
                           const std::string& otherwise) {
        return option != nullptr ? option : variable.value_or(otherwise);
    };
    ContextConfig config;
    config.jit = options->jit == NQ_JIT_DEFAULT ? environment.jit.value_or(true) : options->jit == NQ_JIT_ON;
    config.cache_dir = choose(options->cache_dir, environment.cache_dir, environment.default_cache_dir);
    config.cache_shared = environment.cache_shared;
    config.nvrtc = choose(options->nvrtc, environment.nvrtc, "");
    config.libcuda = choose(options->libcuda, environment.libcuda, "");
    config.cuda_homes = environment.cuda_homes;
    config.log_callback = options->log_callback;
    config.log_payload = options->log_payload;
    config.log_level = options->log_level != NQ_LOG_DEFAULT ? static_cast<nq_log_level>(options->log_level)
                                               : environment.log_level.value_or(NQ_LOG_WARN);
    return config;
}

Context::Context(ContextConfig config)
    : config_(std::move(config)), log_(config_.log_callback, config_.log_payload, config_.log_level) {
    if (!config_.cache_dir.empty()) store_.emplace(config_.cache_dir, config_.cache_shared, system_files(), log_);
}

Result<std::shared_ptr<const Nvrtc>> Context::nvrtc() {
    return nvrtc_.get([this] {
        auto loaded = load_nvrtc(config_.nvrtc, config_.cuda_homes);
        if (loaded) log_.info(fmt::format("NVRTC {} from {}", text((*loaded)->version), (*loaded)->path));
        return loaded;
    });
}

Result<std::shared_ptr<const Driver>> Context::driver() {
    // Before any lock: one that another thread held at the time of the fork stays locked in the child.
    const pid_t self = ::getpid();
    pid_t user = 0;
    if (!driver_pid_.compare_exchange_strong(user, self) && user != self) {
        return Error{
            NQ_ERR_FORKED,
            fmt::format(
                "process {} is a child of process {}, which has initialized CUDA in this nq_context; the driver "
                "cannot be used on this side of a fork. Fork before the first nq_prepare, or exec",
                self, user),
            {}};
    }
    auto driver = driver_.get([this] {
        auto loaded = load_driver(config_.libcuda);
        if (loaded)
            log_.info(fmt::format("driver for CUDA {}.{} from {}", (*loaded)->version / 1000,
                                  (*loaded)->version % 1000 / 10, (*loaded)->path));
        return loaded;
    });
    if (!driver) driver_pid_ = 0;  // nothing was initialized that a child could not use
    return driver;
}

const Kernel* Context::find(const KernelKey& key) {
    const std::lock_guard lock(kernels_mutex_);
    const auto kernel = kernels_.find(key);
    return kernel == kernels_.end() ? nullptr : kernel->second.get();
}

const Kernel* Context::keep(const KernelKey& key, std::unique_ptr<const Kernel> kernel) {
    const std::lock_guard lock(kernels_mutex_);
    return kernels_.emplace(key, std::move(kernel)).first->second.get();
}

}  // namespace nq
