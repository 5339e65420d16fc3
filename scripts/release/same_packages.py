#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the Debian packages of two architectures:

  same_packages.py FOLDER ARCHITECTURE ARCHITECTURE     for example: same_packages.py build/packages amd64 arm64

Both must have the same packages, each with the same files, modes and names of dependencies. Programs and libraries must be
of the package's own processor; every other file must have the same text, apart from the name of the library folder.
"""
import argparse
import gzip
import pathlib
import re
import subprocess
import sys
import tempfile

# Architecture: the folder of its libraries, and e_machine in an ELF header.
MACHINES = {"amd64": ("x86_64-linux-gnu", b"\x3e\x00"), "arm64": ("aarch64-linux-gnu", b"\xb7\x00")}
DEPENDENCIES = ("Depends", "Recommends", "Suggests")
HEADER = re.compile(rb"\x7fELF.{14}(..)", re.S)


def field(package, name):
    return subprocess.run(["dpkg-deb", "--field", package, name], check=True, capture_output=True, text=True).stdout.strip()


def dependencies(package):
    """Returns the names in each field; the versions differ, because a symbol is older on one architecture than on another."""
    return {name: sorted({re.sub(r" \(.*?\)", "", word) for word in field(package, name).split(", ")}) for name in DEPENDENCIES}


def contents(package, architecture):
    """Returns a dictionary from each path to its mode and contents: the target of a link, the text of a file, or, for compiled
    code, a bool that is true if it is for this architecture."""
    folder, machine = MACHINES[architecture]
    found = {}
    with tempfile.TemporaryDirectory() as root:
        subprocess.run(["dpkg-deb", "--raw-extract", package, root], check=True)
        for path in sorted(pathlib.Path(root).rglob("*")):
            name = str(path.relative_to(root)).replace(folder, "LIB")
            if name in ("DEBIAN/control", "DEBIAN/md5sums"):
                continue
            mode = path.lstat().st_mode
            if path.is_symlink():
                found[name] = mode, str(path.readlink())
            elif path.is_file():
                data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                compiled = HEADER.search(data) if data.startswith((b"\x7fELF", b"!<arch>")) else None
                found[name] = mode, compiled[1] == machine if compiled else data.replace(folder.encode(), b"LIB")
            else:
                found[name] = mode, ""
    return found


def differences(one, other, architectures):
    """Yields a sentence for each difference between two packages of the same name."""
    ours, theirs = dependencies(one), dependencies(other)
    for name in DEPENDENCIES:
        if ours[name] != theirs[name]:
            yield f"{name}: {', '.join(sorted(set(ours[name]) ^ set(theirs[name])))} in one of them"
    here, there = contents(one, architectures[0]), contents(other, architectures[1])
    for name in sorted(here.keys() | there.keys()):
        if name not in here or name not in there:
            yield f"{name}: only in {architectures[name not in here]}"
        elif here[name] != there[name]:
            yield f"{name}: differs"
        elif here[name][1] is False:
            yield f"{name}: for another processor"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("architectures", nargs=2, choices=sorted(MACHINES), metavar="ARCHITECTURE")
    options = parser.parse_args()
    packages = [{path.name[:-len(f"_{name}.deb")]: path for path in options.folder.glob(f"*_{name}.deb")}
                for name in options.architectures]
    if not packages[0] or packages[0].keys() != packages[1].keys():
        sys.exit(f"other packages: {sorted(packages[0])}, {sorted(packages[1])}")
    found = [f"{name}: {row}" for name in sorted(packages[0])
             for row in differences(packages[0][name], packages[1][name], options.architectures)]
    for row in found:
        print(row)
    print(f"{len(packages[0])} packages, {len(found)} differences between {' and '.join(options.architectures)}")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
