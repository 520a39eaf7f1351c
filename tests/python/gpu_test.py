"""tools/python/normquant.py with PyTorch on a GPU: the bytes are those of the CPU reference, on the stream that they belong on.

    gpu_test.py LIBRARY

Skipped (77) where PyTorch or a GPU is missing; without CuPy, its test alone. Ends with the host's time of a call, which is not judged.
"""

import os
import sys
import tempfile
import threading
import time
import unittest

import support

try:
    import torch
except ImportError as error:
    support.skip(error)
if not torch.cuda.is_available():
    support.skip("PyTorch finds no GPU")
try:
    import cupy
except ImportError:
    cupy = None

LIBRARY, = support.arguments(1)
CACHE = tempfile.TemporaryDirectory()
os.environ["NORMQUANT_LIBRARY"] = LIBRARY
os.environ["NORMQUANT_CACHE_DIR"] = CACHE.name
normquant = support.import_module()
quantize, rmsnorm_fp4quant, add_rmsnorm_fp4quant = normquant.quantize, normquant.rmsnorm_fp4quant, normquant.add_rmsnorm_fp4quant

GPU = torch.device("cuda", 0)
DELAY_CYCLES = 200_000_000  # of the GPU: far longer than it takes the host to enqueue what is ordered behind it


def normal(*shape, dtype=torch.bfloat16, seed=1):
    """The same on every device."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype).to(GPU)


def filled(*shape, dtype=torch.uint8):
    return torch.full(shape, 0xEE, dtype=torch.uint8, device=GPU).view(dtype)


def data(tensor):
    """Its bytes, on the CPU."""
    return tensor.detach().contiguous().view(torch.uint8).cpu()


def scale(value=250.0):
    return torch.tensor([value], dtype=torch.float32, device=GPU)


def on_cpu(function, *arguments, **keywords):
    """The reference: the same call on copies in host memory, which are returned with what it returns."""
    def copy(value):
        return value.detach().cpu() if isinstance(value, torch.Tensor) else value

    copies = [copy(value) for value in arguments], {name: copy(value) for name, value in keywords.items()}
    return (*function(*copies[0], **copies[1]), copies)


class GpuTestCase(support.TestCase):
    def assert_equal(self, found, expected, what=""):
        self.assertEqual(len(found), len(expected))
        for i, (one, other) in enumerate(zip(found, expected)):
            one, other = data(one), data(other)
            self.assertEqual(one.numel(), other.numel(), f"{what}, {i}")
            if not torch.equal(one.flatten(), other.flatten()):
                different = int((one.flatten() != other.flatten()).sum())
                self.fail(f"{what}: {different} of {one.numel()} bytes of tensor {i} differ from the reference")


class Bytes(GpuTestCase):
    def test_rmsnorm(self):
        formats = ({}, {"block_size": 32}, {"scale_format": "ue8m0"}, {"block_size": 32, "scale_format": "e4m3"})
        shapes = [(2048, (1, 7, 130), torch.bfloat16, formats), (2048, (9,), torch.float16, formats[:2]),
                  (64, (3,), torch.bfloat16, formats[:1]), (2880, (33,), torch.bfloat16, formats[:1]),
                  (7168, (64,), torch.bfloat16, formats[:1]), (16384, (2,), torch.float16, formats[:1])]
        for hidden, counts, dtype, kinds in shapes:
            weight = normal(hidden, dtype=dtype, seed=2)
            for kind in kinds:
                e4m3 = kind.get("scale_format", "ue8m0" if "block_size" in kind else "e4m3") == "e4m3"
                for swizzled in (False, True):
                    for rows in counts:
                        x = normal(rows, hidden, dtype=dtype, seed=rows)
                        arguments = {**kind, "global_scale": scale() if e4m3 else None, "is_sf_swizzled_layout": swizzled}
                        fp4, scales = rmsnorm_fp4quant(x, weight, **arguments)
                        expected = on_cpu(rmsnorm_fp4quant, x, weight, **arguments)
                        self.assert_equal((fp4, scales), expected[:2], f"{rows} x {hidden}, {dtype}, {arguments}")
                        self.assertEqual((fp4.dtype, scales.dtype), (torch.float4_e2m1fn_x2, torch.float8_e4m3fn if e4m3 else torch.uint8))
                        self.assertEqual((fp4.device, scales.device), (GPU, GPU))

    def test_add_rmsnorm(self):
        weight = normal(2048, seed=2)
        for lead in ((5,), (2, 3)):
            x, residual = normal(*lead, 2048, seed=3), normal(*lead, 2048, seed=4)
            y_out = torch.zeros_like(x)
            before, total = x.clone(), residual.clone()
            found = add_rmsnorm_fp4quant(x, total, weight, global_scale=scale(), output_both_sf_layouts=True, y_out=y_out)
            *expected, (copies, keywords) = on_cpu(add_rmsnorm_fp4quant, x, residual, weight, global_scale=scale(),
                                                   output_both_sf_layouts=True, y_out=torch.zeros_like(x))
            self.assert_equal(found, expected, lead)
            self.assert_equal((x, total, y_out), (before, copies[1], keywords["y_out"]), lead)
            self.assertEqual([tuple(one.shape) for one in found], [(*lead, 1024), (128 * 128,), (*lead, 128)])

    def test_what_is_given_is_written_and_returned(self):
        x, weight = normal(6, 2048), torch.nn.Parameter(normal(2048, seed=2))
        expected = on_cpu(rmsnorm_fp4quant, x, weight)[:2]
        for fp4, scales in ((filled(6, 1024), filled(6, 128)),
                            (filled(6, 1024, dtype=torch.float4_e2m1fn_x2), filled(6, 128, dtype=torch.float8_e4m3fn))):
            found = rmsnorm_fp4quant(x, weight, fp4, scales)
            self.assertIs(found[0], fp4)
            self.assertIs(found[1], scales)
            self.assert_equal(found, expected)

    def test_quantize(self):
        """What FlashInfer's functions have no parameter for."""
        x, weight, residual = normal(6, 2048), normal(2048, dtype=torch.float32, seed=2), normal(6, 2048, seed=3)
        total = torch.zeros_like(x)
        keywords = {"residual": residual, "global_scale": scale(), "weight_bias_one": True}
        found = quantize(x, weight, residual_out=total, **keywords)
        *expected, (_, copied) = on_cpu(quantize, x, weight, residual_out=torch.zeros_like(x), **keywords)
        self.assert_equal((found.fp4, found.scales, total), (*expected[:2], copied["residual_out"]))
        for count in (4, 0):
            fp4, scales = filled(6, 1024), filled(6, 128)
            quantize(x, weight, fp4=fp4, scales=scales, device_rows=torch.tensor([count], dtype=torch.int32, device=GPU), **keywords)
            self.assert_equal((fp4[:count], scales[:count]), (found.fp4[:count], found.scales[:count]))
            self.assertTrue(bool((fp4[count:] == 0xEE).all()) and bool((scales[count:] == 0xEE).all()))

    def test_no_rows(self):
        fp4, scales = rmsnorm_fp4quant(normal(2, 2048)[:0], normal(2048), is_sf_swizzled_layout=True)
        self.assertEqual((tuple(fp4.shape), tuple(scales.shape)), ((0, 1024), (0,)))


