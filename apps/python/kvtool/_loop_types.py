# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Types of K and V (kvtool.quant-plan/1), and the values that attention reads from a cache stored in them. Needs only
NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy

from . import _kvtool
from ._command import StrPath
from ._loop_plan import Shape, read_document

if TYPE_CHECKING:
    from ._arrays import Array

# Types of K and V for each layer; layers without an entry are unchanged.
Types = dict[int, tuple[str, str]]

BLOCKS = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
PLAIN = ("f32", "f16", "bf16")
SCALED = ("fp8_amax", "int8_per_token_head")
MOST_E4M3 = 448.0


def check_type(name: str) -> str:
    if name not in BLOCKS + PLAIN + SCALED:
        known = ", ".join(BLOCKS + PLAIN + SCALED)
        raise NotImplementedError(f"type '{name}' is not applied here; these are: {known}")
    return name


def uniform(k: str, v: str, shape: Shape) -> Types:
    """One type of K and one of V for all layers."""
    return {layer: (check_type(k), check_type(v)) for layer in range(shape.layers)}


def read_types(path: StrPath, shape: Shape) -> Types:
    """The types in a file, as advise --quant-plan-out and replay quant --plan-out write them."""
    document = read_document(path, "kvtool.quant-plan/1")
    try:
        types = {int(entry["layer"]): (check_type(entry["k"]), check_type(entry["v"])) for entry in document["layers"]}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: not a plan of types: {error}") from None
    if not types or not 0 <= min(types) <= max(types) < shape.layers:
        raise ValueError(f"{path}: layers beyond the model's {shape.layers}")
    return types


def _scaled(values: Array, scale: Array, rounded: Callable[[Array], Array]) -> Array:
    """Returns values rounded in units of a scale, and 0 where the scale is 0."""
    units = numpy.where(scale > 0, scale, 1).astype(numpy.float32)
    result: Array = (rounded(values / units) * units).astype(numpy.float32)
    return result


def _e4m3(values: Array) -> Array:
    """Rounds to floats of 4 bits of exponent and 3 of mantissa, saturating."""
    _, exponent = numpy.frexp(values)
    step = numpy.ldexp(numpy.float32(1), numpy.maximum(exponent, -5) - 4)  # 2**-9 below the least normal number
    result: Array = numpy.clip(numpy.rint(values / step) * step, -MOST_E4M3, MOST_E4M3)
    return result


def stored(values: Array, kind: str, is_key: bool) -> Array:
    """Returns [token, kv head, dim] f32 as it is read back from a cache of this type. The scale of fp8_amax is that of
    these values."""
    result = numpy.array(values, dtype=numpy.float32, order="C")
    if kind in BLOCKS:
        if values.shape[1] * values.shape[2] % 32:
            raise ValueError(f"type '{kind}': rows of {values.shape[1] * values.shape[2]} values are not whole blocks of 32")
        _kvtool._store_as(result, kind, is_key, values.shape[2])
    elif kind == "fp8_amax":
        result = _scaled(result, numpy.abs(result).max() / MOST_E4M3, _e4m3)
    elif kind == "int8_per_token_head":
        result = _scaled(result, numpy.abs(result).max(-1, keepdims=True) / 127, numpy.rint)
    elif kind == "f16":
        result = result.astype(numpy.float16).astype(numpy.float32)
    elif kind == "bf16":
        bits: Array = result.view(numpy.uint32)
        bits += 0x7FFF + (bits >> 16 & 1)  # rounds to nearest, ties to even
        bits &= 0xFFFF0000
    return result
