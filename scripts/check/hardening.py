#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a program was built as packages must be: position-independent, full RELRO, no executable stack; and
that the program's own objects, not only those of libraries, have a stack protector and fortified calls.

  hardening.py PROGRAM OBJECT...
"""
import subprocess
import sys


def readelf(*flags, paths=None):
    return subprocess.run(["readelf", "-W", *flags, *(paths or sys.argv[1:2])], check=True, capture_output=True,
                          text=True).stdout


def main():
    header, segments, dynamic, symbols = readelf("-h"), readelf("-l"), readelf("-d"), readelf("-s", paths=sys.argv[2:])
    stack = [line for line in segments.splitlines() if "GNU_STACK" in line]
    found = {
        "PIE": "DYN (Position-Independent Executable file)" in header or "PIE" in dynamic,
        "RELRO": "GNU_RELRO" in segments,
        "immediate binding": "BIND_NOW" in dynamic or " NOW" in dynamic,
        "stack not executable": bool(stack) and not any(" RWE " in line for line in stack),
        "stack protector": "__stack_chk_fail" in symbols,
        "FORTIFY": "_chk\n" in symbols.replace("__stack_chk", ""),
        "no run path": "RUNPATH" not in dynamic and "RPATH" not in dynamic,
    }
    for name, good in found.items():
        print(f"{name:<22} {'yes' if good else 'NO'}")
    return 0 if all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
