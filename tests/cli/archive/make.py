# SPDX-License-Identifier: Apache-2.0
"""Writes synthetic cache values: make.py FILE MIB [DTYPE]. Noise with the exponents of
activations."""
import sys

import numpy

name, mib = sys.argv[1], float(sys.argv[2])
dtype = sys.argv[3] if len(sys.argv) > 3 else "float16"
random = numpy.random.default_rng(7)
block = random.standard_normal(1 << 18).astype(numpy.float32)
count = int(mib * (1 << 20)) // numpy.dtype(dtype).itemsize
with open(name, "wb") as file:
    while count > 0:
        part = (block[:count] * random.uniform(0.5, 2)).astype(dtype)
        file.write(part.tobytes())
        count -= len(part)
