#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds packages into build/packages, and checks them:
#   scripts/release/package.sh deb       kvtool, libkvtool0 and libkvtool-dev for the Debian release that this runs on
#   scripts/release/package.sh static    kvtool-VERSION-linux-ARCH.tar.xz: one program that needs no library, with its pages;
#                                        and the tree that packaging/Dockerfile makes of it, tried
#   scripts/release/package.sh wheel     wheels of the Python package, one for each installed interpreter (build_wheel.sh)
#   scripts/release/package.sh sbom      an SPDX document beside the static program, and one for the program of the Debian package
#   scripts/release/package.sh recipes URL [HOMEPAGE]   a Homebrew formula and a conda recipe for the tarball at URL/
#   scripts/release/package.sh checksums SHA256SUMS of all packages built so far
#   scripts/release/package.sh all [URL] everything
# ARCH=aarch64 before `deb` or `static` builds them with Debian's cross compiler (scripts/setup.sh --cross), and tries them under
# qemu. Packages for both architectures must have the same contents (same_packages.py), so build the machine's own first.
set -euo pipefail
cd "$(dirname "$0")/../.."
root=$PWD out=$PWD/build/packages
arch=${ARCH:-$(uname -m)} static=static debian=package cross='' emulator='' toolchain=()
if [ "$arch" != "$(uname -m)" ]; then
  static=$arch-static debian=$arch-package cross=$arch-linux-gnu- emulator=qemu-$arch-static
  toolchain=(--toolchain "$root/scripts/cmake/$arch-linux-gnu.cmake")
