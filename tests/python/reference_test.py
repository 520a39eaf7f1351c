"""tools/python/normquant.py on numpy arrays, which run the CPU reference.

    reference_test.py LIBRARY
"""

import ctypes
import ctypes.util
import inspect
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings

import support

try:
    import numpy as np
except ImportError:
    support.skip("there is no numpy")

LIBRARY, = support.arguments(1)
os.environ["NORMQUANT_LIBRARY"] = LIBRARY
normquant = support.import_module()
quantize, rmsnorm_fp4quant, add_rmsnorm_fp4quant = normquant.quantize, normquant.rmsnorm_fp4quant, normquant.add_rmsnorm_fp4quant

DTYPES = {0: np.float16, 1: np.uint16, 2: np.float32}  # bf16 as words
FORMATS, LAYOUTS = ("e4m3", "ue8m0"), ("linear", "swizzled")


def array(data, dtype, *shape):
    return np.frombuffer(data, DTYPES[dtype]).reshape(shape).copy()


def single(value):
    return np.array([value], np.float32)


def rows(*shape, seed=2):
    return (np.random.default_rng(seed).standard_normal(shape) * 3).astype(np.float16)


def filled(shape, dtype=np.uint8):
    """Of bytes that no call may leave behind."""
    return np.full(int(np.prod(shape)) * np.dtype(dtype).itemsize, 0xEE, np.uint8).view(dtype).reshape(shape)


class GoldenCases(support.TestCase):
    def assert_floats(self, found, expected):
        """Equal bits, but for the sign and payload of a NaN."""
        expected = np.frombuffer(expected, np.float32)
        same = (found.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(found) & np.isnan(expected))
        self.assertTrue(same.all())

    def test_quantize(self):
        cases = support.golden_cases()
        self.assertGreater(len(cases), 25)
        for case in cases:
            with self.subTest(case.name):
                shape = case.rows, case.hidden
                residual = array(case.residual, case.dtype, *shape) if case.flags & case.ADD else None
                y_out = filled(shape, DTYPES[case.dtype]) if case.flags & case.Y_OUT else None
                squares, rstd = np.empty(case.rows, np.float32), np.empty(case.rows, np.float32)
                x = array(case.x, case.dtype, *shape)
                out = quantize(
                    x, array(case.weight, case.weight_dtype, case.hidden), residual=residual, y_out=y_out,
                    global_scale=single(case.global_scale) if case.flags & case.GLOBAL_SCALE else None, eps=case.eps,
                    block_size=case.block_size, scale_format=FORMATS[case.scale_format], layout=LAYOUTS[case.layout],
                    weight_bias_one=bool(case.flags & case.BIAS_ONE), sum_of_squares=squares, rstd=rstd,
                    dtype="bf16" if case.dtype == 1 else None)
                self.assertEqual((out.fp4.tobytes(), out.scales.tobytes()), (case.fp4, case.scales))
                self.assertEqual(x.tobytes(), case.x)
                self.assertEqual(b"" if residual is None else residual.tobytes(), case.new_residual)
                self.assertEqual(b"" if y_out is None else y_out.tobytes(), case.y_out)
                self.assert_floats(squares, case.sum_of_squares)
                self.assert_floats(rstd, case.rstd)

    def test_flashinfers_functions(self):
        tested = set()
        for case in support.golden_cases():
            add, y_out = bool(case.flags & case.ADD), bool(case.flags & case.Y_OUT)
            if case.flags & case.BIAS_ONE or (y_out and not add):
                continue  # there is no parameter
            with self.subTest(case.name):
                shape = case.rows, case.hidden
                x, weight = array(case.x, case.dtype, *shape), array(case.weight, case.weight_dtype, case.hidden)
                common = {"global_scale": single(case.global_scale) if case.flags & case.GLOBAL_SCALE else None, "eps": case.eps,
                          "block_size": case.block_size, "scale_format": FORMATS[case.scale_format],
                          "is_sf_swizzled_layout": case.layout == 1, "dtype": "bf16" if case.dtype == 1 else None}
                if add:
                    residual = array(case.residual, case.dtype, *shape)
                    y = filled(shape, DTYPES[case.dtype]) if y_out else None
                    fp4, scales = add_rmsnorm_fp4quant(x, residual, weight, y_out=y, **common)
                    self.assertEqual(residual.tobytes(), case.new_residual)
                    self.assertEqual(y.tobytes() if y_out else b"", case.y_out)
                else:
                    fp4, scales = rmsnorm_fp4quant(x, weight, **common)
                self.assertEqual((fp4.tobytes(), scales.tobytes()), (case.fp4, case.scales))
                tested.add((add, y_out))
        self.assertEqual(tested, {(False, False), (True, False), (True, True)})


