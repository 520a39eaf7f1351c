// The C boundary without driver and NVRTC: queries, the CPU reference, and misuse of every argument and struct field.
#include "runtime/context.h"
#include "support/catch.h"
#include "support/environment.h"
#include "support/temp_directory.h"

#include <normquant/normquant.h>

#include <cmath>
#include <cstdint>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <vector>

namespace {

nq_problem make_problem() {
    nq_problem problem = NQ_PROBLEM_INIT;
    problem.hidden = 64;
    return problem;
}

bool said(const std::string& part) { return std::string(nq_last_error()).find(part) != std::string::npos; }

// A row set on the host, large enough for every problem below.
struct HostRows {
    std::vector<std::uint16_t> x = std::vector<std::uint16_t>(4 * 72, 0x3f80), residual = x, y_out = x;
    std::vector<std::uint16_t> weight = std::vector<std::uint16_t>(64, 0x3f80);
    std::vector<std::uint8_t> fp4 = std::vector<std::uint8_t>(4 * 40), scales = std::vector<std::uint8_t>(512);
    float global_scale = 1, sum_of_squares[4] = {}, rstd[4] = {};

    nq_tensors tensors() {
        nq_tensors t = NQ_TENSORS_INIT;
        t.rows = 4;
        t.x = x.data();
        t.weight = weight.data();
        t.fp4 = fp4.data();
        t.scales = scales.data();
        return t;
    }
};

}  // namespace

TEST_CASE("version, names and digest") {
    CHECK(nq_version() == NQ_VERSION);
    CHECK(std::string(nq_kernel_sources_digest()).size() == 32);
    CHECK(nq_kernel_sources_digest() == nq_kernel_sources_digest());
    CHECK(std::string(nq_status_name(NQ_OK)) == "NQ_OK");
    CHECK(std::string(nq_status_name(NQ_ERR_FORKED)) == "NQ_ERR_FORKED");
    CHECK(std::string(nq_status_name(static_cast<nq_status>(11))) == "NQ_ERR_MISALIGNED");
    CHECK(std::string(nq_status_name(static_cast<nq_status>(13))) == "unknown status");
}

