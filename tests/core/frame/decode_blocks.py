#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decodes frames in blocks as a program for a device would, with only struct and zstandard.

  decode_blocks.py FRAME OUTPUT

It follows lib/core/frame/FORMAT.md (version 2) and lib/core/codec/planes/FORMAT.md (codec 31)."""
import struct
import sys

import zstandard


def segments_of(frame):
    """(payload, raw bytes) of each segment."""
    version, _, _, cut, rows, raw_size, payload_size = struct.unpack_from("<HHBBHQQ", frame, 8)
    codec, heads, dim, _, _ = struct.unpack_from("<BIIIQ", frame, 99)
    assert frame[:8] == b"\x89KVF\r\n\x1a\n" and version == 2 and codec == 31
    if cut == 0:
        return [(frame[128:128 + payload_size], raw_size)]
    row = dim * {0: 4, 1: 2, 2: 2}[frame[96]] * (heads if frame[97] == 0 else 1)
    size, found = rows * row if cut == 1 else 1 << 20, []
    at, entry = 128 + -(-raw_size // size) * 16, 128
    for begin in range(0, raw_size, size):
        length, = struct.unpack_from("<I", frame, entry)
        found.append((frame[at:at + length], min(size, raw_size - begin)))
        at, entry = at + length, entry + 16
    return found


def decode(payload, raw_size):
    planes, rotated, _, _, block, count, _ = struct.unpack_from("<BBBBIII", payload)
    words, joined = raw_size // planes, bytearray()
    for i in range(count):  # a device decodes all blocks in one batch
        offset, size = struct.unpack_from("<II", payload, 16 + 8 * i)
        raw = min(block, words - i % (count // planes) * block)
        data = payload[offset:offset + size]
        joined += data if size == raw else zstandard.ZstdDecompressor().decompress(data, raw)
    out = bytearray(raw_size)
    for plane in range(planes):
        out[plane::planes] = joined[plane * words:(plane + 1) * words]
    if rotated:
        values = struct.unpack(f"<{words}H", out)
        out = struct.pack(f"<{words}H", *(value >> 1 | (value & 1) << 15 for value in values))
    return bytes(out)


with open(sys.argv[2], "wb") as output:
    output.write(b"".join(decode(*segment) for segment in segments_of(open(sys.argv[1], "rb").read())))