class FlashInfersFunctions(support.TestCase):
    def setUp(self):
        self.x, self.weight = rows(6, 128), rows(128, seed=3)

    def test_signatures(self):
        def parameters(function):
            return [(p.name, p.default) for p in inspect.signature(function).parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD]

        empty = inspect.Parameter.empty
        shared = [("weight", empty), ("y_fp4", None), ("block_scale", None), ("global_scale", None), ("eps", 1e-6), ("block_size", 16),
                  ("scale_format", None), ("is_sf_swizzled_layout", False)]
        self.assertEqual(parameters(rmsnorm_fp4quant), [("input", empty), *shared, ("enable_pdl", None)])
        self.assertEqual(parameters(add_rmsnorm_fp4quant),
                         [("input", empty), ("residual", empty), *shared, ("output_both_sf_layouts", False),
                          ("block_scale_unswizzled", None), ("enable_pdl", None), ("y_out", None)])

    def test_what_is_allocated(self):
        for lead in ((6,), (2, 3)):
            x = self.x.reshape(*lead, 128)
            for kwargs, columns in (({}, 8), ({"block_size": 32}, 4), ({"block_size": 32, "scale_format": "e4m3"}, 4)):
                fp4, scales = rmsnorm_fp4quant(x, self.weight, **kwargs)
                self.assertEqual((fp4.shape, scales.shape, fp4.dtype, scales.dtype), ((*lead, 64), (*lead, columns), np.uint8, np.uint8))
            fp4, swizzled, linear = add_rmsnorm_fp4quant(x, x.copy(), self.weight, output_both_sf_layouts=True)
            self.assertEqual((fp4.shape, swizzled.shape, linear.shape), ((*lead, 64), (1024,), (*lead, 8)))
            self.assertEqual(rmsnorm_fp4quant(x, self.weight, is_sf_swizzled_layout=True)[1].shape, (1024,))

    def test_what_is_given_is_written_and_returned(self):
        expected = add_rmsnorm_fp4quant(self.x, self.x.copy(), self.weight, output_both_sf_layouts=True)
        given = filled((6, 64)), filled((4, 256)), filled((6, 8))  # swizzled scales in a shape of the caller's
        y_out = filled((6, 128), np.float16)
        fp4, swizzled, linear = add_rmsnorm_fp4quant(self.x, self.x.copy(), self.weight, *given[:2], output_both_sf_layouts=True,
                                                     block_scale_unswizzled=given[2], y_out=y_out)
        for one, written, right in zip((fp4, swizzled, linear), given, expected):
            self.assertIs(one, written)
            self.assertEqual(one.tobytes(), right.tobytes())
        doubled = quantize(self.x, self.weight, residual=self.x.copy(), y_out=filled((6, 128), np.float16))
        self.assertEqual(doubled.fp4.tobytes(), fp4.tobytes())

    def test_layouts_hold_the_same_scales(self):
        _, swizzled, linear = add_rmsnorm_fp4quant(self.x, self.x.copy(), self.weight, output_both_sf_layouts=True)
        padding = np.ones(1024, bool)
        for row in range(6):
            for block in range(8):
                at = (block // 4) * 512 + (row % 32) * 16 + (row // 32) * 4 + block % 4
                self.assertEqual(swizzled[at], linear[row, block])
                padding[at] = False
        self.assertFalse(swizzled[padding].any())

    def test_three_dimensions_are_rows(self):
        flat = rmsnorm_fp4quant(self.x, self.weight)
        deep = rmsnorm_fp4quant(self.x.reshape(2, 3, 128), self.weight)
        for one, other in zip(flat, deep):
            self.assertEqual(one.tobytes(), other.tobytes())

    def test_formats_by_default(self):
        for block_size, scale_format in ((16, "e4m3"), (32, "ue8m0")):
            for one, other in zip(rmsnorm_fp4quant(self.x, self.weight, block_size=block_size),
                                  rmsnorm_fp4quant(self.x, self.weight, block_size=block_size, scale_format=scale_format)):
                self.assertEqual(one.tobytes(), other.tobytes())

    def test_blocks_of_16_with_ue8m0_have_powers_of_two(self):
        x = np.full((1, 64), 6, np.float16)
        weight = np.full(64, 6, np.float16)
        _, scales = rmsnorm_fp4quant(x, weight, eps=0, scale_format="ue8m0")  # y is 6: the scale is 1
        self.assertEqual(scales.tolist(), [[127] * 4])

    def test_the_global_scale_multiplies(self):
        x = np.full((1, 64), 4, np.float16)
        weight = np.full(64, 4, np.float16)
        _, scales = rmsnorm_fp4quant(x, weight, eps=0, global_scale=single(672))  # y is 4: 4 * 672 / 6 is 448
        self.assertEqual(scales.tolist(), [[0x7E] * 4])

    def test_nan_stays_visible(self):
        clean = rmsnorm_fp4quant(self.x, self.weight)
        x = self.x.copy()
        x[2, 5] = np.nan
        fp4, scales = rmsnorm_fp4quant(x, self.weight)
        self.assertEqual((set(fp4[2]), set(scales[2])), ({0x77}, {0x7F}))
        for row in (0, 1, 3, 4, 5):
            self.assertEqual((fp4[row].tobytes(), scales[row].tobytes()), (clean[0][row].tobytes(), clean[1][row].tobytes()))

    def test_a_global_scale_is_not_read_with_ue8m0(self):
        module = support.import_module()
        expected = [out.tobytes() for out in module.rmsnorm_fp4quant(self.x, self.weight, block_size=32)]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3):
                found = module.rmsnorm_fp4quant(self.x, self.weight, block_size=32, global_scale=single(7))
                self.assertEqual([out.tobytes() for out in found], expected)
            module.add_rmsnorm_fp4quant(self.x, self.x.copy(), self.weight, scale_format="ue8m0", global_scale=single(7))
        self.assertEqual([(w.category, pathlib.Path(w.filename).name) for w in caught], [(UserWarning, "reference_test.py")])
        self.assertIn("global_scale is not read with UE8M0", str(caught[0].message))
        self.assert_refused(module.ArgumentError, "global_scale is .*; accepted: NULL with NQ_SCALE_UE8M0", module.quantize, self.x,
                            self.weight, block_size=32, global_scale=single(7))

    def test_both_layouts_need_not_be_given_both_buffers(self):
        unused = filled((6, 8))
        out = add_rmsnorm_fp4quant(self.x, self.x.copy(), self.weight, block_scale_unswizzled=unused)
        self.assertEqual(len(out), 2)
        self.assertTrue((unused == 0xEE).all())

    def test_no_rows(self):
        for shape in ((0, 128), (0, 5, 128), (5, 0, 128)):
            x = np.empty(shape, np.float16)
            fp4, scales = rmsnorm_fp4quant(x, self.weight)
            self.assertEqual((fp4.shape, scales.shape), ((*shape[:-1], 64), (*shape[:-1], 8)))
            self.assertEqual(add_rmsnorm_fp4quant(x, x.copy(), self.weight, is_sf_swizzled_layout=True)[1].shape, (0,))


