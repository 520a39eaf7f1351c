#!/usr/bin/env bash
# Builds the packages twice, from copies of the sources in different folders; every file of the two is equal. In FOLDER, which is emptied.
#
#   reproducible_test.sh FOLDER
set -euo pipefail

command -v dpkg-shlibdeps >/dev/null || {
    echo "skipped: there is no dpkg-shlibdeps"
    exit 77
}

# build SOURCES FOLDER: the packages and the files that they are made of, into FOLDER/result
build() {
    local copy=$1 build=$2
    mkdir -p "$copy" "$build/result"
    cp -r "$SOURCE"/{CMakeLists.txt,LICENSE,include,kernels,src,tools} "$copy"
    "$CMAKE" -G Ninja -S "$copy" -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DNORMQUANT_BUILD_TESTS=OFF \
        -DCMAKE_C_COMPILER="$CC" -DCMAKE_CXX_COMPILER="$CXX" -DNORMQUANT_cuda_INCLUDE="$CUDA_INCLUDE" >"$build/log"
    "$CMAKE" --build "$build" >>"$build/log"
    DESTDIR=$build/result "$CMAKE" --install "$build" >>"$build/log" # not stripped, as the packages are
    SOURCE_DATE_EPOCH=1 "$CPACK" --config "$build/CPackConfig.cmake" -B "$build/cpack" >>"$build/log" 2>&1
    mv "$build"/cpack/*.deb "$build/result"
}

out=$1
rm -rf "$out"
# One build folder is inside its sources, as most are; the other is not.
build "$out/here" "$out/here/build"
build "$out/quite/another place/of the same sources" "$out/elsewhere"
diff -r "$out/here/build/result" "$out/elsewhere/result"

files=$(cd "$out/elsewhere/result" && find . -type f | sort)
for expected in "/libnormquant.so.$VERSION" /libnormquant.a /bin/normquant "/normquant_${VERSION}_"; do
    [[ $files == *$expected* ]] || { echo "$expected was not compared: $files" >&2 && exit 1; }
done
rm -rf "$out"
echo "equal: $(wc -l <<<"$files") files"
