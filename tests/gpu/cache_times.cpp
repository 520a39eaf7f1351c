// cache_times: what a kernel costs cold (NVRTC), warm (disk) and in memory, in one run. With a GPU, nq_prepare in full and
// its steps; without, nq_precompile and the steps that need none. 64 processes on one cold and on one warm cache. With a GPU, the start of
// a process that takes 20 problems from a bundle. Ratios are of medians of this run.
#include "cache/bundle.h"
#include "cache/store.h"
#include "gpu/gpu.h"
#include "jit/source.h"
#include "support/temp_directory.h"

#include <normquant/normquant.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <vector>

using namespace nq;
using namespace nq::test;

namespace {

constexpr std::uint32_t kWidths[] = {2048, 2880, 4096, 5120, 7168, 8192, 12288, 16384};
constexpr const char* kArchs[] = {"sm_90"};

void require(nq_status status, const char* doing) {
    if (status == NQ_OK) return;
    std::fprintf(stderr, "%s: %s\n", doing, nq_last_error());
    std::exit(1);
}

double milliseconds(const std::function<void()>& body) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

nq_problem problem_of(std::uint32_t hidden) {
    nq_problem problem = NQ_PROBLEM_INIT;
    problem.hidden = hidden;
    return problem;
}

struct Context {
    explicit Context(const std::string& cache, std::uint32_t threads = 0) {
        nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
        options.cache_dir = cache.c_str();
        options.compile_threads = threads;
        options.lock_timeout_ms = 600'000;
        require(nq_context_create(&options, &handle), "nq_context_create");
    }
    ~Context() { nq_context_destroy(handle); }
    Context(const Context&) = delete;
    Context& operator=(const Context&) = delete;

    void precompile(const nq_problem& problem) const {
        require(nq_precompile(handle, &problem, 1, kArchs, 1, 0, nullptr, nullptr), "nq_precompile");
    }
    void prepare(const nq_problem& problem) const {
        nq_kernel* kernel = nullptr;
        require(nq_prepare(handle, &problem, nullptr, &kernel), "nq_prepare");
    }

    nq_context* handle = nullptr;
};

void measure_prepare(const TempDirectory& directory, bool gpu) {
    std::vector<double> cold, warm, memory;
    for (int round = 0; round < 3; ++round) {
        const std::string cache = directory / "prepare" + std::to_string(round);
        for (const std::uint32_t hidden : kWidths) {
            const nq_problem problem = problem_of(hidden);
            const Context first(cache), second(cache);
            const auto make = [&](const Context& context) { gpu ? context.prepare(problem) : context.precompile(problem); };
            cold.push_back(milliseconds([&] { make(first); }));
            warm.push_back(milliseconds([&] { make(second); }));
            if (gpu) memory.push_back(milliseconds([&] { make(second); }));
        }
    }
    std::printf("%s, a problem (all variants): cold %.2f ms, warm from disk %.3f ms, ratio %.4f\n",
                gpu ? "nq_prepare" : "nq_precompile", median(cold), median(warm), median(warm) / median(cold));
    if (gpu) std::printf("  from memory %.5f ms, ratio to warm %.4f\n", median(memory), median(memory) / median(warm));
}

// Of one entry: reading the file, verifying it in full, loading it into the driver.
void measure_steps(const std::string& cache, const Gpu* gpu) {
    Logger log(nullptr, nullptr, NQ_LOG_OFF);
    Counters counters;
    const Store store(cache, {.read_only = true}, system_files(), log, counters);
    std::vector<double> read, verify, load;
    double bytes = 0;
    store.visit([&](StoredEntry stored) {
        if (!stored.entry) return;
        for (int i = 0; i < 20; ++i) {
            std::vector<unsigned char> image;
            read.push_back(milliseconds([&] {
                const OpenedFile file = open_regular(system_files(), stored.path);
                image = *read_up_to(system_files(), file.fd.get(), stored.bytes);
            }));
            verify.push_back(milliseconds([&] { (void)decode_entry(image.data(), image.size()).ok(); }));
        }
        bytes += static_cast<double>(stored.bytes);
        if (gpu == nullptr) return;
        const Driver& driver = gpu->driver();
        load.push_back(milliseconds([&] {
            CUlibrary library;
            CUkernel kernel;
            CUfunction function;
            gpu->check(driver.cuLibraryLoadData(&library, stored.entry->cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
                       "cuLibraryLoadData");
            gpu->check(driver.cuLibraryGetKernel(&kernel, library, kKernelEntry), "cuLibraryGetKernel");
            gpu->check(driver.cuKernelGetFunction(&function, kernel), "cuKernelGetFunction");
        }));
    });
    std::printf("an entry of %.0f bytes: read %.4f ms, verify %.4f ms, verify / read %.2f\n",
                bytes / (static_cast<double>(read.size()) / 20), median(read), median(verify), median(verify) / median(read));
    if (gpu != nullptr) std::printf("  load %.4f ms, verify / load %.3f\n", median(load), median(verify) / median(load));
}

// Each precompiles the same eight problems and ends.
void measure_processes(const std::string& cache, const char* state) {
    constexpr int kProcesses = 64;
    rusage before{}, after{};
    getrusage(RUSAGE_CHILDREN, &before);
    const double wall = milliseconds([&] {
        for (int i = 0; i < kProcesses; ++i) {
            if (fork() != 0) continue;
            {
                const Context context(cache);
                for (const std::uint32_t hidden : kWidths) context.precompile(problem_of(hidden));
            }
            _exit(0);
        }
        while (wait(nullptr) > 0) {
        }
    });
    getrusage(RUSAGE_CHILDREN, &after);
    const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec); };
    const double cpu = seconds(after.ru_utime) - seconds(before.ru_utime) + seconds(after.ru_stime) - seconds(before.ru_stime);
    std::printf("%d processes, 8 problems each, %s: wall %.0f ms, CPU %.0f ms\n", kProcesses, state, wall, 1e3 * cpu);
}

