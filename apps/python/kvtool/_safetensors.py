# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Safetensors files: mapped, or written as their values come, in bounded memory. Writing needs neither torch nor NumPy."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Union

if TYPE_CHECKING:
    from ._arrays import Array

Bytes = Union[bytes, bytearray, memoryview]

# NumPy's types; bf16 as its bit patterns.
_FORMS = {"F64": "<f8", "I64": "<i8", "F32": "<f4", "I32": "<i4", "F16": "<f2", "BF16": "<u2"}
_MOST_HEADER_BYTES = 100 << 20  # the format's own limit
# Largest number of rows, of which no file has more: a header with this number is as long as any can become.
_MOST_ROWS = 1 << 62
_COPY_BYTES = 8 << 20


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """The bytes of a tensor."""
    return _item_bytes(dtype) * math.prod(shape)


def _item_bytes(dtype: str) -> int:
    return int(_FORMS[dtype][2:])


def _header(entries: dict[str, Any], metadata: dict[str, str] | None, room: int = 0) -> bytes:
    """Returns the length and the header, padded with spaces to `room` bytes or to the next multiple of
    8."""
    fields = {"__metadata__": metadata, **entries} if metadata else entries
    text = json.dumps(fields, separators=(",", ":")).encode()
    padded = max(-(-len(text) // 8) * 8, room - 8)
    return padded.to_bytes(8, "little") + text.ljust(padded)


def _entry(dtype: str, shape: Sequence[int], begin: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, begin + size_of(dtype, shape)]}


class RowFile:
    """A file of one tensor that grows by rows: they are appended as they arrive, and complete() writes the header.

    Space for the header is reserved at the start, so no row has to move. Until complete() the file is not valid.
    """

    def __init__(self, path: str, name: str, dtype: str, row_shape: Sequence[int]) -> None:
        self.path, self.name, self.dtype, self.row_shape = path, name, dtype, tuple(row_shape)
        self.row_bytes = size_of(dtype, self.row_shape)
        if self.row_bytes == 0:
            raise ValueError(f"{name}: a row of shape {self.row_shape} has no bytes")
        self.rows = 0
        self.data_begin = len(_header({name: _entry(dtype, (_MOST_ROWS, *self.row_shape), 0)}, None))
        self._file: BinaryIO = open(path, "xb")
        self._file.seek(self.data_begin)

    def append(self, rows: Bytes) -> None:
        """Appends whole rows, in C order."""
        size = memoryview(rows).nbytes
        if size % self.row_bytes:
            raise ValueError(f"{self.name}: {size} bytes are not a whole number of rows of {self.row_bytes}")
        self._file.write(rows)
        self.rows += size // self.row_bytes

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.row_shape)

    def complete(self) -> None:
        """Writes the header, which makes the file valid."""
        header = _header({self.name: _entry(self.dtype, self.shape, 0)}, None, self.data_begin)
        self._file.seek(0)
        self._file.write(header)
        self._file.close()

    def close(self) -> None:
        self._file.close()


def append_rows(
    files: dict[str, RowFile], path: str, name: str, dtype: str, row_shape: tuple[int, ...], rows: Bytes
) -> None:
    """Appends to the file of the tensor `name`, which begins with its first rows."""
    if name not in files:
        files[name] = RowFile(path, name, dtype, row_shape)
    file = files[name]
    if (file.dtype, file.row_shape) != (dtype, row_shape):
        raise ValueError(f"{name}: rows of {dtype} {row_shape} after rows of {file.dtype} {file.row_shape}")
    file.append(rows)


class Tensor(NamedTuple):
    """Input of write(): values in memory, or the first rows of a completed RowFile."""

    name: str
    dtype: str
    shape: Sequence[int]
    data: Bytes | RowFile


def _chunks(tensor: Tensor) -> Iterable[Bytes]:
    size = size_of(tensor.dtype, tensor.shape)
    if not isinstance(tensor.data, RowFile):
        if memoryview(tensor.data).nbytes != size:
            raise ValueError(f"{tensor.name}: {memoryview(tensor.data).nbytes} bytes, expected {size}")
        yield tensor.data
        return
    with open(tensor.data.path, "rb") as source:
        source.seek(tensor.data.data_begin)
        while size:
            chunk = source.read(min(size, _COPY_BYTES))
            if not chunk:
                raise ValueError(f"{tensor.name}: the rows in {tensor.data.path} end too early")
            size -= len(chunk)
            yield chunk


def write(path: str, tensors: Iterable[Tensor], metadata: dict[str, str] | None = None) -> None:
    """A whole file; wide elements come first, so that all of them are aligned."""
    ordered = sorted(tensors, key=lambda tensor: -_item_bytes(tensor.dtype))
    entries: dict[str, Any] = {}
    begin = 0
    for tensor in ordered:
        if tensor.name in entries:
            raise ValueError(f"{tensor.name}: named twice")
        entries[tensor.name] = _entry(tensor.dtype, tensor.shape, begin)
        begin = entries[tensor.name]["data_offsets"][1]
    with open(path, "xb") as out:
        out.write(_header(entries, metadata))
        for tensor in ordered:
            for chunk in _chunks(tensor):
                out.write(chunk)
        out.flush()
        os.fsync(out.fileno())


def read(path: str) -> tuple[dict[str, Array], dict[str, str]]:
    """The tensors of one safetensors file, mapped, and its metadata."""
    import numpy

    size = os.path.getsize(path)
    with open(path, "rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
            raise ValueError(f"{path}: not a safetensors file: a header of {length} bytes")
        try:
            header = json.loads(file.read(length))
            facts = header.pop("__metadata__", {})
            if not all(isinstance(value, str) for value in facts.values()):
                raise ValueError("metadata that is not text")
        except (ValueError, RecursionError, AttributeError, TypeError) as error:
            raise ValueError(f"{path}: not a safetensors header: {error}") from None
    raw = numpy.memmap(path, numpy.uint8, "r", 8 + length) if size > 8 + length else numpy.empty(0, numpy.uint8)
    tensors = {}
    for name, entry in header.items():
        try:
            tensors[name] = _tensor(raw, entry["dtype"], entry["shape"], entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: tensor '{name}': {error}") from None
    return tensors, facts


def _tensor(raw: Array, dtype: str, shape: list[int], offsets: list[int]) -> Array:
    begin, end = offsets
    if dtype not in _FORMS:
        raise ValueError(f"dtype {dtype} is not read here")
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in [*shape, begin, end]):
        raise ValueError(f"shape {shape} at {offsets}")
    if not begin <= end <= len(raw) or end - begin != size_of(dtype, shape):
        raise ValueError(f"shape {shape} of {dtype} does not fit {end - begin} bytes at {begin} of {len(raw)}")
    data = raw[begin:end]
    if begin % _item_bytes(dtype):
        data = data.copy()
    return data.view(_FORMS[dtype]).reshape(shape)
