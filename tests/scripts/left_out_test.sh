#!/usr/bin/env bash
# What tools/test.sh cannot do, or CMake or ctest leave out, is said to a user and fails a CI. In FOLDER, which is emptied, with stand-ins
# for all that the scripts call.
#
#   left_out_test.sh SOURCES FOLDER
set -euo pipefail

out=$2
rm -rf "$out"
mkdir -p "$out/bin" "$out/checkout"
cp -r "$1/tools" "$out/checkout"
sed -i 's| /usr/local/cuda/bin/nvdisasm||' "$out/checkout/tools/setup.sh" # not this machine's

# stand_in NAME TEXT: a program of this name that does what TEXT says
stand_in() {
    printf '#!/bin/bash\n%s\n' "$2" >"$out/bin/$1"
    chmod +x "$out/bin/$1"
}
for program in bash dirname sed grep paste cat mkdir rm mv nproc id tr; do ln -s "$(command -v "$program")" "$out/bin"; done
for program in g++ ninja pkg-config dpkg-shlibdeps groff zsh fish clang clang++; do stand_in "$program" ''; done
# shellcheck disable=SC2016 # they expand when they run
{
    stand_in setarch '[[ $2 == true ]] || exec "${@:2}"'
    stand_in cmake '[[ $* != *"--preset $CONFIGURING "* ]] || echo "-- x_test is left out, for want of y"
echo "-- Generating done"'
    stand_in ctest 'if [[ " $* " == *" -N "* ]]; then printf "  Test  #3: on_a_gpu\n"; exit; fi
echo "$*" >>"$HOME/ctest_calls"
preset=$2
while [[ $1 != --output-log ]]; do shift; done
if [[ $preset != "$TESTING" ]]; then
    printf "100%% tests passed\n" >"$2"
else
    printf "The following tests did not run:\n\t  3 - on_a_gpu (Skipped)\n\t 14 - z_test (Skipped)\n" >"$2"
fi'
    stand_in python3 'case "$*" in "-c import ml_dtypes, numpy") exit "$NO_NUMPY" ;; *" pip install "*) exit 1 ;; esac'
}
stand_in nvdisasm 'echo "release 13.0"'
mkdir -p "$out/cuda/include" "$out/cuda/lib64"
echo '#define CUDA_VERSION 13000' >"$out/cuda/include/cuda.h"
touch "$out/cuda/include/nvrtc.h" "$out/cuda/lib64/libnvrtc.so.13"

# run_tests VARIABLE=VALUE...: test.sh with ${arguments[@]}; its exit status and output, into $status and $said
arguments=()
run_tests() {
    status=0
    rm -f "$out/ctest_calls"
    said=$(env -i PATH="$out/bin" HOME="$out" NORMQUANT_CUDA="$out/cuda" CONFIGURING=none TESTING=none NO_NUMPY=0 "$@" \
        "$out/checkout/tools/test.sh" "${arguments[@]}" 2>&1) || status=$?
}

fail() {
    printf '%s; exit status %s:\n%s\n' "$1" "$status" "$said" >&2
    exit 1
}

# expect_left_out WHAT VARIABLE=VALUE...
expect_left_out() {
    local what=$1 value
    shift
    for value in '' CI=false; do
        run_tests ${value:+"$value"} "$@"
        [[ $status == 0 && $said == *"==> NOT RUN: "*"$what"* && $said == *"==> passed: "* ]] || fail "'$what' is not said"
    done
    run_tests CI=true "$@"
    [[ $status == 1 && $said == *"error: CI=true, and "*"$what"*"remedy: "* && $said != *"==> passed: "* ]] || fail "'$what' passes in a CI"
}

run_tests CI=true
[[ $status == 0 && $said != *"NOT RUN"* && $said == *"==> passed: tests, tests with sanitizers, fuzz targets" ]] ||
    fail "nothing is left out"
for preset in ci asan-ubsan-ci tsan-ci fuzz; do
    grep -q "^--preset $preset " "$out/ctest_calls" || fail "$preset is not tested"
done

# Single tests, and the long ones.
arguments=(-R emulator)
run_tests CI=true
[[ $status == 0 && $(<"$out/ctest_calls") == "--preset ci "*" -R emulator" ]] || fail "$(<"$out/ctest_calls")"
arguments=(--nightly -j 1)
run_tests CI=true
[[ $status == 0 && $(<"$out/ctest_calls") == "--preset nightly "*" -j 1" ]] || fail "$(<"$out/ctest_calls")"
arguments=()

for preset in ci asan-ubsan-ci tsan-ci fuzz; do
    expect_left_out "x_test is left out, for want of y" CONFIGURING=$preset
    expect_left_out "tests of $preset were skipped: z_test" TESTING=$preset
done
expect_left_out "normquant.py will be skipped" NO_NUMPY=1
stand_in nvdisasm 'echo "release 12.0"'
expect_left_out "sass_test will be skipped"
stand_in nvdisasm 'echo "release 13.0"'
stand_in clang++ 'exit 1'
expect_left_out "the fuzz targets"
stand_in clang++ ''
rm "$out/bin/zsh"
expect_left_out "for want of zsh"
rm -rf "$out"
