// The compiled kernel on a real device: its bytes equal the reference's.
#include "gpu/device_tensors.h"
#include "gpu/gpu.h"
#include "gpu/test_kernel.h"

#include "plan/plan.h"
#include "support/catch.h"
#include "support/golden.h"
#include "support/operator_cases.h"
#include "support/problems.h"
#include "support/random_inputs.h"
#include "support/temp_directory.h"

#include <normquant/geometry.h>
#include <normquant/scale.cuh>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace nq;
using namespace nq::test;

namespace {

const Gpu& gpu() {
    static const std::unique_ptr<Gpu> instance = Gpu::open_or_skip();
    return *instance;
}

RowLimits limits_of(const Problem& problem) { return row_limits_of(gpu(), problem); }

nq_context* context() {
    static nq_context* const instance = [] {
        static const TempDirectory cache;
        nq_context_options options = NQ_CONTEXT_OPTIONS_INIT;
        options.cache_dir = cache.path().c_str();
        options.compile_threads = std::max(1u, std::thread::hardware_concurrency());
        nq_context* created = nullptr;
        if (nq_context_create(&options, &created) != NQ_OK) throw std::runtime_error(nq_last_error());
        return created;
    }();
    return instance;
}

void ok(nq_status status) {
    INFO(nq_status_name(status) << ": " << nq_last_error() << " " << nq_last_error_detail());
    REQUIRE(status == NQ_OK);
}

// Side by side, as nq_prepare compiles one problem at a time.
void precompile(const std::vector<Problem>& problems) {
    std::vector<nq_problem> all;
    for (const Problem& problem : problems) all.push_back(problem_to_c(problem));
    const std::string target = target_for(gpu().capability(), std::nullopt, {})->name();
    const char* const archs[] = {target.c_str()};
    ok(nq_precompile(context(), all.data(), all.size(), archs, 1, 0, nullptr, nullptr));
}

nq_kernel* prepare(const Problem& problem, const PlanOverride& plan = {}) {
    (void)gpu();  // a test run alone makes the context current here
    nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
    options.threads_per_row = plan.threads_per_row;
    options.variant = static_cast<std::uint32_t>(plan.variant);
    options.cluster_size = plan.cluster;
    options.max_shared_bytes = plan.shared_limit;
    nq_kernel* kernel = nullptr;
    const nq_problem c = problem_to_c(problem);
    ok(nq_prepare(context(), &c, &options, &kernel));
    return kernel;
}

void require_equal(const Outputs& got, const Outputs& expected) { REQUIRE(difference(got, expected) == ""); }

Outputs run_device(const Problem& problem, const Inputs& inputs, const PlanOverride& plan = {}, std::size_t offset = 0, const Arrangement& arrangement = {}) {
    const nq_kernel* kernel = prepare(problem, plan);
    const DeviceTensors device(gpu(), problem, inputs, arrangement, offset);
    const nq_tensors tensors = device.tensors();
    ok(nq_launch(kernel, &tensors, nullptr));
    gpu().check(gpu().cuCtxSynchronize(), "the launch");
    return device.outputs();
}

void same_as_reference(const Problem& problem, const Inputs& inputs, const PlanOverride& plan = {}, std::size_t offset = 0) {
    INFO(canonical_text(problem) << " rows " << inputs.rows << " threads " << plan.threads_per_row << " " << name(plan.variant) << " cluster "
                                 << plan.cluster << " shared " << plan.shared_limit << " offset " << offset);
    require_equal(run_device(problem, inputs, plan, offset), run_reference(problem, inputs, 0, DeviceTensors::kGarbage));
}

// Many rows at little cost: some of them again and again. Their number is a prime, so that rows that a slip might confuse differ.
Inputs many_rows(const Problem& problem, std::int64_t rows, std::uint64_t seed) {
    Inputs inputs = random_inputs(problem, std::min<std::int64_t>(rows, 509), Distribution::outliers, seed);
    inputs.rows = rows;
    for (Bytes* tensor : {&inputs.x, &inputs.residual}) {
        const std::size_t some = tensor->size(), all = some == 0 ? 0 : static_cast<std::size_t>(rows) * problem.hidden * 2;
        tensor->resize(all);
        for (std::size_t at = some; at < all; at += some) std::memcpy(tensor->data() + at, tensor->data(), std::min(some, all - at));
    }
    return inputs;
}

class Stream {
public:
    Stream() { gpu().check(gpu().driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"); }
    ~Stream() { gpu().driver().cuStreamDestroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    operator CUstream() const { return stream_; }
    void synchronize() const { gpu().check(gpu().driver().cuStreamSynchronize(stream_), "the stream"); }

private:
    CUstream stream_ = nullptr;
};

// What is captured on a stream, to be launched there. Its first node is that of the first launch.
class Graph {
public:
    template <class Enqueue>
    Graph(const Stream& stream, Enqueue enqueue) : stream_(stream) {
        gpu().check(gpu().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
        enqueue();
        gpu().check(gpu().cuStreamEndCapture(stream, &graph_), "cuStreamEndCapture");
        instantiate();
    }
    ~Graph() {
        gpu().cuGraphExecDestroy(exec_);
        gpu().cuGraphDestroy(graph_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    void launch() const {
        gpu().check(gpu().cuGraphLaunch(exec_, stream_), "cuGraphLaunch");
        stream_.synchronize();
    }
    // To what another one does; false where the driver refuses.
    bool update(const Graph& other) {
        CUgraphExecUpdateResultInfo info{};
        const CUresult result = gpu().cuGraphExecUpdate(exec_, other.graph_, &info);
        if (result == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE) return false;
        gpu().check(result, "cuGraphExecUpdate");
        return true;
    }
    // The same of its only node.
    void take_parameters_of(const Graph& other) {
        CUDA_KERNEL_NODE_PARAMS parameters{};
        gpu().check(gpu().cuGraphKernelNodeGetParams(other.only_node(), &parameters), "cuGraphKernelNodeGetParams");
        gpu().check(gpu().cuGraphExecKernelNodeSetParams(exec_, only_node(), &parameters), "cuGraphExecKernelNodeSetParams");
    }

private:
    void instantiate() { gpu().check(gpu().cuGraphInstantiateWithFlags(&exec_, graph_, 0), "cuGraphInstantiate"); }
    CUgraphNode only_node() const {
        CUgraphNode node = nullptr;
        std::size_t nodes = 0;
        gpu().check(gpu().cuGraphGetNodes(graph_, nullptr, &nodes), "cuGraphGetNodes");
        REQUIRE(nodes == 1);
        gpu().check(gpu().cuGraphGetNodes(graph_, &node, &nodes), "cuGraphGetNodes");
        return node;
    }

    const Stream& stream_;
    CUgraph graph_ = nullptr;
    CUgraphExec exec_ = nullptr;
};

Problem make_problem(std::uint32_t hidden, DType dtype, DType weight, std::uint32_t block, ScaleFormat format, ScaleLayout layout) {
    Problem problem;
    problem.hidden = hidden;
    problem.dtype = dtype;
    problem.weight_dtype = weight;
    problem.block_size = block;
    problem.scale_format = format;
    problem.scale_layout = layout;
    return problem;
}

Problem nvfp4(std::uint32_t hidden, ScaleLayout layout = ScaleLayout::linear) {
    return make_problem(hidden, DType::bf16, DType::bf16, 16, ScaleFormat::e4m3, layout);
}

}  // namespace

TEST_CASE("golden vectors") {
    (void)gpu();
    int compared = 0;
    for (const std::string& name : golden_names()) {
        const GoldenCase golden = load_golden(name);
        INFO(name);
        require_equal(run_device(golden.problem, golden.inputs), golden.expected);
        ++compared;
    }
    CHECK(compared == 34);
}

TEST_CASE("every type, block, scale format and layout, over every distribution") {
    std::uint64_t seed = 0;
    for (const std::uint32_t hidden : {64u, 576u, 2880u, 7168u}) {
        precompile(every_problem(hidden));
        for (const Problem& problem : every_problem(hidden)) {
            for (const Distribution distribution : kDistributions) {
                ++seed;
                same_as_reference(problem, random_inputs(problem, seed % 2 ? 37 : 300, distribution, seed));
            }
        }
    }
}

TEST_CASE("everything that a launch may ask for, in pairs") {
    std::vector<OperatorCase> cases;
    std::uint64_t turn = 0;
    for (const std::uint32_t hidden : {80u, 512u, 2880u, 7168u, 16400u, 32784u}) {
        for (const auto& choice : pairwise(operator_factors())) {
            const std::int64_t most = limits_of(operator_case(hidden, 0, choice, turn).problem).latency;
            for (const std::int64_t rows : {std::int64_t{3}, std::int64_t{131}, most + 41})
                cases.push_back(operator_case(hidden, rows, choice, turn));
            ++turn;
        }
    }
    std::vector<Problem> problems;
    for (const OperatorCase& test : cases) problems.push_back(test.problem);
    precompile(problems);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const OperatorCase& test = cases[i];
        INFO(test.text);
        require_equal(run_device(test.problem, test.inputs, {}, i % 2 * 16, test.arrangement), expected_outputs(test, 0, DeviceTensors::kGarbage));
    }
}

TEST_CASE("many rows, whose swizzled scales are written by fours") {
    const Arch arch = *target_for(gpu().capability(), std::nullopt, {});
    const auto multiprocessors = static_cast<std::uint32_t>(gpu().attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
    struct Case {
        Problem problem;
        std::int64_t rows;
        std::optional<std::int64_t> device_rows;
    };
    std::vector<Case> cases;
    std::vector<Problem> problems;
    const std::pair<std::uint32_t, std::int64_t> sizes[] = {{1024, 13037}, {2048, 6500}, {2880, 6500},
                                                            {4096, 4500},  {7168, 4500}, {16384, 1300}};
    for (const auto& [hidden, rows_of_132] : sizes) {
        const std::int64_t rows = rows_of_132 * multiprocessors / 132;
        for (const bool nv : {true, false}) {
            const ScaleFormat format = nv ? ScaleFormat::e4m3 : ScaleFormat::ue8m0;
            Problem plain = make_problem(hidden, DType::bf16, DType::bf16, nv ? 16 : 32, format, ScaleLayout::swizzled), everything = plain;
            everything.op = Op::add_rmsnorm;
            everything.y_out = true;
            everything.scale_layout = ScaleLayout::both;
            cases.push_back({plain, rows, {}});
            cases.push_back({everything, rows, {}});
            plain.device_rows = everything.device_rows = true;
            cases.push_back({everything, rows, nv ? 0 : 127});
            cases.push_back({nv ? plain : everything, rows, nv ? rows - 1 : rows / 2});
        }
    }
    for (const Case& each : cases) problems.push_back(each.problem);
    precompile(problems);
    for (const Case& each : cases) {
        OperatorCase test;
        test.problem = each.problem;
        test.inputs = many_rows(test.problem, each.rows, test.problem.hidden + 1);
        if (each.device_rows) test.inputs.device_rows = static_cast<std::int32_t>(*each.device_rows);
        INFO(canonical_text(test.problem) << " rows " << each.rows << ", on the device " << each.device_rows.value_or(each.rows));
        const Plan plan = plans_for(test.problem, arch)[0];
        REQUIRE(each.rows > limits_of(test.problem).latency);
        // Where there are other plans, it may take more.
        if (arch.name() == "sm_90" && !each.device_rows) CHECK(scales_by_fours(test, plan, multiprocessors));
        require_equal(run_device(test.problem, test.inputs), expected_outputs(test, 0, DeviceTensors::kGarbage));
    }
}

TEST_CASE("columns of a wider matrix") {
    const Problem problem = nvfp4(1536, ScaleLayout::swizzled), wide = nvfp4(2112);
    const nq_kernel* kernel = prepare(problem);
    for (const std::int64_t rows : {std::int64_t{3}, std::int64_t{300}, limits_of(problem).latency + 1}) {
        const Inputs matrix = random_inputs(wide, rows, Distribution::outliers, 5);
        const DeviceBuffer x(gpu(), matrix.x);
        for (const std::size_t column : {0u, 576u}) {
            Inputs inputs = random_inputs(problem, rows, Distribution::outliers, 6);
            for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r)
                std::memcpy(&inputs.x[r * 2 * problem.hidden], &matrix.x[2 * (r * wide.hidden + column)], 2 * problem.hidden);
            const DeviceTensors device(gpu(), problem, inputs);
            nq_tensors tensors = device.tensors();
            tensors.x = static_cast<const unsigned char*>(x.data()) + 2 * column;
            tensors.x_stride = wide.hidden;
            ok(nq_launch(kernel, &tensors, nullptr));
            gpu().check(gpu().cuCtxSynchronize(), "the launch");
            INFO("rows " << rows << " column " << column);
            require_equal(device.outputs(), run_reference(problem, inputs, 0, DeviceTensors::kGarbage));
        }
        REQUIRE(x.download() == matrix.x);
    }
}

TEST_CASE("a residual is added the same way by every plan") {
    for (const std::uint32_t hidden : {2048u, 7168u, 16384u}) {
        Problem problem = nvfp4(hidden, ScaleLayout::swizzled);
        problem.op = Op::add_rmsnorm;
        problem.y_out = true;
        const Inputs inputs = random_inputs(problem, 150, Distribution::outliers, hidden);
        for (std::uint32_t n = 32; n <= 1024; n *= 2) {
            if (!normquant::threads_per_row_valid(hidden, n)) continue;
            same_as_reference(problem, inputs, {.threads_per_row = n});
            same_as_reference(problem, inputs, {.threads_per_row = n, .variant = Variant::latency});
            same_as_reference(problem, inputs, {.threads_per_row = n, .shared_limit = 99 << 10});
            for (std::uint32_t cluster = 2; cluster <= 16 && n / cluster >= 32; cluster *= 2)
                same_as_reference(problem, inputs, {.threads_per_row = n, .cluster = cluster});
        }
    }
}

TEST_CASE("row counts around tiles, blocks and the change of variant") {
    for (const std::uint32_t hidden : {16u, 80u, 4096u}) {
        for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::swizzled}) {
            const Problem problem = nvfp4(hidden, layout);
            const RowLimits limits = limits_of(problem);
            std::vector<std::int64_t> counts = {0, 1, 2, 7, 127, 128, 129, 263, 264, 265};
            counts.insert(counts.end(), {limits.split, limits.split + 1, limits.latency, limits.latency + 1});
            for (const std::int64_t rows : counts) {
                same_as_reference(problem, random_inputs(problem, rows, Distribution::outliers, static_cast<std::uint64_t>(rows)));
            }
        }
    }
    same_as_reference(nvfp4(576, ScaleLayout::swizzled), random_inputs(nvfp4(576), 16384, Distribution::normal, 5));
}

TEST_CASE("widths: powers of two or not, narrow and wide") {
    for (const std::uint32_t hidden : {16u,   32u,   48u,   64u,   80u,   96u,   112u,  1536u, 1840u,  2112u,  2688u,  2896u,  3072u,
                                       3584u, 4608u, 5120u, 5376u, 6144u, 6656u, 7680u, 8192u, 10240u, 12288u, 14336u, 16384u, 16400u,
                                       18432u, 20480u, 24576u, 28672u, 32768u, 32784u, 53248u, 65536u, 65552u, 98304u, 131072u}) {
        for (const Problem& problem : {nvfp4(hidden, ScaleLayout::swizzled),
                                       make_problem(hidden, DType::fp16, DType::fp32, hidden % 32 ? 16 : 32, ScaleFormat::ue8m0, ScaleLayout::linear)}) {
            for (const std::int64_t rows : {3, 150, 300})
                same_as_reference(problem, random_inputs(problem, rows, Distribution::outliers, hidden));
        }
    }
}

TEST_CASE("every thread count gives the same bytes") {
    for (const std::uint32_t hidden : {16u, 80u, 128u, 576u, 2880u, 4096u, 7168u, 16384u, 32768u, 131072u}) {
        for (const Problem& problem : every_problem(hidden)) {
            if (problem.dtype == DType::fp16 || problem.weight_dtype == DType::fp32) continue;
            const Inputs inputs = random_inputs(problem, 67, Distribution::outliers, hidden);
            for (std::uint32_t n = 1; n <= 1024; n *= 2) {
                if (normquant::threads_per_row_valid(hidden, n)) same_as_reference(problem, inputs, {.threads_per_row = n});
            }
        }
    }
}

TEST_CASE("every form gives the same bytes: few rows, many rows, clusters, less shared memory") {
    for (const std::uint32_t hidden : {2880u, 7168u, 65568u}) {
        for (const bool nv : {true, false}) {
            const Problem problem = make_problem(hidden, DType::bf16, DType::bf16, nv ? 16 : 32, nv ? ScaleFormat::e4m3 : ScaleFormat::ue8m0,
                                                 nv ? ScaleLayout::swizzled : ScaleLayout::linear);
            const Inputs inputs = random_inputs(problem, 300, Distribution::outliers, hidden);
            std::size_t clusters = 0;
            for (std::uint32_t n = 64; n <= 1024; n *= 2) {
                if (!normquant::threads_per_row_valid(hidden, n)) continue;
                for (const Variant variant : {Variant::latency, Variant::split}) same_as_reference(problem, inputs, {.threads_per_row = n, .variant = variant});
                same_as_reference(problem, inputs, {.threads_per_row = n, .shared_limit = 99 << 10});
                if (normquant::threads_per_row_valid(hidden, 2 * n)) continue;
                for (std::uint32_t cluster = 2; cluster <= 16 && n / cluster >= 32; cluster *= 2, ++clusters)
                    same_as_reference(problem, inputs, {.threads_per_row = n, .cluster = cluster});
            }
            CHECK(clusters >= 3);
        }
    }
}

TEST_CASE("a row's bytes are the same alone and in a batch") {
    const Problem problem = nvfp4(7168);
    const std::int64_t rows = std::max<std::int64_t>(limits_of(problem).latency + 1, 513);
    const Inputs batch = random_inputs(problem, rows, Distribution::outliers, 9);
    const Outputs together = run_device(problem, batch);
    for (const std::size_t row : {0u, 100u, 512u}) {
        Inputs alone = batch;
        alone.rows = 1;
        const std::size_t bytes = 2 * std::size_t{problem.hidden}, codes = problem.hidden / 2, scales = problem.blocks();
        alone.x.assign(batch.x.begin() + static_cast<std::ptrdiff_t>(row * bytes), batch.x.begin() + static_cast<std::ptrdiff_t>((row + 1) * bytes));
        const Outputs got = run_device(problem, alone);
        REQUIRE(std::equal(got.fp4.begin(), got.fp4.end(), together.fp4.begin() + static_cast<std::ptrdiff_t>(row * codes)));
        REQUIRE(std::equal(got.scales.begin(), got.scales.end(), together.scales.begin() + static_cast<std::ptrdiff_t>(row * scales)));
    }
}

TEST_CASE("inputs that are 16- but not 32-byte aligned") {
    const Problem problem = nvfp4(2880);
    same_as_reference(problem, random_inputs(problem, 5, Distribution::normal, 1), {}, 16);
    same_as_reference(problem, random_inputs(problem, 500, Distribution::normal, 2), {}, 16);
}

TEST_CASE("tensors beyond 2^31 elements") {
    struct Case {
        std::int64_t rows;
        std::uint32_t hidden;
        std::int64_t x_stride;
    };
    for (const Case& c : {Case{131073, 16384, 16384}, Case{1048641, 4096, 4096}, Case{139811, 5120, 15360}}) {
        const Problem problem = nvfp4(c.hidden, ScaleLayout::swizzled);
        INFO(canonical_text(problem) << " rows " << c.rows << " stride " << c.x_stride);
        const std::size_t row = 2 * static_cast<std::size_t>(c.x_stride), last = static_cast<std::size_t>(c.rows - 1);
        const Inputs inputs = random_inputs(problem, 1, Distribution::outliers, 3);
        const DeviceBuffer x(gpu(), last * row + 2 * std::size_t{c.hidden}), weight(gpu(), inputs.weight);
        const DeviceBuffer fp4(gpu(), fp4_bytes(problem, c.rows)), scales(gpu(), scale_bytes(problem, c.rows));
        x.fill(0);
        x.upload(inputs.x, last * row);
        scales.fill(0x7f);
        nq_tensors tensors = NQ_TENSORS_INIT;
        tensors.rows = c.rows;
        tensors.x = x.data();
        tensors.x_stride = c.x_stride;
        tensors.weight = weight.data();
        tensors.fp4 = fp4.data();
        tensors.scales = scales.data();
        ok(nq_launch(prepare(problem), &tensors, nullptr));
        gpu().check(gpu().cuCtxSynchronize(), "the launch");

        Inputs alone = inputs;
        alone.global_scale.reset();
        alone.eps = tensors.eps;
        Problem linear = problem;
        linear.scale_layout = ScaleLayout::linear;
        const Outputs expected = run_reference(linear, alone);
        REQUIRE(fp4.download(last * c.hidden / 2, c.hidden / 2) == expected.fp4);
        const nq_problem as_c = problem_to_c(problem);
        const Bytes tile = scales.download(0, scale_bytes(problem, c.rows));
        for (std::uint32_t b = 0; b < problem.blocks(); ++b) {
            std::size_t at = 0;
            ok(nq_scale_offset(&as_c, c.rows - 1, b, &at));
            REQUIRE(tile[at] == expected.scales[b]);
            ok(nq_scale_offset(&as_c, c.rows - 2, b, &at));
            REQUIRE(tile[at] == 0);  // a zero row
        }
        REQUIRE(fp4.canaries_intact());
        REQUIRE(scales.canaries_intact());
    }
}

TEST_CASE("reciprocal square root is correctly rounded over two binades and all subnormals") {
    const TestKernel kernel(gpu(), R"(#include <normquant/intrinsics.cuh>
extern "C" __global__ void test(float* out, unsigned first) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = normquant::reciprocal_sqrt(normquant::as_float(first + i));
})");
    constexpr unsigned kCount = 1u << 23;
    const DeviceBuffer out(gpu(), 4 * kCount);
    for (const unsigned first : {0u, 0x3f800000u, 0x40000000u, 0x7f000000u}) {
        CUdeviceptr address = out.address();
        unsigned start = first;
        void* arguments[] = {&address, &start};
        kernel.launch(kCount / 256, 256, arguments);
        const Bytes bytes = out.download();
        unsigned wrong = 0;
        for (unsigned i = 0; i < kCount; ++i) {
            std::uint32_t got;
            std::memcpy(&got, bytes.data() + 4 * std::size_t{i}, 4);
            wrong += got != std::bit_cast<std::uint32_t>(normquant::reciprocal_sqrt(std::bit_cast<float>(first + i)));
        }
        INFO("from bits " << first);
        CHECK(wrong == 0);
    }
}

TEST_CASE("the E4M3 reciprocal is correctly rounded for every scale byte") {
    const TestKernel kernel(gpu(), R"(#include <normquant/scale.cuh>
extern "C" __global__ void test(float* out) {
    out[threadIdx.x] = normquant::reciprocal(normquant::e4m3_to_float(threadIdx.x));
})");
    const DeviceBuffer out(gpu(), 4 * 256);
    CUdeviceptr address = out.address();
    void* arguments[] = {&address};
    kernel.launch(1, 256, arguments);
    const Bytes bytes = out.download();
    for (unsigned code = 0; code < 256; ++code) {
        if ((code & 0x7f) == 0 || (code & 0x7f) == 0x7f) continue;  // scale 0 has no reciprocal, NaN stays NaN
        float got;
        std::memcpy(&got, bytes.data() + 4 * std::size_t{code}, 4);
        CHECK(got == 1.0f / normquant::e4m3_to_float(code));
    }
}

TEST_CASE("the conversion paths agree on all 2^32 inputs") {
    const bool native = features(*target_for(gpu().capability(), std::nullopt, {})).e4m3_convert;
    const TestKernel kernel(gpu(), std::string("constexpr bool kNative = ") + (native ? "true" : "false") + R"(;
#include <normquant/fp4.cuh>
#include <normquant/scale.cuh>
using namespace normquant;
// Eight different values at once, so that no lane stands in for another.
extern "C" __global__ void test(unsigned* wrong, unsigned first) {
    const unsigned at = first + (blockIdx.x * blockDim.x + threadIdx.x);
    float q[8], saturated[8];
    for (unsigned i = 0; i < 8; ++i) {
        q[i] = add(as_float(at ^ i * 0x12345678u), -0.0f);  // NaN becomes canonical
        saturated[i] = saturate(q[i]);
        if (!(normquant::abs(q[i]) < 7.0f)) q[i] = saturated[i];  // the range of the software paths
    }
    const unsigned expected = e2m1x8_scalar(saturated);
    if (e2m1x8_packed(saturated) != expected || e2m1x8_scalar(q) != expected || e2m1x8_packed(q) != expected) atomicAdd(wrong, 1u);
    const float v = add(as_float(at), -0.0f);
    if (kNative && convert_e4m3(v) != e4m3_software(v)) atomicAdd(wrong + 1, 1u);
})");
    if (features(*target_for(gpu().capability(), std::nullopt, {})).u16x2_min) {
        const DeviceBuffer wrong(gpu(), Bytes(8, 0));
        for (unsigned part = 0; part < 256; ++part) {
            CUdeviceptr address = wrong.address();
            unsigned first = part << 24;
            void* arguments[] = {&address, &first};
            kernel.launch(1u << 16, 256, arguments);
        }
        CHECK(wrong.download() == Bytes(8, 0));
    }
}

TEST_CASE("sums and roundings to 16 bits, of all 2^32 inputs") {
    const TestKernel kernel(gpu(), R"(#include <normquant/memory.cuh>
using namespace normquant;
extern "C" __global__ void test(unsigned* wrong, unsigned first) {
    const unsigned at = first + (blockIdx.x * blockDim.x + threadIdx.x);
    // As two values of 16 bits: the sum is the fp32 sum, rounded.
    for (unsigned dtype = 0; dtype < 2; ++dtype) {
        const unsigned a = at & 0xffffu, b = at >> 16;
        const float low = unpack(dtype, &a, 0), high = unpack(dtype, &b, 0);
        if (add_16x2(dtype, a | b << 16, b | b << 16) != round_16x2(dtype, add(low, high), add(high, high))) atomicAdd(wrong, 1u);
        // As one of 32: rounded by integers.
        const float v = as_float(at);
        unsigned expected;
        if (v != v) {
            expected = 0x7fffu;
        } else if (dtype == 1) {
            expected = (at + 0x7fffu + (at >> 16 & 1u)) >> 16;
        } else {
            const unsigned magnitude = at & 0x7fffffffu;
            if (magnitude >= 0x477ff000u) {
                expected = 0x7c00u;
            } else if (magnitude < 0x38800000u) {  // subnormal: adding 1/2 makes the unit that of the result
                expected = bits(add(as_float(magnitude), 0.5f)) - 0x3f000000u;
            } else {
                expected = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
            }
            expected |= at >> 31 << 15;
        }
        if ((round_16x2(dtype, v, 1.0f) & 0xffffu) != expected || round_16x2(dtype, 1.0f, v) >> 16 != expected) atomicAdd(wrong + 1, 1u);
    }
})");
    const DeviceBuffer wrong(gpu(), Bytes(8, 0));
    for (unsigned part = 0; part < 256; ++part) {
        CUdeviceptr address = wrong.address();
        unsigned first = part << 24;
        void* arguments[] = {&address, &first};
        kernel.launch(1u << 16, 256, arguments);
    }
    CHECK(wrong.download() == Bytes(8, 0));
}

TEST_CASE("a launch that overlaps waits for what the kernel before it writes late, and for what that one still reads") {
    if (!features(*target_for(gpu().capability(), std::nullopt, {})).overlap) return;
    // Lets its successor begin at once, waits a while, and writes then. Last it looks at what its successor is to write.
    const TestKernel late(gpu(), R"(#include <normquant/types.cuh>
using normquant::u32;
struct Part { u32* to; const u32* from; u32 words; };
struct Parts { Part written[5], read[4]; };
extern "C" __global__ void test(Parts parts, u32* touched) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    const long long start = clock64();
    while (clock64() - start < 200000) {}
    const u32 first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    for (const Part& part : parts.written)
        for (u32 i = first; i < part.words; i += step) part.to[i] = part.from[i];
    for (const Part& part : parts.read)
        for (u32 i = first; i < part.words; i += step)
            if (*static_cast<const volatile u32*>(part.to + i) != 0xababababu) atomicAdd(touched, 1u);
})");
    struct Part {
        CUdeviceptr to = 0, from = 0;
        unsigned words = 0;
    };
    struct Parts {
        Part written[5], read[4];
    };
    static_assert(DeviceTensors::kGarbage == 0xab && sizeof(Parts) == 9 * 24);
    const Stream stream;
    for (const Op op : {Op::rmsnorm, Op::add_rmsnorm}) {
        for (const std::int64_t rows : {1, 64, 400, 1500}) {
            for (const bool constant_weight : {true, false}) {
                Problem problem = nvfp4(7168, ScaleLayout::both);
                problem.op = op;
                problem.overlap = problem.device_rows = problem.y_out = true;
                Inputs inputs = random_inputs(problem, rows, Distribution::outliers, 12);
                inputs.global_scale = 37.0f;
                inputs.device_rows = static_cast<std::int32_t>(rows - rows / 3);
                const DeviceTensors device(gpu(), problem, inputs, {.constant_weight = constant_weight});
                const nq_tensors tensors = device.tensors();
                const auto at = [](const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); };
                // What is written late comes from here.
                const DeviceBuffer x(gpu(), inputs.x), residual(gpu(), inputs.residual), weight(gpu(), inputs.weight);
                const DeviceBuffer scale(gpu(), device.global_scale().download()), count(gpu(), device.device_rows().download());
                const auto words = [](std::size_t bytes) { return static_cast<unsigned>(bytes / 4); };
                Parts parts = {{{at(tensors.x), x.address(), words(inputs.x.size())},
                                {at(tensors.residual), residual.address(), words(inputs.residual.size())},
                                {at(tensors.weight), weight.address(), constant_weight ? 0 : words(inputs.weight.size())},
                                {at(tensors.global_scale), scale.address(), 1},
                                {at(tensors.device_rows), count.address(), 1}},
                               {{at(tensors.fp4), 0, words(fp4_bytes(problem, rows))},
                                {at(tensors.scales), 0, words(scale_bytes(problem, rows))},
                                {at(tensors.scales_linear), 0, words(static_cast<std::size_t>(rows) * problem.blocks())},
                                {at(tensors.y_out), 0, words(inputs.x.size())}}};
                const DeviceBuffer touched(gpu(), Bytes(4, 0));
                CUdeviceptr touched_at = touched.address();
                void* arguments[] = {&parts, &touched_at};
                const nq_kernel* kernel = prepare(problem);
                const auto enqueue = [&] {
                    late.enqueue(8, 256, arguments, stream);
                    ok(nq_launch(kernel, &tensors, stream));
                };
                const Graph graph(stream, enqueue);
                const Outputs expected = run_reference(problem, inputs, 0, DeviceTensors::kGarbage);
                for (int repeat = 0; repeat < 4; ++repeat) {
                    device.write();
                    for (const Part& part : parts.written)
                        if (part.words != 0) gpu().check(gpu().cuMemsetD8(part.to, 0x11, 4 * std::size_t{part.words}), "cuMemsetD8");
                    gpu().check(gpu().cuCtxSynchronize(), "uploads");
                    if (repeat % 2 == 0) enqueue();
                    else graph.launch();
                    stream.synchronize();
                    INFO("rows " << rows << " added " << problem.adds() << " constant weight " << constant_weight << " repeat " << repeat);
                    require_equal(device.outputs(), expected);
                    REQUIRE(touched.download() == Bytes(4, 0));
                }
            }
        }
    }
}

