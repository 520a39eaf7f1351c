// Several devices and contexts, contexts that end, small devices, and what is left behind when the driver says no.
#include "fixture.h"

#include <algorithm>
#include <thread>
#include <utility>

using namespace nq::test;

namespace {

struct Prepared {
    nq_status status = NQ_ERR_INTERNAL;
    nq_kernel* kernel = nullptr;
};

Prepared try_prepare(nq_context* context, const nq_problem& problem, CUstream stream) {
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = stream;
    Prepared prepared;
    prepared.status = nq_prepare(context, &problem, &options, &prepared.kernel);
    return prepared;
}

nq_kernel* prepare(nq_context* context, const nq_problem& problem, CUstream stream) {
    const Prepared prepared = try_prepare(context, problem, stream);
    INFO(nq_last_error());
    REQUIRE(prepared.status == NQ_OK);
    return prepared.kernel;
}

nq_problem adding() {
    nq_problem problem = make_problem();
    problem.op = NQ_OP_ADD_RMSNORM;
    return problem;
}

nq_tensors adding_tensors(std::int64_t rows) {
    nq_tensors tensors = make_tensors(rows);
    tensors.residual = reinterpret_cast<void*>(0x600000000000);
    return tensors;
}

// As the test found it.
void check_thread(const FakeCuda& cuda, const std::vector<CUcontext>& current) {
    CHECK(cuda.current == current);
    CHECK(cuda.mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

std::size_t count_loaded(const FakeCuda& cuda) {
    return static_cast<std::size_t>(
        std::count_if(cuda.libraries.begin(), cuda.libraries.end(), [](const FakeLibrary& library) { return !library.unloaded; }));
}

}  // namespace

TEST_CASE("a kernel takes target, multiprocessors and shared memory from its own device") {
    Fixture world;
    world.cuda.devices = {{9, 0, 132}, {9, 0, 2}};
    const ContextPtr context = world.create();
    const CUstream other = world.cuda.add_stream(world.cuda.add_context(1));
    const nq_problem problem = make_problem();
    nq_kernel* const here = prepare(context.get(), problem, nullptr);
    nq_kernel* const there = prepare(context.get(), problem, other);
    CHECK(here != there);
    CHECK(world.nvrtc.compiles == kKernels);  // one target
    // Each was allowed more shared memory on its device, and on no other.
    const auto allowed = [&](CUdevice device, std::size_t first) {
        return std::count_if(world.cuda.libraries.begin() + static_cast<std::ptrdiff_t>(first),
                             world.cuda.libraries.begin() + static_cast<std::ptrdiff_t>(first + kKernels),
                             [&](const FakeLibrary& library) { return library.shared_bytes.count(device) != 0; });
    };
    REQUIRE(world.cuda.libraries.size() == 2 * kKernels);
    CHECK(allowed(0, 0) == 1);
    CHECK(allowed(1, 0) == 0);
    CHECK(allowed(0, kKernels) == 0);
    CHECK(allowed(1, kKernels) == 1);

    // Alternating: 100000 rows in blocks that stay, one a multiprocessor; 49 rows are few for 132 of them, and many for 2.
    for (int turn = 0; turn < 2; ++turn) {
        const nq_tensors many = make_tensors(100'000), few = make_tensors(49);
        REQUIRE(nq_launch(here, &many, world.stream) == NQ_OK);
        CHECK(world.cuda.launches.back().config.gridDimX == 132);
        REQUIRE(nq_launch(there, &many, other) == NQ_OK);
        CHECK(world.cuda.launches.back().config.gridDimX == 2);
        REQUIRE(nq_run(context.get(), &problem, &few, world.stream) == NQ_OK);
        CHECK(contains(world.cuda.launches.back().image, "split"));
        REQUIRE(nq_run(context.get(), &problem, &few, other) == NQ_OK);
        CHECK(contains(world.cuda.launches.back().image, "throughput"));
    }
    CHECK(world.cuda.libraries.size() == 2 * kKernels);
    check_thread(world.cuda, {world.context});
}

TEST_CASE("two threads, a device each") {
    Fixture world;
    const ContextPtr context = world.create();
    const CUstream streams[] = {world.stream, world.cuda.add_stream(world.cuda.add_context(1))};
    nq_kernel* kernels[] = {prepare(context.get(), make_problem(), streams[0]), prepare(context.get(), make_problem(), streams[1])};
    nq_status statuses[2][200];
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
        threads.emplace_back([&, t] {
            const nq_tensors tensors = make_tensors(1000);
            for (nq_status& status : statuses[t]) status = nq_launch(kernels[t], &tensors, streams[t]);
        });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& of_thread : statuses) CHECK(std::count(std::begin(of_thread), std::end(of_thread), NQ_OK) == 200);
    CHECK(world.cuda.launches.size() == 400);
    for (const FakeLaunch& launch : world.cuda.launches)
        CHECK(contains(launch.image, launch.config.hStream == streams[0] ? "sm_90" : "sm_120f"));
}

TEST_CASE("a kernel on a stream of another context: the driver runs it there, or refuses it") {
    Fixture world;
    world.cuda.devices.push_back({9, 0, 66});
    const ContextPtr context = world.create();
    nq_kernel* const kernel = prepare(context.get(), make_problem(), world.stream);
    const nq_tensors many = make_tensors(100'000), few = make_tensors(1);
    const auto stream_on = [&](CUdevice device) { return world.cuda.add_stream(world.cuda.add_context(device)); };

    // The same device: a CUkernel belongs to no context.
    CHECK(nq_launch(kernel, &many, stream_on(0)) == NQ_OK);
    // Another compute capability.
    CHECK(nq_launch(kernel, &many, stream_on(1)) == NQ_ERR_DRIVER);
    CHECK(contains(last_error(), "CUDA_ERROR_NO_BINARY_FOR_GPU"));
    CHECK(contains(last_error(), "hidden=4096"));
    // The same one on another device: what needs no more than every block has runs, the rest was not allowed there.
    CHECK(nq_launch(kernel, &few, stream_on(2)) == NQ_OK);
    CHECK(nq_launch(kernel, &many, stream_on(2)) == NQ_ERR_DRIVER);
    // And the kernel is as good as before.
    CHECK(nq_launch(kernel, &many, world.stream) == NQ_OK);
}

TEST_CASE("two contexts of a device share what was loaded once") {
    Fixture world;
    const ContextPtr context = world.create();
    const CUcontext second = world.cuda.add_context(0);
    nq_kernel* const first_kernel = prepare(context.get(), make_problem(), world.stream);
    nq_kernel* const second_kernel = prepare(context.get(), make_problem(), world.cuda.add_stream(second));
    CHECK(first_kernel != second_kernel);
    CHECK(world.nvrtc.compiles == kKernels);
    REQUIRE(world.cuda.libraries.size() == kKernels);
    for (const FakeLibrary& library : world.cuda.libraries) {
        CHECK(library.loaded_in == std::vector<CUcontext>{world.context, second});  // neither waits for it at a launch
        CHECK(library.mode == CU_STREAM_CAPTURE_MODE_RELAXED);
    }
    check_thread(world.cuda, {world.context});
}

TEST_CASE("contexts that come and go load nothing again") {
    Fixture world;
    const ContextPtr context = world.create();
    prepare(context.get(), make_problem(), world.stream);
    for (int turn = 0; turn < 100; ++turn) {
        world.cuda.recreate(world.context, 0);
        const nq_tensors tensors = make_tensors(1);
        REQUIRE(nq_launch(prepare(context.get(), make_problem(), world.stream), &tensors, world.stream) == NQ_OK);
    }
    CHECK(world.cuda.libraries.size() == kKernels);
    CHECK(world.nvrtc.compiles == kKernels);
    // One that has no memory for it leaves it to the next.
    world.cuda.recreate(world.context, 0);
    world.cuda.failures["cuKernelGetFunction"] = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK(try_prepare(context.get(), make_problem(), world.stream).status != NQ_OK);
    world.cuda.failures.clear();
    CHECK(try_prepare(context.get(), make_problem(), world.stream).status == NQ_OK);
    CHECK(world.cuda.libraries.size() == kKernels);
}

TEST_CASE("a context that takes the place of one that ended gets kernels of its own") {
    Fixture world;
    const ContextPtr context = world.create();
    const bool destroyed = GENERATE(true, false);  // else reset, as primary contexts are: the handle stays good
    nq_kernel* const before = prepare(context.get(), make_problem(), world.stream);
    const nq_problem problem = make_problem();
    const nq_tensors tensors = make_tensors(1);
    if (destroyed) {
        world.cuda.destroy(world.context);
        CHECK(try_prepare(context.get(), make_problem(), world.stream).status == NQ_ERR_NO_CONTEXT);
        CHECK(contains(last_error(), "cuStreamGetCtx"));
        CHECK(nq_run(context.get(), &problem, &tensors, world.stream) == NQ_ERR_NO_CONTEXT);
        CHECK(nq_launch(before, &tensors, world.stream) == NQ_ERR_NO_CONTEXT);
    }
    world.cuda.recreate(world.context, 0);
    nq_kernel* const after = prepare(context.get(), make_problem(), world.stream);
    CHECK(after != before);
    CHECK(world.nvrtc.compiles == kKernels);
    CHECK(world.cuda.libraries.size() == kKernels);
    CHECK(prepare(context.get(), make_problem(), world.stream) == after);
    CHECK(nq_launch(after, &tensors, world.stream) == NQ_OK);
    // Another device behind the same handle is another device.
    world.cuda.recreate(world.context, 1);
    REQUIRE(prepare(context.get(), make_problem(), world.stream) != after);
    CHECK(world.nvrtc.options.at(0) == "--gpu-architecture=sm_120f");
    check_thread(world.cuda, {world.context});
}

TEST_CASE("a context whose driver contexts have all ended is destroyed without them") {
    Fixture world;
    {
        const ContextPtr context = world.create();
        prepare(context.get(), make_problem(), world.stream);
        world.cuda.destroy(world.context);
        world.cuda.current.clear();
    }
    CHECK(count_loaded(world.cuda) == 0);
}

TEST_CASE("a thread without a context needs a stream of its own") {
    Fixture world;
    const ContextPtr context = world.create();
    world.cuda.current.clear();
    nq_kernel* const kernel = prepare(context.get(), make_problem(), world.stream);
    check_thread(world.cuda, {});
    const nq_tensors tensors = make_tensors(1);
    const nq_problem problem = make_problem();
    CHECK(nq_run(context.get(), &problem, &tensors, world.stream) == NQ_OK);
    CHECK(nq_run(context.get(), &problem, &tensors, nullptr) == NQ_ERR_NO_CONTEXT);
    CHECK(nq_launch(kernel, &tensors, world.stream) == NQ_OK);
    CHECK(nq_launch(kernel, &tensors, nullptr) == NQ_ERR_NO_CONTEXT);  // the driver's word
    CHECK(world.cuda.launches.size() == 2);
    // As for the default streams that have a name.
    world.cuda.failures["cuStreamGetCtx"] = CUDA_ERROR_INVALID_CONTEXT;
    CHECK(try_prepare(context.get(), problem, CU_STREAM_PER_THREAD).status == NQ_ERR_NO_CONTEXT);
}

TEST_CASE("shared memory beyond what every block has is allowed once, before the first launch") {
    for (const std::uint32_t hidden : {4096u, 16384u, 32768u, 131072u}) {
        Fixture world;
        const ContextPtr context = world.create();
        nq_kernel* const kernel = prepare(context.get(), make_problem(hidden), world.stream);
        const auto asked = [&] { return std::count(world.cuda.calls.begin(), world.cuda.calls.end(), "cuKernelSetAttribute"); };
        const auto at_prepare = asked();
        for (const std::int64_t rows : {1, 100, 500, 100'000}) {
            const nq_tensors tensors = make_tensors(rows);
            INFO(hidden << " " << rows);
            CHECK(nq_launch(kernel, &tensors, world.stream) == NQ_OK);  // else the fake refuses it
        }
        CHECK(asked() == at_prepare);
        CHECK(at_prepare <= 1);
        if (hidden == 4096) CHECK(at_prepare == 1);
    }
}

TEST_CASE("a device that gives a block less shared memory than its kind does without what needs it") {
    Fixture world;
    world.cuda.devices[0].most_shared = 64 << 10;
    const ContextPtr context = world.create();
    nq_kernel* const kernel = prepare(context.get(), make_problem(), world.stream);
    for (const std::int64_t rows : {1, 100, 100'000}) {
        const nq_tensors tensors = make_tensors(rows);
        REQUIRE(nq_launch(kernel, &tensors, world.stream) == NQ_OK);
        CHECK(world.cuda.launches.back().config.sharedMemBytes <= 48 << 10);
    }
    CHECK(contains(world.cuda.launches.back().image, "latency"));

    // Asked for by a plan override there is no other.
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = world.stream;
    const nq_problem problem = make_problem();
    nq_plan plan = NQ_PLAN_INIT;
    REQUIRE(nq_plan_query(&problem, "sm_90", NQ_VARIANT_THROUGHPUT, 0, &plan) == NQ_OK);
    options.threads_per_row = plan.threads_per_row;
    nq_kernel* overridden = nullptr;
    CHECK(nq_prepare(context.get(), &problem, &options, &overridden) == NQ_ERR_UNSUPPORTED_DEVICE);
    CHECK(contains(last_error(), "bytes of shared memory"));
    CHECK(overridden == nullptr);
    options.max_shared_bytes = 64 << 10;
    CHECK(nq_prepare(context.get(), &problem, &options, &overridden) == NQ_OK);
    check_thread(world.cuda, {world.context});
}

TEST_CASE("a plan override with wide loads serves inputs that are not aligned to them") {
    Fixture world;
    const ContextPtr context = world.create();
    const CUstream stream = world.cuda.add_stream(world.cuda.add_context(1));
    const nq_problem problem = make_problem(1024);
    for (const std::uint32_t variant : {NQ_VARIANT_THROUGHPUT_32B, NQ_VARIANT_LATENCY_32B}) {
        nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
        options.stream = stream;
        options.threads_per_row = 32;
        options.variant = variant;
        nq_kernel* kernel = nullptr;
        REQUIRE(nq_prepare(context.get(), &problem, &options, &kernel) == NQ_OK);
        nq_tensors tensors = make_tensors(100'000);
        REQUIRE(nq_launch(kernel, &tensors, stream) == NQ_OK);
        CHECK(contains(world.cuda.launches.back().image, "load=32"));
        tensors.x = reinterpret_cast<const void*>(0x100000000010);
        REQUIRE(nq_launch(kernel, &tensors, stream) == NQ_OK);
        CHECK(contains(world.cuda.launches.back().image, "load=16"));
    }
}

TEST_CASE("a few multiprocessors, as a partition of a device has them") {
    Fixture world;
    const int multiprocessors = GENERATE(1, 2, 14, 16);
    world.cuda.devices[0].multiprocessors = multiprocessors;
    const bool room = GENERATE(true, false);
    world.cuda.active_clusters = room ? 1 : 0;
    const ContextPtr context = world.create();
    nq_kernel* const plain = prepare(context.get(), make_problem(), world.stream);
    nq_kernel* const sum = prepare(context.get(), adding(), world.stream);
    for (const std::int64_t rows : {1, 8, 100, 100'000}) {
        const nq_tensors tensors = make_tensors(rows), with_residual = adding_tensors(rows);
        REQUIRE(nq_launch(plain, &tensors, world.stream) == NQ_OK);
        if (rows == 100'000) CHECK(world.cuda.launches.back().config.gridDimX == static_cast<unsigned>(multiprocessors));
        REQUIRE(nq_launch(sum, &with_residual, world.stream) == NQ_OK);
        if (!room) CHECK(world.cuda.launches.back().cluster == 0);
    }
}

TEST_CASE("the room for a cluster is asked with the block, shared memory and attributes of its launch") {
    Fixture world;
    const ContextPtr context = world.create();
    nq_kernel* const kernel = prepare(context.get(), adding(), world.stream);
    REQUIRE(world.cuda.occupancies.size() == 1);
    const FakeOccupancy& asked = world.cuda.occupancies.front();
    const nq_tensors tensors = adding_tensors(1);
    REQUIRE(nq_launch(kernel, &tensors, world.stream) == NQ_OK);
    const FakeLaunch& launch = world.cuda.launches.back();
    CHECK(asked.image == launch.image);
    CHECK(asked.block_threads == launch.config.blockDimX);
    CHECK(asked.shared_bytes == launch.config.sharedMemBytes);
    CHECK(asked.cluster == launch.cluster);
    CHECK(asked.attributes == launch.config.numAttrs);
}

TEST_CASE("a driver to which the cluster makes no sense has no room for it") {
    Fixture world;
    world.cuda.failures["cuOccupancyMaxActiveClusters"] = CUDA_ERROR_INVALID_CLUSTER_SIZE;
    const ContextPtr context = world.create();
    nq_kernel* const kernel = prepare(context.get(), adding(), world.stream);
    const nq_tensors tensors = adding_tensors(1);
    REQUIRE(nq_launch(kernel, &tensors, world.stream) == NQ_OK);
    CHECK(world.cuda.launches.back().cluster == 0);
}

TEST_CASE("whatever the driver refuses: the thread is as it was, nothing stays loaded, and the next try works") {
    const char* const step = GENERATE("cuCtxGetCurrent", "cuCtxGetId", "cuCtxPushCurrent", "cuCtxGetDevice", "cuDeviceGetAttribute",
                                      "cuThreadExchangeStreamCaptureMode", "cuLibraryLoadData", "cuLibraryGetKernel",
                                      "cuKernelSetAttribute", "cuOccupancyMaxActiveClusters", "cuKernelGetFunction");
    const auto [result, status] =
        GENERATE(std::pair(CUDA_ERROR_OUT_OF_MEMORY, NQ_ERR_OUT_OF_MEMORY), std::pair(CUDA_ERROR_ILLEGAL_ADDRESS, NQ_ERR_DRIVER),
                 std::pair(CUDA_ERROR_DEINITIALIZED, NQ_ERR_DRIVER));
    INFO(step << " " << result);
    Fixture world;
    const ContextPtr context = world.create();
    nq_problem problem = adding();  // needs them all
    nq_kernel* kernel = nullptr;
    world.cuda.failures[step] = result;
    CHECK(nq_prepare(context.get(), &problem, nullptr, &kernel) == status);
    CHECK(contains(last_error(), step));
    CHECK(contains(last_error(), "earlier") == (result == CUDA_ERROR_ILLEGAL_ADDRESS));
    CHECK(kernel == nullptr);
    CHECK(count_loaded(world.cuda) == 0);
    check_thread(world.cuda, {world.context});

    world.cuda.failures.clear();
    CHECK(nq_prepare(context.get(), &problem, nullptr, &kernel) == NQ_OK);
    check_thread(world.cuda, {world.context});
    const nq_tensors tensors = adding_tensors(1);
    CHECK(nq_launch(kernel, &tensors, world.stream) == NQ_OK);
}

TEST_CASE("an error of earlier work is reported as such, and not as the launch's own") {
    Fixture world;
    const ContextPtr context = world.create();
    nq_kernel* const kernel = prepare(context.get(), make_problem(), world.stream);
    const nq_tensors tensors = make_tensors(1), none = make_tensors(0);
    for (const CUresult result : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_MISALIGNED_ADDRESS, CUDA_ERROR_LAUNCH_FAILED, CUDA_ERROR_ASSERT,
                                  CUDA_ERROR_ECC_UNCORRECTABLE}) {
        world.cuda.failures["cuLaunchKernelEx"] = result;
        CHECK(nq_launch(kernel, &tensors, world.stream) == NQ_ERR_DRIVER);
        CHECK(contains(last_error(), "enqueued earlier"));
        CHECK(contains(last_error(), "cuLaunchKernelEx"));
        CHECK(nq_launch(kernel, &none, world.stream) == NQ_OK);  // asks the driver nothing
    }
    world.cuda.failures["cuLaunchKernelEx"] = CUDA_ERROR_INVALID_VALUE;
    CHECK(nq_launch(kernel, &tensors, world.stream) == NQ_ERR_DRIVER);
    CHECK_FALSE(contains(last_error(), "earlier"));
}

TEST_CASE("an error of earlier work is no reason to compile what was found in a layer") {
    Fixture world;
    const nq_problem problem = make_problem();
    const std::string layer = world.directory / "layer";
    {
        nq_context_options builder = world.options();
        builder.cache_dir = layer.c_str();
        builder.nvrtc = NORMQUANT_FAKE_NVRTC_12_9;
        const ContextPtr context = world.create(builder);
        const char* const archs[] = {"sm_90"};
        REQUIRE(nq_precompile(context.get(), &problem, 1, archs, 1, 1, nullptr, nullptr) == NQ_OK);
    }
    nq_context_options options = world.options();
    options.bundles = layer.c_str();
    const ContextPtr context = world.create(options);
    world.cuda.failures["cuLibraryLoadData"] = CUDA_ERROR_ILLEGAL_ADDRESS;
    CHECK(try_prepare(context.get(), problem, world.stream).status == NQ_ERR_DRIVER);
    CHECK(contains(last_error(), "earlier"));
    CHECK(counters_of(context.get()).compiles == 0);
    world.cuda.failures["cuLibraryLoadData"] = CUDA_ERROR_INVALID_IMAGE;
    CHECK(try_prepare(context.get(), problem, world.stream).status == NQ_ERR_DRIVER);
    CHECK(counters_of(context.get()).compiles == kKernels);  // that one is
}
