#include "emulator/emulate.h"

#include "emulator/block.h"

#include <normquant/rmsnorm_fp4.cuh>
#include <normquant/split.cuh>
#include <normquant/staged.cuh>

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define NQ_ASAN 1
#else
#define NQ_ASAN 0
#endif

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

// `bytes` at an odd multiple of `alignment`: aligned as the kernel may assume and not more. All around lie canaries, which a sanitizer
// guards as well, and soon behind the end a page that may not even be read.
class Buffer {
public:
    Buffer(std::size_t bytes, std::size_t alignment) : bytes_(bytes) {
        const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
        usable_ = (kCanaries + 2 * alignment + bytes + page - 1) / page * page;
        mapped_ = usable_ + page;
        void* memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        memory_ = static_cast<unsigned char*>(memory);
        mprotect(memory_ + usable_, page, PROT_NONE);
        data_ = memory_ + ((usable_ - bytes) / alignment - 1) / 2 * 2 * alignment + alignment;
        std::fill(memory_, data_, kCanary);
        std::fill(data_ + bytes, memory_ + usable_, kCanary);
        poison(memory_, data_);
        poison(data_ + bytes, memory_ + usable_);
    }
    ~Buffer() {
        unpoison();
        munmap(memory_, mapped_);
    }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    unsigned char* data() { return data_; }
    Bytes contents() const { return Bytes(data_, data_ + bytes_); }
    void fill(unsigned char value) { std::fill_n(data_, bytes_, value); }
    // Nothing is guarded after this.
    bool canaries_intact() {
        unpoison();
        const auto intact = [](unsigned char c) { return c == kCanary; };
        return std::all_of(memory_, data_, intact) && std::all_of(data_ + bytes_, memory_ + usable_, intact);
    }

private:
    static constexpr unsigned char kCanary = 0x5a;
    static constexpr std::size_t kCanaries = 64;  // before the data, at least

    static void poison([[maybe_unused]] unsigned char* first, [[maybe_unused]] unsigned char* end) {
#if NQ_ASAN
        __asan_poison_memory_region(first, static_cast<std::size_t>(end - first));
#endif
    }
    void unpoison() {
#if NQ_ASAN
        __asan_unpoison_memory_region(memory_, usable_);
#endif
    }

    std::size_t bytes_, usable_ = 0, mapped_ = 0;
    unsigned char *memory_ = nullptr, *data_ = nullptr;
};

// Rows in a buffer of their own.
class Rows {
public:
    Rows(const char* name, const RowImage& image, std::size_t alignment) : name_(name), image_(image), buffer_(image.bytes(), alignment) {}
    Rows(const char* name, std::size_t bytes, std::size_t alignment) : Rows(name, RowImage(1, bytes, 0), alignment) {}

    const char* name() const { return name_; }
    unsigned char* data() { return buffer_.data(); }
    std::int64_t stride() const { return image_.stride(); }
    std::int64_t batch_stride() const { return image_.batch_stride(); }
    Bytes contents() const { return buffer_.contents(); }
    void set_contents(const Bytes& bytes) { std::copy(bytes.begin(), bytes.end(), data()); }
    void fill(unsigned char value) { buffer_.fill(value); }
    // Of more rows the first.
    void set(const Bytes& rows) {
        const auto end = rows.begin() + static_cast<std::ptrdiff_t>(image_.bytes_without_gaps());
        image_.set(data(), Bytes(rows.begin(), end));
    }
    // Once, when all is done.
    Bytes get(unsigned char gap) {
        if (!buffer_.canaries_intact()) throw std::runtime_error(std::string("memory beside ") + name_ + " was written");
        return image_.get(data(), gap, name_);
    }

private:
    const char* name_;
    RowImage image_;
    Buffer buffer_;
};

// Kernels before this one that end late. For each block anew, what they write comes into being when the block waits for them; until then
// the block may write nothing, as they may still read it.
class Predecessors {
public:
    Predecessors(std::vector<Rows*> written, std::vector<Rows*> others) : tensors_(std::move(written)), written_(tensors_.size()) {
        tensors_.insert(tensors_.end(), others.begin(), others.end());
        there_.resize(tensors_.size());
        before_.resize(tensors_.size());
    }
    void begin_block() {
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            there_[i] = tensors_[i]->contents();
            if (i < written_) tensors_[i]->fill(kUnwritten);
            before_[i] = tensors_[i]->contents();
        }
    }
    void finish() {
        for (std::size_t i = 0; i < tensors_.size(); ++i) {
            if (tensors_[i]->contents() != before_[i])
                throw std::runtime_error(std::string(tensors_[i]->name()) + " was written before the kernels before this one had ended");
            tensors_[i]->set_contents(there_[i]);
        }
    }

private:
    static constexpr unsigned char kUnwritten = 0xff;  // NaN
    std::vector<Rows*> tensors_;
    std::size_t written_;  // the first of them
    std::vector<Bytes> there_, before_;
};

