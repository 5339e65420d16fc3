# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""How LMCache describes its objects: memory, layout and names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ._codec import Codec, PageLayout
from ._configuration import CodecOptions, engine_version
from ._frames import TORCH_DTYPES


def codec_of(options: CodecOptions) -> Codec:
    return options.codec({"engine": "lmcache", "version": engine_version("lmcache")})


def name_key(key: Any) -> bytes:
    """Name of an object: only the key, because a lookup may not know more."""
    fields = (key.model_name, key.kv_rank, key.object_group_id, key.cache_salt, bytes(key.chunk_hash).hex())
    return repr(fields).encode()


def page_key(key: Any, shapes: Sequence[Any], dtypes: Sequence[Any]) -> bytes:
    """Everything that its bytes depend on, including the layout, so that bytes of another dtype or shape are a
    miss."""
    layout = [(list(shape), str(dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)]
    return name_key(key) + repr(layout).encode()


def memory_of(obj: Any) -> memoryview:
    """Returns the logical bytes of an object. A GDS L1 has none on the host."""
    try:
        return memoryview(obj.byte_array).cast("B")
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"kvtool needs objects in host memory; this L1 has none to give: {error}") from error


def bytes_of_layout(layout: Any) -> int:
    """Size of all groups of a layout: hybrid models have several."""
    return sum(
        math.prod(shape) * dtype.itemsize for shape, dtype in zip(layout.shapes, layout.dtypes, strict=True)
    )


def layout_of(obj: Any, head_dim: int | None = None) -> PageLayout:
    """Objects are [2, layers, tokens, heads * dim], MLA's [layers, tokens, channels]: rows of one token and layer.
    The layout does not show the heads; head_dim is the user's hint."""
    shapes, dtypes = obj.get_shapes(), obj.get_dtypes()
    if len(set(dtypes)) != 1:
        return PageLayout()
    dtype = TORCH_DTYPES.get(str(dtypes[0]))
    if len(shapes) != 1 or len(shapes[0]) < 2:
        return PageLayout(dtype=dtype)
    channels = int(shapes[0][-1])
    rows = math.prod(shapes[0][:-1])
    if head_dim and channels % head_dim == 0:
        return PageLayout(dtype, (rows, channels // head_dim, head_dim))
    return PageLayout(dtype, (rows, 1, channels))
