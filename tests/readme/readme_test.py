"""README.md, held against what there is: each command of its ```sh blocks is run, or stands below with the reason why not; its Python and
CMake blocks are used; the variables, commands, presets and findings of normquant doctor that it names exist.

    readme_test.py [--nightly]   --nightly: those alone that build everything, in a copy of the sources

The environment names what to use: see CMakeLists.txt.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

SKIPPED = 77
NIGHTLY_RUN = sys.argv[1:] == ["--nightly"]
SOURCE, TOOL, LIBRARY, INSTALLED, FAKE_GPU, FAKE_GPU_COMPUTES, FAKE_NVRTC = (pathlib.Path(os.environ[name]) for name in (
    "SOURCE", "TOOL", "LIBRARY", "INSTALLED", "FAKE_GPU", "FAKE_GPU_COMPUTES", "FAKE_NVRTC"))
README = (SOURCE / "README.md").read_text()

NOT_RUN = {
    "tools/test.sh": "it is what runs this; tests/scripts runs it with stand-ins for what it calls",
    "tools/test.sh -R emulator": "as tools/test.sh",
    "tools/test.sh --nightly": "as tools/test.sh",
    "tests/peers/compare.py --library build/ci/src/libnormquant.so": "it needs a GPU, PyTorch and Triton",
    "cmake --preset asan-ubsan && cmake --build --preset asan-ubsan && ctest --preset asan-ubsan":
        "it takes hours; tools/test.sh runs the part of it that gains most",
}
# In this order, in one copy of the sources.
NIGHTLY = [
    "cmake --preset release && cmake --build --preset release && cmake --install build/release --prefix /usr/local && ldconfig",
    "export PYTHONPATH=/usr/local/share/normquant/python",
    'cmake --preset package -DCPACK_PACKAGE_CONTACT="Name <address>" && cmake --build --preset package',
    "SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) cpack --config build/package/CPackConfig.cmake -B build/package/debs",
    "cmake --preset fuzz && cmake --build --preset fuzz",
    "build/fuzz/tests/fuzz/fuzz_npy -max_total_time=3600 -max_len=4096 build/fuzz/tests/fuzz/corpus/npy",
    "tools/quickstart.sh",
]


def fenced_blocks():
    """[(language, text)], and the text outside of them."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return blocks, re.sub(r"^```\w+\n.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)


BLOCKS, PROSE = fenced_blocks()


def commands_of(text):
    """The commands of a block, without the comments behind them, each on one line."""
    lines = [re.sub(r"(^|\s+)#.*", "", line) for line in text.replace("\\\n", " ").splitlines()]
    return [re.sub(r"\s{2,}", " ", line) for line in lines if line]


COMMANDS = [(number, command) for number, (language, text) in enumerate(BLOCKS) if language == "sh" for command in commands_of(text)]


def run(command, **options):
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        raise AssertionError(f"{command} ended with {result.returncode}:\n{result.stdout}{result.stderr}")
    return result.stdout


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = pathlib.Path(directory.name)
        self.bin = self.path / "bin"
        self.bin.mkdir()
        (self.bin / "normquant").symlink_to(TOOL)

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("NORMQUANT_") or name == "NORMQUANT_NVRTC"}
        return {**kept, "PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.path), **more}

    def stand_in(self, name, text):
        (self.bin / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.bin / name).chmod(0o755)


class Commands(Case):
    def setUp(self):
        super().setUp()
        self.cache = self.path / "cache"
        # An engine: it quantizes once on the GPU, whose kernels compute what the reference does.
        self.stand_in("engine", 'exec normquant quantize --input states.safetensors:layer0.input --device gpu --layout swizzled --verify '
                                '--weight states.safetensors:layer0.attn_norm_bf16 --out engine_out')
        nvrtc = json.loads(run([TOOL, "info", "--json"], env=self.environment()))["nvrtc"]
        self.nvrtc = nvrtc["path"] if nvrtc["found"] else str(FAKE_NVRTC)
        self.folders = {}

    def folder(self, number):
        """The folder in which a block is run, with what its commands name."""
        if number not in self.folders:
            folder = self.folders[number] = self.path / f"block{number}"
            folder.mkdir()
            (folder / "tools").symlink_to(SOURCE / "tools")
            shutil.copy(SOURCE / "tests/data/smollm2/hidden_states.safetensors", folder / "states.safetensors")
            shutil.copy(SOURCE / "tests/data/models/llama_3_70b.json", folder / "config.json")
            shutil.copy(SOURCE / "tests/examples/quickstart.c", folder / "engine.c")
        return self.folders[number]

    def some_key(self):
        entries = json.loads(run([TOOL, "cache", "list", "--json"], env=self.environment(NORMQUANT_CACHE_DIR=str(self.cache))))["entries"]
        return next(entry["key"] for entry in entries if entry["arch"] == "sm_100f")[:6]

    def run_command(self, number, command):
        folder = self.folder(number)
        settings = {"NORMQUANT_CACHE_DIR": str(self.cache), "NORMQUANT_LIBCUDA": str(FAKE_GPU_COMPUTES), "NORMQUANT_NVRTC": self.nvrtc,
                    "PKG_CONFIG_PATH": str(INSTALLED / os.environ["LIBDIR"] / "pkgconfig")}
        if "normquant bench" in command:  # its floor kernels are no normquant's, and what it times is compiled many times
            settings.update(NORMQUANT_LIBCUDA=str(FAKE_GPU), NORMQUANT_NVRTC=str(FAKE_NVRTC), FAKE_GPU_L2_MIB="8")
        if "3fa94c" in command:
            command = command.replace("3fa94c", self.some_key())
        run(["bash", "-euo", "pipefail", "-c", command.replace("/opt/", f"{folder}/")], cwd=folder, env=self.environment(**settings))
        if command.startswith("cc "):
            with_library = self.environment(LD_LIBRARY_PATH=str(INSTALLED / os.environ["LIBDIR"]))
            self.assertIn(f"```text\n{run(['./a.out'], cwd=folder, env=with_library)}```", README)

    def test_every_command(self):
        listed = [command for _, command in COMMANDS]
        gone = [command for command in [*NOT_RUN, *NIGHTLY] if command not in listed]
        self.assertEqual(gone, [], "README.md does not have them any more")
        for number, command in COMMANDS:
            if command not in NOT_RUN and command not in NIGHTLY:
                with self.subTest(command):
                    self.run_command(number, command)
        made = {name for folder in self.folders.values() for name in os.listdir(folder)}
        self.assertLessEqual({"out", "problems.json", "kernels.nqb", "engine_out", "bench.svg", "a.out"}, made)

    def test_no_command_is_elsewhere(self):
        self.assertEqual({language for language, _ in BLOCKS}, {"c", "cpp", "cmake", "python", "sh", "text"})
        self.assertEqual(re.findall(r"^(?: {4}|\t).*", PROSE, re.MULTILINE), [], "blocks are fenced, and commands ```sh")
        self.assertGreater(len(COMMANDS), 20)

    def test_python(self):
        try:
            import numpy  # noqa: F401: what the block runs on
        except ImportError:
            self.skipTest("there is no numpy")
        block, = [text for language, text in BLOCKS if language == "python"]
        before = ("import numpy as np\nx = np.arange(256, dtype=np.float16).reshape(4, 64)\nresidual, weight = x + 1, x[0] + 1\n"
                  "g = np.ones(1, np.float32)\n")
        after = "assert fp4.shape == (4, 32) and fp4.any() and scales.size == 128 * 4 and residual[0, 1] == 3, (fp4, scales, residual)\n"
        run([sys.executable, "-c", before + block + after],
            env=self.environment(NORMQUANT_LIBRARY=str(LIBRARY),
                                 PYTHONPATH=os.pathsep.join([str(SOURCE / "tools/python"), os.environ.get("PYTHONPATH", "")])))

    def test_cmake(self):
        block, = [text for language, text in BLOCKS if language == "cmake"]
        folder = self.folder(0)
        (folder / "CMakeLists.txt").write_text(
            f"cmake_minimum_required(VERSION 3.22)\nproject(engine C)\nadd_executable(engine engine.c)\n{block}")
        run(["cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={INSTALLED}"])
        run(["cmake", "--build", folder / "build"])
        self.assertIn(f"```text\n{run([folder / 'build/engine'])}```", README)


