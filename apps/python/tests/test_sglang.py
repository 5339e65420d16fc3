# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The SGLang backend through SGLang's own factory, driven as its cache controllers drive one. The host pool is a
stand-in with the members and layouts of SGLang's, which needs a GPU."""

import os
import subprocess
import sys
import threading

import pytest

import engines
import kvtool
from kv_data import DAMAGES, damage, frames_in, plane

reason = engines.prepare("sglang")
if reason:
    pytest.skip(reason, allow_module_level=True)

import torch  # noqa: E402
from sglang.srt.environ import envs  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402

LAYERS, HEADS, DIM, PAGES = 3, 2, 32, 24
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
INTERFACES = ("generic", "v1", "v2")


class Pool:
    """HostKVCache as a storage backend sees it."""

    def __init__(self, layout="page_first", page_size=16, dtype=torch.bfloat16, heads=HEADS, layers=LAYERS):
        self.layout, self.page_size, self.dtype = layout, page_size, dtype
        self.layer_num, self.head_num, self.head_dim = layers, heads, DIM
        tokens = PAGES * page_size
        shape = {
            "layer_first": (2, layers, tokens, heads, DIM),
            "page_first": (2, tokens, layers, heads, DIM),
            "page_first_direct": (2, PAGES, layers, page_size, heads, DIM),
            "page_head": (2, PAGES, heads, page_size, layers, DIM),
        }[layout]
        self.kv_buffer = torch.zeros(shape, dtype=dtype)

    def _view(self, index):
        assert index % self.page_size == 0
        if self.layout == "layer_first":
            return self.kv_buffer[:, :, index : index + self.page_size]
        if self.layout == "page_first":
            return self.kv_buffer[:, index : index + self.page_size]
        page = index // self.page_size
        return self.kv_buffer[:, page : page + 1]

    def get_data_page(self, index, flat=True):
        page = self._view(index)
        return page.flatten() if flat else page

    def get_dummy_flat_data_page(self):
        shape = (2, self.layer_num, self.page_size, self.head_num, self.head_dim)
        return torch.zeros(shape, dtype=self.dtype).flatten()

    def set_from_flat_data_page(self, index, data_page):
        view = self._view(index)
        view.copy_(data_page.reshape(view.shape))

    # ---- for tests ----

    def fill(self, page, seed):
        view = self._view(page * self.page_size)
        size = view.numel() * self.dtype.itemsize
        values = plane(size // (HEADS * DIM), HEADS, DIM, seed).tobytes()
        values = torch.frombuffer(bytearray(values), dtype=torch.uint8)[:size]
        view.copy_(values.view(self.dtype).reshape(view.shape))

    def bytes_at(self, page):
        return self.get_data_page(page * self.page_size).contiguous().view(torch.uint8).numpy().tobytes()


def config_of(options, **fields):
    fields = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": False,
        "is_page_first_layout": False,
        "model_name": "org/toy",
        **fields,
    }
    return HiCacheStorageConfig(extra_config=options, **fields)


def attach(folder, pool, fields=None, **options):
    """Attaches a backend in the order of HiCacheController.attach_storage_backend."""
    extra = {
        "backend_name": "kvtool",
        "module_path": "kvtool.sglang",
        "class_name": "KvtoolStore",
        "interface_v1": 1,
        "dir": str(folder),
        **options,
    }
    backend = StorageBackendFactory.create_backend("dynamic", config_of(extra, **(fields or {})), pool)
    backend.register_mem_pool_host(pool)
    backend.register_mem_host_pool_v2(pool, PoolName.KV)
    backend.on_host_pools_registered()
    return backend


def keys_of(count, start=0):
    return [f"{start + i + 1:064x}" for i in range(count)]


def indices(pool, first_page, count):
    return torch.arange(first_page * pool.page_size, (first_page + count) * pool.page_size)


