#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Encodes frames through libkvtool and decodes each with the independent decoder.

  frames.py LIBRARY [--keep FOLDER]

Compares frames of every level, order and kind of content; with --keep, writes small ones to FOLDER as a corpus for
fuzzing. Exit status 1 if a frame does not decode to its source.
"""
import argparse
import ctypes
import pathlib
import sys

import numpy

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "decoder"))
from decode_frame import decode

BF16, F16, F32, U8, Q8_0 = 2, 1, 0, 5, 15
TOKEN_HEAD_DIM, HEAD_TOKEN_DIM, UNKNOWN = 0, 1, 3
K_AND_V = 3


class Desc(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("dtype", ctypes.c_uint8), ("order", ctypes.c_uint8),
                ("role", ctypes.c_uint8), ("reserved", ctypes.c_uint8), ("heads", ctypes.c_uint32),
                ("head_dim", ctypes.c_uint32), ("tokens", ctypes.c_uint64), ("tag", ctypes.c_uint32),
                ("reserved2", ctypes.c_uint32), ("context", ctypes.c_uint8 * 16)]


class Params(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("level", ctypes.c_uint32), ("max_raw_bytes", ctypes.c_uint64),
                ("pool", ctypes.c_void_p)]


def encode(library, level, desc, raw, blocks=0):
    params, ctx = Params(ctypes.sizeof(Params), level, 0, None), ctypes.c_void_p()
    assert library.kvt_ctx_create(ctypes.byref(params), ctypes.byref(ctx)) == 0
    assert library.kvt_ctx_use_blocks(ctx, blocks) == 0
    library.kvt_encode_bound.restype = ctypes.c_size_t
    frame = ctypes.create_string_buffer(library.kvt_encode_bound(ctypes.c_size_t(len(raw))))
    written = ctypes.c_size_t()
    status = library.kvt_encode(ctx, ctypes.byref(desc), raw, ctypes.c_size_t(len(raw)), frame,
                                ctypes.c_size_t(len(frame)), ctypes.byref(written))
    library.kvt_ctx_free(ctx)
    assert status == 0, status
    return frame.raw[:written.value]


def walk(tokens, channels):
    """Returns random walks along tokens, with an offset per channel."""
    random = numpy.random.default_rng(tokens * channels)
    steps = random.normal(size=(tokens, channels)).astype("f4")
    for row in range(1, tokens):
        steps[row] += numpy.float32(0.9) * steps[row - 1]
    return steps + random.normal(size=channels).astype("f4") * 3


def contents(tokens, heads, dim):
    channels = heads * dim
    values = walk(tokens, channels)
    random = numpy.random.default_rng(1)
    yield BF16, (values.view("u4") >> 16).astype("u2").tobytes()
    yield F16, values.astype("f2").tobytes()
    yield F32, values.tobytes()
    yield F32, values.astype("f2").astype("f4").tobytes()
    yield BF16, numpy.repeat((values.view("u4") >> 16).astype("u2")[: max(1, tokens // 4)], 4, axis=0)[:tokens].tobytes()
    yield U8, random.integers(0, 256, tokens * channels, "u1").tobytes()
    # K is in the first half of each head, V in the second.
    beside = values.reshape(tokens, heads, dim).copy()
    beside[:, :, dim // 2:] = random.normal(size=(tokens, heads, dim - dim // 2)) / 64
    yield BF16, (beside.view("u4") >> 16).astype("u2").tobytes()
    yield Q8_0, random.integers(0, 20, tokens * channels // 32 * 34, "u1").tobytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path)
    options = parser.parse_args()
    library = ctypes.CDLL(str(options.library.resolve()))
    library.kvt_ctx_free.argtypes = [ctypes.c_void_p]
    frames = failures = 0
    for tokens, heads, dim in ((24, 2, 32), (1500, 8, 64), (1, 1, 64)):
        for number, (dtype, raw) in enumerate(contents(tokens, heads, dim)):
            for level in (1, 2, 3, 4):
                if level == 4 and tokens > 100:
                    continue  # the independent decoder would take minutes
                for order, role in ((TOKEN_HEAD_DIM, 1), (TOKEN_HEAD_DIM, K_AND_V), (HEAD_TOKEN_DIM, 1), (UNKNOWN, 1)):
                    if tokens > 100 and (level > 1 or order == HEAD_TOKEN_DIM):
                        continue
                    desc = Desc(ctypes.sizeof(Desc), dtype, order, role, 0, heads, dim, tokens, 7, 0)
                    frame = encode(library, level, desc, raw)
                    frames += 1
                    if decode(frame) != raw:
                        failures += 1
                        print(f"{tokens} x {heads} x {dim}, content {number}, level {level}, order {order}, role {role}: differs")
                    if level <= 2 and role == 1:
                        frames += 1
                        if decode(encode(library, level, desc, raw, 1)) != raw:
                            failures += 1
                            print(f"{tokens} x {heads} x {dim}, content {number}, level {level}, order {order}, in blocks: differs")
                    if options.keep and tokens == 24 and order == TOKEN_HEAD_DIM:
                        (options.keep / f"content{number}-level{level}{'-kv' if role == K_AND_V else ''}").write_bytes(frame)
    print(f"{frames} frames, {failures} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
