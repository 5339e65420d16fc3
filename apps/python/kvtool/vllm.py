# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""vLLM: a secondary tier of KV offloading that keeps chunks compressed and checked, on a local disk or in memory.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 8589934592, "blocks_per_chunk": 16,
        "secondary_tiers": [{"type": "KvtoolTier", "module_path": "kvtool.vllm", "root_dir": "/var/cache/kv",
                             "max_gb": 200, "kv_heads": 8, "head_size": 128}]}}'

A block is served correctly or not at all: one that cannot be read is a miss from then on. Requests with the
kv_transfer_params {"kvtool": false} are neither stored nor looked up. See docs/engines/vllm.md. Made for vLLM 0.33.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingGaugeMetadata,
    RequestOffloadingContext,
)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from ._configuration import StoreOptions, count_option, is_off
from ._frames import FrameStore, Item
from ._interleaved import Content, hints_of, identity_of
from ._workers import Workers

__all__ = ["KvtoolTier"]

logger = logging.getLogger(__name__)

# Bytes of rows in one piece of work, small enough that the threads share a large job.
_WORK_BYTES = 8 << 20


# A key of the engine, and its row in the primary tier.
Pair = tuple[Any, int]


class KvtoolTier(SecondaryTierManager):
    """Chunks as frames in a folder, or in memory.

    root_dir: the folder of StoreOptions, which has the options that are not listed here. n_read_threads,
    n_write_threads: threads that load and store. kv_heads, head_size, head_size_v: sizes of one worker's cache; hints
    that only affect compression. enable_kv_events: tell vLLM which blocks are stored and removed.
    """

    medium = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        root_dir: str = "",
        n_read_threads: int = 4,
        n_write_threads: int = 2,
        kv_heads: int | None = None,
        head_size: int | None = None,
        head_size_v: int | None = None,
        enable_kv_events: bool = False,
        locality: Any = None,
        backpressure_detector: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        chosen = StoreOptions(folder=root_dir, **options)
        self.locality = Locality(locality) if locality is not None else None
        self._row_bytes: int = (primary_kv_view.strides or (0,))[0]
        self._events = self._make_events(enable_kv_events)
        self._codec = chosen.codec(identity_of(offloading_spec, self._row_bytes))
        self._frames = chosen.store(self._codec, self._on_evict, _WORK_BYTES)
        config = offloading_spec.config
        self._content, self._layout = hints_of(config, self._row_bytes, kv_heads, head_size, head_size_v)
        self._metrics = TierMetrics(tier_type, self._frames)
        self._readers = Workers(count_option(n_read_threads, "n_read_threads"), f"kvtool-{tier_type}-read")
        self._writers = Workers(count_option(n_write_threads, "n_write_threads"), f"kvtool-{tier_type}-write")
        self._lookups = _Lookups(self, tier_type)
        self._finished: deque[_Job] = deque()

    # ---- methods that vLLM calls, under the manager's lock: nothing here waits ----

    def on_new_request(self, req_context: Any) -> Any:
        return RequestOffloadingContext()

    def lookup(self, key: Any, req_context: Any) -> Any:
        if is_off(req_context.kv_transfer_params):
            return LookupResult.MISS
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context: Any) -> None:
        self._lookups.flush()

    def on_request_finished(self, req_context: Any) -> None:
        self._lookups.cleanup(req_context.req_id)

    def submit_store(self, job_metadata: Any) -> None:
        if is_off(job_metadata.req_context.kv_transfer_params):
            self._finished.append(_Job(job_metadata, 0))  # done at once, because this request stores nothing
            return
        self._submit(job_metadata, self._writers, self._store)

    def submit_load(self, job_metadata: Any) -> None:
        self._submit(job_metadata, self._readers, self._load)

    def get_finished_jobs(self) -> list[Any]:
        results = []
        while self._finished:
            job = self._finished.popleft()
            if job.is_load and job.failed:
                self._lookups.mark_miss(job.failed)
            if self._events is not None:
                self._announce(self._events, job)
            results.append(job.result(self._row_bytes))
        return results

    def drain_jobs(self) -> None:
        self._readers.wait_idle()
        self._writers.wait_idle()

    def shutdown(self) -> None:
        self._lookups.shutdown()
        for workers in (self._readers, self._writers):
            for work in workers.close():
                work(cancelled=True)
        self._frames.close()

    def take_events(self) -> Iterable[Any]:
        return self._events.take() if self._events is not None else ()

    def get_stats(self) -> Any:
        return self._metrics.take()

    @classmethod
    def build_metric_definitions(cls, extra_config: Any) -> dict[str, Any]:
        return TierMetrics.definitions()

    @classmethod
    def config_info_keys(cls, tier_config: Any) -> tuple[str, ...]:
        return ("kvtool_level", "kvtool_root_dir")

    def config_info(self) -> dict[str, str]:
        return {"kvtool_level": self._codec.level, "kvtool_root_dir": self._frames.directory.root}

    def report(self) -> dict[str, Any]:
        """Counters and the state of the folder."""
        return self._frames.report()

    # ---- events ----

    def _make_events(self, wanted: bool) -> TierEvents | None:
        if not wanted:
            return None
        if not self._offloading_spec.kv_events_config.enable_kv_cache_events:
            logger.warning("kvtool: enable_kv_events has no effect while vLLM's KV cache events are off")
            return None
        return TierEvents(self.medium, self.locality)

    def _announce(self, events: TierEvents, job: _Job) -> None:
        if job.is_load:
            events.removed([self._codec.name(key) for key in job.failed])
        else:
            pairs = [(self._codec.name(key), key) for key in job.good]
            events.stored(pairs, self._frames.is_offered)

    def _on_evict(self, gone: list[tuple[str, int]]) -> None:
        if self._events is not None:
            self._events.removed([name for name, _ in gone])

    # ---- work on the threads ----

    def exists(self, key: Any) -> bool:
        return self._frames.has(self._codec.name(key), self._codec.context(key))

    def _submit(self, job: Any, workers: Workers, work: Callable[[list[Pair]], list[Any]]) -> None:
        pairs = [(key, int(chunk)) for key, chunk in zip(job.keys, job.chunk_ids)]
        step = max(1, _WORK_BYTES // self._row_bytes)
        parts = [pairs[i : i + step] for i in range(0, len(pairs), step)] or [[]]
        state = _Job(job, len(parts))
        for part in parts:

            def run(part: list[Pair] = part, cancelled: bool = False) -> None:
                failed = [key for key, _ in part]
                try:
                    if not cancelled:
                        failed = work(part)
                except Exception:
                    logger.exception("kvtool: a job of vLLM failed")
                if state.part_done(failed):
                    self._finished.append(state)

            workers.submit(run)

    @contextlib.contextmanager
    def _rows(self, part: list[Pair]) -> Iterator[list[memoryview]]:
        """Yields the rows of a part, and releases them: the region cannot be unmapped while a view of it exists."""
        rows = [self._primary_kv_view[chunk : chunk + 1].cast("B") for _, chunk in part]
        try:
            yield rows
        finally:
            for row in rows:
                row.release()

    def _items(self, part: list[Pair], rows: Iterable[Any]) -> list[Item]:
        codec = self._codec
        return [Item(codec.name(key), codec.context(key), row) for (key, _), row in zip(part, rows)]

    def _store(self, part: list[Pair]) -> list[Any]:
        """Returns the keys that could not be stored."""
        with self._rows(part) as rows:
            sizes = self._frames.store(self._items(part, rows), self._layout, self._take_apart)
        return [key for (key, _), size in zip(part, sizes) if size is None]

    def _take_apart(self, items: list[Item]) -> None:
        if self._content is None:
            return
        for item, copy in zip(items, np.empty((len(items), self._row_bytes), np.uint8)):
            self._content.take_apart(np.frombuffer(item.raw, np.uint8), copy)
            item.raw, item.tag = copy, self._content.tag

    def _load(self, part: list[Pair]) -> list[Any]:
        """Returns the keys that could not be loaded."""
        with self._rows(part) as rows:
            loaded = zip(part, rows, self._frames.load(self._items(part, rows)))
            return [key for (key, _), row, tag in loaded if tag is None or not self._put_together(tag, row)]

    def _put_together(self, tag: int, row: memoryview) -> bool:
        try:
            content = Content.of_tag(tag)
        except ValueError:
            return False  # written by a later version of this module
        if content is not None:
            array = np.frombuffer(row, np.uint8)
            content.put_together(array.copy(), array)
        return True


class _Lookups(AsyncLookupManager):
    """A separate thread checks whether chunks exist."""

    def __init__(self, tier: KvtoolTier, tier_type: str) -> None:
        super().__init__(tier_type=tier_type)
        self._tier = tier

    def batch_lookup(self, keys: Iterable[Any], req_context: Any) -> list[bool]:
        return [self._tier.exists(key) for key in keys]


class _Job:
    """A transfer whose parts several threads do."""

    def __init__(self, job: Any, parts: int) -> None:
        self.is_load: bool = job.is_promotion
        self.failed: list[Any] = []
        self._id, self._keys = job.job_id, list(job.keys)
        self._left = parts
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._seconds = 0.0

    def part_done(self, failed: Sequence[Any]) -> bool:
        """Returns whether this was the last part."""
        with self._lock:
            self.failed += failed
            self._left -= 1
            self._seconds = time.monotonic() - self._start
            return self._left == 0

    @property
    def good(self) -> tuple[Any, ...]:
        failed = set(self.failed)
        return tuple(key for key in self._keys if key not in failed)

    def result(self, row_bytes: int) -> Any:
        """Counts raw bytes, because vLLM's back-pressure would take a good ratio for a slow
        disk."""
        good = self.good or None if self.is_load and self.failed else None
        return JobResult(self._id, not self.failed, good, self._seconds, len(self._keys) * row_bytes)


class TierEvents:
    """KV events: which blocks the storage holds, for routers that look for the engine that has a prefix. Blocks of earlier
    processes are not announced, nor is their removal."""

    def __init__(self, medium: Any, locality: Any) -> None:
        self._medium, self._locality = medium, locality
        self._lock = threading.Lock()
        self._keys: dict[str, Any] = {}  # file name -> key of announced blocks
        self._events: list[Any] = []

    def stored(self, pairs: Sequence[tuple[str, Any]], is_offered: Callable[[str], bool]) -> None:
        """(file name, key) of blocks that a job stored or found. is_offered(name): whether the block is available
        now; the folder's limit may have removed it before the job ended, without an event."""
        with self._lock:
            new = {name: key for name, key in pairs if name not in self._keys and is_offered(name)}
            self._keys.update(new)
            self._add(list(new.values()), removed=False)

    def removed(self, names: Sequence[str]) -> None:
        """Any thread."""
        with self._lock:
            keys = [self._keys.pop(name) for name in names if name in self._keys]
            self._add(keys, removed=True)

    def take(self) -> list[Any]:
        with self._lock:
            events, self._events = self._events, []
        return events

    def _add(self, keys: list[Any], removed: bool) -> None:
        if keys:
            self._events.append(
                OffloadingEvent(keys=keys, medium=self._medium, removed=removed, locality=self._locality)
            )


_PREFIX = "vllm:kvtool_tier_"
_COUNTERS = {
    "raw_bytes": "Bytes of KV blocks that were stored, before compression.",
    "stored_bytes": "Bytes of the files that were written for KV blocks.",
    "loaded_bytes": "Bytes of files that were loaded.",
    "loaded_raw_bytes": "Bytes of KV blocks that were restored from files.",
    "encode_seconds": "Wall time of compressing, summed over threads.",
    "decode_seconds": "Wall time of decompressing, summed over threads.",
    "stored": "KV blocks stored.",
    "loaded": "KV blocks loaded.",
    "already_stored": "KV blocks that were already stored.",
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
    """vLLM counts transfers and failures itself; these metrics say what compression does."""

    def __init__(self, tier_type: str, frames: FrameStore) -> None:
        self._labels = (tier_type,)
        self._frames = frames
        self._last: dict[str, Any] = {}

    @staticmethod
    def definitions() -> dict[str, Any]:
        return {
            _PREFIX + name: kind(documentation=text, labelnames=("tier",))
            for kind, texts in ((OffloadingCounterMetadata, _COUNTERS), (OffloadingGaugeMetadata, _GAUGES))
            for name, text in texts.items()
        }

    def take(self) -> Any:
        """Returns the increase since the last call; None if there is none."""
        report = self._frames.report()
        last, self._last = self._last, {name: report.get(name, 0) for name in _COUNTERS}
        grown = {name: total - last.get(name, 0) for name, total in self._last.items()}
        if not any(grown.values()):
            return None
        stats = OffloadingConnectorStats()
        for name, amount in grown.items():
            if amount:
                stats.increase_counter(_PREFIX + name, amount, self._labels)
        for name in _GAUGES:
            stats.set_gauge(_PREFIX + name, int(report[name]), self._labels)
        return stats
