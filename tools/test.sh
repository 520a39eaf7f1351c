#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that this machine can run; those that need a GPU say so and are skipped.
# Arguments go to ctest, e.g. tools/test.sh -R cache. The long tests, afterwards: ctest --test-dir build/ci -L nightly
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/setup.sh

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,3s/^# //p' tools/test.sh
    sed -n 's/^#   \(NORMQUANT_CUDA=\)/\1/p' tools/setup.sh
    exit
fi

install_packages
provide_cuda
build ci
say "testing"
ctest --preset ci --no-tests=error -j "$(nproc)" "$@"
