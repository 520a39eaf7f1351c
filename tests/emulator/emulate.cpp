#include "emulator/emulate.h"

#include "emulator/block.h"

#include <normquant/rmsnorm_fp4.cuh>
#include <normquant/split.cuh>
#include <normquant/staged.cuh>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
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
    bool swizzled, linear, add, weight_bias, y_out, device_rows, batches;
    normquant::u32 tree, rounds, slots, turns, block32_partner;
    bool in_registers;
    normquant::u32 threads_per_row, rows_per_block, load_bytes, cluster, row_groups, row_buffers, fp4_path;
    bool native_e4m3, packed_f32, copy_to_cta, overlap, hold_products;
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

// Rows in a buffer of their own.
class Rows {
public:
    Rows(const RowImage& image, std::size_t alignment) : image_(image), buffer_(image.bytes(), alignment) {}
    Rows(std::size_t bytes, std::size_t alignment) : Rows(RowImage(1, bytes, 0), alignment) {}

    unsigned char* data() { return buffer_.data(); }
    std::int64_t stride() const { return image_.stride(); }
    std::int64_t batch_stride() const { return image_.batch_stride(); }
    void fill(unsigned char value) { buffer_.fill(value); }
    void set(const Bytes& rows) { image_.set(data(), rows); }
    Bytes get(unsigned char gap, const char* name) { return image_.get(data(), gap, name); }

private:
    RowImage image_;
    Buffer buffer_;
};

