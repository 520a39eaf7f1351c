// gpu_soak [SECONDS [SEED]]: threads launch and replay what a server would, on shared streams, while another creates and destroys
// contexts. Every byte is compared with the reference, and the process must not grow. What is launched comes from the seed, which is
// printed. Exit 77 without a GPU, 1 on any fault.
#include "gpu/device_tensors.h"
#include "gpu/gpu.h"

#include "runtime/parallel.h"
#include "support/cores.h"
#include "support/operator_cases.h"
#include "support/temp_directory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace nq;
using namespace nq::test;
using Clock = std::chrono::steady_clock;

namespace {

constexpr std::size_t kThreads = 8, kStreams = 4, kProblems = 24;
constexpr std::size_t kSizes = 3;  // few rows, more and many: each takes a variant of its own, where there are several
constexpr int kReplays = 4;
using Random = std::mt19937_64;

// A problem of the soak: its width and what is asked of it. Some are wide, some so narrow that thousands of rows are no burden.
struct Shape {
    std::uint32_t hidden;
    std::int64_t rows[kSizes];
    std::vector<unsigned> choice;
    std::uint64_t seed;

    Shape(std::size_t which, Random& random, const Gpu& gpu) : seed(random()) {
        static const auto choices = pairwise(operator_factors());
        const auto between = [&](std::int64_t least, std::int64_t most) {
            return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
        };
        const bool wide = which % 6 == 1, narrow = which % 6 == 4;
        hidden = 16 * static_cast<std::uint32_t>(wide ? between(1025, 2560) : narrow ? between(1, 64) : between(1, 512));
        choice = choices[random() % choices.size()];
        const RowLimits limits = row_limits_of(gpu, operator_case(hidden, 0, choice, seed).problem);
        rows[0] = between(1, std::clamp<std::int64_t>(limits.split, 1, 32));
        rows[1] = between(limits.split + 1, std::min<std::int64_t>(limits.latency, 500));
        rows[2] = narrow ? between(5001, 9000) : between(limits.latency + 1, limits.latency + 200);
    }
};

void require(nq_status status) {
    if (status != NQ_OK) throw std::runtime_error(std::string(nq_status_name(status)) + ": " + nq_last_error());
}

// One call, and what it is to give: as it is, or for each of several row counts that the device holds.
struct Case {
    struct Turn {
        std::int32_t rows;
        Outputs expected;
    };
    OperatorCase test;
    nq_problem problem;
    std::vector<Turn> turns;  // the first is that of the inputs

    Case(const Shape& shape, std::size_t size) {
        const std::int64_t rows = shape.rows[size];
        test = operator_case(shape.hidden, rows, shape.choice, shape.seed);
        problem = problem_to_c(test.problem);
        std::vector<std::int32_t> counts = {test.inputs.device_rows.value_or(0)};
        const auto all = static_cast<std::int32_t>(rows);
        if (test.inputs.device_rows) counts.insert(counts.end(), {all, all / 3, 0, 1});
        OperatorCase turn = test;
        for (const std::int32_t count : counts) {
            if (test.inputs.device_rows) turn.inputs.device_rows = count;
            turns.push_back({count, expected_outputs(turn, 1, DeviceTensors::kGarbage)});
        }
    }
};

struct Totals {
    std::atomic<std::uint64_t> launches{0}, bursts{0}, captures{0}, replays{0}, contexts{0}, mismatches{0};
    std::atomic<bool> stop{false};

