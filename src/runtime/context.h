// What stands behind nq_context: configuration, logger, libraries (each loaded when first needed), cache, loaded
// kernels.
#pragma once

#include "cache/store.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "runtime/cubin.h"
#include "runtime/kernel.h"
#include "runtime/single_flight.h"
#include "support/environment.h"
#include "support/log.h"

#include <sys/types.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace nq {

struct ContextConfig {
    bool jit = true;
    std::string cache_dir;  // "" for none
    bool cache_shared = false;
    std::string nvrtc;    // "" to search
    std::string libcuda;  // "" to search
    std::vector<std::string> cuda_homes;
    nq_log_callback log_callback = nullptr;
    void* log_payload = nullptr;
    nq_log_level log_level = NQ_LOG_WARN;
};

// A field of the options beats the environment, which beats the default.
Result<ContextConfig> make_config(const nq_context_options* options, const Environment& environment);

struct Counters {
    std::atomic<std::uint64_t> memory_hits{0};
    std::atomic<std::uint64_t> disk_hits{0};
    std::atomic<std::uint64_t> disk_misses{0};
    std::atomic<std::uint64_t> compiles{0};
    std::atomic<std::uint64_t> compile_ns{0};
};

// Loads once; a failure is remembered and reported again.
template <class Library>
class LazyLibrary {
public:
    using Loaded = Result<std::shared_ptr<const Library>>;

    template <class Load>
    Loaded get(Load load) {
        const std::lock_guard lock(mutex_);
        if (!loaded_) loaded_.emplace(load());
        return *loaded_;
    }
    std::shared_ptr<const Library> if_loaded() {
        const std::lock_guard lock(mutex_);
        return loaded_ && loaded_->ok() ? **loaded_ : nullptr;
    }

private:
    std::mutex mutex_;
    std::optional<Loaded> loaded_;
};

class Context {
public:
    explicit Context(ContextConfig config);

    const ContextConfig& config() const { return config_; }
    Logger& log() { return log_; }
    Store* store() { return store_ ? &*store_ : nullptr; }  // nullptr: no disk cache
    const Store* store() const { return store_ ? &*store_ : nullptr; }
    Counters& counters() { return counters_; }
    const Counters& counters() const { return counters_; }

    Result<std::shared_ptr<const Nvrtc>> nvrtc();
    // Initializes CUDA. FORKED in a child of the process that did so through this context.
    Result<std::shared_ptr<const Driver>> driver();
    std::shared_ptr<const Driver> driver_if_loaded() { return driver_.if_loaded(); }

    // Kernels are kept until the context ends, so that the pointers stay good.
    const Kernel* find(const KernelKey& key);
    const Kernel* keep(const KernelKey& key, std::unique_ptr<const Kernel> kernel);

    SingleFlight<KernelKey, Result<const Kernel*>>& kernel_flights() { return kernel_flights_; }
    SingleFlight<RequestKey, Result<std::shared_ptr<const Cubin>>>& cubin_flights() { return cubin_flights_; }

private:
    const ContextConfig config_;
    Logger log_;
    std::optional<Store> store_;
    Counters counters_;
    LazyLibrary<Nvrtc> nvrtc_;
    LazyLibrary<Driver> driver_;
    std::atomic<pid_t> driver_pid_{0};  // the process that loaded the driver, or is about to; 0 for none

    SingleFlight<KernelKey, Result<const Kernel*>> kernel_flights_;
    SingleFlight<RequestKey, Result<std::shared_ptr<const Cubin>>> cubin_flights_;
    std::mutex kernels_mutex_;
    std::map<KernelKey, std::unique_ptr<const Kernel>> kernels_;
};

}  // namespace nq
