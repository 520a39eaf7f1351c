#include "runtime/context.h"

#include "problem/struct_size.h"
#include "support/cores.h"

#include <fmt/format.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

namespace nq {
namespace {

constexpr std::uint64_t kDefaultCacheBytes = 1ull << 30;
constexpr std::uint32_t kMostCompileThreads = 1024;
// Unless somebody says how many: a context leaves cores to its program, and more at a time than this gain little.
constexpr std::uint32_t kUsualCompileThreads = 4;

}  // namespace

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
    if ((options->cache_flags & ~(NQ_CACHE_READONLY | NQ_CACHE_SHARED)) != 0)
        return refuse("cache_flags", options->cache_flags, "NQ_CACHE_READONLY (1), NQ_CACHE_SHARED (2), or both");
    if (options->compile_threads > kMostCompileThreads)
        return refuse("compile_threads", options->compile_threads, "0 to 1024");

    const auto choose = [](const char* option, const std::optional<std::string>& variable,
                           const std::string& otherwise) {
        return option != nullptr ? option : variable.value_or(otherwise);
    };
    ContextConfig config;
    config.jit = options->jit == NQ_JIT_DEFAULT ? environment.jit.value_or(true) : options->jit == NQ_JIT_ON;
    // Absolute from the start: a forked child, which opens the cache anew, may have another working directory.
    config.cache.root = absolute_path(choose(options->cache_dir, environment.cache_dir, environment.default_cache_dir));
    config.cache_homeless =
        options->cache_dir == nullptr && !environment.cache_dir && environment.default_cache_dir.empty();
    config.cache.layers = options->bundles != nullptr ? split_paths(options->bundles) : environment.bundles;
    std::ranges::transform(config.cache.layers, config.cache.layers.begin(), absolute_path);
    config.cache.store.read_only = environment.cache_readonly || (options->cache_flags & NQ_CACHE_READONLY) != 0;
    config.cache.store.shared = environment.cache_shared || (options->cache_flags & NQ_CACHE_SHARED) != 0;
    const std::uint64_t limit =
        options->cache_size != 0 ? options->cache_size : environment.cache_size.value_or(kDefaultCacheBytes);
    config.cache.store.size_limit = limit == UINT64_MAX ? 0 : limit;
    if (options->lock_timeout_ms != 0) config.cache.lock_timeout = std::chrono::milliseconds(options->lock_timeout_ms);
    config.cache.compile_threads =
        options->compile_threads != 0 ? options->compile_threads : std::min(kUsualCompileThreads, compiles_at_a_time());
    config.compile_callback = options->compile_callback;
    config.compile_payload = options->compile_payload;
    config.nvrtc.path = absolute_path(choose(options->nvrtc, environment.nvrtc, ""));
    config.nvrtc.cuda_homes = environment.cuda_homes;
    config.nvrtc.python_environments = environment.python_environments;
    config.libcuda = choose(options->libcuda, environment.libcuda, "");
    config.record = absolute_path(environment.record);
    config.dump_dir = absolute_path(environment.dump_dir);
    config.log_callback = options->log_callback;
    config.log_payload = options->log_payload;
    config.log_level = options->log_level != NQ_LOG_DEFAULT ? static_cast<nq_log_level>(options->log_level)
                                               : environment.log_level.value_or(NQ_LOG_WARN);
    return config;
}

Context::Context(ContextConfig config)
    : config_(std::move(config)),
      log_(config_.log_callback, config_.log_payload, config_.log_level),
      process_(new ProcessState(::getpid(), config_, log_)) {
    if (const Store* root = process_.load()->cache.root()) cache_dir_ = root->root();
    if (config_.cache_homeless)
        log_.warn(fmt::format("no disk cache: XDG_CACHE_HOME and HOME name no directory and uid {} has no home; set "
                              "NORMQUANT_CACHE_DIR, or every process compiles its kernels again",
                              ::geteuid()));
}

Context::~Context() {
    ProcessState* const state = process_;
    // The parent's: its locks may be held for ever on this side of the fork, and its kernels are not ours.
    if (state->pid != ::getpid()) return;
    const CounterTotals totals = state->counters.totals();
    try {
        // Who only had hits writes nothing.
        if (Store* root = state->cache.root(); root != nullptr && totals.misses != 0) root->add_statistics(totals);
    } catch (const std::exception&) {
        // Lack of memory: the counts of this process are lost, and nothing else.
    }
    delete state;
}

ProcessState& Context::process() {
    ProcessState* state = process_.load(std::memory_order_acquire);
    const pid_t self = ::getpid();
    while (state->pid != self) {
        auto fresh = std::make_unique<ProcessState>(self, config_, log_);
        // The parent's state is left alone, see above.
        if (process_.compare_exchange_strong(state, fresh.get(), std::memory_order_acq_rel)) return *fresh.release();
    }
    return *state;
}

CounterTotals Context::counters() const {
    const ProcessState* const state = process_.load(std::memory_order_acquire);
    return state->pid == ::getpid() ? state->counters.totals() : CounterTotals{};
}

std::optional<Error> Context::compile_ban() const {
    if (!config_.jit) return Error{NQ_ERR_NOT_PREPARED, "JIT is off (nq_context_options.jit, NORMQUANT_JIT)", {}};
    if (sealed_) return Error{NQ_ERR_NOT_PREPARED, "the context is sealed (nq_context_seal)", {}};
    return std::nullopt;
}

Result<std::shared_ptr<const NvrtcFile>> Context::nvrtc_file() {
    return process().nvrtc_file.get([this]() -> Result<std::shared_ptr<const NvrtcFile>> {
        Result<NvrtcFile> file = locate_nvrtc(config_.nvrtc);
        if (!file) return std::move(file).error();
        return std::make_shared<const NvrtcFile>(*std::move(file));
    });
}

Result<std::shared_ptr<const Nvrtc>> Context::nvrtc() {
    return process().nvrtc.get([this] {
        auto loaded = load_nvrtc(config_.nvrtc);
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
    auto driver = process().driver.get([this] {
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
    ProcessState& state = process();
    const std::lock_guard lock(state.kernels_mutex);
    const auto kernel = state.kernels.find(key);
    return kernel == state.kernels.end() ? nullptr : kernel->second.get();
}

const Kernel* Context::find_elsewhere(const KernelKey& key, CUdevice device) {
    ProcessState& state = process();
    const std::lock_guard lock(state.kernels_mutex);
    KernelKey other = key;
    other.context_id = 0;
    for (auto kernel = state.kernels.lower_bound(other); kernel != state.kernels.end(); ++kernel) {
        other.context_id = kernel->first.context_id;
        if (kernel->first != other) break;
        if (kernel->second->device().ordinal == device) return kernel->second.get();
    }
    return nullptr;
}

const Kernel* Context::keep(const KernelKey& key, std::unique_ptr<const Kernel> kernel) {
    ProcessState& state = process();
    const std::lock_guard lock(state.kernels_mutex);
    return state.kernels.emplace(key, std::move(kernel)).first->second.get();
}

}  // namespace nq