    void fault(const std::string& what) {
        const std::lock_guard lock(mutex_);
        if (++faults_ <= 10) std::fprintf(stderr, "gpu_soak: %s\n", what.c_str());
    }
    bool faulty() {
        const std::lock_guard lock(mutex_);
        return faults_ != 0;
    }

private:
    std::mutex mutex_;
    std::uint64_t faults_ = 0;
};

class Worker {
public:
    Worker(const Gpu& gpu, nq_context* context, Totals& totals, CUstream stream, std::uint64_t seed)
        : gpu_(gpu), context_(context), totals_(totals), stream_(stream), random_(seed) {
        gpu.check(gpu.driver().cuStreamCreate(&capture_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    ~Worker() { gpu_.driver().cuStreamDestroy(capture_); }
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    // A case of this worker's: its tensors are nobody else's.
    void add(const Case& some) {
        nq_kernel* kernel = nullptr;
        require(nq_prepare(context_, &some.problem, nullptr, &kernel));
        cases_.push_back({&some, kernel, std::make_unique<DeviceTensors>(gpu_, some.test.problem, some.test.inputs, some.test.arrangement)});
    }
    void run() {
        gpu_.check(gpu_.cuCtxSetCurrent(gpu_.primary()), "cuCtxSetCurrent");
        while (!totals_.stop) {
            const Own& own = cases_[random_() % cases_.size()];
            switch (random_() % 8) {
                case 0: burst(); break;
                case 1:
                case 2: replay(own); break;
                default: launch(own);
            }
        }
    }
    // Contexts of its own, one after the other, that find their kernels in the cache.
    void run_contexts(const nq_context_options& options) {
        gpu_.check(gpu_.cuCtxSetCurrent(gpu_.primary()), "cuCtxSetCurrent");
        while (!totals_.stop) {
            const Own& own = cases_[random_() % cases_.size()];
            nq_context* created = nullptr;
            require(nq_context_create(&options, &created));
            const std::unique_ptr<nq_context, void (*)(nq_context*)> context(created, nq_context_destroy);
            nq_kernel* kernel = nullptr;
            require(nq_prepare(created, &own.some->problem, nullptr, &kernel));
            own.device->write();
            const nq_tensors tensors = own.device->tensors();
            require(nq_launch(kernel, &tensors, stream_));
            compare(own, own.some->turns[0].expected, "launch of a new context");
            ++totals_.contexts;
        }
    }

private:
    struct Own {
        const Case* some;
        const nq_kernel* kernel;
        std::unique_ptr<DeviceTensors> device;
    };

    void compare(const Own& own, const Outputs& expected, const char* how) {
        gpu_.check(gpu_.driver().cuStreamSynchronize(stream_), how);
        const std::string wrong = difference(own.device->outputs(), expected);
        if (wrong.empty()) return;
        ++totals_.mismatches;
        totals_.fault(std::string(how) + " of " + own.some->test.text + ": " + wrong);
    }

    void launch(const Own& own) {
        own.device->write();
        nq_tensors tensors = own.device->tensors();
        if (random_() % 2 == 0) {
            require(nq_launch(own.kernel, &tensors, stream_));
        } else {
            require(nq_run(context_, &own.some->problem, &tensors, stream_));
        }
        ++totals_.launches;
        tensors.rows = 0;  // an idle rank's, which changes nothing
        if (random_() % 8 == 0) require(nq_launch(own.kernel, &tensors, stream_));
        compare(own, own.some->turns[0].expected, "launch");
    }

    // All cases in any order with nothing between them, those that may be repeated several times.
    void burst() {
        std::vector<const Own*> order;
        for (const Own& own : cases_) {
            own.device->write();
            const bool in_place = own.some->test.problem.adds() && !own.some->test.arrangement.separate_residual;
            order.insert(order.end(), in_place ? 1 : 1 + random_() % 4, &own);
        }
        std::shuffle(order.begin(), order.end(), random_);
        for (const Own* own : order) {
            const nq_tensors tensors = own->device->tensors();
            require(nq_launch(own->kernel, &tensors, stream_));
            ++totals_.launches;
        }
        ++totals_.bursts;
        for (const Own& own : cases_) compare(own, own.some->turns[0].expected, "burst");
    }

    // Captured on a stream of this worker's, as what others put into the shared one would be captured with it.
    void replay(const Own& own) {
        const nq_tensors tensors = own.device->tensors();
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
        gpu_.check(gpu_.cuStreamBeginCapture(capture_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
        require(nq_launch(own.kernel, &tensors, capture_));
        gpu_.check(gpu_.cuStreamEndCapture(capture_, &graph), "cuStreamEndCapture");
        gpu_.check(gpu_.cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
        ++totals_.captures;
        for (int i = 0; i < kReplays; ++i) {
            const Case::Turn& turn = own.some->turns[static_cast<std::size_t>(i) % own.some->turns.size()];
            own.device->write(own.some->test.inputs.device_rows ? std::optional(turn.rows) : std::nullopt);
            gpu_.check(gpu_.cuGraphLaunch(exec, stream_), "cuGraphLaunch");
            ++totals_.replays;
            compare(own, turn.expected, "replay");
        }
        gpu_.check(gpu_.cuGraphExecDestroy(exec), "cuGraphExecDestroy");
        gpu_.check(gpu_.cuGraphDestroy(graph), "cuGraphDestroy");
    }

    const Gpu& gpu_;
    nq_context* const context_;
    Totals& totals_;
    const CUstream stream_;
    CUstream capture_ = nullptr;
    Random random_;
    std::vector<Own> cases_;
};

// What must not grow, in MiB or pieces.
enum Resource : std::size_t { kDevice, kResident, kFiles, kThreadCount, kResources };
struct Limit {
    const char* name;
    double slack;
    // The growth a quarter that says nothing, and bytes that each launch may leave behind beyond; 0: no limit.
    double noise = 0, per_launch = 0;
};
// The host's allocator and the driver's pools come to rest late.
constexpr Limit kLimits[kResources] = {
    {.name = "device memory, MiB", .slack = 32},
    {.name = "resident memory, MiB", .slack = 64, .noise = 2, .per_launch = 64},
    {.name = "open files", .slack = 0},
    {.name = "threads", .slack = 0},
};
struct Sample {
    std::array<double, kResources> used;
    double launches;
};

std::ptrdiff_t entries(const char* directory) {
    return std::distance(std::filesystem::directory_iterator(directory), std::filesystem::directory_iterator());
}

Sample sample(const Gpu& gpu, double launches) {
    std::size_t free = 0, total = 0;
    gpu.check(gpu.cuMemGetInfo(&free, &total), "cuMemGetInfo");
    std::size_t pages = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> pages >> resident;
    const double mib = 1 << 20;
    return {{static_cast<double>(total - free) / mib, static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / mib,
             static_cast<double>(entries("/proc/self/fd")), static_cast<double>(entries("/proc/self/task"))},
            launches};
}

// By the least of each quarter: what is held at times alone does not count. What comes to rest may grow by its slack; what each launch
// leaves behind grows in every quarter.
void judge(const std::vector<Sample>& samples, Totals& totals) {
    const std::size_t quarter = samples.size() / 4;
    if (quarter == 0) return totals.fault("too short to tell growth: take more seconds");
    for (std::size_t r = 0; r < kResources; ++r) {
        const Limit& limit = kLimits[r];
        std::array<double, 4> least{};
        double steady = std::numeric_limits<double>::infinity(), per_launch = steady;
        for (std::size_t q = 0; q < least.size(); ++q) {
            const auto length = static_cast<std::ptrdiff_t>(quarter);
            const auto first = samples.begin() + static_cast<std::ptrdiff_t>(q) * length, end = first + length;
            least[q] = std::min_element(first, end, [r](const Sample& a, const Sample& b) { return a.used[r] < b.used[r]; })->used[r];
            if (q == 0) continue;
            const double grown = least[q] - least[q - 1], launches = (end - 1)->launches - (first - 1)->launches;
            steady = std::min(steady, grown);
            per_launch = std::min(per_launch, grown * (1 << 20) / std::max(launches, 1.0));
        }
        std::printf("%-22s %10.1f %10.1f %10.1f %10.1f by quarters\n", limit.name, least[0], least[1], least[2], least[3]);
        if (least[3] > least[0] + limit.slack) totals.fault(std::string(limit.name) + " grew beyond its slack");
        if (limit.per_launch > 0 && steady > limit.noise && per_launch > limit.per_launch)
            totals.fault(std::string(limit.name) + " grew by " + std::to_string(per_launch) + " bytes a launch");
    }
}

int soak(const Gpu& gpu, std::chrono::duration<double> duration, std::uint64_t seed) {
    const auto begin = Clock::now();
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    Random random(seed);
    const TempDirectory cache;
    nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
    options.cache_dir = cache.path().c_str();
    options.compile_threads = cores();
    nq_context* created = nullptr;
    require(nq_context_create(&options, &created));
    const std::unique_ptr<nq_context, void (*)(nq_context*)> context(created, nq_context_destroy);

    std::vector<Shape> shapes;
    for (std::size_t i = 0; i < kProblems; ++i) shapes.emplace_back(i, random, gpu);
    std::vector<std::unique_ptr<const Case>> cases(kProblems * kSizes);
    parallel_for(cases.size(), cores(), [&](std::size_t i) { cases[i] = std::make_unique<Case>(shapes[i / kSizes], i % kSizes); });
    std::vector<nq_problem> problems;
    for (std::size_t i = 0; i < cases.size(); i += kSizes) problems.push_back(cases[i]->problem);
    const std::string target = target_for(gpu.capability(), std::nullopt, {})->name();
    const char* const archs[] = {target.c_str()};
    require(nq_precompile(context.get(), problems.data(), problems.size(), archs, 1, 0, nullptr, nullptr));

    Totals totals;
    std::array<CUstream, kStreams> streams{};
    for (CUstream& stream : streams) gpu.check(gpu.driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    std::vector<std::unique_ptr<Worker>> workers;
    for (std::size_t w = 0; w < kThreads; ++w)
        workers.push_back(std::make_unique<Worker>(gpu, context.get(), totals, streams[w % kStreams], random()));
    // Its kernels are shared by several workers: the row counts of a problem go to different ones.
    for (std::size_t i = 0; i < cases.size(); ++i) workers[i % kThreads]->add(*cases[i]);
    Worker maker(gpu, context.get(), totals, streams[0], random());
    for (std::size_t i = 0; i < cases.size(); i += kSizes) maker.add(*cases[i]);  // few rows
    require(nq_context_seal(context.get()));
    std::printf("%zu problems, %zu cases, ready after %.1f s\n", kProblems, cases.size(), std::chrono::duration<double>(Clock::now() - begin).count());
    std::fflush(stdout);

    std::vector<Sample> samples;
    {
        std::vector<std::jthread> threads;
        const auto start_thread = [&](auto work) {
            threads.emplace_back([&totals, work] {
                try {
                    work();
                } catch (const std::exception& exception) {
                    totals.fault(exception.what());
                    totals.stop = true;
                }
            });
        };
        for (const auto& worker : workers) start_thread([&worker = *worker] { worker.run(); });
        start_thread([&] { maker.run_contexts(options); });
        // The first fifth is warm-up: allocators and the driver's pools fill.
        const auto start = Clock::now();
        const auto pause = std::min<std::chrono::duration<double>>(duration / 100, std::chrono::seconds(2));
        while (!totals.stop && Clock::now() - start < duration) {
            std::this_thread::sleep_for(pause);
            if (Clock::now() - start > duration / 5) samples.push_back(sample(gpu, static_cast<double>(totals.launches + totals.replays)));
        }
        totals.stop = true;
    }
    const auto count = [](const std::atomic<std::uint64_t>& value) { return static_cast<unsigned long long>(value.load()); };
    std::printf("%llu launches, %llu bursts of them, %llu captures, %llu replays, %llu contexts, %llu mismatches\n", count(totals.launches),
                count(totals.bursts), count(totals.captures), count(totals.replays), count(totals.contexts), count(totals.mismatches));
    judge(samples, totals);
    if (totals.bursts == 0 || totals.replays == 0 || totals.contexts == 0)
        totals.fault("nothing was launched in a burst, nothing replayed, or no context created");
    nq_counters counters = NQ_COUNTERS_INIT;
    require(nq_context_counters(context.get(), &counters));
    if (counters.failed_compiles != 0) totals.fault("a compile failed");
    workers.clear();
    for (const CUstream stream : streams) gpu.check(gpu.driver().cuStreamDestroy(stream), "cuStreamDestroy");
    return totals.faulty() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
    char *end = nullptr, *end_of_seed = nullptr;
    const double seconds = argc >= 2 ? std::strtod(argv[1], &end) : 30;
    const std::uint64_t seed = argc >= 3 ? std::strtoull(argv[2], &end_of_seed, 10) : std::random_device{}();
    const bool wrong = (argc >= 2 && (*end != '\0' || end == argv[1])) || (argc >= 3 && (*end_of_seed != '\0' || end_of_seed == argv[2]));
    if (argc > 3 || wrong || !(seconds > 0 && seconds < 1e6)) {
        std::fprintf(stderr, "usage: gpu_soak [SECONDS [SEED]]\n");
        return 2;
    }
    try {
        const auto gpu = Gpu::open_or_skip();
        return soak(*gpu, std::chrono::duration<double>(seconds), seed);
    } catch (const std::exception& exception) {
        std::fprintf(stderr, "gpu_soak: %s\n", exception.what());
        return 1;
    }
}
