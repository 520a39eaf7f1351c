// Threads, contexts and the ends of contexts and processes on a real device. What breaks a context or ends a process runs in a process
// of its own: a hidden test case of this program.
#include "gpu/device_tensors.h"
#include "gpu/gpu.h"
#include "gpu/test_kernel.h"

#include "plan/plan.h"
#include "support/catch.h"
#include "support/random_inputs.h"
#include "support/temp_directory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace nq;
using namespace nq::test;

namespace {

// One for all test cases, so that little is compiled; the children have their own.
const std::string& cache_dir() {
    static const TempDirectory directory;
    return directory.path();
}

void ok(nq_status status) {
    INFO(nq_status_name(status) << ": " << nq_last_error() << " " << nq_last_error_detail());
    REQUIRE(status == NQ_OK);
}

// For threads other than the test's, where nothing may be asserted.
void need(nq_status status) {
    if (status != NQ_OK) throw std::runtime_error(nq_last_error());
}

struct DestroyContext {
    void operator()(nq_context* context) const { nq_context_destroy(context); }
};
using ContextPtr = std::unique_ptr<nq_context, DestroyContext>;

ContextPtr create() {
    nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
    options.cache_dir = cache_dir().c_str();
    nq_context* context = nullptr;
    ok(nq_context_create(&options, &context));
    return ContextPtr(context);
}

nq_kernel* prepare(nq_context* context, const Problem& problem, CUstream stream = nullptr) {
    const nq_problem asked = problem_to_c(problem);
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = stream;
    nq_kernel* kernel = nullptr;
    ok(nq_prepare(context, &asked, &options, &kernel));
    return kernel;
}

Problem some_problem(std::uint32_t hidden = 8192) {
    Problem problem;
    problem.hidden = hidden;
    problem.dtype = problem.weight_dtype = DType::bf16;
    problem.block_size = 16;
    problem.scale_format = ScaleFormat::e4m3;
    problem.scale_layout = ScaleLayout::swizzled;
    return problem;
}

// In the current context, for as long as that lives.
class Stream {
public:
    explicit Stream(const Gpu& gpu) : gpu_(gpu) { gpu.check(gpu.driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"); }
    ~Stream() { gpu_.driver().cuStreamDestroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    operator CUstream() const { return stream_; }
    void wait() const { gpu_.check(gpu_.driver().cuStreamSynchronize(stream_), "cuStreamSynchronize"); }

private:
    const Gpu& gpu_;
    CUstream stream_ = nullptr;
};

// A call with its tensors on the device, in the current context, and the bytes that it is to give.
struct Call {
    Problem problem;
    Inputs inputs;
    Outputs expected;
    DeviceTensors device;

    Call(const Gpu& gpu, const Problem& asked, std::int64_t rows, std::uint64_t seed = 1)
        : problem(asked),
          inputs(random_inputs(problem, rows, Distribution::outliers, seed)),
          expected(run_reference(problem, inputs, 0, DeviceTensors::kGarbage)),
          device(gpu, problem, inputs) {}
    // "" if the kernel gave them.
    std::string launch(const nq_kernel* kernel, const Stream& stream) const {
        device.write();
        const nq_tensors tensors = device.tensors();
        need(nq_launch(kernel, &tensors, stream));
        stream.wait();
        return difference(device.outputs(), expected);
    }
};

// On threads of their own; the first exception comes out of it.
template <class Body>
void on_threads(int count, Body body) {
    std::vector<std::exception_ptr> failures(static_cast<std::size_t>(count));
    {
        std::vector<std::jthread> threads;
        for (int i = 0; i < count; ++i) {
            threads.emplace_back([&, i] {
                try {
                    body(i);
                } catch (...) {
                    failures[static_cast<std::size_t>(i)] = std::current_exception();
                }
            });
        }
    }
    for (const std::exception_ptr& failure : failures) {
        if (failure) std::rethrow_exception(failure);
    }
}

// One of the hidden test cases, in a process of its own.
int run_alone(const char* name) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        ::alarm(300);
        ::execl("/proc/self/exe", "gpu_contexts", name, nullptr);
        ::_exit(127);
    }
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    return status;
}

// What overwrites memory that nobody has.
const char* const kBadSource = R"(#include <normquant/types.cuh>
extern "C" __global__ void test(unsigned* nowhere) { *nowhere = 1; })";

void break_context(const TestKernel& kernel, CUstream stream) {
    CUdeviceptr nowhere = 0x100;
    void* arguments[] = {&nowhere};
    kernel.enqueue(1, 1, arguments, stream);
}

}  // namespace