fi
version=$(sed -n 's/^project(kvtool VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
# Uses the time of the last commit, so that the same commit makes the same packages.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}

debian_name() { # VARIABLE: prints it for the architecture that is built for (dpkg-architecture)
  dpkg-architecture -f -t "$arch-linux-gnu" -q"$1" 2>/dev/null # it warns that CC is another compiler
}

stage() { # BUILD: installs everything, stripped, into $out/stage
  rm -rf "$out/stage"
  DESTDIR=$out/stage cmake --install "$1" --prefix /usr --strip >/dev/null
}

debian_changelog() {
  printf 'kvtool (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- The kvtool authors <kvtool@example.org>  %s\n' \
    "$version" "$(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
}

walks() { # PREFIX: runs the commands of the installed documents, as users would
  local walk
  for walk in operator researcher ci packager; do
    tests/walks/run.sh "$walk" "$1" | sed "s/^/$walk: /"
  done
}

deb() { # PACKAGE SECTION SHLIBDEPS DEPENDS SUMMARY DESCRIPTION FILE...: makes a package of $out/stage
  local package=$1 section=$2 shlibdeps=$3 depends=$4 summary=$5 description=$6 extra='' root file
  shift 6
  root=$out/root/$package
  rm -rf "$root"
  for file in "$@"; do
    mkdir -p "$root/$(dirname "$file")"
    # shellcheck disable=SC2086  # a pattern
    cp -a "$out"/stage/$file "$root/$(dirname "$file")/"
  done
  mkdir -p "$root/usr/share/doc/$package"
  cp "build/$debian/generated/copyright" "$root/usr/share/doc/$package/"
  debian_changelog | gzip -9n >"$root/usr/share/doc/$package/changelog.gz"
  [ ! -d "$root/usr/share/man" ] || find "$root/usr/share/man" -type f -exec gzip -9n {} +
  [ ! -e "$root/usr/share/doc/$package/LICENSE" ] || ln -sf copyright "$root/usr/share/doc/$package/LICENSE" # as Debian calls it
  find "$root" -type f -exec chmod u=rw,go=r {} + -o -type d -exec chmod u=rwx,go=rx {} +
  [ ! -d "$root/usr/bin" ] || chmod +x "$root"/usr/bin/*
  if [ "$package" = libkvtool0 ]; then # programs that link the library depend on this package
    mkdir -p "$out/control"
    printf 'libkvtool 0 libkvtool0 (>= %s)\nlibkvtool_study %s libkvtool0 (>= %s)\n' "$version" "${version%.*}" "$version" \
      >"$out/control/shlibs"
    printf 'activate-noawait ldconfig\n' >"$out/control/triggers"
    chmod 644 "$out"/control/*
    extra="$out/control/shlibs;$out/control/triggers"
  fi
  sed -e "s|@package@|$package|g; s|@version@|$version|g; s|@section@|$section|; s|@shlibdeps@|$shlibdeps|" \
    -e "s|@depends@|$depends|; s|@summary@|$summary|; s|@description@|$description|; s|@out@|$out|; s|@root@|$root|" \
    -e "s|@extra@|$extra|; s|@architecture@|$(debian_name DEB_HOST_ARCH)|" scripts/release/packaging/deb.cmake.in >"$out/$package.cmake"
  # dpkg-shlibdeps looks for the libraries of this architecture.
  (cd "$out" && DEB_HOST_ARCH=$(debian_name DEB_HOST_ARCH) cpack --config "$package.cmake" >"$out/$package.log") || { cat "$out/$package.log"; exit 1; }
}

debs() {
  local lib libc mine
  mine=$(debian_name DEB_HOST_ARCH)
  cmake --preset "$debian" -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_INSTALL_LIBDIR="lib/$(debian_name DEB_HOST_MULTIARCH)" >/dev/null
  cmake --build --preset "$debian" -- --quiet
  stage "build/$debian"
  lib=$(cd "$out/stage" && dirname "$(find usr/lib -name libkvtool.so)")
  rm -f "$out"/*"_$mine.deb"
  # dpkg-shlibdeps does not see that a program with packed relocations requires glibc 2.36.
  libc=$(readelf -d "$out/stage/usr/bin/kvtool" | grep -q RELR && echo "libc6 (>= 2.36)" || true)
  deb kvtool utils ON "$libc" "analyzer and codec toolkit for the KV caches of LLM engines" \
    "Reads, measures, compresses, compares and replays key-value caches of LLM\\\\n engines. Archives restore byte for byte." \
    usr/bin usr/share
  deb libkvtool0 libs ON "" "lossless codec for the KV caches of LLM engines" \
    "The shared libraries: frames, archives, eviction and analysis behind\\\\n a C interface." "$lib/libkvtool.so.*" \
    "$lib/libkvtool_study.so.*"
  deb libkvtool-dev libdevel OFF "libkvtool0 (= $version)" "lossless codec for the KV caches of LLM engines (development)" \
    "Headers, the static libraries, and files for CMake and pkg-config." \
    usr/include "$lib/libkvtool.so" "$lib/libkvtool.a" "$lib/libkvtool_study.so" "$lib/libkvtool_study.a" "$lib/cmake" "$lib/pkgconfig"
  rm -rf "$out/root" "$out/stage" "$out/control" "$out/_CPack_Packages" "$out"/*.cmake "$out"/*.log
  if command -v lintian >/dev/null; then
    # cpack writes the call of ldconfig itself, in addition to the trigger.
    lintian --fail-on error,warning --suppress-tags maintscript-calls-ldconfig "$out"/*"_$mine.deb"
  else
    echo "lintian is not installed: the packages were not looked at"
  fi
  dpkg -x "$out/kvtool_${version}_$mine.deb" "$out/root"
  if [ -n "$emulator" ]; then
    check_cross_deb "$mine"
  else
    walks "$out/root/usr"
  fi
  rm -rf "$out/root"
  ls -l "$out"/*"_$mine.deb"
}

# The walks run programs by their names, which this machine cannot for another processor. The package must have the contents of
# the machine's own, and its program must restore what it compresses.
check_cross_deb() { # ARCHITECTURE
  local state=testdata/llamacpp/states/s260k-v050-f16.seq0.bin native
  $emulator "$out/root/usr/bin/kvtool" compress -q $state -o "$out/root/a.kvz"
  $emulator "$out/root/usr/bin/kvtool" verify -q "$out/root/a.kvz" --against $state
  native=$(dpkg --print-architecture)
  if compgen -G "$out/*_$native.deb" >/dev/null; then
    scripts/release/same_packages.py "$out" "$native" "$1"
  else
    echo "packages for $native are not built: contents were not compared"
  fi
}

# Debian has Highway and fmt only as shared libraries, so archives are built from its sources of the same version.
static_dependencies() { # PREFIX
  local work=$out/sources apt name file
  if [ -e "$1/complete" ] && [ -s "$1/sources.txt" ]; then return 0; fi
  rm -rf "$work" "$1"
  mkdir -p "$work/lists/partial" "$work/parts"
  # Adds the machine's own entries as entries of source packages, which few machines have enabled.
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources}; do
    [ ! -e "$file" ] || sed 's/^deb /deb-src /; s/^Types:.*/Types: deb-src/' "$file" >"$work/parts/${file##*/}"
  done
  apt=(-qq -o Dir::Etc::SourceList=- -o "Dir::Etc::SourceParts=$work/parts" -o "Dir::State::Lists=$work/lists")
  apt-get "${apt[@]}" update
  (cd "$work" && apt-get "${apt[@]}" source highway fmtlib >/dev/null)
  for name in highway fmtlib; do
    cmake -S "$work/$name"-* -B "$work/build-$name" "${toolchain[@]}" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
      -DBUILD_TESTING=OFF -DHWY_ENABLE_CONTRIB=OFF -DHWY_ENABLE_EXAMPLES=OFF -DHWY_ENABLE_TESTS=OFF -DFMT_TEST=OFF \
      -DFMT_DOC=OFF -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_INSTALL_PREFIX="$1" >/dev/null
    cmake --build "$work/build-$name" --target install -- --quiet >/dev/null
  done
  # The SBOM lists the compiled sources by their names in Debian.
  sed -n 's/^\(Source\|Version\): //p' "$work"/*.dsc | paste -d ' ' - - >"$1/sources.txt"
  rm -rf "$work"
  touch "$1/complete"
}

in_jail() { # JAIL USER COMMAND...
  local jail=$1 user=$2
  shift 2
  [ -z "$emulator" ] || { cp "$(command -v "$emulator")" "$jail/emulator" && set -- /emulator "$@"; }
  chroot --userspec="$user" "$jail" "$@"
}

# Tries the program in an environment like a container, a rescue system or a small machine.
check_static() { # PROGRAM
  local jail=$out/jail
  ! readelf -d "$1" | grep NEEDED || { echo "$1 needs a library"; exit 1; }
  rm -rf "$jail"
  mkdir -p "$jail"
  cp "$1" testdata/llamacpp/states/s260k-v050-f16.seq0.bin "$jail/"
  # qemu reserves addresses for the whole program before it starts.
  (cd "$jail" && { [ -n "$emulator" ] || ulimit -v 65536; } &&
    $emulator ./kvtool compress -q s260k-v050-f16.seq0.bin -o a.kvz && $emulator ./kvtool verify -q a.kvz)
  if [ "$(id -u)" = 0 ]; then
    in_jail "$jail" 0:0 /kvtool compress -q /s260k-v050-f16.seq0.bin -o /b.kvz # no /proc, no library
    cmp "$jail/a.kvz" "$jail/b.kvz"
  else
    echo "not root: the program was not tried in an empty chroot"
  fi
  rm -rf "$jail"
}

# Tests the image as its Dockerfile copies it, without a container engine: with the Dockerfile's user, folder and
# entry point.
check_image() { # CONTEXT
  local jail=$out/jail file=scripts/release/packaging/Dockerfile words user folder entry
  rm -rf "$jail"
  mkdir -p "$jail"
  while read -r -a words; do
    [ "${words[0]:-}" = COPY ] || continue
    case ${words[-1]} in
      */) mkdir -p "$jail${words[-1]}" && (cd "$1" && cp "${words[@]:1:${#words[@]}-2}" "$jail${words[-1]}") ;;
      *) mkdir -p "$jail$(dirname "${words[-1]}")" && (cd "$1" && cp "${words[@]:1:${#words[@]}-2}" "$jail${words[-1]}") ;;
    esac
  done <$file
  folder=$(sed -n 's/^WORKDIR //p' $file)
  user=$(sed -n 's/^USER //p' $file)
  entry=$(sed -n 's/^ENTRYPOINT \["\(.*\)"\]/\1/p' $file)
  echo "image: $(tar -C "$jail" -c . | gzip -9 | wc -c) bytes compressed"
  if [ "$(id -u)" = 0 ]; then
    mkdir -p "$jail$folder"
    cp testdata/llamacpp/states/s260k-v050-f16.seq0.bin "$jail$folder/slot0.bin"
    chown -R "$user" "$jail$folder"
    for words in "-h" "inspect $folder/slot0.bin" "compress -q $folder/slot0.bin" "verify -q $folder/slot0.bin.kvz"; do
      # shellcheck disable=SC2086  # words
      in_jail "$jail" "$user" "$entry" $words >/dev/null || { echo "the image fails at: $words"; exit 1; }
    done
  fi
  rm -rf "$jail"
}