template <class Config>
void run_blocks(const Problem& problem, const Plan& plan, const EmulatedTarget& target, const LaunchShape& shape,
                const normquant::Params& params, Predecessors* predecessors) {
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
    if (predecessors) block.set_predecessors([&] { predecessors->finish(); });
    for (unsigned b = 0; b < shape.blocks; ++b) {
        for (unsigned part = 0; part < (cluster ? 1 : shape.blocks_per_row); ++part) {
            if (predecessors) predecessors->begin_block();
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
                     const normquant::Params& params, Predecessors* predecessors) {
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
    // Of what is behind the device's row count there is no memory.
    const auto live = static_cast<std::size_t>(std::clamp<std::int64_t>(inputs.device_rows.value_or(inputs.rows), 0, inputs.rows));
    const auto bytes = [](std::int64_t elements) { return 2 * static_cast<std::size_t>(elements); };
    const std::size_t row = bytes(problem.hidden), added = problem.adds() ? row : 0, y_row = problem.y_out ? row : 0;
    const std::size_t fp4_row = problem.hidden / 2, linear = problem.linear() ? problem.blocks() : 0;
    const std::size_t residual_gap = bytes(arrangement.residual_gap);

    const auto batch_rows = static_cast<std::size_t>(arrangement.batch_rows), fp4_gap = static_cast<std::size_t>(arrangement.fp4_gap);
    Rows x("x", {live, row, bytes(arrangement.x_gap), batch_rows, bytes(arrangement.batch_gap)}, plan.load_bytes);
    Rows residual("the residual", {live, added, residual_gap}, 16), residual_out("residual_out", {live, added, residual_gap + 16}, 16);
    Rows y_out("y_out", {live, y_row, bytes(arrangement.y_gap)}, 16), fp4("fp4", {live, fp4_row, fp4_gap}, 8);
    Rows scales_linear("linear scales", {live, linear, static_cast<std::size_t>(arrangement.scales_gap)}, 1);
    Rows scales_swizzled("swizzled scales", problem.swizzled() ? scale_bytes(problem, inputs.rows) : 0, 16);
    Rows weight("the weight", inputs.weight.size(), plan.load_bytes);
    Rows global_scale("the global scale", 4, 4), device_rows("device_rows", 4, 4);
    std::vector<Rows*> written = {&x, &residual, &global_scale, &device_rows};  // by kernels before this one
    std::vector<Rows*> others = {&residual_out, &y_out, &fp4, &scales_linear, &scales_swizzled};
    (arrangement.constant_weight ? others : written).push_back(&weight);
    for (Rows* input : {&x, &residual, &weight, &global_scale, &device_rows}) input->fill(kGap);
    for (Rows* output : {&residual_out, &y_out, &fp4, &scales_linear, &scales_swizzled}) output->fill(garbage);

    const auto bytes_of = [](const auto& value) {
        Bytes result(sizeof value);
        std::memcpy(result.data(), &value, sizeof value);
        return result;
    };
    x.set(inputs.x);
    residual.set(inputs.residual);
    weight.set(inputs.weight);
    if (inputs.global_scale) global_scale.set(bytes_of(*inputs.global_scale));
    if (inputs.device_rows) device_rows.set(bytes_of(*inputs.device_rows));
    Predecessors predecessors(written, others);

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
    Predecessors* const late = problem.overlap ? &predecessors : nullptr;
    if (normquant::half_granules(problem.hidden, plan.threads_per_row)) {
        run_with_pieces<8>(problem, plan, target, shape, params, late);
    } else {
        run_with_pieces<16>(problem, plan, target, shape, params, late);
    }

    // An input is as it was.
    const auto unchanged = [&](Rows& input, const Bytes& was) {
        const Bytes now = input.get(kGap);
        if (!std::equal(now.begin(), now.end(), was.begin())) throw std::runtime_error(std::string(input.name()) + " was written");
    };
    unchanged(x, inputs.x);
    unchanged(weight, inputs.weight);
    unchanged(global_scale, inputs.global_scale ? bytes_of(*inputs.global_scale) : Bytes(4, kGap));
    unchanged(device_rows, inputs.device_rows ? bytes_of(*inputs.device_rows) : Bytes(4, kGap));
    if (arrangement.separate_residual) unchanged(residual, inputs.residual);

    const auto output = [&](Rows& tensor, std::size_t all_bytes) {
        Bytes result = tensor.get(garbage);
        result.resize(all_bytes, garbage);
        return result;
    };
    Outputs out;
    out.fp4 = output(fp4, rows * fp4_row);
    out.scales = problem.swizzled() ? scales_swizzled.get(garbage) : output(scales_linear, rows * linear);
    if (problem.scale_layout == ScaleLayout::both) out.scales_linear = output(scales_linear, rows * linear);
    if (arrangement.separate_residual) {
        out.residual = output(residual_out, rows * added);
    } else {
        out.residual = residual.get(kGap);
        const auto rest = inputs.residual.begin() + static_cast<std::ptrdiff_t>(out.residual.size());
        out.residual.insert(out.residual.end(), rest, inputs.residual.end());
    }
    out.y_out = output(y_out, rows * y_row);
    return out;
}

}  // namespace nq::test
