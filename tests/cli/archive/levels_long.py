# SPDX-License-Identifier: Apache-2.0
"""Writes long1100 and long2200: a random walk as K and values with many exponents as V."""
import numpy

random = numpy.random.default_rng(7)
for tokens in (1100, 2200):
    steps = 0.2 * random.standard_normal((tokens, 64))
    steps[0] *= 20
    walk = steps.cumsum(axis=0)
    line = numpy.ldexp(1 + random.random((tokens, 64)), numpy.minimum(random.geometric(0.5, (tokens, 64)), 14))
    numpy.stack([walk, line]).astype("<f2").tofile(f"long{tokens}")
