#!/usr/bin/env python3
"""Draws what `normquant bench --json` measured, as an SVG: for each shape the fraction of the floor, decode beside it.

    normquant bench --json >bench.json && tools/plot_bench.py bench.json bench.svg

Rows from memory are on the left: the floor kernel's time over the kernel's, longer is better, 1 is as fast as memory allows.
Rows in L2 are on the right: the kernel's time over the floor kernel's, shorter is better. Plan overrides are left out.
"""

import argparse
import json
import sys
from xml.sax.saxutils import escape

COLORS = {"linear": "#2f6db5", "swizzled": "#dd8a2b"}
LABEL, PANEL, GAP = 110, 330, 40  # widths: the shapes' names, a panel's bars, what is between panels
BAR, ROW_GAP, TOP, BOTTOM = 9, 8, 78, 34
TEXT = 'font-family="sans-serif" font-size="11" fill="#222"'


class Unusable(Exception):
    pass


def load(path):
    """The document, and its kernels as [(shape, {layout: kernel})] by where the rows lay."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except (OSError, ValueError) as error:
        raise Unusable(f"{path}: {error}") from error
    if not isinstance(document, dict) or document.get("command") != "bench" or not document.get("kernels"):
        raise Unusable(f"{path} holds no kernels: give the output of normquant bench --json without --part host")
    shapes = {"memory": {}, "l2": {}}
    for kernel in document["kernels"]:
        if kernel["threads"] is None:
            shapes[kernel["inputs"]].setdefault((kernel["hidden"], kernel["rows"]), {})[kernel["layout"]] = kernel
    return document, {inputs: list(by_shape.items()) for inputs, by_shape in shapes.items()}


def text(x, y, content, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {TEXT} {more}>{escape(content)}</text>'


def panel(left, title, shapes, value, most, step):
    """Bars of value(kernel) from 0 to `most`, a line of ticks each `step`."""
    scale = (PANEL - 40) / most
    start = left + LABEL
    parts = [text(start, TOP - 24, title, 'font-weight="bold"')]
    height = sum(len(layouts) * BAR + ROW_GAP for _, layouts in shapes)
    for tick in range(int(most / step + 1e-9) + 1):
        at = start + tick * step * scale
        color = "#888" if abs(tick * step - 1) < 1e-9 else "#ddd"
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 4}" y2="{TOP + height}" stroke="{color}"/>')
        parts.append(text(at, TOP - 8, f"{tick * step:g}", 'text-anchor="middle"'))
    y = TOP
    for (hidden, rows), layouts in shapes:
        parts.append(text(start - 6, y + len(layouts) * BAR / 2 + 4, f"{hidden} x {rows}", 'text-anchor="end"'))
        for layout, kernel in layouts.items():
            figure = value(kernel)
            tip = f"{hidden} x {rows}, {layout}: {kernel['us']['median']:.2f} us, floor {kernel['floor_us']['median']:.2f} us"
            parts.append(f'<rect class="bar" x="{start}" y="{y}" width="{figure * scale:.1f}" height="{BAR - 1}" fill="{COLORS[layout]}">'
                         f"<title>{escape(tip)}</title></rect>")
            parts.append(text(start + figure * scale + 3, y + BAR - 1, f"{figure:.2f}", 'style="font-size:9px"'))
            y += BAR
        y += ROW_GAP
    return parts, y


def draw(document, shapes):
    problem, device = document["problem"], document["device"]
    memory = lambda kernel: kernel["of_floor"]
    decode = lambda kernel: 1 / kernel["of_floor"]
    panels = [("prefill, rows from memory: fraction of the floor", shapes["memory"], memory, 1.0, 0.25),
              ("decode, rows in L2: times the floor kernel's time", shapes["l2"], decode, 2.0, 0.5)]
    body, left, bottom = [], 10, TOP
    for title, rows, value, most, step in panels:
        if not rows:
            continue
        most = max([most] + [value(kernel) for _, layouts in rows for kernel in layouts.values()])
        parts, end = panel(left, title, rows, value, most, step)
        body += parts
        left += LABEL + PANEL + GAP
        bottom = max(bottom, end)
    height, width = bottom + BOTTOM, max(left, 420)
    head = f"normquant {problem['format']}, {problem['dtype']} rows, {device['name']}"
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
           f'<rect width="{width}" height="{height}" fill="white"/>',
           text(16, 24, head, 'style="font-size:15px" font-weight="bold"')]
    at = 16
    for layout, color in COLORS.items():
        svg.append(f'<rect x="{at}" y="{height - 20}" width="10" height="10" fill="{color}"/>')
        svg.append(text(at + 15, height - 11, f"{layout} scales"))
        at += 110
    return "\n".join(svg + body + ["</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", metavar="BENCH.json")
    parser.add_argument("output", metavar="OUT.svg")
    arguments = parser.parse_args()
    try:
        document, shapes = load(arguments.input)
    except Unusable as error:
        sys.exit(f"plot_bench.py: {error}")
    with open(arguments.output, "w", encoding="utf-8") as file:
        file.write(draw(document, shapes))


if __name__ == "__main__":
    main()
