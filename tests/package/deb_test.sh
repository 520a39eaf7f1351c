#!/usr/bin/env bash
# Makes the Debian packages, installs them with dpkg in a root that has what they depend on and little else, uses them there, and
# removes them again. In FOLDER, which is emptied. Without root, in a user namespace.
#
#   deb_test.sh FOLDER
set -euo pipefail

skip() {
    echo "skipped: $1"
    exit 77
}

export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C
for program in dpkg dpkg-shlibdeps unshare chroot /usr/bin/python3; do
    command -v "$program" >/dev/null || skip "there is no $program"
done
if [[ $(id -u) != 0 ]]; then
    unshare --map-root-user true 2>/dev/null || skip "neither root, nor may it make a user namespace"
    exec unshare --map-root-user "$0" "$@"
fi

fail() {
    echo "$1" >&2
    exit 1
}

# same WHAT EXPECTED FOUND
same() { [[ $2 == "$3" ]] || fail "$1: expected '$2', found '$3'"; }

export HOME=$1 # where dpkg looks for settings
out=$1 debs=$1/debs root=$1/root
rm -rf "$out"
mkdir -p "$debs" "$root"
SOURCE_DATE_EPOCH=1 "$CPACK" --config "$BUILD/CPackConfig.cmake" -G DEB -B "$out/cpack" >"$out/cpack.log" 2>&1 || fail "$(<"$out/cpack.log")"
mv "$out"/cpack/*.deb "$debs"
arch=$(dpkg --print-architecture)
runtime=libnormquant$ABI
expected="libnormquant-dev_${VERSION}_$arch.deb ${runtime}_${VERSION}_$arch.deb normquant_${VERSION}_$arch.deb"
same packages "$expected python3-normquant_${VERSION}_all.deb" "$(cd "$debs" && echo *.deb)"
runtime_deb=$debs/${runtime}_${VERSION}_$arch.deb tools_deb=$debs/normquant_${VERSION}_$arch.deb
development_deb=$debs/libnormquant-dev_${VERSION}_$arch.deb python_deb=$debs/python3-normquant_${VERSION}_all.deb
same "what programs that are linked to the library need" "libnormquant $ABI $runtime (>= $VERSION)" \
    "$(dpkg-deb --ctrl-tarfile "$runtime_deb" | tar -xOf - ./shlibs)"
[[ $(tr "\n" " " <"$SOURCE/README.md") == *"packages $runtime, libnormquant-dev, python3-normquant and normquant,"* ]] ||
    fail "README.md names other packages"
same "what the headers need" "$runtime (= $VERSION)" "$(dpkg-deb -f "$development_deb" Depends)"
same "what the Python module needs" "$runtime (= $VERSION), python3" "$(dpkg-deb -f "$python_deb" Depends)"

# The packages that $1 and the like need, all the way down, as far as they are installed here. Of alternatives, any that is.
dependencies() {
    local queue=("$@") name found=" "
    while ((${#queue[@]})); do
        name=${queue[0]} queue=("${queue[@]:1}")
        [[ $found != *" $name "* && $(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null) == installed* ]] || continue
        found+="$name "
        # shellcheck disable=SC2207 # names of packages have no blanks
        queue+=($(dpkg-query -W -f='${Pre-Depends},${Depends}' "$name" | tr ',|' '\n' | sed 's/(.*)//; s/:any//' | tr -d ' ' | sort -u))
    done
    echo "$found"
}

# Of this machine's own: what the packages name, Python, a shell, ldconfig and rm for their scripts, and dpkg's records of these.
needed=$(for deb in "$runtime_deb" "$tools_deb"; do dpkg-deb -f "$deb" Depends; done | tr ',' '\n' | sed 's/(.*)//' | tr -d ' ' | sort -u)
[[ $needed == *libc6* && $needed == *libstdc++6* ]] || fail "the packages need: $needed"
# shellcheck disable=SC2086
base=$(dependencies $needed python3 dash libc-bin coreutils)
mkdir -p "$root"/{usr/{bin,sbin,lib,lib64},etc,tmp,var/lib/dpkg/{info,updates}}
for link in bin sbin lib lib64; do ln -s "usr/$link" "$root/$link"; done
for package in $base; do
    dpkg-query -L "$package" | while read -r file; do
        if [[ ! -d $file && (-e $file || -L $file) && $file != /usr/share/* && $file != /etc/* ]]; then echo "${file#/}"; fi
    done
done | tar -C / -cf - --files-from - | tar -C "$root" -xf - --no-same-owner --keep-directory-symlink
[[ -e $root/bin/sh ]] || ln -s dash "$root/usr/bin/sh"
for package in $base; do dpkg-query -s "$package" | sed '/^Conffiles:/,/^[^ ]/{/^Conffiles:/d;/^ /d}'; echo; done >"$root/var/lib/dpkg/status"
# Files, but for what the scripts and programs of others write for themselves.
files_of_root() {
    find "$root" -not -type d -not -path "*/var/lib/dpkg/*" -not -path '*/var/log/*' -not -path "*/usr/lib/python3.*" \
        -not -name ld.so.cache | sort
}
files_of_root >"$out/before"