def store(backend, pool, keys, first_page, interface):
    where = indices(pool, first_page, len(keys))
    if interface == "v1":
        return backend.batch_set_v1(keys, where)
    if interface == "v2":
        return backend.batch_set_v2([PoolTransfer(PoolName.KV, host_indices=where, keys=keys)])[PoolName.KV]
    pages = [pool.get_data_page(int(i)) for i in where[:: pool.page_size]]
    return [backend.batch_set(keys, pages)] * len(keys)


def load(backend, pool, keys, first_page, interface):
    """Returns which pages arrived in the pool."""
    where = indices(pool, first_page, len(keys))
    if interface == "v1":
        return backend.batch_get_v1(keys, where)
    if interface == "v2":
        return backend.batch_get_v2([PoolTransfer(PoolName.KV, host_indices=where, keys=keys)])[PoolName.KV]
    pages = backend.batch_get(keys, [pool.get_dummy_flat_data_page() for _ in keys])
    for page, place in zip(pages, where[:: pool.page_size]):
        if page is not None:
            pool.set_from_flat_data_page(int(place), page)
    return [page is not None for page in pages]


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_pages_come_back_and_are_smaller(tmp_path, layout, interface):
    pool = Pool(layout)
    backend = attach(tmp_path, pool)
    keys = keys_of(5)
    for page in range(5):
        pool.fill(page, page)
    assert store(backend, pool, keys, 0, interface) == [True] * 5
    raw = len(pool.bytes_at(0))
    assert len(frames_in(tmp_path)) == 5 and max(map(os.path.getsize, frames_in(tmp_path))) < 0.95 * raw
    assert backend.batch_exists(keys) == 5 and backend.batch_exists(keys_of(1, 9) + keys) == 0
    assert backend.exists(keys[0]) and not backend.exists("0" * 64)
    assert load(backend, pool, keys, 10, interface) == [True] * 5
    for page in range(5):
        assert pool.bytes_at(10 + page) == pool.bytes_at(page)
    backend.close()


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_page_is_a_miss_alone_and_never_raises(tmp_path, how, interface):
    pool = Pool()
    backend = attach(tmp_path, pool)
    keys = keys_of(4)
    for page in range(4):
        pool.fill(page, page)
    store(backend, pool, keys, 0, interface)
    bad = backend._frames.directory.path(backend._pools["kv"].codec.name(keys[1]))
    damage(bad, how)
    assert load(backend, pool, keys, 10, interface) == [True, False, True, True]
    assert not any(pool.bytes_at(11)), "nothing of a refused page reaches the pool"
    for page in (0, 2, 3):
        assert pool.bytes_at(10 + page) == pool.bytes_at(page)
    assert backend.batch_exists(keys) == 1 and not os.path.exists(bad)
    assert store(backend, pool, keys, 0, interface) == [True] * 4
    assert load(backend, pool, keys, 10, interface) == [True] * 4
    assert pool.bytes_at(11) == pool.bytes_at(1)


@pytest.mark.parametrize(
    "other",
    [
        {"pool": {"layout": "layer_first"}},
        {"pool": {"layout": "page_first_direct"}},
        {"pool": {"dtype": torch.float16}},
        {"pool": {"page_size": 8}},
        {"pool": {"page_size": 32}},
        {"pool": {"heads": 1, "layers": 2 * LAYERS}},
        {"fields": {"model_name": "org/other"}},
        {"fields": {"tp_rank": 1, "tp_size": 2}},
        {"fields": {"pp_rank": 1, "pp_size": 2}},
        {"fields": {"attn_cp_rank": 1, "attn_cp_size": 2}},
        {"options": {"revision": "2"}},
    ],
)
@pytest.mark.parametrize("interface", INTERFACES)
def test_pages_of_another_configuration_are_misses(tmp_path, other, interface):
    """SGLang's file backend names neither element type nor layout, so it reads permuted bytes."""
    pool = Pool()
    backend = attach(tmp_path, pool)
    pool.fill(0, 0)
    store(backend, pool, keys_of(1), 0, interface)
    foreign_pool = Pool(**other.get("pool", {}))
    foreign = attach(tmp_path, foreign_pool, other.get("fields"), **other.get("options", {}))
    assert foreign.batch_exists(keys_of(1)) == 0
    assert load(foreign, foreign_pool, keys_of(1), 10, interface) == [False]
    # The same holds after its own file has replaced the foreign one.
    mine = frames_in(tmp_path)[0]
    path = foreign._frames.directory.path(foreign._pools["kv"].codec.name(keys_of(1)[0]))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.rename(mine, path)
    assert foreign.batch_exists(keys_of(1)) == 0
    assert load(foreign, foreign_pool, keys_of(1), 10, interface) == [False]
    assert not any(foreign_pool.bytes_at(10))


