// gpu_soak [SECONDS]: threads launch and replay what a server would, on shared streams, while every byte is compared with the
// reference and the process must not grow. Exit 77 without a GPU, 1 on any fault.
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
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
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
constexpr std::uint32_t kWidths[] = {512, 2880, 4096, 80, 7168, 1024, 5120};
constexpr std::int64_t kRows[] = {5, 200, 700};  // each takes a variant of its own, where there are several
constexpr int kReplays = 4;

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

    Case(std::size_t which, std::int64_t rows) {
        static const auto choices = pairwise(operator_factors());
        test = operator_case(kWidths[which % std::size(kWidths)], rows, choices[which % choices.size()], which);
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
    std::atomic<std::uint64_t> launches{0}, captures{0}, replays{0}, mismatches{0};
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
            if (random_() % 3 == 0) {
                replay(own);
            } else {
                launch(own);
            }
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

    // Captured on a stream of this worker's, as what others put into the shared one would be captured with it.
    void replay(const Own& own) {
        const Driver& driver = gpu_.driver();
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
            own.device->write();
            Bytes rows(sizeof turn.rows);
            std::memcpy(rows.data(), &turn.rows, rows.size());
            own.device->device_rows().upload(rows);
            gpu_.check(driver.cuStreamSynchronize(nullptr), "the upload");
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
    std::mt19937_64 random_;
    std::vector<Own> cases_;
};

// What must not grow, in MiB or pieces.
enum Resource : std::size_t { kDevice, kResident, kFiles, kThreadCount, kResources };
struct Limit {
    const char* name;
    double slack;
};
// The host's allocator and the driver's pools come to rest late, and threads hold copies of tensors at times.
constexpr Limit kLimits[kResources] = {{"device memory, MiB", 32}, {"resident memory, MiB", 64}, {"open files", 0}, {"threads", 0}};
using Sample = std::array<double, kResources>;

std::ptrdiff_t entries(const char* directory) {
    return std::distance(std::filesystem::directory_iterator(directory), std::filesystem::directory_iterator());
}

Sample sample(const Gpu& gpu) {
    std::size_t free = 0, total = 0;
    gpu.check(gpu.cuMemGetInfo(&free, &total), "cuMemGetInfo");
    std::size_t pages = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> pages >> resident;
    const double mib = 1 << 20;
    return {static_cast<double>(total - free) / mib, static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / mib,
            static_cast<double>(entries("/proc/self/fd")), static_cast<double>(entries("/proc/self/task"))};
}

// Medians of the first and the last quarter.
void judge(const std::vector<Sample>& samples, Totals& totals) {
    const std::size_t quarter = samples.size() / 4;
    if (quarter == 0) return totals.fault("too short to tell growth: take more seconds");
    for (std::size_t r = 0; r < kResources; ++r) {
        const auto median = [&](std::size_t first) {
            std::vector<double> values;
            for (std::size_t i = first; i < first + quarter; ++i) values.push_back(samples[i][r]);
            std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(quarter / 2), values.end());
            return values[quarter / 2];
        };
        const double before = median(0), after = median(samples.size() - quarter);
        std::printf("%-22s %10.1f first quarter %10.1f last quarter\n", kLimits[r].name, before, after);
        if (after > before + kLimits[r].slack) totals.fault(std::string(kLimits[r].name) + " grew beyond its slack");
    }
}

int soak(const Gpu& gpu, std::chrono::duration<double> duration) {
    const auto begin = Clock::now();
    const TempDirectory cache;
    nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
    options.cache_dir = cache.path().c_str();
    options.compile_threads = cores();
    nq_context* created = nullptr;
    require(nq_context_create(&options, &created));
    const std::unique_ptr<nq_context, void (*)(nq_context*)> context(created, nq_context_destroy);

    std::vector<std::unique_ptr<const Case>> cases(kProblems * std::size(kRows));
    parallel_for(cases.size(), cores(), [&](std::size_t i) { cases[i] = std::make_unique<Case>(i / std::size(kRows), kRows[i % std::size(kRows)]); });
    std::vector<nq_problem> problems;
    for (std::size_t i = 0; i < cases.size(); i += std::size(kRows)) problems.push_back(cases[i]->problem);
    const std::string target = target_for(gpu.capability(), std::nullopt, {})->name();
    const char* const archs[] = {target.c_str()};
    require(nq_precompile(context.get(), problems.data(), problems.size(), archs, 1, 0, nullptr, nullptr));

    Totals totals;
    std::array<CUstream, kStreams> streams{};
    for (CUstream& stream : streams) gpu.check(gpu.driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    std::vector<std::unique_ptr<Worker>> workers;
    for (std::size_t w = 0; w < kThreads; ++w) workers.push_back(std::make_unique<Worker>(gpu, context.get(), totals, streams[w % kStreams], w));
    // Its kernels are shared by several workers: the row counts of a problem go to different ones.
    for (std::size_t i = 0; i < cases.size(); ++i) workers[i % kThreads]->add(*cases[i]);
    require(nq_context_seal(context.get()));
    std::printf("%zu problems, %zu cases, ready after %.1f s\n", kProblems, cases.size(), std::chrono::duration<double>(Clock::now() - begin).count());
    std::fflush(stdout);

    std::vector<Sample> samples;
    {
        std::vector<std::jthread> threads;
        for (const auto& worker : workers) {
            threads.emplace_back([&] {
                try {
                    worker->run();
                } catch (const std::exception& exception) {
                    totals.fault(exception.what());
                    totals.stop = true;
                }
            });
        }
        // The first fifth is warm-up: allocators and the driver's pools fill.
        const auto start = Clock::now();
        const auto pause = std::min<std::chrono::duration<double>>(duration / 100, std::chrono::seconds(2));
        while (!totals.stop && Clock::now() - start < duration) {
            std::this_thread::sleep_for(pause);
            if (Clock::now() - start > duration / 5) samples.push_back(sample(gpu));
        }
        totals.stop = true;
    }
    const auto count = [](const std::atomic<std::uint64_t>& value) { return static_cast<unsigned long long>(value.load()); };
    std::printf("%llu launches, %llu captures, %llu replays, %llu mismatches\n", count(totals.launches), count(totals.captures),
                count(totals.replays), count(totals.mismatches));
    judge(samples, totals);
    if (totals.launches == 0 || totals.replays == 0) totals.fault("nothing was launched, or nothing replayed");
    nq_counters counters = NQ_COUNTERS_INIT;
    require(nq_context_counters(context.get(), &counters));
    if (counters.failed_compiles != 0) totals.fault("a compile failed");
    workers.clear();
    for (const CUstream stream : streams) gpu.check(gpu.driver().cuStreamDestroy(stream), "cuStreamDestroy");
    return totals.faulty() ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
    char* end = nullptr;
    const double seconds = argc == 2 ? std::strtod(argv[1], &end) : 30;
    if (argc > 2 || (argc == 2 && (*end != '\0' || end == argv[1])) || !(seconds > 0 && seconds < 1e6)) {
        std::fprintf(stderr, "usage: gpu_soak [SECONDS]\n");
        return 2;
    }
    try {
        const auto gpu = Gpu::open_or_skip();
        return soak(*gpu, std::chrono::duration<double>(seconds));
    } catch (const std::exception& exception) {
        std::fprintf(stderr, "gpu_soak: %s\n", exception.what());
        return 1;
    }
}
