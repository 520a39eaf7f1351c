// The form for many rows: a block stays on its SM, and groups of its threads take row after row. A row comes by bulk copy into a buffer
// of the group in shared memory, and from there, weighted, into registers. The next one is under way as soon as a buffer is free: with
// one, while this row is quantized; with two, from when this row is there. The weight lies in shared memory as it is: the reads, not
// its unpacking, are what is scarce.
#pragma once

#include <normquant/input.cuh>
#include <normquant/output.cuh>

namespace normquant {

// Which rows a group takes, turn by turn; its threads take `group_rows` at a time, each a slot of its own. In a swizzled buffer the
// scales of the rows r, r+32, r+64, r+96 of a tile lie side by side: a slot takes these four one after the other, and writes their
// scales together. The rows that do not fill a turn of fours for every slot are dealt out one by one.
struct RowOrder {
    u32 all_rows, slots, full, fours_turns;  // full: rows in whole tiles

    NQ_DEVICE RowOrder(u32 rows, u32 all_slots, bool fours)
        : all_rows(rows), slots(all_slots), full(fours ? rows / kTileRows * kTileRows : 0), fours_turns(full / 4 / all_slots * 4) {}

    NQ_DEVICE bool in_four(u32 turn) const { return turn < fours_turns; }
    // Its place in the order of fours; from all_rows on there is no row.
    NQ_DEVICE u32 place(u32 turn, u32 slot) const {
        return in_four(turn) ? (turn / 4 * slots + slot) * 4 + turn % 4 : turn * slots + slot;
    }
    NQ_DEVICE u32 row(u32 place) const {
        return place < full ? place / kTileRows * kTileRows + place % kTileRows / 4 + place % 4 * 32 : place;
    }
};

// Four lanes, at `distance` from each other, each with a word of four bytes: byte i of lane j becomes byte j of lane i.
template <class Block>
NQ_DEVICE u32 transpose_bytes(const Block& block, u32 word, u32 lane, u32 distance) {
    const u32 near = block.shuffle_xor(word, distance);
    word = lane & distance ? permute_bytes<0x3715>(word, near) : permute_bytes<0x6240>(word, near);
    const u32 far = block.shuffle_xor(word, 2 * distance);
    return lane & 2 * distance ? permute_bytes<0x3276>(word, far) : permute_bytes<0x5410>(word, far);
}

template <class Config, class Block>
NQ_DEVICE void rmsnorm_fp4_staged(const Config& config, const Block& block, const Params& params) {
    constexpr u32 kElements = Config::kElements;
    const u32 threads = config.threads_per_row, members = group_threads(threads), warps = members / 32;
    const u32 weight_size = config.weight_dtype == kFp32 ? 4 : 2, chunks = weight_size;  // 16-byte chunks of a granule's weights
    const StagedLayout layout(config.hidden, threads, Config::kPieces, config.row_groups, config.row_buffers, weight_size, config.add ? 2 : 1,
                              sizeof(ArrivalBarrier));
    const u32 groups = block.threads() / members, group = block.thread() / members, member = block.thread() % members;
    const u32 thread = member % threads, row_of_group = member / threads;
    const Walk<Config> walk(config, thread);

    unsigned char* shared = block.shared();
    unsigned char* buffers = shared + layout.weight_bytes + group * config.row_buffers * layout.buffer_bytes;
    float* sums = reinterpret_cast<float*>(shared + layout.sums) + group * 2 * warps;
    ArrivalBarrier* arrivals = reinterpret_cast<ArrivalBarrier*>(shared + layout.barriers) + group * config.row_buffers;
    // Chunk c of piece i of thread t lies at ((chunks * i + c) * threads + t) * 16: neighbours read neighbours.
    const auto weight_at = [&](u32 piece, u32 chunk) { return shared + ((chunks * piece + chunk) * threads + thread) * 16; };

    wait_for_inputs(config, block, params);
    const u32 all_rows = rows_of(config, params), blocks = blocks_of_row(config);
    // Rows of less than a warp come in one copy where they lie one behind the other, which is worth more.
    const bool fours = config.swizzled && threads >= 32 && blocks % kTileBlocks == 0;
    const bool adjacent = layout.group_rows > 1 && !fours && !in_batches(config, params) && params.x_stride == config.hidden &&
                          (!config.add || params.residual_stride == config.hidden);
    const u32 first_slot = (block.index() * groups + group) * layout.group_rows;
    const RowOrder order(all_rows, block.blocks() * groups * layout.group_rows, fours);
    const auto start_copy = [&](u32 turn, u32 buffer) {
        if (member != 0) return;
        u32 rows = 0;
        while (rows < layout.group_rows && order.place(turn, first_slot + rows) < all_rows) ++rows;
        if (rows == 0) return;
        arrivals[buffer].expect((config.add ? 2 : 1) * rows * layout.row_bytes);
        unsigned char* to = buffers + buffer * layout.buffer_bytes;
        if (adjacent) {
            const i64 from = static_cast<i64>(order.place(turn, first_slot)) * layout.row_bytes;
            arrivals[buffer].copy(config, to, byte_offset(params.x, from), rows * layout.row_bytes);
            if (config.add) arrivals[buffer].copy(config, to + layout.residual, byte_offset(params.residual, from), rows * layout.row_bytes);
            return;
        }
        for (u32 r = 0; r < rows; ++r, to += layout.row_bytes) {
            const RowInput from(config, params, order.row(order.place(turn, first_slot + r)));
            arrivals[buffer].copy(config, to, from.x, layout.row_bytes);
            if (config.add) arrivals[buffer].copy(config, to + layout.residual, from.residual, layout.row_bytes);
        }
    };
    if (member == 0) {
        for (u32 b = 0; b < config.row_buffers; ++b) arrivals[b].init();
        ArrivalBarrier::publish();
    }
    start_copy(0, 0);
    if (config.overlap) block.release_dependents();

    const float global_scale = global_scale_of(config, params);
    walk.each_piece(config, [&](u32 piece, u32, u32 element, bool exists) {
        if (piece % groups != group || row_of_group != 0) return;
        u32 w[kElements];
        load_weight<kElements>(config, w, params.weight, element, exists);
        NQ_UNROLL
        for (u32 c = 0; c < chunks; ++c) store_shared_128(weight_at(piece, c), w + 4 * c);
    });
    block.barrier();

    u32 scales[Config::kPieces] = {};  // of a four of rows, the first in the lowest byte
    for (u32 turn = 0, buffer = 0, parity = 0; order.place(turn, first_slot) < all_rows; ++turn) {
        const u32 place = order.place(turn, first_slot + row_of_group), row = order.row(place);
        const bool live = layout.group_rows == 1 || place < all_rows;
        block.wait_until([&] { return arrivals[buffer].has_passed(parity); });

        if (config.row_buffers > 1) start_copy(turn + 1, buffer ^ 1);

        const RowInput input(config, params, row);
        const unsigned char* row_buffer = buffers + buffer * layout.buffer_bytes + row_of_group * layout.row_bytes;
        float p[Config::kPieces][kElements], largest[Config::kPieces] = {};
        Lane lanes[Config::kLanes];
        walk.each_piece(config, [&](u32 piece, u32 slot, u32 element, bool exists) {
            u32 x[kElements / 2], w[kElements];
            NQ_UNROLL
            for (u32 i = 0; i < kElements / 2; ++i) x[i] = 0;
            if (exists) {
                load_shared_128(x, row_buffer + 2 * element);
                load_shared_128(x + 4, row_buffer + 2 * element + 16);
            }
            if (config.add) {
                u32 r[kElements / 2];
                NQ_UNROLL
                for (u32 i = 0; i < kElements / 2; ++i) r[i] = 0;
                if (exists) {
                    load_shared_128(r, row_buffer + layout.residual + 2 * element);
                    load_shared_128(r + 4, row_buffer + layout.residual + 2 * element + 16);
                }
                add_residual<kElements>(config, x, r, input, element, live && exists);
            }
            NQ_UNROLL
            for (u32 c = 0; c < chunks; ++c) load_shared_128(w + 4 * c, weight_at(piece, c));
            NQ_UNROLL
            for (u32 v = 0; v < kElements / 8; ++v) lanes[slot * (kElements / 8) + v].accumulate(config, x + 4 * v);
            largest[piece] = weigh_piece(config, block, p[piece], x, w);
        });
        const auto group_barrier = [&] { block.barrier(group + 1, members); };
        // The sums of two rows alternate: a warp that is ahead must not overwrite what one behind has yet to read.
        float* row_sums = sums + turn % 2 * warps;
        const float sum = row_sum(config, block, lane_sum(config, lanes), row_sums, [&](float warp_sum) {
            if (member % 32 == 0) row_sums[member / 32] = warp_sum;
            group_barrier();
        });
        if (threads <= 32) group_barrier();
        if (config.row_buffers == 1) start_copy(turn + 1, buffer);

        const RowOutput output(config, params, row, sum, global_scale);
        if (config.y_out) {
            walk.each_piece(config, [&](u32 piece, u32, u32 element, bool exists) {
                write_y<kElements>(config, output, p[piece], element, live && exists);
            });
        }
        u32 byte[Config::kPieces] = {};
        float k[Config::kPieces] = {};
        find_scales<Config::kPieces, kElements>(config, output, largest, p, byte, k, [&](u32 i) { return live && walk.piece_exists(config, i); });
        walk.each_piece(config, [&](u32 piece, u32, u32 element, bool exists) {
            write_codes<kElements>(config, output, p[piece], k[piece], element, live && exists);
            write_scale_linear(config, output, byte[piece], element, live && exists);
            if (!fours) write_scale_swizzled(config, output, byte[piece], element, live && exists);
        });
        if (fours) {
            walk.each_piece(config, [&](u32 piece, u32, u32 element, bool exists) {
                if (!order.in_four(turn)) write_scale_swizzled(config, output, byte[piece], element, live && exists);
                else scales[piece] = funnel_right(scales[piece], byte[piece], 8);
            });
            if (order.in_four(turn) && turn % 4 == 3) {
                // Lane j of the four that hold a tile's blocks gets all of them, of row j of the four.
                const u32 distance = threads / config.tree * (config.block_size / kGranule), j = thread / distance % 4;
                void* scale_row = byte_offset(params.scale_swizzled, static_cast<i64>(swizzled_row_offset(row - 96, blocks)));
                walk.each_piece(config, [&](u32 piece, u32, u32 element, bool exists) {
                    const u32 word = transpose_bytes(block, scales[piece], thread, distance);
                    const u32 tile = element / config.block_size / kTileBlocks;
                    if (exists && element % config.block_size == 0) store_32(byte_offset(scale_row, tile * kTileBytes + 4 * j), word);
                });
            }
        }
        if (live) zero_padding_blocks(config, params, output, thread);
        if (config.row_buffers == 1 || ++buffer == config.row_buffers) buffer = 0, parity ^= 1;
    }
    zero_padding_rows(config, params, all_rows, u64{block.index()} * block.threads() + block.thread(), u64{block.blocks()} * block.threads());
}

}  // namespace normquant
