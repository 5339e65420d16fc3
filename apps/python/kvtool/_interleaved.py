# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Separates K and V, which vLLM keeps side by side in each head of each token, before they are coded.

The two halves have different statistics, so together they compress badly. The frame's tag records the separation, and
decoding follows the tag: a different or wrong hint only makes compression worse.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import dtype_name
from ._codec import PageLayout
from ._configuration import count_option, engine_version

Bytes = npt.NDArray[np.uint8]

# Names that vLLM uses instead of torch's.
_ALIASES = {"half": "f16", "float": "f32", "fp8": "f8_e4m3", "fp8_e4m3": "f8_e4m3", "fp8_e5m2": "f8_e5m2"}
_ITEM_BYTES = {"bf16": 2, "f16": 2, "f32": 4}  # bytes of a value; 1 for other types
_BITS = 14  # bits of each size in a tag
_SPLIT = 1 << 2 * _BITS


@dataclasses.dataclass(frozen=True)
class Content:
    """Sizes for one head of one token: key_bytes of K, then value_bytes of V."""

    key_bytes: int
    value_bytes: int

    def __post_init__(self) -> None:
        for size in (self.key_bytes, self.value_bytes):
            if not 0 < size < 1 << _BITS:
                raise ValueError(f"a head of {size} bytes")

    @property
    def tag(self) -> int:
        return _SPLIT | self.key_bytes << _BITS | self.value_bytes

    @classmethod
    def of_tag(cls, tag: int) -> Content | None:
        """Parses a tag. None: not separated. Raises ValueError for a tag with another meaning."""
        if tag == 0:
            return None
        if tag >> 2 * _BITS != _SPLIT >> 2 * _BITS:
            raise ValueError(f"tag {tag:#x}")
        return cls(tag >> _BITS & (1 << _BITS) - 1, tag & (1 << _BITS) - 1)

    def contents_of(self, size: int) -> int:
        """Number of whole units in `size` bytes; the rest is padding."""
        return size // (self.key_bytes + self.value_bytes)

    def _views(self, interleaved: Bytes, apart: Bytes) -> tuple[Any, Any, Any, int]:
        count = self.contents_of(len(interleaved))
        # Fields of opaque bytes: NumPy then copies one head at a time.
        fields = np.dtype([("k", f"V{self.key_bytes}"), ("v", f"V{self.value_bytes}")])
        rows = interleaved[: count * fields.itemsize].view(fields)
        middle, end = count * self.key_bytes, count * fields.itemsize
        keys = apart[:middle].view(f"V{self.key_bytes}")
        values = apart[middle:end].view(f"V{self.value_bytes}")
        return rows, keys, values, end

    def take_apart(self, interleaved: Bytes, apart: Bytes) -> None:
        """Fills `apart` with all of K, all of V and the rest unchanged. Both arrays have the same size."""
        rows, keys, values, end = self._views(interleaved, apart)
        keys[:] = rows["k"]
        values[:] = rows["v"]
        apart[end:] = interleaved[end:]

    def put_together(self, apart: Bytes, interleaved: Bytes) -> None:
        rows, keys, values, end = self._views(interleaved, apart)
        rows["k"] = keys
        rows["v"] = values
        interleaved[end:] = apart[end:]


def shape_apart(
    content: Content, size: int, dtype: str, kv_heads: int | None, head_outside_token: bool
) -> PageLayout:
    """Describes a separated object of `size` bytes. Only whole objects of equal halves have a
    shape."""
    count = content.contents_of(size)
    whole = count * (content.key_bytes + content.value_bytes) == size
    if not whole or content.key_bytes != content.value_bytes:
        return PageLayout(dtype)
    dim = content.key_bytes // _ITEM_BYTES.get(dtype, 1)
    rows = 2 * count
    if head_outside_token or not kv_heads or rows % kv_heads:
        return PageLayout(dtype, (rows, 1, dim))  # neighbouring rows are tokens of one head
    return PageLayout(dtype, (rows // kv_heads, kv_heads, dim))


def identity_of(spec: Any, row_bytes: int) -> dict[str, Any]:
    """Everything that determines the bytes of a row, as far as the scheduler's side knows it."""
    config = spec.config
    parallel = config.parallel
    fields = {
        "engine": "vllm",
        "version": engine_version("vllm"),
        "model": config.model.name,
        "dtype": str(config.model.dtype),
        "row_bytes": row_bytes,
        "blocks_per_chunk": spec.blocks_per_chunk,
        "tokens_per_hash": config.cache.tokens_per_hash,
        "groups": [(group.tokens_per_block, list(group.layer_names)) for group in config.groups],
        "layout": getattr(config, "kv_cache_layout", None),
        "canonical": getattr(config, "canonical_layout", False),
        "replicated": getattr(config, "replicated_layout", False),
    }
    if not (parallel.is_parallelism_agnostic or fields["replicated"]):
        sizes = ("tp_size", "pp_size", "pcp_size", "dcp_size", "rank")
        fields["parallel"] = [getattr(parallel, name) for name in sizes]
    return fields


def hints_of(
    config: Any, row_bytes: int, kv_heads: int | None, head_size: int | None, head_size_v: int | None
) -> tuple[Content | None, PageLayout]:
    """Returns how rows are separated into K and V, or None, and the shape of the result."""
    for name, value in (("kv_heads", kv_heads), ("head_size", head_size), ("head_size_v", head_size_v)):
        if value is not None:
            count_option(value, name)
    dtype = _ALIASES.get(str(config.model.dtype)) or dtype_name(config.model.dtype)
    if dtype is None or head_size is None:
        return None, PageLayout(dtype)
    size = _ITEM_BYTES.get(dtype, 1)
    content = Content(head_size * size, (head_size_v or head_size) * size)
    layout = str(getattr(config, "kv_cache_layout", None) or "LBHNC").upper()
    head_outside_token = "H" in layout and "N" in layout and layout.index("H") < layout.index("N")
    return content, shape_apart(content, row_bytes, dtype, kv_heads, head_outside_token)
