# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The cost of eviction and q8_0 together, from their definitions: relative error of all attention outputs, and bytes
at the end. Keys, values and queries are multiplied by a Hadamard matrix and rounded as llama.cpp's CPU code does.

both_error.py ADVICE PLAN CACHE TRACE: the document and the plan of `kvtool advise --types q8_0`, and cache and trace
as npz.
"""
import json
import sys

import numpy as np

advice_path, plan_path, cache_path, trace = sys.argv[1:]
advice, plan = (json.load(open(path)) for path in (advice_path, plan_path))
advice = advice["results"][0]
chosen = advice["savings"]["chosen"]
cache = np.load(cache_path)
prompt, tokens = advice["runs"][0]["prompt_tokens"], advice["runs"][0]["tokens"]


def q8_0(rows):
    """Values as llama.cpp stores them: blocks of 32 with a 16-bit scale, rounded half away from
    zero."""
    blocks = rows.astype(np.float32).reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)).astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    scaled = (blocks * inverse).astype(np.float64)
    codes = np.trunc(scaled + np.copysign(0.5, scaled))
    return (codes * scale.astype(np.float16).astype(np.float64)).reshape(rows.shape)


def hadamard(size):
    """Normalised Hadamard matrix of a power of two; it is its own inverse."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(size)


def by_token(array):
    array = array.reshape(-1, *array.shape[-2:])  # removes the batch axis
    return array if array.shape[0] == tokens else array.swapaxes(0, 1)


error2 = norm2 = kept_bytes = 0.0
types = {choice["layer"]: choice for choice in chosen["layers"]}
for layer in range(1 + max(int(name.split("_")[1]) for name in cache.files if name[0] == "k" and "_" in name)):
    keys, values = (by_token(cache[f"{kind}_{layer}"]) for kind in "kv")
    row_bytes = keys[0].nbytes + values[0].nbytes
    if layer not in types:  # a layer without rows in the trace gets no advice and keeps everything
        kept_bytes += tokens * row_bytes
        continue
    assert types[layer]["k"] == types[layer]["v"] == "q8_0", types[layer]
    keys, values = keys.astype(np.float64), values.astype(np.float64)
    queries = by_token(np.load(f"{trace}-L{layer}-Q.npy").astype(np.float64))
    turn = hadamard(keys.shape[-1])
    stored_keys, stored_values, rounded_queries = q8_0(keys @ turn), q8_0(values @ turn) @ turn, q8_0(queries @ turn)
    heads, dim = queries.shape[1:]
    kv_heads = keys.shape[1]
    events = [e for e in plan["events"] if e["layer"] == layer]
    for head in range(heads):
        unit = head // (heads // kv_heads)
        held = np.ones(tokens, bool)
        todo = [e for e in events if e["kv_head"] in (None, unit)]
        for row in range(prompt - 1, tokens):
            if row >= prompt:
                exact = np.exp(queries[row, head] @ keys[: row + 1, unit].T / np.sqrt(dim))
                whole = exact @ values[: row + 1, unit] / exact.sum()
                weights = np.exp(rounded_queries[row, head] @ stored_keys[: row + 1, unit].T / np.sqrt(dim)) * held[: row + 1]
                error2 += np.sum((weights @ stored_values[: row + 1, unit] / weights.sum() - whole) ** 2)
                norm2 += np.sum(whole**2)
            while todo and todo[0]["token"] == row:
                keep = np.zeros(tokens, bool)
                keep[row + 1 :] = True
                for begin, count in todo.pop(0)["kept"]:
                    keep[begin : begin + count] = True
                held = keep
        if head % (heads // kv_heads) == 0:
            kept_bytes += held.sum() * row_bytes / kv_heads * 34 / 64
found, said = np.sqrt(error2 / norm2), chosen["worst_loss"]
assert abs(found - said) < 1e-5 * said, (found, said)
found, said = kept_bytes / tokens, chosen["bytes_per_token"]
assert abs(found - said) <= 1, (found, said)
print("as promised")
