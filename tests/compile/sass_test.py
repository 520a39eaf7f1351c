#!/usr/bin/env python3
"""Counts what a row costs in instructions, in the disassembly of the kernels for many rows (bf16, NVFP4, linear scales).

sass_test.py WRITE_CUBINS    WRITE_CUBINS is the program built from write_cubins.cpp

Marginal instructions an element: those of 4 granules (64 elements) a thread less those of 2, by 32; with 2 the sum over the threads takes
one step more, some 0.1 of an instruction. Counted on the path that an ordinary
row takes, once round the loop over rows where there is one: not the weight that a block fetches once, nor the branches for special scales,
for the thread that starts a copy, and for operands that no instruction covers. Skipped (77) where there is no nvdisasm of CUDA 13:
NORMQUANT_NVDISASM, else the PATH, a toolkit, the PyPI package nvidia-cuda-nvdisasm.
"""
import collections, glob, heapq, os, re, shutil, subprocess, sys, sysconfig, tempfile

INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
PIPES = {  # by the instruction's name without suffixes; the rest is "other": memory, conversions, shuffles, control
    "fma": "FMUL FADD FFMA FMUL2 FADD2 FFMA2 IMAD HFMA2 HMUL2 HADD2",
    "alu": "LOP3 SHF PRMT FMNMX FMNMX3 VIMNMX VIMNMX3 VHMNMX IADD3 IADD VIADD LEA ISETP FSETP SEL FSEL PLOP3 MOV FCHK F2FP I2FP",
}
PIPE_OF = {name: pipe for pipe, names in PIPES.items() for name in names.split()}


def find_nvdisasm():
    named = os.environ.get("NORMQUANT_NVDISASM")
    if named:
        return named
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *sys.path}
    places = [shutil.which("nvdisasm"), "/usr/local/cuda/bin/nvdisasm"]
    places += [found for package in packages for found in glob.glob(os.path.join(package, "nvidia/*/bin/nvdisasm"))]
    for place in places:
        if place and os.access(place, os.X_OK):
            version = subprocess.run([place, "--version"], capture_output=True, text=True).stdout
            if "release 13." in version:
                return place
    return None


class Kernel:
    """The instructions of a cubin, in basic blocks."""

    def __init__(self, text):
        self.code, labels = [], {}  # (name with suffixes, operands, predicated)
        for line in text.splitlines():
            label = re.match(r"^(\.L_x_\d+):", line)
            if label:
                labels[label[1]] = len(self.code)
            found = INSTRUCTION.match(line)
            if found:
                self.code.append((found[3], found[4], found[2] is not None))
        self.next = [self.successors(i, labels) for i in range(len(self.code))]

    def successors(self, i, labels):
        name, operands, predicated = self.code[i]
        base = name.split(".")[0]
        if base == "EXIT" and not predicated:
            return []
        after = [i + 1] if i + 1 < len(self.code) else []
        if base != "BRA":
            return after
        target = labels[re.search(r"\((\.L_x_\d+)\)", operands)[1]]
        conditional = predicated or ".DIV" in name or ".U" in name or not operands.startswith("`")
        return [target] + (after if conditional else [])

    def shortest(self, start, end):
        """The fewest instructions from start to end, both included."""
        seen, queue = {}, [(0, start, None)]
        while queue:
            steps, at, came_from = heapq.heappop(queue)
            if at in seen:
                continue
            seen[at] = came_from
            if at == end:
                path = []
                while at is not None:
                    path.append(at)
                    at = seen[at]
                return path[::-1]
            for following in self.next[at]:
                heapq.heappush(queue, (steps + 1, following, at))
        raise ValueError("the end of the row cannot be reached from its beginning")

    def row(self):
        """What a thread executes for one ordinary row."""
        stores = [i for i, (name, *_) in enumerate(self.code) if name.startswith("STG")]
        back = [(min(self.next[i]), i) for i in range(len(self.code)) if self.next[i] and min(self.next[i]) < stores[0] and i > stores[-1]]
        if back:  # the loop over rows
            start, end = max(back, key=lambda edge: edge[1] - edge[0])
        else:
            start, end = 0, next(i for i in range(stores[-1], len(self.code)) if not self.next[i])
        path = self.shortest(start, stores[0])
        for a, b in zip(stores, stores[1:] + [end]):
            path += self.shortest(a, b)[1:]
        return [self.code[i][0] for i in path]