def attach_file(folder, pool):
    backend = StorageBackendFactory.create_backend("file", config_of({"file_storage_path": str(folder)}), pool)
    backend.register_mem_pool_host(pool)
    return backend


def test_sglangs_own_files_are_not_checked(tmp_path):
    """A control: a flipped bit and another layout without this module."""
    pool = Pool("layer_first")
    backend = attach_file(tmp_path, pool)
    for page in range(2):
        pool.fill(page, page)
    store(backend, pool, keys_of(2), 0, "generic")
    permuted = Pool("page_first")
    assert load(attach_file(tmp_path, permuted), permuted, keys_of(2), 0, "generic") == [True, True]
    layer_first = permuted.get_data_page(0, flat=False).transpose(1, 2)
    assert not torch.equal(layer_first.view(torch.int16), pool.get_data_page(0, flat=False).view(torch.int16))
    damage(sorted(tmp_path.iterdir())[0], "flip")
    assert load(backend, pool, keys_of(2), 10, "generic") == [True, True]
    assert [pool.bytes_at(10 + page) == pool.bytes_at(page) for page in range(2)] == [False, True]


def test_restart_serves_what_was_stored(tmp_path):
    script = (
        "import sys; sys.path.insert(0, sys.argv[2]); from test_sglang import *\n"
        "pool = Pool(); backend = attach(sys.argv[1], pool); pool.fill(0, 7)\n"
        "assert store(backend, pool, keys_of(1), 0, 'v1') == [True]"
    )
    here = os.path.dirname(os.path.abspath(__file__))
    subprocess.run([sys.executable, "-c", script, str(tmp_path), here], check=True)
    pool, wanted = Pool(), Pool()
    wanted.fill(0, 7)
    backend = attach(tmp_path, pool)
    assert load(backend, pool, keys_of(1), 0, "v1") == [True]
    assert pool.bytes_at(0) == wanted.bytes_at(0)