class Strides(support.TestCase):
    """What is addressed where it lies."""

    def setUp(self):
        self.x, self.weight = rows(6, 128), rows(128, seed=3)
        self.expected = rmsnorm_fp4quant(self.x, self.weight)

    def assert_expected(self, out, expected=None):
        for one, right in zip(out, expected or self.expected):
            self.assertEqual(np.ascontiguousarray(one).tobytes(), right.tobytes())

    def test_column_slices(self):
        wide = filled((6, 300), np.float16)
        wide[:, 7:135] = self.x
        self.assert_expected(rmsnorm_fp4quant(wide[:, 7:135], self.weight))
        fp4, scales = filled((6, 100)), filled((6, 20))
        out = rmsnorm_fp4quant(self.x, self.weight, fp4[:, 3:67], scales[:, 5:13])
        self.assert_expected(out)
        self.assertTrue((np.delete(fp4, range(3, 67), 1) == 0xEE).all() and (np.delete(scales, range(5, 13), 1) == 0xEE).all())

    def test_rows_apart(self):
        apart = np.repeat(self.x, 3, 0)
        self.assert_expected(rmsnorm_fp4quant(apart[::3], self.weight))

    def test_batches(self):
        sequences = np.ascontiguousarray(self.x.reshape(2, 3, 128).transpose(1, 0, 2))  # as [S][B][H]
        self.assert_expected(rmsnorm_fp4quant(sequences.transpose(1, 0, 2), self.weight))
        padded = filled((2, 5, 200), np.float16)
        padded[:, :3, :128] = self.x.reshape(2, 3, 128)
        self.assert_expected(rmsnorm_fp4quant(padded[:, :3, :128], self.weight))
        for shape in ((6, 1, 128), (1, 6, 128)):
            self.assert_expected(rmsnorm_fp4quant(self.x.reshape(shape), self.weight))

    def test_strides_of_what_there_is_one_of_do_not_matter(self):
        one = np.lib.stride_tricks.as_strided(self.x, (1, 128), (-4, 2))
        self.assert_expected(rmsnorm_fp4quant(one, self.weight), [out[:1] for out in self.expected])
        one = np.lib.stride_tricks.as_strided(self.x, (1, 1, 128), (0, 0, 2))
        self.assert_expected(rmsnorm_fp4quant(one, self.weight), [out[:1] for out in self.expected])

    def test_the_residual_is_updated_in_place(self):
        residual = rows(6, 128, seed=4)
        expected_sum = (self.x.astype(np.float32) + residual.astype(np.float32)).astype(np.float16)
        expected = rmsnorm_fp4quant(expected_sum, self.weight)
        before = self.x.tobytes()
        for columns in (128, 160):
            wide = filled((6, columns), np.float16)
            wide[:, :128] = residual
            self.assert_expected(add_rmsnorm_fp4quant(self.x, wide[:, :128], self.weight), expected)
            self.assertEqual(wide[:, :128].tobytes(), expected_sum.tobytes())
            self.assertTrue((wide[:, 128:].copy().view(np.uint8) == 0xEE).all())
        self.assertEqual(self.x.tobytes(), before)

    def test_residual_out(self):
        residual = rows(6, 128, seed=4)
        residual.flags.writeable = False  # an input
        total = filled((6, 128), np.float16)
        quantize(self.x, self.weight, residual=residual, residual_out=total)
        self.assertEqual(total.tobytes(), (self.x.astype(np.float32) + residual.astype(np.float32)).astype(np.float16).tobytes())

    def test_what_is_not_so_addressed_is_refused_and_left_alone(self):
        transposed = np.ascontiguousarray(self.x.reshape(2, 3, 128).transpose(1, 0, 2)).transpose(1, 0, 2)
        residual = transposed.copy(order="K")
        self.assertFalse(residual.flags.c_contiguous)
        before = residual.tobytes()
        self.assert_refused(ValueError, r"residual has the strides \(128, 256, 1\); accepted: .*it is not copied", add_rmsnorm_fp4quant,
                            transposed, residual, self.weight)
        self.assertEqual(residual.tobytes(), before)
        for x in (np.asfortranarray(self.x), self.x[:, ::-1], self.x[::-1], np.broadcast_to(self.x[:1], (6, 128)),
                  np.broadcast_to(self.x[None], (2, 6, 128)), rows(6, 256)[:, ::2]):
            self.assert_refused(ValueError, "input has the strides", rmsnorm_fp4quant, x, self.weight)
        self.assert_refused(ValueError, "weight has .* the strides", rmsnorm_fp4quant, self.x, rows(256)[::2])
        self.assert_refused(ValueError, "y_fp4 has the strides", rmsnorm_fp4quant, self.x, self.weight, filled((6, 128))[:, ::2])
        self.assert_refused(ValueError, "block_scale has .* the strides .*; accepted: 1024 adjacent bytes", rmsnorm_fp4quant, self.x,
                            self.weight, None, filled(2048)[::2], is_sf_swizzled_layout=True)


