#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles and links the program and libkvtool for macOS on Debian, by zig, which brings macOS's headers and the names in its
# libraries (pip install ziglang). Nothing is run: that takes a Mac (.github/workflows/macos.yml).
#
#   scripts/check/macos.sh [aarch64|x86_64] [TARGET...]     builds in build/macos-ARCH; exit 77, with the reason, without zig or sources
#
# The libraries are built from Debian's source packages. Accelerate, which zig does not have, is a stub that aborts.
set -euo pipefail
arch=${1:-aarch64}
shift || true
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$root/build/macos-$arch
prefix=$build/prefix sources=$root/build/macos-sources
jobs=${JOBS:-$(nproc)}

skip() {
  echo "skipped: $*" >&2
  exit 77
}
if [ -n "${ZIG:-}" ]; then zig=$ZIG
elif command -v zig >/dev/null; then zig=$(command -v zig)
else zig=$(python3 -c 'import ziglang, pathlib; print(pathlib.Path(ziglang.__file__).parent / "zig")' 2>/dev/null) ||
  skip "zig is not installed (pip install ziglang)"
fi
command -v dpkg-source >/dev/null || skip "dpkg-source is not installed (apt install dpkg-dev)"
here=$(dpkg-architecture -qDEB_HOST_MULTIARCH) # one machine may have headers of several architectures

# Wrappers, because CMake wants programs without arguments. By default zig traps undefined behaviour. Its linker cannot choose
# the names that a library shows (ld64's -exported_symbol), so here a library shows all of them, and keeps the matrix products
# that call Accelerate, which Apple's linker drops from libkvtool_study.
mkdir -p "$build/bin" "$prefix/include" "$prefix/lib/pkgconfig" "$sources"
for tool in cc c++ ar ranlib; do
  options=
  case $tool in cc | c++) options="-target $arch-macos.13.0 -fno-sanitize=undefined" ;; esac
  cat > "$build/bin/$tool" <<END
#!/usr/bin/env bash
accelerate=
for word; do
  shift
  case \$word in -Wl,-exported_symbol,*) accelerate=$build/accelerate.o ;; *) set -- "\$@" "\$word" ;; esac
done
exec "$zig" $tool $options "\$@" \$accelerate
END
  chmod +x "$build/bin/$tool"
done
cat > "$build/toolchain.cmake" <<END
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_PROCESSOR $arch)
set(CMAKE_C_COMPILER $build/bin/cc)
set(CMAKE_CXX_COMPILER $build/bin/c++)
set(CMAKE_AR $build/bin/ar)
set(CMAKE_RANLIB $build/bin/ranlib)
set(CMAKE_INSTALL_NAME_TOOL /bin/true)
set(CMAKE_FIND_ROOT_PATH $prefix)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
END
export PKG_CONFIG_LIBDIR=$prefix/lib/pkgconfig

