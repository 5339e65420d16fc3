# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""SGLang: a HiCache storage backend that keeps pages compressed and checked, and its codec, separately, for other
backends.

    --enable-hierarchical-cache --page-size 64 --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "kvtool", "module_path": "kvtool.sglang",
        "class_name": "KvtoolStore", "interface_v1": 1, "dir": "/var/cache/kv", "max_gb": 200}'

A page is one frame. A short or damaged page, or one of another layout or model, is a miss; no exception reaches the
engine's threads. See docs/engines/sglang.md. Made for SGLang 0.5.23.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult

from . import _codec
from ._arrays import dtype_name
from ._codec import PageLayout
from ._configuration import CodecOptions, StoreOptions, engine_version, is_off
from ._frames import Item

__all__ = ["Codec", "KvtoolStore"]

logger = logging.getLogger(__name__)

# Options of SGLang itself, which come in the same dictionary.
_OF_ENGINE = ("backend_name", "module_path", "class_name", "interface_v1", "enable_metadata_cache", "metadata_ttl",
              "prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token",
              "hicache_storage_pass_prefix_keys")  # fmt: skip
# Everything that determines the order of a page's bytes. Pools of MLA and of states lack some of these.
_FIELDS = ("dtype", "layout", "page_size", "layer_num", "head_num", "head_dim", "v_head_dim", "kv_lora_rank",
           "qk_rope_head_dim", "kv_cache_dim", "storage_format_tag")


class Codec(_codec.Codec):
    """Converts whole pages of one host pool to blobs, for any L3 backend. Call it between get_data_page and the
    backend's put, and between the backend's get and set_from_flat_data_page.

    A blob is one page of one rank, because a pool has the heads of one rank. The engine manages memory, sizes and
    completion; in a shared store, put `fingerprint` in front of the keys. storage_config: SGLang's own. options:
    level, threads, profile, revision.
    """

    def __init__(self, pool: Any, storage_config: Any, pool_name: Any = PoolName.KV, **options: Any) -> None:
        chosen = CodecOptions(**options)
        identity = _identity_of(storage_config, chosen.revision, pool_name, pool)
        super().__init__(chosen.level, threads=chosen.threads, profile=chosen.profile, identity=identity)
        self.pool = pool

    @property
    def page_bytes(self) -> int:
        page = self.pool.get_dummy_flat_data_page()
        return int(page.numel() * page.dtype.itemsize)

    def encode_at(self, index: int, key: _codec.Key, out: Any = None) -> bytes | int:
        """The blob of the page whose first token is at `index` of the pool; with out, its size."""
        memory = _memory_of(self.pool.get_data_page(index, flat=True).flatten())
        if memory is None:
            raise TypeError("kvtool needs pages in host memory")
        coded: bytes | int = self.encode_page(memory, key, layout=_layout_of(self.pool, len(memory)), out=out)
        return coded

    def decode_at(self, blob: Any, index: int, key: _codec.Key) -> None:
        """Writes the page of a blob into the pool. If the blob is refused, the pool is
        unchanged."""
        page = self.pool.get_dummy_flat_data_page()
        memory = _memory_of(page)
        self.decode_page(blob, key, out=memory)
        self.pool.set_from_flat_data_page(index, page)


