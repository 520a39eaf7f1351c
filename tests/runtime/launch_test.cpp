// nq_launch: what reaches the driver, and what is refused before it.
#include "fixture.h"
#include "runtime/overlap.h"
#include "support/row_limits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

using namespace nq::test;

namespace {

void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

struct Prepared : Fixture {
    explicit Prepared(nq_problem asked = make_problem(), CUdevice device = 0) : problem(asked), context(create()) {
        if (device != 0) stream = cuda.add_stream(cuda.add_context(device));
        nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
        options.stream = stream;
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

nq_problem everything() {
    nq_problem problem = make_problem();
    problem.op = NQ_OP_ADD_RMSNORM;
    problem.scale_layout = NQ_LAYOUT_BOTH;
    problem.flags = NQ_PROBLEM_Y_OUT | NQ_PROBLEM_WEIGHT_BIAS_ONE | NQ_PROBLEM_DEVICE_ROWS | NQ_PROBLEM_BATCHES;
    return problem;
}

nq_tensors make_everything(std::int64_t rows) {
    nq_tensors tensors = make_tensors(rows);
    tensors.residual = address(0x600000000000);
    tensors.y_out = address(0x700000000000);
    tensors.scales_linear = address(0x800000000001);
    tensors.device_rows = static_cast<const std::int32_t*>(address(0x900000000004));
    return tensors;
}

}  // namespace

TEST_CASE("the choice of a variant") {
    constexpr nq::RowLimits limits{.split = 49, .latency = 528};
    CHECK(nq::choose_variant(1, limits, true) == nq::Variant::split);
    CHECK(nq::choose_variant(49, limits, false) == nq::Variant::split);
    CHECK(nq::choose_variant(50, limits, false) == nq::Variant::latency);
    CHECK(nq::choose_variant(528, limits, true) == nq::Variant::latency_32b);
    CHECK(nq::choose_variant(529, limits, true) == nq::Variant::throughput_32b);
    CHECK(nq::choose_variant(std::numeric_limits<std::int64_t>::max(), limits, false) == nq::Variant::throughput);
}

TEST_CASE("the rows for which a variant is the fastest") {
    const auto limits = [](std::uint32_t hidden, const char* target, nq::Op op = nq::Op::rmsnorm) {
        nq::Problem problem;
        problem.hidden = hidden;
        problem.op = op;
        return row_limits_of(problem, *nq::parse_arch(target), 132);
    };
    // What was measured lies on the right side: the last rows at which one form was faster, the first at which the next one was, if any.
    CHECK(limits(4096, "sm_90").split >= 32);
    CHECK(limits(7168, "sm_90").split < 64);
    CHECK(limits(7168, "sm_90", nq::Op::add_rmsnorm).split >= 64);
    struct Measured {
        std::uint32_t hidden;
        std::int64_t latency, throughput;
    };
    constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
    for (const Measured& m : {Measured{512, 3168, kNone}, {1024, 3168, kNone}, {2048, 3168, kNone}, {2880, 0, 2112}, {4096, 3168, kNone},
                              {5120, 1056, 2112}, {7168, 1056, 3168}, {8192, 792, 1056}, {16384, 0, 792}}) {
        INFO(m.hidden);
        CHECK(limits(m.hidden, "sm_90").latency >= m.latency);
        CHECK(limits(m.hidden, "sm_90").latency < m.throughput);
    }
    CHECK(limits(4096, "sm_80").latency == 4 * 132);
    CHECK(limits(4096, "sm_90", nq::Op::add_rmsnorm).latency == 4 * 132);
    for (const char* target : {"sm_80", "sm_90", "sm_120f"}) {
        for (std::uint32_t hidden = 1024; hidden <= 131072; hidden += 16) {
            const nq::RowLimits found = limits(hidden, target);
            CHECK((0 < found.split && found.split < found.latency && found.latency <= 24 * 132));
        }
    }
}

TEST_CASE("a launch is one driver call with these arguments") {
    Prepared world;
    nq_tensors tensors = make_tensors(4000);
    tensors.eps = 1e-5f;
    tensors.x_stride = 4104;
    tensors.fp4_stride = 2056;
    tensors.global_scale = static_cast<const float*>(address(0x500000000004));
    const FakeLaunch launch = world.launched(tensors);
    CHECK(world.cuda.calls == std::vector<std::string>{"cuLaunchKernelEx"});

    nq_plan plan = NQ_PLAN_INIT;
    REQUIRE(nq_plan_query(&world.problem, "sm_90", NQ_VARIANT_THROUGHPUT, 0, &plan) == NQ_OK);
    CHECK(plan.rows_per_block == 8);
    CHECK(launch.config.gridDimX == 132);
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
    CHECK(launch.params.scale_linear == tensors.scales);
    CHECK(launch.params.x_stride == 4104);
    CHECK(launch.params.fp4_stride == 2056);
    CHECK(launch.params.rows == 4000);
    CHECK(launch.params.eps == 1e-5f);
    CHECK(launch.params.zero_padding == 0);
    CHECK(launch.params.scale_swizzled == nullptr);
    CHECK(launch.params.scale_stride == 256);
    CHECK(launch.params.residual == nullptr);
    CHECK(launch.params.y_out == nullptr);
    CHECK(launch.params.device_rows == nullptr);
    CHECK(launch.params.batch_rows == 0);
}

TEST_CASE("a residual, y_out, both layouts, batches and a row count of the device reach the kernel") {
    Prepared world(everything());
    nq_tensors tensors = make_everything(1000);
    tensors.residual_stride = 4104;
    tensors.y_out_stride = 4112;
    tensors.scales_stride = 300;
    tensors.batch_rows = 10;
    tensors.x_batch_stride = 65536;
    tensors.flags = NQ_TENSORS_CONSTANT_WEIGHT;
    FakeLaunch launch = world.launched(tensors);
    CHECK(launch.params.residual == tensors.residual);
    CHECK(launch.params.residual_out == tensors.residual);
    CHECK(launch.params.residual_stride == 4104);
    CHECK(launch.params.residual_out_stride == 4104);
    CHECK(launch.params.y_out == tensors.y_out);
    CHECK(launch.params.y_out_stride == 4112);
    CHECK(launch.params.scale_swizzled == tensors.scales);
    CHECK(launch.params.scale_linear == tensors.scales_linear);
    CHECK(launch.params.scale_stride == 300);
    CHECK(launch.params.x_stride == 4096);
    CHECK(launch.params.x_batch_stride == 65536);
    CHECK(launch.params.batch_rows == 10);
    CHECK(launch.params.device_rows == tensors.device_rows);
    CHECK(launch.params.constant_weight == 1);
    CHECK(launch.config.numAttrs == 0);
    tensors.residual_out = address(0xa00000000000);
    tensors.x_batch_stride = 0;
    launch = world.launched(tensors);
    CHECK(launch.params.residual == tensors.residual);
    CHECK(launch.params.residual_out == tensors.residual_out);
    CHECK(launch.params.residual_out_stride == 4096);
    CHECK(launch.params.x_batch_stride == 10 * 4096);
}

TEST_CASE("launch attributes: none, one, two") {
    Prepared world(everything());
    nq_tensors tensors = make_everything(1000);
    CHECK(world.launched(tensors).config.numAttrs == 0);
    // Few rows of a residual that is updated in place take a cluster each.
    tensors.rows = 8;
    FakeLaunch launch = world.launched(tensors);
    CHECK(launch.config.numAttrs == 1);
    CHECK_FALSE(launch.overlap);
    CHECK(launch.cluster == 4);
    CHECK(launch.config.gridDimY == 4);

    nq_problem problem = everything();
    problem.flags |= NQ_PROBLEM_OVERLAP;
    nq_kernel* overlapping = nullptr;
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = world.stream;
    REQUIRE(nq_prepare(world.context.get(), &problem, &options, &overlapping) == NQ_OK);
    CHECK(overlapping != world.kernel);
    REQUIRE(nq_launch(overlapping, &tensors, world.stream) == NQ_OK);
    launch = world.cuda.launches.back();
    CHECK(launch.config.numAttrs == 2);
    CHECK(launch.overlap);
    CHECK(launch.cluster == 4);
    tensors.rows = 1000;
    REQUIRE(nq_launch(overlapping, &tensors, world.stream) == NQ_OK);
    launch = world.cuda.launches.back();
    CHECK(launch.config.numAttrs == 1);
    CHECK(launch.overlap);
}

TEST_CASE("a device without overlapping launches gets none") {
    Fixture world;
    world.cuda.devices[0] = {8, 0, 108};
    const ContextPtr context = world.create();
    nq_problem problem = everything();
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = world.stream;
    nq_kernel* kernel = nullptr;
    REQUIRE(nq_prepare(context.get(), &problem, &options, &kernel) == NQ_OK);
    const auto misses = counters_of(context.get()).misses;
    problem.flags |= NQ_PROBLEM_OVERLAP;
    REQUIRE(nq_prepare(context.get(), &problem, &options, &kernel) == NQ_OK);
    CHECK(counters_of(context.get()).misses == misses);  // the same code
    const nq_tensors tensors = make_everything(1);
    REQUIRE(nq_launch(kernel, &tensors, world.stream) == NQ_OK);
    CHECK(world.cuda.launches.back().config.numAttrs == 0);
}

TEST_CASE("a device without room for the cluster of few rows does without it") {
    Fixture world;
    world.cuda.active_clusters = 0;
    const ContextPtr context = world.create();
    nq_problem problem = everything();
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.stream = world.stream;
    nq_kernel* kernel = nullptr;
    REQUIRE(nq_prepare(context.get(), &problem, &options, &kernel) == NQ_OK);
    const nq_tensors tensors = make_everything(1);
    REQUIRE(nq_launch(kernel, &tensors, world.stream) == NQ_OK);
    CHECK(contains(world.cuda.launches.back().image, "latency"));
    CHECK(world.cuda.launches.back().cluster == 0);
}

TEST_CASE("rows that the device counts leave a block for what turns out to be padding") {
    nq_problem narrow = make_problem(64);
    narrow.scale_layout = NQ_LAYOUT_SWIZZLED;
    narrow.flags = NQ_PROBLEM_DEVICE_ROWS;
    Prepared world(narrow);
    nq_tensors tensors = make_tensors(128 * 1024);
    const unsigned blocks = world.launched(tensors).config.gridDimX;
    tensors.device_rows = static_cast<const std::int32_t*>(address(0xb00000000000));
    CHECK(world.launched(tensors).config.gridDimX == blocks + 1);
}

TEST_CASE("strides of 0 are contiguous rows") {
    Prepared world;
    const FakeLaunch launch = world.launched(make_tensors(1));
    CHECK(launch.params.x_stride == 4096);
    CHECK(launch.params.fp4_stride == 2048);
}

TEST_CASE("rows choose the variant") {
    Prepared world;  // 132 multiprocessors
    CHECK(contains(world.launched(make_tensors(49)).image, "split"));
    CHECK(world.cuda.launches.back().config.gridDimX == 49);
    CHECK(world.cuda.launches.back().config.gridDimY == 4);
    CHECK(contains(world.launched(make_tensors(50)).image, "latency"));
    CHECK(contains(world.launched(make_tensors(24 * 132)).image, "latency"));
    CHECK(contains(world.launched(make_tensors(24 * 132 + 1)).image, "throughput"));
}

TEST_CASE("32-byte loads are used where everything is aligned to them") {
    nq_problem problem = make_problem(256);  // takes rows straight from global memory
    problem.flags = NQ_PROBLEM_BATCHES;
    Prepared world(problem, 1);  // 12.0
    nq_tensors tensors = make_tensors(100000);
    tensors.batch_rows = 10;
    tensors.x_batch_stride = 10 * 256 + 16;
    CHECK(contains(world.launched(tensors).image, "throughput_32b"));
    SECTION("x") { tensors.x = address(0x100000000010); }
    SECTION("weight") { tensors.weight = address(0x200000000010); }
    SECTION("x_stride") { tensors.x_stride = 256 + 8; }
    SECTION("x_batch_stride") { tensors.x_batch_stride = 10 * 256 + 8; }
    CHECK_FALSE(contains(world.launched(tensors).image, "throughput_32b"));
}

TEST_CASE("padding rows of swizzled scales get blocks unless they are to be kept") {
    Prepared world(swizzled());
    nq_plan plan = NQ_PLAN_INIT;
    REQUIRE(nq_plan_query(&world.problem, "sm_90", NQ_VARIANT_LATENCY, 0, &plan) == NQ_OK);
    nq_tensors tensors = make_tensors(130);
    FakeLaunch launch = world.launched(tensors);
    CHECK(launch.params.zero_padding == 1);
    // The last tile row holds 64 tiles of 32 chunks of 16 bytes, one a thread.
    CHECK(launch.config.gridDimX == (130 + plan.rows_per_block - 1) / plan.rows_per_block + (64 * 32 + plan.block_threads - 1) / plan.block_threads);
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
        {"flags", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.flags = 8; }},
        {"rows", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.rows = -1; }},
        {"rows", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.rows = std::int64_t{1} << 31; }},
        {"eps", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.eps = -1e-6f; }},
        {"eps", NQ_ERR_INVALID_ARGUMENT, [&](nq_tensors& t) { t.eps = nan; }},
        {"eps", NQ_ERR_INVALID_ARGUMENT, [&](nq_tensors& t) { t.eps = inf; }},
        {"reserved", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.reserved = 1; }},
        {"x", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x = nullptr; }},
        {"x", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.x = address(0x100000000008); }},
        {"x_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x_stride = -4096; }},
        {"x_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x_stride = 4088; }},
        {"x_stride", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.x_stride = 4100; }},
        {"x_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x_stride = std::int64_t{1} << 62; }},
        {"weight", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.weight = nullptr; }},
        {"weight", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.weight = address(0x200000000002); }},
        {"global_scale", NQ_ERR_MISALIGNED,
         [](nq_tensors& t) { t.global_scale = static_cast<const float*>(address(0x500000000002)); }},
        {"fp4", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4 = nullptr; }},
        {"fp4", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.fp4 = address(0x300000000004); }},
        {"fp4", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4 = const_cast<void*>(t.x); }},
        {"fp4_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4_stride = -2048; }},
        {"fp4_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4_stride = 2040; }},
        {"fp4_stride", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.fp4_stride = 2052; }},
        {"fp4_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4_stride = INT64_MAX - 7; }},
        {"scales", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.scales = nullptr; }},
        {"scales", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.scales = address(0x400000000008); }},
        {"fp4", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.scales = t.fp4; }},
        {"residual", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual = address(0x600000000000); }},
        {"residual_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual_stride = 4096; }},
        {"residual_out", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual_out = address(0x600000000000); }},
        {"residual_out_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual_out_stride = 4096; }},
        {"scales_linear", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.scales_linear = address(0x600000000000); }},
        {"scales_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.scales_stride = 256; }},
        {"device_rows", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.device_rows = static_cast<const std::int32_t*>(address(0x600000000000)); }},
        {"batch_rows", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.batch_rows = 4; }},
        {"x_batch_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x_batch_stride = 8; }},
        {"y_out", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.y_out = address(0x700000000000); }},
        {"y_out_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.y_out_stride = 4096; }},
        {"sum_of_squares", NQ_ERR_INVALID_ARGUMENT,
         [](nq_tensors& t) { t.sum_of_squares = static_cast<float*>(address(0x800000000000)); }},
        {"rstd", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.rstd = static_cast<float*>(address(0x900000000000)); }},
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

