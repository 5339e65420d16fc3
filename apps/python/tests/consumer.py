# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Uses kvtool as a typed project does. mypy --strict checks it, and nothing runs it."""

from __future__ import annotations

from typing import Any

import kvtool


def pages(arrays: list[Any], key: bytes) -> list[bytes | None]:
    context = kvtool.Context("fast", threads=2, max_raw_bytes=1 << 25)
    result: kvtool.BatchResult = context.encode_batch(arrays, dtype="bf16", contexts=[key] * len(arrays))
    statuses: list[int] = result.status
    return result.objects if result.ok and not any(statuses) else []


def page(array: Any, room: bytearray) -> tuple[bytes, int]:
    frame: bytes = kvtool.encode(array, level="high", context=kvtool.hash128("model"))
    size: int = kvtool.encode(array, level=2, out=room)
    filled: int = kvtool.decode(frame, out=bytearray(kvtool.bound(4)))
    return kvtool.decode(frame), size + filled


def files(path: str) -> float:
    try:
        with kvtool.open(path, kv_heads=4) as snapshot:
            shape: tuple[int, ...] = snapshot.layers[0].k.shape
        document: dict[str, Any] = kvtool.compress(path, progress=lambda done, total: done < total)
    except kvtool.Error as error:
        return float(error.finding) + (error.offset or 0)
    return float(document["ratio"]) * len(shape)
