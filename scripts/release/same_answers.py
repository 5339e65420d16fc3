#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares two folders of kvtool's output on two processors:

  same_answers.py HERE THERE

Files must be the same bytes. In JSON documents every decision, count and text must be the same, and figures with a
fraction must be close, because scores and products of matrices are added in another order by each SIMD target and
each kernel of OpenBLAS.
"""
import json
import math
import pathlib
import sys

# The KL of keys in q4_0 moves by 3e-3 between SIMD targets (docs/install.md), shares of ranks (top_8) by 5e-4 where two nearly
# equal probabilities change places, other figures by 2e-6.
CLOSE = {"rel_tol": 5e-3, "abs_tol": 1e-6}


def differences(here, there, where):
    """Yields (place, both values) for differences beyond the tolerances."""
    if isinstance(here, dict) and isinstance(there, dict) and here.keys() == there.keys():
        for key, value in here.items():
            yield from differences(value, there[key], f"{where}.{key}")
    elif isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        for i, value in enumerate(here):
            yield from differences(value, there[i], f"{where}[{i}]")
    elif here != there and not (float in (type(here), type(there)) and {type(here), type(there)} <= {int, float}
                                and math.isclose(here, there, **CLOSE)):
        yield where, here, there


def compare(here, there):
    if here.read_bytes() == there.read_bytes():
        return []
    if here.suffix != ".json":
        return [(here.name, "bytes", "other bytes")]
    return list(differences(json.loads(here.read_text()), json.loads(there.read_text()), here.name))


def main():
    here, there = (pathlib.Path(folder) for folder in sys.argv[1:3])
    names = [sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file()) for folder in (here, there)]
    if names[0] != names[1]:
        sys.exit(f"other files: {set(names[0]) ^ set(names[1])}")
    found = [row for name in names[0] for row in compare(here / name, there / name)]
    for row in found[:20]:
        print(*row)
    close = sum((here / name).read_bytes() != (there / name).read_bytes() for name in names[0])
    print(f"{len(names[0])} files, {close} with figures that are close")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
