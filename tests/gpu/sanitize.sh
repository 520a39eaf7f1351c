#!/usr/bin/env bash
# The cases of gpu_test that launch most differently, under each tool of compute-sanitizer; arguments are tools to run instead of all.
#
#   tests/gpu/sanitize.sh [memcheck] [racecheck] [synccheck] [initcheck]
#
# NORMQUANT_BUILD is the build directory, build/ci else. Exit 77, with the reason, where there is no sanitizer or no GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
program=${NORMQUANT_BUILD:-build/ci}/tests/gpu/gpu_test
cases=("golden vectors" "everything that a launch may ask for*" "row counts*" "many rows*" "a launch that overlaps*" "a chain of norms*"
    "a captured launch*" "a graph takes*" "stream capture")

skip() {
    echo "skipped: $1"
    exit 77
}

[[ -x $program ]] || { echo "sanitize.sh: $program is missing; build the target gpu_test, or name its build in NORMQUANT_BUILD" >&2; exit 2; }
sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer) || skip "compute-sanitizer was found neither in PATH nor in /usr/local/cuda/bin"
said=$("$program" "golden vectors") || {
    (($? == 77)) && skip "${said#*skipped: }"
    echo "$said"
    exit 1
}

(($# > 0)) || set -- memcheck racecheck synccheck initcheck
failed=()
for tool in "$@"; do
    for name in "${cases[@]}"; do
        echo "== $tool: $name"
        "$sanitizer" --tool "$tool" --error-exitcode 1 --print-limit 20 "$program" -w NoTests "$name" || failed+=("$tool: $name")
    done
done
((${#failed[@]} == 0)) || { printf 'FAILED: %s\n' "${failed[@]}" >&2; exit 1; }
