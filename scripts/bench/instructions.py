#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts instructions per byte of levels and kernels on x86-64 and aarch64, for each SIMD target.

  instructions.py [--check] CHUNK_LOOP...    programs of tests/cross/chunk_loop.cc for either architecture:
                                             cmake --build BUILD --target chunk_loop

QEMU runs the programs, and a plugin (count_instructions.c) counts; the difference between two runs is one chunk of 1
MiB. Counts of kernels repeat exactly, those of whole calls within 0.1 per byte. They need no machine of the architecture,
but they are no times: instructions differ in cost.
With --check the exit status is 1 if a kernel gains nothing from NEON for no reason in NO_GAIN. Skipped (77) without QEMU
7.2 from Debian's qemu-user, whose static twin loads no plugins.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The scalar reference is last. QEMU 7.2 has no AVX-512.
TARGETS = {"x86_64": ("SSE4", "AVX2", "SCALAR"), "aarch64": ("NEON", "SCALAR")}
# Cases by level or codec, and element type. The second table counts only the kernels that a case names.
CASES = {
    ("compat", "f16"): None,
    ("fast", "bf16"): None,
    ("default", "f16"): None,
    ("default", "bf16"): None,
    ("high", "f16"): None,
    ("gear-f16", "f16"): ("gear", r"::(Split2|Join2|EncodedSizeT|EncodeT|DeltaEncodeT|DeltaDecodeT|XorEncodeT|XorDecodeT)\("),
    ("window4", "bf16"): ("window4", r"::((En|De)codeHalf<|(En|De)code\(std::byte)"),
    ("prev", "f16"): ("rANS", r"kv::RansGrid"),
}
RUNS = [(*case, way) for case in CASES for way in ("encode", "decode")]
# NEON must take at most this share of the scalar reference's instructions, in kernels that have at least this share of a run.
MOST_OF_SCALAR, LEAST_OF_RUN = 0.9, 0.01
# Kernels that gain nothing from NEON, with the reasons.
NO_GAIN = {
    "CountCells": "histograms are scalar on every target",
    "CountRows": "the loop around a histogram",
    "DecodeGrid": "rANS needs gathers, which NEON and SSE4 lack",
    "EncodeGrid": "rANS needs gathers, which NEON and SSE4 lack",
    "JoinAs": "the compiler vectorises the scalar reference with 16 bytes, the kernel widens 8",
}


def architecture(program):
    """Returns the architecture in an ELF header."""
    return {62: "x86_64", 183: "aarch64"}[int.from_bytes(pathlib.Path(program).read_bytes()[18:20], "little")]


class Counter:
    def __init__(self, folder):
        self.out, self.plugin = folder / "counts", folder / "count.so"
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", self.plugin, ROOT / "scripts/bench/count_instructions.c"], check=True)

    def count(self, program, *words):
        """Runs the program and returns ({function: instructions}, what it printed)."""
        printed = subprocess.run([f"qemu-{architecture(program)}", "-cpu", "max", "-plugin", f"{self.plugin},out={self.out}", program, *words],
                                 check=True, capture_output=True, text=True).stdout.split()
        lines = subprocess.run(["c++filt"], stdin=self.out.open(), capture_output=True, text=True, check=True).stdout.splitlines()
        counts = {}
        for number, name in (line.split(" ", 1) for line in lines):
            counts[name] = counts.get(name, 0) + int(number)
        return counts, printed

    def per_byte(self, program, *words):
        """Returns {function: instructions per byte} of one chunk more, and the codec."""
        once, _ = self.count(program, *words, "1")
        twice, (codec, size, _) = self.count(program, *words, "2")
        return {name: (number - once.get(name, 0)) / int(size) for name, number in twice.items() if number != once.get(name, 0)}, codec


def kernels(functions):
    """Returns {kernel: instructions}. Kernels lie in Highway's namespace of the target; overloads and instances add up."""
    found = {}
    for name, number in functions.items():
        match = re.search(r"\bkv::N_\w+::(?:\(anonymous namespace\)::)?(\w+)[<(]", name)
        if match:
            found[match[1]] = found.get(match[1], 0) + number
    return found


def print_table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(cell if isinstance(cell, str) else f"{cell:.2f}" for cell in row) + " |")
    print()


def share_of_scalar(found, columns):
    """Returns {kernel: {column: share}} from the run in which the scalar kernel has the most instructions."""
    most, shares = {}, {}
    for column in columns:
        for run in RUNS:
            scalar, vector = kernels(found[column[0], "SCALAR"][run]), kernels(found[column][run])
            for name, number in scalar.items():
                if number > most.get((name, column), LEAST_OF_RUN * sum(found[column[0], "SCALAR"][run].values())):
                    most[name, column] = number
                    shares.setdefault(name, {})[column] = vector.get(name, 0) / number
    return shares


def check_emulators(programs):
    """Ends the script with status 77 if QEMU cannot run a program with a plugin."""
    for program in programs:
        emulator = shutil.which(f"qemu-{architecture(program)}")
        if emulator is None or "version 7." not in subprocess.run([emulator, "--version"], capture_output=True, text=True, check=True).stdout:
            print(f"skipped: there is no qemu-{architecture(program)} 7.2 (Debian 12: apt-get install qemu-user)")
            sys.exit(77)


def measure(programs):
    """Returns {(architecture, target): {run: {function: instructions per byte}}} and {run: codec}."""
    found, codecs = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        counter = Counter(pathlib.Path(folder))
        for program in programs:
            for target in TARGETS[architecture(program)]:
                runs = found[architecture(program), target] = {}
                for run in RUNS:
                    level, dtype, way = run
                    runs[run], codecs[run] = counter.per_byte(program, target, dtype, level, way)
    return found, codecs


def print_runs(found, codecs):
    names = [f"{arch} {target}" for arch, target in found]
    print_table(["instructions per byte", "codec", *names],
                [[f"`{run[0]}` {run[2]}, {run[1]}", codecs[run], *(sum(runs[run].values()) for runs in found.values())] for run in RUNS])
    rows = []
    for run in RUNS:
        if CASES[run[:2]] is not None:
            codec, pattern = CASES[run[:2]]
            rows.append([f"{codec} {run[2]}", *(sum(number for name, number in runs[run].items() if "kv::N_" in name and re.search(pattern, name))
                                                for runs in found.values())])
    print_table(["kernels alone", *names], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("programs", nargs="+", metavar="CHUNK_LOOP")
    arguments = parser.parse_args()
    check_emulators(arguments.programs)
    found, codecs = measure(arguments.programs)
    print_runs(found, codecs)
    columns = [column for column in found if column[1] != "SCALAR"]
    shares = share_of_scalar(found, columns)
    print_table(["of the scalar reference", *(f"{arch} {target}" for arch, target in columns)],
                [[f"`{name}`", *(shares[name].get(column, "") for column in columns)] for name in sorted(shares)])
    slow = [name for name, share in sorted(shares.items()) if share.get(("aarch64", "NEON"), 0) > MOST_OF_SCALAR and name not in NO_GAIN]
    if arguments.check and slow:
        sys.exit(f"no gain from NEON: {', '.join(slow)}")


if __name__ == "__main__":
    main()
