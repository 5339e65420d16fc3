#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the library's binary interface with the list that is checked in, lib/api/kvtool.abi: functions,
values of enumerations, sizes of structs and places of their fields.

  abi.py LIBRARY CC [--update]

A line that changed or went is a break of the interface and needs a new SONAME; a new line is an addition, which
--update writes. Also: the library exports what the header declares, nothing else, and needs no BLAS.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER, LIST = ROOT / "lib/api/kvtool.h", ROOT / "lib/api/kvtool.abi"


def declared(text):
    """(functions, enumerators, {struct: fields}) of the header."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    functions = re.findall(r"KVT_API[^;]*?\b(kvt_\w+)\(", text)
    enumerators = [name for body in re.findall(r"enum \{(.*?)\};", text, re.S) for name in re.findall(r"\bKVT_\w+", body)]
    structs = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (kvt_\w+);", text, re.S):
        fields = [re.sub(r"\[.*|\*", "", part).split()[-1]
                  for line in body.split(";") if line.strip() for part in line.split(",")]
        structs[name] = fields
    return functions, enumerators, structs


def measured(compiler, enumerators, structs):
    lines = [f'printf("value {name} %ld\\n", (long){name});' for name in enumerators]
    for name, fields in structs.items():
        lines.append(f'printf("struct {name} %zu\\n", sizeof({name}));')
        lines += [f'printf("field {name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));'
                  for field in fields]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "abi.c"
        source.write_text('#include <stdio.h>\n#include "kvtool.h"\nint main(void) {\n' + "\n".join(lines) + "\nreturn 0;\n}\n")
        program = source.with_suffix("")
        subprocess.run([compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wpadded", f"-I{HEADER.parent}",
                        source, "-o", program], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def symbols(library, option):
    out = subprocess.run(["nm", "-D", option, library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("compiler")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    functions, enumerators, structs = declared(HEADER.read_text())
    wrong = []
    exported = symbols(options.library, "--defined-only") - {"KVTOOL_0"}
    wrong += [f"{name} is declared, not exported" for name in functions if name not in exported]
    wrong += [f"{name} is exported, not declared" for name in sorted(exported - set(functions))]
    needed = subprocess.run(["readelf", "-d", options.library], check=True, capture_output=True, text=True).stdout
    wrong += [f"the library needs {name}" for name in re.findall(r"NEEDED.*\[(.*(?:blas|cli11).*)\]", needed, re.I)]
    everything = subprocess.run(["nm", options.library], check=True, capture_output=True, text=True).stdout
    if re.search(r"\bcblas_|\b[sd]gemm", everything):
        wrong.append("a BLAS is linked into the library")
    now = sorted([f"function {name}" for name in functions] + measured(options.compiler, enumerators, structs))
    if options.update:
        LIST.write_text("\n".join(now) + "\n")
    before = LIST.read_text().splitlines()
    wrong += [f"gone or changed: {line}" for line in before if line not in now]
    wrong += [f"new, run with --update: {line}" for line in now if line not in before]
    print("\n".join(wrong) if wrong else f"{len(functions)} functions, {len(structs)} structs: as checked in")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
