# SPDX-License-Identifier: Apache-2.0
"""open() of files: to read a cache, or to write one as its rows come."""

from __future__ import annotations

from typing import Any, Literal, overload

from ._command import StrPath
from ._snapshot import Snapshot, open_snapshot
from ._stream import Writer


@overload
def open(path: StrPath, mode: Literal["r", "rb"] = "rb", **options: Any) -> Snapshot: ...
@overload
def open(path: StrPath, mode: Literal["w", "wb", "x", "xb"], **options: Any) -> Writer: ...
def open(path: StrPath, mode: str = "rb", **options: Any) -> Snapshot | Writer:
    """Open a file or folder in any format that kvtool reads: metadata now, values when they are asked for.

    dtype: "f32", "f16" or "bf16" to convert to; block types are dequantised. base: what an archive was coded beside, where
    it does not lie in its folder; looked at with the first values. options: how to read it, as `kvtool inspect
    --help` lists them under "Reading the snapshot": from_, raw, kv_heads, head_dim, gguf, layout, as_, order, batch, ...

    mode "wb" ("xb": unless it exists): a Writer of an archive (.kvz; options as of compress) or a .safetensors file.
    """
    if mode in ("w", "wb", "x", "xb"):
        return Writer(path, mode.startswith("x"), options)
    if mode not in ("r", "rb"):
        raise ValueError(f"mode '{mode}': expected 'rb', 'wb' or 'xb'")
    return open_snapshot(path, **options)