class Views(GpuTestCase):
    """Nothing is copied: PyTorch's allocator is not asked for anything."""

    def assert_in_place(self, x, function=rmsnorm_fp4quant, **keywords):
        lead = tuple(x.shape[:-1])
        weight, global_scale = normal(2048, seed=2), scale()
        outputs = filled(*lead, 1024), filled(*lead, 128)
        before = torch.cuda.memory_stats(GPU)["allocation.all.allocated"]
        found = function(x, weight, *outputs, global_scale=global_scale, **keywords)
        self.assertEqual(torch.cuda.memory_stats(GPU)["allocation.all.allocated"], before)
        self.assert_equal(found, on_cpu(function, x.contiguous(), weight, global_scale=global_scale, **keywords)[:2])

    def test_column_slices(self):
        wide = normal(6, 5000)
        self.assert_in_place(wide[:, 8:2056])
        self.assert_in_place(wide[:, 2952:])
        self.assert_in_place(wide[::3, :2048])

    def test_batches(self):
        sequences = normal(3, 4, 2048)
        self.assert_in_place(sequences)
        self.assert_in_place(sequences.transpose(0, 1))
        self.assert_in_place(normal(3, 9, 4096)[:, 2:6, 2048:])
        self.assert_in_place(normal(3, 9, 4096)[:, :1, 2048:])

    def test_outputs_with_strides(self):
        x, weight = normal(6, 2048), normal(2048, seed=2)
        fp4, scales = filled(6, 1200), filled(6, 150)
        found = rmsnorm_fp4quant(x, weight, fp4[:, 16:1040], scales[:, 3:131])
        self.assert_equal(found, on_cpu(rmsnorm_fp4quant, x, weight)[:2])
        for whole, first, last in ((fp4, 16, 1040), (scales, 3, 131)):
            self.assertTrue(bool((whole[:, :first] == 0xEE).all()) and bool((whole[:, last:] == 0xEE).all()))

    def test_a_residual_with_strides_is_updated_where_it_lies(self):
        x, weight, wide = normal(6, 2048), normal(2048, seed=2), normal(6, 2304, seed=3)
        residual, neighbours = wide[:, 128:2176], wide.clone()
        *expected, (copies, _) = on_cpu(add_rmsnorm_fp4quant, x, residual, weight)
        self.assert_equal(add_rmsnorm_fp4quant(x, residual, weight), expected)
        self.assert_equal((residual, wide[:, :128], wide[:, 2176:]), (copies[1], neighbours[:, :128], neighbours[:, 2176:]))


