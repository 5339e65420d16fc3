# SPDX-License-Identifier: Apache-2.0
"""Writes f16, f32 and bf16: a random walk, noise, the reversed walk and repeated rows as K and V of two
layers."""
import numpy

random = numpy.random.default_rng(5)
tokens, channels = 160, 48
walk = numpy.empty((tokens, channels), numpy.float32)
state = 2 * random.standard_normal(channels)
for row in walk:
    state = 0.97 * state + 0.2 * random.standard_normal(channels)
    row[:] = state
noise = random.standard_normal((tokens, channels)).astype(numpy.float32)
again = noise[random.integers(0, 30, tokens)]
for name, store in (("f16", lambda v: v.astype("<f2")), ("f32", lambda v: v.astype("<f4")), ("bf16", lambda v: (v.astype("<f4").view("<u4") >> 16).astype("<u2"))):
    with open(name, "wb") as file:
        for values in (walk, noise, walk[::-1], again):  # K and V of two layers
            file.write(store(values).tobytes())
