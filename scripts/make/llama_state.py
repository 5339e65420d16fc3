#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a synthetic llama.cpp sequence state (SEQ 2, layout C/D) of any size, in bounded memory.

The values look like a KV cache to a codec: every channel has its own offset and scale, neighbouring
tokens resemble each other (AR(1)), a few channels of K are outliers. The same arguments give the same
bytes. The noise of one block of tokens is reused with other shifts, signs and gains, so that 4 GiB take
well under two minutes.

  llama_state.py big.bin --size 1GiB
  llama_state.py q.bin --layers 4 --tokens 512 --kv-heads 2 --head-dim 64 --dtype q8_0
  llama_state.py t.bin --size 4GiB --transposed
"""
import argparse
import os
import struct
import sys

import numpy as np

BLOCK_TOKENS = 2048  # tokens that one block of noise covers
COLUMN_BYTES = 64 << 20  # buffer for transposed columns
CORRELATION = 0.9  # between neighbouring tokens

# name: ggml number, values per block, bytes per block
TYPES = {"f32": (0, 1, 4), "f16": (1, 1, 2), "bf16": (30, 1, 2), "q8_0": (8, 32, 34), "q4_0": (2, 32, 18)}


def encode(values, dtype):
    """Returns float32 [rows, channels] as the bytes of one ggml type."""
    if dtype == "f32":
        return values.tobytes()
    if dtype == "f16":
        return values.astype(np.float16).tobytes()
    if dtype == "bf16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
    blocks = values.reshape(-1, 32)
    if dtype == "q8_0":
        step = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
        inverse = 1 / np.where(step == 0, 1, step).astype(np.float32)
        quants = np.clip(np.rint(blocks * inverse), -127, 127).astype(np.int8).view(np.uint8)
    else:
        peak = np.take_along_axis(blocks, np.abs(blocks).argmax(1)[:, None], 1)
        step = (peak / -8).astype(np.float16)
        inverse = 1 / np.where(step == 0, 1, step).astype(np.float32)
        codes = np.clip(blocks * inverse + 8.5, 0, 15).astype(np.uint8)
        quants = codes[:, :16] | codes[:, 16:] << 4
    return np.concatenate([step.view(np.uint8).reshape(len(blocks), 2), quants], axis=1).tobytes()


class Noise:
    """Unit-variance AR(1) rows; pieces are cut from one pool."""

    def __init__(self, rng, channels):
        self.pool = rng.standard_normal((2 * BLOCK_TOKENS, channels), dtype=np.float32)
        fresh = np.float32(np.sqrt(1 - CORRELATION**2))
        for t in range(1, len(self.pool)):
            self.pool[t] = CORRELATION * self.pool[t - 1] + fresh * self.pool[t]


class Tensor:
    """K or V of one layer as a function of (block of tokens, range of channels)."""

    def __init__(self, noise, seed, tokens, channels, is_value):
        rng = np.random.default_rng(seed)
        self.noise, self.tokens = noise, tokens
        self.offset = rng.normal(0, 0.2 if is_value else 1, channels).astype(np.float32)
        self.scale = rng.lognormal(-1.5 if is_value else -0.5, 0.5, channels).astype(np.float32)
        if not is_value:
            outliers = rng.choice(channels, max(1, channels // 64), replace=False)
            self.offset[outliers] *= 8
        blocks = -(-tokens // BLOCK_TOKENS)
        self.shifts = rng.integers(0, BLOCK_TOKENS, blocks)
        self.gains = (rng.uniform(0.8, 1.25, blocks) * rng.choice([-1, 1], blocks)).astype(np.float32)

    def block(self, index, columns=slice(None)):
        count = min(BLOCK_TOKENS, self.tokens - index * BLOCK_TOKENS)
        rows = self.noise.pool[self.shifts[index]:self.shifts[index] + count, columns]
        return rows * (self.scale[columns] * self.gains[index]) + self.offset[columns]

    def write_rows(self, out, dtype):
        for index in range(len(self.shifts)):
            out.write(encode(self.block(index), dtype))

    def write_transposed(self, out, dtype):
        width = max(1, COLUMN_BYTES // (4 * self.tokens))
        for begin in range(0, len(self.scale), width):
            columns = slice(begin, begin + width)
            parts = [self.block(i, columns).T for i in range(len(self.shifts))]
            out.write(encode(np.ascontiguousarray(np.concatenate(parts, axis=1)), dtype))


def write_state(out, options):
    channels = options.kv_heads * options.head_dim
    rng = np.random.default_rng(options.seed)
    out.write(struct.pack("<4sII", b"qsgg", 2, options.tokens))
    out.write(rng.integers(0, 32000, options.tokens, dtype=np.int32).tobytes())
    cells = np.zeros((options.tokens, 3), np.int32)  # columns: position, number of sequence ids (1), the id (0)
    cells[:, 0] = np.arange(options.tokens)
    cells[:, 1] = 1
    out.write(struct.pack("<II", 1, options.tokens))
    out.write(cells.tobytes())
    out.write(struct.pack("<II", options.transposed, options.layers))
    noise = Noise(rng, channels)
    for is_value in (False, True):
        dtype = options.v_dtype if is_value else options.dtype
        number, elements, size = TYPES[dtype]
        for layer in range(options.layers):
            tensor = Tensor(noise, [options.seed, layer, is_value], options.tokens, channels, is_value)
            if is_value and options.transposed:
                out.write(struct.pack("<iII", number, size, channels))
                tensor.write_transposed(out, dtype)
            else:
                out.write(struct.pack("<iQ", number, channels // elements * size))
                tensor.write_rows(out, dtype)


def parse_size(text):
    units = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    number = text.rstrip("KMGiB")
    unit = text[len(number):].replace("iB", "")
    if unit not in units:
        raise argparse.ArgumentTypeError("a size such as 64KiB or 1GiB")
    return int(float(number) * units[unit])


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, help="cells; or give --size")
    parser.add_argument("--size", type=parse_size, help="size of K and V together, e.g. 1GiB: sets --tokens")
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--dtype", choices=TYPES, default="f16", help="of K, and of V unless --v-dtype")
    parser.add_argument("--v-dtype", choices=TYPES)
    parser.add_argument("--transposed", action="store_true", help="V as without flash attention")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.v_dtype = options.v_dtype or options.dtype
    channels = options.kv_heads * options.head_dim
    row = 0
    for dtype in (options.dtype, options.v_dtype):
        _, elements, size = TYPES[dtype]
        if options.head_dim % elements:
            parser.error(f"{dtype} needs a head size that is a multiple of {elements}")
        row += channels // elements * size
    if options.transposed and TYPES[options.v_dtype][1] > 1:
        parser.error("a transposed V is never quantised")
    if (options.tokens is None) == (options.size is None):
        parser.error("give one of --tokens and --size")
    if options.size is not None:
        options.tokens = max(1, options.size // (row * options.layers))
    return options


def main():
    options = parse_options()
    temporary = options.output + ".tmp"
    try:
        with open(temporary, "wb", buffering=1 << 20) as out:
            write_state(out, options)
        os.replace(temporary, options.output)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
    print(f"{options.output}: {options.layers} layers, {options.tokens} tokens, {options.kv_heads} x "
          f"{options.head_dim}, {os.path.getsize(options.output)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