TEST_CASE("misuse of what goes beyond the plain operator is refused by field") {
    struct Misuse {
        const char *field, *other;  // other: named as well
        nq_status status;
        std::function<void(nq_tensors&)> spoil;
    };
    const std::vector<Misuse> table = {
        {"residual", "", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual = nullptr; }},
        {"residual", "16 bytes", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.residual = address(0x600000000008); }},
        {"residual_stride", "", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.residual_stride = 4100; }},
        {"residual_out", "16 bytes", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.residual_out = address(0xa00000000008); }},
        {"residual_out_stride", "", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual_out_stride = 4104; }},
        {"y_out", "", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.y_out = nullptr; }},
        {"y_out", "16 bytes", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.y_out = address(0x700000000004); }},
        {"scales_linear", "", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.scales_linear = nullptr; }},
        {"scales_stride", "", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.scales_stride = 255; }},
        {"scales", "scales_linear", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.scales_linear = t.scales; }},
        {"residual", "nq_tensors.x ", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual = const_cast<void*>(t.x); }},
        {"residual_out", "nq_tensors.x ", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual_out = const_cast<void*>(t.x); }},
        {"residual_out", "nq_tensors.residual ", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual_out = address(0x600000002000); }},
        {"residual_out", "nq_tensors.residual ", NQ_ERR_INVALID_ARGUMENT,
         [](nq_tensors& t) { t.residual_out = t.residual, t.residual_out_stride = 4104; }},
        {"y_out", "nq_tensors.x ", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.y_out = const_cast<void*>(t.x); }},
        {"residual", "nq_tensors.y_out ", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.y_out = address(0x60000001e000); }},
        {"device_rows", "4 bytes", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.device_rows = static_cast<const std::int32_t*>(address(0x900000000002)); }},
        {"batch_rows", "", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.batch_rows = -1; }},
        {"x_batch_stride", "batch_rows", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x_batch_stride = 8; }},
        {"x_batch_stride", "", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.batch_rows = 4, t.x_batch_stride = -8; }},
        {"x_batch_stride", "", NQ_ERR_MISALIGNED, [](nq_tensors& t) { t.batch_rows = 4, t.x_batch_stride = 4; }},
        {"x_batch_stride", "", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.batch_rows = 4, t.x_batch_stride = std::int64_t{1} << 61; }},
        // Of the second batch of x: make_everything has its batches one behind the other.
        {"residual", "nq_tensors.x at 0x", NQ_ERR_INVALID_ARGUMENT,
         [](nq_tensors& t) { t.batch_rows = 8, t.residual = const_cast<char*>(static_cast<const char*>(t.x)) + 8 * 4096 * 2; }},
        {"y_out", "nq_tensors.x at 0x", NQ_ERR_INVALID_ARGUMENT,
         [](nq_tensors& t) {
             t.batch_rows = 4, t.x_batch_stride = 1 << 24;
             t.y_out = const_cast<char*>(static_cast<const char*>(t.x)) + 3 * 2 * (1 << 24);
         }},
        {"fp4", "nq_tensors.device_rows ", NQ_ERR_INVALID_ARGUMENT,
         [](nq_tensors& t) { t.device_rows = static_cast<const std::int32_t*>(address(0x300000000100)); }},
    };
    Prepared world(everything());
    REQUIRE(world.launch(make_everything(16)) == NQ_OK);
    world.cuda.calls.clear();
    for (const Misuse& misuse : table) {
        nq_tensors tensors = make_everything(16);
        misuse.spoil(tensors);
        CHECK(world.launch(tensors) == misuse.status);
        INFO(last_error());
        CHECK(contains(last_error(), std::string("nq_tensors.") + misuse.field + " is "));
        CHECK(contains(last_error(), misuse.other));
    }
    CHECK(world.cuda.calls.empty());
}

