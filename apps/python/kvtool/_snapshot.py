# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Snapshots: files of KV caches in any format that kvtool reads."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Mapping, Set
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _arrays, _command, _kvtool
from ._command import Bases, StrPath

if TYPE_CHECKING:
    from ._arrays import Array


class TensorInfo(NamedTuple):
    """Describes K or V of a layer before any value is read."""

    dtype: str
    tokens: int
    heads: int
    head_dim: int
    heads_known: bool


class Layer:
    """One layer of a snapshot. Accessing k or v reads its values."""

    def __init__(self, snapshot: Snapshot, place: int, facts: tuple[int, str, str, Any, Any]) -> None:
        self._snapshot, self._place = snapshot, place
        self.index: int = facts[0]
        self.label: str = facts[1]
        self.group: str = facts[2]
        self.k_info = TensorInfo(*facts[3])
        self.v_info = TensorInfo(*facts[4]) if facts[4] is not None else None

    @property
    def k(self) -> Array:
        """K as [token, head, dim], read-only: a view of the file where its layout allows, otherwise a copy."""
        return self._snapshot._array(self._place, False)

    @property
    def v(self) -> Array | None:
        """V, in the same form; None in caches that keep K and V in one."""
        return None if self.v_info is None else self._snapshot._array(self._place, True)

    def __repr__(self) -> str:
        k = self.k_info
        return f"<kvtool.Layer {self.index}: {k.dtype} {k.tokens} x {k.heads} x {k.head_dim}>"


class Snapshot:
    """A KV cache in a file or a folder. open() makes one; as a context manager it is closed at the end.

    Its arrays stay valid after it is closed, because they keep the file mapped.
    """

    def __init__(self, path: StrPath, options: dict[str, Any], dtype: str | None = None) -> None:
        self.path = os.fspath(path)
        self.options = options
        words = [*_command.option_words(options), _command.path_bytes(path)]
        self._opened: _kvtool._OpenedSnapshot | None = _kvtool._open(words, dtype or "")
        facts = self._opened.facts()
        self.format: str = facts["format"]
        self.format_version: str = facts["format_version"]
        self.engine: str = facts["engine"]
        self.model: str = facts["model"]
        self.kv_bytes: int = facts["kv_bytes"]
        self.notes: list[str] = facts["notes"]
        self.layers = [Layer(self, place, layer) for place, layer in enumerate(self._opened.layers())]

    def _get(self) -> _kvtool._OpenedSnapshot:
        if self._opened is None:
            raise ValueError("the snapshot is closed")
        return self._opened

    def _array(self, place: int, is_value: bool) -> Array:
        array, dtype, _ = self._get().array(place, is_value)
        wanted = _arrays.numpy_dtype(dtype) if dtype in _arrays.VIEWED else array.dtype
        result: Array = array if wanted == array.dtype else array.view(wanted)
        return result

    @property
    def positions(self) -> Array | None:
        """The position of each token, if the file has positions and holds one cache; otherwise
        None."""
        import numpy

        groups = self._get().positions()
        return numpy.array(groups[0][1], dtype=numpy.int64) if len(groups) == 1 else None

    @property
    def tokens(self) -> Array:
        """The token ids that the file has; empty if it has none."""
        import numpy

        return numpy.array(self._get().tokens(), dtype=numpy.int32)

    def describe(self) -> dict[str, Any]:
        """Returns the result of inspect() for it."""
        described: dict[str, Any] = json.loads(self._get().description())
        return described

    def close(self) -> None:
        """Closes the file; it stays mapped while arrays refer to it."""
        self._opened = None

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.layers)

    def __repr__(self) -> str:
        return f"<kvtool.Snapshot {self.path!r}: {self.format}, {len(self.layers)} layers>"


def open_snapshot(path: StrPath, *, dtype: str | None = None, base: Bases = None, **options: Any) -> Snapshot:
    """The options with which open() reads."""
    return Snapshot(path, options if base is None else {"base": base, **options}, dtype)


def save(
    path: StrPath,
    *,
    layers: Any,
    positions: Any = None,
    tokens: Any = None,
    dtype: Any = None,
    to: str | None = None,
    force: bool = False,
) -> None:
    """Write a cache from memory: the file appears complete or not at all.

    layers: per layer (K, V), arrays [token, head, dim]; V may be None. positions, tokens: those of every token.
    dtype: the type that integers stand for. to: a format that kvtool writes; by default it follows from the
    extension.
    """
    name = os.fspath(path)
    if to is None:
        to = format_of_name(name)
    pairs = []
    for layer in layers:
        pair = (layer.k, layer.v) if isinstance(layer, Layer) else tuple(layer)
        if len(pair) != 2:
            raise ValueError("layers: expected pairs (K, V)")
        pairs.append((_contiguous(pair[0]), _contiguous(pair[1])))
    _kvtool._save(os.fsencode(path), to, pairs, dtype, _integers(positions, "positions"), _integers(tokens, "tokens"), force)


def format_of_name(name: str) -> str:
    """Returns the format for an extension."""
    known = {".safetensors": "safetensors", ".npz": "npz", ".pt": "torch", ".pth": "torch", ".npy": "npy"}
    ending = os.path.splitext(name)[1]
    if ending not in known:
        raise ValueError(f"'{name}': the name does not tell the format; pass to=")
    return known[ending]


def _contiguous(array: Any) -> Any:
    """Views of files have the strides of the file."""
    flags = getattr(array, "flags", None)
    return array if flags is None or getattr(flags, "c_contiguous", True) else array.copy(order="C")


def _integers(values: Any, what: str) -> list[int] | None:
    """Returns one per token, in order. Sets have no order, and dictionaries would give their
    keys."""
    if values is None:
        return None
    if isinstance(values, (Mapping, Set)):
        raise TypeError(f"{what}: expected a list, a tuple or another sequence, not {type(values).__name__!r}")
    return [operator.index(value) for value in values]
