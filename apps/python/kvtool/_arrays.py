# SPDX-License-Identifier: Apache-2.0
"""Frames as arrays: the only part of the codec that uses NumPy and torch, each imported on first
use."""

from __future__ import annotations

import warnings
from typing import Any

from . import _kvtool

_warned = False
# Types that arrive as integers of the same width.
VIEWED = ("bf16", "f8_e4m3", "f8_e5m2")


def _bf16() -> Any:
    """ml_dtypes.bfloat16, or uint16 if ml_dtypes is not installed."""
    global _warned
    import numpy

    try:
        import ml_dtypes

        return numpy.dtype(ml_dtypes.bfloat16)
    except ImportError:
        if not _warned:
            _warned = True
            warnings.warn("ml_dtypes is not installed: bf16 values are returned as uint16", stacklevel=4)
        return numpy.dtype(numpy.uint16)


def numpy_dtype(name: str, framework: str = "numpy") -> Any:
    """Returns NumPy's dtype for one of kvtool's; with framework="uint16", the unsigned one of the same
    width."""
    import numpy

    plain = {"f32": "float32", "f16": "float16", "i8": "int8"}
    if framework == "uint16":
        return numpy.dtype({"f32": "uint32", "f16": "uint16", "bf16": "uint16"}.get(name, "uint8"))
    if name == "bf16":
        return _bf16()
    if name.startswith("f8_"):
        try:
            import ml_dtypes

            return numpy.dtype(ml_dtypes.float8_e4m3fn if name == "f8_e4m3" else ml_dtypes.float8_e5m2)
        except ImportError:
            return numpy.dtype(numpy.uint8)
    return numpy.dtype(plain.get(name, "uint8"))


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
    """The values of a frame in the shape they were encoded with; flat if the frame has none.

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

    names = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i8": "int8", "f8_e4m3": "float8_e4m3fn"}
    names["f8_e5m2"] = "float8_e5m2"
    dtype = getattr(torch, names.get(info["dtype"], "uint8"))
    if not raw:
        return torch.empty(0, dtype=dtype).reshape(shape_of(info))
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape_of(info))