TEST_CASE("the last error belongs to its thread, and to its last call") {
    CHECK(nq_problem_check(nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("problem is NULL"));
    std::string elsewhere = "not run";
    std::thread([&] { elsewhere = nq_last_error(); }).join();
    CHECK(elsewhere.empty());
    CHECK(said("problem is NULL"));  // reading it changes nothing
    CHECK(std::string(nq_last_error_detail()).empty());
    const nq_problem problem = make_problem();
    CHECK(nq_problem_check(&problem) == NQ_OK);
    CHECK(std::string(nq_last_error()).empty());
}

TEST_CASE("sizes and offsets") {
    nq_problem problem = make_problem();
    std::size_t value = 0;
    CHECK(nq_fp4_bytes(&problem, 3, &value) == NQ_OK);
    CHECK(value == 96);
    CHECK(nq_scale_bytes(&problem, 3, &value) == NQ_OK);
    CHECK(value == 12);
    CHECK(nq_scale_offset(&problem, 2, 3, &value) == NQ_OK);
    CHECK(value == 11);
    problem.scale_layout = NQ_LAYOUT_SWIZZLED;
    CHECK(nq_scale_bytes(&problem, 129, &value) == NQ_OK);
    CHECK(value == 1024);
    CHECK(nq_scale_offset(&problem, 33, 3, &value) == NQ_OK);
    CHECK(value == 1 * 16 + 1 * 4 + 3);
    CHECK(nq_scale_bytes(&problem, 0, &value) == NQ_OK);
    CHECK(value == 0);
    // Nothing wraps at 32 bits.
    problem = make_problem();
    problem.hidden = 131072;
    CHECK(nq_fp4_bytes(&problem, 0x7fffffff, &value) == NQ_OK);
    CHECK(value == std::size_t{0x7fffffff} * 65536);

    value = 7;
    for (const auto query : {nq_fp4_bytes, nq_scale_bytes}) {
        CHECK(query(nullptr, 1, &value) == NQ_ERR_INVALID_ARGUMENT);
        CHECK(query(&problem, 1, nullptr) == NQ_ERR_INVALID_ARGUMENT);
        CHECK(said("bytes is NULL"));
        CHECK(query(&problem, -1, &value) == NQ_ERR_INVALID_ARGUMENT);
        CHECK(said("rows is -1; accepted: 0 to 2147483647"));
        CHECK(query(&problem, std::int64_t{1} << 31, &value) == NQ_ERR_INVALID_ARGUMENT);
    }
    CHECK(nq_scale_offset(&problem, -1, 0, &value) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("row is -1"));
    CHECK(nq_scale_offset(&problem, 0x7fffffff, 0, &value) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nq_scale_offset(&problem, 0, 8192, &value) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("block is 8192; accepted: 0 to 8191"));
    CHECK(nq_scale_offset(&problem, 0, 0, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nq_scale_offset(nullptr, 0, 0, &value) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(value == 7);  // untouched by failures
}

TEST_CASE("required alignment") {
    nq_problem problem = make_problem();
    const auto alignment = [&](const char* tensor) {
        std::size_t value = 0;
        CHECK(nq_required_alignment(&problem, tensor, &value) == NQ_OK);
        return value;
    };
    CHECK(alignment("x") == 16);
    CHECK(alignment("weight") == 16);
    CHECK(alignment("residual") == 16);
    CHECK(alignment("y_out") == 16);
    CHECK(alignment("fp4") == 8);
    CHECK(alignment("scales") == 1);
    CHECK(alignment("global_scale") == 4);
    problem.scale_layout = NQ_LAYOUT_SWIZZLED;
    CHECK(alignment("scales") == 16);
    std::size_t value = 0;
    CHECK(nq_required_alignment(&problem, "scale", &value) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("tensor is \"scale\"; accepted: x, weight"));
    for (const char* tensor : {"scales_linear", "residual_out", "device_rows", "sum_of_squares", "rstd"}) {
        CHECK(alignment(tensor) > 0);
        CHECK(nq_required_alignment(&problem, "scale", &value) == NQ_ERR_INVALID_ARGUMENT);
        CHECK(said(tensor));
    }
    CHECK(nq_required_alignment(&problem, nullptr, &value) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nq_required_alignment(&problem, "x", nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nq_required_alignment(nullptr, "x", &value) == NQ_ERR_INVALID_ARGUMENT);
}

TEST_CASE("supported problems and plans") {
    nq_problem problem = make_problem();
    problem.hidden = 7168;
    CHECK(nq_supported(&problem, "sm_90") == NQ_OK);
    CHECK(nq_supported(&problem, "sm_75") == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("\"sm_75\""));
    CHECK(nq_supported(&problem, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("arch is NULL"));

    nq_plan plan = NQ_PLAN_INIT;
    CHECK(nq_plan_query(&problem, "sm_100f", NQ_VARIANT_THROUGHPUT_32B, 0, &plan) == NQ_ERR_UNSUPPORTED_PROBLEM);
    REQUIRE(nq_plan_query(&problem, "sm_100f", NQ_VARIANT_THROUGHPUT, 0, &plan) == NQ_OK);
    CHECK(plan.tree_threads == 64);
    CHECK(plan.rows_per_block == 5);
    CHECK(plan.block_threads == 640);
    CHECK(plan.row_buffers == 1);
    CHECK(plan.blocks_per_row == 1);
    REQUIRE(nq_plan_query(&problem, "sm_90", NQ_VARIANT_SPLIT, 0, &plan) == NQ_OK);
    CHECK(plan.blocks_per_row == 4);
    CHECK(plan.row_buffers == 0);
    problem.hidden = 256;  // too narrow for the staged form
    REQUIRE(nq_plan_query(&problem, "sm_100f", NQ_VARIANT_THROUGHPUT_32B, 0, &plan) == NQ_OK);
    CHECK(plan.tree_threads == 4);
    CHECK(plan.load_bytes == 32);
    CHECK(plan.row_in_registers == 1);
    CHECK(plan.block_threads == plan.rows_per_block * plan.threads_per_row);
    CHECK(plan.granules_per_thread * plan.threads_per_row >= 256 / 16);
    problem.hidden = 7168;
    REQUIRE(nq_plan_query(&problem, "sm_100f", NQ_VARIANT_THROUGHPUT, 128, &plan) == NQ_OK);
    CHECK(plan.threads_per_row == 128);
    CHECK(plan.load_bytes == 16);

    CHECK(nq_plan_query(&problem, "sm_90", NQ_VARIANT_THROUGHPUT_32B, 0, &plan) == NQ_ERR_UNSUPPORTED_PROBLEM);
    CHECK(said("throughput_32b"));
    CHECK(nq_plan_query(&problem, "sm_90", 5, 0, &plan) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("variant is 5"));
    CHECK(nq_plan_query(&problem, "sm_90", 0, 48, &plan) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("threads_per_row is 48"));
    CHECK(nq_plan_query(&problem, "sm_90", 0, 0, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nq_plan_query(nullptr, "sm_90", 0, 0, &plan) == NQ_ERR_INVALID_ARGUMENT);
    plan.struct_size = 8;
    CHECK(nq_plan_query(&problem, "sm_90", 0, 0, &plan) == NQ_ERR_STRUCT_SIZE);
    CHECK(said("nq_plan.struct_size is 8"));

    plan = NQ_PLAN_INIT;
    problem.op = NQ_OP_ADD_RMSNORM;
    problem.flags = NQ_PROBLEM_Y_OUT | NQ_PROBLEM_WEIGHT_BIAS_ONE;
    CHECK(nq_supported(&problem, "sm_90") == NQ_OK);
    // A residual that is updated in place takes a cluster, or a block a row where there are none.
    CHECK(nq_plan_query(&problem, "sm_90", NQ_VARIANT_SPLIT, 0, &plan) == NQ_OK);
    CHECK(plan.blocks_per_row == 4);
    CHECK(plan.block_threads == 128);
    CHECK(nq_plan_query(&problem, "sm_89", NQ_VARIANT_SPLIT, 0, &plan) == NQ_ERR_UNSUPPORTED_PROBLEM);
    CHECK(nq_plan_query(&problem, "sm_90", NQ_VARIANT_SPLIT, 128, &plan) == NQ_ERR_UNSUPPORTED_PROBLEM);
    CHECK(said("cluster_size"));
}

TEST_CASE("nq_problem: every field") {
    const std::vector<std::pair<const char*, std::function<void(nq_problem&)>>> table = {
        {"op", [](nq_problem& p) { p.op = 2; }},
        {"hidden", [](nq_problem& p) { p.hidden = 0; }},
        {"hidden", [](nq_problem& p) { p.hidden = 72; }},
        {"hidden", [](nq_problem& p) { p.hidden = 131088; }},
        {"hidden", [](nq_problem& p) { p.hidden = 48, p.block_size = 32; }},
        {"dtype", [](nq_problem& p) { p.dtype = NQ_FP32; }},
        {"dtype", [](nq_problem& p) { p.dtype = 3; }},
        {"weight_dtype", [](nq_problem& p) { p.weight_dtype = NQ_FP16; }},
        {"weight_dtype", [](nq_problem& p) { p.weight_dtype = 3; }},
        {"block_size", [](nq_problem& p) { p.block_size = 0; }},
        {"block_size", [](nq_problem& p) { p.block_size = 64; }},
        {"scale_format", [](nq_problem& p) { p.scale_format = 2; }},
        {"scale_layout", [](nq_problem& p) { p.scale_layout = 3; }},
        {"flags", [](nq_problem& p) { p.flags = 0x20; }},
    };
    for (const auto& [field, spoil] : table) {
        nq_problem problem = make_problem();
        spoil(problem);
        CHECK(nq_problem_check(&problem) == NQ_ERR_INVALID_ARGUMENT);
        INFO(nq_last_error());
        CHECK(said(std::string("nq_problem.") + field + " is "));
        CHECK(said("accepted: "));
    }
    for (const std::uint32_t size : {0u, std::uint32_t{sizeof(nq_problem)} - 1, 0x80000000u}) {
        nq_problem problem = make_problem();
        problem.struct_size = size;
        CHECK(nq_problem_check(&problem) == NQ_ERR_STRUCT_SIZE);
        CHECK(said("nq_problem.struct_size"));
    }
}

TEST_CASE("nq_reference checks its tensors") {
    struct Misuse {
        const char* field;
        nq_status status;
        std::function<void(nq_tensors&)> spoil;
    };
    const std::vector<Misuse> table = {
        {"struct_size", NQ_ERR_STRUCT_SIZE, [](nq_tensors& t) { t.struct_size = 0; }},
        {"flags", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.flags = 8; }},
        {"rows", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.rows = -1; }},
        {"eps", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.eps = std::numeric_limits<float>::quiet_NaN(); }},
        {"reserved", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.reserved = 9; }},
        {"x", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x = nullptr; }},
        {"x_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x_stride = 63; }},
        {"x_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.x_stride = INT64_MIN; }},
        {"weight", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.weight = nullptr; }},
        {"fp4", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4 = nullptr; }},
        {"fp4", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4 = const_cast<void*>(t.weight); }},
        {"fp4_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.fp4_stride = 31; }},
        {"scales", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.scales = nullptr; }},
        {"residual", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual = nullptr; }},
        {"residual", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual = const_cast<void*>(t.x); }},
        {"residual_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.residual_stride = 8; }},
        {"y_out", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.y_out = nullptr; }},
        {"y_out_stride", NQ_ERR_INVALID_ARGUMENT, [](nq_tensors& t) { t.y_out_stride = -64; }},
    };
    nq_problem problem = make_problem();
    problem.op = NQ_OP_ADD_RMSNORM;
    problem.flags = NQ_PROBLEM_Y_OUT;
    HostRows rows;
    nq_tensors good = rows.tensors();
    good.residual = rows.residual.data();
    good.y_out = rows.y_out.data();
    good.sum_of_squares = rows.sum_of_squares;
    good.rstd = rows.rstd;
    for (const Misuse& misuse : table) {
        nq_tensors tensors = good;
        misuse.spoil(tensors);
        CHECK(nq_reference(&problem, &tensors, 1) == misuse.status);
        INFO(nq_last_error());
        CHECK(said(std::string("nq_tensors.") + misuse.field + " is "));
    }
    CHECK(nq_reference(&problem, nullptr, 1) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nq_reference(nullptr, &good, 1) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nq_reference(&problem, &good, 1) == NQ_OK);
    CHECK(rows.sum_of_squares[3] == 64 * 4.0f);  // 1 + 1, squared

    // What the problem has no use for is a misunderstanding.
    problem = make_problem();
    CHECK(nq_reference(&problem, &good, 1) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("nq_tensors.residual is "));
    problem.scale_format = NQ_SCALE_UE8M0;
    nq_tensors scaled = rows.tensors();
    scaled.global_scale = &rows.global_scale;
    CHECK(nq_reference(&problem, &scaled, 1) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("nq_tensors.global_scale is "));
}

