# SPDX-License-Identifier: Apache-2.0
"""Writes all.f16, one layer of K and V of 64 tokens for each of N caches, and the caches themselves as cacheI.f16.

  circles.py N
"""
import random
import struct
import sys

CHANNELS, TOKENS = 64, 64


def rows(chooser):
    return struct.pack(f"<{TOKENS * CHANNELS}e", *(chooser.gauss(0, 1) for _ in range(TOKENS * CHANNELS)))


chooser = random.Random(1)
caches = [(rows(chooser), rows(chooser)) for _ in range(int(sys.argv[1]))]
for i, (k, v) in enumerate(caches):
    with open(f"cache{i}.f16", "wb") as out:
        out.write(k + v)
with open("all.f16", "wb") as out:
    out.write(b"".join(k for k, _ in caches) + b"".join(v for _, v in caches))
