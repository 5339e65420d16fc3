# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""open() of caches: to read them, or to write them as their rows come, in bounded memory."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import Any, Literal, overload

from . import _files, _safetensors
from ._command import StrPath
from ._errors import NotFoundError
from ._safetensors import RowFile, Tensor
from ._snapshot import Snapshot, open_snapshot

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint16": "BF16"}


class Writer:
    """A cache that grows by rows. The complete file, .kvz or .safetensors by its name, appears when it is closed;
    after an exception within `with` nothing appears. Until then the rows are uncompressed in a folder beside it.

    options: those of compress(), for example level="high".
    """

    def __init__(self, path: StrPath, exclusive: bool, options: dict[str, Any]) -> None:
        self.path = os.fspath(path)
        self._is_archive = self.path.endswith(".kvz")
        if not self._is_archive and not self.path.endswith(".safetensors"):
            raise ValueError(f"'{self.path}': caches are streamed to .kvz and .safetensors")
        if options and not self._is_archive:
            raise TypeError(f"{', '.join(options)}: for archives (.kvz) only")
        if exclusive and os.path.lexists(self.path):
            raise FileExistsError(f"{self.path}: exists")
        if self._is_archive:
            _check(options)
        self._exclusive, self._options = exclusive, options
        parent = os.path.dirname(os.path.abspath(self.path))
        self._folder = tempfile.mkdtemp(prefix=f".{os.path.basename(self.path)}-", suffix=".partial", dir=parent)
        self._files: dict[str, RowFile] = {}
        self._layers = 0
        self.closed = False

    def write(self, k: Any, v: Any = None, *, layer: int | None = None) -> int:
        """Adds rows [token, head, dim] of K, and of V, as a new layer or at the end of `layer`. Returns its
        number."""
        if self.closed:
            raise ValueError("the file is closed")
        number = self._layers if layer is None else layer
        if not 0 <= number <= self._layers:
            raise ValueError(f"layer {number}: the next one is {self._layers}")
        if v is not None and len(v) != len(k):
            raise ValueError("K and V of a layer have different numbers of tokens")
        self._append(f"k_{number}", k)
        if v is not None:
            self._append(f"v_{number}", v)
        self._layers = max(self._layers, number + 1)
        return number

    def _append(self, name: str, rows: Any) -> None:
        import numpy

        array = numpy.ascontiguousarray(rows)
        dtype = _DTYPES.get(array.dtype.name)
        if dtype is None or array.ndim != 3 or not array.dtype.isnative:
            raise TypeError(f"{name}: expected [token, head, dim] of f32, f16 or bf16 in native byte order")
        place, rows = os.path.join(self._folder, name), array.reshape(-1).view("u1").data
        _safetensors.append_rows(self._files, place, name, dtype, array.shape[1:], rows)

    def close(self) -> None:
        """Makes the file; a failure leaves nothing behind."""
        if self.closed:
            return
        self.closed = True
        try:
            for file in self._files.values():
                file.complete()
            stem = os.path.basename(self.path).removesuffix(".kvz").removesuffix(".safetensors")
            whole = os.path.join(self._folder, f"{stem}.safetensors")
            tensors = [Tensor(name, file.dtype, file.shape, file) for name, file in self._files.items()]
            _safetensors.write(whole, tensors, {"kvtool.layout": "token,head,dim"})
            if self._is_archive:
                _files.compress(whole, self.path, force=not self._exclusive, **self._options)
            elif self._exclusive:
                os.link(whole, self.path)  # refuses a file that was created meanwhile
            else:
                os.replace(whole, self.path)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            return self.close()
        self.closed = True
        for file in self._files.values():
            file.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __repr__(self) -> str:
        return f"<kvtool.Writer {self.path!r}: {self._layers} layers{', closed' if self.closed else ''}>"


def _check(options: dict[str, Any]) -> None:
    """Raises at once what compress() would raise after all rows were written: it reads its options before its
    source, which does not exist here."""
    with tempfile.TemporaryDirectory(prefix="kvtool-") as empty:
        missing = os.path.join(empty, "rows.safetensors")
        try:
            _files.compress(missing, force=True, **{**options, "progress": None})
        except NotFoundError as error:
            if error.file != missing:
                raise


@overload
def open(path: StrPath, mode: Literal["r", "rb"] = "rb", **options: Any) -> Snapshot: ...
@overload
def open(path: StrPath, mode: Literal["w", "wb", "x", "xb"], **options: Any) -> Writer: ...
def open(path: StrPath, mode: str = "rb", **options: Any) -> Snapshot | Writer:
    """Open a file or folder in any format that kvtool reads: metadata now, values when they are asked for.

    dtype: "f32", "f16" or "bf16" to convert to; block types are dequantised. base: an archive's references, if they
    are not in its folder; opened with the first values. options: how to read it, as `kvtool inspect --help` lists
    them under "Reading the snapshot": from_, raw, kv_heads, head_dim, gguf, layout, as_, order, batch, ...

    mode "wb" ("xb": unless it exists): a Writer of an archive (.kvz; options as of compress) or a .safetensors file.
    """
    if mode in ("w", "wb", "x", "xb"):
        return Writer(path, mode.startswith("x"), options)
    if mode not in ("r", "rb"):
        raise ValueError(f"mode '{mode}': expected 'rb', 'wb' or 'xb'")
    return open_snapshot(path, **options)
