#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that this machine can run; those that need a GPU say so and are skipped.
#
#   tools/test.sh                 all tests but the long ones; then, built again with sanitizers, those that gain most by it; then the fuzz targets
#   tools/test.sh ARGUMENT...     the tests alone that these arguments of ctest choose, e.g. -R cache
#   tools/test.sh --nightly       the long tests: full matrices of the kernels, an hour or more; further arguments go to ctest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/setup.sh

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,6s/^# \{0,1\}//p' tools/test.sh
    echo
    sed -n 's/^#   \(NORMQUANT_CUDA=\)/  \1/p' tools/setup.sh
    exit
fi

launcher=()
# test_preset PRESET [ARGUMENT...]: a GPU and privileges are not everywhere; no other reason to skip a test is good enough for a CI.
test_preset() {
    local log=build/$1.test.log may_skip skipped
    say "testing $1"
    "${launcher[@]}" ctest --preset "$1" -j "$(nproc)" --output-log "$log" "${@:2}"
    may_skip=$(ctest --preset "$1" -N -L '^(gpu|privileged)$' | sed -n 's/^ *Test *#[0-9]*: //p')
    skipped=$(sed -n 's/^[[:space:]]*[0-9]* - \(.*\) (Skipped)$/\1/p' "$log" | grep -vxF "$may_skip" | paste -sd ' ') || true
    [[ -z $skipped ]] || left_out "tests of $1 were skipped: $skipped" "see their reasons in $log, or run ctest --preset $1 -V -R NAME"
}

# Clang with libFuzzer, installed where it is missing.
provide_fuzzer() {
    links_fuzzer || { (apt_install clang libclang-rt-dev) && links_fuzzer; }
}

links_fuzzer() {
    local target='extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }'
    command -v clang >/dev/null && clang++ -x c++ -fsanitize=fuzzer,address,undefined -o /dev/null - 2>/dev/null <<<"$target"
}

install_packages
install_test_packages
provide_cuda 12080 # the headers that the build needs
provide_nvdisasm
provide_numpy
fuzzer=
if (($# == 0)); then # before the build, which lets Clang read the C++ header as well
    if provide_fuzzer; then
        fuzzer=yes
    else
        left_out "the fuzz targets cannot be run, for want of clang with libFuzzer" "install the Debian packages clang and libclang-rt-dev"
    fi
fi
build ci
case ${1:-} in
--nightly)
    test_preset nightly "${@:2}"
    exit
    ;;
?*)
    test_preset ci "$@"
    exit
    ;;
esac

test_preset ci
# Some kernels place mappings at random where the sanitizers of older compilers have their shadow memory.
if setarch -R true 2>/dev/null; then launcher=(setarch -R); fi
for sanitizers in asan-ubsan-ci tsan-ci; do
    build "$sanitizers"
    test_preset "$sanitizers"
done
if [[ $fuzzer ]]; then
    build fuzz
    test_preset fuzz
    say "passed: tests, tests with sanitizers, fuzz targets"
else
    say "passed: tests, tests with sanitizers. NOT RUN: the fuzz targets, for want of clang with libFuzzer (Debian: clang libclang-rt-dev)"
fi
