"""normquant from Python: RMSNorm (with residual add) and FP4 quantization in one kernel. One file over libnormquant.so, by ctypes.

SPDX-License-Identifier: Apache-2.0

    import normquant

    fp4, scales = normquant.rmsnorm_fp4quant(x, weight, global_scale=g)       # called as FlashInfer's functions of these names
    fp4, scales = normquant.add_rmsnorm_fp4quant(x, residual, weight, is_sf_swizzled_layout=True)
    out = normquant.quantize(x, weight, weight_bias_one=True, layout="both")  # everything that the library can do

Where the arrays lie decides where it runs. In host memory (numpy, PyTorch on the CPU, __dlpack__): on the CPU reference, which blocks until
done. On a GPU (PyTorch, CuPy, JAX: __dlpack__ or __cuda_array_interface__): as one kernel on the current stream of x's library. PyTorch
and CuPy tell theirs; any other library needs the argument `stream`, a handle or an object with __cuda_stream__, cuda_stream or ptr. Both
write the same bytes. All arrays of a call are on one device, and none is ever copied: rows may have a stride, and batches of x another;
what cannot be addressed so is refused. There is no autograd.

PyTorch and CuPy reuse memory in the order of their current stream. Arrays of others, and those of a call with an explicit `stream`, must be
kept until the kernel has run.

Outputs that are None are allocated: by PyTorch or CuPy if x is theirs, by numpy for whatever else is in host memory. JAX has no arrays to
write to: its arrays are inputs, and outputs are given. Outputs of PyTorch have FlashInfer's types; elsewhere codes and scales are uint8.

numpy has bfloat16 with the package ml_dtypes; without, pass uint16 words and dtype="bf16".

The first call of a problem on a device reads the kernel cache or compiles: make it, or call Context.prepare, before capturing a CUDA graph.
The functions share default_context(), made at the first call on a GPU; set_default_context() replaces it by one with options of yours.

The library is the one given to load(), else that of NORMQUANT_LIBRARY, else libnormquant.so beside this file, else the loader's. What it
refuses or cannot do is a normquant.Error with its status. Bad arguments are ValueError whoever finds them, TypeError what is no array.
Problem, Tensors, Context and Library are the C API of normquant.h, which documents it, for those who have addresses rather than arrays.
"""

import contextlib
import ctypes
import os
import pathlib
import sys
import threading
import warnings
from ctypes import (CFUNCTYPE, POINTER, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint32, c_uint64,
                    c_void_p)
from math import prod
from typing import Any, NamedTuple, Optional

__all__ = ["rmsnorm_fp4quant", "add_rmsnorm_fp4quant", "quantize", "Quantized", "Context", "Library", "Error", "ArgumentError",
           "Problem", "Tensors", "load", "default_context", "set_default_context"]

# ---- normquant.h: constants ---------------------------------------------------------------------------------------------

NQ_VERSION_MAJOR, NQ_VERSION_MINOR, NQ_VERSION_PATCH = 0, 1, 0
NQ_VERSION = NQ_VERSION_MAJOR * 10000 + NQ_VERSION_MINOR * 100 + NQ_VERSION_PATCH

NQ_OK = 0
NQ_ERR_INVALID_ARGUMENT, NQ_ERR_MISALIGNED, NQ_ERR_STRUCT_SIZE = 10, 11, 12
NQ_ERR_UNSUPPORTED_PROBLEM, NQ_ERR_UNSUPPORTED_DEVICE = 20, 21
NQ_ERR_NVRTC_MISSING, NQ_ERR_COMPILE_FAILED, NQ_ERR_NOT_PREPARED = 30, 31, 32
NQ_ERR_DRIVER_MISSING, NQ_ERR_DRIVER_TOO_OLD, NQ_ERR_NO_CONTEXT, NQ_ERR_DRIVER = 40, 41, 42, 43
NQ_ERR_CACHE_UNTRUSTED, NQ_ERR_CACHE_IO = 50, 51
NQ_ERR_OUT_OF_MEMORY = 60
NQ_ERR_FORKED = 70
NQ_ERR_INTERNAL = 90

NQ_OP_RMSNORM, NQ_OP_ADD_RMSNORM = 0, 1
NQ_FP16, NQ_BF16, NQ_FP32 = 0, 1, 2
NQ_SCALE_E4M3, NQ_SCALE_UE8M0 = 0, 1
NQ_LAYOUT_LINEAR, NQ_LAYOUT_SWIZZLED, NQ_LAYOUT_BOTH = 0, 1, 2
NQ_PROBLEM_WEIGHT_BIAS_ONE, NQ_PROBLEM_Y_OUT, NQ_PROBLEM_OVERLAP, NQ_PROBLEM_DEVICE_ROWS, NQ_PROBLEM_BATCHES = 0x1, 0x2, 0x4, 0x8, 0x10
NQ_TENSORS_KEEP_PADDING, NQ_TENSORS_CONSTANT_WEIGHT = 0x1, 0x2
NQ_LOG_DEFAULT, NQ_LOG_DEBUG, NQ_LOG_INFO, NQ_LOG_WARN, NQ_LOG_ERROR, NQ_LOG_OFF = 0, 1, 2, 3, 4, 5
NQ_JIT_DEFAULT, NQ_JIT_ON, NQ_JIT_OFF = 0, 1, 2
NQ_CACHE_READONLY, NQ_CACHE_SHARED = 0x1, 0x2
NQ_VARIANT_THROUGHPUT, NQ_VARIANT_LATENCY, NQ_VARIANT_THROUGHPUT_32B, NQ_VARIANT_LATENCY_32B, NQ_VARIANT_SPLIT = 0, 1, 2, 3, 4

# ---- normquant.h: structures --------------------------------------------------------------------------------------------


