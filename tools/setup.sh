# shellcheck shell=bash
# Sourced by quickstart.sh and test.sh, in the repository root: installs what the build needs and finds CUDA. Says what it does.
#
#   NORMQUANT_CUDA=auto|wheels|DIR   a CUDA Toolkit that is new enough if one is found, else wheels (the default); always the wheels; this one

# cuda.h is in the runtime's wheel, nvrtc.h beside NVRTC, the ranges for profilers in nvtx. Nothing else of the toolkit is needed.
readonly CUDA_WHEELS=(nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-nvtx==13.0.85)
readonly NVDISASM_WHEEL=nvidia-cuda-nvdisasm==13.5.37
readonly NUMPY_WHEELS=(numpy ml-dtypes) # whichever version this python3 can use: bytes alone are compared
readonly COMMANDS=(g++:g++ cmake:cmake ninja:ninja-build python3:python3)
readonly LIBRARIES=(libfmt-dev libspdlog-dev libxxhash-dev nlohmann-json3-dev libcli11-dev catch2)
# What single tests need, which are skipped without. dpkg-shlibdeps: the packages'; the others use what is installed, as people do.
readonly TEST_COMMANDS=(pkg-config:pkg-config dpkg-shlibdeps:dpkg-dev /usr/bin/python3:python3 groff:groff-base zsh:zsh fish:fish)

say() { printf '==> %s\n' "$*"; }

fail() {
    printf 'error: %s\nremedy: %s\n' "$1" "$2" >&2
    exit 1
}

# left_out WHAT REMEDY: is said to a user; a CI (CI=true) would take it for a pass, and fails.
left_out() {
    [[ ${CI:-false} == false ]] || fail "CI=$CI, and $1" "$2"
    say "NOT RUN: $1"
}

as_root() {
    if [[ $(id -u) == 0 ]]; then
        "$@"
    elif [[ -t 0 ]]; then
        sudo "$@"
    else
        sudo -n "$@"
    fi
}

# apt_install PACKAGE...
apt_install() {
    local remedy="as root: apt-get update && apt-get install -y --no-install-recommends $*"
    command -v apt-get >/dev/null || fail "missing, and there is no apt-get to install it: $*" \
        "install what your system calls these Debian packages, then run this again"
    [[ $(id -u) == 0 ]] || command -v sudo >/dev/null || fail "missing, and neither root nor sudo to install it: $*" "$remedy"
    say "installing $*"
    # A broken list of some unrelated source must not stop us: if a package is really out of reach, the install says so.
    as_root apt-get -qq update || say "apt-get update failed (see above); trying with the lists at hand"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@" >/dev/null ||
        fail "apt-get could not install $*" "$remedy"
}

