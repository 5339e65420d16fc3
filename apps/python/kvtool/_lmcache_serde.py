# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The LMCache serde "kvtool": stores objects as frames through other adapters."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

from lmcache.v1.distributed.serde import (
    AsyncSerdeProcessor,
    Deserializer,
    Serializer,
    get_registered_serde_types,
    register_serde_factory,
)

from ._arrays import dtype_name
from ._codec import Codec, PageLayout
from ._configuration import CodecOptions, engine_version
from ._errors import Error
from ._frames import reason_for

SERDE_NAME = "kvtool"

# Identities of the serdes in this process. Frames that an adapter stores unchanged may have any of them.
serde_codecs: list[Codec] = []
# The adapters in this process; one of them may have supplied the object that a serde refuses.
adapters: weakref.WeakSet[Any] = weakref.WeakSet()


class KvtoolSerializer(Serializer):
    """stored_fraction: every object is stored in exactly this share of its raw size, for adapters that load an object
    only if it has the size that was estimated; one that needs more is not stored. None: objects have their own
    sizes."""

    def __init__(self, codec: Codec, head_dim: int | None = None, stored_fraction: float | None = None) -> None:
        self._codec, self._head_dim, self._fraction = codec, head_dim, stored_fraction

    def estimate_serialized_size(self, layout_desc: Any) -> int:
        raw_bytes = bytes_of_layout(layout_desc)
        return int(raw_bytes * self._fraction) if self._fraction else self._codec.max_encoded_bytes(raw_bytes)

    def serialize(self, src: Any, dst: Any, key: Any) -> int:
        memory = memory_of(dst)
        if self._fraction:
            memory = memory[: int(src.get_size() * self._fraction)]
        name = page_key(key, src.get_shapes(), src.get_dtypes())
        size = self._codec.encode_page(memory_of(src), name, layout=layout_of(src, self._head_dim), out=memory)
        if self._fraction:
            memory[size:] = bytes(len(memory) - size)
            size = len(memory)
        return int(size)  # for any other integer type LMCache would store the whole bound


class KvtoolDeserializer(Deserializer):
    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def deserialize(self, src: Any, dst: Any, key: Any) -> None:
        """The frame gives the length, because stores pad objects and leave older bytes behind
        them."""
        name = page_key(key, dst.get_shapes(), dst.get_dtypes())
        try:
            self._codec.decode_page(memory_of(src), name, out=memory_of(dst))
        except Error as error:
            if reason_for(error.finding) not in (None, "version"):
                for adapter in list(adapters):
                    adapter.recheck(key, self._codec.context(name))  # otherwise it would be refused again and again
            raise


def _make_serde(options: dict[str, Any]) -> Any:
    """{"type": "kvtool", "level": ..., "threads": ..., "profile": ..., "max_workers": ..., "revision": ...,
    "head_dim": ..., "stored_fraction": ...}"""
    own = dict(options)
    max_workers, head_dim = own.pop("max_workers", 1), own.pop("head_dim", None)
    fraction = own.pop("stored_fraction", None)
    if fraction is not None and (not isinstance(fraction, (int, float)) or not 0 < fraction <= 1):
        raise ValueError(f"stored_fraction must be a number above 0 and up to 1, not {fraction!r}")
    try:
        codec = codec_of(CodecOptions(**own))
    except TypeError as error:
        raise ValueError(f"serde kvtool: {error}") from None
    serde_codecs.append(codec)
    return AsyncSerdeProcessor(
        KvtoolSerializer(codec, head_dim, fraction), KvtoolDeserializer(codec), max_workers=max_workers
    )


def register() -> None:
    """LMCache refuses a name that is registered already, and a module may be imported twice under two
    names."""
    if SERDE_NAME not in get_registered_serde_types():
        register_serde_factory(SERDE_NAME, _make_serde)


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
        raise TypeError(f"kvtool needs objects in host memory; this L1 offers none: {error}") from error


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
    dtype = dtype_name(dtypes[0])
    if len(shapes) != 1 or len(shapes[0]) < 2:
        return PageLayout(dtype=dtype)
    channels = int(shapes[0][-1])
    rows = math.prod(shapes[0][:-1])
    if head_dim and channels % head_dim == 0:
        return PageLayout(dtype, (rows, channels // head_dim, head_dim))
    return PageLayout(dtype, (rows, 1, channels))
