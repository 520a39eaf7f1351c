"""tools/python/normquant.py on numpy arrays of ml_dtypes' types.

    ml_dtypes_test.py LIBRARY
"""

import os
import unittest

import support

try:
    import ml_dtypes
    import numpy as np
except ImportError as error:
    support.skip(error)

LIBRARY, = support.arguments(1)
os.environ["NORMQUANT_LIBRARY"] = LIBRARY
normquant = support.import_module()


class MlDtypes(support.TestCase):
    def test_golden_cases(self):
        """bf16, with the formats of scales as their own types."""
        tested = 0
        for case in support.golden_cases():
            if case.dtype != 1 or case.flags & case.BIAS_ONE or case.weight_dtype != 1:
                continue
            with self.subTest(case.name):
                x, weight, residual = (np.frombuffer(data, ml_dtypes.bfloat16).reshape(shape).copy() if data else None for data, shape in (
                    (case.x, (case.rows, case.hidden)), (case.weight, case.hidden), (case.residual, (case.rows, case.hidden))))
                y_out = np.zeros((case.rows, case.hidden), ml_dtypes.bfloat16) if case.flags & case.Y_OUT else None
                scale_type = ml_dtypes.float8_e8m0fnu if case.scale_format else ml_dtypes.float8_e4m3fn
                scales = np.empty(len(case.scales) if case.layout else (case.rows, case.hidden // case.block_size), scale_type)
                out = normquant.quantize(
                    x, weight, residual=residual, y_out=y_out, eps=case.eps, block_size=case.block_size, scales=scales,
                    scale_format=("e4m3", "ue8m0")[case.scale_format], layout=("linear", "swizzled")[case.layout],
                    global_scale=np.array([case.global_scale], np.float32) if case.flags & case.GLOBAL_SCALE else None)
                self.assertEqual((out.fp4.tobytes(), out.scales.tobytes()), (case.fp4, case.scales))
                self.assertEqual(b"" if residual is None else residual.tobytes(), case.new_residual)
                self.assertEqual(b"" if y_out is None else y_out.tobytes(), case.y_out)
                tested += 1
        self.assertGreater(tested, 10)

    def test_errors(self):
        x, weight = np.ones((2, 64), ml_dtypes.bfloat16), np.ones(64, ml_dtypes.bfloat16)
        for pattern, kwargs in (
                (r"scales is float8_e5m2; accepted: uint8, float8_e4m3fn", {"scales": np.empty((2, 4), ml_dtypes.float8_e5m2)}),
                (r"scales is float8_e4m3fn; accepted: uint8, float8_e8m0fnu",
                 {"scales": np.empty((2, 4), ml_dtypes.float8_e4m3fn), "scale_format": "ue8m0"}),
                (r"fp4 is float4_e2m1fn; accepted: uint8, float4_e2m1fn_x2", {"fp4": np.empty((2, 32), ml_dtypes.float4_e2m1fn)}),
                (r'x is bfloat16 with dtype="fp16"', {"dtype": "fp16"})):
            with self.subTest(pattern):
                self.assert_refused(ValueError, pattern, normquant.quantize, x, weight, **kwargs)
        self.assert_refused(ValueError, "weight is float16; accepted: bfloat16, float32", normquant.quantize, x, np.ones(64, np.float16))


if __name__ == "__main__":
    unittest.main()
