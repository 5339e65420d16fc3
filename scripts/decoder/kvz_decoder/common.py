# SPDX-License-Identifier: Apache-2.0
"""What all parts need."""
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
    """The content of a zstd frame that fills the payload and states its size."""
    stream = zstandard.ZstdDecompressor().decompressobj()
    raw = stream.decompress(payload)
    stated = zstandard.get_frame_parameters(payload)
    if not stream.eof or stream.unused_data or not len(raw) == stated.content_size == size or stated.dict_id:
        raise Damaged(f"not one zstd frame of {size} bytes")
    return raw


f32 = numpy.float32
