# SPDX-License-Identifier: Apache-2.0
"""Decodes a chunk, by its codec."""
import struct

import numpy

from kvz_decoder.common import Damaged, Form, narrowed, one_frame, unzstd
from kvz_decoder.context import prev, rotated, words16
from kvz_decoder.distribution import cdf
from kvz_decoder.gear import block_planes, gear, plane
from kvz_decoder.layers import layers, profiled_layers
from kvz_decoder.prediction import lms
from kvz_decoder.profiled import profiled
from kvz_decoder.reference import learned_rows, listed_rows, ref
from kvz_decoder.reference_layers import with_neighbours
from kvz_decoder.transformed import transformed

RAW, GEAR_F16, GEAR_F32, ZSTD_PLANES, ZSTD, PREV, ROTATED, ROWS, LMS, WINDOW4, WIDENED, CDF, LIKE, SPLIT, REF, REF_CDF, LAYERS, PROFILED, REF_LAYERS, REF_SPARSE, BLOCKS, TRANSFORMED, PROFILED_LAYERS = (
    0, 1, 2, 3, 4, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33)
F16, BF16 = 1, 2
# Codecs that need other caches or chunks; they are never nested in another codec.
OF_OTHERS = (REF, REF_CDF, LAYERS, REF_LAYERS, REF_SPARSE, TRANSFORMED, PROFILED_LAYERS)


def window4(payload, size):
    base, escaped = struct.unpack_from("<II", payload, 0)
    count = size // 2
    half = (count + 1) // 2
    data = numpy.frombuffer(payload, numpy.uint8, offset=8).astype(numpy.uint32)
    if len(data) != count + half + escaped:
        raise Damaged("window4: bytes missing or left over")
    field, packed, escapes = data[:count], data[count:count + half], data[count + half:]
    number = numpy.concatenate([packed & 15, packed >> 4])[:count]
    exponent = number + base
    if int((number == 15).sum()) != escaped:
        raise Damaged("the number of escapes does not fit the exponents")
    exponent[number == 15] = escapes
    return words16((field & 128) << 8 | exponent << 7 | field & 127)


