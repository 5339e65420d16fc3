# SPDX-License-Identifier: Apache-2.0
"""Writes turning: keys with RoPE, in halves and in neighbouring pairs, of tokens that repeat with small
changes."""
import numpy

random = numpy.random.default_rng(7)
tokens, heads, half = 120, 2, 10
def cache():
    values = 2 * random.standard_normal((heads, 2 * half)) + random.standard_normal((tokens, heads, 2 * half))
    for token in range(1, tokens):
        if random.random() < 0.5:
            values[token] = values[random.integers(token)] + 0.003 * 10 ** (token % 4) * random.standard_normal((heads, 2 * half))
    return values
def turn(values, first, second):
    angle = numpy.arange(tokens)[:, None, None] * 1e4 ** (-numpy.arange(half) / half)
    a, b = values[..., first], values[..., second]
    turned = numpy.empty_like(values)
    turned[..., first] = a * numpy.cos(angle) - b * numpy.sin(angle)
    turned[..., second] = a * numpy.sin(angle) + b * numpy.cos(angle)
    return turned
with open("turning", "wb") as file:
    for first, second in ((slice(0, half), slice(half, None)), (slice(0, None, 2), slice(1, None, 2))):
        for values in (turn(cache(), first, second), cache()):
            values.astype("<f2").tofile(file)
