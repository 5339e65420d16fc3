# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""How SGLang's host pools describe their pages."""

from __future__ import annotations

import math
from typing import Any

import torch

from ._codec import PageLayout
from ._frames import TORCH_DTYPES

# Everything that determines the order of a page's bytes. Pools of MLA and of states lack some of these.
_FIELDS = ("dtype", "layout", "page_size", "layer_num", "head_num", "head_dim", "v_head_dim", "kv_lora_rank",
           "qk_rope_head_dim", "kv_cache_dim", "storage_format_tag")


def fields_of(pool: Any) -> dict[str, str]:
    fields = {name: str(getattr(pool, name, None)) for name in _FIELDS}
    fields["pool"] = type(pool).__name__
    return fields


def dtype_of(pool: Any) -> str | None:
    return TORCH_DTYPES.get(str(getattr(pool, "dtype", None)))


def memory_of(tensor: Any) -> memoryview | None:
    """Returns the bytes of a tensor on the host without a copy; None if that is impossible, because values written to
    a copy would be lost."""
    if tensor is None or not tensor.is_contiguous() or tensor.device.type != "cpu":
        return None
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def layout_of(pool: Any, page_bytes: int) -> PageLayout:
    """Pages are planes of K and V, whose axes depend on the layout. Rows are neighbouring tokens wherever the order
    allows."""
    dtype = dtype_of(pool)
    sizes: list[Any] = [getattr(pool, name, None) for name in ("layer_num", "page_size", "head_num", "head_dim")]
    if dtype is None or not all(isinstance(size, int) and size > 0 for size in sizes):
        return PageLayout(dtype)
    layers, tokens, heads, dim = sizes
    shapes: dict[Any, tuple[int, ...]] = {
        "layer_first": (2 * layers * tokens, heads, dim),  # [2, layer, token, head, dim]
        "page_first_direct": (2 * layers * tokens, heads, dim),
        "page_first": (2 * tokens, layers * heads, dim),  # [2, token, layer, head, dim]
        "page_head": (2 * heads * tokens, layers, dim),  # [2, head, token, layer, dim]
    }
    shape = shapes.get(getattr(pool, "layout", None))
    itemsize = pool.dtype.itemsize
    if shape is None or math.prod(shape) * itemsize != page_bytes:
        return PageLayout(dtype)
    return PageLayout(dtype, shape)
