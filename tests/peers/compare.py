#!/usr/bin/env python3
"""normquant beside Triton and torch.compile: the same operation on the same rows, checked and timed in one process.

    tests/peers/compare.py --library build/ci/src/libnormquant.so [--shape HxM ...]

RMSNorm of bf16 rows to NVFP4 with linear scales and a global scale. Needs a GPU, PyTorch and Triton (2.11 and 3.6 were used).
Triton's kernel is in triton_kernel.py; of its configurations the fastest of each shape counts. torch.compile gets plain() below.

Checked: the peers' scales and codes against normquant's. They cannot be the same bytes throughout, because the peers add and divide
in another order and their rsqrt is not correctly rounded: about 6e-7 of relative error, so that about one scale in 1e5 lies on the
other side of a rounding boundary, which are 1/8 to 1/16 apart, and about as many codes. At most LIMIT of them may differ, a scale
by one step, and a value by what rounding both ways explains. Anything systematic is far above that, and fails the run. A configuration
of Triton's does not where torch.compile and another configuration agree with normquant, for then it was miscompiled: it is named
with what differs, is not timed, and stands in the JSON under "left_out".

Timed: CUDA graphs of many launches that take turns in every round; medians. More than 64 rows rotate through 4 times what L2 holds.
"""

import argparse
import gc
import json
import pathlib
import statistics
import sys

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parent), str(pathlib.Path(__file__).resolve().parents[2] / "tools/python")]

import normquant

SHAPES = ["2048x32768", "4096x16384", "7168x16384", "16384x8192", "512x131072", "7168x1024", "4096x1", "7168x1", "7168x64"]
EPS = 1e-6
LIMIT = 1e-4
FEW = 4  # that may differ in any case: of one row, one scale is more than LIMIT
REPLAY_BYTES, LEAST_LAUNCHES, MOST_LAUNCHES = 4 << 30, 8, 500
WARM_UP_ROUNDS = 3


def parse_shape(text):
    hidden, _, rows = text.partition("x")
    if not (hidden.isdigit() and rows.isdigit() and int(rows) > 0 and 16 <= int(hidden) <= 131072 and int(hidden) % 16 == 0):
        raise argparse.ArgumentTypeError(f"'{text}' is not HxM, a row length (16 to 131072, a multiple of 16) and a number of rows, "
                                         "such as 7168x16384")
    return int(hidden), int(rows)


def plain(x, weight, global_scale):
    """The formula as PyTorch has it, for torch.compile: (codes, scales) as bytes."""
    v = x.float()
    y = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS) * weight.float()
    y = y.view(x.shape[0], -1, 16)
    scale = (y.abs().amax(-1) * (global_scale / 6)).clamp(max=448).to(torch.float8_e4m3fn)
    decoded = scale.float()
    q = y * torch.where(decoded > 0, global_scale / decoded, 0.0).unsqueeze(-1)
    a = q.abs()
    code = ((a > 0.25).to(torch.uint8) + (a >= 0.75) + (a > 1.25) + (a >= 1.75) + (a > 2.5) + (a >= 3.5) + (a > 5.0))
    code = code | (torch.signbit(q).to(torch.uint8) << 3)
    code = code.view(x.shape[0], -1, 2)
    return code[..., 0] | (code[..., 1] << 4), scale.view(torch.uint8)