void measure_throughput(const TempDirectory& directory) {
    double single = 0;
    for (const std::uint32_t threads : {1u, 2u}) {
        const Context context(directory / "throughput" + std::to_string(threads), threads);
        std::vector<nq_problem> problems;
        for (const std::uint32_t hidden : kWidths) problems.push_back(problem_of(hidden));
        const double time = milliseconds([&] {
            require(nq_precompile(context.handle, problems.data(), problems.size(), kArchs, 1, 0, nullptr, nullptr),
                    "nq_precompile");
        });
        nq_counters counters = NQ_COUNTERS_INIT;
        nq_context_counters(context.handle, &counters);
        const double rate = static_cast<double>(counters.compiles) / time * 1e3;
        if (threads == 1) single = rate;
        std::printf("%u compile threads: %.1f kernels a second, %.2f x one thread\n", threads, rate, rate / single);
    }
}

std::vector<nq_problem> start_problems() {
    std::vector<nq_problem> problems;
    for (std::uint32_t i = 1; i <= 20; ++i) {
        problems.push_back(problem_of(512 * i));
        problems.back().scale_layout = NQ_LAYOUT_SWIZZLED;
    }
    return problems;
}

// `cache_times start [BUNDLE]`: a process of its own, as CUDA starts once a process. Without a bundle, what CUDA takes alone.
int start(const char* bundle) {
    std::string why;
    const auto gpu = Gpu::open(why);
    if (!gpu || bundle == nullptr) return gpu ? 0 : 1;
    nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
    options.cache_dir = "";
    options.bundles = bundle;
    options.jit = NQ_JIT_OFF;
    nq_context* context = nullptr;
    require(nq_context_create(&options, &context), "nq_context_create");
    for (const nq_problem& problem : start_problems()) {
        nq_kernel* kernel = nullptr;
        require(nq_prepare(context, &problem, nullptr, &kernel), "nq_prepare");
    }
    nq_context_destroy(context);
    return 0;
}

double start_time(const char* bundle) {
    return milliseconds([&] {
        const pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", "cache_times", "start", bundle, nullptr);
            _exit(127);
        }
        int status = -1;
        if (waitpid(child, &status, 0) != child || status != 0) std::exit(1);
    });
}

void measure_start(const TempDirectory& directory) {
    const std::string cache = directory / "start", bundle = directory / "kernels.nqb";
    const Context builder(cache);
    for (const nq_problem& problem : start_problems()) builder.prepare(problem);
    Logger log(nullptr, nullptr, NQ_LOG_OFF);
    Counters counters;
    const Store store(cache, {.read_only = true}, system_files(), log, counters);
    std::vector<BundleItem> items;
    std::map<RequestKey, Entry> entries;
    store.visit([&](StoredEntry stored) {
        if (!stored.entry) std::exit(1);
        items.push_back({.key = stored.entry->key, .compiler = stored.entry->compiler, .arch = stored.arch});
        entries[stored.entry->key] = *std::move(stored.entry);
    });
    if (!write_bundle(system_files(), bundle, items, [&](const BundleItem& item) -> Result<Entry> { return entries[item.key]; })) std::exit(1);
    std::vector<double> alone, served;
    for (int round = 0; round < 11; ++round) {  // in turns
        alone.push_back(start_time(nullptr));
        served.push_back(start_time(bundle.c_str()));
    }
    std::printf("a process that opens the GPU: %.1f ms; and prepares 20 problems (%zu kernels) from a bundle: %.1f ms, %.3f x\n", median(alone),
                items.size(), median(served), median(served) / median(alone));
}

}  // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what is measured is there even if the rest takes too long
    if (argc > 1) return start(argc > 2 ? argv[2] : nullptr);
    const TempDirectory directory;
    // Before a driver is opened: the children of a process that has one may not use it.
    measure_processes(directory / "processes", "cold");
    measure_processes(directory / "processes", "warm");
    measure_throughput(directory);
    std::string why;
    const auto gpu = Gpu::open(why);
    if (!gpu) std::printf("no GPU: %s\n", why.c_str());
    if (gpu) measure_start(directory);
    measure_prepare(directory, gpu != nullptr);
    measure_steps(directory / "processes", gpu.get());
}
