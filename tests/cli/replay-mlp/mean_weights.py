# SPDX-License-Identifier: Apache-2.0
"""Writes mean.bin: compressor weights that compute the mean of each group of four tokens."""
import struct

factor, dim, layers = 4, 8, 5
# With a large c, relu(x + c) - c passes values through, so the three slots compute the mean of a group.
shift = 64.0
def block(rows, cols, weight, bias):
    return struct.pack("<3I", rows, cols, 1) + struct.pack(f"<{rows * cols}f", *weight) + struct.pack(f"<{rows}f", *bias)
mean = [(1.0 / factor if c % dim == r else 0.0) for r in range(dim) for c in range(dim * factor)]
same = [(1.0 if c == r else 0.0) for r in range(dim) for c in range(dim)]
mlp = block(dim, dim * factor, mean, [shift] * dim) + block(dim, dim, same, [0.0] * dim) + block(dim, dim, same, [-shift] * dim)
with open("mean.bin", "wb") as file:
    file.write(struct.pack("<IIHH8I", 0x4B56434D, 1, 2, 0, layers, 0, dim, dim * factor, factor, 1, 6, 0))
    file.write(2 * layers * mlp)
