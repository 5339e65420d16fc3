# SPDX-License-Identifier: Apache-2.0
"""Compares the entropies of rows.csv with those counted from the dump's own bytes."""
import csv
import json
import math
import pathlib
import sys
from collections import Counter

row = next(csv.DictReader(open("rows.csv", newline="")))
meta = json.load(open(sorted(pathlib.Path(sys.argv[1]).glob("layer_0/meta_*.json"))[0]))
data = (pathlib.Path(sys.argv[1]) / "layer_0" / meta["k_file"]).read_bytes()
def entropy(data):
    return -sum(n / len(data) * math.log2(n / len(data)) for n in Counter(data).values())
assert int(row["seq_len"]) == meta["seq_len"]
for name, part in (("k_entropy", data), ("k_lo_entropy", data[::2]), ("k_hi_entropy", data[1::2])):
    assert abs(float(row[name]) - entropy(part)) < 1e-9, name
print("entropies agree")
