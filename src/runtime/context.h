// What stands behind nq_context: configuration, logger, counters; and, for each process that uses it, libraries (each
// loaded when first needed), cache and loaded kernels.
#pragma once

#include "cache/cache.h"
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
#include <utility>
#include <vector>

namespace nq {

struct ContextConfig {
    bool jit = true;
    CacheConfig cache;
    bool cache_homeless = false;  // no root, though nobody said that there should be none
    NvrtcSearch nvrtc;
    std::string libcuda;  // "" to search
    std::string record;    // "" for none
    std::string dump_dir;  // likewise
    nq_log_callback log_callback = nullptr;
    void* log_payload = nullptr;
    nq_log_level log_level = NQ_LOG_WARN;
    nq_compile_callback compile_callback = nullptr;
    void* compile_payload = nullptr;
};

// A field of the options beats the environment, which beats the default.
Result<ContextConfig> make_config(const nq_context_options* options, const Environment& environment);

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

// Everything that threads of one process share. A forked child starts with a new one: what it inherited may be locked by
// threads that exist in the parent only.
struct ProcessState {
    ProcessState(pid_t process, const ContextConfig& config, Logger& log)
        : pid(process),
          cache(config.cache, system_files(), log, counters) {}

    const pid_t pid;
    Counters counters;
    Cache cache;
    LazyLibrary<NvrtcFile> nvrtc_file;
    LazyLibrary<Nvrtc> nvrtc;
    LazyLibrary<Driver> driver;

    // One warning a process for each, however often there is reason for it.
    std::atomic<bool> record_failed{false}, dump_failed{false}, foreign_told{false}, stall_told{false};

    SingleFlight<std::pair<RequestKey, Cache::Layers>, Result<SharedCubin>> cubin_flights;
    std::mutex compiled_mutex;
    // What need not be compiled again though no entry tells of it: cubins that could not be stored, and failures with
    // their logs.
    std::map<std::pair<RequestKey, CompilerId>, Result<SharedCubin>> compiled;

    SingleFlight<KernelKey, Result<const Kernel*>> kernel_flights;
    std::mutex kernels_mutex;
    std::map<KernelKey, std::unique_ptr<const Kernel>> kernels;
};

class Context {
public:
    explicit Context(ContextConfig config);
    ~Context();
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    const ContextConfig& config() const { return config_; }
    Logger& log() { return log_; }
    CounterTotals counters() const;  // of this process
    const std::string& cache_dir() const { return cache_dir_; }  // "" for none

    ProcessState& process();
    Cache& cache() { return process().cache; }

    void seal() { sealed_ = true; }
    unsigned compile_threads() const { return config_.cache.compile_threads; }
    // Why nothing may be compiled, if so.
    std::optional<Error> compile_ban() const;

    // The library's file, found and identified without opening it.
    Result<std::shared_ptr<const NvrtcFile>> nvrtc_file();
    Result<std::shared_ptr<const Nvrtc>> nvrtc();
    // Initializes CUDA. FORKED in a child of the process that did so through this context.
    Result<std::shared_ptr<const Driver>> driver();
    std::shared_ptr<const Driver> driver_if_loaded() { return process().driver.if_loaded(); }

    // Kernels are kept until the context ends, so that the pointers stay good.
    const Kernel* find(const KernelKey& key);
    // The same for another context of the device.
    const Kernel* find_elsewhere(const KernelKey& key, CUdevice device);
    const Kernel* keep(const KernelKey& key, std::unique_ptr<const Kernel> kernel);

private:
    const ContextConfig config_;
    Logger log_;
    std::atomic<bool> sealed_{false};
    std::atomic<pid_t> driver_pid_{0};  // the process that loaded the driver, or is about to; 0 for none
    std::atomic<ProcessState*> process_;
    std::string cache_dir_;
};

}  // namespace nq
