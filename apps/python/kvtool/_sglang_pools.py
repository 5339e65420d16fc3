# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""What SGLang's host pools say of their pages."""

import math

import torch

from kvtool._frames import TORCH_DTYPES, Shape

# What the order of a page's bytes depends on. Pools of MLA and of states lack some of these.
_FIELDS = ("dtype", "layout", "page_size", "layer_num", "head_num", "head_dim", "v_head_dim", "kv_lora_rank",
           "qk_rope_head_dim", "kv_cache_dim", "storage_format_tag")


def layout_of(pool):
    fields = {name: str(getattr(pool, name, None)) for name in _FIELDS}
    fields["pool"] = type(pool).__name__
    return fields


def dtype_of(pool):
    return TORCH_DTYPES.get(str(getattr(pool, "dtype", None)))


def memory_of(tensor):
    """The bytes of a tensor on the host, without a copy; None where it has none of that kind, because what is written to
    a copy is lost."""
    if tensor is None or not tensor.is_contiguous() or tensor.device.type != "cpu":
        return None
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def shape_of(pool, page_bytes):
    """Pages are planes of K and V; what follows depends on the layout. Rows are neighbouring tokens wherever the order
    allows."""
    dtype = dtype_of(pool)
    sizes = [getattr(pool, name, None) for name in ("layer_num", "page_size", "head_num", "head_dim")]
    if dtype is None or not all(isinstance(size, int) and size > 0 for size in sizes):
        return Shape(dtype)
    layers, tokens, heads, dim = sizes
    shape = {
        "layer_first": (2 * layers * tokens, heads, dim),  # [2, layer, token, head, dim]
        "page_first_direct": (2 * layers * tokens, heads, dim),
        "page_first": (2 * tokens, layers * heads, dim),  # [2, token, layer, head, dim]
        "page_head": (2 * heads * tokens, layers, dim),  # [2, head, token, layer, dim]
    }.get(getattr(pool, "layout", None))
    itemsize = pool.dtype.itemsize
    if shape is None or math.prod(shape) * itemsize != page_bytes:
        return Shape(dtype)
    return Shape(dtype, shape)
