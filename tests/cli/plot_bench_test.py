"""tools/plot_bench.py on figures written here, and on those of the tool itself on a fake GPU.

    plot_bench_test.py PLOT_BENCH NORMQUANT   with NORMQUANT_LIBCUDA and NORMQUANT_NVRTC set
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

PLOT, TOOL = sys.argv[1:3]
DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
SVG = "{http://www.w3.org/2000/svg}"


def kernel(hidden, rows, layout, inputs, of_floor, threads=None):
    spread = {"median": 4 / of_floor, "p10": 4 / of_floor, "p90": 4 / of_floor}
    return {"hidden": hidden, "rows": rows, "layout": layout, "inputs": inputs, "threads": threads, "us": spread,
            "floor_us": {"median": 4, "p10": 4, "p90": 4}, "of_floor": of_floor}


def document(kernels):
    return {"command": "bench", "device": {"name": "A & B <GPU>"}, "problem": {"format": "nvfp4", "dtype": "bf16"}, "kernels": kernels}


class PlotBench(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.path = pathlib.Path(self.directory.name)

    def run_plot(self, content):
        (self.path / "in.json").write_text(content)
        return subprocess.run([sys.executable, PLOT, self.path / "in.json", self.path / "out.svg"], capture_output=True, text=True)

    def bars(self, content):
        """(tip, width) of every bar, and all texts."""
        result = self.run_plot(content)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        svg = xml.etree.ElementTree.parse(self.path / "out.svg").getroot()
        self.assertEqual(svg.tag, SVG + "svg")
        bars = [rect for rect in svg.iter(SVG + "rect") if rect.get("class") == "bar"]
        right = float(svg.get("width"))
        for bar in bars:
            self.assertLess(float(bar.get("x")) + float(bar.get("width")), right)
        return ([(bar.find(SVG + "title").text, float(bar.get("width"))) for bar in bars],
                [text.text for text in svg.iter(SVG + "text")])

    def test_a_bar_a_kernel_as_long_as_its_figure(self):
        bars, texts = self.bars(json.dumps(document([
            kernel(7168, 16384, "linear", "memory", 0.8), kernel(7168, 16384, "swizzled", "memory", 0.4),
            kernel(7168, 16384, "linear", "memory", 0.9, threads=64),  # an override
            kernel(7168, 1, "linear", "l2", 0.5), kernel(4096, 1, "linear", "l2", 0.25)])))
        self.assertEqual([tip for tip, _ in bars],
                         ["7168 x 16384, linear: 5.00 us, floor 4.00 us", "7168 x 16384, swizzled: 10.00 us, floor 4.00 us",
                          "7168 x 1, linear: 8.00 us, floor 4.00 us", "4096 x 1, linear: 16.00 us, floor 4.00 us"])
        (_, linear), (_, swizzled), (_, twice), (_, four_times) = bars
        self.assertAlmostEqual(linear / swizzled, 2, delta=0.01)
        self.assertAlmostEqual(four_times / twice, 2, delta=0.01)  # decode: time over the floor's
        for expected in ["normquant nvfp4, bf16 rows, A & B <GPU>", "7168 x 16384", "0.80", "0.40", "2.00", "4.00"]:
            self.assertIn(expected, texts)

    def test_one_panel_alone(self):
        bars, texts = self.bars(json.dumps(document([kernel(64, 2, "swizzled", "l2", 1.0)])))
        self.assertEqual(len(bars), 1)
        self.assertFalse([text for text in texts if text.startswith("prefill")])

    def test_the_tool_writes_what_it_reads(self):
        environment = dict(os.environ, NORMQUANT_CACHE_DIR="")
        made = subprocess.run([TOOL, "bench", "--json", "--shape", "128x4096,2048x1", "--part", "kernels"], capture_output=True,
                              text=True, env=environment, check=True)
        bars, _ = self.bars(made.stdout)
        self.assertEqual(len(bars), 4)
        self.assertEqual(bars[0][0], "128 x 4096, linear: 8.00 us, floor 4.00 us")

    def test_the_plot_in_the_readme_is_of_the_run_beside_it(self):
        self.assertEqual(self.run_plot((DATA / "bench_h200.json").read_text()).returncode, 0)
        self.assertEqual((self.path / "out.svg").read_text(), (DATA / "bench_h200.svg").read_text())

    def test_what_is_no_bench_is_refused(self):
        for content in ["", "[]", "{}", '{"command": "info"}', '{"command": "bench", "host": {}}', json.dumps(document([]))]:
            result = self.run_plot(content)
            self.assertEqual(result.returncode, 1, content)
            self.assertIn("in.json", result.stderr)
            self.assertNotIn("Traceback", result.stderr)
            self.assertFalse((self.path / "out.svg").exists())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