TEST_CASE("a chain of norms that overlap: each has the residual and the rows that the one before wrote") {
    constexpr std::size_t kSteps = 24;
    const Stream stream;
    Problem problem = nvfp4(4096, ScaleLayout::swizzled);
    problem.op = Op::add_rmsnorm;
    problem.y_out = problem.overlap = true;
    const nq_kernel* kernel = prepare(problem);
    for (const std::int64_t rows : {1, 8, 300, 5000}) {  // a variant each, and many rows
        const Inputs inputs = many_rows(problem, rows, 3);
        std::vector<Outputs> expected;
        std::vector<std::unique_ptr<DeviceBuffer>> fp4, scales;
        Inputs step = inputs;
        for (std::size_t s = 0; s < kSteps; ++s) {
            expected.push_back(run_reference(problem, step, 0));
            step.x = std::move(expected.back().y_out);
            step.residual = std::move(expected.back().residual);
            fp4.push_back(std::make_unique<DeviceBuffer>(gpu(), fp4_bytes(problem, rows)));
            scales.push_back(std::make_unique<DeviceBuffer>(gpu(), scale_bytes(problem, rows)));
        }
        const DeviceBuffer even(gpu(), inputs.x), odd(gpu(), inputs.x), residual(gpu(), inputs.residual), weight(gpu(), inputs.weight);
        static_assert(kSteps % 2 == 0);  // the last y is in `even`
        const DeviceBuffer global_scale(gpu(), 4);
        if (inputs.global_scale) gpu().check(gpu().driver().cuMemcpyHtoD(global_scale.address(), &*inputs.global_scale, 4), "cuMemcpyHtoD");
        const auto enqueue = [&] {
            for (std::size_t s = 0; s < kSteps; ++s) {
                nq_tensors tensors = NQ_TENSORS_INIT;
                tensors.flags = NQ_TENSORS_CONSTANT_WEIGHT;
                tensors.rows = rows;
                tensors.eps = inputs.eps;
                tensors.x = (s % 2 == 0 ? even : odd).data();
                tensors.y_out = (s % 2 == 0 ? odd : even).data();
                tensors.residual = residual.data();
                tensors.weight = weight.data();
                tensors.global_scale = inputs.global_scale ? static_cast<const float*>(global_scale.data()) : nullptr;
                tensors.fp4 = fp4[s]->data();
                tensors.scales = scales[s]->data();
                ok(nq_launch(kernel, &tensors, stream));
            }
        };
        const Graph graph(stream, enqueue);
        for (int repeat = 0; repeat < 4; ++repeat) {
            even.upload(inputs.x);
            odd.fill(0xff);
            residual.upload(inputs.residual);
            for (std::size_t s = 0; s < kSteps; ++s) fp4[s]->fill(0xab), scales[s]->fill(0xab);
            gpu().check(gpu().cuCtxSynchronize(), "uploads");
            if (repeat % 2 == 0) enqueue();
            else graph.launch();
            stream.synchronize();
            INFO("rows " << rows << " repeat " << repeat);
            for (std::size_t s = 0; s < kSteps; ++s) {
                INFO("step " << s);
                REQUIRE((fp4[s]->download() == expected[s].fp4));
                REQUIRE((scales[s]->download() == expected[s].scales));
            }
            REQUIRE((even.download() == step.x));
            REQUIRE((residual.download() == step.residual));
        }
    }
}

