# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""LMCache: an L2 adapter that keeps chunks compressed and checked in a folder or in memory, and a serde for others.

    --l2-adapter '{"type": "plugin", "module_path": "kvtool.lmcache", "class_name": "KvtoolAdapter",
                   "adapter_params": {"base_path": "/var/cache/kv", "max_gb": 200}}'

With "memory_gb" instead of "base_path" the compressed chunks stay in memory.

Importing this module registers the serde "kvtool". The adapter codes objects itself and needs no serde: so no
temporary memory is taken from L1, and one bad object is one miss. With the serde it stores the received frames, and
the files are the same. See docs/engines/lmcache.md. Made for LMCache 0.5.6.
"""

from __future__ import annotations

import collections
import functools
import logging
import threading
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.platform import create_event_notifier

from ._codec import PageLayout
from ._configuration import StoreOptions, count_option
from ._directory import HEADER_BYTES
from ._errors import Error
from ._frames import Item, grouped
from ._kvtool import bound, frame_info
from ._lmcache_serde import (
    SERDE_NAME,
    KvtoolDeserializer,
    KvtoolSerializer,
    adapters,
    codec_of,
    layout_of,
    memory_of,
    name_key,
    page_key,
    register,
    serde_codecs,
)
from ._workers import Workers

__all__ = ["KvtoolAdapter", "KvtoolAdapterConfig", "KvtoolDeserializer", "KvtoolSerializer", "SERDE_NAME"]

logger = logging.getLogger(__name__)

register()

_PART_BYTES = 8 << 20  # bytes that one thread moves at once
Keys = Sequence[Any]

_HELP = """kvtool adapter_params:
- base_path (str): folder for the frames; or
- memory_gb (number): GiB of memory for the frames, in place of a folder
- level (str): "fast", "default", "high" or "max" (default: "fast")
- workers (int): threads that store, and as many that load, each one object at a time (default: 2)
- threads (int): threads that code one object; 0: as many as the process may use (default: 1)
- profile (str): a .kvp file of the model, for levels from "default" on
- max_gb (number): limit of the folder in GiB, beyond which the least recently used objects go; 0: none (default)
- revision (str): revision of the model's weights; objects of another revision are misses (default: "")
- head_dim (int): values per head, which helps compression a little (default: not known)
- skip_salts (list): cache_salt of requests whose objects are neither stored nor found
- durable (bool): write each file through to the disk (default: false)"""


class KvtoolAdapterConfig(L2AdapterConfigBase):
    """adapter_params of the adapter; unknown ones are refused."""

    def __init__(
        self,
        base_path: str = "",
        workers: int = 2,
        head_dim: int | None = None,
        skip_salts: Sequence[str] = (),
        **options: Any,
    ) -> None:
        if isinstance(skip_salts, str) or not all(isinstance(salt, str) for salt in skip_salts):
            raise ValueError("skip_salts must be a list of strings")
        self.options = StoreOptions(folder=base_path, **options)
        self.workers = count_option(workers, "workers")
        self.head_dim = None if head_dim is None else count_option(head_dim, "head_dim")
        self.skip_salts = frozenset(skip_salts)

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> KvtoolAdapterConfig:
        try:
            return cls(**d)
        except TypeError as error:
            raise ValueError(f"kvtool adapter_params: {error}\n{_HELP}") from None

    @classmethod
    def help(cls) -> str:
        return _HELP


class KvtoolAdapter(L2AdapterInterface):
    """Stores chunks as frames in a folder. The threads of a kind share a task, so that one codes while another waits
    for the disk."""

    def __init__(self, config: Any, l1_memory_desc: Any = None) -> None:
        if isinstance(config, dict):
            config = KvtoolAdapterConfig.from_dict(config)
        self._config = config
        self._codec = codec_of(config.options)
        # Notifications to LMCache about files: in the order of the events, and without holding a lock, because a
        # listener may wait for a thread that waits for that lock.
        self._news_lock = threading.Lock()
        self._known: dict[str, tuple[Any, int]] = {}  # file name -> (key, size): what LMCache was last notified of
        self._news: collections.deque[tuple[Any, ...]] = collections.deque()
        self._telling = False
        self._frames = config.options.store(self._codec, self._on_evict)
        super().__init__(max_capacity_bytes=self._frames.directory.max_bytes)
        self._notifiers = [create_event_notifier() for _ in range(3)]
        self._store_notifier, self._lookup_notifier, self._load_notifier = self._notifiers
        self._workers = {
            kind: Workers(count, f"kvtool-lmcache-{kind}")
            for kind, count in (("store", config.workers), ("lookup", 1), ("load", config.workers))
        }
        self._lock = threading.Lock()
        self._next_task = 0
        self._stored: dict[int, Any] = {}
        self._looked_up: dict[int, Any] = {}
        self._loaded: dict[int, Any] = {}
        self._closed = False
        adapters.add(self)

    # ---- methods that LMCache calls ----

    def get_store_event_fd(self) -> int:
        return int(self._store_notifier.fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._lookup_notifier.fileno())

    def get_load_event_fd(self) -> int:
        return int(self._load_notifier.fileno())

    def submit_store_task(self, keys: Keys, objects: Sequence[Any]) -> int:
        return self._submit("store", keys, objects, self._store, self._finish_store)

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        with self._lock:
            done, self._stored = self._stored, {}
        return done

    def submit_lookup_and_lock_task(self, keys: Keys, group_layout_descs: Any) -> int:
        layouts = group_layout_descs or {}
        return self._submit("lookup", keys, None, lambda keys, _: self._lookup(keys, layouts), self._finish_lookup)

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        with self._lock:
            return self._looked_up.pop(task_id, None)

    def submit_unlock(self, keys: Keys) -> None:
        """Nothing is locked: a looked-up object is the most recently used, and a miss in between does no
        harm."""

    def submit_load_task(self, keys: Keys, objects: Sequence[Any]) -> int:
        return self._submit("load", keys, objects, self._load, self._finish_load)

    def query_load_result(self, task_id: int) -> Any:
        with self._lock:
            return self._loaded.pop(task_id, None)

    def delete(self, keys: Keys) -> None:
        names = [self._name(key) for key in keys]
        for name in names:
            self._frames.directory.discard(name)
        self._forget_gone(names)

    def recheck(self, key: Any, context: bytes) -> None:
        """Called by a serde that refused an object, which may have come from another adapter."""
        name = self._name(key)
        self._frames.recheck(name, context)
        self._forget_gone([name])

    def get_usage(self) -> Any:
        """Usage of the whole folder, including objects of earlier processes."""
        usage = super().get_usage()
        return AdapterUsage(
            total_bytes_used=self._frames.directory.total_bytes,
            total_capacity_bytes=usage.total_capacity_bytes,
            bytes_by_cache_salt=MappingProxyType(dict(usage.bytes_by_cache_salt)),
        )

    def report_status(self) -> dict[str, Any]:
        """Not healthy while nothing can be stored, as on a full disk; "store_problem" then gives the
        reason."""
        report = self._frames.report()
        return {"is_healthy": not self._closed and report["storing"], "type": "KvtoolAdapter", **report}

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for workers in self._workers.values():
            workers.close()
        self._frames.close()
        for notifier in self._notifiers:
            notifier.close()

    # ---- work on the threads ----

    def _submit(
        self,
        kind: str,
        keys: Keys,
        objects: Sequence[Any] | None,
        work: Callable[[Any, Any], Sequence[Any]],
        finish: Callable[[int, Any, Any], None],
    ) -> int:
        """work(keys, objects) returns a list with a result per key, None after an exception. finish(task, keys,
        results) runs once, on the thread that ends last."""
        with self._lock:
            number = self._next_task
            self._next_task += 1
        keys = list(keys)
        results: list[Any] = [None] * len(keys)
        parts: list[list[int]] = [list(range(len(keys)))]
        if objects:
            parts = list(grouped(range(len(keys)), lambda i: int(objects[i].get_size()), _PART_BYTES))
        left = [len(parts)]

        def run(part: Sequence[int]) -> None:
            try:
                mine = None if objects is None else [objects[i] for i in part]
                for i, result in zip(part, work([keys[i] for i in part], mine)):
                    results[i] = result
            except Exception:
                logger.exception("kvtool: a %s task of LMCache failed", kind)
            with self._lock:
                left[0] -= 1
                last = left[0] == 0
            if last:
                finish(number, keys, results)

        for part in parts:
            self._workers[kind].submit(functools.partial(run, part))
        return number

    def _name(self, key: Any) -> str:
        return self._codec.name(name_key(key))

    def _is_off(self, key: Any) -> bool:
        return key.cache_salt in self._config.skip_salts

    def _store(self, keys: Keys, objects: Sequence[Any]) -> list[int | None]:
        """Returns the bytes written per object, 0 if it was stored already or is not wanted."""
        written: list[int | None] = [None] * len(keys)
        groups: dict[PageLayout, list[int]] = {}
        for i, obj in enumerate(objects):
            if self._is_off(keys[i]):
                written[i] = 0
                continue
            frame = _frame_in(memory_of(obj))  # the object was made by a serde
            if frame is not None:
                written[i] = self._frames.store_frame(self._name(keys[i]), frame)
                continue
            groups.setdefault(layout_of(obj, self._config.head_dim), []).append(i)
        for layout, chosen in groups.items():
            items = [self._item(keys[i], objects[i]) for i in chosen]
            for i, size in zip(chosen, self._frames.store(items, layout)):
                written[i] = size
        return written

    def _finish_store(self, number: int, keys: Keys, written: Sequence[int | None]) -> None:
        new = {self._name(key): (key, size) for key, size in zip(keys, written) if size}
        with self._news_lock:
            # Objects that were evicted since then, by this store or another process, are reported to LMCache as not
            # stored.
            there = {name: entry for name, entry in new.items() if name in self._frames.directory}
            self._add_deleted([self._known.pop(name, None) for name in there])
            self._known.update(there)
            self._add_news(self._notify_keys_stored, *map(list, zip(*there.values())))
        self._tell()
        with self._lock:
            self._stored[number] = L2StoreResult(None not in written, sum(size for size in written if size))
        self._store_notifier.notify()

    def _lookup(self, keys: Keys, layouts: Any) -> list[bool]:
        """True if there is a whole frame of the key and, if the engine gives it, of the layout."""
        headers = [self._frames.header(self._name(key)) for key in keys]
        return [
            info is not None and not self._is_off(key) and self._is_expected(info["context"], key, layouts.get(key.object_group_id))
            for key, info in zip(keys, headers)
        ]

    def _finish_lookup(self, number: int, keys: Keys, found: Sequence[bool | None]) -> None:
        with self._lock:
            self._looked_up[number] = _bitmap(found)
        self._lookup_notifier.notify()

    def _is_expected(self, context: bytes, key: Any, layout: Any) -> bool:
        if layout is None:
            return True
        name = page_key(key, layout.shapes, layout.dtypes)
        return any(context == codec.context(name) for codec in [self._codec, *serde_codecs])

    def _load(self, keys: Keys, objects: Sequence[Any]) -> list[bool]:
        """Returns whether each object was filled."""
        loaded = [False] * len(keys)
        coded = []
        for i, (key, obj) in enumerate(zip(keys, objects)):
            info = self._frames.header(self._name(key))
            memory = memory_of(obj)
            if info is not None and len(memory) == bound(info["raw_bytes"]):
                loaded[i] = self._load_frame(key, obj, memory)
            else:
                coded.append(i)
        tags = self._frames.load([self._item(keys[i], objects[i]) for i in coded])
        for i, tag in zip(coded, tags):
            loaded[i] = tag is not None
        return loaded

    def _finish_load(self, number: int, keys: Keys, loaded: Sequence[bool | None]) -> None:
        done = [key for key, there in zip(keys, loaded) if there]
        with self._news_lock:
            self._add_news(self._notify_keys_accessed, done)
        self._forget_gone([self._name(key) for key, there in zip(keys, loaded) if not there])
        with self._lock:
            self._loaded[number] = _bitmap(loaded)
        self._load_notifier.notify()

    def _load_frame(self, key: Any, obj: Any, memory: memoryview) -> bool:
        """For a serde: returns the frame unchanged after checking its hash, because a serde that refuses one object
        fails all of its task."""
        name = self._name(key)
        read = self._frames.read(name, memory)
        if read is None:
            return False
        frame, opened = read
        if not self._frames.verify(name, frame, opened):
            return False
        obj.set_used_size(len(frame))
        return True

    def _item(self, key: Any, obj: Any) -> Item:
        context = self._codec.context(page_key(key, obj.get_shapes(), obj.get_dtypes()))
        return Item(self._name(key), context, memory_of(obj))

    def _on_evict(self, gone: list[tuple[str, int]]) -> None:
        self._forget_gone([name for name, _ in gone])

    def _forget_gone(self, names: Sequence[str]) -> None:
        """Notifies LMCache of files that are no longer in the folder, unless they were stored again
        meanwhile."""
        with self._news_lock:
            gone = [name for name in names if name not in self._frames.directory]
            self._add_deleted([self._known.pop(name, None) for name in gone])
        self._tell()

    def _add_deleted(self, known: Sequence[tuple[Any, int] | None]) -> None:
        gone = [entry for entry in known if entry is not None]
        self._add_news(self._notify_keys_deleted, [key for key, _ in gone], [size for _, size in gone])

    def _add_news(self, notify: Any, keys: Keys = (), *sizes: Any) -> None:
        if keys:
            self._news.append((notify, keys, *sizes))

    def _tell(self) -> None:
        """One thread at a time sends all notifications; a failing listener must not keep a task from
        ending."""
        while True:
            with self._news_lock:
                if self._telling or not self._news:
                    return
                self._telling = True
                notify, *news = self._news.popleft()
            try:
                notify(*news)
            except Exception:
                logger.exception("kvtool: a listener of LMCache failed")
            finally:
                with self._news_lock:
                    self._telling = False


def _bitmap(bits: Sequence[bool | None]) -> Any:
    bitmap = Bitmap(len(bits))
    for i, bit in enumerate(bits):
        if bit:
            bitmap.set(i)
    return bitmap


def _frame_in(memory: memoryview) -> memoryview | None:
    """Returns the memory if it holds exactly one whole frame, as a serde leaves it."""
    try:
        return memory if frame_info(memory[:HEADER_BYTES])["frame_bytes"] == len(memory) else None
    except Error:
        return None
