// nq_launch: what reaches the driver, and what is refused before it.
#include "fixture.h"
#include "runtime/choose.h"

#include <cmath>
#include <functional>
#include <limits>

using namespace nq::test;

namespace {

void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

struct Prepared : Fixture {
    explicit Prepared(nq_problem asked = make_problem(), CUdevice device = 0) : problem(asked), context(create()) {
        nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
        options.stream = device == 0 ? stream : cuda.add_stream(cuda.add_context(device));
        const nq_status status = nq_prepare(context.get(), &problem, &options, &kernel);
        INFO(nq_last_error());
        REQUIRE(status == NQ_OK);
        cuda.calls.clear();
    }
    nq_status launch(const nq_tensors& tensors) { return nq_launch(kernel, &tensors, stream); }
    FakeLaunch launched(const nq_tensors& tensors) {
        const nq_status status = launch(tensors);
        INFO(nq_last_error());
        REQUIRE(status == NQ_OK);
        return cuda.launches.back();
    }

    nq_problem problem;
    ContextPtr context;
    nq_kernel* kernel = nullptr;
};

nq_problem swizzled() {
    nq_problem problem = make_problem();
    problem.scale_layout = NQ_LAYOUT_SWIZZLED;
    return problem;
}

}  // namespace

TEST_CASE("the choice of a variant") {
    CHECK(nq::choose_variant(1, 4, 132, true) == nq::Variant::split);
    CHECK(nq::choose_variant(82, 4, 132, false) == nq::Variant::split);
    CHECK(nq::choose_variant(83, 4, 132, false) == nq::Variant::latency);
    CHECK(nq::choose_variant(528, 4, 132, true) == nq::Variant::latency_32b);
    CHECK(nq::choose_variant(529, 4, 132, true) == nq::Variant::throughput_32b);
    CHECK(nq::choose_variant(0x7fffffff, 1, 132, false) == nq::Variant::throughput);
    CHECK(nq::choose_variant(std::numeric_limits<std::int64_t>::max(), 1, 132, false) == nq::Variant::throughput);
}

TEST_CASE("a launch is one driver call with these arguments") {
    Prepared world;
    nq_tensors tensors = make_tensors(1000);
    tensors.eps = 1e-5f;
    tensors.x_stride = 4104;
    tensors.fp4_stride = 2056;
    tensors.global_scale = static_cast<const float*>(address(0x50004));
    const FakeLaunch launch = world.launched(tensors);
    CHECK(world.cuda.calls == std::vector<std::string>{"cuLaunchKernelEx"});

    nq_plan plan = NQ_PLAN_INIT;
    REQUIRE(nq_plan_query(&world.problem, "sm_90", NQ_VARIANT_THROUGHPUT, 0, &plan) == NQ_OK);
    // A block an SM takes rows in two turns, and four of eight groups do for that.
    CHECK(plan.rows_per_block == 8);
    CHECK(launch.config.gridDimX == 125);
    CHECK(launch.config.gridDimY == 1);
    CHECK(launch.config.gridDimZ == 1);
    CHECK(launch.config.blockDimX == 512);
    CHECK(launch.config.blockDimY == 1);
    CHECK(launch.config.blockDimZ == 1);
    CHECK(launch.config.sharedMemBytes == 9 * 8192 + 8 * 2 * 2 * 4 + 8 * 8);  // weight and rows, warp sums, barriers
    CHECK(launch.config.hStream == world.stream);
    CHECK(launch.config.numAttrs == 0);
    CHECK(launch.params.x == tensors.x);
    CHECK(launch.params.weight == tensors.weight);
    CHECK(launch.params.global_scale == tensors.global_scale);
    CHECK(launch.params.fp4 == tensors.fp4);
    CHECK(launch.params.scale == tensors.scales);
    CHECK(launch.params.x_stride == 4104);
    CHECK(launch.params.fp4_stride == 2056);
    CHECK(launch.params.rows == 1000);
    CHECK(launch.params.eps == 1e-5f);
    CHECK(launch.params.zero_padding == 0);
}