TEST_CASE("a captured launch reads row count, global scale and rows when it is replayed") {
    const Driver& driver = gpu().driver();
    Problem problem = nvfp4(5120, ScaleLayout::both);
    problem.op = Op::add_rmsnorm;
    problem.y_out = true;
    problem.overlap = problem.device_rows = true;
    Inputs inputs = random_inputs(problem, 260, Distribution::normal, 7);
    inputs.device_rows = 0;
    inputs.global_scale = 1.0f;
    const DeviceTensors device(gpu(), problem, inputs);
    const nq_tensors tensors = device.tensors();
    CUstream stream;
    gpu().check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    const nq_kernel* kernel = prepare(problem);
    const auto capture = [&](const nq_tensors& t) {
        gpu().check(gpu().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
        ok(nq_launch(kernel, &t, stream));
        CUgraph graph;
        gpu().check(gpu().cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
        return graph;
    };
    const CUgraph graph = capture(tensors);
    CUgraphExec exec;
    gpu().check(gpu().cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
    for (const std::int32_t rows : {0, 1, 127, 128, 129, 260, 300, -1}) {
        for (const float scale : {1.0f, 37.0f}) {
            inputs.device_rows = rows;
            inputs.global_scale = scale;
            device.write();
            gpu().check(gpu().cuGraphLaunch(exec, stream), "cuGraphLaunch");
            gpu().check(driver.cuStreamSynchronize(stream), "the graph");
            INFO("rows " << rows << " global scale " << scale);
            require_equal(device.outputs(), run_reference(problem, inputs, 0, DeviceTensors::kGarbage));
        }
    }
    // Parameters of the node change: another row bound and eps, without a new instance.
    nq_tensors fewer = tensors;
    fewer.rows = 140;
    fewer.eps = 0.5f;
    const CUgraph changed = capture(fewer);
    CUgraphExecUpdateResultInfo info{};
    gpu().check(gpu().cuGraphExecUpdate(exec, changed, &info), "cuGraphExecUpdate");
    Inputs expected_inputs = inputs;
    expected_inputs.device_rows = 140;
    expected_inputs.eps = 0.5f;
    inputs.device_rows = 200;
    device.write();
    gpu().check(gpu().cuGraphLaunch(exec, stream), "cuGraphLaunch");
    gpu().check(driver.cuStreamSynchronize(stream), "the graph");
    const Outputs got = device.outputs(), expected = run_reference(problem, expected_inputs, 0, DeviceTensors::kGarbage);
    CHECK(got.fp4 == expected.fp4);
    CHECK(got.residual == expected.residual);
    CHECK(got.y_out == expected.y_out);
    CHECK(got.scales_linear == expected.scales_linear);
    gpu().check(gpu().cuGraphExecDestroy(exec), "cuGraphExecDestroy");
    for (const CUgraph g : {graph, changed}) gpu().check(gpu().cuGraphDestroy(g), "cuGraphDestroy");
    gpu().check(driver.cuStreamDestroy(stream), "cuStreamDestroy");
}

TEST_CASE("a graph takes other pointers, other rows and another variant") {
    Problem problem = nvfp4(4096, ScaleLayout::swizzled);
    problem.op = Op::add_rmsnorm;
    problem.y_out = true;
    const nq_kernel* kernel = prepare(problem);
    const Stream stream;
    struct Call {
        Inputs inputs;
        DeviceTensors device;
        Graph graph;
        Call(const Problem& problem, const nq_kernel* kernel, const Stream& stream, std::int64_t rows, std::uint64_t seed)
            : inputs(random_inputs(problem, rows, Distribution::outliers, seed)), device(gpu(), problem, inputs), graph(stream, [&] {
                  const nq_tensors tensors = device.tensors();
                  ok(nq_launch(kernel, &tensors, stream));
              }) {}
    };
    // Many rows, as many elsewhere, a few more; fewer, which take another kernel; and so few that a cluster shares each.
    const std::int64_t rows = limits_of(problem).latency + 1;
    Call many(problem, kernel, stream, rows, 1);
    const Call same(problem, kernel, stream, rows, 2), more(problem, kernel, stream, rows + 100, 3), fewer(problem, kernel, stream, 300, 4),
        few(problem, kernel, stream, 8, 5);
    const auto does = [&](const Call& call) {
        many.device.write();
        call.device.write();
        many.graph.launch();
        require_equal(call.device.outputs(), run_reference(problem, call.inputs, 0, DeviceTensors::kGarbage));
        if (&call != &many) REQUIRE(many.device.outputs().fp4 == Bytes(fp4_bytes(problem, rows), DeviceTensors::kGarbage));
    };
    does(many);
    for (const Call* call : {&same, &more, static_cast<const Call*>(&many)}) {
        many.graph.take_parameters_of(call->graph);
        does(*call);
    }
    for (const Call* call : {&same, &fewer, &more, static_cast<const Call*>(&many)}) {
        REQUIRE(many.graph.update(call->graph));
        does(*call);
    }
    // A driver may refuse to make a launch of clusters of one without; then nothing has changed.
    if (many.graph.update(few.graph)) does(few);
    else does(many);
}

TEST_CASE("a kernel is compiled and loaded by one thread while another captures") {
    const Problem problem = nvfp4(4096), cold = nvfp4(4128);
    const nq_kernel* kernel = prepare(problem);
    const Inputs inputs = random_inputs(problem, 20, Distribution::normal, 4), others = random_inputs(cold, 20, Distribution::normal, 5);
    const DeviceTensors device(gpu(), problem, inputs);
    const nq_tensors tensors = device.tensors();
    const Stream stream;
    nq_status status = NQ_ERR_INTERNAL;
    std::string error;
    nq_kernel* prepared = nullptr;
    const Graph graph(stream, [&] {
        ok(nq_launch(kernel, &tensors, stream));
        std::thread([&] {
            const nq_problem c = problem_to_c(cold);
            nq_prepare_options options = NQ_PREPARE_OPTIONS_INIT;
            if (gpu().cuCtxSetCurrent(gpu().primary()) != CUDA_SUCCESS) return;
            status = nq_prepare(context(), &c, &options, &prepared);
            error = nq_last_error();
        }).join();
        ok(nq_launch(kernel, &tensors, stream));
    });
    INFO(error);
    REQUIRE(status == NQ_OK);
    graph.launch();
    require_equal(device.outputs(), run_reference(problem, inputs, 0, DeviceTensors::kGarbage));
    same_as_reference(cold, others);
}

TEST_CASE("stream capture") {
    const Driver& driver = gpu().driver();
    const Problem problem = nvfp4(4096, ScaleLayout::swizzled), unprepared = nvfp4(4112);
    const Inputs inputs = random_inputs(problem, 200, Distribution::normal, 4);
    nq_kernel* kernel = prepare(problem);
    const DeviceBuffer x(gpu(), inputs.x), weight(gpu(), inputs.weight), fp4(gpu(), fp4_bytes(problem, 200)),
        scales(gpu(), scale_bytes(problem, 200));
    nq_tensors tensors = NQ_TENSORS_INIT;
    tensors.rows = 200;
    tensors.x = x.data();
    tensors.weight = weight.data();
    tensors.fp4 = fp4.data();
    tensors.scales = scales.data();
    Inputs plain = inputs;
    plain.global_scale.reset();
    const Outputs expected = run_reference(problem, plain);

    for (const CUstreamCaptureMode mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED}) {
        CUstream stream;
        gpu().check(driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        gpu().check(gpu().cuStreamBeginCapture(stream, mode), "cuStreamBeginCapture");
        ok(nq_launch(kernel, &tensors, stream));
        const nq_problem missing = problem_to_c(unprepared);
        CHECK(nq_run(context(), &missing, &tensors, stream) == NQ_ERR_NOT_PREPARED);
        tensors.rows = 0;
        ok(nq_launch(kernel, &tensors, stream));
        tensors.rows = 200;
        CUgraph graph;
        gpu().check(gpu().cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
        std::size_t nodes = 0;
        gpu().check(gpu().cuGraphGetNodes(graph, nullptr, &nodes), "cuGraphGetNodes");
        CHECK(nodes == 1);
        CUgraphExec exec;
        gpu().check(gpu().cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiate");
        for (const unsigned poison : {0x7fu, 0xffu}) {
            fp4.fill(static_cast<unsigned char>(poison));
            scales.fill(static_cast<unsigned char>(poison));
            gpu().check(gpu().cuCtxSynchronize(), "fills");  // the stream does not wait for the legacy one
            gpu().check(gpu().cuGraphLaunch(exec, stream), "cuGraphLaunch");
            gpu().check(driver.cuStreamSynchronize(stream), "the graph");
            REQUIRE(fp4.download() == expected.fp4);
            REQUIRE(scales.download() == expected.scales);
        }
        gpu().check(gpu().cuGraphExecDestroy(exec), "cuGraphExecDestroy");
        gpu().check(gpu().cuGraphDestroy(graph), "cuGraphDestroy");
        gpu().check(driver.cuStreamDestroy(stream), "cuStreamDestroy");
    }
}