class Names(Case):
    def help(self, *path):
        return run([TOOL, *path, "--help"])

    def test_commands(self):
        subcommands = re.findall(r"^  (\w+)", self.help().split("Subcommands:\n")[1].split("\n\n")[0], re.MULTILINE)
        table, = [text for language, text in BLOCKS if language == "text" and text.startswith("normquant ")]
        self.assertEqual(re.findall(r"^normquant (\w+)  ", table, re.MULTILINE), subcommands)

    def test_inline_commands(self):
        spans = [span.split() for span in re.findall(r"`normquant ([^`]+)`", PROSE.replace("\n", " "))]
        self.assertGreaterEqual(len(spans), 5)
        for words in spans:
            path = []
            while words and not words[0].startswith("-"):
                path.append(words.pop(0))
            said = self.help(*path[:2])
            for option in [word for word in words if word.startswith("--")]:
                self.assertRegex(said, rf"[ ,]{option}\b", path)

    def test_presets(self):
        presets = {preset["name"] for preset in json.loads((SOURCE / "CMakePresets.json").read_text())["configurePresets"]}
        named = set(re.findall(r"--preset ([\w-]+)", README))
        self.assertLessEqual({"release", "package", "asan-ubsan", "fuzz"}, named)
        self.assertLessEqual(named, presets)

    def test_variables(self):
        rows = re.findall(r"^\| (NORMQUANT_\w+) \|", PROSE, re.MULTILINE)
        self.assertEqual(sorted(rows), sorted(re.findall(r"^  (NORMQUANT_\w+)", self.help(), re.MULTILINE)))

    def test_findings_of_doctor(self):
        sources = "".join(path.read_text() for path in sorted((SOURCE / "tools/normquant").glob("doctor*.cpp")))

        def literals(text):
            return "\n".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', re.sub(r'"\s*\n\s*"', "", text)))

        calls = [(severity, literals(arguments.replace("kTopic", '"environment"')))
                 for severity, arguments in re.findall(r"findings\.(\w+)\((.*?)\);", sources, re.DOTALL)]
        elsewhere = literals(re.sub(r"findings\.\w+\(.*?\);", "", sources, flags=re.DOTALL))
        rows = re.findall(r"^\| (note|warning|problem|problem, warning) \| ([\w ]+) \| (.*) \| (.*) \|$", PROSE, re.MULTILINE)
        self.assertGreater(len(rows), 10)
        for severity, topic, finding, remedy in rows:
            quoted = re.findall(r"`([^`]+)`", finding + remedy)
            for text in quoted:
                self.assertIn(text, literals(sources), topic)
            self.assertTrue(any(found in severity and text.startswith(topic + "\n") and any(part in text + elsewhere for part in quoted)
                                for found, text in calls), (severity, topic, finding, remedy))

    def test_lines(self):
        self.assertEqual([line for line in README.splitlines() if len(line) > 140 and not line.startswith("|")], [])


