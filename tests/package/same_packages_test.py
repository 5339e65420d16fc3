#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that scripts/release/same_packages.py accepts packages that differ only in their processor, and names every
other difference. Exit 77 without dpkg-deb."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/release/same_packages.py"
MACHINES = {"amd64": ("x86_64-linux-gnu", 62), "arm64": ("aarch64-linux-gnu", 183)}


def elf(machine):
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little")


def build(folder, architecture, depends="libc6 (>= 2.36), libfmt9", mode=0o644, machine=None, **changed):
    """Builds a package of one program, one archive, one page and one file of CMake; changed replaces their contents."""
    libraries, own = MACHINES[architecture]
    files = {"program": elf(machine or own), "archive": b"!<arch>\n" + elf(own), "page": b"text\n", "config": f"lib/{libraries}\n".encode()}
    names = {"program": "usr/bin/kvtool", "archive": f"usr/lib/{libraries}/libkvtool.a", "page": "usr/share/doc/kvtool/README.md",
             "config": f"usr/lib/{libraries}/cmake/kvtool.cmake"}
    with tempfile.TemporaryDirectory() as root:
        for name, data in (files | changed).items():
            path = pathlib.Path(root) / names.get(name, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(mode)
        control = pathlib.Path(root) / "DEBIAN/control"
        control.parent.mkdir()
        control.write_text(f"Package: kvtool\nVersion: 1\nArchitecture: {architecture}\nMaintainer: a <a@example.org>\n"
                           f"Depends: {depends}\nDescription: a\n")
        os.chmod(root, 0o755)
        subprocess.run(["dpkg-deb", "-Znone", "--root-owner-group", "--build", root, folder / f"kvtool_1_{architecture}.deb"], check=True,
                       capture_output=True)


def compare(folder):
    done = subprocess.run([sys.executable, SCRIPT, folder, "amd64", "arm64"], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def main():
    if not shutil.which("dpkg-deb"):
        print("skipped: there is no dpkg-deb")
        return 77
    cases = [
        ({"depends": "libc6 (>= 2.34), libfmt9"}, None),  # a version may differ
        ({"depends": "libc6"}, "Depends: libfmt9 in one of them"),
        ({"page": b"other\n"}, "usr/share/doc/kvtool/README.md: differs"),
        ({"mode": 0o755}, "usr/bin/kvtool: differs"),
        ({"machine": 62}, "usr/bin/kvtool: differs"),
        ({"archive": b"!<arch>\n" + elf(62)}, "usr/lib/LIB/libkvtool.a: differs"),
        ({"config": b"lib/elsewhere\n"}, "usr/lib/LIB/cmake/kvtool.cmake: differs"),
        ({"usr/bin/more": b"#!/bin/sh\n"}, "usr/bin/more: only in arm64"),
    ]
    for changed, expected in cases:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            build(folder, "amd64")
            build(folder, "arm64", **changed)
            status, output = compare(folder)
            assert status == (expected is not None) and (expected or "0 differences") in output, (changed, output)
            (folder / "kvtool_1_arm64.deb").unlink()
            status, output = compare(folder)
            assert status == 1 and "other packages" in output, output
    return 0


if __name__ == "__main__":
    sys.exit(main())
