# SPDX-License-Identifier: Apache-2.0
"""Cache types in torch for quant_loop_study.py, written independently of kvtool's code, and attention that reads them.

Each takes K or V of a layer, [kv head, token, dim] in f32 rounded to f16, and returns the values that are read back.
"""
import functools
import math
from typing import Callable, NamedTuple

import torch

GROUP, TAIL = 32, 128  # KIVI's groups, and the tokens that it keeps in full


def fp8(values, kind):
    most = torch.finfo(kind).max
    return values.clamp(-most, most).to(kind).float()


def fp8_amax(values, kind=torch.float8_e4m3fn):
    scale = values.abs().max() / torch.finfo(kind).max
    return (values / scale).to(kind).float() * scale


def between_extremes(groups, bits):
    """Quantises groups along the last axis, in f16 with one rounding per operation, as KIVI's code does."""
    x = groups.half()
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    codes = ((x - low) / step).clamp(0, 2**bits - 1).round().nan_to_num(0)
    return (codes * step + low).float()


def kivi(values, bits, is_key):
    heads, tokens, dim = values.shape
    if not is_key:
        return between_extremes(values.reshape(heads, tokens, dim // GROUP, GROUP), bits).reshape(values.shape)
    whole = tokens - tokens % GROUP
    groups = values[:, :whole].reshape(heads, whole // GROUP, GROUP, dim).transpose(2, 3)
    stored = between_extremes(groups, bits).transpose(2, 3).reshape(heads, whole, dim)
    return torch.cat([stored, values[:, whole:]], 1)


@functools.cache
def centroids(bits, dim):
    """Returns the Lloyd-Max values for a normal distribution of variance 1 / dim."""
    grid = torch.linspace(-6, 6, 120001, dtype=torch.float64)
    weight = torch.exp(-grid**2 / 2)
    values = torch.linspace(-2, 2, 2**bits, dtype=torch.float64)
    for _ in range(400):
        nearest = torch.bucketize(grid, (values[1:] + values[:-1]) / 2)
        sums = torch.zeros_like(values).index_add_(0, nearest, weight * grid)
        values = sums / torch.zeros_like(values).index_add_(0, nearest, weight)
    return (values / math.sqrt(dim)).float()


@functools.cache
def hadamard(size):
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(size)


def turboquant(values, bits, is_key):
    if not is_key:
        low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
        step = ((high - low) / (2**bits - 1)).clamp_min(1e-8)
        codes = ((values - low) / step + 0.5).floor().clamp(0, 2**bits - 1)
        return codes * step.half().float() + low.half().float()
    table, turn = centroids(bits, values.shape[-1]), hadamard(values.shape[-1])
    norm = values.norm(dim=-1, keepdim=True)
    nearest = torch.bucketize((values / (norm + 1e-8)) @ turn, (table[1:] + table[:-1]) / 2, right=True)
    back = torch.nn.functional.normalize(table[nearest], dim=-1) * norm.half().float()
    return back.half().float() @ turn.T


class Type(NamedTuple):
    store: Callable  # called with (values, is_key)
    has_tail: bool = False
    full_at_ends: bool = False


TYPES = {
    "fp8_e4m3": Type(lambda values, _: fp8(values, torch.float8_e4m3fn)),
    "fp8_e5m2": Type(lambda values, _: fp8(values, torch.float8_e5m2)),
    "k16v8": Type(lambda values, is_key: values if is_key else fp8_amax(values)),
    "kivi4": Type(lambda values, is_key: kivi(values, 4, is_key), has_tail=True),
    "kivi2": Type(lambda values, is_key: kivi(values, 2, is_key), has_tail=True),
    "turboquant_4bit_nc": Type(lambda values, is_key: turboquant(values, 4, is_key), full_at_ends=True),
    "turboquant_3bit_nc": Type(lambda values, is_key: turboquant(values, 3, is_key), full_at_ends=True),
}


class StoredAttention:
    """Attention for transformers that reads K or V as a type stores them; every token, including its own, from the
    start.

    Types with a tail store later: the query at t sees K of the last (t + 1) modulo TAIL tokens, or V of the last TAIL,
    in full.
    """

    def __init__(self, layers):
        self.layers, self.kind, self.side = layers, None, ""

    def choose(self, kind, side):
        self.kind, self.side = TYPES[kind] if kind else None, side

    def __call__(self, module, query, key, value, mask, scaling, **_):
        k, v, layer = key[0].half().float(), value[0].half().float(), module.layer_idx
        group = query.shape[1] // k.shape[0]
        count, tokens = query.shape[2], k.shape[1]
        positions = torch.arange(tokens - count, tokens)[:, None]
        here = self.kind is not None and not (self.kind.full_at_ends and not 2 <= layer < self.layers - 2)

        def spread(values):
            return values.repeat_interleave(group, 0)

        def is_stored(is_key):
            beyond = (positions + 1) - ((positions + 1) % TAIL if is_key else TAIL)
            return torch.arange(tokens)[None] < beyond

        scores = query[0] @ spread(k).transpose(1, 2)
        if here and self.side == "k":
            changed = query[0] @ spread(self.kind.store(k, True)).transpose(1, 2)
            scores = torch.where(is_stored(True), changed, scores) if self.kind.has_tail else changed
        scores = (scores * scaling).masked_fill(torch.arange(tokens)[None] > positions, -torch.inf)
        weights = scores.softmax(-1)
        if here and self.side == "v":
            changed = spread(self.kind.store(v, False))
            if self.kind.has_tail:
                late = weights * is_stored(False)
                output = late @ changed + (weights - late) @ spread(v)
            else:
                output = weights @ changed
        else:
            output = weights @ spread(v)
        return output.transpose(0, 1)[None], None