class _Struct(ctypes.Structure):
    """Starts as its NQ_..._INIT macro says. Fields by name; one that does not exist is an error, where ctypes would add an attribute."""

    _initial_ = {}

    def __init__(self, **fields):
        unknown = fields.keys() - type(self).__dict__.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        super().__init__(**{"struct_size": ctypes.sizeof(type(self)), **self._initial_, **fields})


class Problem(_Struct):
    """nq_problem: what is computed."""

    _fields_ = [("struct_size", c_uint32), ("op", c_uint32), ("hidden", c_uint32), ("dtype", c_uint32), ("weight_dtype", c_uint32),
                ("block_size", c_uint32), ("scale_format", c_uint32), ("scale_layout", c_uint32), ("flags", c_uint32)]
    _initial_ = {"dtype": NQ_BF16, "weight_dtype": NQ_BF16, "block_size": 16}


class Tensors(_Struct):
    """nq_tensors: the data of one call, by address."""

    _fields_ = [("struct_size", c_uint32), ("flags", c_uint32), ("rows", c_int64), ("eps", c_float), ("reserved", c_uint32),
                ("x", c_void_p), ("x_stride", c_int64), ("weight", c_void_p), ("global_scale", c_void_p), ("fp4", c_void_p),
                ("fp4_stride", c_int64), ("scales", c_void_p), ("residual", c_void_p), ("residual_stride", c_int64),
                ("y_out", c_void_p), ("y_out_stride", c_int64), ("sum_of_squares", c_void_p), ("rstd", c_void_p),
                ("residual_out", c_void_p), ("residual_out_stride", c_int64), ("scales_linear", c_void_p), ("scales_stride", c_int64),
                ("batch_rows", c_int64), ("x_batch_stride", c_int64), ("device_rows", c_void_p)]
    _initial_ = {"eps": 1e-6}


class CompileEvent(_Struct):
    """nq_compile_event."""

    _fields_ = [("struct_size", c_uint32), ("status", c_int), ("key", c_char_p), ("problem", c_char_p), ("variant", c_char_p),
                ("arch", c_char_p), ("compile_ns", c_uint64)]


class PrecompileEvent(_Struct):
    """nq_precompile_event."""

    _fields_ = [("struct_size", c_uint32), ("variant", c_uint32), ("done", c_uint64), ("total", c_uint64), ("problem_index", c_size_t),
                ("arch", c_char_p), ("status", c_int), ("cached", c_uint32), ("compile_ns", c_uint64), ("message", c_char_p)]


LogCallback = CFUNCTYPE(None, c_uint32, c_char_p, c_void_p)
CompileCallback = CFUNCTYPE(None, POINTER(CompileEvent), c_void_p)
PrecompileCallback = CFUNCTYPE(c_int, POINTER(PrecompileEvent), c_void_p)


class ContextOptions(_Struct):
    """nq_context_options."""

    _fields_ = [("struct_size", c_uint32), ("jit", c_uint32), ("cache_dir", c_char_p), ("nvrtc", c_char_p), ("libcuda", c_char_p),
                ("log_callback", LogCallback), ("log_payload", c_void_p), ("log_level", c_uint32), ("cache_flags", c_uint32),
                ("bundles", c_char_p), ("cache_size", c_uint64), ("compile_threads", c_uint32), ("lock_timeout_ms", c_uint32),
                ("compile_callback", CompileCallback), ("compile_payload", c_void_p)]


class PrepareOptions(_Struct):
    """nq_prepare_options."""

    _fields_ = [("struct_size", c_uint32), ("threads_per_row", c_uint32), ("stream", c_void_p), ("variant", c_uint32),
                ("cluster_size", c_uint32), ("max_shared_bytes", c_uint32), ("max_cluster_size", c_uint32)]


class Plan(_Struct):
    """nq_plan."""

    _fields_ = [(name, c_uint32) for name in ("struct_size", "tree_threads", "threads_per_row", "rows_per_block", "block_threads",
                                              "granules_per_thread", "row_in_registers", "load_bytes", "blocks_per_row", "row_buffers")]


class Counters(_Struct):
    """nq_counters."""

    _fields_ = [("struct_size", c_uint32), ("reserved", c_uint32)] + [(name, c_uint64) for name in (
        "memory_hits", "layer_hits", "disk_hits", "misses", "compiles", "failed_compiles", "compile_ns", "lock_waits", "lock_wait_ns",
        "lock_timeouts", "bad_entries", "stored_entries", "stored_bytes", "failed_stores", "loaded_bytes", "evicted_entries",
        "evicted_bytes")]


# ---- The library ----------------------------------------------------------------------------------------------------------

_FUNCTIONS = {  # name: (result, arguments); c_int is nq_status
    "nq_version": (c_uint32, []),
    "nq_kernel_sources_digest": (c_char_p, []),
    "nq_status_name": (c_char_p, [c_int]),
    "nq_last_error": (c_char_p, []),
    "nq_last_error_detail": (c_char_p, []),
    "nq_problem_check": (c_int, [POINTER(Problem)]),
    "nq_fp4_bytes": (c_int, [POINTER(Problem), c_int64, POINTER(c_size_t)]),
    "nq_scale_bytes": (c_int, [POINTER(Problem), c_int64, POINTER(c_size_t)]),
    "nq_scale_offset": (c_int, [POINTER(Problem), c_int64, c_uint32, POINTER(c_size_t)]),
    "nq_required_alignment": (c_int, [POINTER(Problem), c_char_p, POINTER(c_size_t)]),
    "nq_supported": (c_int, [POINTER(Problem), c_char_p]),
    "nq_plan_query": (c_int, [POINTER(Problem), c_char_p, c_uint32, c_uint32, POINTER(Plan)]),
    "nq_reference": (c_int, [POINTER(Problem), POINTER(Tensors), c_uint32]),
    "nq_context_create": (c_int, [POINTER(ContextOptions), POINTER(c_void_p)]),
    "nq_context_destroy": (None, [c_void_p]),
    "nq_context_counters": (c_int, [c_void_p, POINTER(Counters)]),
    "nq_context_seal": (c_int, [c_void_p]),
    "nq_context_cache_dir": (c_char_p, [c_void_p]),
    "nq_prepare": (c_int, [c_void_p, POINTER(Problem), POINTER(PrepareOptions), POINTER(c_void_p)]),
    "nq_precompile": (c_int, [c_void_p, POINTER(Problem), c_size_t, POINTER(c_char_p), c_size_t, c_uint32, PrecompileCallback, c_void_p]),
    "nq_launch": (c_int, [c_void_p, POINTER(Tensors), c_void_p]),
    "nq_run": (c_int, [c_void_p, POINTER(Problem), POINTER(Tensors), c_void_p]),
}