TEST_CASE("strides of 0 are contiguous rows") {
    Prepared world;
    const FakeLaunch launch = world.launched(make_tensors(1));
    CHECK(launch.params.x_stride == 4096);
    CHECK(launch.params.fp4_stride == 2048);
}

TEST_CASE("rows choose the variant") {
    Prepared world;  // 132 multiprocessors
    CHECK(contains(world.launched(make_tensors(82)).image, "split"));
    CHECK(world.cuda.launches.back().config.gridDimX == 82);
    CHECK(world.cuda.launches.back().config.gridDimY == 4);
    CHECK(contains(world.launched(make_tensors(83)).image, "latency"));
    CHECK(contains(world.launched(make_tensors(528)).image, "latency"));
    CHECK(contains(world.launched(make_tensors(529)).image, "throughput"));
}

TEST_CASE("32-byte loads are used where everything is aligned to them") {
    Prepared world(make_problem(256), 1);  // 12.0; a width that takes rows straight from global memory
    nq_tensors tensors = make_tensors(100000);
    CHECK(contains(world.launched(tensors).image, "throughput_32b"));
    SECTION("x") { tensors.x = address(0x10010); }
    SECTION("weight") { tensors.weight = address(0x20010); }
    SECTION("x_stride") { tensors.x_stride = 256 + 8; }
    CHECK_FALSE(contains(world.launched(tensors).image, "throughput_32b"));
}

TEST_CASE("padding rows of swizzled scales get blocks unless they are to be kept") {
    Prepared world(swizzled());
    nq_plan plan = NQ_PLAN_INIT;
    REQUIRE(nq_plan_query(&world.problem, "sm_90", NQ_VARIANT_LATENCY, 0, &plan) == NQ_OK);
    nq_tensors tensors = make_tensors(130);
    FakeLaunch launch = world.launched(tensors);
    CHECK(launch.params.zero_padding == 1);
    CHECK(launch.config.gridDimX == (256 + plan.rows_per_block - 1) / plan.rows_per_block);
    tensors.flags = NQ_TENSORS_KEEP_PADDING;
    launch = world.launched(tensors);
    CHECK(launch.params.zero_padding == 0);
    CHECK(launch.config.gridDimX == (130 + plan.rows_per_block - 1) / plan.rows_per_block);
}

TEST_CASE("no rows: success, no launch, and pointers may be NULL") {
    Prepared world(swizzled());
    nq_tensors tensors = NQ_TENSORS_INIT;
    CHECK(world.launch(tensors) == NQ_OK);
    CHECK(world.cuda.calls.empty());
}

TEST_CASE("a failed launch says what was launched") {
    Prepared world;
    world.cuda.failures["cuLaunchKernelEx"] = CUDA_ERROR_INVALID_HANDLE;
    CHECK(world.launch(make_tensors(7)) == NQ_ERR_DRIVER);
    CHECK(contains(last_error(), "cuLaunchKernelEx"));
    CHECK(contains(last_error(), "hidden=4096"));
    CHECK(contains(last_error(), "7 rows"));
}