def blocks(chunk, payload):
    size, word = chunk["raw_bytes"], chunk["unit_bytes"]
    planes, is_rotated, coder, zero, block, count, zeros = struct.unpack_from("<BBBBIII", payload, 0)
    if planes != (word if word in (2, 4) and size % word == 0 else 1):
        raise Damaged(f"blocks: {planes} planes of {size} bytes")
    words = size // planes
    if is_rotated != (planes == 2 and chunk["dtype"] == BF16) or (coder, zero, block, zeros) != (1, 0, 1 << 16, 0):
        raise Damaged("blocks: the header")
    in_plane = -(-words // block)
    if count != planes * in_plane:
        raise Damaged(f"blocks: {count} blocks of {planes} planes are not {size} bytes")
    out, at = numpy.empty((words, planes), numpy.uint8), -(-(16 + 8 * count) // 16) * 16
    for number in range(count):
        offset, length = struct.unpack_from("<II", payload, 16 + 8 * number)
        plane, begin = number // in_plane, number % in_plane * block
        raw = min(block, words - begin)
        if offset != at or length > raw or offset + length > len(payload):
            raise Damaged(f"blocks: block {number} lies elsewhere")
        data = payload[offset:offset + length]
        out[begin:begin + raw, plane] = numpy.frombuffer(data if length == raw else one_frame(data, raw), numpy.uint8)
        at = -(-(offset + length) // 16) * 16
    if at != len(payload):
        raise Damaged("blocks: bytes after the last block")
    joined = numpy.frombuffer(out.tobytes(), "<u2" if is_rotated else numpy.uint8)
    return words16((joined >> 1) | (joined << 15)) if is_rotated else joined.tobytes()


def widened(chunk, payload):
    form, codec, _, length = struct.unpack_from("<BBHI", payload, 0)
    if form not in (1, 2) or codec in (ROWS, SPLIT, *OF_OTHERS):
        raise Damaged(f"widened: form {form}")
    count = chunk["raw_bytes"] // 4
    inner = dict(chunk, codec=codec, raw_bytes=2 * count, unit_bytes=2, dtype=F16 if form == 1 else BF16)
    halves = decode_as(codec, inner, payload[8:8 + length])
    if form == 1:
        return numpy.frombuffer(halves, "<f2").astype("<f4").tobytes()
    out = numpy.empty((count, 4), numpy.uint8)
    out[:, 2:] = numpy.frombuffer(halves, numpy.uint8).reshape(count, 2)
    at = 8 + length
    for byte in range(2):
        out[:, byte], at = plane(payload, at, count)
    return out.tobytes()


def rows_of(chunk, payload):
    rows = chunk["tokens"] if chunk["order"] == 0 else chunk["heads"] * chunk["tokens"]
    codec, new, length = struct.unpack_from("<BII", payload, 0)
    width = (new.bit_length() + 7) // 8
    planes = numpy.frombuffer(unzstd(payload[9:9 + length], rows * width), numpy.uint8).reshape(width, rows)
    references = sum(planes[byte].astype(numpy.int64) << (8 * byte) for byte in range(width))
    if codec in (ROWS, SPLIT, *OF_OTHERS) or int((references == 0).sum()) != new:
        raise Damaged("rows: the references do not fit the rows")
    inner = dict(chunk, codec=codec, raw_bytes=chunk["raw_bytes"] // rows * new, tokens=new, heads=1,
                 units=chunk["raw_bytes"] // rows // chunk["unit_bytes"], order=0)
    if "steps" in chunk:
        inner["steps"] = [step for step, reference in zip(chunk["steps"], references) if reference == 0]
    unique = numpy.frombuffer(decode_as(codec, inner, payload[9 + length:]), numpy.uint8).reshape(new, -1)
    first = numpy.cumsum(references == 0) - 1
    return unique[numpy.where(references == 0, first, references - 1)].tobytes()


def split(chunk, payload):
    first, second, _, length = struct.unpack_from("<BBHI", payload, 0)
    if {SPLIT, *OF_OTHERS} & {first, second} or chunk["units"] % 2 != 0:
        raise Damaged("split: the halves of heads")
    inner = dict(chunk, raw_bytes=chunk["raw_bytes"] // 2, units=chunk["units"] // 2)
    half = inner["units"] * chunk["unit_bytes"]
    sides = [numpy.frombuffer(decode_as(codec, dict(inner, codec=codec), part), numpy.uint8).reshape(-1, half)
             for codec, part in ((first, payload[8:8 + length]), (second, payload[8 + length:]))]
    return numpy.concatenate(sides, axis=1).tobytes()


def of_halves(decode):
    """Returns the decoder of a chunk's values whose 16-bit floats `decode` restores."""
    def decoder(chunk, payload):
        form = Form(chunk["dtype"])
        halves = 2 * chunk["raw_bytes"] if form.zeros else chunk["raw_bytes"]  # 8-bit floats are coded as f16
        return narrowed(decode(chunk, payload, form, halves), chunk["dtype"])
    return decoder


DECODERS = {
    RAW: lambda chunk, payload: payload,
    GEAR_F16: lambda chunk, payload: gear(payload, 2, chunk["raw_bytes"]),
    GEAR_F32: lambda chunk, payload: gear(payload, 4, chunk["raw_bytes"]),
    ZSTD_PLANES: lambda chunk, payload: block_planes(payload, chunk["dtype"], chunk["unit_bytes"], chunk["raw_bytes"]),
    ZSTD: lambda chunk, payload: unzstd(payload, chunk["raw_bytes"]),
    PREV: of_halves(lambda chunk, payload, form, halves: prev(payload, form, halves)),
    ROTATED: lambda chunk, payload: rotated(payload, chunk["raw_bytes"]),
    ROWS: rows_of,
    LMS: of_halves(lambda chunk, payload, form, halves: lms(payload, form, halves)),
    WINDOW4: lambda chunk, payload: window4(payload, chunk["raw_bytes"]),
    WIDENED: widened,
    CDF: of_halves(lambda chunk, payload, form, halves: cdf(payload, form, halves, chunk.get("steps"))),
    LIKE: of_halves(lambda chunk, payload, form, halves: lms(payload, form, halves, True, chunk.get("steps"))),
    SPLIT: split,
    REF: lambda chunk, payload: ref(chunk, payload, decode_as),
    REF_CDF: lambda chunk, payload: ref(chunk, payload, decode_as, learned_rows),
    LAYERS: of_halves(layers),
    PROFILED: lambda chunk, payload: profiled(chunk.get("profile"), chunk, payload),
    REF_LAYERS: lambda chunk, payload: ref(chunk, payload, decode_as, between=with_neighbours),
    REF_SPARSE: lambda chunk, payload: ref(chunk, payload, decode_as, listed_rows),
    BLOCKS: blocks,
    TRANSFORMED: transformed,
    PROFILED_LAYERS: of_halves(profiled_layers),
}


def decode_as(codec, chunk, payload):
    if codec not in DECODERS:
        raise Damaged(f"codec {codec} is unknown")
    raw = DECODERS[codec](chunk, payload)
    if len(raw) != chunk["raw_bytes"]:
        raise Damaged(f"{len(raw)} bytes decoded, {chunk['raw_bytes']} expected")
    return raw
