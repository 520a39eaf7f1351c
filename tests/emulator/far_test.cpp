// Rows and batches that lie 2^31 elements and more apart. Of their memory only the pages of the rows exist: whatever else is touched
// is a fault.
#include "emulator/emulate.h"

#include "support/catch.h"
#include "support/random_inputs.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

using namespace nq;
using namespace nq::test;

namespace {

constexpr std::size_t kRows = 4;

class FarRows {
public:
    // The rows begin at these bytes.
    FarRows(std::vector<std::size_t> offsets, std::size_t row_bytes) : offsets_(std::move(offsets)), row_bytes_(row_bytes) {
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        mapped_ = (offsets_.back() + row_bytes) / page * page + page;
        void* memory = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        memory_ = static_cast<unsigned char*>(memory);
        for (const std::size_t at : offsets_) {
            const std::size_t first = at / page * page, end = (at + row_bytes) / page * page + page;
            if (mprotect(memory_ + first, end - first, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
        }
    }
    FarRows(std::int64_t stride_bytes, std::size_t row_bytes) : FarRows(every(static_cast<std::size_t>(stride_bytes)), row_bytes) {}
    ~FarRows() { munmap(memory_, mapped_); }
    FarRows(const FarRows&) = delete;
    FarRows& operator=(const FarRows&) = delete;

    unsigned char* data() { return memory_; }
    void set(const Bytes& rows) {
        for (std::size_t r = 0; r < kRows; ++r) std::memcpy(memory_ + offsets_[r], &rows[r * row_bytes_], row_bytes_);
    }
    Bytes get() const {
        Bytes rows;
        for (const std::size_t at : offsets_) rows.insert(rows.end(), memory_ + at, memory_ + at + row_bytes_);
        return rows;
    }

private:
    static std::vector<std::size_t> every(std::size_t stride) { return {0, stride, 2 * stride, 3 * stride}; }

    std::vector<std::size_t> offsets_;
    std::size_t row_bytes_, mapped_ = 0;
    unsigned char* memory_ = nullptr;
};

// Batches are of two rows each, which lie side by side.
void check(const Problem& problem, const Plan& plan) {
    constexpr std::int64_t kFar = std::int64_t{1} << 31;
    const Inputs inputs = random_inputs(problem, kRows, Distribution::outliers, 3);
    const std::size_t row = 2 * std::size_t{problem.hidden};
    normquant::Params params{};
    params.x_stride = problem.batches ? problem.hidden : kFar + 16;
    params.batch_rows = problem.batches ? 2 : 0;
    params.x_batch_stride = problem.batches ? 2 * kFar + 32 : 0;  // of the only batch that it moves
    params.residual_stride = kFar + 8;
    params.residual_out_stride = kFar + 24;
    params.y_out_stride = kFar + 40;
    params.fp4_stride = kFar + 8;
    params.scale_stride = kFar + 3;

    const auto second = static_cast<std::size_t>(2 * params.x_batch_stride);
    FarRows x = problem.batches ? FarRows({0, row, second, second + row}, row) : FarRows(2 * params.x_stride, row);
    FarRows residual(2 * params.residual_stride, row), residual_out(2 * params.residual_out_stride, row);
    FarRows y_out(2 * params.y_out_stride, row);
    FarRows fp4(params.fp4_stride, problem.hidden / 2), scales(params.scale_stride, problem.blocks());
    x.set(inputs.x);
    if (problem.adds()) residual.set(inputs.residual);
    struct alignas(32) Aligned {
        unsigned char bytes[32];
    };
    std::vector<Aligned> weight(inputs.weight.size() / sizeof(Aligned));
    std::memcpy(weight.data(), inputs.weight.data(), inputs.weight.size());
    const float global_scale = inputs.global_scale.value_or(1.0f);

    params.x = x.data();
    params.weight = weight.data();
    params.global_scale = inputs.global_scale ? &global_scale : nullptr;
    params.rows = kRows;
    params.eps = inputs.eps;
    params.fp4 = fp4.data();
    params.scale_linear = scales.data();
    params.residual = problem.adds() ? residual.data() : nullptr;
    params.residual_out = problem.adds() ? residual_out.data() : nullptr;
    params.y_out = y_out.data();
    INFO(canonical_text(problem) << " | " << canonical_text(plan));
    emulate(problem, plan, {}, params);

    const Outputs expected = run_reference(problem, inputs);
    CHECK((fp4.get() == expected.fp4));
    CHECK((scales.get() == expected.scales));
    CHECK((y_out.get() == expected.y_out));
    if (problem.adds()) CHECK((residual_out.get() == expected.residual));
}

}  // namespace

TEST_CASE("rows and batches 2^31 elements apart, in every form") {
    std::set<std::string> forms;
    for (const Op op : {Op::rmsnorm, Op::add_rmsnorm}) {
        for (const bool batches : {false, true}) {
            Problem problem;
            problem.hidden = 4096;
            problem.op = op;
            problem.batches = batches;
            problem.y_out = true;
            std::set<std::string> seen;
            for (const char* arch : {"sm_80", "sm_90", "sm_100f"}) {
                std::vector<Plan> plans = plans_for(problem, *parse_arch(arch));
                const PlanOverride wide{.threads_per_row = 64, .variant = Variant::throughput_32b};
                if (const auto plan = plan_of(problem, *parse_arch(arch), wide)) plans.push_back(*plan);
                for (const Plan& plan : plans) {
                    if (seen.insert(canonical_text(plan)).second) check(problem, plan);
                    const char* form = plan.form == Form::staged ? " staged" : plan.cluster > 1 ? " cluster" : "";
                    forms.insert(name(plan.variant) + std::string(form));
                }
            }
        }
    }
    CHECK(forms == std::set<std::string>{"latency", "latency_32b", "split", "split cluster", "throughput", "throughput staged",
                                         "throughput_32b"});
}
