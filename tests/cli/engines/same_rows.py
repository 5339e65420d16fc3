# SPDX-License-Identifier: Apache-2.0
"""Compares rows that were converted to CASE-ROW.npz with what the class returns: same_rows.py CASE ROWS
EXPECTED.npz."""
import sys

import numpy as np

name, rows, want = sys.argv[1], int(sys.argv[2]), np.load(sys.argv[3])
compared = wrong = 0
for row in range(rows):
    got = np.load(f"{name}-{row}.npz")
    for key in want.files:
        case, of, layer, part = key.split("/")
        if case != name or int(of) != row:
            continue
        compared += 1
        if part != "offset":
            wrong += got[f"{part}_{layer}"].tobytes() != want[key].tobytes()
            continue
        # The last token is the one before the offset; the others precede it.
        group = "positions_swa" if layer == "0" else "positions_full"
        if group in got.files:
            end, tokens = int(want[key]), got[f"k_{layer}"].shape[0]
            wrong += list(got[group]) != list(range(end - tokens, end))
print(name, rows, "rows", compared, "arrays and ends", "DIFFER" if wrong or not compared else "as the class gives them")
