# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""SGLang: a HiCache storage backend that keeps pages compressed and checked in a folder.

    --enable-hierarchical-cache --page-size 64 --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "kvtool", "module_path": "kvtool.sglang",
        "class_name": "KvtoolStore", "interface_v1": 1, "dir": "/var/cache/kv", "max_gb": 200}'

A page is one frame. One that is short, damaged, of another layout or of another model is a miss; nothing raises into the
engine's threads. See docs/engines/sglang.md. Made for SGLang 0.5.23.
"""

import logging

import torch

from kvtool._configuration import Identity, engine_version, size_option
from kvtool._directory import FrameDirectory
from kvtool._frames import FrameStore, Item
from kvtool._sglang_pools import layout_of, memory_of, shape_of

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult

__all__ = ["KvtoolStore"]

logger = logging.getLogger(__name__)

_OPTIONS = {
    "dir": None,
    "level": "fast",
    "threads": 1,
    "max_gb": 0,
    "revision": "",
    "durable": False,
}
# Options of SGLang itself, which come in the same dictionary.
_OF_ENGINE = ("backend_name", "module_path", "class_name", "interface_v1", "enable_metadata_cache", "metadata_ttl",
              "prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token",
              "hicache_storage_pass_prefix_keys")


class KvtoolStore(HiCacheStorage):
    """Options: dir, the folder (required); level: "fast", "default", "high" or "max"; threads that code a batch (0: as
    many as the process may use); max_gb, limit of the folder in GiB; revision of the model's weights; durable."""

    def __init__(self, storage_config, kwargs=None):
        extra = dict(storage_config.extra_config or {})
        options = {name: extra.get(name, default) for name, default in _OPTIONS.items()}
        unknown = sorted(set(extra).difference(_OPTIONS, _OF_ENGINE))
        if unknown:
            raise ValueError(f"kvtool does not know the options {', '.join(unknown)}")
        if not isinstance(options["dir"], str) or not options["dir"]:
            raise ValueError('kvtool needs "dir", a folder, in --hicache-storage-backend-extra-config')
        self._config = _identity_of(storage_config, options["revision"])
        self._tp = [storage_config.tp_rank, storage_config.tp_size]
        directory = FrameDirectory(options["dir"], size_option(options["max_gb"], "max_gb"), options["durable"])
        self._frames = FrameStore(directory, options["level"], options["threads"])
        self._pools = {}  # pool name -> _Pool
        self._complaints = set()

    # ---- attaching ----

    def register_mem_pool_host(self, mem_pool_host):
        super().register_mem_pool_host(mem_pool_host)
        self._register(PoolName.KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(host_pool_name, host_pool)

    def _register(self, name, pool):
        """Element type and layout are known from here on: pages of any other are misses."""
        fields = dict(self._config, pool=str(name), layout=layout_of(pool))
        if name == PoolName.MAMBA:
            fields["tp"] = self._tp  # states are sharded even where the KV of an MLA model is replicated
        self._pools[str(name)] = _Pool(pool, Identity(**fields))

    def close(self):
        self._pools.clear()
        self._frames.coder.close()

    def clear(self):
        try:
            self._frames.directory.clear()
            return True
        except OSError as error:
            logger.warning("kvtool: the folder could not be emptied: %s", error)
            return False

    def get_stats(self):
        """SGLang accepts nothing but its own pages and bandwidths here; report() has the counters."""
        return None

    def report(self):
        return self._frames.report()

    # ---- tensors of one page ----

    def exists(self, key):
        return bool(self.batch_exists([key]))

    def batch_exists(self, keys, extra_info=None):
        return self._leading(PoolName.KV, keys)

    def get(self, key, target_location=None, target_sizes=None):
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        targets = target_locations or [None] * len(keys)
        loaded = self._load(PoolName.KV, keys, targets)
        return [target if done else None for target, done in zip(targets, loaded)]

    def set(self, key, value=None, target_location=None, target_sizes=None):
        return self.batch_set([key], [value])

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        return all(self._store(PoolName.KV, keys, values or [None] * len(keys)))

    # ---- pages by their place in the pool ----

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        return self._load_pages(PoolName.KV, keys, host_indices)

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        return self._store_pages(PoolName.KV, keys, host_indices)

    def batch_get_v2(self, transfers, extra_info=None):
        return {t.name: self._load_pages(t.name, t.keys or [], t.host_indices) for t in transfers}

    def batch_set_v2(self, transfers, extra_info=None):
        return {t.name: self._store_pages(t.name, t.keys or [], t.host_indices) for t in transfers}

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        try:
            return self._exists_v2(keys, pool_transfers or [])
        except Exception:
            self._complain("a lookup failed")
            return PoolTransferResult.empty()

    def _exists_v2(self, keys, transfers):
        pages = self._leading(PoolName.KV, keys)
        hits = {PoolName.KV: pages} if pages else {}
        usable = list(range(1, pages + 1))
        for transfer in transfers:
            if not usable:
                break
            if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                continue  # never in the way of other pools, and never a hit here
            there = [self._has(transfer.name, key) for key in keys[:pages]]
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                count = there.index(False) if False in there else pages
                fits = set(range(1, count + 1))
            else:
                trailing = max(1, len(transfer.keys or []))
                fits = {n for n in range(1, pages + 1) if all(there[max(0, n - trailing) : n])}
                count = max(fits, default=0)
            if count:
                hits[transfer.name] = count
            usable = [n for n in usable if n in fits]
        return PoolTransferResult(usable[-1] if usable else 0, hits, usable)

    # ---- below the interfaces; nothing here raises ----

    def _complain(self, what):
        """Of an exception: loud once, because a pool without flat pages fails with every batch."""
        logger.log(logging.DEBUG if what in self._complaints else logging.ERROR, "kvtool: %s", what, exc_info=True)
        self._complaints.add(what)

    def _has(self, pool_name, key):
        pool = self._pools.get(str(pool_name))
        name = key.encode()
        return pool is not None and self._frames.has(pool.identity.name(name), pool.identity.context(name))

    def _leading(self, pool_name, keys):
        """How many of the keys are there before the first that is not."""
        try:
            return next((i for i, key in enumerate(keys) if not self._has(pool_name, key)), len(keys))
        except Exception:
            self._complain("a lookup failed")
            return 0

    def _items(self, pool, keys, tensors):
        """Items of the tensors that have memory, and their indices."""
        items, indices = [], []
        for index, (key, tensor) in enumerate(zip(keys, tensors)):
            memory = memory_of(tensor)
            if memory is not None:
                name = key.encode()
                items.append(Item(pool.identity.name(name), pool.identity.context(name), memory))
                indices.append(index)
        return items, indices

    def _store(self, pool_name, keys, tensors):
        done = [False] * len(keys)
        try:
            pool = self._pools[str(pool_name)]
            flat = [None if tensor is None else tensor.flatten() for tensor in tensors]
            items, indices = self._items(pool, keys, flat)
            shape = shape_of(pool.pool, pool.bytes_of(items))
            for index, size in zip(indices, self._frames.store(items, shape)):
                done[index] = size is not None
        except Exception:
            self._complain("pages were not stored")
        return done

    def _load(self, pool_name, keys, tensors):
        done = [False] * len(keys)
        try:
            pool = self._pools[str(pool_name)]
            items, indices = self._items(pool, keys, tensors)
            for index, tag in zip(indices, self._frames.load(items)):
                done[index] = tag is not None
        except Exception:
            self._complain("pages were not loaded")
        return done

    def _places(self, pool_name, keys, host_indices):
        """Of the first token of each page, or None where the engine's indices do not fit the keys."""
        pool = self._pools.get(str(pool_name))
        size = getattr(pool.pool, "page_size", 1) or 1 if pool else 0
        if pool is None or host_indices is None or host_indices.numel() != len(keys) * size:
            logger.error("kvtool: indices of %s do not fit %d pages", pool_name, len(keys))
            return None, []
        return pool.pool, [int(i) for i in host_indices[::size]]

    def _store_pages(self, pool_name, keys, host_indices):
        try:
            pool, places = self._places(pool_name, keys, host_indices)
            pages = [pool.get_data_page(place, flat=True) for place in places]
        except Exception:
            self._complain("pages were not stored")
            return [False] * len(keys)
        return self._store(pool_name, keys, pages) if pages else [False] * len(keys)

    def _load_pages(self, pool_name, keys, host_indices):
        done = [False] * len(keys)
        try:
            pool, places = self._places(pool_name, keys, host_indices)
            if not places:
                return done
            one = pool.get_dummy_flat_data_page()
            pages = list(torch.empty((len(places), one.numel()), dtype=one.dtype))
            for index, loaded in enumerate(self._load(pool_name, keys, pages)):
                if loaded:
                    pool.set_from_flat_data_page(places[index], pages[index])
                    done[index] = True
        except Exception:
            self._complain("pages were not loaded")
        return done


class _Pool:
    def __init__(self, pool, identity):
        self.pool, self.identity = pool, identity

    @staticmethod
    def bytes_of(items):
        return len(items[0].raw) if items else 0


def _identity_of(config, revision):
    """What pages of one rank have in common. Pages of an MLA model are the same on every rank of tensor parallelism."""
    fields = {
        "engine": "sglang",
        "version": engine_version("sglang"),
        "model": config.model_name or "",
        "revision": revision,
        "pp": [config.pp_rank, config.pp_size],
        "cp": [getattr(config, "attn_cp_rank", 0), getattr(config, "attn_cp_size", 1)],
        "dcp": [getattr(config, "dcp_rank", 0), getattr(config, "dcp_size", 1)],
        "mla": config.is_mla_model,
    }
    if not config.is_mla_model:
        fields["tp"] = [config.tp_rank, config.tp_size]
    return fields