static() {
  local name=kvtool-$version-linux-$arch prefix=$root/build/$arch-prefix
  static_dependencies "$prefix"
  cmake --preset "$static" -DCMAKE_PREFIX_PATH="$prefix" >/dev/null
  cmake --build --preset "$static" --target kvtool kvtool_manual -- --quiet
  rm -rf "${out:?}/$name"
  mkdir -p "$out/$name/bin" "$out/$name/share/man/man1" "$out/$name/share/completions"
  "${cross}strip" -o "$out/$name/bin/kvtool" "build/$static/bin/kvtool"
  check_static "$out/$name/bin/kvtool"
  cp "build/$static/share/man/"* "$out/$name/share/man/man1/"
  cp "build/$static/share/kvtool."* "$out/$name/share/completions/"
  DESTDIR=$out/stage cmake --install "build/$static" --prefix /usr --component documents >/dev/null
  cp -a "$out/stage/usr/share/doc/kvtool/." "$out/$name/"
  rm -rf "$out/stage"
  cp /usr/share/common-licenses/LGPL-2.1 "$out/$name/LICENSE.glibc"
  tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cJf "$out/$name.tar.xz" "$name"
  check_image "$out/$name"
  [ -n "$emulator" ] || walks "$out/$name"
  rm -rf "${out:?}/$name"
  ls -l "$out/$name.tar.xz"
}

