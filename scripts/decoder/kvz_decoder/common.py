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


f32 = numpy.float32
