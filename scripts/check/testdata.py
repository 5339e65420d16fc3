#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that testdata/README.md names every folder of test data, and no folder that does not exist.

Names are in backticks. Folders are checked two levels deep; those of testdata/fuzz belong to the fuzz target of the
same name instead, and the parts of a golden area are checked as well.

Usage: testdata.py [ROOT]; exit 1 with one line per violation.
"""
import pathlib
import re
import sys


def folders(path):
    return sorted(child for child in path.iterdir() if child.is_dir())


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    data = root / "testdata"
    named = set(re.findall(r"`([\w./-]+)`", (data / "README.md").read_text()))
    present = folders(data)
    for top in folders(data):
        if top.name != "fuzz":
            present += folders(top)
    for area in folders(data / "golden"):
        present += folders(area)
    present = {path.relative_to(data).as_posix() for path in present}
    wrong = [f"testdata/{name}: no row in testdata/README.md" for name in sorted(present - named)]
    wrong += [f"testdata/{path.name}: no row in testdata/README.md" for path in sorted(data.iterdir())
              if path.is_file() and path.name != "README.md" and path.name not in named]
    tops = {path.name for path in folders(data)}
    wrong += [f"testdata/README.md: `{name}` is not there" for name in sorted(named)
              if name.split("/")[0] in tops and name != "fuzz/NAME" and not (data / name).exists()]
    wrong += [f"testdata/fuzz/{path.name}: no tests/fuzz/fuzz_{path.name}.cc" for path in folders(data / "fuzz")
              if not (root / f"tests/fuzz/fuzz_{path.name}.cc").exists()]
    print("\n".join(wrong) if wrong else f"testdata/README.md names all {len(present)} folders")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