class Streams(GpuTestCase):
    def setUp(self):
        self.weight, self.scale = normal(2048, seed=2), scale()
        self.x, self.earlier, self.later = normal(6, 2048, seed=3), normal(6, 2048, seed=3), normal(6, 2048, seed=4)
        self.expected = on_cpu(rmsnorm_fp4quant, self.later, self.weight, global_scale=self.scale)[:2]
        self.side = torch.cuda.Stream(device=GPU)
        # What is done for the first time may wait for the GPU.
        rmsnorm_fp4quant(self.x, self.weight, global_scale=self.scale)
        torch.cuda._sleep(1)
        torch.cuda.synchronize(GPU)

    def assert_ordered(self, call):
        """call(outputs) while x is about to change on the side stream: what it reads there is the later x."""
        self.x.copy_(self.earlier)
        outputs = filled(6, 1024), filled(6, 128)
        torch.cuda.synchronize(GPU)
        with torch.cuda.stream(self.side):
            torch.cuda._sleep(DELAY_CYCLES)
            self.x.copy_(self.later)
        call(outputs)
        self.assertFalse(self.side.query(), "the delay was over before the call returned, so that nothing was shown")
        self.side.synchronize()
        torch.cuda.synchronize(GPU)
        self.assert_equal(outputs, self.expected)

    def test_the_current_stream(self):
        def call(outputs):
            with torch.cuda.stream(self.side):
                rmsnorm_fp4quant(self.x, self.weight, *outputs, global_scale=self.scale)

        self.assert_ordered(call)

    def test_a_stream_that_is_given(self):
        for stream in (self.side, self.side.cuda_stream):
            self.assert_ordered(lambda outputs: rmsnorm_fp4quant(self.x, self.weight, *outputs, global_scale=self.scale, stream=stream))

    def test_the_test_sees_another_stream(self):
        with self.assertRaisesRegex(AssertionError, "bytes of tensor 0 differ"):
            self.assert_ordered(lambda outputs: rmsnorm_fp4quant(self.x, self.weight, *outputs, global_scale=self.scale, stream=0))

    def test_a_thread_of_its_own(self):
        outputs = filled(6, 1024), filled(6, 128)
        torch.cuda.synchronize(GPU)
        failures = []

        def call():
            try:  # nothing of CUDA was called in this thread
                rmsnorm_fp4quant(self.later, self.weight, *outputs, global_scale=self.scale)
            except Exception as error:
                failures.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        self.assertEqual(failures, [])
        torch.cuda.synchronize(GPU)
        self.assert_equal(outputs, self.expected)

    def test_another_device_than_the_current(self):
        if torch.cuda.device_count() < 2:
            self.skipTest("one GPU")
        other = torch.device("cuda", 1)
        x, weight, global_scale = (tensor.to(other) for tensor in (self.later, self.weight, self.scale))
        found = rmsnorm_fp4quant(x, weight, global_scale=global_scale)
        self.assertEqual((found[0].device, torch.cuda.current_device()), (other, 0))
        torch.cuda.synchronize(other)
        self.assert_equal(found, self.expected)
        self.assert_refused(ValueError, "weight is on GPU 0; accepted: on GPU 1, as input", rmsnorm_fp4quant, x, self.weight)