class Builds(Case):
    def test_every_command(self):
        copy, prefix = self.path / "copy", self.path / "prefix"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("build*", ".git"))
        identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
        for command in (["init", "--quiet"], ["add", "--all"], [*identity, "commit", "--quiet", "--message", "a copy"]):
            run(["git", *command], cwd=copy)
        self.stand_in("ldconfig", f"echo called >{self.path}/ldconfig")
        environment = self.environment(CUDAToolkit_ROOT=str(pathlib.Path(os.environ["CUDA_INCLUDE"]).parent))
        commands = [command.replace("/usr/local", str(prefix)).replace("=3600", "=5") for command in NIGHTLY]
        commands.insert(1 + NIGHTLY.index("export PYTHONPATH=/usr/local/share/normquant/python"),
                        f"python3 tests/consumer/quickstart.py {prefix}/lib")
        # errexit overlooks a failure in the middle of a && b.
        script = "\n".join(f"{command} || exit" for command in commands)
        said = run(["bash", "-uo", "pipefail", "-c", script], cwd=copy, env=environment)
        self.assertIn("SmolLM2-135M-Instruct", said)
        self.assertTrue((self.path / "ldconfig").exists())
        self.assertIn("normquant 0", run([prefix / "bin/normquant", "--version"]))
        self.assertEqual(len(list((copy / "build/package/debs").glob("*.deb"))), 4)


loader, suite = unittest.defaultTestLoader, unittest.TestSuite()
for case in [Builds] if NIGHTLY_RUN else [Commands, Names]:
    suite.addTests(loader.loadTestsFromTestCase(case))
outcome = unittest.TextTestRunner(verbosity=2).run(suite)
sys.exit(1 if not outcome.wasSuccessful() else SKIPPED if outcome.skipped else 0)
