# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Frames as arrays: the only part of the codec that uses NumPy and torch, each imported on first
use."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from . import _kvtool

if TYPE_CHECKING:
    import numpy.typing

    Array = numpy.typing.NDArray[Any]

_warned = False
# Names of element types in torch, ml_dtypes and (as far as it has them) NumPy.
_NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f8_e4m3": "float8_e4m3fn", "f8_e5m2": "float8_e5m2",
          "i8": "int8", "u8": "uint8"}  # fmt: skip
# Types that NumPy lacks, so that their values arrive as integers of the same width.
VIEWED = ("bf16", "f8_e4m3", "f8_e5m2")


def dtype_name(dtype: Any) -> str | None:
    """Returns kvtool's name for an element type of torch, or for its name; None if its values are coded as bytes."""
    word = str(dtype).removeprefix("torch.")
    return next((name for name, known in _NAMES.items() if known == word), None)


def numpy_dtype(name: str, framework: str = "numpy") -> Any:
    """Returns NumPy's dtype for one of kvtool's; with framework="uint16" the unsigned integer of the same width."""
    global _warned
    import numpy

    if framework == "uint16":
        return numpy.dtype({"f32": "uint32", "f16": "uint16", "bf16": "uint16"}.get(name, "uint8"))
    known = _NAMES.get(name, "uint8")
    if name not in VIEWED:
        return numpy.dtype(known)
    try:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, known))
    except ImportError:
        if name == "bf16" and not _warned:
            _warned = True
            warnings.warn("ml_dtypes is not installed: bf16 values are returned as uint16", stacklevel=3)
        return numpy.dtype("uint16" if name == "bf16" else "uint8")


def shape_of(info: dict[str, Any]) -> tuple[int, ...]:
    """The shape of the array in a frame; (-1,) if the frame has no shape."""
    tokens, heads, dim = info["tokens"], info["heads"], info["head_dim"]
    if info["order"] == "unknown" or info["dtype"].startswith("q"):
        return (-1,)
    return (heads, tokens, dim) if info["order"] == "head_token_dim" else (tokens, heads, dim)


def decode_array(
    frame: Any,
    *,
    framework: str = "numpy",
    context: bytes | bytearray | memoryview | None = None,
    using: _kvtool.Context | None = None,
) -> Any:
    """The values of a frame as [token, head, dim] or [head, token, dim], as encoded; flat if it has no shape.

    framework: "numpy" (bf16 as ml_dtypes.bfloat16 if that is installed, otherwise as uint16), "uint16" (bit patterns,
    unsigned and of the same width) or "torch". using: a Context, whose threads decode.
    """
    info = _kvtool.frame_info(frame)
    if framework not in ("numpy", "uint16", "torch"):
        raise ValueError(f"framework '{framework}': expected numpy, uint16 or torch")
    coder: Any = _kvtool if using is None else using
    raw = coder.decode(frame, context=context)
    if framework == "torch":
        return _torch(raw, info)
    import numpy

    array = numpy.empty(len(raw), dtype=numpy.uint8)
    array[:] = numpy.frombuffer(raw, dtype=numpy.uint8)
    return array.view(numpy_dtype(info["dtype"], framework)).reshape(shape_of(info))


def _torch(raw: bytes, info: dict[str, Any]) -> Any:
    import torch

    dtype = getattr(torch, _NAMES.get(info["dtype"], "uint8"))
    flat = torch.frombuffer(bytearray(raw), dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.reshape(shape_of(info))
