# SPDX-License-Identifier: Apache-2.0
"""Appends the record of a recurrent memory to a state: hybrid_state.py STATE writes hybrid.bin and plain.bin."""
import struct
import sys

attention = open(sys.argv[1], "rb").read()
# One cell at the last position, in no sequence; 3 of 8 layers: convolutions, then states.
state = struct.pack("<IiI", 1, 59, 0) + struct.pack("<II", 0, 8)
for row in (96, 96, 96, 512, 512, 512):
    state += struct.pack("<iQ", 0, row) + bytes(range(96)) * (row // 96) + bytes(row % 96)
open("hybrid.bin", "wb").write(attention + state)
open("plain.bin", "wb").write(attention)