class Quantize(support.TestCase):
    def setUp(self):
        self.x, self.weight = rows(6, 128), rows(128, seed=3)

    def test_device_rows(self):
        expected = quantize(self.x, self.weight)
        for count, used in ((4, 4), (0, 0), (-3, 0), (9, 6)):
            fp4, scales = filled((6, 64)), filled((6, 8))
            quantize(self.x, self.weight, fp4=fp4, scales=scales, device_rows=np.array([count], np.int32))
            self.assertEqual((fp4[:used].tobytes(), scales[:used].tobytes()),
                             (expected.fp4[:used].tobytes(), expected.scales[:used].tobytes()))
            self.assertTrue((fp4[used:] == 0xEE).all() and (scales[used:] == 0xEE).all())

    def test_padding_may_be_kept(self):
        cleared, kept = filled(1024), filled(1024)
        quantize(self.x, self.weight, layout="swizzled", scales=cleared)
        quantize(self.x, self.weight, layout="swizzled", scales=kept, keep_padding=True)
        self.assertEqual((int((cleared == 0).sum()), int((kept == 0xEE).sum())), (1024 - 48, 1024 - 48))

    def test_threads_change_nothing(self):
        for one, other in zip(quantize(self.x, self.weight, threads=1)[:2], quantize(self.x, self.weight, threads=5)[:2]):
            self.assertEqual(one.tobytes(), other.tobytes())

    def test_signed_words_too(self):
        one = quantize(self.x.view(np.int16), self.weight.view(np.uint16), dtype="fp16")
        self.assertEqual(one.fp4.tobytes(), quantize(self.x, self.weight).fp4.tobytes())

    def test_dlpack_in_host_memory(self):
        class Exported:  # of another library: neither numpy's nor PyTorch's type
            def __init__(self, array):
                self.array = array

            def __dlpack_device__(self):
                return self.array.__dlpack_device__()

        class Old(Exported):  # before DLPack 1.0
            def __dlpack__(self, stream=None):
                return self.array.__dlpack__()

        class New(Exported):
            def __dlpack__(self, *, max_version=None, **kwargs):
                return self.array.__dlpack__(max_version=max_version, **kwargs)

        wide = rows(6, 200)
        expected = quantize(wide[:, 8:136], self.weight)
        kinds = [Old, New] if np.lib.NumpyVersion(np.__version__) >= "2.1.0" else [Old]
        for kind in kinds:
            fp4 = filled((6, 64))
            out = quantize(kind(wide[:, 8:136]), kind(self.weight), fp4=kind(fp4))
            self.assertEqual((fp4.tobytes(), out.scales.tobytes()), (expected.fp4.tobytes(), expected.scales.tobytes()))
        if New in kinds:
            fp4 = filled((6, 64))
            fp4.flags.writeable = False
            self.assert_refused(ValueError, "fp4 is read-only", quantize, self.x, self.weight, fp4=New(fp4))

    def test_errors(self):
        x, weight, bf16 = self.x, self.weight, {"dtype": "bf16"}
        words, word_weight = x.view(np.uint16), weight.view(np.uint16)
        readonly = filled((6, 64))
        readonly.flags.writeable = False
        odd = np.zeros(6, [("pad", np.uint8), ("row", np.float16, 128)])["row"]  # rows 257 bytes apart
        for error, pattern, args, kwargs in (
                (TypeError, r"x is a builtins.list; accepted: arrays of", ([[1.0] * 64], weight), {}),
                (TypeError, r"weight is a builtins.NoneType; accepted: arrays of", (x, None), {}),
                (ValueError, r"x has the shape \(128,\); accepted: \(M, H\), \(B, S, H\)", (x[0], weight), {}),
                (ValueError, r"x has the shape \(1, 1, 6, 128\)", (x[None, None], weight), {}),
                (ValueError, r"x is float64; accepted: float16, bfloat16, uint16 words with", (x.astype(np.float64), weight), {}),
                (ValueError, r"x is float32; accepted", (x.astype(np.float32), weight), {}),
                (ValueError, r"x is uint16; accepted: .*uint16 words with dtype=\"bf16\" or \"fp16\"", (words, word_weight), {}),
                (ValueError, r"x is float16 with dtype=\"bf16\"; accepted", (x, weight), bf16),
                (ValueError, r"dtype is 'bfloat16'; accepted: 'fp16', 'bf16'", (words, word_weight), {"dtype": "bfloat16"}),
                (ValueError, r"weight is float16 with dtype=\"bf16\"; accepted: bfloat16, float32", (words, weight), bf16),
                (ValueError, r"weight has the shape \(64,\) .*; accepted: 128 adjacent", (x, weight[:64]), {}),
                (ValueError, r"x is big-endian", (x.astype(">f2"), weight), {}),
                (ValueError, r"x has strides of \(257, 2\) bytes; accepted: multiples", (odd, weight), {}),
                (ValueError, r"global_scale is float16 of shape \(1,\); accepted: float32 of shape \(1,\)", (x, weight),
                 {"global_scale": np.ones(1, np.float16)}),
                (ValueError, r"global_scale is float32 of shape \(2,\)", (x, weight), {"global_scale": np.ones(2, np.float32)}),
                (TypeError, r"global_scale is a builtins.float", (x, weight), {"global_scale": 2.0}),
                (TypeError, r"global_scale is a numpy.float32", (x, weight), {"global_scale": np.float32(2)}),
                (ValueError, r"device_rows is int64", (x, weight), {"device_rows": np.ones(1, np.int64)}),
                (ValueError, r"residual has the shape \(5, 128\); accepted: \(6, 128\)", (x, weight), {"residual": rows(5, 128)}),
                (ValueError, r"residual is float32; accepted: float16", (x, weight), {"residual": np.ones((6, 128), np.float32)}),
                (ValueError, r"y_out has the shape \(6, 64\)", (x, weight), {"y_out": rows(6, 64)}),
                (ValueError, r"fp4 is int32; accepted: uint8, float4_e2m1fn_x2", (x, weight), {"fp4": np.ones((6, 64), np.int32)}),
                (ValueError, r"fp4 has the shape \(6, 128\); accepted: \(6, 64\)", (x, weight), {"fp4": filled((6, 128))}),
                (ValueError, r"fp4 is read-only", (x, weight), {"fp4": readonly}),
                (ValueError, r"scales has the shape \(6, 4\); accepted: \(6, 8\)", (x, weight), {"scales": filled((6, 4))}),
                (ValueError, r"scales has the shape \(48,\) .*; accepted: 1024 adjacent bytes", (x, weight),
                 {"scales": filled(48), "layout": "swizzled"}),
                (ValueError, r"scales_linear is given; accepted: None but for both layouts", (x, weight),
                 {"scales_linear": filled((6, 8))}),
                (ValueError, r"rstd has the shape \(5,\)", (x, weight), {"rstd": np.empty(5, np.float32)}),
                (ValueError, r"layout is 'tiled'; accepted: 'linear', 'swizzled', 'both'", (x, weight), {"layout": "tiled"}),
                (ValueError, r"scale_format is 'e5m2'; accepted: 'e4m3', 'ue8m0'", (x, weight), {"scale_format": "e5m2"}),
                (ValueError, r"stream is given and x is in host memory", (x, weight), {"stream": 0}),
                (normquant.ArgumentError, r"nq_problem.block_size is 8; accepted: 16, 32", (x, weight), {"block_size": 8}),
                (normquant.ArgumentError, r"nq_problem.hidden is 100; accepted: multiples", (rows(6, 100), rows(100)), {}),
                (normquant.ArgumentError, r"nq_tensors.eps is -1; accepted: finite", (x, weight), {"eps": -1}),
                (normquant.ArgumentError, r"nq_tensors.y_out is .*, which overlaps nq_tensors.x", (x, weight), {"y_out": x})):
            with self.subTest(pattern):
                self.assert_refused(error, pattern, quantize, *args, **kwargs)

    def test_errors_of_the_library_have_its_status(self):
        with self.assertRaises(ValueError) as raised:
            quantize(self.x, self.weight, block_size=8)
        error = raised.exception
        self.assertIsInstance(error, normquant.Error)
        self.assertEqual((error.status, error.name, error.detail), (normquant.NQ_ERR_INVALID_ARGUMENT, "NQ_ERR_INVALID_ARGUMENT", ""))
        self.assertEqual(str(error), f"NQ_ERR_INVALID_ARGUMENT: {error.message}")