# Fetches source packages of the machine's Debian release with apt, from a separate list of sources.
fetch() {
  local suite apt=$sources/apt
  suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
  sed -n 's/^URIs: //p' /etc/apt/sources.list.d/debian.sources | head -1 |
    sed "s#.*#deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] & $suite main#" > "$apt/list"
  local options=(-qq -o "Dir::Etc::SourceList=$apt/list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$apt/lists"
    -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
  (cd "$sources" && apt-get "${options[@]}" update && apt-get "${options[@]}" source libzstd xxhash sqlite3 zlib fmtlib highway) \
    > "$sources/log" 2>&1 || skip "Debian's source packages cannot be fetched: $(tail -1 "$sources/log")"
  touch "$sources/fetched"
}

# library NAME VERSION PC-NAME FOLDER HEADERS SOURCES [OPTIONS...]: an archive of C sources, found by pkg-config as PC-NAME
library() {
  local name=$1 version=$2 pc=$3 folder=$4 headers=$5 files=$6
  shift 6
  [ -e "$prefix/lib/lib$name.a" ] && return
  echo "macos: $name"
  mkdir -p "$build/$name"
  (
    cd "$folder"
    cp $headers "$prefix/include"
    for file in $files; do echo "$PWD/$file"; done | (cd "$build/$name" && xargs -P "$jobs" -n 1 "$build/bin/cc" -O0 -g0 -w -I"$PWD" "$@" -c)
  )
  "$build/bin/ar" rcs "$prefix/lib/lib$name.a" "$build/$name"/*.o
  printf 'Name: %s\nDescription: %s\nVersion: %s\nCflags: -I%s\nLibs: %s\n' "$pc" "$pc" "$version" "$prefix/include" \
    "$prefix/lib/lib$name.a" > "$prefix/lib/pkgconfig/$pc.pc"
}

libraries() {
  local zstd sqlite
  zstd=$(echo "$sources"/libzstd-*/lib) sqlite=$(echo "$sources"/sqlite3-*)
  [ -e "$sqlite/sqlite3.c" ] || (cd "$sqlite" && ./configure -q --disable-tcl > /dev/null && make -s sqlite3.c > /dev/null)
  library zstd 1.5 libzstd "$zstd" "zstd.h zstd_errors.h zdict.h" "common/*.c compress/*.c decompress/*.c dictBuilder/*.c" -DZSTD_DISABLE_ASM
  library xxhash 0.8 libxxhash "$(echo "$sources"/xxhash-*)" "xxhash.h" "xxhash.c"
  library sqlite3 3.40 sqlite3 "$sqlite" "sqlite3.h" "sqlite3.c" -DSQLITE_OMIT_LOAD_EXTENSION
  # zlib 1.2 takes every Mac for one of the 1990s, without fdopen, unless fdopen is a macro.
  library z 1.2 zlib "$(echo "$sources"/zlib-*)" "zlib.h zconf.h" "*.c" -DHAVE_UNISTD_H -Dfdopen=fdopen
  for package in fmtlib highway; do
    [ -e "$build/$package/installed" ] && continue
    echo "macos: $package"
    cmake -S "$(echo "$sources/$package"-*)" -B "$build/$package" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$build/toolchain.cmake" \
      -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_CXX_FLAGS="-O0 -g0" -DFMT_TEST=OFF -DFMT_DOC=OFF -DHWY_ENABLE_TESTS=OFF \
      -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_CONTRIB=OFF -DHWY_SYSTEM_GTEST=ON > "$build/$package.log"
    cmake --build "$build/$package" -j "$jobs" --target install >> "$build/$package.log"
    touch "$build/$package/installed"
  done
  # These libraries consist of headers, so the machine's own are copied.
  cp -rLu /usr/include/{nlohmann,CLI} "/usr/include/$here/curl" "$prefix/include"
  mkdir -p "$prefix/share/cmake"
  cp -r /usr/share/cmake/{nlohmann_json,CLI11} "$prefix/share/cmake"
}

# zig has the names of Apple's libraries but not all of their headers. Nothing is written again, lest ninja compile everything again.
headers() {
  [ ! -e "$prefix/include/sys/xattr.h" ] || return 0
  mkdir -p "$prefix/include/sys"
  cat > "$prefix/include/sys/xattr.h" <<'END'
#pragma once
#include <sys/types.h>
#ifdef __cplusplus
extern "C" {
#endif
ssize_t getxattr(const char* path, const char* name, void* value, size_t size, u_int32_t position, int options);
int fsetxattr(int descriptor, const char* name, const void* value, size_t size, u_int32_t position, int options);
#ifdef __cplusplus
}
#endif
END
}

# zig lacks the frameworks, so a header declares the same functions and a library defines them.
accelerate() {
  [ ! -e "$build/accelerate.o" ] || return 0
  cp "/usr/include/$here/openblas-serial/"{cblas,openblas_config}.h "$prefix/include" 2>/dev/null || skip "cblas.h is not installed"
  sed -i '/define OPENBLAS_OS_LINUX/d' "$prefix/include/openblas_config.h" # OS_LINUX would declare functions with cpu_set_t
  echo 'void abort(void); void cblas_sgemm(void) { abort(); } void cblas_dgemm(void) { abort(); }
void cblas_sgemv(void) { abort(); } void cblas_dgemv(void) { abort(); }' > "$build/accelerate.c"
  "$build/bin/cc" -c "$build/accelerate.c" -o "$build/accelerate.o"
}

[ -e "$sources/fetched" ] || fetch
libraries
headers
accelerate
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$build/toolchain.cmake" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-O0 -g0" \
  -DKVTOOL_UNITY=ON -DKVTOOL_WERROR=ON -DKVTOOL_DEVELOPER=OFF -DKVTOOL_BENCH=OFF -DKVTOOL_CCACHE=OFF \
  -DKVTOOL_BLAS_INCLUDE="$prefix/include" -DKVTOOL_BLAS_LIBRARY="$build/accelerate.o"
[ $# -gt 0 ] || set -- kvtool kvtool_shared kvtool_study_shared
cmake --build "$build" -j "$jobs" --target "$@" -- -k 0 # names every file that does not compile