TEST_CASE("threads launch one kernel, each on a stream of its own") {
    const auto gpu = Gpu::open_or_skip();
    const ContextPtr context = create();
    const Problem problem = some_problem();
    const nq_kernel* kernel = prepare(context.get(), problem);
    const RowLimits limits = row_limits_of(*gpu, problem);
    std::vector<std::unique_ptr<Call>> calls;
    for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{8}, limits.split, limits.split + 1, std::int64_t{300}, limits.latency,
                                    limits.latency + 1, limits.latency + 300})
        calls.push_back(std::make_unique<Call>(*gpu, problem, rows, static_cast<std::uint64_t>(rows)));
    on_threads(8, [&](int i) {
        gpu->check(gpu->cuCtxSetCurrent(gpu->primary()), "cuCtxSetCurrent");
        const Stream stream(*gpu);
        for (int repeat = 0; repeat < 50; ++repeat) {
            const std::string wrong = calls[static_cast<std::size_t>(i)]->launch(kernel, stream);
            if (!wrong.empty()) throw std::runtime_error(wrong);
        }
    });
}

TEST_CASE("threads prepare the same problems at once") {
    const auto gpu = Gpu::open_or_skip();
    const ContextPtr context = create();
    const Stream stream(*gpu);
    std::vector<std::vector<nq_kernel*>> kernels(8, std::vector<nq_kernel*>(4));
    on_threads(8, [&](int i) {
        for (std::uint32_t k = 0; k < 4; ++k) {
            const nq_problem problem = problem_to_c(some_problem(1024 * (1 + (k + static_cast<std::uint32_t>(i)) % 4)));
            nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
            options.stream = stream;
            need(nq_prepare(context.get(), &problem, &options, &kernels[static_cast<std::size_t>(i)][problem.hidden / 1024 - 1]));
        }
    });
    for (const auto& of_thread : kernels) CHECK(of_thread == kernels[0]);
    for (std::uint32_t k = 0; k < 4; ++k) CHECK(Call(*gpu, some_problem(1024 * (1 + k)), 10).launch(kernels[0][k], stream) == "");
}

TEST_CASE("a thread without a context, with a stream of its own") {
    const auto gpu = Gpu::open_or_skip();
    const ContextPtr context = create();
    const Stream stream(*gpu);
    const Call call(*gpu, some_problem(), 40);
    const nq_tensors tensors = call.device.tensors();
    const nq_problem problem = problem_to_c(call.problem);
    const auto run = [&](auto launch) {
        call.device.write();
        nq_status status = NQ_ERR_INTERNAL;
        std::string error;
        CUcontext left = gpu->primary();
        std::thread([&] {
            status = launch();
            error = nq_last_error();
            gpu->driver().cuCtxGetCurrent(&left);
        }).join();
        stream.wait();
        INFO(error);
        CHECK(left == nullptr);
        return status;
    };
    CHECK(run([&] { return nq_run(context.get(), &problem, &tensors, stream); }) == NQ_OK);
    CHECK(difference(call.device.outputs(), call.expected) == "");
    const nq_kernel* kernel = prepare(context.get(), call.problem, stream);
    CHECK(run([&] { return nq_launch(kernel, &tensors, stream); }) == NQ_OK);
    CHECK(difference(call.device.outputs(), call.expected) == "");
    CHECK(run([&] { return nq_run(context.get(), &problem, &tensors, nullptr); }) == NQ_ERR_NO_CONTEXT);
    CHECK(run([&] { return nq_launch(kernel, &tensors, nullptr); }) == NQ_ERR_NO_CONTEXT);
}

