// Where a block's scale lies, and how large the buffer is. Shared by host, device and tests.
#pragma once

#include <normquant/types.cuh>

namespace normquant {

constexpr u32 kTileRows = 128;   // a swizzled tile covers 128 rows ...
constexpr u32 kTileBlocks = 4;   // ... of 4 scales
constexpr u32 kTileBytes = 512;

NQ_CONSTEXPR u32 scale_tiles(u32 blocks) { return (blocks + kTileBlocks - 1) / kTileBlocks; }  // across a row

NQ_CONSTEXPR u64 padded_rows(u64 rows) { return (rows + kTileRows - 1) / kTileRows * kTileRows; }

// Byte of block 0 of a row; block b of it is at tile b/4, byte b%4.
NQ_CONSTEXPR u64 swizzled_row_offset(u64 row, u32 blocks) {
    return row / kTileRows * scale_tiles(blocks) * kTileBytes + row % 32 * 16 + row % kTileRows / 32 * 4;
}

NQ_CONSTEXPR u32 swizzled_block_offset(u32 block) { return block / kTileBlocks * kTileBytes + block % kTileBlocks; }

NQ_CONSTEXPR u64 scale_offset(u64 row, u32 block, u32 blocks, bool swizzled) {
    return swizzled ? swizzled_row_offset(row, blocks) + swizzled_block_offset(block) : row * blocks + block;
}

NQ_CONSTEXPR u64 scale_buffer_bytes(u64 rows, u32 blocks, bool swizzled) {
    return swizzled ? padded_rows(rows) / kTileRows * scale_tiles(blocks) * kTileBytes : rows * blocks;
}

}  // namespace normquant
