#!/usr/bin/env bash
# Installs what is missing, builds, compiles kernels into a cache, and quantizes hidden states of a real model to NVFP4 and MXFP4: on a
# GPU if there is one, else with the CPU reference. Everything it makes is under build/; with NORMQUANT_CACHE_DIR set, the kernels go there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/setup.sh

if (($#)); then
    sed -n '2,3s/^# //p' tools/quickstart.sh
    sed -n 's/^#   \(NORMQUANT_CUDA=\)/\1/p' tools/setup.sh
    [[ $1 == -h || $1 == --help ]] && exit 0
    fail "quickstart.sh takes no arguments, but was given '$1'" "run tools/quickstart.sh alone"
fi

install_packages
provide_cuda
build release

readonly NORMQUANT=build/release/tools/normquant/normquant
readonly STATES=tests/data/smollm2/hidden_states.safetensors
readonly OUT=build/quickstart
mkdir -p "$OUT"
export NORMQUANT_CACHE_DIR=${NORMQUANT_CACHE_DIR:-$PWD/$OUT/cache}

say "compiling kernels for sm_90, sm_100f and sm_120f into $NORMQUANT_CACHE_DIR"
"$NORMQUANT" warmup --hidden 576 --arch sm_90,sm_100f,sm_120f --json >"$OUT/warmup.json" ||
    fail "not every kernel could be compiled (see above)" "look at NVRTC: $NORMQUANT info"

for layer in 0 15 29; do
    for format in nvfp4 mxfp4; do
        say "quantizing layer $layer of $STATES to $format"
        "$NORMQUANT" quantize --input "$STATES:layer$layer.input" --weight "$STATES:layer$layer.attn_norm_bf16" \
            --format "$format" --layout swizzled --eps 1e-5 --device auto --verify --out "$OUT/layer$layer-$format" --json >/dev/null ||
            fail "quantize failed (see above)" "if the GPU is at fault, look at: $NORMQUANT info --self-test"
    done
done

python3 - "$OUT" "$STATES" <<'PYTHON'
import json
import pathlib
import sys

out, states = pathlib.Path(sys.argv[1]), sys.argv[2]
warmup = json.loads((out / "warmup.json").read_text())
reports = {path.parent.name: json.loads(path.read_text()) for path in sorted(out.glob("layer*/report.json"))}
first = next(iter(reports.values()))
problem, path = first["problem"], first["path"]
compiled = ", ".join(
    f"{arch} {tally['compiled']} compiled"
    + (f" ({tally['median_compile_ms']:.0f} ms median)" if tally["median_compile_ms"] is not None else "")
    + f", {tally['cached']} cache hits;"
    for arch, tally in warmup["archs"].items()
).rstrip(";")

print(f"""
input     {states}
          SmolLM2-135M-Instruct, what the attention norms of three layers read
          {problem['rows']} rows of {problem['hidden']} {problem['dtype']}, eps {problem['eps']:g}, {problem['layout']} scales
kernels   {compiled}
          in {warmup['cache_dir']}
path      {path['name']}; verify: {first['verify']}
""")
gpu = path["device"] == "gpu"
print(f"{'':16}{'SNR dB':>8}{'max error':>11}{'zero codes':>12}{'us':>10}{'GB/s' if gpu else '':>8}   output")
for name, report in reports.items():
    quality = report["quality"]
    rate = f"{report['path']['gb_per_s']:.0f}" if gpu else ""
    print(
        f"{name:16}{quality['snr_db']:8.2f}{quality['max_error_over_block_max']:11.4f}{quality['zero_share']:12.1%}"
        f"{report['path']['seconds'] * 1e6:10.1f}{rate:>8}   {pathlib.Path(report['files']['fp4']).parent}/"
    )
print("""
SNR is against the norm in double precision; max error is the largest |y - y'| over its block's maximum.
Each output folder has fp4.npy, scales.npy and report.json.""")
PYTHON
