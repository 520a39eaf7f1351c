// nq_prepare, nq_run and nq_precompile: what is compiled, cached, loaded, and for which device.
#include "fixture.h"
#include "runtime/single_flight.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <thread>

using namespace nq::test;

namespace {

nq_kernel* prepare(nq_context* context, const nq_problem& problem, const nq_prepare_options* options = nullptr) {
    nq_kernel* kernel = nullptr;
    const nq_status status = nq_prepare(context, &problem, options, &kernel);
    INFO(nq_last_error());
    REQUIRE(status == NQ_OK);
    return kernel;
}

std::vector<std::filesystem::path> entries(const std::string& root) {
    std::vector<std::filesystem::path> found;
    for (const auto& item : std::filesystem::recursive_directory_iterator(root)) {
        if (item.path().extension() == ".nqc") found.push_back(item.path());
    }
    return found;
}

nq_status child_status(const std::function<nq_status()>& body) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body());
    int state = 0;
    REQUIRE(::waitpid(child, &state, 0) == child);
    REQUIRE(WIFEXITED(state));
    return static_cast<nq_status>(WEXITSTATUS(state));
}

}  // namespace

TEST_CASE("prepare compiles the device's variants and loads them") {
    Fixture world;
    const ContextPtr context = world.create();
    const nq_problem problem = make_problem();
    nq_kernel* const kernel = prepare(context.get(), problem);

    CHECK(world.nvrtc.compiles == kKernels);
    CHECK(world.nvrtc.live_programs == 0);
    CHECK(world.nvrtc.options == std::vector<std::string>{"--gpu-architecture=sm_90", "--std=c++17", "--fmad=false",
                                                          "--no-cache", "--minimal"});
    const auto& headers = world.nvrtc.headers;
    CHECK(std::find(headers.begin(), headers.end(), "normquant/rmsnorm_fp4.cuh") != headers.end());

    // Every library is loaded at once, in the context, and with captures of other threads left alone.
    REQUIRE(world.cuda.libraries.size() == kKernels);
    for (const FakeLibrary& library : world.cuda.libraries) {
        CHECK(library.loaded_in == std::vector<CUcontext>{world.context});
        CHECK(library.mode == CU_STREAM_CAPTURE_MODE_RELAXED);
        CHECK(contains(library.image, "sm_90"));
    }
    CHECK(world.cuda.mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK(world.cuda.current == std::vector<CUcontext>{world.context});

    SECTION("again it is the same kernel, from memory") {
        const std::size_t calls = world.cuda.calls.size();
        CHECK(prepare(context.get(), problem) == kernel);
        CHECK(counters_of(context.get()).memory_hits == 1);
        CHECK(world.nvrtc.compiles == kKernels);
        CHECK(std::vector<std::string>(world.cuda.calls.begin() + static_cast<std::ptrdiff_t>(calls),
                                       world.cuda.calls.end()) ==
              std::vector<std::string>{"cuCtxGetCurrent", "cuCtxGetId"});
    }
    SECTION("a second context of the program finds it on disk, and opens no NVRTC for that") {
        world.nvrtc.opened = 0;
        const ContextPtr second = world.create();
        prepare(second.get(), problem);
        CHECK(world.nvrtc.opened == 0);
        CHECK(world.nvrtc.compiles == kKernels);
        CHECK(counters_of(second.get()).disk_hits == kKernels);
        CHECK(counters_of(second.get()).misses == 0);
        CHECK(counters_of(second.get()).compiles == 0);
    }
    SECTION("a damaged entry is set aside and compiled again") {
        const auto files = entries(world.cache_dir);
        REQUIRE(files.size() == kKernels);
        std::filesystem::resize_file(files[0], std::filesystem::file_size(files[0]) - 1);
        const ContextPtr second = world.create();
        prepare(second.get(), problem);
        CHECK(world.nvrtc.compiles == kKernels + 1);
        CHECK(counters_of(second.get()).bad_entries == 1);
        CHECK(counters_of(second.get()).disk_hits == kKernels - 1);
    }
    SECTION("another NVRTC compiles its own, and each finds what it made") {
        for (const char* nvrtc : {NORMQUANT_FAKE_NVRTC_12_8, NORMQUANT_FAKE_NVRTC_12_9}) {
            nq_context_options options = world.options();
            options.nvrtc = nvrtc;
            const ContextPtr other = world.create(options), again = world.create(options);
            prepare(other.get(), problem);
            CHECK(counters_of(other.get()).compiles == kKernels);
            prepare(again.get(), problem);
            CHECK(counters_of(again.get()).disk_hits == kKernels);
            CHECK(counters_of(again.get()).compiles == 0);
        }
        CHECK(entries(world.cache_dir).size() == 3 * kKernels);
        const ContextPtr first = world.create();
        prepare(first.get(), problem);
        CHECK(counters_of(first.get()).disk_hits == kKernels);
        CHECK(world.nvrtc.compiles == kKernels);
    }
    SECTION("with JIT off the cache serves, whatever made it, and NVRTC is not looked for") {
        nq_context_options options = world.options();
        options.jit = NQ_JIT_OFF;
        options.nvrtc = "/nowhere/libnvrtc.so";
        const ContextPtr second = world.create(options);
        prepare(second.get(), problem);
        CHECK(counters_of(second.get()).disk_hits == kKernels);
    }
    SECTION("without NVRTC the cache serves as well") {
        nq_context_options options = world.options();
        options.nvrtc = "/nowhere/libnvrtc.so";
        const ContextPtr second = world.create(options);
        prepare(second.get(), problem);
        CHECK(counters_of(second.get()).disk_hits == kKernels);
    }
    SECTION("destroying the context unloads everything, even when the driver is shutting down") {
        world.cuda.failures["cuLibraryUnload"] = CUDA_ERROR_DEINITIALIZED;
        nq_context* raw = nullptr;
        {
            nq_context_options options = world.options();
            REQUIRE(nq_context_create(&options, &raw) == NQ_OK);
        }
        prepare(raw, problem);
        nq_context_destroy(raw);
        CHECK(std::count_if(world.cuda.libraries.begin(), world.cuda.libraries.end(), [](const FakeLibrary& library) {
                  return library.unloaded && library.mode == CU_STREAM_CAPTURE_MODE_RELAXED;
              }) == kKernels);
        CHECK(world.cuda.mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    }
}

TEST_CASE("threads that prepare the same problem share the work") {
    Fixture world;
    const ContextPtr context = world.create();
    const nq_problem problem = make_problem();
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = world.stream;
    std::vector<nq_kernel*> kernels(8, nullptr);
    std::vector<std::thread> threads;
    for (nq_kernel*& kernel : kernels) {
        threads.emplace_back([&] { nq_prepare(context.get(), &problem, &options, &kernel); });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(kernels[0] != nullptr);
    CHECK(kernels == std::vector<nq_kernel*>(8, kernels[0]));
    CHECK(world.nvrtc.compiles == kKernels);
    CHECK(world.cuda.libraries.size() == kKernels);
}

TEST_CASE("a flight is shared while it lasts, and then forgotten") {
    nq::SingleFlight<int, int> flights;
    CHECK_THROWS_AS(flights.run(1, []() -> int { throw std::runtime_error("first"); }), std::runtime_error);
    CHECK(flights.run(1, [] { return 2; }) == 2);
    CHECK(flights.run(1, [] { return 3; }) == 3);
    // Another key does not wait.
    CHECK(flights.run(1, [&] { return 10 * flights.run(2, [] { return 4; }); }) == 40);
}

TEST_CASE("the device is that of the stream, else of the current context") {
    Fixture world;
    const ContextPtr context = world.create();
    const nq_problem problem = make_problem();
    const CUcontext other = world.cuda.add_context(1);
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = world.cuda.add_stream(other);

    nq_kernel* const on_other = prepare(context.get(), problem, &options);
    CHECK(world.nvrtc.options.at(0) == "--gpu-architecture=sm_120f");
    CHECK(world.cuda.libraries.back().loaded_in == std::vector<CUcontext>{other});
    CHECK(world.cuda.current == std::vector<CUcontext>{world.context});

    nq_kernel* const on_current = prepare(context.get(), problem);
    CHECK(world.nvrtc.options.at(0) == "--gpu-architecture=sm_90");
    CHECK(on_current != on_other);

    // Alternating finds each one again.
    CHECK(prepare(context.get(), problem, &options) == on_other);
    CHECK(prepare(context.get(), problem) == on_current);
}

TEST_CASE("no context is an error, and none is created") {
    Fixture world;
    const ContextPtr context = world.create();
    world.cuda.current.clear();
    const nq_problem problem = make_problem();
    nq_kernel* kernel = nullptr;
    CHECK(nq_prepare(context.get(), &problem, nullptr, &kernel) == NQ_ERR_NO_CONTEXT);
    CHECK(contains(last_error(), "no current CUDA context"));
    CHECK(kernel == nullptr);
    CHECK(world.cuda.calls == std::vector<std::string>{"cuInit", "cuCtxGetCurrent"});
    CHECK(world.nvrtc.compiles == 0);
}

TEST_CASE("a capture is left alone by what is not prepared") {
    Fixture world;
    const ContextPtr context = world.create();
    const nq_problem problem = make_problem();
    const nq_tensors tensors = make_tensors(3);
    world.cuda.set_capturing(world.stream, true);

    CHECK(nq_run(context.get(), &problem, &tensors, world.stream) == NQ_ERR_NOT_PREPARED);
    CHECK(contains(last_error(), "nq_prepare before the capture"));
    CHECK(world.cuda.calls ==
          std::vector<std::string>{"cuInit", "cuStreamGetCtx", "cuCtxGetId", "cuStreamIsCapturing"});
    CHECK(world.nvrtc.compiles == 0);

    SECTION("prepared, it is launched into the capture without asking") {
        prepare(context.get(), problem);
        world.cuda.calls.clear();
        CHECK(nq_run(context.get(), &problem, &tensors, world.stream) == NQ_OK);
        CHECK(world.cuda.calls == std::vector<std::string>{"cuStreamGetCtx", "cuCtxGetId", "cuLaunchKernelEx"});
    }
    SECTION("the legacy stream during the capture of another one") {
        world.cuda.failures["cuStreamIsCapturing"] = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        CHECK(nq_run(context.get(), &problem, &tensors, nullptr) == NQ_ERR_NOT_PREPARED);
    }
    SECTION("outside of a capture nq_run prepares") {
        world.cuda.set_capturing(world.stream, false);
        CHECK(nq_run(context.get(), &problem, &tensors, world.stream) == NQ_OK);
        CHECK(world.cuda.launches.size() == 1);
    }
    SECTION("no rows need no kernel") {
        const nq_tensors none = make_tensors(0);
        CHECK(nq_run(context.get(), &problem, &none, world.stream) == NQ_OK);
        CHECK(world.cuda.launches.empty());
    }
}

TEST_CASE("JIT off: a miss says what was looked for and where") {
    Fixture world;
    nq_context_options options = world.options();
    options.jit = NQ_JIT_OFF;
    options.nvrtc = "/nowhere/libnvrtc.so";
    const ContextPtr context = world.create(options);
    const nq_problem problem = make_problem();
    nq_kernel* kernel = nullptr;
    CHECK(nq_prepare(context.get(), &problem, nullptr, &kernel) == NQ_ERR_NOT_PREPARED);
    CHECK(contains(last_error(), "JIT is off"));
    CHECK(contains(last_error(), "hidden=4096"));
    CHECK(contains(last_error(), "sm_90"));
    CHECK(contains(last_error(), world.cache_dir));
    CHECK_FALSE(contains(last_error(), "/nowhere"));
    CHECK(last_error().ends_with(" To add: normquant warmup --hidden 4096 --arch sm_90 --format nvfp4 --layout linear"));

    // No warm-up makes what an override asks for.
    nq_prepare_options override = NQ_PREPARE_OPTIONS_INIT;
    override.threads_per_row = 512;
    CHECK(nq_prepare(context.get(), &problem, &override, &kernel) == NQ_ERR_NOT_PREPARED);
    CHECK(contains(last_error(), "JIT is off"));
    CHECK_FALSE(contains(last_error(), "To add"));
}

TEST_CASE("what is prepared is recorded once, overrides excepted") {
    Fixture world;
    const std::string file = world.directory / "recorded";
    const std::string line =
        R"({"hidden":4096,"op":"rmsnorm","dtype":"bf16","weight_dtype":"same","weight_bias":0,"format":"nvfp4","layout":"linear",)"
        R"("y_out":"off","overlap":"off","device_rows":"off","batches":"off","arch":"sm_90"})"
        "\n";
    const auto recorded = [&] {
        std::ifstream stream(file);
        return std::string(std::istreambuf_iterator<char>(stream), {});
    };
    ::setenv("NORMQUANT_RECORD", file.c_str(), 1);
    const ContextPtr first = world.create(), second = world.create();
    ::unsetenv("NORMQUANT_RECORD");
    const nq_problem problem = make_problem();
    nq_prepare_options override = NQ_PREPARE_OPTIONS_INIT;
    override.threads_per_row = 512;
    prepare(first.get(), problem, &override);
    CHECK(recorded().empty());
    prepare(first.get(), problem);
    prepare(second.get(), problem);
    CHECK(recorded() == line);
    // What it has already may come from anywhere.
    std::ofstream(file) << "{}\n";
    prepare(first.get(), make_problem(8192));
    prepare(first.get(), make_problem(8192));
    CHECK(recorded() == "{}\n" + std::string(line).replace(10, 4, "8192"));
}

TEST_CASE("an NVRTC that is too old for the GPU is named with the one needed") {
    Fixture world;
    world.nvrtc.major = 12;
    world.nvrtc.minor = 6;
    world.nvrtc.archs = {80, 86, 87, 89, 90};
    const ContextPtr context = world.create();
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = world.cuda.add_stream(world.cuda.add_context(1));
    const nq_problem problem = make_problem();
    nq_kernel* kernel = nullptr;
    CHECK(nq_prepare(context.get(), &problem, &options, &kernel) == NQ_ERR_UNSUPPORTED_DEVICE);
    CHECK(contains(last_error(), "12.0 needs NVRTC >= 12.8; found: 12.6"));
    CHECK(contains(last_error(), NORMQUANT_FAKE_NVRTC));

    // The other device is served, without the options that 12.6 does not know.
    prepare(context.get(), problem);
    CHECK(world.nvrtc.options == std::vector<std::string>{"--gpu-architecture=sm_90", "--std=c++17", "--fmad=false"});
}

TEST_CASE("an NVRTC that is too old for 32-byte loads makes the variants without, which serve alone") {
    Fixture world;
    world.nvrtc.major = 12;
    world.nvrtc.minor = 8;
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = world.cuda.add_stream(world.cuda.add_context(1));
    const nq_problem problem = make_problem(1024);
    const char* const archs[] = {"sm_120a", "sm_100a"};
    {
        const ContextPtr context = world.create();
        prepare(context.get(), problem, &options);
        CHECK(world.nvrtc.options.at(0) == "--gpu-architecture=sm_120a");
        CHECK(world.nvrtc.compiles == kKernels);
        CHECK(nq_precompile(context.get(), &problem, 1, archs, 2, 0, nullptr, nullptr) == NQ_OK);
        CHECK(world.nvrtc.compiles == 2 * kKernels);
    }
    nq_context_options off = world.options();
    off.jit = NQ_JIT_OFF;
    const ContextPtr served = world.create(off);
    prepare(served.get(), problem, &options);
    CHECK(counters_of(served.get()).disk_hits == kKernels);
    world.nvrtc.minor = 9;
    const ContextPtr newer = world.create();
    CHECK(nq_precompile(newer.get(), &problem, 1, archs, 2, 0, nullptr, nullptr) == NQ_OK);
    CHECK(world.nvrtc.compiles == 2 * (kKernels + 1));  // throughput_32b of each, added to what was there
}

TEST_CASE("a target that this NVRTC lacks is not tried") {
    Fixture world;
    world.nvrtc.major = 12;
    world.nvrtc.minor = 8;
    world.nvrtc.archs = {80, 90, 100, 120};
    const ContextPtr context = world.create();
    const nq_problem problem = make_problem();
    const char* const archs[] = {"sm_103"};
    CHECK(nq_precompile(context.get(), &problem, 1, archs, 1, 1, nullptr, nullptr) == NQ_ERR_UNSUPPORTED_DEVICE);
    CHECK(contains(last_error(), "sm_103 needs NVRTC >= 12.9; loaded 12.8 from " NORMQUANT_FAKE_NVRTC));
    CHECK(world.nvrtc.compiles == 0);
}

TEST_CASE("a failed compile carries the log, and stores nothing") {
    Fixture world;
    world.nvrtc.fail = true;
    world.nvrtc.log = "normquant_kernel.cu(7): error: identifier \"granule\" is undefined";
    const ContextPtr context = world.create();
    const nq_problem problem = make_problem();
    nq_kernel* kernel = nullptr;
    CHECK(nq_prepare(context.get(), &problem, nullptr, &kernel) == NQ_ERR_COMPILE_FAILED);
    CHECK(contains(last_error(), "NVRTC_ERROR_COMPILATION"));
    CHECK(contains(last_error(), "--fmad=false"));
    CHECK(nq_last_error_detail() == world.nvrtc.log);
    CHECK(world.nvrtc.live_programs == 0);
    CHECK_FALSE(std::filesystem::exists(world.cache_dir + "/v1/sm_90"));

    SECTION("a huge log is cut") {
        world.nvrtc.log.assign(1 << 20, 'x');
        const ContextPtr other = world.create();
        CHECK(nq_prepare(other.get(), &problem, nullptr, &kernel) == NQ_ERR_COMPILE_FAILED);
        CHECK(std::string(nq_last_error_detail()).size() < (1 << 17));
        CHECK(contains(nq_last_error_detail(), "of 1048576 bytes"));
    }
    SECTION("the failure is remembered by the context, with its log, and by nobody else") {
        const std::string message = last_error(), log = nq_last_error_detail();
        world.nvrtc.fail = false;
        world.nvrtc.log.clear();
        CHECK(nq_prepare(context.get(), &problem, nullptr, &kernel) == NQ_ERR_COMPILE_FAILED);
        CHECK(last_error() == message);
        CHECK(nq_last_error_detail() == log);
        CHECK(counters_of(context.get()).failed_compiles == kKernels);
        CHECK(world.nvrtc.compiles == 0);
        // Another kernel is another matter.
        prepare(context.get(), make_problem(7168));
        const ContextPtr other = world.create();
        prepare(other.get(), problem);
        CHECK(last_error().empty());
    }
    SECTION("success without a cubin is a failure") {
        world.nvrtc.fail = false;
        world.nvrtc.empty_cubin = true;
        const ContextPtr other = world.create();
        CHECK(nq_prepare(other.get(), &problem, nullptr, &kernel) == NQ_ERR_COMPILE_FAILED);
        CHECK(contains(last_error(), "made no cubin for sm_90"));
    }
}

TEST_CASE("driver errors become words") {
    Fixture world;
    const ContextPtr context = world.create();
    const nq_problem problem = make_problem();
    nq_kernel* kernel = nullptr;

    world.cuda.version = 12020;
    world.cuda.failures["cuLibraryLoadData"] = CUDA_ERROR_NO_BINARY_FOR_GPU;
    CHECK(nq_prepare(context.get(), &problem, nullptr, &kernel) == NQ_ERR_DRIVER_TOO_OLD);
    CHECK(contains(last_error(), "CUDA_ERROR_NO_BINARY_FOR_GPU"));
    CHECK(contains(last_error(), "sm_90"));
    CHECK(contains(last_error(), "compute capability 9.0"));
    CHECK(contains(last_error(), "driver for CUDA 12.2"));

    world.cuda.failures.clear();
    world.cuda.failures["cuKernelGetFunction"] = CUDA_ERROR_OUT_OF_MEMORY;
    CHECK(nq_prepare(context.get(), &problem, nullptr, &kernel) == NQ_ERR_OUT_OF_MEMORY);
    CHECK(contains(last_error(), "cuKernelGetFunction"));
    // What was loaded before the failure is not leaked, and the thread is as it was.
    for (const FakeLibrary& library : world.cuda.libraries) CHECK(library.unloaded);
    CHECK(world.cuda.mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    CHECK(world.cuda.current == std::vector<CUcontext>{world.context});

    world.cuda.failures.clear();
    CHECK(nq_prepare(context.get(), &problem, nullptr, &kernel) == NQ_OK);
}

TEST_CASE("a plan override is a kernel of its own") {
    Fixture world;
    const ContextPtr context = world.create();
    const nq_problem problem = make_problem();
    nq_plan plan = NQ_PLAN_INIT;
    REQUIRE(nq_plan_query(&problem, "sm_90", NQ_VARIANT_THROUGHPUT, 0, &plan) == NQ_OK);

    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.threads_per_row = 2 * plan.tree_threads;
    nq_kernel* const overridden = prepare(context.get(), problem, &options);
    CHECK(world.cuda.libraries.size() == 1);
    CHECK(overridden != prepare(context.get(), problem));
    // It serves few rows and many.
    world.cuda.launches.clear();
    for (const std::int64_t rows : {1, 100000}) {
        const nq_tensors tensors = make_tensors(rows);
        REQUIRE(nq_launch(overridden, &tensors, world.stream) == NQ_OK);
        CHECK(contains(world.cuda.launches.back().image, "threads=" + std::to_string(options.threads_per_row) + " "));
    }

    options.threads_per_row = 3;
    nq_kernel* kernel = nullptr;
    CHECK(nq_prepare(context.get(), &problem, &options, &kernel) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(contains(last_error(), "threads_per_row is 3"));
}

TEST_CASE("a cluster is asked of the driver, and launched with its attribute") {
    Fixture world;
    const ContextPtr context = world.create();
    const nq_problem problem = make_problem();
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.threads_per_row = 512;
    options.cluster_size = 16;
    nq_kernel* kernel = nullptr;
    SECTION("where there is room") {
        kernel = prepare(context.get(), problem, &options);
        // Larger than what every device has, so it is allowed first, and only then is its room known.
        const auto called = [&](const char* name) { return std::find(world.cuda.calls.begin(), world.cuda.calls.end(), name); };
        CHECK(called("cuKernelSetAttribute") < called("cuOccupancyMaxActiveClusters"));
        CHECK(called("cuOccupancyMaxActiveClusters") != world.cuda.calls.end());
        const nq_tensors tensors = make_tensors(3);
        REQUIRE(nq_launch(kernel, &tensors, world.stream) == NQ_OK);
        const FakeLaunch& launch = world.cuda.launches.back();
        CHECK(launch.cluster == 16);
        CHECK(launch.config.gridDimX == 3);
        CHECK(launch.config.gridDimY == 16);
        CHECK(launch.config.blockDimX == 32);
    }
    SECTION("where there is none") {
        world.cuda.active_clusters = 0;
        CHECK(nq_prepare(context.get(), &problem, &options, &kernel) == NQ_ERR_UNSUPPORTED_DEVICE);
        CHECK(contains(last_error(), "no room for a cluster of 16 blocks of 32 threads"));
        CHECK(kernel == nullptr);
        for (const FakeLibrary& library : world.cuda.libraries) CHECK(library.unloaded);
    }
    SECTION("where the caller allows fewer") {
        options.max_cluster_size = 8;
        CHECK(nq_prepare(context.get(), &problem, &options, &kernel) == NQ_ERR_UNSUPPORTED_DEVICE);
        CHECK(contains(last_error(), "up to 8"));
    }
    SECTION("without threads_per_row it says more of nothing") {
        options.threads_per_row = 0;
        CHECK(nq_prepare(context.get(), &problem, &options, &kernel) == NQ_ERR_INVALID_ARGUMENT);
        CHECK(contains(last_error(), "cluster_size 16"));
    }
}

TEST_CASE("less shared memory is fewer rows at a time, or rows straight from global memory") {
    Fixture world;
    const ContextPtr context = world.create();
    const nq_problem problem = make_problem();
    const nq_tensors tensors = make_tensors(100'000);
    const auto shared_bytes = [&](std::uint32_t limit) {
        nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
        options.max_shared_bytes = limit;
        REQUIRE(nq_launch(prepare(context.get(), problem, &options), &tensors, world.stream) == NQ_OK);
        return world.cuda.launches.back().config.sharedMemBytes;
    };
    const unsigned whole = shared_bytes(0), less = shared_bytes(60 << 10);
    CHECK(whole > 60 << 10);
    CHECK(less <= 60 << 10);
    CHECK(less > 0);
    CHECK(shared_bytes(10'000) == 0);
}

TEST_CASE("without a usable disk cache, kernels are compiled and used") {
    Fixture world;
    nq_context_options options = world.options();
    const std::string file = world.directory / "file";
    std::ofstream(file) << "not a directory";
    const bool is_file = GENERATE(false, true);
    options.cache_dir = is_file ? file.c_str() : "";
    const ContextPtr context = world.create(options);
    prepare(context.get(), make_problem());
    CHECK(world.nvrtc.compiles == kKernels);
    CHECK(world.cuda.libraries.size() == kKernels);
}

TEST_CASE("a forked child is told, and does not touch the driver") {
    Fixture world;
    const ContextPtr context = world.create();
    const nq_problem problem = make_problem();
    const nq_tensors tensors = make_tensors(1);
    const auto prepare_in_child = [&] {
        nq_kernel* kernel = nullptr;
        return nq_prepare(context.get(), &problem, nullptr, &kernel);
    };
    SECTION("before CUDA was initialized it may go on") { CHECK(child_status(prepare_in_child) == NQ_OK); }
    SECTION("after") {
        nq_kernel* const kernel = prepare(context.get(), problem);
        CHECK(child_status(prepare_in_child) == NQ_ERR_FORKED);
        CHECK(child_status([&] { return nq_launch(kernel, &tensors, world.stream); }) == NQ_ERR_FORKED);
        CHECK(child_status([&] { return nq_run(context.get(), &problem, &tensors, world.stream); }) == NQ_ERR_FORKED);
        // Compiling needs no driver.
        CHECK(child_status([&] {
                  const char* const archs[] = {"sm_80"};
                  return nq_precompile(context.get(), &problem, 1, archs, 1, 1, nullptr, nullptr);
              }) == NQ_OK);
        // Nor does the child unload what is its parent's.
        CHECK(child_status([&] {
                  const std::size_t before = world.cuda.calls.size();
                  nq_context_destroy(context.get());
                  return world.cuda.calls.size() == before ? NQ_OK : NQ_ERR_INTERNAL;
              }) == NQ_OK);
    }
    SECTION("when another library had initialized CUDA, the driver's word is taken") {
        world.cuda.failures["cuInit"] = CUDA_ERROR_NOT_INITIALIZED;
        CHECK(prepare_in_child() == NQ_ERR_FORKED);
    }
}

TEST_CASE("precompile fills the cache without a driver") {
    Fixture world;
    nq_context_options options = world.options();
    options.libcuda = "/nowhere/libcuda.so.1";
    const ContextPtr context = world.create(options);
    const nq_problem problems[] = {make_problem(4096), make_problem(5), make_problem(7168)};
    const char* const archs[] = {"sm_90", "sm_100f"};

    struct Seen {
        std::vector<nq_precompile_event> events;
        std::vector<std::string> messages;
        std::size_t stop_after = 1000;
    } seen;
    const auto record = [](const nq_precompile_event* event, void* payload) {
        auto& all = *static_cast<Seen*>(payload);
        all.events.push_back(*event);
        all.messages.emplace_back(event->message);
        return all.events.size() >= all.stop_after ? 1 : 0;
    };

    // The bad one is reported, the others are made.
    CHECK(nq_precompile(context.get(), problems, 3, archs, 2, 2, record, &seen) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(contains(last_error(), "problems[1]"));
    CHECK(contains(last_error(), "hidden is 5"));
    REQUIRE_FALSE(seen.events.empty());
    const std::uint64_t total = seen.events[0].total;
    REQUIRE(seen.events.size() == total);
    for (std::size_t i = 0; i < total; ++i) {
        const nq_precompile_event& event = seen.events[i];
        CHECK(event.struct_size == sizeof event);
        CHECK(event.done == i + 1);
        CHECK(event.total == total);
        CHECK((event.status == NQ_OK) == (event.problem_index != 1));
        CHECK(seen.messages[i].empty() == (event.problem_index != 1));
        CHECK(event.cached == 0);
    }
    CHECK(entries(world.cache_dir).size() == total - 2);
    CHECK(world.nvrtc.compiles == static_cast<int>(total - 2));

    SECTION("the second time all of it is there") {
        seen.events.clear();
        const nq_problem good[] = {problems[0], problems[2]};
        CHECK(nq_precompile(context.get(), good, 2, archs, 2, 2, record, &seen) == NQ_OK);
        CHECK(seen.events.size() == total - 2);
        for (const nq_precompile_event& event : seen.events) CHECK(event.cached == 1);
        CHECK(world.nvrtc.compiles == static_cast<int>(total - 2));
    }
    SECTION("the callback stops it") {
        seen.events.clear();
        seen.stop_after = 1;
        nq_precompile(context.get(), problems, 1, archs, 2, 1, record, &seen);
        CHECK(seen.events.size() == 1);
    }
    SECTION("prepare then compiles nothing") {
        const ContextPtr served = world.create();
        prepare(served.get(), problems[0]);
        CHECK(counters_of(served.get()).compiles == 0);
    }
    SECTION("an unknown target is named") {
        const char* const unknown[] = {"sm_42"};
        CHECK(nq_precompile(context.get(), problems, 1, unknown, 1, 1, nullptr, nullptr) == NQ_ERR_INVALID_ARGUMENT);
        CHECK(contains(last_error(), "sm_42"));
    }
}