TEST_CASE("each tensor is taken from its alignment on, and refused below") {
    struct Tensor {
        const char* name;
        std::uintptr_t alignment;
        std::function<void(nq_tensors&, std::uintptr_t)> move;
    };
    const auto moved = [](auto* pointer, std::uintptr_t bytes) {
        return reinterpret_cast<decltype(pointer)>(reinterpret_cast<std::uintptr_t>(pointer) + bytes);
    };
    const std::vector<Tensor> table = {
        {"x", 16, [&](nq_tensors& t, std::uintptr_t by) { t.x = moved(t.x, by); }},
        {"weight", 16, [&](nq_tensors& t, std::uintptr_t by) { t.weight = moved(t.weight, by); }},
        {"residual", 16, [&](nq_tensors& t, std::uintptr_t by) { t.residual = moved(t.residual, by); }},
        {"residual_out", 16, [&](nq_tensors& t, std::uintptr_t by) { t.residual_out = moved(t.residual_out, by); }},
        {"y_out", 16, [&](nq_tensors& t, std::uintptr_t by) { t.y_out = moved(t.y_out, by); }},
        {"fp4", 8, [&](nq_tensors& t, std::uintptr_t by) { t.fp4 = moved(t.fp4, by); }},
        {"scales", 16, [&](nq_tensors& t, std::uintptr_t by) { t.scales = moved(t.scales, by); }},
        {"scales_linear", 1, [&](nq_tensors& t, std::uintptr_t by) { t.scales_linear = moved(t.scales_linear, by); }},
        {"global_scale", 4, [&](nq_tensors& t, std::uintptr_t by) { t.global_scale = moved(t.global_scale, by); }},
        {"device_rows", 4, [&](nq_tensors& t, std::uintptr_t by) { t.device_rows = moved(t.device_rows, by); }},
    };
    Prepared world(everything());
    for (const Tensor& tensor : table) {
        for (const std::uintptr_t by : {1, 2, 4, 8, 16}) {
            nq_tensors tensors = make_everything(16);
            tensors.residual_out = address(0xa00000000000);
            tensors.global_scale = static_cast<const float*>(address(0xb00000000000));
            tensor.move(tensors, by);
            INFO(tensor.name << " moved by " << by);
            const bool aligned = by % tensor.alignment == 0;
            CHECK(world.launch(tensors) == (aligned ? NQ_OK : NQ_ERR_MISALIGNED));
            if (!aligned) CHECK(contains(last_error(), std::string("nq_tensors.") + tensor.name + " is "));
        }
    }
}

