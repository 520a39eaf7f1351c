"""The operator in Triton: RMSNorm of bf16 rows, then NVFP4 with linear scales. One pass; a program holds its rows in registers."""

import triton
import triton.language as tl


@triton.jit
def _rows(x_ptr, weight, global_scale, fp4_ptr, words_ptr, scale_ptr, group, rows, eps, H: tl.constexpr, BLOCK: tl.constexpr,
          ROWS: tl.constexpr, WORDS: tl.constexpr):
    row = (group * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < H)
    x = tl.load(x_ptr + row * H + column, mask=inside, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=1) / H + eps)
    y = tl.reshape(x * rstd[:, None] * weight, [ROWS, BLOCK // 16, 16])

    # The scale's value is rounded to E4M3 by the addition that is explained below, and not decoded from the byte: where a thread has
    # four scales, the ptxas of Triton 3.6 (12.8.93) makes the decoding of the first two read a register that nothing has written.
    scale = tl.minimum(tl.max(tl.abs(y), axis=2) * (global_scale / 6.0), 448.0)
    binade = (tl.maximum(scale, 0.015625).to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    decoded = tl.fma(binade, 1572864.0, scale) - binade * 1572864.0  # 2^20 + 2^19: steps of 1/8 of the binade, 2^-9 at least
    q = y * tl.where(decoded > 0.0, global_scale / decoded, 0.0)[:, :, None]

    # E2M1 by one addition that rounds to the step of the value's binade, ties to even: steps of 0.5 below 2, 1 below 4, then 2.
    # The low bits of the sum count steps; those of its exponent say where the binade's codes begin.
    a = tl.minimum(tl.abs(q), 6.0)
    binade = (tl.maximum(a, 1.0).to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
    bits = tl.fma(binade, 4194307.0, a).to(tl.int32, bitcast=True)  # 2^22 + 3
    sign = (q.to(tl.int32, bitcast=True) >> 28) & 8
    code = ((bits + (bits >> 22)) & 7) | sign

    if WORDS:  # eight codes a 32-bit store
        shifts = (4 * tl.arange(0, 8))[None, None, :]
        word = tl.sum(tl.reshape(code, [ROWS, BLOCK // 8, 8]) << shifts, axis=2)
        at = tl.arange(0, BLOCK // 8)[None, :]
        tl.store(words_ptr + row * (H // 8) + at, word, mask=(row < rows) & (at < H // 8))
    else:
        low, high = tl.split(tl.reshape(code, [ROWS, BLOCK // 2, 2]))
        at = tl.arange(0, BLOCK // 2)[None, :]
        tl.store(fp4_ptr + row * (H // 2) + at, (low | (high << 4)).to(tl.uint8), mask=(row < rows) & (at < H // 2))
    at = tl.arange(0, BLOCK // 16)[None, :]
    tl.store(scale_ptr + row * (H // 16) + at, decoded.to(tl.float8e4nv).to(tl.uint8, bitcast=True), mask=(row < rows) & (at < H // 16))


@triton.jit
def rmsnorm_nvfp4(x_ptr, weight_ptr, global_scale_ptr, fp4_ptr, words_ptr, scale_ptr, rows, eps, H: tl.constexpr, BLOCK: tl.constexpr,
                  ROWS: tl.constexpr, WORDS: tl.constexpr, PERSISTENT: tl.constexpr):
    """words_ptr is fp4_ptr as int32. PERSISTENT: programs take group after group of ROWS rows; else the grid has one each."""
    column = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + column, mask=column < H, other=0.0).to(tl.float32)[None, :]
    global_scale = tl.load(global_scale_ptr)
    if PERSISTENT:
        for group in tl.range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0), num_stages=2):
            _rows(x_ptr, weight, global_scale, fp4_ptr, words_ptr, scale_ptr, group, rows, eps, H, BLOCK, ROWS, WORDS)
    else:
        _rows(x_ptr, weight, global_scale, fp4_ptr, words_ptr, scale_ptr, tl.program_id(0), rows, eps, H, BLOCK, ROWS, WORDS)


def configurations(hidden, rows):
    """What is tried for a shape: (ROWS, num_warps, WORDS, PERSISTENT)."""
    block = triton.next_power_of_2(hidden)
    found = []
    for group in (1, 4, 16):
        if group > 1 and (group * block > 8192 or group > rows):
            continue
        for warps in (1, 2, 4, 8, 16, 32):
            elements = group * block // (32 * warps)  # a thread
            if not 8 <= elements <= 64 and not (elements < 8 and warps == 1):
                continue
            found.append((group, warps, True, False))
            if group == 1:
                found.append((group, warps, False, False))
            # Many more rows than programs can run at a time.
            if rows // group > 8192 and elements <= 32:
                found.append((group, warps, True, True))
    return found
