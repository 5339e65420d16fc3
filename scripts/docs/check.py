#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Renders the reference of libkvtool and checks that it is complete: every function and every struct of the checked-in
interface has its own description.

  check.py DOXYFILE   exit status 77 without doxygen
"""
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as tree

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    if shutil.which("doxygen") is None:
        print("no doxygen here")
        return 77
    doxyfile = pathlib.Path(sys.argv[1])
    done = subprocess.run(["doxygen", doxyfile], capture_output=True, text=True, check=True)
    wrong = [line for line in done.stderr.splitlines() if line.strip()]
    folder = pathlib.Path(re.search(r"^OUTPUT_DIRECTORY = (.*)$", doxyfile.read_text(), re.M)[1])
    described = set()
    for page in (folder / "xml").glob("*.xml"):
        for node in tree.parse(page).iter():
            if node.tag not in ("memberdef", "compounddef"):
                continue
            text = "".join("".join(part.itertext()) for tag in ("briefdescription", "detaileddescription")
                           for part in node.findall(tag))
            name = node.findtext("name") or node.findtext("compoundname")
            if text.strip():
                described.add(name)
    total = [0, 0]
    for header in ("kvtool", "kvtool_study"):
        interface = (ROOT / f"lib/api/{header}.abi").read_text()
        functions = re.findall(r"^function (\w+)$", interface, re.M)
        structs = re.findall(r"^struct (\w+) ", interface, re.M)
        page = (folder / f"api/{header.replace('_', '__')}_8h.html").read_text()
        wrong += [f"{name}: not described in lib/api/{header}.h" for name in functions + structs if name not in described]
        wrong += [f"{name}: not in the rendered page" for name in functions if name not in page]
        total = [total[0] + len(functions), total[1] + len(structs)]
    print("\n".join(wrong) if wrong else f"{total[0]} functions and {total[1]} structs are described")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