TEST_CASE("a batch larger than all rows needs no room behind them") {
    Prepared world(everything());
    nq_tensors tensors = make_everything(1);
    tensors.x_stride = std::int64_t{1} << 40;
    tensors.batch_rows = 0x7fffffff;
    CHECK(world.launch(tensors) == NQ_OK);
    tensors = make_everything(16);
    tensors.batch_rows = 4;
    tensors.x_batch_stride = 1 << 24;
    tensors.y_out = const_cast<char*>(static_cast<const char*>(tensors.x)) + 4 * 4096 * 2;  // between two batches
    CHECK(world.launch(tensors) == NQ_OK);
}

TEST_CASE("tensors may interleave, share inputs and be updated in place") {
    Prepared world(everything());
    nq_tensors tensors = make_everything(16);
    tensors.x_stride = tensors.residual_stride = tensors.y_out_stride = 3 * 4096;  // columns of one matrix
    tensors.x = address(0x100000000000);
    tensors.residual = address(0x100000002000);
    tensors.y_out = address(0x100000004000);
    CHECK(world.launch(tensors) == NQ_OK);
    tensors.residual_out = tensors.residual;
    tensors.residual_out_stride = tensors.residual_stride;
    CHECK(world.launch(tensors) == NQ_OK);
    tensors = make_everything(16);
    tensors.weight = tensors.x;
    tensors.global_scale = static_cast<const float*>(tensors.x);
    CHECK(world.launch(tensors) == NQ_OK);
}

