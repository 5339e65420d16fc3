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

from ._codec import PageLayout

Bytes = npt.NDArray[np.uint8]

ITEM_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "f8_e4m3": 1, "f8_e5m2": 1, "i8": 1, "u8": 1}
_BITS = 14  # of each size in a tag
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
        """Returns all of K, all of V, then the rest unchanged. Both arrays are bytes of the same
        size."""
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
    dim = content.key_bytes // ITEM_BYTES[dtype]
    rows = 2 * count
    if head_outside_token or not kv_heads or rows % kv_heads:
        return PageLayout(dtype, (rows, 1, dim))  # neighbouring rows are tokens of one head
    return PageLayout(dtype, (rows // kv_heads, kv_heads, dim))
