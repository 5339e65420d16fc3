# SPDX-License-Identifier: Apache-2.0
"""The engine's containers and block planes: formats/gear/FORMAT.md."""
import struct

import numpy

from kvz_decoder.common import Damaged, unzstd

# Fields of a block struct as (begin, end), each in one zstd frame.
BLOCK_PLANES = {
    15: [(0, 1), (1, 2), (2, 34)],                          # q8_0
    16: [(0, 1), (1, 2), (2, 18)],                          # q4_0
    17: [(0, 1), (1, 2), (2, 3), (3, 4), (4, 20)],          # q4_1
    18: [(0, 1), (1, 2), (2, 6), (6, 22)],                  # q5_0
    19: [(0, 1), (1, 2), (2, 3), (3, 4), (4, 8), (8, 24)],  # q5_1
    20: [(0, 1), (1, 2), (2, 18)],                          # iq4_nl
}


def unrle(payload, size):
    out = bytearray()
    at = 0
    while at < len(payload):
        control = payload[at]
        if control < 128:
            piece = payload[at + 1:at + 2 + control]
            if len(piece) != control + 1:
                raise Damaged("RLE: literals end early")
            at += 2 + control
        else:
            piece = payload[at + 1:at + 2] * ((control & 127) + 4)
            at += 2
        out += piece
    if len(out) != size:
        raise Damaged(f"RLE: {len(out)} bytes, {size} expected")
    return bytes(out)


def plane(data, at, words):
    mode, codec, raw_len, payload_len = struct.unpack_from("<BBII", data, at)
    at += 10
    payload = data[at:at + payload_len]
    if raw_len != words or len(payload) != payload_len or mode > 2 or codec > 1:
        raise Damaged("gear: a plane that does not fit its container")
    residual = numpy.frombuffer(unzstd(payload, words) if codec else unrle(payload, words), numpy.uint8)
    if mode == 1:
        residual = numpy.cumsum(residual, dtype=numpy.uint8)
    elif mode == 2:
        residual = numpy.bitwise_xor.accumulate(residual)
    return residual, at + payload_len


def gear(payload, planes, size):
    (words,) = struct.unpack_from("<I", payload, 0)
    if words * planes != size:
        raise Damaged(f"gear: {words} words of {planes} bytes are not {size}")
    out = numpy.empty((words, planes), numpy.uint8)
    at = 4
    for lane in range(planes):
        out[:, lane], at = plane(payload, at, words)
    if at != len(payload):
        raise Damaged("gear: bytes after the last plane")
    return out.tobytes()


def block_planes(payload, dtype, unit_bytes, size):
    blocks = size // unit_bytes
    out = numpy.empty((blocks, unit_bytes), numpy.uint8)
    at = 0
    for begin, end in BLOCK_PLANES[dtype]:
        (length,) = struct.unpack_from("<I", payload, at)
        raw = unzstd(payload[at + 4:at + 4 + length], blocks * (end - begin))
        out[:, begin:end] = numpy.frombuffer(raw, numpy.uint8).reshape(blocks, end - begin)
        at += 4 + length
    if at != len(payload):
        raise Damaged("zstd-planes: bytes after the last plane")
    return out.tobytes()
