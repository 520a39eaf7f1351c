"""normquant's C API, as far as a comparison needs it, by ctypes. The structs are those of include/normquant/normquant.h."""

import ctypes
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_uint32, c_void_p

NQ_BF16, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR = 1, 0, 0


class Problem(ctypes.Structure):
    _fields_ = [(name, c_uint32) for name in ("struct_size", "op", "hidden", "dtype", "weight_dtype", "block_size", "scale_format",
                                              "scale_layout", "flags")]


class Tensors(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("rows", c_int64), ("eps", c_float), ("reserved", c_uint32),
                ("x", c_void_p), ("x_stride", c_int64), ("weight", c_void_p), ("global_scale", c_void_p), ("fp4", c_void_p),
                ("fp4_stride", c_int64), ("scales", c_void_p), ("residual", c_void_p), ("residual_stride", c_int64),
                ("y_out", c_void_p), ("y_out_stride", c_int64), ("sum_of_squares", c_void_p), ("rstd", c_void_p),
                ("residual_out", c_void_p), ("residual_out_stride", c_int64), ("scales_linear", c_void_p), ("scales_stride", c_int64),
                ("batch_rows", c_int64), ("x_batch_stride", c_int64), ("device_rows", c_void_p)]


class Library:
    """One context; kernels for bf16 rows to NVFP4 with linear scales."""

    def __init__(self, path):
        self.lib = lib = ctypes.CDLL(path)
        lib.nq_context_create.argtypes = [c_void_p, POINTER(c_void_p)]
        lib.nq_prepare.argtypes = [c_void_p, POINTER(Problem), c_void_p, POINTER(c_void_p)]
        lib.nq_launch.argtypes = [c_void_p, POINTER(Tensors), c_void_p]
        lib.nq_reference.argtypes = [POINTER(Problem), POINTER(Tensors), c_uint32]
        lib.nq_scale_bytes.argtypes = [POINTER(Problem), c_int64, POINTER(c_size_t)]
        for name in ("nq_context_create", "nq_prepare", "nq_launch", "nq_reference", "nq_scale_bytes"):
            getattr(lib, name).restype = c_int
        lib.nq_last_error.restype = c_char_p
        self.context = c_void_p()
        self.check(lib.nq_context_create(None, byref(self.context)))

    def check(self, status):
        if status != 0:
            raise RuntimeError(f"normquant: {self.lib.nq_last_error().decode()} ({status})")

    @staticmethod
    def problem(hidden):
        return Problem(ctypes.sizeof(Problem), 0, hidden, NQ_BF16, NQ_BF16, 16, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR, 0)

    @staticmethod
    def tensors(rows, eps, x, weight, global_scale, fp4, scales):
        """Addresses of contiguous tensors."""
        return Tensors(struct_size=ctypes.sizeof(Tensors), rows=rows, eps=eps, x=x, weight=weight, global_scale=global_scale, fp4=fp4,
                       scales=scales)

    def prepare(self, hidden):
        """A kernel for the current CUDA context."""
        kernel = c_void_p()
        self.check(self.lib.nq_prepare(self.context, byref(self.problem(hidden)), None, byref(kernel)))
        return kernel

    def launch(self, kernel, tensors, stream):
        self.check(self.lib.nq_launch(kernel, byref(tensors), stream))

    def reference(self, hidden, tensors):
        self.check(self.lib.nq_reference(byref(self.problem(hidden)), byref(tensors), 0))
