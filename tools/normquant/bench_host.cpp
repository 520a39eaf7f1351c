#include "bench_host.h"

#include "errors.h"
#include "options.h"
#include "problem/arch.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>

namespace nq::cli {
namespace {

constexpr int kColdRounds = 9;
constexpr int kWarmPerRound = 5;
constexpr int kMemoryCalls = 1000;
constexpr int kLaunchBatches = 201;
constexpr int kEnqueuesPerBatch = 100;  // few enough for the stream's queue: a full one would make the host wait

using Clock = std::chrono::steady_clock;
double microseconds_since(Clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double> values) { return spread(std::move(values)).median; }

double median_ratio(const std::vector<double>& above, const std::vector<double>& below) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < above.size(); ++i) ratios.push_back(above[i] / below[i]);
    return median(std::move(ratios));
}

class TempCache {
public:
    static Result<TempCache> create() {
        std::error_code status;
        std::string path = (std::filesystem::temp_directory_path(status) / "normquant-bench-XXXXXX").string();
        if (status || ::mkdtemp(path.data()) == nullptr)
            return failure(fmt::format("cannot create the directory {}", path));
        return TempCache(std::move(path));
    }
    TempCache(TempCache&& other) noexcept : path_(std::exchange(other.path_, "")) {}
    TempCache& operator=(TempCache&&) = delete;
    ~TempCache() {
        std::error_code ignored;
        if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
    }

    const std::string& path() const { return path_; }

private:
    explicit TempCache(std::string path) : path_(std::move(path)) {}
    std::string path_;
};

// The compiles of one prepare, which come from several threads.
struct Compiles {
    std::mutex mutex;
    std::vector<double> microseconds;

    static void add(const nq_compile_event* event, void* payload) {
        auto& compiles = *static_cast<Compiles*>(payload);
        const std::lock_guard lock(compiles.mutex);
        compiles.microseconds.push_back(static_cast<double>(event->compile_ns) * 1e-3);
    }
};

// Whatever the environment says of layers and compiles does not hold here.
Result<ContextPtr> fresh_context(const TempCache& cache, Compiles& compiles) {
    nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
    options.jit = NQ_JIT_ON;
    options.bundles = "";
    options.compile_callback = Compiles::add;
    options.compile_payload = &compiles;
    return create_context(cache.path(), options);
}

struct Prepared {
    nq_kernel* kernel = nullptr;
    double microseconds = 0;
};

Result<Prepared> timed_prepare(nq_context* context, const nq_problem& problem, CUstream stream, std::uint32_t threads) {
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.threads_per_row = threads;
    options.stream = stream;
    Prepared prepared;
    const auto begin = Clock::now();
    const nq_status status = nq_prepare(context, &problem, &options, &prepared.kernel);
    prepared.microseconds = microseconds_since(begin);
    if (const Outcome done = check(status); !done) return done.error();
    return prepared;
}

// Empty cache, new context: what it took, and NVRTC's part of it.
Result<double> cold_prepare(Device& device, const nq_problem& problem, std::uint32_t threads, const TempCache& cache,
                            Compiles& compiles) {
    const auto context = fresh_context(cache, compiles);
    if (!context) return context.error();
    const auto prepared = timed_prepare(context->get(), problem, device.stream(), threads);
    if (!prepared) return prepared.error();
    if (!compiles.microseconds.empty()) return prepared->microseconds;
    return failure("a prepare with an empty cache compiled nothing");
}