class Error(RuntimeError):
    """What the library refused or could not do: its nq_status, its text, and the NVRTC log of a failed compile in `detail`."""

    def __init__(self, status, name, message, detail=""):
        super().__init__(f"{name}: {message}" + (f"\n{detail}" if detail else ""))
        self.status, self.name, self.message, self.detail = status, name, message, detail


class ArgumentError(Error, ValueError):
    """NQ_ERR_INVALID_ARGUMENT, NQ_ERR_MISALIGNED, NQ_ERR_STRUCT_SIZE."""


class Library:
    """libnormquant.so with its functions, and the queries and the CPU reference on raw structures."""

    def __init__(self, path=None):
        self.path, self.c = _open_library(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            try:
                function = getattr(self.c, name)
            except AttributeError:
                raise OSError(f"{self.path} is no libnormquant of version {NQ_VERSION_MAJOR}.{NQ_VERSION_MINOR}: "
                              f"it has no {name}") from None
            function.restype, function.argtypes = result, arguments
        version = self.c.nq_version()
        # Structures grow from one minor version to the next while the major one is 0, and a library refuses shorter ones.
        if version // 100 != NQ_VERSION // 100:
            raise OSError(f"{self.path} is version {version // 10000}.{version // 100 % 100}.{version % 100}; "
                          f"accepted: {NQ_VERSION_MAJOR}.{NQ_VERSION_MINOR}, which this normquant.py was written for")

    def check(self, status):
        """Raises the error of the thread's last call, which returned `status`."""
        if status != NQ_OK:
            kind = ArgumentError if status in (NQ_ERR_INVALID_ARGUMENT, NQ_ERR_MISALIGNED, NQ_ERR_STRUCT_SIZE) else Error
            raise kind(status, self.c.nq_status_name(status).decode(), self.c.nq_last_error().decode(errors="replace"),
                       self.c.nq_last_error_detail().decode(errors="replace"))

    def fp4_bytes(self, problem, rows):
        return self._size(self.c.nq_fp4_bytes, problem, rows)

    def scale_bytes(self, problem, rows):
        return self._size(self.c.nq_scale_bytes, problem, rows)

    def _size(self, function, problem, rows):
        size = c_size_t()
        self.check(function(byref(problem), rows, byref(size)))
        return size.value

    def reference(self, problem, tensors, threads=0):
        self.check(self.c.nq_reference(byref(problem), byref(tensors), threads))


def _open_library(path):
    """(path, CDLL): the one named, else one beside this file, else the loader's."""
    named = path or os.environ.get("NORMQUANT_LIBRARY")
    if named:
        return str(named), ctypes.CDLL(str(named))
    soname = f"libnormquant.so.{NQ_VERSION_MAJOR}.{NQ_VERSION_MINOR}"
    for name in ("libnormquant.so", soname):
        beside = pathlib.Path(__file__).resolve().with_name(name)
        if beside.exists():
            return str(beside), ctypes.CDLL(str(beside))
    try:
        return soname, ctypes.CDLL(soname)
    except OSError as error:
        raise OSError(f"{error}; libnormquant was looked for as libnormquant.so and {soname} beside {__file__}, then by the loader. "
                      "Set NORMQUANT_LIBRARY to its path, or call normquant.load(path)") from None


class Context:
    """A context of the library: its configuration, kernel cache and loaded kernels. May be used by any number of threads.

    Options are the fields of nq_context_options: Context(cache_dir="/opt/kernels", jit=NQ_JIT_OFF). Callbacks are called as
    log_callback(level, text) and compile_callback(event), an event being a CompileEvent that is valid during the call.
    """

    def __init__(self, library=None, **options):
        self.library = library or load()
        adapters = {"log_callback": lambda call: LogCallback(lambda level, text, _: call(level, text.decode(errors="replace"))),
                    "compile_callback": lambda call: CompileCallback(lambda event, _: call(event.contents))}
        for name, value in options.items():
            if isinstance(value, (str, os.PathLike)):
                options[name] = os.fsencode(value)
            elif name in adapters and value is not None:
                options[name] = adapters[name](value)
        self._options = ContextOptions(**{name: value for name, value in options.items() if value is not None})  # keeps the callbacks
        self._handle = c_void_p()
        self._primaries = {}  # by device: what is retained for as long as kernels are loaded in it
        self.library.check(self.library.c.nq_context_create(byref(self._options), byref(self._handle)))

    def close(self):
        """Unloads the kernels: none of their launches may be in flight, graphs included. Not done by the garbage collector, which cannot
        know that; a program may end without."""
        self.library.c.nq_context_destroy(self._handle)
        self._handle = c_void_p()
        while self._primaries:
            _driver().cuDevicePrimaryCtxRelease_v2(self._primaries.popitem()[0])

    @contextlib.contextmanager
    def _current(self, device):
        """Makes the primary context of a device current, which PyTorch, CuPy and JAX use, unless one of that device is: the default
        stream is that of the current context, and a thread has none before something of CUDA was called there."""
        found = c_int()
        if device is None or (_driver().cuCtxGetDevice(byref(found)) == 0 and found.value == device):
            yield
            return
        with _lock:
            if device not in self._primaries:
                primary = c_void_p()
                _check_driver("cuDevicePrimaryCtxRetain", device, byref(primary), device)  # a CUdevice is its ordinal
                self._primaries[device] = primary
        _check_driver("cuCtxPushCurrent_v2", device, self._primaries[device])
        try:
            yield
        finally:
            _driver().cuCtxPopCurrent_v2(byref(c_void_p()))

    def prepare(self, problem, device=None, stream=None, options=None):
        """The kernel of a problem, for launch(). On that device (its ordinal), else on that of the stream, else of the current context."""
        options = options or PrepareOptions()
        if stream is not None:
            options.stream = _stream_handle(stream)
        kernel = c_void_p()
        with self._current(device):
            self.library.check(self.library.c.nq_prepare(self._handle, byref(problem), byref(options), byref(kernel)))
        return kernel

    def launch(self, kernel, tensors, stream=0):
        self.library.check(self.library.c.nq_launch(kernel, byref(tensors), stream))

    def run(self, problem, tensors, stream=0, device=None):
        """nq_run on the device (its ordinal), else on that of the stream, else of the current context."""
        with self._current(device):
            self.library.check(self.library.c.nq_run(self._handle, byref(problem), byref(tensors), stream))

    def precompile(self, problems, archs, threads=0, progress=None):
        """Compiles kernels into the cache, without a GPU. progress(event) may return True to stop; an event is a PrecompileEvent."""
        callback = PrecompileCallback(lambda event, _: bool(progress(event.contents)) if progress else 0)
        self.library.check(self.library.c.nq_precompile(
            self._handle, (Problem * len(problems))(*problems), len(problems),
            (c_char_p * len(archs))(*(arch.encode() for arch in archs)), len(archs), threads, callback, None))

    def counters(self):
        """What the context has done so far, as a dict."""
        counters = Counters()
        self.library.check(self.library.c.nq_context_counters(self._handle, byref(counters)))
        return {name: getattr(counters, name) for name, _ in Counters._fields_[2:]}

    def seal(self):
        """From now on a compile is NQ_ERR_NOT_PREPARED."""
        self.library.check(self.library.c.nq_context_seal(self._handle))

    @property
    def cache_dir(self):
        return os.fsdecode(self.library.c.nq_context_cache_dir(self._handle))


_lock = threading.Lock()
_library: Optional[Library] = None
_context: Optional[Context] = None


def load(path=None):
    """The library that the functions use. The first call opens it; from then on a path can only be the same."""
    global _library
    with _lock:
        if _library is None:
            _library = Library(path)
        elif path is not None and str(path) != _library.path:
            raise ValueError(f"path is {path}; accepted: {_library.path}, which has been loaded")
        return _library


def default_context():
    """The context of the functions."""
    global _context
    library = load()
    with _lock:
        if _context is None:
            _context = Context(library)
        return _context


def set_default_context(context):
    """From now on the functions use this one: normquant.set_default_context(normquant.Context(jit=normquant.NQ_JIT_OFF))."""
    global _context
    with _lock:
        _context = context


# ---- Devices and streams ------------------------------------------------------------------------------------------------


_libcuda: Any = None


def _driver():
    global _libcuda
    if _libcuda is None:
        libcuda = ctypes.CDLL(os.environ.get("NORMQUANT_LIBCUDA") or "libcuda.so.1")  # as libnormquant
        libcuda.cuCtxPushCurrent_v2.argtypes = [c_void_p]
        result = libcuda.cuInit(0)
        if result != 0:
            raise Error(NQ_ERR_DRIVER, "NQ_ERR_DRIVER", f"cuInit failed with CUresult {result}")
        _libcuda = libcuda
    return _libcuda


def _check_driver(function, device, *arguments):
    result = getattr(_driver(), function)(*arguments)
    if result != 0:
        raise Error(NQ_ERR_DRIVER, "NQ_ERR_DRIVER", f"device {device}: {function} failed with CUresult {result}")


def _current_device(name):
    """Where an array of __cuda_array_interface__ is taken to lie, as that does not tell: on the device of the current context."""
    device = c_int()
    if _driver().cuCtxGetDevice(byref(device)) != 0:
        raise Error(NQ_ERR_NO_CONTEXT, "NQ_ERR_NO_CONTEXT", f"{name} has __cuda_array_interface__ alone, which means the current CUDA "
                    "context; there is none in this thread")
    return device.value


def _stream_handle(stream):
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for attribute in ("cuda_stream", "ptr"):  # PyTorch's, CuPy's
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    raise TypeError(f"stream is a {_type_name(stream)}; accepted: a handle as int, or an object with __cuda_stream__, cuda_stream or ptr")


def _stream_of(name, x, device, stream):
    """The stream to launch on."""
    if device is None:
        if stream is not None:
            raise ValueError(f"stream is given and {name} is in host memory; accepted: None there")
        return None
    if stream is not None:
        return _stream_handle(stream)
    if _is("torch", "Tensor", x):
        return sys.modules["torch"].cuda.current_stream(device).cuda_stream
    if _is("cupy", "ndarray", x):
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            return cupy.cuda.get_current_stream().ptr
    named = getattr(x, "__cuda_array_interface__", {}).get("stream") if not hasattr(x, "__dlpack__") else None
    if named is None:
        raise ValueError(f"stream is None and {name} is a {_type_name(x)}; accepted: a stream (0 for the default one), because normquant "
                         "does not know the current one of that library")
    return named


# ---- Arrays ---------------------------------------------------------------------------------------------------------------


class _Array(NamedTuple):
    """What is known of an argument."""

    name: str
    address: int
    shape: tuple
    strides: tuple  # in elements
    dtype: str      # numpy's or PyTorch's name of it
    device: Optional[int]  # None: host memory
    readonly: bool
    keeper: Any     # what keeps the memory while the call lasts


def _type_name(value):
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _is(module, kind, value):
    """isinstance, without an import: nobody has an array of a library that is not loaded."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, kind, ()))


def _device_of(name, value):
    """None for host memory, else the ordinal of the GPU."""
    if _is("torch", "Tensor", value):
        device = value.device
        if device.type in ("cuda", "cpu"):
            return device.index if device.type == "cuda" else None
        raise ValueError(f"{name} is on {device}; accepted: cuda, cpu")
    if _is("numpy", "ndarray", value):
        return None
    if hasattr(value, "__dlpack_device__"):
        kind, ordinal = value.__dlpack_device__()
        if int(kind) in _DL_HOST or int(kind) in _DL_CUDA:
            return int(ordinal) if int(kind) in _DL_CUDA else None
        raise ValueError(f"{name} is on a device of DLPack's type {int(kind)}; accepted: {_DL_CUDA} (CUDA), {_DL_HOST} (host memory)")
    if hasattr(value, "__cuda_array_interface__"):
        return _current_device(name)
    raise TypeError(f"{name} is a {_type_name(value)}; accepted: arrays of numpy, PyTorch, CuPy, JAX, or with __dlpack__ or "
                    "__cuda_array_interface__")


def _read(name, value, stream):
    """The argument as an _Array, usable by what is put on the stream."""
    device = _device_of(name, value)
    if _is("torch", "Tensor", value):
        dtype = str(value.dtype)[len("torch."):]
        return _Array(name, value.data_ptr(), tuple(value.shape), value.stride(), dtype, device, False, value)
    if _is("numpy", "ndarray", value):
        return _from_interface(name, value, value.__array_interface__, device)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(name, value, device, stream)
    interface = value.__cuda_array_interface__
    used_on = interface.get("stream")
    if used_on is not None and used_on != (stream or 1):  # 1 is the legacy default stream
        raise ValueError(f"{name} was written on stream {used_on:#x}, and the kernel is launched on {stream:#x}; "
                         "accepted: arrays of one stream")
    return _from_interface(name, value, interface, device)


_TYPESTR = {"f2": "float16", "f4": "float32", "u1": "uint8", "i1": "int8", "u2": "uint16", "i2": "int16", "i4": "int32"}


def _from_interface(name, value, interface, device):
    """__array_interface__ and __cuda_array_interface__, which have the same keys."""
    typestr, shape = interface["typestr"], tuple(interface["shape"])
    if typestr[0] == ">":
        raise ValueError(f"{name} is big-endian ({typestr}); accepted: little-endian elements")
    # Types of ml_dtypes are void to the interface; their names are the dtype's.
    dtype = _TYPESTR.get(typestr[1:]) or str(getattr(getattr(value, "dtype", None), "name", typestr))
    address, readonly = interface["data"]
    size = int(typestr[2:])
    strides = interface.get("strides")
    if strides is None:
        strides = tuple(size * prod(shape[i + 1:]) for i in range(len(shape)))
    if any(stride % size for stride in strides):
        raise ValueError(f"{name} has strides of {tuple(strides)} bytes; accepted: multiples of its {size}-byte elements")
    return _Array(name, address, shape, tuple(stride // size for stride in strides), dtype, device, readonly, value)


class _DLTensor(ctypes.Structure):  # dlpack.h
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32), ("code", c_uint8),
                ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("manager_ctx", c_void_p), ("deleter", c_void_p), ("flags", c_uint64),
                ("dl_tensor", _DLTensor)]


_DL_HOST, _DL_CUDA = (1, 3), (2, 13)  # kDLCPU, kDLCUDAHost; kDLCUDA, kDLCUDAManaged
_DL_NO_OUTPUT = 0x1 | 0x2  # DLPACK_FLAG_BITMASK_READ_ONLY; _IS_COPIED, where what is written is lost
_DL_DTYPES = {(0, 8, 1): "int8", (0, 16, 1): "int16", (0, 32, 1): "int32", (1, 8, 1): "uint8", (1, 16, 1): "uint16", (2, 16, 1): "float16",
              (2, 32, 1): "float32", (4, 16, 1): "bfloat16", (10, 8, 1): "float8_e4m3fn", (14, 8, 1): "float8_e8m0fnu",
              (17, 4, 2): "float4_e2m1fn_x2"}
_capsule_is = ctypes.PYFUNCTYPE(c_int, ctypes.py_object, c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))


def _from_dlpack(name, value, device, stream):
    # The producer makes our stream wait for its own work; to it, 1 is the default stream.
    arguments = {} if device is None else {"stream": stream or 1}
    try:
        capsule = value.__dlpack__(max_version=(1, 1), **arguments)
    except TypeError:  # older than DLPack 1.0
        capsule = value.__dlpack__(**arguments)
    # A capsule that is not consumed frees what it holds when it goes.
    readonly = type(value).__module__.startswith("jax")  # immutable, whether or not the flag says so
    if _capsule_is(capsule, b"dltensor_versioned"):
        managed = _DLManagedTensorVersioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise ValueError(f"{name} is exported as DLPack {managed.major}.{managed.minor}; accepted: 1")
        tensor, readonly = managed.dl_tensor, readonly or bool(managed.flags & _DL_NO_OUTPUT)
    else:
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = tuple(tensor.shape[:tensor.ndim])
    strides = tuple(tensor.strides[:tensor.ndim]) if tensor.strides else tuple(prod(shape[i + 1:]) for i in range(tensor.ndim))
    kind = (tensor.code, tensor.bits, tensor.lanes)
    dtype = _DL_DTYPES.get(kind, f"DLPack type {kind}")
    return _Array(name, (tensor.data or 0) + tensor.byte_offset, shape, strides, dtype, device, readonly, capsule)


def _empty(name, like, device, shape, dtype):
    """An output of x's library."""
    if _is("torch", "Tensor", like):
        torch = sys.modules["torch"]
        # As bytes, then seen as what they are: not every version can fill, or has, the type itself.
        return torch.empty(shape, dtype=torch.uint8, device=like.device).view(getattr(torch, dtype, torch.uint8))
    if _is("cupy", "ndarray", like):
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            return cupy.empty(shape, cupy.uint8)
    if device is None:
        import numpy
        return numpy.empty(shape, numpy.uint8)
    raise ValueError(f"{name} is None, and there is no way known to make an array like a {_type_name(like)}; accepted: one to write to")


# ---- The operation --------------------------------------------------------------------------------------------------------


class Quantized(NamedTuple):
    """What quantize() has written."""

    fp4: Any
    scales: Any         # as the layout says; swizzled with "both"
    scales_linear: Any  # with "both", else None


_FLOATS = {"float16": NQ_FP16, "bfloat16": NQ_BF16, "float32": NQ_FP32}
_WORDS = {"fp16": NQ_FP16, "bf16": NQ_BF16}
_SCALE_FORMATS = {"e4m3": NQ_SCALE_E4M3, "ue8m0": NQ_SCALE_UE8M0}
_SCALE_DTYPES = {NQ_SCALE_E4M3: ("uint8", "float8_e4m3fn"), NQ_SCALE_UE8M0: ("uint8", "float8_e8m0fnu")}
_LAYOUTS = {"linear": NQ_LAYOUT_LINEAR, "swizzled": NQ_LAYOUT_SWIZZLED, "both": NQ_LAYOUT_BOTH}


def quantize(x, weight, *, residual=None, residual_out=None, global_scale=None, eps=1e-6, block_size=16, scale_format=None, layout="linear",
             weight_bias_one=False, fp4=None, scales=None, scales_linear=None, y_out=None, device_rows=None, sum_of_squares=None, rstd=None,
             overlap=False, constant_weight=False, keep_padding=False, dtype=None, stream=None, context=None, threads=0, names=None):
    """RMSNorm of the rows of x, then FP4 with block scales: everything of nq_problem and nq_tensors, which say more of each.

    x              [M, H] or [B, S, H], fp16 or bf16; any row stride of at least H, any batch stride (a kernel of
                   its own, unless the batches are one after the other)
    weight         [H], of x's type or fp32; weight_bias_one: stored as w - 1
    residual       like x: x is added to it first; the sum is written to it, or to residual_out where that is given
    global_scale   one fp32 in the memory of x, read when the kernel runs: the encode scale, 448 * 6 / max|y|; not with "ue8m0"
    block_size     16, 32; scale_format "e4m3", "ue8m0", or None: e4m3 for 16 (NVFP4), ue8m0 for 32 (MXFP4)
    layout         "linear": scales [M, H/block] or [B, S, H/block]; "swizzled": 128x4 tiles, flat; "both": the latter, and scales_linear
    fp4            [M, H/2] or [B, S, H/2] bytes; this and the scales are allocated where they are None
    y_out          like x: the normed rows are written here as well
    device_rows    one int32 in the memory of x, read when the kernel runs: the rows that count, at most M; a kernel of its own
    sum_of_squares, rstd   [M] fp32, on the CPU only: the inner results
    overlap        the kernel may begin while the one before it ends (programmatic dependent launch); constant_weight: and fetch the weight
    keep_padding   leave the padding of swizzled scales as it is, instead of writing 0
    dtype          "bf16" or "fp16": what uint16 words hold, for libraries without the type
    stream         where x's library has no current one, or for another
    context        default_context()
    threads        of the CPU reference, 0: one a core
    names          for who wraps this: what errors call the arguments, as {"x": "input"}
    """
    named = {"x": "x", "fp4": "fp4", "scales": "scales", "scales_linear": "scales_linear", **(names or {})}
    device = _device_of(named["x"], x)
    handle = _stream_of(named["x"], x, device, stream)
    keepers = []  # until the launch has returned

    def read(name, value, written=False):
        array = _read(named.get(name, name), value, handle)
        if array.device != device:
            raise ValueError(f"{array.name} is {_place(array.device)}; accepted: {_place(device)}, as {named['x']}")
        if written and array.readonly:
            raise ValueError(f"{array.name} is read-only; accepted: an array that can be written")
        keepers.append(array)
        return array

    rows_of = read("x", x)
    if len(rows_of.shape) not in (2, 3):
        raise ValueError(f"{rows_of.name} has the shape {rows_of.shape}; accepted: (M, H), (B, S, H)")
    words = None if dtype is None else _choice("dtype", dtype, _WORDS)
    lead, hidden = rows_of.shape[:-1], rows_of.shape[-1]
    rows = prod(lead)
    x_type = _float_type(rows_of, words, (NQ_FP16, NQ_BF16))
    weights = read("weight", weight)
    scale_format = _choice("scale_format", scale_format or ("ue8m0" if block_size == 32 else "e4m3"), _SCALE_FORMATS)
    layout = _choice("layout", layout, _LAYOUTS)
    x_stride, batch_rows, x_batch_stride = _row_strides(rows_of, lead, hidden, batches=True)

    problem = Problem(op=NQ_OP_RMSNORM if residual is None else NQ_OP_ADD_RMSNORM, hidden=hidden, dtype=x_type,
                      weight_dtype=_float_type(weights, words, (x_type, NQ_FP32)), block_size=block_size, scale_format=scale_format,
                      scale_layout=layout, flags=(NQ_PROBLEM_WEIGHT_BIAS_ONE if weight_bias_one else 0) |
                      (NQ_PROBLEM_Y_OUT if y_out is not None else 0) | (NQ_PROBLEM_OVERLAP if overlap else 0) |
                      (NQ_PROBLEM_DEVICE_ROWS if device_rows is not None else 0) | (NQ_PROBLEM_BATCHES if batch_rows else 0))
    context = context or _context
    library = context.library if context else load()
    scale_bytes = library.scale_bytes(problem, rows)  # checks the problem, too

    tensors = Tensors(rows=rows, eps=eps, flags=(NQ_TENSORS_KEEP_PADDING if keep_padding else 0) |
                      (NQ_TENSORS_CONSTANT_WEIGHT if constant_weight else 0))
    tensors.x = rows_of.address
    tensors.x_stride, tensors.batch_rows, tensors.x_batch_stride = x_stride, batch_rows, x_batch_stride
    tensors.weight = _vector(weights, hidden)

    for name, value, written in (("residual", residual, residual_out is None), ("residual_out", residual_out, True),
                                 ("y_out", y_out, True)):
        if value is not None:
            array = read(name, value, written)
            _float_type(array, words, (x_type,))
            setattr(tensors, name, array.address)
            setattr(tensors, name + "_stride", _row_strides(array, lead, hidden)[0])
    for name, value, kind in (("global_scale", global_scale, "float32"), ("device_rows", device_rows, "int32")):
        if value is not None:
            setattr(tensors, name, _single(read(name, value), kind))
    for name, value in (("sum_of_squares", sum_of_squares), ("rstd", rstd)):
        if value is not None:
            array = read(name, value, True)
            _float_type(array, None, (NQ_FP32,))
            setattr(tensors, name, _vector(array, rows))

    if fp4 is None:
        fp4 = _empty(named["fp4"], x, device, (*lead, hidden // 2), "float4_e2m1fn_x2")
    array = _bytes(read("fp4", fp4, True), ("uint8", "float4_e2m1fn_x2"))
    tensors.fp4, tensors.fp4_stride = array.address, _row_strides(array, lead, hidden // 2)[0]

    scale_shape, scale_dtype = (*lead, hidden // block_size), "float8_e4m3fn" if scale_format == NQ_SCALE_E4M3 else "uint8"
    if scales is None:
        scales = _empty(named["scales"], x, device, scale_shape if layout == NQ_LAYOUT_LINEAR else (scale_bytes,), scale_dtype)
    if layout == NQ_LAYOUT_BOTH and scales_linear is None:
        scales_linear = _empty(named["scales_linear"], x, device, scale_shape, scale_dtype)
    if layout != NQ_LAYOUT_LINEAR:
        tensors.scales = _buffer(_bytes(read("scales", scales, True), _SCALE_DTYPES[scale_format]), scale_bytes)
    if layout != NQ_LAYOUT_SWIZZLED:
        name, value = ("scales", scales) if layout == NQ_LAYOUT_LINEAR else ("scales_linear", scales_linear)
        array = _bytes(read(name, value, True), _SCALE_DTYPES[scale_format])
        setattr(tensors, name, array.address)
        tensors.scales_stride = _row_strides(array, lead, hidden // block_size)[0]
    if layout != NQ_LAYOUT_BOTH and scales_linear is not None:
        raise ValueError(f"{named['scales_linear']} is given; accepted: None but for both layouts")

    if device is None:
        library.reference(problem, tensors, threads)
    else:
        (context or default_context()).run(problem, tensors, handle, device)
    return Quantized(fp4, scales, scales_linear)


def _choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; accepted: {', '.join(map(repr, choices))}")
    return choices[value]


def _place(device):
    return "in host memory" if device is None else f"on GPU {device}"


def _float_type(array, words, accepted):
    """NQ_FP16, NQ_BF16 or NQ_FP32; `words` is what 16-bit integers stand for, and what 16-bit floats must then be."""
    found = words if array.dtype in ("uint16", "int16") else _FLOATS.get(array.dtype)
    if found not in accepted or (words is not None and found not in (words, NQ_FP32)):
        allowed = [name for name, value in _FLOATS.items() if value in accepted]
        if NQ_FP32 not in accepted or len(accepted) > 1:
            allowed.append('uint16 words with dtype="bf16" or "fp16"')
        raise ValueError(f"{array.name} is {array.dtype}{_as_words(words)}; accepted: {', '.join(allowed)}")
    return found


def _as_words(words):
    return "".join(f' with dtype="{name}"' for name, value in _WORDS.items() if value == words)


def _bytes(array, accepted):
    if array.dtype not in accepted:
        raise ValueError(f"{array.name} is {array.dtype}; accepted: {', '.join(accepted)}")
    return array


def _row_strides(array, lead, width, batches=False):
    """(row stride, rows a batch, batch stride) as nq_tensors has them, 0 where there is no more than one."""
    if array.shape != (*lead, width):
        raise ValueError(f"{array.name} has the shape {array.shape}; accepted: {(*lead, width)}")
    if prod(lead) == 0:
        return 0, 0, 0
    steps = [(count, stride) for count, stride in zip(lead, array.strides) if count > 1]
    if len(steps) == 2 and steps[0][1] == steps[1][0] * steps[1][1]:
        del steps[0]  # batches one after the other
    adjacent = width == 1 or array.strides[-1] == 1
    apart = not steps or steps[-1][1] >= width
    batched = len(steps) < 2 or (batches and steps[0][1] > 0)
    if not (adjacent and apart and batched):
        raise ValueError(f"{array.name} has the strides {array.strides}; accepted: adjacent elements in a row, and rows at equal distances "
                         f"of at least {width} elements{', and batches likewise' if batches else ''}: it is not copied")
    if len(steps) == 2:
        return steps[1][1], steps[1][0], steps[0][1]
    return (steps[0][1] if steps else 0), 0, 0


def _vector(array, count):
    if array.shape != (count,) or (count > 1 and array.strides != (1,)):
        raise ValueError(f"{array.name} has the shape {array.shape} and the strides {array.strides}; accepted: {count} adjacent elements")
    return array.address


def _single(array, dtype):
    if array.dtype != dtype or prod(array.shape) != 1:
        raise ValueError(f"{array.name} is {array.dtype} of shape {array.shape}; accepted: {dtype} of shape (1,)")
    return array.address


def _buffer(array, count):
    """Any shape: consumers differ in how they see swizzled scales."""
    contiguous = tuple(prod(array.shape[i + 1:]) for i in range(len(array.shape)))
    adjacent = all(stride == expected for size, stride, expected in zip(array.shape, array.strides, contiguous) if size > 1)
    if prod(array.shape) != count or not adjacent:
        raise ValueError(f"{array.name} has the shape {array.shape} and the strides {array.strides}; accepted: {count} adjacent bytes")
    return array.address


# ---- FlashInfer's functions ------------------------------------------------------------------------------------------------

_FLASHINFER_NAMES = {"x": "input", "fp4": "y_fp4", "scales": "block_scale", "scales_linear": "block_scale_unswizzled"}
_warned = False


def _read_global_scale(global_scale, scale_format, block_size):
    """None with UE8M0, as FlashInfer's kernel does not read it either; once said."""
    global _warned
    if global_scale is None or (scale_format or ("ue8m0" if block_size == 32 else "e4m3")) != "ue8m0":
        return global_scale
    with _lock:
        first, _warned = not _warned, True
    if first:
        warnings.warn("global_scale is not read with UE8M0 scales, which have range enough; pass None. This is said once", stacklevel=3)
    return None


def rmsnorm_fp4quant(input, weight, y_fp4=None, block_scale=None, global_scale=None, eps=1e-6, block_size=16, scale_format=None,
                     is_sf_swizzled_layout=False, enable_pdl=None, *, dtype=None, stream=None):
    """FlashInfer's function: normalizes the rows of input, (batch, hidden) or (batch, seq, hidden), and returns (y_fp4, block_scale).

    Parameters, allocation, shapes and types are FlashInfer's: y_fp4 float4_e2m1fn_x2; block_scale like input with hidden/block_size
    columns, or flat where swizzled, float8_e4m3fn for "e4m3" and uint8 for "ue8m0" (uint8 throughout outside PyTorch). enable_pdl None
    or True: programmatic dependent launch where the device has it, by another kernel than with False: warm up with
    --op rmsnorm,add_rmsnorm --overlap off,on. `dtype` and `stream` are quantize()'s.

    On purpose other than there:
      global_scale is documented here as it works in both: it multiplies, y = code * scale / global_scale. With "ue8m0" it is not
        read, as there, with one warning.
      The bytes are exact in fp32 and the same for any batch, GPU and launch; FlashInfer's round products to 16 bits and approximate
        reciprocals, so that some of its codes and scales are others.
      NaN in a row makes all its codes and scales NaN, Inf its block's scale, where FlashInfer has finite values.
      The padding of swizzled scales is written 0, where FlashInfer leaves what was in memory.
      block_size 16 with "ue8m0" gives UE8M0 bytes, where FlashInfer writes E4M3 ones.
      Rows and outputs may have strides; what does not fit is a ValueError, where FlashInfer writes to a copy that is lost.
      No rows are no work; hidden may be any multiple of block_size up to 131072; weights may be fp32; sm_80 and newer.
    """
    out = quantize(input, weight, global_scale=_read_global_scale(global_scale, scale_format, block_size), eps=eps, block_size=block_size,
                   scale_format=scale_format, layout="swizzled" if is_sf_swizzled_layout else "linear", fp4=y_fp4, scales=block_scale,
                   overlap=enable_pdl is None or bool(enable_pdl), dtype=dtype, stream=stream, names=_FLASHINFER_NAMES)
    return out.fp4, out.scales


def add_rmsnorm_fp4quant(input, residual, weight, y_fp4=None, block_scale=None, global_scale=None, eps=1e-6, block_size=16,
                         scale_format=None, is_sf_swizzled_layout=False, output_both_sf_layouts=False, block_scale_unswizzled=None,
                         enable_pdl=None, y_out=None, *, dtype=None, stream=None):
    """FlashInfer's function: adds input to residual, in place, then does with residual what rmsnorm_fp4quant does with input.

    Returns (y_fp4, block_scale), or with output_both_sf_layouts (y_fp4, block_scale, block_scale_unswizzled), the scales swizzled and
    linear; without it block_scale_unswizzled is not looked at. y_out, like input, receives the normed rows.

    Differs on purpose as rmsnorm_fp4quant does, and: a row is normalized from the sum as it is stored, rounded to 16 bits, where FlashInfer
    squares the unrounded one; a residual with strides is updated where it lies.
    """
    out = quantize(input, weight, residual=residual, global_scale=_read_global_scale(global_scale, scale_format, block_size), eps=eps,
                   block_size=block_size, scale_format=scale_format,
                   layout="both" if output_both_sf_layouts else "swizzled" if is_sf_swizzled_layout else "linear",
                   fp4=y_fp4, scales=block_scale, scales_linear=block_scale_unswizzled if output_both_sf_layouts else None, y_out=y_out,
                   overlap=enable_pdl is None or bool(enable_pdl), dtype=dtype, stream=stream, names=_FLASHINFER_NAMES)
    return tuple(out) if output_both_sf_layouts else (out.fp4, out.scales)
