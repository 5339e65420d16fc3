# SPDX-License-Identifier: Apache-2.0
"""Safetensors files that are written as their values arrive, in bounded memory. Needs neither torch nor
NumPy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple, Union

Bytes = Union[bytes, bytearray, memoryview]

ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2}
# Limit of rows: with more, the header could exceed its maximum length.
_MOST_ROWS = 1 << 62
_COPY_BYTES = 8 << 20


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """Returns the bytes of a tensor."""
    size = ITEM_BYTES[dtype]
    for extent in shape:
        size *= extent
    return size


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
    """Writes a complete file; wide elements come first, so that all of them are aligned."""
    ordered = sorted(tensors, key=lambda tensor: -ITEM_BYTES[tensor.dtype])
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