Outcome time_prepares(Device& device, const nq_problem& problem, std::uint32_t one_plan, HostCosts& costs) {
    std::vector<double> cold_one, cold_one_compile, cold_all, slowest, warm, memory;
    for (int round = 0; round < kColdRounds; ++round) {
        {
            const auto cache = TempCache::create();
            if (!cache) return cache.error();
            Compiles compiles;
            const auto time = cold_prepare(device, problem, one_plan, *cache, compiles);
            if (!time) return time.error();
            cold_one.push_back(*time);
            // A target with 32-byte loads has a second form of the plan, compiled beside the first.
            cold_one_compile.push_back(*std::ranges::max_element(compiles.microseconds));
        }
        const auto cache = TempCache::create();
        if (!cache) return cache.error();
        Compiles compiles;
        const auto time = cold_prepare(device, problem, 0, *cache, compiles);
        if (!time) return time.error();
        cold_all.push_back(*time);
        slowest.push_back(*std::ranges::max_element(compiles.microseconds));
        costs.variants = compiles.microseconds.size();
        for (int i = 0; i < kWarmPerRound; ++i) {
            const auto context = fresh_context(*cache, compiles);
            if (!context) return context.error();
            const auto first = timed_prepare(context->get(), problem, device.stream(), 0);
            if (!first) return first.error();
            if (compiles.microseconds.size() != costs.variants)
                return failure(fmt::format(
                    "a warm prepare compiled again: {} keeps nothing (NORMQUANT_CACHE_READONLY?)", cache->path()));
            warm.push_back(first->microseconds);
            const auto begin = Clock::now();
            for (int call = 0; call < kMemoryCalls; ++call) {
                if (const auto again = timed_prepare(context->get(), problem, device.stream(), 0); !again)
                    return again.error();
            }
            memory.push_back(microseconds_since(begin) / kMemoryCalls);
        }
    }
    costs.cold_one_ratio = median_ratio(cold_one, cold_one_compile);
    costs.cold_all_ratio = median_ratio(cold_all, slowest);
    costs.cold_one = spread(std::move(cold_one));
    costs.cold_one_compile = spread(std::move(cold_one_compile));
    costs.cold_all = spread(std::move(cold_all));
    costs.slowest_compile = spread(std::move(slowest));
    costs.warm = spread(std::move(warm));
    costs.memory = spread(std::move(memory));
    return Unit{};
}

// Microseconds a call, of one batch that ends with the device idle again. launch() returns 0, or what `explain` makes
// an error of.
template <class Launch, class Explain>
Result<double> batch(Device& device, Launch launch, Explain explain) {
    const auto begin = Clock::now();
    for (int i = 0; i < kEnqueuesPerBatch; ++i) {
        if (const auto result = launch(); result != 0) return Outcome(explain(result)).error();
    }
    const double time = microseconds_since(begin) / kEnqueuesPerBatch;
    if (const Outcome done = device.synchronize(); !done) return done.error();
    return time;
}