TEST_CASE("contexts that the driver creates, destroyed and created again") {
    const auto gpu = Gpu::open_or_skip();
    const ContextPtr context = create();
    const Problem problem = some_problem();
    std::vector<nq_kernel*> kernels;
    for (int turn = 0; turn < 4; ++turn) {
        const CUcontext created = gpu->create_context();
        {
            const Stream stream(*gpu);
            for (const std::int64_t rows : {std::int64_t{3}, std::int64_t{300}, row_limits_of(*gpu, problem).latency + 1}) {
                const Call call(*gpu, problem, rows);
                INFO("turn " << turn << " rows " << rows);
                if (rows == 3) kernels.push_back(prepare(context.get(), problem, stream));
                CHECK(call.launch(kernels.back(), stream) == "");
            }
        }
        gpu->check(gpu->cuCtxDestroy(created), "cuCtxDestroy");
        for (int earlier = 0; earlier < turn; ++earlier) CHECK(kernels[static_cast<std::size_t>(earlier)] != kernels.back());
    }
    // The primary context is as it was.
    gpu->check(gpu->cuCtxSetCurrent(gpu->primary()), "cuCtxSetCurrent");
    const Stream stream(*gpu);
    CHECK(Call(*gpu, problem, 3).launch(prepare(context.get(), problem), stream) == "");
}

TEST_CASE("a kernel runs in another context of its device, too") {
    const auto gpu = Gpu::open_or_skip();
    const ContextPtr context = create();
    const Problem problem = some_problem();
    const nq_kernel* kernel = prepare(context.get(), problem);
    const CUcontext created = gpu->create_context();
    {
        const Stream stream(*gpu);
        for (const std::int64_t rows : {std::int64_t{3}, std::int64_t{300}, row_limits_of(*gpu, problem).latency + 1})
            CHECK(Call(*gpu, problem, rows).launch(kernel, stream) == "");
    }
    gpu->check(gpu->cuCtxDestroy(created), "cuCtxDestroy");
}

TEST_CASE("wide rows get the shared memory that they need") {
    const auto gpu = Gpu::open_or_skip();
    const ContextPtr context = create();
    const Stream stream(*gpu);
    const std::string target = target_for(gpu->capability(), std::nullopt, {})->name();
    bool beyond = false;
    for (const std::uint32_t hidden : {8192u, 16384u, 32768u, 65536u}) {
        for (const Plan& plan : plans_for(some_problem(hidden), *parse_arch(target))) beyond = beyond || plan.shared_bytes > 48 << 10;
        INFO(hidden);
        const Problem problem = some_problem(hidden);
        CHECK(Call(*gpu, problem, row_limits_of(*gpu, problem).latency + 1).launch(prepare(context.get(), problem), stream) == "");
    }
    if (features(*parse_arch(target)).staged_bytes != 0) CHECK(beyond);
}

