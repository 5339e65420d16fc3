# SPDX-License-Identifier: Apache-2.0
"""Helpers that several modules of the decoder share."""
import numpy
import zstandard


class Damaged(Exception):
    pass


def unzstd(payload, size):
    raw = zstandard.ZstdDecompressor().decompress(payload, max_output_size=size) if size else b""
    if len(raw) != size:
        raise Damaged(f"a zstd frame of {len(raw)} bytes, {size} expected")
    return raw


def one_frame(payload, size):
    """Returns the content of a zstd frame that fills the payload and states its size."""
    stream = zstandard.ZstdDecompressor().decompressobj()
    raw = stream.decompress(payload)
    stated = zstandard.get_frame_parameters(payload)
    if not stream.eof or stream.unused_data or not len(raw) == stated.content_size == size or stated.dict_id:
        raise Damaged(f"not one zstd frame of {size} bytes")
    return raw


f32 = numpy.float32


class Form:
    """The kind of 16-bit values: f16, bf16 (`bfloat` is true), or 8-bit floats as f16 whose lowest `zeros` bits are
    0."""

    def __init__(self, dtype):
        self.bfloat, self.zeros = dtype == 2, {13: 7, 14: 8}.get(dtype, 0)

    def __bool__(self):
        return self.bfloat


def widened(raw, dtype):
    """Returns 8-bit floats as f16, and bytes of any other type unchanged."""
    zeros = Form(dtype).zeros
    if not zeros:
        return raw
    values = numpy.frombuffer(raw, numpy.uint8).astype(numpy.uint32)
    return ((values & 0x80) << 8 | (values & 0x7f) << zeros).astype("<u2").tobytes()


def narrowed(halves, dtype):
    """Does the reverse of widened."""
    zeros = Form(dtype).zeros
    if not zeros:
        return halves
    words = numpy.frombuffer(halves, "<u2").astype(numpy.uint32)
    if (words & (0x7fff & ~(0x7f << zeros))).any():
        raise Damaged("a value is not an 8-bit float")
    return ((words >> 8 & 0x80) | (words >> zeros & 0x7f)).astype(numpy.uint8).tobytes()