TEST_CASE("misuse of nq_tensors is refused by field") {
    struct Misuse {
        const char* field;
        nq_status status;
        std::function<void(nq_tensors&)> spoil;
    };
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    const std::vector<Misuse> table = {
        {"struct_size", NQ_ERR_STRUCT_SIZE, [](nq_tensors& t) { t.struct_size = 0; }},
        {"struct_size", NQ_ERR_STRUCT_SIZE, [](nq_tensors& t) { t.struct_size -= 4; }},
        {"struct_size", NQ_ERR_STRUCT_SIZE, [](nq_tensors& t) { t.struct_size = 0xffffffff; }},
        {"flags", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.flags = 2; }},
        {"rows", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.rows = -1; }},
        {"rows", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.rows = std::int64_t{1} << 31; }},
        {"eps", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.eps = -1e-6f; }},
        {"eps", NQ_ERR_INVALID_ARGUMENT, [&](nq_tensors& t) { t.eps = nan; }},
        {"eps", NQ_ERR_INVALID_ARGUMENT, [&](nq_tensors& t) { t.eps = inf; }},
        {"reserved", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.reserved = 1; }},
        {"x", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x = nullptr; }},
        {"x", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.x = address(0x10008); }},
        {"x_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x_stride = -4096; }},
        {"x_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x_stride = 4088; }},
        {"x_stride", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.x_stride = 4100; }},
        {"x_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x_stride = std::int64_t{1} << 62; }},
        {"weight", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.weight = nullptr; }},
        {"weight", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.weight = address(0x20002); }},
        {"global_scale", NQ_ERR_MISALIGNED,
         [](nq_tensors& t) { t.global_scale = static_cast<const float*>(address(0x50002)); }},
        {"fp4", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4 = nullptr; }},
        {"fp4", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.fp4 = address(0x30004); }},
        {"fp4", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4 = const_cast<void*>(t.x); }},
        {"fp4_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4_stride = -2048; }},
        {"fp4_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4_stride = 2040; }},
        {"fp4_stride", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.fp4_stride = 2052; }},
        {"fp4_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4_stride = INT64_MAX - 7; }},
        {"scales", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.scales = nullptr; }},
        {"scales", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.scales = address(0x40008); }},
        {"scales", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.scales = t.fp4; }},
        {"residual", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual = address(0x60000); }},
        {"residual_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual_stride = 4096; }},
        {"y_out", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.y_out = address(0x70000); }},
        {"y_out_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.y_out_stride = 4096; }},
        {"sum_of_squares", NQ_ERR_INVALID_ARGUMENT,
         [](nq_tensors& t) { t.sum_of_squares = static_cast<float*>(address(0x80000)); }},
        {"rstd", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.rstd = static_cast<float*>(address(0x90000)); }},
    };
    Prepared world(swizzled());
    for (const Misuse& misuse : table) {
        nq_tensors tensors = make_tensors(16);
        misuse.spoil(tensors);
        CHECK(world.launch(tensors) == misuse.status);
        INFO(last_error());
        CHECK(contains(last_error(), std::string("nq_tensors.") + misuse.field + " is "));
        CHECK(contains(last_error(), "accepted: "));
        // The one-call form refuses the same, before it prepares anything.
        CHECK(nq_run(world.context.get(), &world.problem, &tensors, world.stream) == misuse.status);
    }
    CHECK(world.cuda.calls.empty());

    CHECK(nq_launch(world.kernel, nullptr, world.stream) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(contains(last_error(), "tensors is NULL"));
    const nq_tensors tensors = make_tensors(1);
    CHECK(nq_launch(nullptr, &tensors, world.stream) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(contains(last_error(), "kernel is NULL"));
}

TEST_CASE("structs of a newer caller are accepted while they use nothing new") {
    Prepared world;
    struct Newer {
        nq_tensors known;
        std::uint64_t added;
    } newer = {make_tensors(1), 0};
    newer.known.struct_size = sizeof newer;
    CHECK(nq_launch(world.kernel, &newer.known, world.stream) == NQ_OK);
    newer.added = std::uint64_t{1} << 40;
    CHECK(nq_launch(world.kernel, &newer.known, world.stream) == NQ_ERR_STRUCT_SIZE);
    CHECK(contains(last_error(), "nq_tensors.struct_size"));
}

TEST_CASE("UE8M0 takes no global scale") {
    nq_problem problem = make_problem();
    problem.scale_format = NQ_SCALE_UE8M0;
    problem.block_size = 32;
    Prepared world(problem);
    nq_tensors tensors = make_tensors(1);
    tensors.global_scale = static_cast<const float*>(address(0x50000));
    CHECK(world.launch(tensors) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(contains(last_error(), "nq_tensors.global_scale"));
    CHECK(contains(last_error(), "NQ_SCALE_UE8M0"));
}