wheels() {
  rm -f "$out"/*.whl
  scripts/release/build_wheel.sh --out "$out"
}

sboms() {
  local made=0
  if [ -e "build/$static/bin/kvtool" ]; then
    scripts/release/sbom.py "build/$static" bin/kvtool -o "$out/kvtool-$version-linux-$arch.spdx.json" && made=1
  fi
  if [ -e "build/$debian/bin/kvtool" ]; then
    scripts/release/sbom.py "build/$debian" bin/kvtool -o "$out/kvtool_${version}_$(debian_name DEB_HOST_ARCH).spdx.json" && made=1
  fi
  [ "$made" = 1 ] || { echo "no program is built: scripts/release/package.sh static or deb first"; exit 1; }
}

recipes() { # URL [HOMEPAGE]
  local tarball=$out/kvtool-$version-linux-x86_64.tar.xz sum file
  [ -e "$tarball" ] || { echo "$tarball is not there: scripts/release/package.sh static first"; exit 1; }
  sum=$(sha256sum "$tarball" | cut -d ' ' -f 1)
  for file in kvtool.rb recipe.yaml; do
    sed -e "s|@version@|$version|g; s|@sha256@|$sum|; s|@url@|$1|; s|@homepage@|${2:-${1%/releases/*}}|" \
      "scripts/release/packaging/$file.in" >"$out/$file"
  done
}

checksums() {
  # Names without folders, because downloads are checked in the folder that they were downloaded to.
  (cd "$out" && find . -maxdepth 1 -type f ! -name 'SHA256SUMS*' -printf '%f\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
  cat "$out/SHA256SUMS"
}

mkdir -p "$out"
case ${1:-} in
  deb) debs ;;
  static) static ;;
  wheel) wheels ;;
  sbom) sboms ;;
  recipes) recipes "${2:?where the tarball will be: https://...}" "${3:-}" ;;
  checksums) checksums ;;
  all)
    debs
    static
    wheels
    sboms
    [ -z "${2:-}" ] || recipes "$2" "${3:-}"
    checksums
    ;;
  *) sed -n '3,13s/^# \{0,1\}//p' "$root/scripts/release/package.sh"; exit 2 ;;
esac