class Data:
    """Sets of tensors for one shape; launches take them in turn."""

    def __init__(self, hidden, rows, l2_bytes):
        self.hidden, self.rows = hidden, rows
        self.bytes = rows * hidden * 2 + hidden * 2 + rows * hidden // 2 + rows * hidden // 16
        self.sets = 1 if rows <= 64 else max(2, -(-4 * l2_bytes // self.bytes))
        self.launches = min(max(REPLAY_BYTES // self.bytes, LEAST_LAUNCHES), MOST_LAUNCHES)
        self.launches = -(-self.launches // self.sets) * self.sets
        torch.manual_seed(2688)
        self.x = [torch.randn(rows, hidden, device="cuda", dtype=torch.bfloat16) for _ in range(self.sets)]
        self.weight = (1 + 0.2 * torch.randn(hidden, device="cuda")).to(torch.bfloat16)
        self.fp4 = [torch.empty(rows, hidden // 2, device="cuda", dtype=torch.uint8) for _ in range(self.sets)]
        self.words = [fp4.view(torch.int32) for fp4 in self.fp4]
        self.scales = [torch.empty(rows, hidden // 16, device="cuda", dtype=torch.uint8) for _ in range(self.sets)]
        # The usual one, of the first rows: 448 * 6 / the largest |y|.
        v = self.x[0][:256].float()
        y = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS) * self.weight.float()
        self.global_scale = (448 * 6 / y.abs().max()).reshape(1)

    def outputs(self, run):
        """The bytes that run(0) makes of the first set."""
        for tensor in (self.fp4[0], self.scales[0]):
            tensor.fill_(0xEE)
        made = run(0)
        torch.cuda.synchronize()
        codes, scales = made if made is not None else (self.fp4[0], self.scales[0])
        return codes.clone(), scales.clone()


def ours(context, data):
    kernel = context.prepare(normquant.Problem(hidden=data.hidden))
    tensors = [normquant.Tensors(rows=data.rows, eps=EPS, x=x.data_ptr(), weight=data.weight.data_ptr(),
                                 global_scale=data.global_scale.data_ptr(), fp4=fp4.data_ptr(), scales=scales.data_ptr())
               for x, fp4, scales in zip(data.x, data.fp4, data.scales)]

    def run(i):
        context.launch(kernel, tensors[i % data.sets], torch.cuda.current_stream().cuda_stream)
    return run


def triton_runs(data, processors):
    """(name, run) of each configuration."""
    block = triton.next_power_of_2(data.hidden)
    for group, warps, words, persistent in triton_kernel.configurations(data.hidden, data.rows):
        programs = triton.cdiv(data.rows, group)
        if persistent:
            programs = min(programs, processors * max(1, 64 // warps))

        def run(i, group=group, warps=warps, words=words, persistent=persistent, programs=programs):
            s = i % data.sets
            triton_kernel.rmsnorm_nvfp4[(programs,)](data.x[s], data.weight, data.global_scale, data.fp4[s], data.words[s], data.scales[s],
                                                     data.rows, EPS, data.hidden, block, group, words, persistent, num_warps=warps)
        stores = "words" if words else "bytes"
        yield f"{group} rows, {warps} warps, {stores}{', persistent' if persistent else ''}", run


def compiled_run(data):
    torch._dynamo.reset()
    function = torch.compile(plain, dynamic=False)
    return lambda i: function(data.x[i % data.sets], data.weight, data.global_scale)


class Graph:
    def __init__(self, run, launches):
        self.launches = launches
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for i in range(3):  # compiles, allocates
                run(i)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for i in range(launches):
                run(i)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def enqueue(self):
        self.events[0].record()
        self.graph.replay()
        self.events[1].record()

    def microseconds(self):
        self.events[1].synchronize()
        return self.events[0].elapsed_time(self.events[1]) * 1e3 / self.launches


def take_turns(graphs, rounds):
    """Median microseconds of a launch, by graph. Each is first in turn."""
    times = [[] for _ in graphs]
    for r in range(WARM_UP_ROUNDS + rounds):
        graphs[r % len(graphs)].graph.replay()  # not timed: while it runs, the others are enqueued and so start at once
        for i in range(len(graphs)):
            graphs[(r + i) % len(graphs)].enqueue()
        for graph, series in zip(graphs, times):
            time = graph.microseconds()
            if r >= WARM_UP_ROUNDS:
                series.append(time)
    return [statistics.median(series) for series in times]


def differences(data, mine, peer):
    """What of the peer's bytes is not normquant's, as fractions; the text of a failure, or None."""
    (fp4, scales), (peer_fp4, peer_scales) = mine, peer
    if fp4.shape != peer_fp4.shape or scales.shape != peer_scales.shape:
        return {}, f"shapes {tuple(peer_fp4.shape)} {tuple(peer_scales.shape)}"
    steps = (scales.short() - peer_scales.short()).abs()
    scale_count = int((steps != 0).sum())
    code_count = 0
    worst = 0.0
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=fp4.device)
    half_steps = torch.tensor([0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 1, 1], device=fp4.device)  # to the farther neighbour
    for first in range(0, data.rows, 4096):  # not all at once: decoded values are 8 times as large
        part = slice(first, first + 4096)
        decoded = []
        for codes, bytes_ in ((fp4[part], scales[part]), (peer_fp4[part], peer_scales[part])):
            nibbles = torch.stack((codes & 15, codes >> 4), -1).view(codes.shape[0], -1).long()
            scale = bytes_.view(torch.float8_e4m3fn).float().repeat_interleave(16, 1)
            magnitude = nibbles & 7
            sign = 1 - 2 * (nibbles >> 3)
            decoded.append((nibbles, sign * values[magnitude] * scale, half_steps[magnitude] * scale))
        (nibbles, value, reach), (peer_nibbles, peer_value, peer_reach) = decoded
        code_count += int((nibbles != peer_nibbles).sum())
        # Both have rounded the same number, each to within half a step of its own.
        excess = (value - peer_value).abs() - (reach + peer_reach) * (1 + 1e-5)
        worst = max(worst, float(excess.max()))
    found = {"scales": scale_count / scales.numel(), "codes": code_count / (2 * fp4.numel())}
    allowed = FEW + LIMIT * scales.numel()
    if scale_count > allowed:
        return found, f"{scale_count} of {scales.numel()} scales differ, {allowed:.0f} may"
    if int(steps.max()) > 1:
        return found, f"a scale differs by {int(steps.max())} steps, 1 is explained by rounding"
    allowed = 16 * scale_count + FEW + LIMIT * 2 * fp4.numel()  # a block whose scale differs may differ throughout
    if code_count > allowed:
        return found, f"{code_count} of {2 * fp4.numel()} codes differ, {allowed:.0f} may"
    if worst > 0:
        return found, "a value differs by more than rounding explains"
    return found, None


def compare(context, hidden, rows, rounds, properties):
    data = Data(hidden, rows, properties.L2_cache_size)
    run_ours = ours(context, data)
    mine = data.outputs(run_ours)

    graphs, names, left_out = [Graph(run_ours, data.launches)], [], []
    for name, run in triton_runs(data, properties.multi_processor_count):
        try:
            found, failure = differences(data, mine, data.outputs(run))
        except triton.runtime.errors.OutOfResources as error:
            print(f"  Triton, {name}: {error}", file=sys.stderr)
            continue
        if failure:
            left_out.append({"configuration": name, "failure": failure, "differ": found})
            continue
        names.append((name, found))
        graphs.append(Graph(run, data.launches))
    run_compiled = compiled_run(data)
    compiled_found, compiled_failure = differences(data, mine, data.outputs(run_compiled))
    if compiled_failure or not names:
        failures = [f"Triton, {one['configuration']}: {one['failure']}" for one in left_out]
        if compiled_failure:
            failures.append(f"torch.compile: {compiled_failure}")
        return {"hidden": hidden, "rows": rows, "failures": failures or ["no configuration of Triton's ran"]}

    # The fastest configuration, then that one beside the others, so that all three are timed alike.
    best = min(range(len(names)), key=take_turns(graphs[1:], 5).__getitem__)
    graphs = [graphs[0], graphs[1 + best], Graph(run_compiled, data.launches)]
    time_ours, time_triton, time_compiled = take_turns(graphs, rounds)
    return {"hidden": hidden, "rows": rows, "inputs": "l2" if data.sets == 1 else "memory", "us": time_ours,
            "triton_us": time_triton, "to_triton": time_triton / time_ours, "triton": names[best][0],
            "compile_us": time_compiled, "to_compile": time_compiled / time_ours,
            "differ": {"triton": names[best][1], "compile": compiled_found}, "left_out": left_out, "failures": []}


def main():
    global torch, triton, triton_kernel
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="path of libnormquant.so")
    parser.add_argument("--shape", type=parse_shape, action="extend", nargs="+", help=f"HxM; default: {' '.join(SHAPES)}")
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", action="store_true", help="print one JSON document, and nothing else on stdout")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds {arguments.rounds} is not a positive number")
    try:
        import torch
        import triton
        import triton_kernel
    except ImportError as error:
        sys.exit(f"compare.py: {error}; PyTorch and Triton are needed")
    if not torch.cuda.is_available():
        sys.exit("compare.py: PyTorch finds no GPU")

    torch.cuda.init()
    torch.empty(1, device="cuda")  # makes the context current, for normquant
    properties = torch.cuda.get_device_properties(0)
    context = normquant.Context(normquant.Library(arguments.library))
    out = sys.stderr if arguments.json else sys.stdout
    print(f"{properties.name}, PyTorch {torch.__version__}, Triton {triton.__version__}; bf16 to NVFP4, linear scales", file=out)
    print(f"{'H':>6} {'M':>7} {'inputs':<7} {'us':>8} {'Triton':>8} {'ratio':>6} {'compile':>8} {'ratio':>6}  "
          "differ: scales, codes (Triton; torch.compile)   Triton's best", file=out)
    results = []
    for hidden, rows in arguments.shape or map(parse_shape, SHAPES):
        result = compare(context, hidden, rows, arguments.rounds, properties)
        results.append(result)
        if result["failures"]:
            print(f"{hidden:>6} {rows:>7} NOT THE SAME: {'; '.join(result['failures'])}", file=out)
        else:
            differ = "; ".join(f"{found['scales']:.1e}, {found['codes']:.1e}" for found in result["differ"].values())
            print(f"{hidden:>6} {rows:>7} {result['inputs']:<7} {result['us']:>8.2f} {result['triton_us']:>8.2f} "
                  f"{result['to_triton']:>6.2f} {result['compile_us']:>8.2f} {result['to_compile']:>6.2f}  {differ}   {result['triton']}",
                  file=out, flush=True)
            for one in result["left_out"]:
                print(f"{'':>14} left out: Triton, {one['configuration']}: {one['failure']}", file=out, flush=True)
        gc.collect()
        torch.cuda.empty_cache()
    if arguments.json:
        print(json.dumps({"device": properties.name, "torch": torch.__version__, "triton": triton.__version__, "shapes": results},
                         indent=2))
    sys.exit(1 if any(result["failures"] for result in results) else 0)


if __name__ == "__main__":
    main()
