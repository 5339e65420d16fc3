# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Bytes that look like a KV cache, for tests of the plug-ins, and damage done to files."""

import os

import numpy as np


def bf16(values):
    """Rounds to the nearest bf16, as uint16."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def plane(tokens, heads, dim, seed):
    """bf16 [token, head, dim] that change slowly from token to token, with values that do not compare equal as
    floats."""
    random = np.random.default_rng(seed)
    start = random.standard_normal((1, heads, dim)) * 2
    steps = random.standard_normal((tokens, heads, dim)) * 0.1
    values = bf16(start + np.cumsum(steps, axis=0))
    flat = values.reshape(-1)
    flat[:6] = [0x7FC1, 0xFF81, 0x7F80, 0x8000, 0x0001, 0xFFFF][: flat.size]  # NaNs, infinity, -0, denormal
    return values


def noise(size, seed):
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def frames_in(folder):
    """Paths of all frames, sorted."""
    found = []
    for place, _, names in os.walk(folder):
        found += [os.path.join(place, name) for name in names if name.endswith(".kvf")]
    return sorted(found)


def damage(path, how):
    with open(path, "rb") as file:
        data = bytearray(file.read())
    if how == "flip":
        data[len(data) // 2] ^= 1
    elif how == "flip_header":
        data[40] ^= 1
    elif how == "cut":
        del data[-100:]
    elif how == "grow":
        data += b"x" * 100
    elif how == "empty":
        data.clear()
    elif how == "zeros":
        data = bytearray(len(data))  # as after a power loss
    elif how == "garbage":
        data = bytearray(os.urandom(len(data)))
    else:
        raise ValueError(how)
    with open(path, "wb") as file:
        file.write(data)


DAMAGES = ("flip", "flip_header", "cut", "grow", "empty", "zeros", "garbage")


def make_newer(path, what):
    """Changes a frame into one of a later version of kvtool: valid, but not readable here."""
    import xxhash

    with open(path, "rb") as file:
        data = bytearray(file.read())
    if what == "version":
        data[8] = 3
    elif what == "larger":
        data[8] = 3
        data += b"x" * 100_000
    elif what == "dtype":
        data[96] = 99
    elif what == "codec":
        data[99] = 250
    elif what == "profile":
        data[64:80] = b"p" * 16
        data[99] = 28
    else:
        raise ValueError(what)
    data[120:128] = xxhash.xxh3_64_intdigest(bytes(data[:120])).to_bytes(8, "little")
    with open(path, "wb") as file:
        file.write(data)


NEWER = ("version", "larger", "dtype", "codec", "profile")
