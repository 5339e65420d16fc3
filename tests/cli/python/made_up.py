# SPDX-License-Identifier: Apache-2.0
"""Synthetic caches and traces that several cases share."""
import json

import numpy

def any_bits(layers):
    """A cache with the names of transformers, [1, head, token, dim] f16, with arbitrary bit patterns as
    values."""
    random = numpy.random.default_rng(1)
    return {f"{part}_cache.{layer}": random.integers(0, 1 << 16, (1, 4, 37, 16)).astype("u2").view("f2")
            for layer in range(layers) for part in ("key", "value")}


def foreign(array):
    """The same values, big-endian and in Fortran order."""
    return numpy.asfortranarray(array.astype(">f2"))


def save_trace(path, queries, prompt_tokens, kv_heads):
    """An npz trace with the queries of some layers: {layer: [token, head, dim]}."""
    metadata = {"kvtool.trace": "1", "prompt_tokens": str(prompt_tokens), "kv_heads": str(kv_heads)}
    arrays = {f"q.{layer}": rows for layer, rows in queries.items()}
    numpy.savez(path, __metadata__=numpy.frombuffer(json.dumps(metadata).encode(), numpy.uint8), **arrays)