package_installed() { [[ $(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# packages_of COMMAND:PACKAGE...: prints the packages of the commands that are missing
packages_of() {
    local entry
    for entry in "$@"; do
        command -v "${entry%%:*}" >/dev/null || printf '%s\n' "${entry#*:}"
    done
}

install_packages() {
    local missing=() entry
    mapfile -t missing < <(packages_of "${COMMANDS[@]}")
    if command -v dpkg-query >/dev/null; then
        for entry in "${LIBRARIES[@]}"; do
            package_installed "$entry" || missing+=("$entry")
        done
    else
        say "no Debian system: expecting the headers of ${LIBRARIES[*]} to be installed; CMake names what is not"
    fi
    if ((${#missing[@]})); then
        apt_install "${missing[@]}"
    else
        say "packages: all there"
    fi
}

install_test_packages() {
    local missing=()
    mapfile -t missing < <(packages_of "${TEST_COMMANDS[@]}")
    ((${#missing[@]} == 0)) || (apt_install "${missing[@]}") ||
        left_out "tests of the packages or the completions will be skipped, for want of ${missing[*]}" "install ${missing[*]}"
}

# find_nvrtc DIR: prints the path of DIR's libnvrtc
find_nvrtc() {
    local file
    for file in "$1"/{lib64,lib,targets/*/lib,lib/*-linux-gnu}/libnvrtc.so.[0-9]*; do
        if [[ -e $file ]]; then
            printf '%s\n' "$file"
            return
        fi
    done
    return 1
}

cuda_version() { sed -n 's/^#define CUDA_VERSION \([0-9]*\).*/\1/p' "$1/include/cuda.h" 2>/dev/null; }

# cuda_name 12080: prints 12.8
cuda_name() { printf '%d.%d\n' $(($1 / 1000)) $(($1 % 1000 / 10)); }

# usable_cuda DIR: it has cuda.h of CUDA_MIN or newer, nvrtc.h and libnvrtc
usable_cuda() {
    local version
    version=$(cuda_version "$1") && [[ -n $version && $version -ge $CUDA_MIN && -e $1/include/nvrtc.h ]] && find_nvrtc "$1" >/dev/null
}

find_toolkit() {
    local dir
    for dir in "${CUDAToolkit_ROOT:-}" "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /usr/local/cuda-* /opt/cuda /usr; do
        if [[ -n $dir ]] && usable_cuda "$dir"; then
            printf '%s\n' "$dir"
            return
        fi
    done
    return 1
}

# python3 with pip; the first python3 on the PATH may be one without
find_pip() {
    local python
    for python in python3 /usr/bin/python3; do
        if "$python" -m pip --version >/dev/null 2>&1; then
            printf '%s\n' "$python"
            return
        fi
    done
    return 1
}

# fetch_wheels DIR WHEEL...: DIR appears only when it is complete
fetch_wheels() {
    local dir=$1 python
    shift
    python=$(find_pip) || { apt_install python3-pip && python=$(find_pip); } || fail "python3 has no pip" "install python3-pip"
    rm -rf "$dir.partial" && mkdir -p "$(dirname "$dir")" &&
        PIP_ROOT_USER_ACTION=ignore "$python" -m pip install --quiet --no-deps --only-binary=:all: --no-compile --target "$dir.partial" "$@" &&
        rm -rf "$dir" && mv "$dir.partial" "$dir"
}

# provide_cuda OLDEST: finds or fetches a CUDA that is no older, e.g. than 12080 (12.8), and exports CUDAToolkit_ROOT (headers, for CMake) and
# NORMQUANT_NVRTC (the library, for what is built; one that is set already stays).
provide_cuda() {
    local wheels=$PWD/build/cuda root nvrtc_given=${NORMQUANT_NVRTC:-}
    readonly CUDA_MIN=$1
    case ${NORMQUANT_CUDA:-auto} in
    auto) root=$(find_toolkit) || root=$wheels/nvidia/cu13 ;;
    wheels) root=$wheels/nvidia/cu13 ;;
    *)
        root=$NORMQUANT_CUDA
        usable_cuda "$root" || fail "NORMQUANT_CUDA=$root has no cuda.h of CUDA >= $(cuda_name "$CUDA_MIN"), no nvrtc.h or no libnvrtc" \
            "name the root of a CUDA Toolkit >= $(cuda_name "$CUDA_MIN"), or NORMQUANT_CUDA=wheels to fetch what is needed from PyPI"
        ;;
    esac
    if [[ $root == "$wheels"/* ]] && ! { usable_cuda "$root" && [[ -e $root/include/nvtx3/nvToolsExt.h ]]; }; then
        say "fetching ${CUDA_WHEELS[*]} from PyPI into $wheels (90 MB)"
        fetch_wheels "$wheels" "${CUDA_WHEELS[@]}" || usable_cuda "$root" || fail "pip could not fetch ${CUDA_WHEELS[*]}" \
            "check the network, or install a CUDA Toolkit >= $(cuda_name "$CUDA_MIN") and set NORMQUANT_CUDA to its folder"
        usable_cuda "$root" || fail "the wheels in $wheels hold no usable cuda.h, nvrtc.h and libnvrtc" "remove $wheels and run this again"
    fi
    export CUDAToolkit_ROOT=$root
    export NORMQUANT_NVRTC=${NORMQUANT_NVRTC:-$(find_nvrtc "$root")}
    say "CUDA: headers of $(cuda_name "$(cuda_version "$root")") in $root, NVRTC $NORMQUANT_NVRTC"
    # CMake finds the wheels' headers by itself; no program looks for NVRTC in a build folder.
    if [[ -z $nvrtc_given && $root == "$wheels"/* ]]; then
        say "for what is built here, in a shell of your own: export NORMQUANT_NVRTC=$NORMQUANT_NVRTC"
    fi
}

usable_nvdisasm() { [[ -x $1 && $("$1" --version 2>/dev/null) == *"release 13."* ]]; }

# provide_nvdisasm: finds or fetches an nvdisasm of CUDA 13 and exports NORMQUANT_NVDISASM; one that is set already stays. One test alone
# needs it, and is skipped without.
provide_nvdisasm() {
    local wheel=$PWD/build/nvdisasm tool
    [[ -z ${NORMQUANT_NVDISASM:-} ]] || return 0
    local fetched=$wheel/nvidia/cu13/bin/nvdisasm
    for tool in "$(command -v nvdisasm)" "$CUDAToolkit_ROOT/bin/nvdisasm" /usr/local/cuda/bin/nvdisasm "$fetched"; do
        if usable_nvdisasm "$tool"; then
            export NORMQUANT_NVDISASM=$tool
            return
        fi
    done
    say "fetching $NVDISASM_WHEEL from PyPI into $wheel (5 MB)"
    if (fetch_wheels "$wheel" "$NVDISASM_WHEEL") && usable_nvdisasm "$fetched"; then
        export NORMQUANT_NVDISASM=$fetched
    else
        left_out "sass_test will be skipped, as there is no nvdisasm of CUDA 13 here and $NVDISASM_WHEEL could not be fetched" \
            "check the network, or name an nvdisasm of CUDA 13 in NORMQUANT_NVDISASM"
    fi
}

has_numpy() { python3 -c 'import ml_dtypes, numpy' 2>/dev/null; }

# provide_numpy: finds or fetches numpy and ml_dtypes for the python3 that runs the tests, and exports PYTHONPATH. The tests of normquant.py
# alone need them, and are skipped without.
provide_numpy() {
    local wheels=$PWD/build/numpy version
    has_numpy && return
    local path=$wheels${PYTHONPATH:+:$PYTHONPATH}
    if ! PYTHONPATH=$path has_numpy; then
        version=$(python3 -c 'import platform; print(platform.python_version())') # pip may be another's
        say "fetching ${NUMPY_WHEELS[*]} from PyPI into $wheels (20 MB)"
        if ! (fetch_wheels "$wheels" "${NUMPY_WHEELS[@]}" --python-version "$version") || ! PYTHONPATH=$path has_numpy; then
            left_out "most tests of normquant.py will be skipped, as ${NUMPY_WHEELS[*]} are not here and could not be fetched" \
                "check the network, or install them for $(command -v python3)"
            return
        fi
    fi
    export PYTHONPATH=$path
}

# build PRESET
build() {
    local log=build/$1.configure.log what
    say "building build/$1 with $(nproc) jobs"
    mkdir -p build
    # Found anew each time: CUDA may have moved since the last run.
    cmake --preset "$1" -U 'NORMQUANT_*_INCLUDE' >"$log" ||
        fail "CMake could not configure (see above)" "install what it names; if the build folder is of another checkout, remove build/$1"
    while read -r what; do
        left_out "$what" "install what is wanting, and run this again"
    done < <(sed -n 's/^-- \(.* left out, .*\)/\1/p' "$log")
    cmake --build --preset "$1" -j "$(nproc)" || fail "the build failed (see above)" "mend what the compiler names and run this again"
}
