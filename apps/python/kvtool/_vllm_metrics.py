# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Metrics of the vLLM tier about compression; vLLM counts transfers and failures itself."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import OffloadingCounterMetadata, OffloadingGaugeMetadata

from ._frames import FrameStore

_PREFIX = "vllm:kvtool_tier_"
_COUNTERS = {
    "raw_bytes": "Bytes of KV blocks that were stored, before compression.",
    "stored_bytes": "Bytes of the files that were written for them.",
    "loaded_bytes": "Bytes of files that were loaded.",
    "loaded_raw_bytes": "Bytes of KV blocks that came out of them.",
    "encode_seconds": "Wall time of compressing, of all threads.",
    "decode_seconds": "Wall time of decompressing, of all threads.",
    "stored": "KV blocks stored.",
    "loaded": "KV blocks loaded.",
    "already_stored": "KV blocks that were there already.",
    "stored_raw": "KV blocks that did not shrink.",
    "store_failures": "KV blocks that could not be stored.",
    "load_failures": "KV blocks that could not be loaded, though their files may be sound: errors of reading, no memory.",
    "refused": "Files that were refused: damaged, short, of another configuration, or of a newer version.",
    "evicted": "Files that the limit of the folder removed.",
}
_GAUGES = {
    "folder_bytes": "Bytes of all files in the folder.",
    "folder_objects": "Files in the folder.",
    "storing": "1, or 0 while a full disk makes stores wait.",
}


class TierMetrics:
    def __init__(self, tier_type: str, frames: FrameStore) -> None:
        self._labels = (tier_type,)
        self._frames = frames
        self._last: dict[str, Any] = {}

    @staticmethod
    def definitions() -> dict[str, Any]:
        counters = {
            _PREFIX + name: OffloadingCounterMetadata(documentation=text, labelnames=("tier",))
            for name, text in _COUNTERS.items()
        }
        gauges = {
            _PREFIX + name: OffloadingGaugeMetadata(documentation=text, labelnames=("tier",))
            for name, text in _GAUGES.items()
        }
        return {**counters, **gauges}

    def take(self) -> Any:
        """Returns the increase since the last call; None if there is none."""
        report = self._frames.report()
        grown = {name: report.get(name, 0) - self._last.get(name, 0) for name in _COUNTERS}
        if not any(grown.values()):
            return None
        self._last = {name: report.get(name, 0) for name in _COUNTERS}
        stats = OffloadingConnectorStats()
        for name, amount in grown.items():
            if amount:
                stats.increase_counter(_PREFIX + name, amount, self._labels)
        for name in _GAUGES:
            stats.set_gauge(_PREFIX + name, int(report[name]), self._labels)
        return stats
