#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares apps/python/kvtool/_kvtool.pyi with what nanobind generates from the module that is imported.

  stub.py              to be run by a Python that has nanobind and imports kvtool
  stub.py --update     writes the file instead
"""
import difflib
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
STUB = ROOT / "apps/python/kvtool/_kvtool.pyi"


def generated():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "stub.pyi"
        subprocess.run(
            [sys.executable, "-m", "nanobind.stubgen", "-q", "-P", "-m", "kvtool._kvtool",
             "-p", ROOT / "apps/python/src/stub.pat", "-o", path], check=True)
        return path.read_text()


def main():
    text = generated()
    if "--update" in sys.argv[1:]:
        STUB.write_text(text)
        return
    difference = list(difflib.unified_diff(STUB.read_text().splitlines(), text.splitlines(), str(STUB), "generated"))
    if difference:
        print("\n".join(difference[:60]))
        sys.exit("the stub is not what the module says: scripts/check/stub.py --update writes it")
    print("the stub is what the module says")


if __name__ == "__main__":
    main()
