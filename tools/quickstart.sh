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
provide_cuda 12090 # sm_100f and sm_120f, below, are of 12.9
build release

readonly NORMQUANT=build/release/tools/normquant/normquant
readonly STATES=tests/data/smollm2/hidden_states.safetensors
readonly OUT=build/quickstart
mkdir -p "$OUT"
export NORMQUANT_CACHE_DIR=${NORMQUANT_CACHE_DIR:-$PWD/$OUT/cache}

say "compiling kernels for sm_90, sm_100f and sm_120f into $NORMQUANT_CACHE_DIR"
"$NORMQUANT" warmup --hidden 576 --arch sm_90,sm_100f,sm_120f --json >"$OUT/warmup.json" ||
    fail "not every kernel could be compiled (see above)" "look at NVRTC: $NORMQUANT info"

"$NORMQUANT" info --json >"$OUT/info.json"
if grep -q '"target": "' "$OUT/info.json"; then # what kernels are compiled for on a device that can run them
    device=gpu
else
    device=cpu
    say "no usable GPU (for the reason: $NORMQUANT info): using the CPU reference, which makes the same bytes"
fi

for layer in 0 15 29; do
    for format in nvfp4 mxfp4; do
        say "quantizing layer $layer of $STATES to $format"
        "$NORMQUANT" quantize --input "$STATES:layer$layer.input" --weight "$STATES:layer$layer.attn_norm_bf16" \
            --format "$format" --layout swizzled --eps 1e-5 --device "$device" --verify --out "$OUT/layer$layer-$format" --json >/dev/null ||
            fail "quantize failed (see above)" "if the GPU is at fault: $NORMQUANT info --self-test says more"
    done
done

python3 - "$OUT" "$STATES" <<'PYTHON'
import json
import pathlib
import sys

out, states = pathlib.Path(sys.argv[1]), sys.argv[2]
warmup = json.loads((out / "warmup.json").read_text())
names = [f"layer{layer}-{format}" for layer in (0, 15, 29) for format in ("nvfp4", "mxfp4")]
reports = [json.loads((out / name / "report.json").read_text()) for name in names]
problem, path = reports[0]["problem"], reports[0]["path"]
gpu = path["device"] == "gpu"

print(f"""
input     {states}
          SmolLM2-135M-Instruct: what the attention norms of layers 0, 15 and 29 read
          {problem['rows']} rows of {problem['hidden']} {problem['dtype']}, eps {problem['eps']:.6g}
formats   nvfp4 (blocks of 16, E4M3 scales) and mxfp4 (blocks of 32, UE8M0 scales), {problem['layout']} scales
path      {path['name']}{'; ' + reports[0]['verify'] if gpu else ''}
kernels   {warmup['cache_dir']}""")
for arch, tally in sorted(warmup["archs"].items(), key=lambda item: int(item[0][3:].rstrip("af"))):
    median = tally["median_compile_ms"]
    timing = "" if median is None else f" ({median:.0f} ms median)"
    print(f"{'':10}{arch:8} {tally['compiled']} compiled{timing}, {tally['cached']} cache hits")

print(f"\n{'':16}{'SNR dB':>8}{'max error':>11}{'zero codes':>12}{'time us':>10}{'GB/s' if gpu else '':>8}   output")
for name, report in zip(names, reports):
    quality = report["quality"]
    rate = f"{report['path']['gb_per_s']:.0f}" if gpu else ""
    print(
        f"{name:16}{quality['snr_db']:8.2f}{quality['max_error_over_block_max']:11.4f}{quality['zero_share']:12.1%}"
        f"{report['path']['seconds'] * 1e6:10.1f}{rate:>8}   {out}/{name}/"
    )
print("""
SNR is against the norm in double precision; max error is the largest |y - y'| over its block's maximum.
Each output folder has fp4.npy, scales.npy and report.json.""")
PYTHON
