#include "emulator/emulate.h"

#include "emulator/block.h"

#include <normquant/rmsnorm_fp4.cuh>
#include <normquant/split.cuh>
#include <normquant/staged.cuh>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>

namespace nq::test {
namespace {

// Config of rmsnorm_fp4.cuh as a run-time object: one instantiation serves every problem, plan and target.
// kMostPieces: exactly those that the kernel holds at a time, as loops over all of them depend on it.
template <normquant::u32 kElementsOfPiece, normquant::u32 kMostPieces, normquant::u32 kElementsOfVector = 8>
struct EmulatedConfig {
    normquant::u32 hidden, dtype, weight_dtype, block_size, scale_format;
    bool swizzled;
    normquant::u32 tree, rounds, slots, turns, block32_partner;
    bool in_registers;
    normquant::u32 threads_per_row, rows_per_block, load_bytes, cluster, row_groups, row_buffers, fp4_path;
    bool native_e4m3, packed_f32, copy_to_cta, hold_products;
    static constexpr normquant::u32 kElements = kElementsOfPiece, kPieces = kMostPieces, kProducts = kMostPieces, kLanes = 8;
    static constexpr normquant::u32 kVector = kElementsOfVector;
};

// Exactly `bytes` up to the allocation's end, at an odd multiple of `alignment`: aligned as the kernel may assume and not more.
class Buffer {
public:
    Buffer(std::size_t bytes, std::size_t alignment) : alignment_(alignment), bytes_(bytes) {
        void* memory = nullptr;
        if (posix_memalign(&memory, std::max(2 * alignment, sizeof(void*)), alignment + bytes) != 0) throw std::bad_alloc();
        memory_.reset(static_cast<unsigned char*>(memory));
    }
    unsigned char* data() { return memory_.get() + alignment_; }
    void fill(unsigned char value) { std::memset(data(), value, bytes_); }

private:
    struct Free {
        void operator()(unsigned char* p) const { std::free(p); }
    };
    std::unique_ptr<unsigned char, Free> memory_;
    std::size_t alignment_, bytes_;
};

constexpr std::uint32_t kMultiprocessors = 2;  // few, so that a staged block takes several turns

template <class Config>
void run_blocks(const Problem& problem, const Plan& plan, const EmulatedTarget& target, const LaunchShape& shape,
                const normquant::Params& params) {
    const bool products = plan.form == Form::staged ||
                          (plan.form == Form::plain && normquant::products_in_registers(problem.hidden, plan.threads_per_row));
    const Config config = {.hidden = problem.hidden,
                           .dtype = static_cast<normquant::u32>(problem.dtype),
                           .weight_dtype = static_cast<normquant::u32>(problem.weight_dtype),
                           .block_size = problem.block_size,
                           .scale_format = static_cast<normquant::u32>(problem.scale_format),
                           .swizzled = problem.scale_layout == ScaleLayout::swizzled,
                           .tree = normquant::tree_threads(problem.hidden),
                           .rounds = normquant::column_rounds(problem.hidden),
                           .slots = normquant::slots_per_thread(problem.hidden, plan.threads_per_row),
                           .turns = normquant::turns(problem.hidden),
                           .block32_partner = normquant::block32_partner(problem.hidden, plan.threads_per_row),
                           .in_registers = normquant::row_in_registers(problem.hidden, plan.threads_per_row),
                           .threads_per_row = plan.threads_per_row,
                           .rows_per_block = plan.rows_per_block(),
                           .load_bytes = plan.load_bytes,
                           .cluster = plan.cluster,
                           .row_groups = plan.row_groups,
                           .row_buffers = plan.row_buffers,
                           .fp4_path = target.fp4_path,
                           .native_e4m3 = target.native_e4m3,
                           .packed_f32 = target.packed_f32,
                           .copy_to_cta = false,
                           .hold_products = products};
    const std::uint32_t weight_size = problem.weight_dtype == DType::fp32 ? 4 : 2;
    const std::size_t shared = plan.form != Form::staged
                                   ? 0
                                   : normquant::StagedLayout(problem.hidden, plan.threads_per_row, Config::kPieces, plan.row_groups,
                                                             plan.row_buffers, weight_size, sizeof(normquant::ArrivalBarrier))
                                         .bytes;
    const bool cluster = plan.cluster > 1;
    EmulatedBlock block(shape.block_threads, {shape.blocks, shape.blocks_per_row, cluster}, shared);
    for (unsigned b = 0; b < shape.blocks; ++b) {
        for (unsigned part = 0; part < (cluster ? 1 : shape.blocks_per_row); ++part) {
            block.run(b, part, [&](const EmulatedBlock::View& view) {
                if (plan.form == Form::split) return normquant::rmsnorm_fp4_split(config, view, params);
                if constexpr (Config::kVector == 8) {  // vectors of 16 belong to the split form alone
                    if constexpr (Config::kElements == 16) {
                        if (plan.form == Form::staged) return normquant::rmsnorm_fp4_staged(config, view, params);
                    }
                    normquant::rmsnorm_fp4(config, view, params);
                }
            });
        }
    }
}

template <normquant::u32 kElements>
void run_with_pieces(const Problem& problem, const Plan& plan, const EmulatedTarget& target, const LaunchShape& shape,
                     const normquant::Params& params) {
    const auto run = [&]<normquant::u32 kPieces>() {
        if (plan.vector == 16) return run_blocks<EmulatedConfig<kElements, kPieces, 16>>(problem, plan, target, shape, params);
        run_blocks<EmulatedConfig<kElements, kPieces>>(problem, plan, target, shape, params);
    };
    const bool held = plan.form == Form::staged || normquant::row_in_registers(problem.hidden, plan.threads_per_row);
    switch (held ? normquant::granules_per_thread(problem.hidden, plan.threads_per_row) : 1) {
        case 1: return run.template operator()<1>();
        case 2: return run.template operator()<2>();
        case 3: return run.template operator()<3>();
        case 4: return run.template operator()<4>();
        case 5: return run.template operator()<5>();
        case 6: return run.template operator()<6>();
        case 7: return run.template operator()<7>();
        case 8: return run.template operator()<8>();
        default: throw std::logic_error("more pieces than a thread holds");
    }
}

}  // namespace

Outputs emulate(const Problem& problem, const Plan& plan, const EmulatedTarget& target, const Inputs& inputs, unsigned char garbage,
                Gaps gaps, bool keep_padding) {
    const auto rows = static_cast<std::size_t>(inputs.rows);
    const std::size_t row_bytes = 2 * std::size_t{problem.hidden}, fp4_bytes_row = problem.hidden / 2;
    const std::size_t x_stride = row_bytes + 2 * static_cast<std::size_t>(gaps.x);
    const std::size_t fp4_stride = fp4_bytes_row + static_cast<std::size_t>(gaps.fp4);
    const auto span = [&](std::size_t stride, std::size_t last) { return rows == 0 ? 0 : (rows - 1) * stride + last; };

    Buffer x(span(x_stride, row_bytes), plan.load_bytes), weight(inputs.weight.size(), plan.load_bytes);
    Buffer fp4(span(fp4_stride, fp4_bytes_row), 8), scales(scale_bytes(problem, inputs.rows), problem.scale_layout == ScaleLayout::swizzled ? 16 : 1);
    Buffer global_scale(4, 4);
    x.fill(0xff);  // NaN in the gaps
    for (std::size_t r = 0; r < rows; ++r) std::memcpy(x.data() + r * x_stride, inputs.x.data() + r * row_bytes, row_bytes);
    std::memcpy(weight.data(), inputs.weight.data(), inputs.weight.size());
    if (inputs.global_scale) std::memcpy(global_scale.data(), &*inputs.global_scale, 4);
    fp4.fill(garbage);
    scales.fill(garbage);

    normquant::Params params{};
    params.x = x.data();
    params.weight = weight.data();
    params.global_scale = inputs.global_scale ? reinterpret_cast<const float*>(global_scale.data()) : nullptr;
    params.fp4 = fp4.data();
    params.scale = scales.data();
    params.x_stride = static_cast<normquant::i64>(x_stride / 2);
    params.fp4_stride = static_cast<normquant::i64>(fp4_stride);
    params.rows = inputs.rows;
    params.eps = inputs.eps;
    params.zero_padding = !keep_padding;

    const LaunchShape shape = launch_shape(plan, problem, inputs.rows, !keep_padding, kMultiprocessors);
    if (normquant::half_granules(problem.hidden, plan.threads_per_row)) {
        run_with_pieces<8>(problem, plan, target, shape, params);
    } else {
        run_with_pieces<16>(problem, plan, target, shape, params);
    }

    Outputs out;
    for (std::size_t r = 0; r < rows; ++r) {
        const unsigned char* row = fp4.data() + r * fp4_stride;
        out.fp4.insert(out.fp4.end(), row, row + fp4_bytes_row);
        for (std::size_t i = fp4_bytes_row; r + 1 < rows && i < fp4_stride; ++i) {
            if (row[i] != garbage) throw std::runtime_error("the gap behind FP4 row " + std::to_string(r) + " was written");
        }
    }
    out.scales.assign(scales.data(), scales.data() + scale_bytes(problem, inputs.rows));
    return out;
}

}  // namespace nq::test
