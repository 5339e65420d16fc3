# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The facts about stored rows that vLLM's scheduler knows, and those that the user supplies."""

from __future__ import annotations

from typing import Any

from ._codec import PageLayout
from ._configuration import count_option, engine_version
from ._interleaved import ITEM_BYTES, Content, shape_apart

_DTYPES = {
    "bfloat16": "bf16",
    "float16": "f16",
    "half": "f16",
    "float32": "f32",
    "float": "f32",
    "fp8": "f8_e4m3",
    "fp8_e4m3": "f8_e4m3",
    "fp8_e5m2": "f8_e5m2",
    "int8": "i8",
}


def identity_of(spec: Any, row_bytes: int) -> dict[str, Any]:
    """Everything that determines the bytes of a row, as far as the scheduler's side knows it."""
    config = spec.config
    parallel = config.parallel
    fields = {
        "engine": "vllm",
        "version": engine_version("vllm"),
        "model": config.model.name,
        "dtype": str(config.model.dtype),
        "row_bytes": row_bytes,
        "blocks_per_chunk": spec.blocks_per_chunk,
        "tokens_per_hash": config.cache.tokens_per_hash,
        "groups": [(group.tokens_per_block, list(group.layer_names)) for group in config.groups],
        "layout": getattr(config, "kv_cache_layout", None),
        "canonical": getattr(config, "canonical_layout", False),
        "replicated": getattr(config, "replicated_layout", False),
    }
    if not (parallel.is_parallelism_agnostic or fields["replicated"]):
        sizes = ("tp_size", "pp_size", "pcp_size", "dcp_size", "rank")
        fields["parallel"] = [getattr(parallel, name) for name in sizes]
    return fields


def hints_of(
    config: Any, row_bytes: int, kv_heads: int | None, head_size: int | None, head_size_v: int | None
) -> tuple[Content | None, PageLayout]:
    """Returns how rows are separated into K and V, or None, and the shape of the result."""
    for name, value in (("kv_heads", kv_heads), ("head_size", head_size), ("head_size_v", head_size_v)):
        if value is not None:
            count_option(value, name)
    dtype = _DTYPES.get(str(config.model.dtype).removeprefix("torch."))
    if dtype is None or head_size is None:
        return None, PageLayout(dtype)
    size = ITEM_BYTES[dtype]
    content = Content(head_size * size, (head_size_v or head_size) * size)
    layout = str(getattr(config, "kv_cache_layout", None) or "LBHNC").upper()
    head_outside_token = "H" in layout and "N" in layout and layout.index("H") < layout.index("N")
    return content, shape_apart(content, row_bytes, dtype, kv_heads, head_outside_token)