class Graphs(GpuTestCase):
    def test_capture_after_prepare(self):
        """Every replay reads what is then in x, the residual and the global scale."""
        hidden = 3072  # of no other test
        context = normquant.default_context()
        context.prepare(normquant.Problem(hidden=hidden, op=normquant.NQ_OP_ADD_RMSNORM, scale_layout=normquant.NQ_LAYOUT_SWIZZLED,
                                          flags=normquant.NQ_PROBLEM_OVERLAP), device=GPU.index)
        compiles = context.counters()["compiles"]
        x, residual, weight, global_scale = normal(8, hidden), normal(8, hidden, seed=2), normal(hidden, seed=3), scale()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = add_rmsnorm_fp4quant(x, residual, weight, global_scale=global_scale, is_sf_swizzled_layout=True)
            second = add_rmsnorm_fp4quant(x, residual, weight, global_scale=global_scale, is_sf_swizzled_layout=True, enable_pdl=None)
        self.assertEqual(context.counters()["compiles"], compiles)
        for step in range(3):
            x.copy_(normal(8, hidden, seed=10 + step))
            residual.copy_(normal(8, hidden, seed=20 + step))
            global_scale.fill_(100.0 + 50 * step)
            host = [tensor.cpu() for tensor in (x, residual, weight)]
            expected = [add_rmsnorm_fp4quant(*host, global_scale=global_scale.cpu(), is_sf_swizzled_layout=True) for _ in range(2)]
            graph.replay()
            torch.cuda.synchronize(GPU)
            self.assert_equal((*found, *second, residual), (*expected[0], *expected[1], host[1]), f"replay {step}")

    def test_what_is_not_prepared_fails_and_the_capture_goes_on(self):
        x, weight = normal(4, 2048), normal(2048, seed=2)
        unprepared, its_weight = normal(4, 3584), normal(3584)
        rmsnorm_fp4quant(x, weight)
        expected = on_cpu(rmsnorm_fp4quant, x, weight)[:2]
        raised = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            try:
                rmsnorm_fp4quant(unprepared, its_weight)
            except normquant.Error as error:
                raised = error
            found = rmsnorm_fp4quant(x, weight)
        self.assertIsNotNone(raised)
        self.assertEqual((raised.status, raised.name), (normquant.NQ_ERR_NOT_PREPARED, "NQ_ERR_NOT_PREPARED"))
        graph.replay()
        torch.cuda.synchronize(GPU)
        self.assert_equal(found, expected)


class OtherLibraries(GpuTestCase):
    """Arrays by protocol alone, in PyTorch's memory."""

    def setUp(self):
        self.x, self.weight, self.scale = normal(6, 2048, dtype=torch.float16), normal(2048, dtype=torch.float16, seed=2), scale()
        self.expected = on_cpu(rmsnorm_fp4quant, self.x, self.weight, global_scale=self.scale)[:2]

    def assert_works(self, wrap):
        outputs = filled(6, 1024), filled(6, 128)
        torch.cuda.synchronize(GPU)
        rmsnorm_fp4quant(wrap(self.x), wrap(self.weight), *(wrap(one) for one in outputs), global_scale=wrap(self.scale), stream=0)
        torch.cuda.synchronize(GPU)
        self.assert_equal(outputs, self.expected)

    def test_dlpack(self):
        class Wrapped:
            def __init__(self, tensor):
                self.tensor = tensor

            def __dlpack_device__(self):
                return self.tensor.__dlpack_device__()

            def __dlpack__(self, **keywords):
                return self.tensor.__dlpack__(**keywords)

        self.assert_works(Wrapped)
        self.assert_refused(ValueError, "stream is None and input is a .*Wrapped; accepted: a stream", rmsnorm_fp4quant, Wrapped(self.x),
                            Wrapped(self.weight))
        self.assert_refused(ValueError, "y_fp4 is None, and .* like a .*Wrapped; accepted: one to write to", rmsnorm_fp4quant,
                            Wrapped(self.x), Wrapped(self.weight), stream=0)

    def test_cuda_array_interface(self):
        class Wrapped:
            def __init__(self, tensor):
                self.tensor, self.__cuda_array_interface__ = tensor, tensor.__cuda_array_interface__

        self.assert_works(Wrapped)

    @unittest.skipIf(cupy is None, "there is no CuPy")
    def test_cupy(self):
        x, weight, global_scale = (cupy.from_dlpack(tensor) for tensor in (self.x, self.weight, self.scale))
        torch.cuda.synchronize(GPU)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            fp4, scales = rmsnorm_fp4quant(x, weight, global_scale=global_scale)
        stream.synchronize()
        self.assertIsInstance(fp4, cupy.ndarray)
        self.assert_equal((torch.from_dlpack(fp4), torch.from_dlpack(scales)), self.expected)