TEST_CASE("the library holds no primary context") {
    const auto gpu = Gpu::open_or_skip();
    const CUdevice device = gpu->device();
    const auto active = [&](const Gpu& some) {
        unsigned flags = 0;
        int is = -1;
        some.check(some.cuDevicePrimaryCtxGetState(device, &flags, &is), "cuDevicePrimaryCtxGetState");
        return is;
    };
    const ContextPtr context = create();
    {
        const Stream stream(*gpu);
        CHECK(Call(*gpu, some_problem(), 3).launch(prepare(context.get(), some_problem()), stream) == "");
    }
    CHECK(active(*gpu) == 1);
    gpu->check(gpu->driver().cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
    CHECK(active(*gpu) == 0);  // nobody else has retained it
    CUcontext again = nullptr;
    gpu->check(gpu->driver().cuDevicePrimaryCtxRetain(&again, device), "cuDevicePrimaryCtxRetain");  // which the Gpu will release
    gpu->check(gpu->cuCtxSetCurrent(again), "cuCtxSetCurrent");
    const Stream stream(*gpu);
    CHECK(Call(*gpu, some_problem(), 3).launch(prepare(context.get(), some_problem()), stream) == "");
}

TEST_CASE("the primary context is reset") {
    CHECK(run_alone("[reset]") == 0);
}

TEST_CASE("child: reset, then prepared again", "[.][reset]") {
    const auto gpu = Gpu::open_or_skip();
    const ContextPtr before = create();
    const Problem problem = some_problem();
    {
        const Stream stream(*gpu);
        CHECK(Call(*gpu, problem, row_limits_of(*gpu, problem).latency + 1).launch(prepare(before.get(), problem), stream) == "");
    }
    gpu->check(gpu->cuDevicePrimaryCtxReset(gpu->device()), "cuDevicePrimaryCtxReset");
    CUcontext again = nullptr;
    gpu->check(gpu->driver().cuDevicePrimaryCtxRetain(&again, gpu->device()), "cuDevicePrimaryCtxRetain");
    gpu->check(gpu->cuCtxSetCurrent(again), "cuCtxSetCurrent");
    const Stream stream(*gpu);
    const Call call(*gpu, problem, row_limits_of(*gpu, problem).latency + 1);
    const ContextPtr after = create();
    CHECK(call.launch(prepare(after.get(), problem), stream) == "");
    CHECK(call.launch(prepare(before.get(), problem), stream) == "");  // which knows the context by its id
    gpu->driver().cuDevicePrimaryCtxRelease(gpu->device());
}

TEST_CASE("an illegal access of the caller is reported as his, and by whoever asks next") {
    CHECK(run_alone("[broken]") == 0);
}

TEST_CASE("child: an illegal access before a launch", "[.][broken]") {
    const auto gpu = Gpu::open_or_skip();
    ContextPtr context = create();
    const Call call(*gpu, some_problem(), 3);
    const nq_tensors tensors = call.device.tensors();
    const Stream stream(*gpu);
    nq_kernel* const kernel = prepare(context.get(), call.problem);
    const TestKernel bad(*gpu, kBadSource);
    break_context(bad, stream);
    (void)nq_launch(kernel, &tensors, stream);  // too early to be told, perhaps; it swallows nothing
    CHECK(gpu->cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    for (int i = 0; i < 2; ++i) {
        CHECK(nq_launch(kernel, &tensors, stream) == NQ_ERR_DRIVER);
        INFO(nq_last_error());
        CHECK(std::string(nq_last_error()).find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
        CHECK(std::string(nq_last_error()).find("enqueued earlier") != std::string::npos);
        CHECK(gpu->cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    const nq_problem other = problem_to_c(some_problem(7168));
    nq_kernel* none = nullptr;
    CHECK(nq_prepare(context.get(), &other, nullptr, &none) == NQ_ERR_DRIVER);
    CHECK(std::string(nq_last_error()).find("enqueued earlier") != std::string::npos);
    context.reset();
}

TEST_CASE("a program ends on a thread, with work in flight and nothing destroyed") {
    CHECK(run_alone("[exit]") == 0);
}

TEST_CASE("child: exit on a thread", "[.][exit]") {
    const Gpu& gpu = *Gpu::open_or_skip().release();
    nq_context* const context = create().release();
    const Call& call = *new Call(gpu, some_problem(), 1000);
    const nq_kernel* kernel = prepare(context, call.problem);
    const nq_tensors tensors = call.device.tensors();
    for (int i = 0; i < 1000; ++i) ok(nq_launch(kernel, &tensors, nullptr));
    std::thread([] { std::exit(0); }).join();
}

TEST_CASE("a forked child is told, by whichever context") {
    const auto gpu = Gpu::open_or_skip();
    const ContextPtr used = create(), idle = create();
    const Call call(*gpu, some_problem(), 3);
    const nq_tensors tensors = call.device.tensors();
    const nq_problem problem = problem_to_c(call.problem);
    const Stream stream(*gpu);
    nq_kernel* const kernel = prepare(used.get(), call.problem);
    const auto in_child = [&](auto status) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::alarm(60);
            ::_exit(status());
        }
        int state = -1;
        ::waitpid(child, &state, 0);
        return WIFEXITED(state) ? WEXITSTATUS(state) : -1;
    };
    nq_kernel* none = nullptr;
    CHECK(in_child([&] { return nq_launch(kernel, &tensors, stream); }) == NQ_ERR_FORKED);
    CHECK(in_child([&] { return nq_run(used.get(), &problem, &tensors, stream); }) == NQ_ERR_FORKED);
    CHECK(in_child([&] { return nq_prepare(idle.get(), &problem, nullptr, &none); }) == NQ_ERR_FORKED);
    CHECK(in_child([&] {
              nq_context_destroy(used.get());
              return NQ_OK;
          }) == NQ_OK);
    CHECK(call.launch(kernel, stream) == "");
}

// Against the rule of nq_context_destroy, so no test: what its comment says a driver was seen to do. Run it by its tag.
TEST_CASE("a context is destroyed while its launches are in flight", "[.][in-flight]") {
    const auto gpu = Gpu::open_or_skip();
    ContextPtr context = create();
    const Stream stream(*gpu);
    const Call call(*gpu, some_problem(), 10'000);
    const nq_tensors tensors = call.device.tensors();
    const nq_kernel* kernel = prepare(context.get(), call.problem);
    for (int i = 0; i < 200; ++i) ok(nq_launch(kernel, &tensors, stream));
    context.reset();
    stream.wait();
    CHECK(difference(call.device.outputs(), call.expected) == "");
}
