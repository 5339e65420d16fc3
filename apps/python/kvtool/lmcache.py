# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""LMCache: an L2 adapter that keeps chunks compressed and checked in a folder, and a serde for other adapters.

    --l2-adapter '{"type": "plugin", "module_path": "kvtool.lmcache", "class_name": "KvtoolAdapter",
                   "adapter_params": {"base_path": "/var/cache/kv", "max_gb": 200}}'

Importing this module registers the serde "kvtool". The adapter codes objects itself, so it needs none: then no temporary
memory is taken from L1, and one bad object is one miss. Under the serde it stores the frames that it is given, and the
files are the same. See docs/engines/lmcache.md. Made for LMCache 0.5.6.
"""

import logging
import threading
from types import MappingProxyType

import kvtool
from kvtool._configuration import level_option, size_option
from kvtool._directory import FrameDirectory
from kvtool._frames import FrameStore, Item
from kvtool._lmcache_objects import ObjectIdentity, memory_of, shape_of
from kvtool._lmcache_serde import (
    SERDE_NAME,
    KvtoolDeserializer,
    KvtoolSerializer,
    listen_to_serdes,
    register,
    serde_identities,
)
from kvtool._workers import Workers

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import AdapterUsage, L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.platform import create_event_notifier

__all__ = ["KvtoolAdapter", "KvtoolAdapterConfig", "KvtoolDeserializer", "KvtoolSerializer", "SERDE_NAME"]

logger = logging.getLogger(__name__)

register()

_HELP = """kvtool adapter_params:
- base_path (str): folder for the frames (required)
- level (str): "fast", "default", "high" or "max" (default "fast")
- threads (int): that code one object; 0: as many as the process may use (default 1)
- max_gb (number): limit of the folder in GiB, beyond which the least recently used objects go; 0: none (default)
- revision (str): of the model's weights; objects of another revision are misses (default "")
- head_dim (int): values per head, which helps compression a little (default: not known)
- durable (bool): write each file through to the disk (default false)"""


class KvtoolAdapterConfig(L2AdapterConfigBase):
    """adapter_params of the adapter; unknown ones are refused."""

    def __init__(self, base_path, level="fast", threads=1, max_gb=0, revision="", head_dim=None, durable=False):
        if not isinstance(base_path, str) or not base_path:
            raise ValueError("base_path must be a string that is not empty")
        if not isinstance(revision, str):
            raise ValueError("revision must be a string")
        if head_dim is not None and (isinstance(head_dim, bool) or not isinstance(head_dim, int) or head_dim < 1):
            raise ValueError("head_dim must be a positive integer")
        if not isinstance(durable, bool):
            raise ValueError("durable must be true or false")
        self.base_path = base_path
        self.level = level_option(level)
        self.threads = threads
        self.max_bytes = size_option(max_gb, "max_gb")
        self.revision = revision
        self.head_dim = head_dim
        self.durable = durable

    @classmethod
    def from_dict(cls, d):
        try:
            return cls(**d)
        except TypeError as error:
            raise ValueError(f"kvtool adapter_params: {error}\n{_HELP}") from None

    @classmethod
    def help(cls):
        return _HELP


class KvtoolAdapter(L2AdapterInterface):
    """Chunks as frames in a folder. Stores, lookups and loads each have a thread and keep their order."""

    def __init__(self, config, l1_memory_desc=None):
        if isinstance(config, dict):
            config = KvtoolAdapterConfig.from_dict(config)
        super().__init__(max_capacity_bytes=config.max_bytes)
        self._config = config
        self._identity = ObjectIdentity(config.revision)
        self._keys = {}  # file name -> key, of what this process stored or found
        self._frames = FrameStore(
            FrameDirectory(config.base_path, config.max_bytes, config.durable, self._on_evict),
            config.level,
            config.threads,
        )
        self._notifiers = [create_event_notifier() for _ in range(3)]
        self._store_notifier, self._lookup_notifier, self._load_notifier = self._notifiers
        self._workers = {kind: Workers(1, f"kvtool-lmcache-{kind}") for kind in ("store", "lookup", "load")}
        self._lock = threading.Lock()
        self._next_task = 0
        self._stored, self._looked_up, self._loaded = {}, {}, {}
        self._closed = False
        listen_to_serdes(self)

    # ---- what LMCache calls ----

    def get_store_event_fd(self):
        return self._store_notifier.fileno()

    def get_lookup_and_lock_event_fd(self):
        return self._lookup_notifier.fileno()

    def get_load_event_fd(self):
        return self._load_notifier.fileno()

    def submit_store_task(self, keys, objects):
        return self._submit("store", self._stored, self._store_notifier, self._store, keys, objects)

    def pop_completed_store_tasks(self):
        with self._lock:
            done = dict(self._stored)
            self._stored.clear()  # in place: running tasks hold on to the same dictionary
        return done

    def submit_lookup_and_lock_task(self, keys, group_layout_descs):
        return self._submit(
            "lookup", self._looked_up, self._lookup_notifier, self._lookup, keys, group_layout_descs or {}
        )

    def query_lookup_and_lock_result(self, task_id):
        with self._lock:
            return self._looked_up.pop(task_id, None)

    def submit_unlock(self, keys):
        """Nothing is locked: what was looked up is the most recently used, and a miss in between does no harm."""

    def submit_load_task(self, keys, objects):
        return self._submit("load", self._loaded, self._load_notifier, self._load, keys, objects)

    def query_load_result(self, task_id):
        with self._lock:
            return self._loaded.pop(task_id, None)

    def delete(self, keys):
        gone, sizes = [], []
        for key in keys:
            name = self._identity.name(key)
            size = self._frames.directory.discard(name)
            if size:
                gone.append(key)
                sizes.append(size)
            self._keys.pop(name, None)
        if gone:
            self._notify_keys_deleted(gone, sizes)

    def get_usage(self):
        """Of the whole folder: also of what earlier processes left."""
        usage = super().get_usage()
        return AdapterUsage(
            total_bytes_used=self._frames.directory.total_bytes,
            total_capacity_bytes=usage.total_capacity_bytes,
            bytes_by_cache_salt=MappingProxyType(dict(usage.bytes_by_cache_salt)),
        )

    def report_status(self):
        return {"is_healthy": not self._closed, "type": "KvtoolAdapter", **self._frames.report()}

    def close(self):
        if self._closed:
            return
        self._closed = True
        for workers in self._workers.values():
            workers.close()
        self._frames.coder.close()
        for notifier in self._notifiers:
            notifier.close()

    # ---- on the threads ----

    def _submit(self, kind, results, notifier, work, keys, argument):
        with self._lock:
            task = self._next_task
            self._next_task += 1
        keys = list(keys)

        def run():
            try:
                result = work(keys, argument)
            except Exception:
                logger.exception("kvtool: a %s task of LMCache failed", kind)
                result = L2StoreResult(False, 0) if kind == "store" else Bitmap(len(keys))
            with self._lock:
                results[task] = result
            notifier.notify()

        self._workers[kind].submit(run)
        return task

    def _store(self, keys, objects):
        written = [None] * len(keys)
        groups = {}
        for i, obj in enumerate(objects):
            frame = _frame_in(memory_of(obj))
            if frame is not None:
                written[i] = self._store_frame(keys[i], frame)
                continue
            shape = shape_of(obj, self._config.head_dim)
            groups.setdefault(repr(shape), (shape, []))[1].append(i)
        for shape, chosen in groups.values():
            items = [self._item(keys[i], objects[i]) for i in chosen]
            for i, size in zip(chosen, self._frames.store(items, shape)):
                written[i] = size
        new = [(key, size) for key, size in zip(keys, written) if size]
        for key, _ in new:
            self._keys[self._identity.name(key)] = key
        if new:
            self._notify_keys_stored([key for key, _ in new], [size for _, size in new])
        return L2StoreResult(None not in written, sum(size for _, size in new))

    def _store_frame(self, key, frame):
        """A frame that a serde made, as it is."""
        name = self._identity.name(key)
        if self._frames.has(name, kvtool.frame_info(frame)["context"]):
            return 0
        return self._frames.write(name, frame)

    def _lookup(self, keys, layouts):
        found = Bitmap(len(keys))
        for i, key in enumerate(keys):
            info = self._frames.header(self._identity.name(key))
            if info is not None and self._is_expected(info["context"], key, layouts.get(key.object_group_id)):
                found.set(i)
        return found

    def _is_expected(self, context, key, layout):
        if layout is None:
            return True
        identities = [self._identity, *serde_identities()]
        return any(context == identity.context(key, layout.shapes, layout.dtypes) for identity in identities)

    def _load(self, keys, objects):
        loaded = Bitmap(len(keys))
        coded = []
        for i, (key, obj) in enumerate(zip(keys, objects)):
            info = self._frames.header(self._identity.name(key))
            memory = memory_of(obj)
            if info is not None and len(memory) == kvtool.bound(info["raw_bytes"]):
                if self._load_frame(key, obj, memory):
                    loaded.set(i)
            else:
                coded.append(i)
        tags = self._frames.load([self._item(keys[i], objects[i]) for i in coded])
        for i, tag in zip(coded, tags):
            if tag is not None:
                loaded.set(i)
        done = [keys[i] for i in loaded.get_indices_list()]
        if done:
            self._notify_keys_accessed(done)
        return loaded

    def _load_frame(self, key, obj, memory):
        """For a serde: the frame as it is, after its hash was checked, because a serde that refuses one object fails
        all of its task."""
        name = self._identity.name(key)
        read = self._frames.read(name, memory)
        if read is None:
            return False
        frame, status = read
        try:
            with self._frames.coder.lease() as lease:
                lease.context.verify_frame(frame)
        except kvtool.Error as error:
            self._frames.refuse(name, status, error.finding)
            return False
        obj.set_used_size(len(frame))
        return True

    def _item(self, key, obj):
        context = self._identity.context(key, obj.get_shapes(), obj.get_dtypes())
        return Item(self._identity.name(key), context, memory_of(obj))

    def _on_evict(self, gone):
        known = [(self._keys.pop(name), size) for name, size in gone if name in self._keys]
        if known:
            self._notify_keys_deleted([key for key, _ in known], [size for _, size in known])


def _frame_in(memory):
    """The memory, if it holds one whole frame and nothing else, as a serde leaves it."""
    try:
        return memory if kvtool.frame_info(memory[:128])["frame_bytes"] == len(memory) else None
    except kvtool.Error:
        return None