in_root() { env -i PATH=/usr/bin:/usr/sbin HOME=/tmp NORMQUANT_CACHE_DIR= chroot "$root" "$@"; }
# Without this machine's own settings for dpkg, which may leave out manual pages.
install_debs() { dpkg --root="$root" --path-include='*' --install "$@" >"$out/dpkg.log" 2>&1 || fail "$(<"$out/dpkg.log")"; }

# dpkg holds what is named against what is there: the headers want the library.
if dpkg --root="$root" --install "$development_deb" >"$out/dpkg.log" 2>&1; then fail "headers can be installed without the library"; fi
grep -q "libnormquant-dev depends on $runtime (= $VERSION)" "$out/dpkg.log" || fail "$(<"$out/dpkg.log")"
dpkg --root="$root" --purge libnormquant-dev >/dev/null 2>&1

# The tool alone: it does not need the library's package.
install_debs "$tools_deb"
same version "normquant $VERSION" "$(in_root normquant --version)"
states=hidden_states.safetensors
cp "$SOURCE/tests/data/smollm2/$states" "$root/tmp"
arguments=(quantize --weight "/tmp/$states:layer0.attn_norm_bf16" --input "/tmp/$states:layer0.input" --format mxfp4 --device cpu)
in_root normquant "${arguments[@]}" --out /tmp/out >/dev/null
NORMQUANT_CACHE_DIR='' "$TOOL" "${arguments[@]//\/tmp\//$root/tmp/}" --out "$root/tmp/expected" >/dev/null
for file in fp4 scales; do cmp "$root/tmp/out/$file.npy" "$root/tmp/expected/$file.npy"; done
in_root normquant doctor --json >"$out/doctor.json" || true # it finds no NVRTC and no driver here
grep -q '"findings"' "$out/doctor.json" || fail "doctor: $(<"$out/doctor.json")"
for file in share/man/man1/normquant.1 share/bash-completion/completions/normquant; do
    [[ -s $root/usr/$file ]] || fail "/usr/$file is not installed"
done

# The library with its headers: a program that is built against the root runs in it.
install_debs "$runtime_deb" "$development_deb"
library=usr/$LIBDIR/libnormquant.so.$ABI
grep -q "/$LIBDIR/libnormquant.so.$ABI$" <<<"$(in_root ldconfig -p)" || fail "ldconfig does not know the library"
"$CC" -std=c99 -I"$root/usr/include" "$SOURCE/tests/examples/quickstart.c" -o "$root/tmp/shared" -L"$root/usr/$LIBDIR" -lnormquant
"$CC" -std=c99 -I"$root/usr/include" "$SOURCE/tests/examples/quickstart.c" -o "$root/tmp/static" "$root/usr/$LIBDIR/libnormquant.a" \
    -lstdc++ -lm -pthread -ldl
same "a program's output" "$("$QUICKSTART")" "$(in_root /tmp/shared)"

# No NVRTC here and no true driver: a GPU is served from a bundle alone, as an image would be.
[[ -z $(find "$root" -name "libnvrtc*") ]] || fail "there is an NVRTC in the root"
cp "$FAKE_GPU" "$root/tmp/libcuda.so"
NORMQUANT_CACHE_DIR=$out/cache NORMQUANT_NVRTC=$FAKE_NVRTC "$TOOL" warmup --hidden 576 --format mxfp4 --arch sm_90 \
    --bundle "$root/tmp/kernels.nqb" >/dev/null
arguments[-1]=gpu # as above, but for the device
serve() {
    in_root /usr/bin/env NORMQUANT_JIT=off NORMQUANT_LIBCUDA=/tmp/libcuda.so NORMQUANT_BUNDLES="$1" \
        normquant "${arguments[@]}" --out /tmp/served
}
if serve '' >/dev/null 2>"$out/missing"; then fail "a kernel is served from nowhere"; fi
grep -q "JIT is off" "$out/missing" || fail "$(<"$out/missing")"
serve /tmp/kernels.nqb >/dev/null
for file in fp4 scales; do cmp "$root/tmp/served/$file.npy" "$root/tmp/expected/$file.npy"; done

# The Python module, which leaves what Python has written of it.
install_debs "$python_deb"
cp "$SOURCE/tests/consumer/quickstart.py" "$root/tmp"
same "quickstart.py's output" "$("$QUICKSTART")" "$(in_root python3 /tmp/quickstart.py "/usr/$LIBDIR")"
[[ -e $(echo "$root"/usr/lib/python3/dist-packages/__pycache__/normquant.*) ]] || fail "Python kept nothing of the module"

# Gone without a trace; what was linked statically still runs.
dpkg --root="$root" --purge normquant python3-normquant libnormquant-dev "$runtime" >"$out/dpkg.log" 2>&1 || fail "$(<"$out/dpkg.log")"
[[ ! -e $root/$library ]] || fail "/$library is still there"
same "a program's output" "$("$QUICKSTART")" "$(in_root /tmp/static)"
rm -rf "$root"/tmp/*
files_of_root >"$out/after"
diff "$out/before" "$out/after" || fail "files were left behind, or are missing"
rm -rf "$out/root" "$out/cpack"
echo "installed and removed: $(cd "$debs" && echo *.deb)"