template <class Config>
void run_blocks(const Problem& problem, const Plan& plan, const EmulatedTarget& target, const LaunchShape& shape,
                const normquant::Params& params, const std::function<void()>& predecessors) {
    const bool products = plan.form == Form::staged ||
                          (plan.form == Form::plain && normquant::products_in_registers(problem.hidden, plan.threads_per_row));
    const Config config = {.hidden = problem.hidden,
                           .dtype = static_cast<normquant::u32>(problem.dtype),
                           .weight_dtype = static_cast<normquant::u32>(problem.weight_dtype),
                           .block_size = problem.block_size,
                           .scale_format = static_cast<normquant::u32>(problem.scale_format),
                           .swizzled = problem.swizzled(),
                           .linear = problem.linear(),
                           .add = problem.adds(),
                           .weight_bias = problem.weight_bias_one,
                           .y_out = problem.y_out,
                           .device_rows = problem.device_rows,
                           .batches = problem.batches,
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
                           .overlap = predecessors != nullptr,
                           .hold_products = products};
    const std::uint32_t weight_size = problem.weight_dtype == DType::fp32 ? 4 : 2;
    const std::size_t shared = plan.form != Form::staged
                                   ? 0
                                   : normquant::StagedLayout(problem.hidden, plan.threads_per_row, Config::kPieces, plan.row_groups,
                                                             plan.row_buffers, weight_size, problem.adds() ? 2 : 1,
                                                             sizeof(normquant::ArrivalBarrier))
                                         .bytes;
    const bool cluster = plan.cluster > 1;
    EmulatedBlock block(shape.block_threads, {shape.blocks, shape.blocks_per_row, cluster}, shared);
    block.set_predecessors(predecessors);
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
                     const normquant::Params& params, const std::function<void()>& predecessors) {
    const auto run = [&]<normquant::u32 kPieces>() {
        if (plan.vector == 16) return run_blocks<EmulatedConfig<kElements, kPieces, 16>>(problem, plan, target, shape, params, predecessors);
        run_blocks<EmulatedConfig<kElements, kPieces>>(problem, plan, target, shape, params, predecessors);
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
                const Arrangement& arrangement) {
    constexpr unsigned char kGap = 0xff;  // of inputs: NaN
    const auto rows = static_cast<std::size_t>(inputs.rows);
    const auto bytes = [](std::int64_t elements) { return 2 * static_cast<std::size_t>(elements); };
    const std::size_t row = bytes(problem.hidden), added = problem.adds() ? row : 0, y_row = problem.y_out ? row : 0;
    const std::size_t linear = problem.linear() ? problem.blocks() : 0;

    Rows x({rows, row, bytes(arrangement.x_gap), static_cast<std::size_t>(arrangement.batch_rows), bytes(arrangement.batch_gap)}, plan.load_bytes);
    Rows residual({rows, added, bytes(arrangement.residual_gap)}, 16), residual_out({rows, added, bytes(arrangement.residual_gap) + 16}, 16);
    Rows y_out({rows, y_row, bytes(arrangement.y_gap)}, 16), fp4({rows, problem.hidden / 2, static_cast<std::size_t>(arrangement.fp4_gap)}, 8);
    Rows scales_linear({rows, linear, static_cast<std::size_t>(arrangement.scales_gap)}, 1);
    Rows scales_swizzled(problem.swizzled() ? scale_bytes(problem, inputs.rows) : 0, 16);
    Rows weight(inputs.weight.size(), plan.load_bytes), global_scale(4, 4), device_rows(4, 4);
    for (Rows* input : {&x, &residual, &weight, &global_scale, &device_rows}) input->fill(kGap);
    for (Rows* output : {&residual_out, &y_out, &fp4, &scales_linear, &scales_swizzled}) output->fill(garbage);

    const auto bytes_of = [](const auto& value) {
        Bytes result(sizeof value);
        std::memcpy(result.data(), &value, sizeof value);
        return result;
    };
    const auto predecessors = [&] {
        x.set(inputs.x);
        residual.set(inputs.residual);
        weight.set(inputs.weight);
        if (inputs.global_scale) global_scale.set(bytes_of(*inputs.global_scale));
        if (inputs.device_rows) device_rows.set(bytes_of(*inputs.device_rows));
    };
    if (arrangement.constant_weight) weight.set(inputs.weight);
    if (!problem.overlap) predecessors();

    Rows& sum = arrangement.separate_residual ? residual_out : residual;
    normquant::Params params{};
    params.x = x.data();
    params.weight = weight.data();
    params.global_scale = inputs.global_scale ? reinterpret_cast<const float*>(global_scale.data()) : nullptr;
    params.device_rows = inputs.device_rows ? reinterpret_cast<const int*>(device_rows.data()) : nullptr;
    params.fp4 = fp4.data();
    params.scale_swizzled = problem.swizzled() ? scales_swizzled.data() : nullptr;
    params.scale_linear = problem.linear() ? scales_linear.data() : nullptr;
    params.residual = problem.adds() ? residual.data() : nullptr;
    params.residual_out = problem.adds() ? sum.data() : nullptr;
    params.y_out = problem.y_out ? y_out.data() : nullptr;
    params.x_stride = x.stride() / 2;
    params.x_batch_stride = x.batch_stride() / 2;
    params.residual_stride = residual.stride() / 2;
    params.residual_out_stride = sum.stride() / 2;
    params.y_out_stride = y_out.stride() / 2;
    params.fp4_stride = fp4.stride();
    params.scale_stride = scales_linear.stride();
    params.rows = static_cast<normquant::u32>(inputs.rows);
    params.batch_rows = static_cast<normquant::u32>(arrangement.batch_rows);
    params.eps = inputs.eps;
    params.zero_padding = !arrangement.keep_padding;
    params.constant_weight = arrangement.constant_weight;

    const LaunchShape shape = launch_shape(plan, problem, {inputs.rows, inputs.device_rows.has_value(), !arrangement.keep_padding}, kMultiprocessors);
    const std::function<void()> finish = problem.overlap ? std::function<void()>(predecessors) : nullptr;
    if (normquant::half_granules(problem.hidden, plan.threads_per_row)) {
        run_with_pieces<8>(problem, plan, target, shape, params, finish);
    } else {
        run_with_pieces<16>(problem, plan, target, shape, params, finish);
    }

    if (x.get(kGap, "x") != inputs.x || weight.get(kGap, "the weight") != inputs.weight) throw std::runtime_error("an input was written");
    if (arrangement.separate_residual && residual.get(kGap, "the residual") != inputs.residual) throw std::runtime_error("the residual was written");
    Outputs out;
    out.fp4 = fp4.get(garbage, "fp4");
    out.scales = problem.swizzled() ? scales_swizzled.get(garbage, "scales") : scales_linear.get(garbage, "scales");
    if (problem.scale_layout == ScaleLayout::both) out.scales_linear = scales_linear.get(garbage, "scales_linear");
    out.residual = sum.get(arrangement.separate_residual ? garbage : kGap, "the residual");
    out.y_out = y_out.get(garbage, "y_out");
    return out;
}

}  // namespace nq::test