class FindingTheLibrary(support.TestCase):
    """In processes of their own, with a copy of the module in a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "python").mkdir()
        shutil.copy(support.MODULE, self.folder / "python")

    def run_python(self, code, **environment):
        environment = {**{name: value for name, value in os.environ.items() if name not in ("NORMQUANT_LIBRARY", "LD_LIBRARY_PATH")},
                       "PYTHONPATH": str(self.folder / "python"), **environment}
        result = subprocess.run([sys.executable, "-c", "import sys, normquant\n" + code], env=environment, capture_output=True, text=True)
        return result.stdout.strip() or result.stderr.strip().splitlines()[-1]

    def test_the_import_needs_nothing(self):
        loaded = self.run_python("print(sorted({'numpy', 'torch', 'cupy', 'jax'} & set(sys.modules)), normquant._library)")
        self.assertEqual(loaded, "[] None")

    def test_where_it_is_looked_for(self):
        show = "print(normquant.load(*sys.argv[1:]).path)"
        self.assertRegex(self.run_python(show), r"^OSError: .*looked for as libnormquant.so and libnormquant.so.0.1 beside "
                         r".*python/normquant.py, then by the loader\. Set NORMQUANT_LIBRARY")
        loader = self.folder / "loader"
        loader.mkdir()
        (loader / "libnormquant.so.0.1").symlink_to(LIBRARY)
        self.assertEqual(self.run_python(show, LD_LIBRARY_PATH=str(loader)), "libnormquant.so.0.1")
        beside = self.folder / "python/libnormquant.so"
        beside.symlink_to(LIBRARY)
        self.assertEqual(self.run_python(show, LD_LIBRARY_PATH=str(loader)), str(beside))
        self.assertEqual(self.run_python(show, NORMQUANT_LIBRARY=LIBRARY), LIBRARY)
        self.assertEqual(self.run_python(f"print(normquant.load({LIBRARY!r}).path)", NORMQUANT_LIBRARY="/nonexistent"), LIBRARY)
        self.assertRegex(self.run_python(show, NORMQUANT_LIBRARY="/nonexistent/lib.so"), "^OSError: /nonexistent/lib.so: cannot open")

    def test_what_is_another_library(self):
        other = ctypes.util.find_library("m")
        self.assertEqual(self.run_python("normquant.load()", NORMQUANT_LIBRARY=other),
                         f"OSError: {other} is no libnormquant of version 0.1: it has no nq_version")
        code = "normquant.NQ_VERSION = 200\nnormquant.load()"
        self.assertRegex(self.run_python(code, NORMQUANT_LIBRARY=LIBRARY), f"^OSError: {LIBRARY} is version 0.1.0; accepted: 0.1, which")

    def test_one_library_a_process(self):
        code = "normquant.load()\nnormquant.load('/another')"
        self.assertEqual(self.run_python(code, NORMQUANT_LIBRARY=LIBRARY),
                         f"ValueError: path is /another; accepted: {LIBRARY}, which has been loaded")


if __name__ == "__main__":
    unittest.main()