TEST_CASE("nq_reference with strides writes the same rows, and nothing between them") {
    const nq_problem problem = make_problem();
    HostRows contiguous, strided;
    for (std::size_t i = 0; i < 256; ++i) {
        contiguous.x[i] = static_cast<std::uint16_t>(0x3f80 + 11 * i);
        strided.x[i / 64 * 72 + i % 64] = contiguous.x[i];
    }
    strided.fp4.assign(strided.fp4.size(), 0xa5);
    const nq_tensors plain = contiguous.tensors();
    nq_tensors tensors = strided.tensors();
    tensors.x_stride = 72;
    tensors.fp4_stride = 40;
    REQUIRE(nq_reference(&problem, &plain, 1) == NQ_OK);
    REQUIRE(nq_reference(&problem, &tensors, 2) == NQ_OK);
    CHECK(strided.scales == contiguous.scales);
    for (std::size_t row = 0; row < 4; ++row) {
        CHECK(std::memcmp(&strided.fp4[row * 40], &contiguous.fp4[row * 32], 32) == 0);
        for (std::size_t gap = 32; gap < 40; ++gap) CHECK(strided.fp4[row * 40 + gap] == 0xa5);
    }
}

TEST_CASE("nq_context_options: every field") {
    const std::vector<std::pair<const char*, std::function<void(nq_context_options&)>>> table = {
        {"jit", [](nq_context_options& o) { o.jit = 3; }},
        {"log_level", [](nq_context_options& o) { o.log_level = NQ_LOG_OFF + 1; }},
        {"cache_flags", [](nq_context_options& o) { o.cache_flags = 4; }},
        {"compile_threads", [](nq_context_options& o) { o.compile_threads = 1025; }},
    };
    nq_context* context = reinterpret_cast<nq_context*>(&context);
    for (const auto& [field, spoil] : table) {
        nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
        spoil(options);
        CHECK(nq_context_create(&options, &context) == NQ_ERR_INVALID_ARGUMENT);
        CHECK(context == nullptr);
        CHECK(said(std::string("nq_context_options.") + field + " is "));
    }
    nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
    options.struct_size = 4;
    CHECK(nq_context_create(&options, &context) == NQ_ERR_STRUCT_SIZE);
    CHECK(nq_context_create(nullptr, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("context is NULL"));
}

TEST_CASE("a field of the options beats the environment, which beats the default") {
    nq::Environment environment;
    environment.default_cache_dir = "/default";
    environment.cuda_homes = {{"CUDA_HOME", "/cuda"}};
    environment.python_environments = {{"VIRTUAL_ENV", "/venv"}};
    auto config = nq::make_config(nullptr, environment);
    REQUIRE(config);
    CHECK(config->jit);
    CHECK(config->cache.root == "/default");
    CHECK(config->nvrtc.path.empty());
    CHECK(config->log_level == NQ_LOG_WARN);
    CHECK(config->cache.layers.empty());
    CHECK(config->cache.store.size_limit == 1ull << 30);
    CHECK_FALSE(config->cache.store.read_only);
    CHECK_FALSE(config->cache.store.shared);
    CHECK(config->cache.lock_timeout == std::chrono::seconds(30));
    CHECK(config->cache.compile_threads >= 1);
    CHECK(config->cache.compile_threads <= 4);
    CHECK(config->nvrtc.cuda_homes == environment.cuda_homes);
    CHECK(config->nvrtc.python_environments == environment.python_environments);

    environment.jit = false;
    environment.cache_dir = "";
    environment.nvrtc = "/environment/nvrtc";
    environment.libcuda = "/environment/cuda";
    environment.log_level = NQ_LOG_DEBUG;
    environment.bundles = {"/environment/a.nqb", "/environment/b"};
    environment.cache_size = 0;
    environment.cache_readonly = true;
    config = nq::make_config(nullptr, environment);
    REQUIRE(config);
    CHECK_FALSE(config->jit);
    CHECK(config->cache.root.empty());  // set to nothing is not the default
    CHECK(config->nvrtc.path == "/environment/nvrtc");
    CHECK(config->libcuda == "/environment/cuda");
    CHECK(config->cache.layers == environment.bundles);
    CHECK(config->cache.store.size_limit == 0);
    CHECK(config->cache.store.read_only);
    CHECK(config->log_level == NQ_LOG_DEBUG);

    nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
    options.jit = NQ_JIT_ON;
    options.cache_dir = "/option/cache";
    options.nvrtc = "/option/nvrtc";
    options.libcuda = "/option/cuda";
    options.log_level = NQ_LOG_ERROR;
    options.bundles = "/option/a.nqb::/option/b:";
    options.cache_size = 5000;
    options.cache_flags = NQ_CACHE_SHARED;
    options.compile_threads = 7;
    options.lock_timeout_ms = 250;
    config = nq::make_config(&options, environment);
    REQUIRE(config);
    CHECK(config->jit);
    CHECK(config->cache.root == "/option/cache");
    CHECK(config->nvrtc.path == "/option/nvrtc");
    CHECK(config->libcuda == "/option/cuda");
    CHECK(config->log_level == NQ_LOG_ERROR);
    CHECK(config->cache.layers == std::vector<std::string>{"/option/a.nqb", "/option/b"});
    CHECK(config->cache.store.size_limit == 5000);
    CHECK(config->cache.store.shared);
    CHECK(config->cache.store.read_only);  // a wish of either
    CHECK(config->cache.compile_threads == 7);
    CHECK(config->cache.lock_timeout == std::chrono::milliseconds(250));
    options.bundles = "";
    options.cache_size = UINT64_MAX;
    config = nq::make_config(&options, environment);
    CHECK(config->cache.layers.empty());
    CHECK(config->cache.store.size_limit == 0);
}

TEST_CASE("a context needs neither driver nor NVRTC, and NULL arguments are named") {
    nq::test::TempDirectory directory;
    const std::string cache = directory / "cache";
    nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
    options.cache_dir = cache.c_str();
    options.nvrtc = options.libcuda = "/nowhere/lib.so";
    nq_context* context = nullptr;
    REQUIRE(nq_context_create(&options, &context) == NQ_OK);
    CHECK(nq_context_cache_dir(context) == cache);
    nq_counters counters = NQ_COUNTERS_INIT;
    CHECK(nq_context_counters(context, &counters) == NQ_OK);
    CHECK(counters.compiles == 0);
    CHECK(nq_context_counters(nullptr, &counters) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nq_context_counters(context, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    counters.struct_size += 8192;
    CHECK(nq_context_counters(context, &counters) == NQ_ERR_STRUCT_SIZE);

    const nq_problem problem = make_problem();
    const nq_tensors tensors = NQ_TENSORS_INIT;
    nq_kernel* kernel = nullptr;
    CHECK(nq_prepare(nullptr, &problem, nullptr, &kernel) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("context is NULL"));
    CHECK(nq_prepare(context, nullptr, nullptr, &kernel) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("problem is NULL"));
    CHECK(nq_prepare(context, &problem, nullptr, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("kernel is NULL"));
    nq_prepare_options prepare_options = NQ_PREPARE_OPTIONS_INIT;
    prepare_options.struct_size = 4;
    CHECK(nq_prepare(context, &problem, &prepare_options, &kernel) == NQ_ERR_STRUCT_SIZE);
    CHECK(said("nq_prepare_options.struct_size"));
    CHECK(nq_run(nullptr, &problem, &tensors, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nq_run(context, nullptr, &tensors, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nq_run(context, &problem, nullptr, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    const char* const archs[] = {"sm_90", nullptr};
    CHECK(nq_precompile(nullptr, &problem, 1, archs, 1, 1, nullptr, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nq_precompile(context, nullptr, 1, archs, 1, 1, nullptr, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("problems is NULL"));
    CHECK(nq_precompile(context, &problem, 1, nullptr, 1, 1, nullptr, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(said("archs is NULL"));
    CHECK(nq_precompile(context, &problem, 1, archs + 1, 1, 1, nullptr, nullptr) == NQ_ERR_INVALID_ARGUMENT);
    CHECK(nq_precompile(context, nullptr, 0, nullptr, 0, 0, nullptr, nullptr) == NQ_OK);
    nq_problem mixed[2] = {problem, problem};
    mixed[1].struct_size = sizeof(nq_problem) + 64;  // would be read beyond the array
    CHECK(nq_precompile(context, mixed, 2, archs, 1, 1, nullptr, nullptr) == NQ_ERR_STRUCT_SIZE);
    nq_context_destroy(context);
    nq_context_destroy(nullptr);
    CHECK(std::string(nq_context_cache_dir(nullptr)).empty());
}

TEST_CASE("where no cache directory can be chosen, that is said once and all else works") {
    nq::Environment nowhere;
    std::vector<std::string> warnings;
    const auto record = [](uint32_t level, const char* message, void* payload) {
        if (level >= NQ_LOG_WARN) static_cast<std::vector<std::string>*>(payload)->emplace_back(message);
    };
    nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
    options.log_callback = record;
    options.log_payload = &warnings;
    {
        const nq::Context context(*nq::make_config(&options, nowhere));
        CHECK(context.cache_dir().empty());
        REQUIRE(warnings.size() == 1);
        CHECK(warnings[0].find("NORMQUANT_CACHE_DIR") != std::string::npos);
    }
    warnings.clear();
    options.cache_dir = "";  // as wished
    const nq::Context context(*nq::make_config(&options, nowhere));
    CHECK(context.cache_dir().empty());
    CHECK(warnings.empty());
}