def test_mla_pages_are_shared_by_the_ranks_and_states_are_not(tmp_path):
    class Latent:
        """An MLA pool, which has no heads."""

        layout, page_size, dtype, layer_num, kv_lora_rank = "layer_first", 4, torch.bfloat16, 2, 64

        def __init__(self):
            self.pages = torch.zeros((8, 2 * 4 * 64), dtype=self.dtype)

        def get_data_page(self, index, flat=True):
            return self.pages[index // 4]

        def get_dummy_flat_data_page(self):
            return torch.zeros(2 * 4 * 64, dtype=self.dtype)

        def set_from_flat_data_page(self, index, page):
            self.pages[index // 4] = page

    ranks = []
    for rank in range(2):
        pool = Latent()
        backend = attach(tmp_path, pool, {"is_mla_model": True, "tp_rank": rank, "tp_size": 2})
        backend.register_mem_host_pool_v2(pool, PoolName.MAMBA)
        ranks.append((pool, backend))
    (writer, first), (reader, second) = ranks
    writer.pages[0] = torch.arange(512, dtype=torch.float32).to(torch.bfloat16)
    where = torch.arange(0, 4)
    for name in (PoolName.KV, PoolName.MAMBA):
        assert first.batch_set_v2([PoolTransfer(name, host_indices=where, keys=keys_of(1))]) == {name: [True]}
    shared = second.batch_get_v2([PoolTransfer(PoolName.KV, host_indices=where, keys=keys_of(1))])
    assert shared == {PoolName.KV: [True]} and torch.equal(reader.pages[0], writer.pages[0])
    assert second.batch_get_v2([PoolTransfer(PoolName.MAMBA, host_indices=where, keys=keys_of(1))]) == {
        PoolName.MAMBA: [False]
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.uint8, torch.float32])
def test_element_types(tmp_path, dtype):
    pool = Pool(dtype=dtype)
    backend = attach(tmp_path, pool)
    pool.fill(0, 1)
    for interface in INTERFACES:
        assert store(backend, pool, keys_of(1), 0, interface) == [True]
        assert load(backend, pool, keys_of(1), 5, interface) == [True]
        assert pool.bytes_at(5) == pool.bytes_at(0)


def test_page_of_one_token_and_large_batches(tmp_path):
    pool = Pool(page_size=1)
    backend = attach(tmp_path, pool, threads=2)
    keys = keys_of(12)
    for page in range(12):
        pool.fill(page, page)
    assert store(backend, pool, keys, 0, "v1") == [True] * 12
    assert load(backend, pool, keys, 12, "v1") == [True] * 12
    assert [pool.bytes_at(12 + i) for i in range(12)] == [pool.bytes_at(i) for i in range(12)]


def test_targets_that_cannot_be_filled_are_misses(tmp_path):
    pool = Pool("layer_first")
    backend = attach(tmp_path, pool)
    pool.fill(0, 0)
    store(backend, pool, keys_of(1), 0, "generic")
    page = pool.get_dummy_flat_data_page()
    assert backend.get(keys_of(1)[0]) is None
    # contiguous() makes a copy, and values decoded into it would be lost.
    assert backend.get(keys_of(1)[0], pool.get_data_page(0, flat=False)) is None
    assert backend.get(keys_of(1)[0], page) is page
    assert backend.get(keys_of(1)[0], torch.zeros(10, dtype=torch.bfloat16)) is None
    assert backend.set(keys_of(1)[0]) is False
    assert backend.batch_set_v1(keys_of(2), indices(pool, 0, 1)) == [False, False]
    assert backend.batch_get_v1(keys_of(2), indices(pool, 0, 1)) == [False, False]
    unknown = PoolTransfer(PoolName.SWA, host_indices=indices(pool, 0, 1), keys=keys_of(1))
    assert backend.batch_get_v2([unknown]) == {PoolName.SWA: [False]}
    assert backend.batch_set_v2([unknown]) == {PoolName.SWA: [False]}


def test_before_a_pool_is_registered_everything_misses(tmp_path):
    extra = {"backend_name": "k", "module_path": "kvtool.sglang", "class_name": "KvtoolStore", "dir": str(tmp_path)}
    backend = StorageBackendFactory.create_backend("dynamic", config_of(extra), None)
    page = torch.zeros(64, dtype=torch.bfloat16)
    assert backend.set("k", page) is False and backend.get("k", page) is None
    assert backend.batch_exists(["k"]) == 0 and backend.batch_get_v1(["k"], torch.arange(16)) == [False]


def test_hits_of_several_pools(tmp_path):
    pool, states = Pool(), Pool(page_size=16, layers=1)
    backend = attach(tmp_path, pool)
    backend.register_mem_host_pool_v2(states, PoolName.SWA)
    keys = keys_of(6)
    for page in range(6):
        pool.fill(page, page), states.fill(page, 50 + page)
    store(backend, pool, keys[:5], 0, "v2")

    def put(numbers):
        where = torch.cat([indices(states, i, 1) for i in numbers])
        transfer = PoolTransfer(PoolName.SWA, host_indices=where, keys=[keys[i] for i in numbers])
        assert backend.batch_set_v2([transfer]) == {PoolName.SWA: [True] * len(numbers)}

    put([1, 2])
    result = backend.batch_exists_v2(keys)
    assert result.kv_hit_pages == 5 and result.restorable_prefix_pages == [1, 2, 3, 4, 5]
    trailing = PoolTransfer(PoolName.SWA, keys=keys[:2], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    result = backend.batch_exists_v2(keys, [trailing])
    assert result.kv_hit_pages == 3 and result.restorable_prefix_pages == [3]
    assert result.extra_pool_hit_pages == {PoolName.KV: 5, PoolName.SWA: 3}
    every = PoolTransfer(PoolName.SWA, keys=keys, hit_policy=PoolHitPolicy.ALL_PAGES)
    assert backend.batch_exists_v2(keys, [every]).kv_hit_pages == 0
    put([0])
    assert backend.batch_exists_v2(keys, [every]).kv_hit_pages == 3
    groups = PoolTransfer(PoolName.SWA, keys=keys, hit_policy=PoolHitPolicy.BLOCK_GROUPS)
    assert backend.batch_exists_v2(keys, [groups]).kv_hit_pages == 5, "groups never gate the KV hit"


def test_three_threads_at_once(tmp_path):
    """Runs as the engine's prefetch, I/O and backup threads do."""
    pool = Pool()
    backend = attach(tmp_path, pool, threads=2)
    keys = keys_of(8)
    for page in range(8):
        pool.fill(page, page)
    store(backend, pool, keys, 0, "v1")
    failures = []

    def run(work):
        try:
            for turn in range(30):
                work(turn)
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    def look(_):
        assert backend.batch_exists(keys) == 8

    def fetch(_):
        assert load(backend, pool, keys, 12, "v1") == [True] * 8
        assert pool.bytes_at(15) == pool.bytes_at(3)

    def back_up(turn):
        assert store(backend, pool, keys_of(8, 100 * turn + 100), 0, "v1") == [True] * 8

    threads = [threading.Thread(target=run, args=(work,)) for work in (look, fetch, back_up)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures


def test_limit_clear_and_report(tmp_path):
    pool = Pool()
    raw = len(pool.bytes_at(0))
    backend = attach(tmp_path, pool, max_gb=4 * raw / (1 << 30))
    keys = keys_of(20)
    for page in range(20):
        pool.fill(page, page)
        assert store(backend, pool, keys[page : page + 1], page, "v1") == [True]
        assert sum(map(os.path.getsize, frames_in(tmp_path))) <= 4 * raw
    assert backend.exists(keys[-1]) and not backend.exists(keys[0])
    report = backend.report()
    assert report["stored"] == 20 and report["folder_objects"] == len(frames_in(tmp_path)) and report["ratio"] > 1
    assert backend.get_stats() is None, "anything else is an assertion of SGLang's"
    assert backend.clear() is True and frames_in(tmp_path) == [] and not backend.exists(keys[-1])


def test_a_full_disk_is_false_and_no_more(tmp_path, monkeypatch):
    pool = Pool()
    backend = attach(tmp_path, pool)
    pool.fill(0, 0)

    def full(fd, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert store(backend, pool, keys_of(1), 0, "v1") == [False]
    assert store(backend, pool, keys_of(1), 0, "generic") == [False]
    monkeypatch.undo()
    assert frames_in(tmp_path) == [] and os.listdir(tmp_path / "tmp") == []
    report = backend.report()
    assert not report["storing"] and "No space left" in report["store_problem"]
    assert store(backend, pool, keys_of(1), 0, "v1") == [False], "stores wait"
    backend._frames._stores._next_try = 0
    assert store(backend, pool, keys_of(1), 0, "v1") == [True] and backend.report()["storing"]


def test_injected_failures(tmp_path):
    """SGLang's own fault injection wraps the backend."""
    with envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE.override(0.5):
        pool = Pool()
        backend = attach(tmp_path, pool)
    pool.fill(0, 0)
    for number in range(40):
        key = keys_of(1, number)
        store(backend, pool, key, 0, "v1")
        if load(backend, pool, key, 5, "v1") == [True]:
            assert pool.bytes_at(5) == pool.bytes_at(0)


def test_bad_options_stop_the_attach(tmp_path):
    for options in ({"dir": ""}, {"level": "best"}, {"threads": -1}, {"max_gb": "many"}, {"levle": "fast"}):
        with pytest.raises(ValueError):
            attach(tmp_path, Pool(), **options)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_codec_before_another_backend(layout):
    """The codec is placed between the pool and an L3 backend for opaque bytes, such as NIXL's and Mooncake's."""
    from kvtool.sglang import Codec

    pool = Pool(layout)
    codec = Codec(pool, config_of({}), revision="1")
    backend, keys = {}, keys_of(3)
    for page in range(3):
        pool.fill(page, page)
        backend[codec.fingerprint + keys[page]] = codec.encode_at(page * pool.page_size, keys[page])
    assert max(map(len, backend.values())) < 0.95 * codec.page_bytes
    room = bytearray(codec.max_encoded_bytes(codec.page_bytes))
    assert room[: codec.encode_at(0, keys[0], out=room)] == backend[codec.fingerprint + keys[0]]
    for page in range(3):
        codec.decode_at(backend[codec.fingerprint + keys[page]], (10 + page) * pool.page_size, keys[page])
        assert pool.bytes_at(10 + page) == pool.bytes_at(page)
    before = pool.bytes_at(10)
    with pytest.raises(kvtool.Error):
        codec.decode_at(backend[codec.fingerprint + keys[0]], 10 * pool.page_size, keys[1])
    assert pool.bytes_at(10) == before, "a blob that is refused leaves the pool as it was"
    for other in (Codec(Pool(layout, page_size=8), config_of({}), revision="1"), Codec(pool, config_of({}))):
        assert other.fingerprint != codec.fingerprint


def test_the_codec_codes_as_the_store(tmp_path):
    from kvtool.sglang import Codec

    pool = Pool()
    backend = attach(tmp_path, pool)
    pool.fill(0, 0)
    store(backend, pool, keys_of(1), 0, "v1")
    with open(frames_in(tmp_path)[0], "rb") as file:
        assert Codec(pool, config_of({})).encode_at(0, keys_of(1)[0]) == file.read()


def test_pages_in_memory_with_a_profile(tmp_path, root):
    pool = Pool()
    backend = attach("", pool, memory_gb=0.01, level="default", profile=str(root / "testdata/profiles/s260k.kvp"))
    for page in range(3):
        pool.fill(page, page)
    assert all(store(backend, pool, keys_of(3), 0, "v1")) and backend.batch_exists(keys_of(3)) == 3
    assert load(backend, pool, keys_of(3), 10, "v1") == [True] * 3 and pool.bytes_at(12) == pool.bytes_at(2)
    with pytest.raises(ValueError):
        attach(tmp_path, pool, profile="x.kvp")


def test_requests_can_be_left_out(tmp_path):
    pool = Pool()
    backend = attach(tmp_path, pool)
    off = HiCacheStorageExtraInfo(extra_info={"kvtool": False})
    where = indices(pool, 0, 1)
    assert backend.batch_set_v1(keys_of(1), where, off) == [False] and frames_in(tmp_path) == []
    assert backend.batch_set_v1(keys_of(1), where, HiCacheStorageExtraInfo(extra_info={})) == [True]
    assert backend.batch_exists(keys_of(1), off) == 0 and backend.batch_exists(keys_of(1)) == 1
    assert backend.batch_get_v1(keys_of(1), where, off) == [False]
    assert backend.batch_exists_v2(keys_of(1), [], off).kv_hit_pages == 0