class KvtoolStore(HiCacheStorage):
    """Options: dir, the folder, and those of StoreOptions."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = dict(storage_config.extra_config or {})
        own = {name: value for name, value in extra.items() if name not in _OF_ENGINE}
        try:
            options = StoreOptions(folder=own.pop("dir", ""), **own)
        except TypeError as error:
            raise ValueError(f"kvtool: --hicache-storage-backend-extra-config: {error}") from None
        self._config, self._revision = storage_config, options.revision
        self._frames = options.store(options.codec({}))
        self._pools: dict[str, _Pool] = {}
        self._complaints: set[str] = set()

    # ---- attaching ----

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._register(PoolName.KV, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        self._register(host_pool_name, host_pool)

    def _register(self, name: Any, pool: Any) -> None:
        """Element type and layout are known from here on: pages of any other type or layout are
        misses."""
        identity = _identity_of(self._config, self._revision, name, pool)
        self._pools[str(name)] = _Pool(pool, self._frames.codec.derive(identity=identity))

    def close(self) -> None:
        self._pools.clear()
        self._frames.close()

    def clear(self) -> bool:
        try:
            self._frames.directory.clear()
            return True
        except OSError as error:
            logger.warning("kvtool: the folder could not be emptied: %s", error)
            return False

    def get_stats(self) -> None:
        """SGLang accepts nothing but its own pages and bandwidths here; report() has the counters."""
        return None

    def report(self) -> dict[str, Any]:
        return self._frames.report()

    # ---- tensors of one page ----

    def exists(self, key: str) -> bool:
        return bool(self.batch_exists([key]))

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        return 0 if _is_off(extra_info) else self._leading(PoolName.KV, keys)

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        targets = target_locations or [None] * len(keys)
        loaded = self._load(PoolName.KV, keys, targets)
        return [target if done else None for target, done in zip(targets, loaded)]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def batch_set(
        self, keys: Sequence[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        return all(self._store(PoolName.KV, keys, values or [None] * len(keys)))

    # ---- pages by their place in the pool ----

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._load_pages(PoolName.KV, keys, host_indices, extra_info)

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._store_pages(PoolName.KV, keys, host_indices, extra_info)

    def batch_get_v2(self, transfers: Iterable[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        return {t.name: self._load_pages(t.name, t.keys or [], t.host_indices, extra_info) for t in transfers}

    def batch_set_v2(self, transfers: Iterable[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        return {t.name: self._store_pages(t.name, t.keys or [], t.host_indices, extra_info) for t in transfers}

    def batch_exists_v2(self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        if not _is_off(extra_info):
            with self._logged("a lookup failed"):
                return self._exists_v2(keys, pool_transfers or [])
        return PoolTransferResult.empty()

    def _exists_v2(self, keys: Sequence[str], transfers: Sequence[Any]) -> Any:
        pages = self._leading(PoolName.KV, keys)
        hits = {PoolName.KV: pages} if pages else {}
        usable = list(range(1, pages + 1))
        for transfer in transfers:
            if not usable:
                break
            if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                continue  # its misses do not limit other pools, and this store has no hits for it
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

    # ---- implementation; nothing here raises ----

    @contextlib.contextmanager
    def _logged(self, what: str) -> Iterator[None]:
        """Logs an exception instead of raising it, as an error only once: a pool without flat pages fails with every
        batch."""
        try:
            yield
        except Exception:
            level = logging.DEBUG if what in self._complaints else logging.ERROR
            logger.log(level, "kvtool: %s", what, exc_info=True)
            self._complaints.add(what)

    def _has(self, pool_name: Any, key: str) -> bool:
        pool = self._pools.get(str(pool_name))
        return pool is not None and self._frames.has(pool.codec.name(key), pool.codec.context(key))

    def _leading(self, pool_name: Any, keys: Sequence[str]) -> int:
        """Returns the number of leading keys that are stored."""
        with self._logged("a lookup failed"):
            return next((i for i, key in enumerate(keys) if not self._has(pool_name, key)), len(keys))
        return 0

    def _items(self, pool: _Pool, keys: Sequence[str], tensors: Iterable[Any]) -> tuple[list[Item], list[int]]:
        """Returns the items of the tensors that have memory, and their indices."""
        items, indices = [], []
        for index, (key, tensor) in enumerate(zip(keys, tensors)):
            memory = _memory_of(tensor)
            if memory is not None:
                items.append(Item(pool.codec.name(key), pool.codec.context(key), memory))
                indices.append(index)
        return items, indices

    def _store(self, pool_name: Any, keys: Sequence[str], tensors: Sequence[Any]) -> list[bool]:
        done = [False] * len(keys)
        with self._logged("pages were not stored"):
            pool = self._pools[str(pool_name)]
            flat = [None if tensor is None else tensor.flatten() for tensor in tensors]
            items, indices = self._items(pool, keys, flat)
            layout = _layout_of(pool.pool, len(items[0].raw) if items else 0)
            for index, size in zip(indices, self._frames.store(items, layout)):
                done[index] = size is not None
        return done

    def _load(self, pool_name: Any, keys: Sequence[str], tensors: Sequence[Any]) -> list[bool]:
        done = [False] * len(keys)
        with self._logged("pages were not loaded"):
            pool = self._pools[str(pool_name)]
            items, indices = self._items(pool, keys, tensors)
            for index, tag in zip(indices, self._frames.load(items)):
                done[index] = tag is not None
        return done

    def _places(
        self, pool_name: Any, keys: Sequence[str], host_indices: Any, extra_info: Any
    ) -> tuple[Any, list[int]]:
        """Returns the pool and the place of each page's first token; none if the request is off or its indices do not
        fit."""
        if _is_off(extra_info):
            return None, []
        pool = self._pools.get(str(pool_name))
        size = getattr(pool.pool, "page_size", 1) or 1 if pool else 0
        if pool is None or host_indices is None or host_indices.numel() != len(keys) * size:
            logger.error("kvtool: indices of %s do not fit %d pages", pool_name, len(keys))
            return None, []
        return pool.pool, [int(i) for i in host_indices[::size]]

    def _store_pages(self, pool_name: Any, keys: Sequence[str], host_indices: Any, extra_info: Any) -> list[bool]:
        with self._logged("pages were not stored"):
            pool, places = self._places(pool_name, keys, host_indices, extra_info)
            if places:
                return self._store(pool_name, keys, [pool.get_data_page(place, flat=True) for place in places])
        return [False] * len(keys)

    def _load_pages(self, pool_name: Any, keys: Sequence[str], host_indices: Any, extra_info: Any) -> list[bool]:
        done = [False] * len(keys)
        with self._logged("pages were not loaded"):
            pool, places = self._places(pool_name, keys, host_indices, extra_info)
            if not places:
                return done
            one = pool.get_dummy_flat_data_page()
            pages = list(torch.empty((len(places), one.numel()), dtype=one.dtype))
            for index, loaded in enumerate(self._load(pool_name, keys, pages)):
                if loaded:
                    pool.set_from_flat_data_page(places[index], pages[index])
                    done[index] = True
        return done


class _Pool(NamedTuple):
    pool: Any
    codec: _codec.Codec


def _is_off(extra_info: Any) -> bool:
    return is_off(getattr(extra_info, "extra_info", None))


def _identity_of(config: Any, revision: str, pool_name: Any, pool: Any) -> dict[str, Any]:
    """Everything that determines the bytes of a pool's pages. Pages of an MLA model are the same on every rank of
    tensor parallelism, but those of states are not, because states are sharded even there."""
    fields = {
        "engine": "sglang",
        "version": engine_version("sglang"),
        "model": config.model_name or "",
        "revision": revision,
        "pp": [config.pp_rank, config.pp_size],
        "cp": [getattr(config, "attn_cp_rank", 0), getattr(config, "attn_cp_size", 1)],
        "dcp": [getattr(config, "dcp_rank", 0), getattr(config, "dcp_size", 1)],
        "mla": config.is_mla_model,
        "pool": str(pool_name),
        "layout": _fields_of(pool),
    }
    if pool_name == PoolName.MAMBA or not config.is_mla_model:
        fields["tp"] = [config.tp_rank, config.tp_size]
    return fields


# ---- layout and memory of host pools ----


def _fields_of(pool: Any) -> dict[str, str]:
    fields = {name: str(getattr(pool, name, None)) for name in _FIELDS}
    fields["pool"] = type(pool).__name__
    return fields


def _memory_of(tensor: Any) -> memoryview | None:
    """Returns the bytes of a tensor on the host without a copy; None if that is impossible, because values written to
    a copy would be lost."""
    if tensor is None or not tensor.is_contiguous() or tensor.device.type != "cpu":
        return None
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def _layout_of(pool: Any, page_bytes: int) -> PageLayout:
    """Pages are planes of K and V, whose axes depend on the layout. Rows are neighbouring tokens wherever the order
    allows."""
    dtype = dtype_name(getattr(pool, "dtype", None))
    sizes: list[Any] = [getattr(pool, name, None) for name in ("layer_num", "page_size", "head_num", "head_dim")]
    if dtype is None or not all(isinstance(size, int) and size > 0 for size in sizes):
        return PageLayout(dtype)
    layers, tokens, heads, dim = sizes
    shapes: dict[Any, tuple[int, ...]] = {
        "layer_first": (2 * layers * tokens, heads, dim),  # [2, layer, token, head, dim]
        "page_first_direct": (2 * layers * tokens, heads, dim),
        "page_first": (2 * tokens, layers * heads, dim),  # [2, token, layer, head, dim]
        "page_head": (2 * heads * tokens, layers, dim),  # [2, head, token, layer, dim]
    }
    shape = shapes.get(getattr(pool, "layout", None))
    itemsize = pool.dtype.itemsize
    if shape is None or math.prod(shape) * itemsize != page_bytes:
        return PageLayout(dtype)
    return PageLayout(dtype, shape)
