# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""What LMCache says of its objects: memory, layout and names."""

import math

from kvtool._configuration import Identity, engine_version
from kvtool._frames import TORCH_DTYPES, Shape


class ObjectIdentity:
    """Names and contexts of objects. The name of a file depends on the key alone, as a lookup may know no more; the
    context also on the layout, so that the bytes of another dtype or shape are a miss."""

    def __init__(self, revision=""):
        self._identity = Identity(engine="lmcache", version=engine_version("lmcache"), revision=revision)

    def name(self, key):
        return self._identity.name(_bytes_of_key(key))

    def context(self, key, shapes, dtypes):
        layout = [(list(shape), str(dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)]
        return self._identity.context(_bytes_of_key(key) + repr(layout).encode())


def _bytes_of_key(key):
    fields = (key.model_name, key.kv_rank, key.object_group_id, key.cache_salt, bytes(key.chunk_hash).hex())
    return repr(fields).encode()


def memory_of(obj):
    """The logical bytes of an object, as bytes. A GDS L1 has none on the host."""
    try:
        return memoryview(obj.byte_array).cast("B")
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"kvtool needs objects in host memory; this L1 has none to give: {error}") from error


def bytes_of_layout(layout):
    """Of all groups of a layout: hybrid models have several."""
    return sum(
        math.prod(shape) * dtype.itemsize for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True)
    )


def shape_of(obj, head_dim=None):
    """Objects are [2, layers, tokens, heads * dim], MLA's [layers, tokens, channels]: rows of one token and layer. Heads
    cannot be told from the layout; head_dim is the user's hint."""
    shapes, dtypes = obj.get_shapes(), obj.get_dtypes()
    if len(set(dtypes)) != 1:
        return Shape()
    dtype = TORCH_DTYPES.get(str(dtypes[0]))
    if len(shapes) != 1 or len(shapes[0]) < 2:
        return Shape(dtype=dtype)
    channels = int(shapes[0][-1])
    rows = math.prod(shapes[0][:-1])
    if head_dim and channels % head_dim == 0:
        return Shape(dtype, (rows, channels // head_dim, head_dim))
    return Shape(dtype, (rows, 1, channels))
