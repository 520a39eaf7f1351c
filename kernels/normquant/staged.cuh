// The form for many rows: a block stays on its SM, and groups of its threads take row after row. A row comes by bulk copy into the
// group's buffer in shared memory; as soon as every thread has weighed its part, in registers, the next row is on its way, and flies
// while this one is quantized. The weight lies in shared memory as it is: the reads, not its unpacking, are what is scarce.
//
// Config has besides: row_groups, the most that a block may have.
#pragma once

#include <normquant/rmsnorm_fp4.cuh>

namespace normquant {

template <class Config, class Block>
NQ_DEVICE void rmsnorm_fp4_staged(const Config& config, const Block& block, const Params& params) {
    constexpr u32 kElements = Config::kElements;
    const u32 threads = config.threads_per_row, members = group_threads(threads), warps = members / 32;
    const u32 weight_size = config.weight_dtype == kFp32 ? 4 : 2, chunks = weight_size;  // 16-byte chunks of a granule's weights
    const StagedLayout layout(config.hidden, threads, config.row_groups, weight_size, sizeof(CopyBarrier));
    const u32 groups = block.threads() / members, group = block.thread() / members, member = block.thread() % members;
    const u32 thread = member % threads, row_of_group = member / threads;
    const Walk<Config> walk(config, thread);

    unsigned char* shared = block.shared();
    unsigned char* buffer = shared + layout.weight_bytes + group * layout.group_rows * layout.row_bytes;
    float* sums = reinterpret_cast<float*>(shared + layout.sums) + group * 2 * warps;
    CopyBarrier& arrival = reinterpret_cast<CopyBarrier*>(shared + layout.barriers)[group];
    // Chunk c of piece i of thread t lies at ((chunks * i + c) * threads + t) * 16: neighbours read neighbours.
    const auto weight_at = [&](u32 piece, u32 chunk) { return shared + ((chunks * piece + chunk) * threads + thread) * 16; };

    // 32 bits: no memory holds 2^31 rows that are wide enough for this form.
    const u32 all_rows = static_cast<u32>(params.rows), step = block.blocks() * groups * layout.group_rows;
    u32 first = (block.index() * groups + group) * layout.group_rows;  // of the group's rows
    const auto start_copy = [&](u32 row) {
        if (member != 0 || row >= all_rows) return;
        const u32 rows = all_rows - row < layout.group_rows ? all_rows - row : layout.group_rows;
        arrival.expect(rows * layout.row_bytes);
        for (u32 r = 0; r < rows; ++r) {
            arrival.copy(buffer + r * layout.row_bytes, byte_offset(params.x, 2 * (static_cast<i64>(row) + r) * params.x_stride), layout.row_bytes);
        }
    };
    if (member == 0) {
        arrival.init();
        CopyBarrier::publish();
    }
    start_copy(first);

    const float global_scale = global_scale_of(config, params);
    walk.each_piece(config, [&](u32 piece, u32, u32 element, bool exists) {
        if (piece % groups != group || row_of_group != 0) return;
        u32 w[kElements];
        load_weight(config, w, params.weight, element, exists);
        NQ_UNROLL
        for (u32 c = 0; c < chunks; ++c) store_shared_128(weight_at(piece, c), w + 4 * c);
    });
    block.barrier();

    for (u32 parity = 0; first < all_rows; first += step, parity ^= 1) {
        const u32 row = first + row_of_group;
        const bool live = layout.group_rows == 1 || row < all_rows;
        block.wait_until([&] { return arrival.has_passed(parity); });

        float p[Config::kPieces][kElements], largest[Config::kPieces] = {};
        Lane lanes[Config::kLanes];
        walk.each_piece(config, [&](u32 piece, u32 slot, u32 element, bool exists) {
            u32 x[kElements / 2], w[kElements];
            NQ_UNROLL
            for (u32 i = 0; i < kElements / 2; ++i) x[i] = 0;
            if (exists) {
                const unsigned char* at = buffer + row_of_group * layout.row_bytes + 2 * element;
                load_shared_128(x, at);
                load_shared_128(x + 4, at + 16);
            }
            NQ_UNROLL
            for (u32 c = 0; c < chunks; ++c) load_shared_128(w + 4 * c, weight_at(piece, c));
            NQ_UNROLL
            for (u32 v = 0; v < kElements / 8; ++v) lanes[slot * (kElements / 8) + v].accumulate(config.dtype, x + 4 * v);
            largest[piece] = weigh(config, block, p[piece], x, w);
        });
        // The sums of two rows alternate: a warp that is ahead must not overwrite what one behind has yet to read.
        const auto group_barrier = [&] { block.barrier(group + 1, members); };
        const float sum = row_sum(config, block, lane_sum(config, lanes), sums + parity * warps, group_barrier);
        if (threads <= 32) group_barrier();
        start_copy(first + step);

        const RowOutput output = row_output(config, params, row, sum, global_scale);
        u32 byte[Config::kPieces] = {};
        float k[Config::kPieces] = {};
        find_scales<Config::kPieces>(config, output, largest, p, byte, k, [&](u32 i) { return live && walk.piece_exists(config, i); });
        walk.each_piece(config, [&](u32 piece, u32, u32 element, bool exists) {
            write_piece(config, output, p[piece], byte[piece], k[piece], element, live && exists);
        });
        if (config.swizzled && params.zero_padding) zero_scale_padding(config, params, row, thread);
    }
    // Rows of padding: the group goes on where its rows ended.
    if (config.swizzled && params.zero_padding) {
        const u32 padded = static_cast<u32>(padded_rows(all_rows));
        for (; first < padded; first += step) zero_scale_padding(config, params, first + row_of_group, thread);
    }
}

}  // namespace normquant