Outcome time_launches(Device& device, const nq_kernel* kernel, const nq_problem& problem, HostCosts& costs) {
    std::size_t fp4_bytes = 0, scale_bytes = 0;
    if (Outcome sized = check(nq_fp4_bytes(&problem, 1, &fp4_bytes)); !sized) return sized;
    if (Outcome sized = check(nq_scale_bytes(&problem, 1, &scale_bytes)); !sized) return sized;
    const std::vector<unsigned char> zeros(std::size_t{problem.hidden} * 4);
    const auto x = device.upload(zeros), weight = device.upload(zeros), residual = device.upload(zeros), y = device.upload(zeros),
               fp4 = device.allocate(fp4_bytes), scales = device.allocate(scale_bytes),
               scales_linear = device.allocate(problem.hidden / problem.block_size);
    for (const auto* buffer : {&x, &weight, &residual, &y, &fp4, &scales, &scales_linear}) {
        if (!*buffer) return buffer->error();
    }
    nq_tensors tensors = NQ_TENSORS_INIT;
    tensors.rows = 1;
    tensors.x = x->pointer();
    tensors.weight = weight->pointer();
    tensors.fp4 = fp4->pointer();
    tensors.scales = scales->pointer();
    if (problem.op == NQ_OP_ADD_RMSNORM) tensors.residual = residual->pointer();
    if ((problem.flags & NQ_PROBLEM_Y_OUT) != 0) tensors.y_out = y->pointer();
    if (problem.scale_layout == NQ_LAYOUT_BOTH) tensors.scales_linear = scales_linear->pointer();

    // What the driver is asked for, in the driver's words.
    const auto graph =
        TimedGraph::capture(device, 1, [&](unsigned) { return check(nq_launch(kernel, &tensors, device.stream())); });
    if (!graph) return graph.error();
    const auto node = graph->kernel_node();
    if (!node) return node.error();
    std::vector<CUlaunchAttribute> attributes;
    if (node->cluster != std::array{1u, 1u, 1u}) {
        CUlaunchAttribute& cluster = attributes.emplace_back();
        cluster.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        cluster.value.clusterDim = {node->cluster[0], node->cluster[1], node->cluster[2]};
    }
    if ((problem.flags & NQ_PROBLEM_OVERLAP) != 0 && device.facts().capability.major >= 9) {
        CUlaunchAttribute& overlap = attributes.emplace_back();
        overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        overlap.value.programmaticStreamSerializationAllowed = 1;
    }
    CUlaunchConfig config = {};
    config.gridDimX = node->grid[0];
    config.gridDimY = node->grid[1];
    config.gridDimZ = node->grid[2];
    config.blockDimX = node->block_threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = node->shared_bytes;
    config.hStream = device.stream();
    config.attrs = attributes.data();
    config.numAttrs = static_cast<unsigned>(attributes.size());
    const Driver& driver = *device.driver();
    const auto time_ours = [&] {
        return batch(
            device, [&] { return nq_launch(kernel, &tensors, device.stream()); }, check);
    };
    const auto time_raw = [&](CUfunction function) {
        return batch(
            device, [&] { return driver.cuLaunchKernelEx(&config, function, node->arguments, nullptr); },
            [&](CUresult result) { return device.outcome(result, "launching a kernel"); });
    };
    std::vector<double> ours, by_function, by_kernel;
    for (int i = 0; i < kLaunchBatches; ++i) {
        const auto mine = time_ours();
        if (!mine) return mine.error();
        ours.push_back(*mine);
        const auto function = time_raw(node->function);
        if (!function) return function.error();
        by_function.push_back(*function);
        if (node->kernel == nullptr) continue;
        // The driver documents this cast: a CUkernel stands for its function in the context of the launch.
        const auto kernel_handle = time_raw(reinterpret_cast<CUfunction>(node->kernel));
        if (!kernel_handle) return kernel_handle.error();
        by_kernel.push_back(*kernel_handle);
    }
    costs.launch_ratio = median_ratio(ours, by_function);
    if (!by_kernel.empty()) {
        costs.launch_to_raw_kernel = median_ratio(ours, by_kernel);
        costs.raw_kernel = spread(std::move(by_kernel));
    }
    costs.launch = spread(std::move(ours));
    costs.raw_function = spread(std::move(by_function));
    return Unit{};
}

}  // namespace

Result<HostCosts> time_host(Device& device, const Nvrtc& nvrtc, const nq_problem& problem) {
    const auto arch = target_for(device.facts().capability, nvrtc.version, nvrtc.archs);
    if (!arch) return arch.error();
    nq_plan plan = NQ_PLAN_INIT;
    const Outcome planned = check(nq_plan_query(&problem, arch->name().c_str(), NQ_VARIANT_THROUGHPUT, 0, &plan));
    if (!planned) return planned.error();

    HostCosts costs;
    if (const Outcome timed = time_prepares(device, problem, plan.threads_per_row, costs); !timed) return timed.error();
    const auto cache = TempCache::create();
    if (!cache) return cache.error();
    Compiles compiles;
    const auto context = fresh_context(*cache, compiles);
    if (!context) return context.error();
    const auto prepared = timed_prepare(context->get(), problem, device.stream(), 0);
    if (!prepared) return prepared.error();
    if (const Outcome timed = time_launches(device, prepared->kernel, problem, costs); !timed) return timed.error();
    return costs;
}

}  // namespace nq::cli