class Errors(GpuTestCase):
    def test_arguments(self):
        x, weight = normal(6, 2048), normal(2048, seed=2)
        for error, pattern, arguments, keywords in (
                (ValueError, r"weight is in host memory; accepted: on GPU 0, as input", (x, weight.cpu()), {}),
                (ValueError, r"weight is on GPU 0; accepted: in host memory, as input", (x.cpu(), weight), {}),
                (ValueError, r"y_fp4 is in host memory", (x, weight, torch.empty(6, 1024, dtype=torch.uint8)), {}),
                (ValueError, r"global_scale is in host memory", (x, weight), {"global_scale": torch.ones(1)}),
                (ValueError, r"input is on meta; accepted: cuda, cpu", (x.to("meta"), weight), {}),
                (ValueError, r"input is float32; accepted: float16, bfloat16", (x.float(), weight), {}),
                (ValueError, r"weight is float16; accepted: bfloat16, float32", (x, weight.half()), {}),
                (ValueError, r"global_scale is bfloat16 of shape \(1,\); accepted: float32", (x, weight),
                 {"global_scale": scale().bfloat16()}),
                (ValueError, r"input has the shape \(2048,\)", (x[0], weight), {}),
                (ValueError, r"weight has the shape \(1024,\)", (x, weight[:1024]), {}),
                (ValueError, r"y_fp4 has the shape \(6, 2048\); accepted: \(6, 1024\)", (x, weight, filled(6, 2048)), {}),
                (ValueError, r"block_scale is float8_e5m2; accepted: uint8, float8_e4m3fn",
                 (x, weight, None, filled(6, 128, dtype=torch.float8_e5m2)), {}),
                (ValueError, r"block_scale has the shape \(6, 128\) .*; accepted: 16384 adjacent bytes", (x, weight, None, filled(6, 128)),
                 {"is_sf_swizzled_layout": True}),
                (ValueError, r"input has the strides \(1, 2048\)", (normal(2048, 2048).t(), weight), {}),
                (ValueError, r"input has the strides \(0, 1\)", (x[:1].expand(6, 2048), weight), {}),
                (normquant.ArgumentError, r"NQ_ERR_MISALIGNED: nq_tensors.x is .*; accepted: addresses",
                 (normal(6, 4096)[:, 4:2052], weight), {}),
                (normquant.ArgumentError, r"NQ_ERR_MISALIGNED: nq_tensors.x_stride is 2052", (normal(6, 2052)[:, :2048], weight), {}),
                (normquant.ArgumentError, r"nq_problem.block_size is 64; accepted: 16, 32", (x, weight), {"block_size": 64}),
                (TypeError, r"weight is a builtins.NoneType", (x, None), {})):
            with self.subTest(pattern):
                self.assert_refused(error, pattern, rmsnorm_fp4quant, *arguments, **keywords)
        torch.cuda.synchronize(GPU)  # nothing was launched that fails

    def test_a_residual_that_cannot_be_addressed_is_left_alone(self):
        x = normal(3, 4, 2048).transpose(0, 1)
        residual = normal(3, 4, 2048, seed=2).transpose(0, 1)
        before = residual.clone()
        self.assert_refused(ValueError, "residual has the strides .*; accepted: .*it is not copied", add_rmsnorm_fp4quant, x, residual,
                            normal(2048, seed=2))
        torch.cuda.synchronize(GPU)
        self.assert_equal((residual,), (before,))


def host_time():
    x, weight, global_scale = normal(1, 2048), normal(2048), scale()
    fp4, scales = filled(1, 1024), filled(1, 128)
    for outputs, what in (((fp4, scales), "outputs given"), ((None, None), "outputs allocated")):
        best = float("inf")
        for _ in range(10):
            torch.cuda.synchronize(GPU)
            start = time.perf_counter()
            for _ in range(200):
                rmsnorm_fp4quant(x, weight, *outputs, global_scale)
            best = min(best, (time.perf_counter() - start) / 200)
        torch.cuda.synchronize(GPU)
        print(f"host's time of rmsnorm_fp4quant, 1 x 2048, {what}: {best * 1e6:.1f} us")


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name(GPU)}, PyTorch {torch.__version__}")
    program = unittest.main(exit=False)
    if program.result.wasSuccessful():
        host_time()
    sys.exit(0 if program.result.wasSuccessful() else 1)
