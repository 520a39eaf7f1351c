"""Each command's --json has the keys, and the kinds of values, that json_keys.txt says: who reads it can rely on them.

    json_keys_test.py NORMQUANT FAKE_GPU FAKE_NVRTC [--update]

--update writes json_keys.txt anew; the diff is what readers of the JSON will meet.
"""

import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

TOOL, GPU, NVRTC = sys.argv[1:4]
GOLDEN = pathlib.Path(__file__).with_name("json_keys.txt")
# Objects whose keys are names of things: targets, variables.
NAMED = {"archs", "settings"}
KINDS = {str: "string", bool: "boolean", int: "number", float: "number", type(None): "null"}


def keys(value, path):
    """One line a key: its path, and the kinds that its values have."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from keys(inner, f"{path}.*" if path.rpartition(".")[2] in NAMED else f"{path}.{key}" if path else key)
        if not value:
            yield path, "empty object"
    elif isinstance(value, list):
        for item in value:
            yield from keys(item, f"{path}[]")
        if not value:
            yield path, "empty list"
    else:
        yield path, KINDS[type(value)]


def npy(path, shape):
    """fp16 ones."""
    header = str({"descr": "<f2", "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    count = 1
    for length in shape:
        count *= length
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack("<e", 1) * count)


def documents(directory):
    """(what was run, its JSON)."""
    npy(directory / "x.npy", (3, 64))
    npy(directory / "w.npy", (64,))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NORMQUANT_")}
    environment.update(NORMQUANT_LIBCUDA=GPU, NORMQUANT_NVRTC=NVRTC, NORMQUANT_CACHE_DIR=str(directory / "cache"), HOME=str(directory))
    bundle = str(directory / "kernels.nqb")
    warmup = ["warmup", "--hidden", "64", "--arch", "sm_90", "--format", "nvfp4", "--layout", "linear"]
    quantize = ["quantize", "--input", str(directory / "x.npy"), "--weight", str(directory / "w.npy"), "--out", str(directory / "out")]
    problem = ["--hidden", "64", "--arch", "sm_90", "--variant", "throughput"]

    def run(name, arguments, **more):
        done = subprocess.run([TOOL, *arguments, "--json"], env={**environment, **more}, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        try:
            return name, json.loads(done.stdout)
        except json.JSONDecodeError:
            sys.exit(f"{name}: exit code {done.returncode}, {done.stdout!r}, {done.stderr}")

    yield run("warmup --dry-run", [*warmup, "--dry-run"])
    yield run("warmup --bundle", [*warmup, "--bundle", bundle])
    yield run("warmup, what fails", [*warmup, "--op", "add_rmsnorm"], NORMQUANT_JIT="off")
    listed = run("cache list", ["cache", "list"])
    yield listed
    key = listed[1]["entries"][0]["key"]
    yield run("cache show", ["cache", "show", key])
    yield run("cache verify", ["cache", "verify"])
    yield run("cache explain", ["cache", "explain", *problem])
    yield run("cache explain --against", ["cache", "explain", "--hidden", "128", *problem[2:], "--against", key])
    yield run("cache extract", ["cache", "extract", key, "-o", str(directory / "cubin")])
    yield run("cache export", ["cache", "export", bundle])
    yield run("cache import", ["cache", "import", bundle])
    yield run("cache stats", ["cache", "stats"])
    yield run("cache path", ["cache", "path"])
    yield run("cache gc", ["cache", "gc", "--max-age", "30d"])
    yield run("cache clear", ["cache", "clear", "--yes"])
    yield run("quantize --device cpu", [*quantize, "--device", "cpu"])
    yield run("quantize --device gpu --verify", [*quantize, "--device", "gpu", "--verify"])
    yield run("bench", ["bench", "--shape", "128x4096"])
    yield run("info", ["info"])
    yield run("info --self-test", ["info", "--self-test"])
    yield run("info --bug-report", ["info", "--bug-report"])
    yield run("info, without libraries", ["info"], NORMQUANT_LIBCUDA="/nonexistent/libcuda.so", NORMQUANT_NVRTC="/nonexistent/libnvrtc.so")
    yield run("doctor", ["doctor"])
    yield run("documentation", ["documentation", "man"])
    yield run("an error", ["cache", "show", "zz"])


def describe(name, document):
    kinds = {}
    for path, kind in keys(document, ""):
        kinds.setdefault(path, set()).add(kind)
    return [name, *(f"  {path}: {', '.join(sorted(kinds[path]))}" for path in sorted(kinds))]


with tempfile.TemporaryDirectory() as place:
    found = [describe(*document) for document in documents(pathlib.Path(place))]
if "--update" in sys.argv:
    GOLDEN.write_text("\n".join(line for lines in found for line in lines) + "\n")
    sys.exit()
expected = [block.split("\n") for block in re.split(r"\n(?! )", GOLDEN.read_text().rstrip("\n"))]
wrong = 0
for was, now in zip(expected, found):
    for line in sorted(set(was) ^ set(now)):
        wrong += 1
        print(f"{now[0]}: {'no longer' if line in was else 'new'}: {line.strip()}")
if len(expected) != len(found):
    wrong += 1
    print(f"{len(found)} documents, and {len(expected)} in {GOLDEN.name}")
sys.exit(f"{GOLDEN.name} differs; if that is meant, write it anew with --update" if wrong else 0)
