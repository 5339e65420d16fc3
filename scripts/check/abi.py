#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the binary interface of libkvtool or libkvtool_study with the list that is checked in, lib/api/kvtool.abi
or kvtool_study.abi: functions, values of enumerations, sizes of structs and offsets of their fields.

  abi.py LIBRARY CC [--update]     the name of the library decides which header and list are compared

A changed or removed line of libkvtool breaks the interface and requires a new SONAME; a new line is an addition, which
--update writes. Also checks that the library exports exactly what the header declares and needs no BLAS, that libkvtool
contains no study, and that kvtool.h names every finding of lib/core/base/error.h with its number (--update writes these
names).
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FINDINGS = ROOT / "lib/core/base"
PRIVATE = "kvtool_private_"  # symbols that libkvtool_study of the same version links to
STUDIES = r"_ZNK?2kv(8eviction|8analysis|3mnn3h2o)"


def statuses():
    """Returns the statuses that the header must have, from the table of findings."""
    numbers = re.findall(r"^  k(\w+) = (\d+),$", (FINDINGS / "error.h").read_text(), re.M)
    rows = re.findall(r'\{(?:Finding::)?k(\w+), (?:ErrorCode::)?k\w+, "([^"]*)"', (FINDINGS / "error.cc").read_text())
    summaries = dict(rows)
    lines = ["KVT_OK = 0, /* success */"]
    for name, number in numbers:
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()
        lines.append(f"KVT_E_{snake} = -{number}, /* {summaries[name]} */")
    last, comment = lines.pop().split(", /*", 1)
    return [*lines, f"{last} /*{comment}"]


def status_faults(header, update):
    """Returns the statuses that the header lacks; --update writes them."""
    text = header.read_text()
    wanted = "".join(f"  {line}\n" for line in statuses())
    section = re.compile(r"(?<=  /\* ---- from the table of findings ---- \*/\n).*?(?=  /\* ---- end ---- \*/)", re.S)
    squeeze = lambda lines: re.sub(r"\s+", " ", lines).strip()
    if squeeze(section.search(text)[0]) == squeeze(wanted):
        return []
    if update:
        header.write_text(section.sub(lambda _: wanted, text))
        return []
    return ["the statuses of kvtool.h are not the findings of lib/core/base/error.h: run with --update"]


def declared(text):
    """Returns (functions, enumerators, {struct: fields}) of the header."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    functions = re.findall(r"KVT_API[^;]*?\b(kvt_\w+)\(", text)
    enumerators = [name for body in re.findall(r"enum \{(.*?)\};", text, re.S) for name in re.findall(r"\bKVT_\w+", body)]
    structs = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (kvt_\w+);", text, re.S):
        fields = [re.sub(r"\[.*|\*", "", part).split()[-1]
                  for line in body.split(";") if line.strip() for part in line.split(",")]
        structs[name] = fields
    return functions, enumerators, structs


def measured(header, compiler, enumerators, structs):
    lines = [f'printf("value {name} %ld\\n", (long){name});' for name in enumerators]
    for name, fields in structs.items():
        lines.append(f'printf("struct {name} %zu\\n", sizeof({name}));')
        lines += [f'printf("field {name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));'
                  for field in fields]
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "abi.c"
        source.write_text('#include <stdio.h>\n#include "' + header.name + '"\nint main(void) {\n' + "\n".join(lines) + "\nreturn 0;\n}\n")
        program = source.with_suffix("")
        subprocess.run([compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wpadded", f"-I{header.parent}",
                        source, "-o", program], check=True)
        return subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()


def symbols(library, option):
    out = subprocess.run(["nm", "-D", option, library], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1].split("@")[0] for line in out.splitlines()}


def library_faults(library, is_study, functions):
    """Returns what is wrong with the symbols of the library and with what it needs."""
    exported = {name for name in symbols(library, "--defined-only") if not name.startswith((PRIVATE, "KVTOOL_"))}
    wrong = [f"{name} is declared, not exported" for name in functions if name not in exported]
    wrong += [f"{name} is exported, not declared" for name in sorted(exported - set(functions))]
    needed = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    wrong += [f"the library needs {name}" for name in re.findall(r"NEEDED.*\[(.*(?:blas|cli11).*)\]", needed, re.I)]
    everything = subprocess.run(["nm", library], check=True, capture_output=True, text=True).stdout
    if re.search(r"\bcblas_|\b[sd]gemm", everything):
        wrong.append("a BLAS is linked into the library")
    studies = {line.split()[-1] for line in everything.splitlines() if re.search(STUDIES, line)}
    return wrong + [f"the library holds a study: {name}" for name in sorted(studies) if not is_study]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("compiler")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    is_study = "kvtool_study" in pathlib.Path(options.library).name
    header = ROOT / ("lib/api/kvtool_study.h" if is_study else "lib/api/kvtool.h")
    listed = header.with_suffix(".abi")
    wrong = [] if is_study else status_faults(header, options.update)
    functions, enumerators, structs = declared(header.read_text())
    wrong += library_faults(options.library, is_study, functions)
    now = sorted([f"function {name}" for name in functions] + measured(header, options.compiler, enumerators, structs))
    if options.update:
        listed.write_text("\n".join(now) + "\n")
    before = listed.read_text().splitlines()
    wrong += [f"gone or changed: {line}" for line in before if line not in now]
    wrong += [f"new, run with --update: {line}" for line in now if line not in before]
    print("\n".join(wrong) if wrong else f"{len(functions)} functions, {len(structs)} structs: as checked in")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
