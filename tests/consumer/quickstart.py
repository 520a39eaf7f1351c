"""quickstart.c in Python, with no other package: the same rows, and the same text.

    quickstart.py FOLDER   FOLDER: where the library is to be found
"""

import ctypes
import os
import struct
import sys

import normquant
from normquant import NQ_VERSION, Problem, Tensors

ROWS, HIDDEN = 4, 64


def to_bf16(value):
    bits, = struct.unpack("<I", struct.pack("<f", value))
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 & 0xFFFF


library = normquant.load()
symbol = (ctypes.c_char_p * 4)()  # Dl_info, which begins with the file's name
ctypes.CDLL(None).dladdr(ctypes.cast(library.c.nq_version, ctypes.c_void_p), symbol)
loaded = os.path.realpath(os.fsdecode(symbol[0]))
if library.c.nq_version() != NQ_VERSION or os.path.dirname(loaded) != os.path.realpath(sys.argv[1]):
    sys.exit(f"{loaded} is version {library.c.nq_version()}; expected: {NQ_VERSION}, in {sys.argv[1]}")

problem = Problem(hidden=HIDDEN)
x = (ctypes.c_uint16 * (ROWS * HIDDEN))(*(to_bf16((i * 37 % 101 - 50) / 16) for i in range(ROWS * HIDDEN)))
weight = (ctypes.c_uint16 * HIDDEN)(*[to_bf16(1)] * HIDDEN)
global_scale = ctypes.c_float(448 * 6 / 4)
fp4, scales = bytearray(library.fp4_bytes(problem, ROWS)), bytearray(library.scale_bytes(problem, ROWS))
arrays = {"x": x, "weight": weight, "global_scale": global_scale,
          "fp4": (ctypes.c_ubyte * len(fp4)).from_buffer(fp4), "scales": (ctypes.c_ubyte * len(scales)).from_buffer(scales)}
library.reference(problem, Tensors(rows=ROWS, **{name: ctypes.addressof(array) for name, array in arrays.items()}))

for row in range(ROWS):
    row_scales, row_fp4 = scales[row * HIDDEN // 16:(row + 1) * HIDDEN // 16], fp4[row * HIDDEN // 2:][:8]
    print(f"row {row}: scales {row_scales.hex(' ')}, first codes {row_fp4.hex(' ')}")