TEST_CASE("certain overlap of rows: against every byte") {
    std::uint64_t state = 1, overlaps = 0;
    const auto below = [&](std::uint64_t n) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return (state >> 33) % n;
    };
    for (int i = 0; i < 200'000; ++i) {
        const auto rows = [&] {
            nq::MemoryRows r{100 + below(40), 1 + below(6), 0, 1 + below(5)};
            r.stride = r.row_bytes + below(3) * below(8);
            return r;
        };
        nq::MemoryRows a = rows(), b = rows();
        if (below(2) == 0) b.stride = std::max(a.stride, b.row_bytes), a.stride = b.stride;
        std::array<bool, 400> used{};
        bool share = false;
        for (std::uint64_t r = 0; r < a.rows; ++r) std::fill_n(used.begin() + static_cast<long>(a.first + r * a.stride), a.row_bytes, true);
        for (std::uint64_t r = 0; r < b.rows; ++r)
            for (std::uint64_t c = 0; c < b.row_bytes; ++c) share = share || used[b.first + r * b.stride + c];
        INFO(a.first << " " << a.row_bytes << " " << a.stride << " " << a.rows << " | " << b.first << " " << b.row_bytes << " " << b.stride << " " << b.rows);
        const bool decidable = a.dense() || b.dense() || a.stride == b.stride;
        if (decidable) REQUIRE(nq::certainly_overlap(a, b) == share);
        if (!share) REQUIRE_FALSE(nq::certainly_overlap(a, b));
        overlaps += share;
    }
    CHECK(overlaps > 1000);
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
    tensors.global_scale = static_cast<const float*>(address(0x500000000000));
    CHECK(world.launch(tensors) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(contains(last_error(), "nq_tensors.global_scale"));
    CHECK(contains(last_error(), "NQ_SCALE_UE8M0"));
}

