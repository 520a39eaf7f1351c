"""What the tests of tools/python/normquant.py share. Their arguments: the library, then each test's own, then unittest's."""

import importlib.util
import pathlib
import struct
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE = ROOT / "tools/python/normquant.py"
GOLDEN = ROOT / "tests/data/golden"


def arguments(count):
    """The first `count` of the command line, which unittest then does not see."""
    taken = sys.argv[1:1 + count]
    if len(taken) != count:
        sys.exit(f"{sys.argv[0]}: {count} arguments are needed")
    del sys.argv[1:1 + count]
    return taken


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def import_module():
    """A new one each time, with what it keeps for the process."""
    spec = importlib.util.spec_from_file_location("normquant", MODULE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["normquant"] = module
    spec.loader.exec_module(module)
    return module


class Golden:
    """A case of tests/data/golden, whose README describes the format, as bytes."""

    ADD, BIAS_ONE, GLOBAL_SCALE, Y_OUT = 1, 2, 4, 8

    def __init__(self, path):
        data = path.read_bytes()
        (magic, self.rows, self.hidden, self.block_size, self.dtype, self.weight_dtype, self.scale_format, self.layout, self.flags,
         self.eps, self.global_scale) = struct.unpack_from("<4s8I2f", data)
        assert magic == b"NQC1", path
        elements = 2 * self.rows * self.hidden
        at = struct.calcsize("<4s8I2f")
        self.name = path.stem
        parts = []
        for size in (elements, self.hidden * (4 if self.weight_dtype == 2 else 2), elements if self.flags & self.ADD else 0):
            parts.append(data[at:at + size])
            at += size
        self.x, self.weight, self.residual = parts
        assert at == len(data), path
        data = path.with_suffix(".out").read_bytes()
        at, parts = 48, []
        for size in struct.unpack_from("<6Q", data):
            parts.append(data[at:at + size])
            at += size
        assert at == len(data), path
        self.fp4, self.scales, self.new_residual, self.y_out, self.sum_of_squares, self.rstd = parts


def golden_cases():
    return [Golden(path) for path in sorted(GOLDEN.glob("*.case"))]


class TestCase(unittest.TestCase):
    maxDiff = None

    def assert_refused(self, error, pattern, call, *args, **kwargs):
        with self.assertRaisesRegex(error, pattern):
            call(*args, **kwargs)
