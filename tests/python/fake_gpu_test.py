"""tools/python/normquant.py on arrays of a GPU: of libraries that have __dlpack__ or __cuda_array_interface__, on the driver of
tests/cli/fake_gpu.cpp, whose memory is the host's and whose kernels do what the reference does.

    fake_gpu_test.py LIBRARY NORMQUANT   with NORMQUANT_LIBCUDA and NORMQUANT_NVRTC set
"""

import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import types
import unittest

import support

try:
    import numpy as np
except ImportError:
    support.skip("there is no numpy")

LIBRARY, NORMQUANT = support.arguments(2)
CACHE = tempfile.TemporaryDirectory()
os.environ["NORMQUANT_LIBRARY"] = LIBRARY
os.environ["NORMQUANT_CACHE_DIR"] = CACHE.name
normquant = support.import_module()
quantize, rmsnorm_fp4quant, add_rmsnorm_fp4quant = normquant.quantize, normquant.rmsnorm_fp4quant, normquant.add_rmsnorm_fp4quant

_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))
_DTYPES = {"bfloat16": (4, 16, 1), "float32": (2, 32, 1), "uint8": (1, 8, 1), "int32": (0, 32, 1), "float8_e5m2": (12, 8, 1)}


class DlpackArray:
    """Says that the memory of a numpy array is a GPU's; bf16 are uint16 there."""

    READ_ONLY = False

    def __init__(self, array, dtype=None, device=(2, 0)):
        self.array, self.device, self.streams = array, device, []
        self.dtype = dtype or {"uint16": "bfloat16"}.get(array.dtype.name, array.dtype.name)

    def __dlpack_device__(self):
        return self.device

    def tensor(self):
        ndim = self.array.ndim
        self.sizes = (ctypes.c_int64 * (2 * ndim))(*self.array.shape, *(stride // self.array.itemsize for stride in self.array.strides))
        strides = ctypes.cast(ctypes.addressof(self.sizes) + 8 * ndim, ctypes.POINTER(ctypes.c_int64))
        code, bits, lanes = _DTYPES[self.dtype]
        # With an offset, as views of some libraries have.
        return normquant._DLTensor(self.array.ctypes.data - 64, *self.device, ndim, code, bits, lanes, self.sizes, strides, 64)

    def __dlpack__(self, *, stream, max_version):
        self.streams.append(stream)
        self.managed = normquant._DLManagedTensorVersioned(major=1, minor=0, flags=int(self.READ_ONLY), dl_tensor=self.tensor())
        return _new_capsule(ctypes.addressof(self.managed), b"dltensor_versioned", None)


class OldDlpackArray(DlpackArray):
    def __dlpack__(self, stream):
        self.streams.append(stream)
        self.managed = self.tensor()
        return _new_capsule(ctypes.addressof(self.managed), b"dltensor", None)


class InterfaceArray:
    """As Numba's: no DLPack."""

    def __init__(self, array, stream=None):
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3, "stream": stream}
        self.array = array
        self.dtype = types.SimpleNamespace(name="bfloat16") if array.dtype == np.uint16 else array.dtype
        if array.dtype == np.uint16:
            self.__cuda_array_interface__["typestr"] = "<V2"


def bf16(*shape, seed=2):
    return ((np.random.default_rng(seed).standard_normal(shape) * 3).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def filled(*shape):
    return np.full(shape, 0xEE, np.uint8)


class Arrays(support.TestCase):
    def setUp(self):
        self.x, self.weight, self.residual = bf16(6, 128), bf16(128, seed=3), bf16(6, 128, seed=4)
        self.scale = np.array([250], np.float32)

    def outputs(self, kind, both=False):
        """FP4 and scales, linear or both: memory and arrays."""
        memory = [filled(6, 64), filled(1024), filled(6, 8)] if both else [filled(6, 64), filled(6, 8)]
        return memory, [kind(one) for one in memory]

    def assert_bytes(self, memory, expected):
        self.assertEqual([one.tobytes() for one in memory], [one.tobytes() for one in expected])

    def test_rmsnorm(self):
        expected = rmsnorm_fp4quant(self.x, self.weight, global_scale=self.scale, dtype="bf16")
        for kind in (DlpackArray, OldDlpackArray):
            memory, out = self.outputs(kind)
            found = rmsnorm_fp4quant(kind(self.x), kind(self.weight), *out, global_scale=kind(self.scale), stream=0)
            self.assertIs(found[0], out[0])
            self.assertIs(found[1], out[1])
            self.assert_bytes(memory, expected)

    def test_add_rmsnorm_with_both_layouts(self):
        total = self.residual.copy()
        expected = add_rmsnorm_fp4quant(self.x, total, self.weight, global_scale=self.scale, output_both_sf_layouts=True, dtype="bf16")
        memory, (fp4, swizzled, linear) = self.outputs(DlpackArray, both=True)
        found = add_rmsnorm_fp4quant(
            DlpackArray(self.x), DlpackArray(self.residual), DlpackArray(self.weight), fp4, swizzled, DlpackArray(self.scale),
            output_both_sf_layouts=True, block_scale_unswizzled=linear, stream=0)
        self.assertEqual([id(one) for one in found], [id(one) for one in (fp4, swizzled, linear)])
        self.assert_bytes([*memory, self.residual], [*expected, total])

    def test_no_rows_touch_nothing(self):
        memory, out = self.outputs(DlpackArray)
        empty = [DlpackArray(one.array[:0]) for one in out]
        rmsnorm_fp4quant(DlpackArray(self.x[:0]), DlpackArray(self.weight), *empty, stream=0)
        self.assertTrue(all((one == 0xEE).all() for one in memory))

    def test_producers_are_told_the_stream(self):
        memory, out = self.outputs(DlpackArray)
        arrays = [DlpackArray(self.x), DlpackArray(self.weight), *out]
        torch_stream, cupy_stream = types.SimpleNamespace(cuda_stream=0x77), types.SimpleNamespace(ptr=0x88)
        protocol = types.SimpleNamespace(__cuda_stream__=lambda: (0, 0x99))
        for stream, told in ((0, 1), (0x1234, 0x1234), (torch_stream, 0x77), (cupy_stream, 0x88), (protocol, 0x99)):
            for array in arrays:
                array.streams.clear()
            rmsnorm_fp4quant(*arrays, global_scale=DlpackArray(self.scale), stream=stream)
            self.assertEqual([array.streams for array in arrays], [[told]] * 4)

    def test_a_thread_without_a_context(self):
        memory, out = self.outputs(DlpackArray)
        failures = []

        def call():
            try:
                rmsnorm_fp4quant(DlpackArray(self.x), DlpackArray(self.weight), *out, global_scale=DlpackArray(self.scale), stream=0)
                if normquant._driver().cuCtxGetDevice(ctypes.byref(ctypes.c_int())) == 0:
                    failures.append("a context was left current")
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        self.assertEqual(failures, [])
        self.assert_bytes(memory, rmsnorm_fp4quant(self.x, self.weight, global_scale=self.scale, dtype="bf16"))

    def test_cuda_array_interface(self):
        expected = rmsnorm_fp4quant(self.x, self.weight, global_scale=self.scale, dtype="bf16")
        memory, out = self.outputs(lambda one: InterfaceArray(one, 0x50))

        def call(stream_of_weight=0x50, **kwargs):
            return rmsnorm_fp4quant(InterfaceArray(self.x, 0x50), InterfaceArray(self.weight, stream_of_weight), *out,
                                    global_scale=InterfaceArray(self.scale), **kwargs)

        self.assert_refused(normquant.Error, "input has __cuda_array_interface__ alone, which means .*; there is none in this thread",
                            call)
        with normquant.default_context()._current(0):
            call()
            self.assert_bytes(memory, expected)
            call(stream=0x50)
            self.assert_refused(ValueError, "weight was written on stream 0x60, and the kernel is launched on 0x50", call, 0x60)
            self.assert_refused(ValueError, "input was written on stream 0x50, and the kernel is launched on 0x0", call, stream=0)
            self.assert_refused(ValueError, "stream is None and input is a .*InterfaceArray; accepted: a stream", rmsnorm_fp4quant,
                                InterfaceArray(self.x), InterfaceArray(self.weight), *out)

    def test_cupy(self):
        """Its own current stream and allocator, by the functions that CuPy has for them."""
        current = []

        class Device:
            def __init__(self, ordinal):
                self.ordinal = ordinal

            def __enter__(self):
                current.append(self.ordinal)

            def __exit__(self, *_):
                current.pop()

        class ndarray(DlpackArray):
            pass

        def empty(shape, dtype):
            self.assertEqual((current, dtype), ([0], np.uint8))
            return ndarray(filled(*shape))

        def get_current_stream():
            self.assertEqual(current, [0])
            return types.SimpleNamespace(ptr=0x42)

        sys.modules["cupy"] = types.SimpleNamespace(ndarray=ndarray, uint8=np.uint8, empty=empty,
                                                    cuda=types.SimpleNamespace(Device=Device, get_current_stream=get_current_stream))
        self.addCleanup(sys.modules.pop, "cupy")
        x, weight, scale = ndarray(self.x), ndarray(self.weight), ndarray(self.scale)
        out = rmsnorm_fp4quant(x, weight, global_scale=scale)
        self.assertEqual((x.streams, scale.streams, out[0].streams), ([0x42],) * 3)
        self.assert_bytes([one.array for one in out], rmsnorm_fp4quant(self.x, self.weight, global_scale=self.scale, dtype="bf16"))

    def test_arrays_of_jax_are_inputs(self):
        Array = type("Array", (DlpackArray,), {"__module__": "jaxlib._jax"})
        memory, out = self.outputs(DlpackArray)
        rmsnorm_fp4quant(Array(self.x), Array(self.weight), *out, global_scale=Array(self.scale), stream=0)
        self.assert_bytes(memory, rmsnorm_fp4quant(self.x, self.weight, global_scale=self.scale, dtype="bf16"))
        self.assert_refused(ValueError, "y_fp4 is read-only", rmsnorm_fp4quant, Array(self.x), Array(self.weight), Array(memory[0]),
                            out[1], stream=0)
        self.assert_refused(ValueError, "residual is read-only", add_rmsnorm_fp4quant, Array(self.x), Array(self.residual),
                            Array(self.weight), *out, stream=0)

    def test_errors(self):
        x, weight, scale = DlpackArray(self.x), DlpackArray(self.weight), DlpackArray(self.scale)
        _, (fp4, scales) = self.outputs(DlpackArray)
        readonly = DlpackArray(filled(6, 64))
        readonly.READ_ONLY = True
        aligned = np.zeros(4096, np.uint8)
        aligned = aligned[-aligned.ctypes.data % 64:]
        off = aligned[8:8 + 6 * 256].view(np.uint16).reshape(6, 128)
        for error, pattern, args, kwargs in (
                (ValueError, r"y_fp4 is None, and .* like a .*DlpackArray; accepted: one to write to", (x, weight), {}),
                (ValueError, r"stream is None and input is a .*Array; accepted: a stream", (x, weight, fp4, scales), {"stream": None}),
                (TypeError, r"stream is a builtins.str; accepted: a handle", (x, weight, fp4, scales), {"stream": "0"}),
                (ValueError, r"weight is in host memory; accepted: on GPU 0, as input", (x, self.weight, fp4, scales), {}),
                (ValueError, r"weight is on GPU 1; accepted: on GPU 0, as input",
                 (x, DlpackArray(self.weight, device=(2, 1)), fp4, scales), {}),
                (ValueError, r"weight is on GPU 0; accepted: in host memory, as input", (self.x, weight),
                 {"stream": None, "dtype": "bf16"}),
                (ValueError, r"input is on a device of DLPack's type 10; accepted", (DlpackArray(self.x, device=(10, 0)), weight), {}),
                (ValueError, r"y_fp4 is read-only", (x, weight, readonly, scales), {}),
                (ValueError, r"block_scale is DLPack type \(12, 8, 1\); accepted: uint8, float8_e4m3fn",
                 (x, weight, fp4, DlpackArray(filled(6, 8), "float8_e5m2")), {}),
                (normquant.ArgumentError, r"NQ_ERR_MISALIGNED: nq_tensors.x is .*; accepted: addresses that are multiples of 16",
                 (DlpackArray(off), weight, fp4, scales), {}),
                (normquant.Error, r"device 7: cuDevicePrimaryCtxRetain failed with CUresult 101",
                 tuple(DlpackArray(one.array, one.dtype, (2, 7)) for one in (x, weight, fp4, scales)), {})):
            with self.subTest(pattern):
                self.assert_refused(error, pattern, rmsnorm_fp4quant, *args, **{"stream": 0, **kwargs})
        self.assert_refused(ValueError, "nq_tensors.rstd is .*; accepted: NULL but for nq_reference", quantize, x, weight, fp4=fp4,
                            scales=scales, rstd=DlpackArray(np.ones(6, np.float32)), global_scale=scale, stream=0)


class Contexts(support.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = pathlib.Path(folder.name, "cache")

    def context(self, **options):
        context = normquant.Context(cache_dir=self.cache, **options)
        self.addCleanup(context.close)
        return context

    def test_prepare_launch_and_counters(self):
        events = []
        context = self.context(compile_callback=lambda event: events.append((event.status, event.arch, event.problem)))
        self.assertEqual(context.cache_dir, str(self.cache))
        problem = normquant.Problem(hidden=128)
        kernel = context.prepare(problem, device=0)
        compiles = context.counters()["compiles"]
        self.assertGreater(compiles, 0)
        self.assertEqual(events, [(normquant.NQ_OK, b"sm_90", events[0][2])] * compiles)
        self.assertIn(b"hidden=128", events[0][2])
        self.assertEqual(context.prepare(problem, stream=0x77).value, kernel.value)
        self.assertEqual((context.counters()["compiles"], context.counters()["memory_hits"]), (compiles, 1))

        x, weight, scale = bf16(3, 128), bf16(128), np.array([20], np.float32)
        fp4, scales = filled(3, 64), filled(3, 8)
        context.launch(kernel, normquant.Tensors(rows=3, x=x.ctypes.data, weight=weight.ctypes.data, global_scale=scale.ctypes.data,
                                                 fp4=fp4.ctypes.data, scales=scales.ctypes.data), 0x77)
        expected = quantize(x, weight, global_scale=scale, dtype="bf16")
        self.assertEqual((fp4.tobytes(), scales.tobytes()), (expected.fp4.tobytes(), expected.scales.tobytes()))

    def test_a_primary_context_lives_as_long_as_the_kernels_in_it(self):
        context = self.context()
        problem = normquant.Problem(hidden=128)
        kernel = context.prepare(problem, device=0)
        self.assertEqual(context.prepare(problem, device=0).value, kernel.value)
        context.close()
        context = self.context()
        context.prepare(problem, device=0)
        with self.assertRaises(normquant.Error):
            context.prepare(problem, device=1)
        context.close()

    def test_served_from_the_bundle_of_a_model(self):
        config, bundle = self.cache.parent / "config.json", self.cache.parent / "kernels.nqb"
        config.write_text(json.dumps({"model_type": "llama", "hidden_size": 128, "num_attention_heads": 2, "torch_dtype": "bfloat16"}))
        subprocess.run([NORMQUANT, "warmup", "--model", config, "--arch", "sm_90", "--format", "nvfp4", "--op", "rmsnorm,add_rmsnorm",
                        "--overlap", "off,on", "--bundle", bundle], check=True, capture_output=True)
        module = support.import_module()
        context = module.Context(cache_dir="", bundles=bundle, jit=module.NQ_JIT_OFF)
        module.set_default_context(context)
        x, residual, weight, scale = bf16(3, 128), bf16(3, 128, seed=4), bf16(128, seed=3), np.array([20], np.float32)
        for overlap in (None, False, True):
            for swizzled in (False, True):
                fp4, scales = filled(3, 64), filled(1024 if swizzled else 24)
                if not swizzled:
                    scales = scales.reshape(3, 8)
                arrays = [DlpackArray(one) for one in (weight, fp4, scales, scale)]
                how = {"is_sf_swizzled_layout": swizzled, "enable_pdl": overlap, "stream": 0}
                module.rmsnorm_fp4quant(DlpackArray(x), *arrays, **how)
                module.add_rmsnorm_fp4quant(DlpackArray(x), DlpackArray(residual.copy()), *arrays, **how)
        self.assertEqual(context.counters()["compiles"], 0)

    def test_sealed(self):
        logged = []
        context = self.context(log_callback=lambda level, text: logged.append(text), log_level=normquant.NQ_LOG_DEBUG)
        context.prepare(normquant.Problem(hidden=128), device=0)
        self.assertTrue(logged and all(isinstance(text, str) for text in logged))
        context.seal()
        context.prepare(normquant.Problem(hidden=128), device=0)
        with self.assertRaises(normquant.Error) as raised:
            context.prepare(normquant.Problem(hidden=256), device=0)
        self.assertEqual(raised.exception.status, normquant.NQ_ERR_NOT_PREPARED)
        self.assertNotIsInstance(raised.exception, ValueError)

    def test_precompile(self):
        problems = [normquant.Problem(hidden=hidden) for hidden in (128, 256)]
        events = []
        self.context().precompile(problems, ["sm_90", "sm_86"], progress=lambda event: events.append(
            (event.problem_index, event.arch.decode(), event.cached, event.total)))
        self.assertEqual({event[:2] for event in events}, {(0, "sm_90"), (0, "sm_86"), (1, "sm_90"), (1, "sm_86")})
        self.assertEqual({event[2:] for event in events}, {(0, len(events))})
        again = self.context(jit=normquant.NQ_JIT_OFF)
        again.precompile(problems, ["sm_90"])
        self.assertEqual(again.counters()["compiles"], 0)
        stopped = []
        again.precompile(problems, ["sm_90"], progress=lambda event: stopped.append(event.done) or True)
        self.assertEqual(stopped, [1])
        self.assert_refused(ValueError, "sm_1", again.precompile, problems, ["sm_1"])

    def test_the_functions_use_the_default_context(self):
        module = support.import_module()
        context = module.Context(cache_dir=self.cache, jit=module.NQ_JIT_OFF)
        module.set_default_context(context)
        self.assertIs(module.default_context(), context)
        arrays = [DlpackArray(one) for one in (bf16(3, 128), bf16(128), filled(3, 64), filled(3, 8))]
        for overlap, text in ((None, "overlap=1"), (True, "overlap=1"), (False, 'y_out=0"')):
            self.assert_refused(module.Error, f"NQ_ERR_NOT_PREPARED: .*hidden=128 .*{text}", module.rmsnorm_fp4quant, *arrays,
                                enable_pdl=overlap, stream=0)
        other = normquant.Context(cache_dir=self.cache / "other")
        quantize(arrays[0], arrays[1], fp4=arrays[2], scales=arrays[3], stream=0, context=other)
        self.assertGreater(other.counters()["compiles"], 0)

    def test_bad_options(self):
        self.assert_refused(ValueError, "nq_context_options.jit is 7; accepted", normquant.Context, jit=7)
        self.assert_refused(TypeError, "ContextOptions has no field jitt", normquant.Context, jitt=1)


if __name__ == "__main__":
    unittest.main()
