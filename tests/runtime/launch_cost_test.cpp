// nq_launch allocates nothing and takes no lock. The fake driver's launch, which does both, is replaced by one that
// does neither.
#include "counted_calls.h"
#include "fixture.h"

#include <normquant/normquant.hpp>

#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <thread>

using namespace nq::test;

namespace {

constexpr Counts kNothing{};

unsigned launches = 0;  // of the quiet driver

CUresult quiet_launch(const CUlaunchConfig*, CUfunction, void**, void**) {
    ++launches;
    return CUDA_SUCCESS;
}

struct Prepared : Fixture {
    explicit Prepared(const nq_problem& problem = make_problem()) : context(create()) {
        nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
        options.stream = stream;
        const nq_status status = nq_prepare(context.get(), &problem, &options, &kernel);
        INFO(nq_last_error());
        REQUIRE(status == NQ_OK);
        cuda.launch_instead = quiet_launch;
        launches = 0;
    }

    ContextPtr context;
    nq_kernel* kernel = nullptr;
};

int runtime_value() {
    static const int value = std::rand();  // not known to the compiler: a guard
    return value;
}

}  // namespace

TEST_CASE("the counters count allocations of every kind") {
    void* volatile memory = nullptr;  // the compiler may not leave the calls out
    const auto one = [&](auto allocate, auto release) {
        CHECK(counted([&] { memory = allocate(); }) == Counts{1, 0, 0});
        CHECK(counted([&] { release(memory); }) == Counts{0, 1, 0});
    };
    one([] { return std::malloc(10); }, [](void* p) { std::free(p); });
    one([] { return std::calloc(2, 10); }, [](void* p) { std::free(p); });
    one([] { return std::realloc(nullptr, 10); }, [](void* p) { std::free(p); });
    one([] { return std::aligned_alloc(64, 64); }, [](void* p) { std::free(p); });
    one([] { return ::operator new(10); }, [](void* p) { ::operator delete(p); });
    one([] { return ::operator new (10, std::align_val_t{64}); },
        [](void* p) { ::operator delete (p, std::align_val_t{64}); });
    CHECK(counted([] {}) == kNothing);
}

TEST_CASE("the counters count locks of every kind") {
    std::mutex mutex;
    CHECK(counted([&] { const std::lock_guard lock(mutex); }) == Counts{0, 0, 1});
    CHECK(counted([&] { const std::unique_lock lock(mutex, std::try_to_lock); }) == Counts{0, 0, 1});
    std::shared_mutex shared;
    CHECK(counted([&] { const std::shared_lock lock(shared); }) == Counts{0, 0, 1});
    CHECK(counted([&] { const std::unique_lock lock(shared); }) == Counts{0, 0, 1});
    pthread_spinlock_t spin;
    pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
    CHECK(counted([&] { pthread_spin_lock(&spin); }) == Counts{0, 0, 1});
    std::once_flag once;
    CHECK(counted([&] { std::call_once(once, [] {}); }).locks == 1);
    CHECK(counted([] { runtime_value(); }).locks == 1);  // a local static's first use
    CHECK(counted([] { runtime_value(); }) == kNothing);
    std::condition_variable condition;
    std::unique_lock lock(mutex);
    CHECK(counted([&] { condition.wait_for(lock, std::chrono::nanoseconds(1)); }).locks >= 1);
    sem_t semaphore;
    sem_init(&semaphore, 0, 1);
    CHECK(counted([&] { sem_wait(&semaphore); }) == Counts{0, 0, 1});
    int word = 0;
    CHECK(counted([&] { syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0); }) == Counts{0, 0, 1});
}

TEST_CASE("the counters see into the library and the driver") {
    Prepared world;
    nq_tensors tensors = make_tensors(1);
    tensors.rows = -1;
    CHECK(counted([&] { (void)nq_launch(world.kernel, &tensors, world.stream); }).allocations >
          0);  // an error has a text

    tensors.rows = 1;
    world.cuda.launch_instead = nullptr;  // locks its log and adds to it
    const Counts noisy = counted([&] { (void)nq_launch(world.kernel, &tensors, world.stream); });
    CHECK(noisy.locks == 1);
    CHECK(noisy.allocations > 0);
}

TEST_CASE("nq_launch allocates nothing and takes no lock") {
    nq_problem swizzled = make_problem(), everything = make_problem();
    swizzled.scale_layout = NQ_LAYOUT_SWIZZLED;
    everything.op = NQ_OP_ADD_RMSNORM;
    everything.scale_layout = NQ_LAYOUT_BOTH;
    everything.flags = NQ_PROBLEM_Y_OUT | NQ_PROBLEM_WEIGHT_BIAS_ONE | NQ_PROBLEM_OVERLAP | NQ_PROBLEM_DEVICE_ROWS | NQ_PROBLEM_BATCHES;
    const auto make_tensors_of = [&](const nq_problem& problem, std::int64_t rows) {
        nq_tensors tensors = make_tensors(rows);
        if (problem.op != NQ_OP_ADD_RMSNORM) return tensors;
        static std::int32_t count = 1;
        tensors.residual = reinterpret_cast<void*>(0x600000000000);
        tensors.y_out = reinterpret_cast<void*>(0x700000000000);
        tensors.scales_linear = reinterpret_cast<void*>(0x800000000000);
        tensors.device_rows = &count;
        tensors.batch_rows = 7;
        return tensors;
    };
    for (const nq_problem& problem : {make_problem(), swizzled, everything}) {
        Prepared world(problem);
        for (const std::int64_t rows : {1, 64, 1000, 100000}) {  // all variants, and launches with attributes
            const nq_tensors tensors = make_tensors_of(problem, rows);
            nq_status status = NQ_ERR_INTERNAL;
            CHECK(counted([&] { status = nq_launch(world.kernel, &tensors, world.stream); }) == kNothing);
            CHECK(status == NQ_OK);
        }
        CHECK(launches == 4);
        // After a failure, whose text goes.
        nq_tensors tensors = make_tensors_of(problem, -1);
        CHECK(nq_launch(world.kernel, &tensors, world.stream) == NQ_ERR_INVALID_ARGUMENT);
        tensors.rows = 1;
        CHECK(counted([&] { (void)nq_launch(world.kernel, &tensors, world.stream); }) == kNothing);
        CHECK(std::string(nq_last_error()).empty());
    }
}

TEST_CASE("nor does the first call of a thread") {
    Prepared world;
    const nq_tensors tensors = make_tensors(1);
    Counts counts{1, 1, 1};
    nq_status status = NQ_ERR_INTERNAL;
    std::thread([&] { counts = counted([&] { status = nq_launch(world.kernel, &tensors, world.stream); }); }).join();
    CHECK(status == NQ_OK);
    CHECK(launches == 1);
    CHECK(counts == kNothing);
}

TEST_CASE("nor does the launch of normquant.hpp") {
    Prepared world;
    const nqpp::Kernel kernel(world.kernel);
    nqpp::Tensors tensors;
    static_cast<nq_tensors&>(tensors) = make_tensors(1);
    nqpp::Status status(NQ_ERR_INTERNAL);
    CHECK(counted([&] { status = kernel.launch(tensors, world.stream); }) == kNothing);
    CHECK(status);
    CHECK(launches == 1);
}