def count(names):
    pipes = collections.Counter()
    for name in names:
        base = name.split(".")[0]
        if base != "NOP":
            pipes[PIPE_OF.get(base, "other")] += 1
    return pipes


def warps_of_an_sm(registers, block_threads):
    block_warps = block_threads // 32
    per_warp = (registers * 32 + 255) // 256 * 256  # handed out in units of 256
    return min(64, 65536 // per_warp) // block_warps * block_warps


def main():
    nvdisasm = find_nvdisasm()
    if nvdisasm is None:
        print("skipped: no nvdisasm of CUDA 13 (NORMQUANT_NVDISASM, PATH, /usr/local/cuda, or pip install nvidia-cuda-nvdisasm)")
        return 77
    failures = []
    with tempfile.TemporaryDirectory() as directory:
        written = subprocess.run([sys.argv[1], directory], stdout=subprocess.PIPE, text=True)
        if written.returncode != 0:
            print(written.stdout)
            return written.returncode
        kernels = {}
        for line in written.stdout.splitlines():
            file, arch, variant, form, granules, block, registers, spills = line.split()
            text = subprocess.run([nvdisasm, "-c", file], check=True, stdout=subprocess.PIPE, text=True).stdout
            kernels[arch, variant, int(granules)] = (Kernel(text), form, int(block), int(registers), int(spills))

    print(f"{'target':8} {'variant':15} {'form':7} | instructions/element: {'all':>6} {'fma':>6} {'alu':>6} {'other':>6} | "
          "registers, warps an SM, bytes spilled with 2 and 4 granules")
    for arch, variant in dict.fromkeys(key[:2] for key in kernels):
        two, four = kernels[arch, variant, 2], kernels[arch, variant, 4]
        pipes = {p: (count(four[0].row())[p] - count(two[0].row())[p]) / 32 for p in ("fma", "alu", "other")}
        total = sum(pipes.values())
        warps = [warps_of_an_sm(k[3], k[2]) for k in (two, four)]
        print(f"{arch:8} {variant:15} {four[1]:7} | {total:28.2f} {pipes['fma']:6.2f} {pipes['alu']:6.2f} {pipes['other']:6.2f} | "
              f"{two[3]:4} {warps[0]:3} {two[4]:3}   {four[3]:4} {warps[1]:3} {four[4]:3}")

        def expect(holds, what):
            if not holds:
                failures.append(f"{arch} {variant}: {what}")

        number, names = int(re.search(r"\d+", arch)[0]), {name for name, *_ in four[0].code}
        has = lambda prefix, part="": any(name.startswith(prefix) and part in name for name in names)
        expect(two[4] == 0 and four[4] == 0, "spills")
        expect(has("F2FP", "E2M1") == (number >= 100), "FP4 conversions where there should be none, or none")
        expect((has("FMUL2") and has("FFMA2")) == (number in (100, 103)), "packed f32x2 where it should not be, or none")
        expect(has("FMNMX3") == (number in (100, 103, 110)), "maxima of three where they should not be, or none")
        expect(has("LDG", ".ENL2.256") == (variant == "throughput_32b"), "256-bit loads where there should be none, or none")
        if arch in ("sm_100f", "sm_100a"):
            expect(total <= 8, f"{total:.2f} instructions an element, more than 8")
        if number in (100, 103) and variant == "throughput":
            expect(min(warps) >= 20, f"registers for {min(warps)} warps an SM, fewer than 20")
    for failure in failures:
        print("FAILED", failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
