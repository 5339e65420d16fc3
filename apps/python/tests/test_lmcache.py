# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The LMCache adapter and serde through LMCache's own L1 manager, wrapper, storage manager and
controllers."""

import argparse
import json
import os
import select
import threading
import time

import pytest

import engines
from kv_data import DAMAGES, NEWER, damage, frames_in, make_newer, noise, plane

reason = engines.prepare("lmcache")
if reason:
    pytest.skip(reason, allow_module_level=True)

import torch  # noqa: E402
from lmcache.v1.distributed.api import (  # noqa: E402
    GroupedObjectKeys,
    MemoryLayoutDesc,
    ObjectKey,
    PrefetchTaskSpec,
)
from lmcache.v1.distributed.config import (  # noqa: E402
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.error import L1Error  # noqa: E402
from lmcache.v1.distributed.l1_manager import L1Manager  # noqa: E402
from lmcache.v1.distributed.l2_adapters import create_l2_adapter  # noqa: E402
from lmcache.v1.distributed.l2_adapters.config import parse_args_to_l2_adapters_config  # noqa: E402
from lmcache.v1.distributed.l2_adapters.serde_wrapper import SerdeL2AdapterWrapper  # noqa: E402
from lmcache.v1.distributed.serde import create_serde_processor  # noqa: E402
from lmcache.v1.distributed.storage_manager import StorageManager  # noqa: E402
from lmcache.v1.platform import consume_fd  # noqa: E402

import kvtool  # noqa: E402

LAYERS, TOKENS, HEADS, DIM = 2, 64, 4, 32


def layout_of(tokens=TOKENS, dtype=torch.bfloat16, layers=LAYERS):
    return MemoryLayoutDesc(shapes=[torch.Size([2, layers, tokens, HEADS * DIM])], dtypes=[dtype])


LAYOUT = layout_of()
HYBRID = MemoryLayoutDesc(
    shapes=[torch.Size([2, 1, 64, 128]), torch.Size([1, 64, 96])], dtypes=[torch.bfloat16, torch.float32]
)
MLA = MemoryLayoutDesc(shapes=[torch.Size([1, 64, 576])], dtypes=[torch.bfloat16])
FLOAT8 = layout_of(dtype=torch.float8_e4m3fn)


def bytes_of(layout):
    return sum(shape.numel() * dtype.itemsize for shape, dtype in zip(layout.shapes, layout.dtypes))


RAW = bytes_of(LAYOUT)


def key_of(**fields):
    fields = {"chunk_hash": os.urandom(16), "model_name": "org/toy", "kv_rank": 0x01000100, **fields}
    return ObjectKey(**fields)


@pytest.fixture(scope="module")
def l1():
    config = L1MemoryManagerConfig(size_in_bytes=64 << 20, use_lazy=False)
    return L1Manager(L1ManagerConfig(memory_config=config))


class Adapter:
    """Creates an adapter as the storage manager does: the adapter first, then its serde."""

    def __init__(self, l1, folder, serde=None, type_="plugin", **params):
        spec = {"type": type_, "base_path": str(folder)}
        if type_ == "plugin":
            spec = {
                "type": "plugin",
                "module_path": "kvtool.lmcache",
                "class_name": "KvtoolAdapter",
                "adapter_params": {"base_path": str(folder), **params},
            }
        elif type_ == "mock":
            spec = {"type": "mock", "max_size_gb": 1, "mock_bandwidth_gb": 10}
        if serde is not None:
            spec["serde"] = {"type": "kvtool", **serde}
        config = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(spec)])).adapters[0]
        self.l1 = l1
        self.inner = self.adapter = create_l2_adapter(config, l1.get_l1_memory_desc())
        if config.serde_config is not None:
            processor = create_serde_processor(config.serde_config)
            self.adapter = SerdeL2AdapterWrapper(inner=self.inner, serde=processor, l1_manager=l1)
        self.adapter.set_backend_identity("test")
        self.taken = []

    def objects(self, count, layout=LAYOUT, seed=None, keys=None):
        """Keys and objects of the L1: zeros, or numbers from `seed` on."""
        temporary = [key_of() for _ in range(count)]
        reserved = self.l1.reserve_write(temporary, [False] * count, layout, tag="test")
        assert all(error == L1Error.SUCCESS for error, _ in reserved.values())
        self.taken += temporary
        objects = [reserved[key][1] for key in temporary]
        for i, obj in enumerate(objects):
            memory = memoryview(obj.byte_array).cast("B")
            memory[:] = bytes(len(memory)) if seed is None else content(seed + i, len(memory))
        return keys or [key_of() for _ in range(count)], objects

    def store(self, keys, objects):
        task = self.adapter.submit_store_task(keys, objects)
        return self.wait(self.adapter.get_store_event_fd(), lambda: self.adapter.pop_completed_store_tasks().get(task))

    def lookup(self, keys, layout=LAYOUT):
        task = self.adapter.submit_lookup_and_lock_task(keys, {0: layout} if layout else {})
        found = self.wait(
            self.adapter.get_lookup_and_lock_event_fd(), lambda: self.adapter.query_lookup_and_lock_result(task)
        )
        self.adapter.submit_unlock(keys)
        return [found.test(i) for i in range(len(keys))]

    def load(self, keys, objects):
        task = self.adapter.submit_load_task(keys, objects)
        done = self.wait(self.adapter.get_load_event_fd(), lambda: self.adapter.query_load_result(task))
        assert self.adapter.query_load_result(task) is None, "results are given once"
        return [done.test(i) for i in range(len(keys))]

    @staticmethod
    def wait(fd, result):
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        assert poll.poll(30000), "no event"
        consume_fd(fd)
        found = result()
        assert found is not None
        return found

    def close(self):
        self.adapter.close()
        self.l1.finish_write_and_delete(self.taken, tag="test")


def content(seed, size):
    """Like a chunk: K and V planes of bf16. Every byte counts, including those of NaNs and negative
    zeros."""
    tokens = -(-size // (HEADS * DIM * 2))
    return plane(tokens, HEADS, DIM, seed).tobytes()[:size]


def held(obj):
    return bytes(memoryview(obj.byte_array).cast("B"))


MODES = {"adapter": None, "serde": {"max_workers": 2}}


@pytest.fixture(params=MODES)
def adapter(request, l1, tmp_path):
    adapter = Adapter(l1, tmp_path, MODES[request.param])
    yield adapter
    adapter.close()


def test_objects_come_back_and_are_smaller(adapter, tmp_path):
    keys, objects = adapter.objects(3, seed=0)
    result = adapter.store(keys, objects)
    sizes = [os.path.getsize(path) for path in frames_in(tmp_path)]
    assert result.is_successful() and result.bytes_transferred() == sum(sizes)
    assert max(sizes) < 0.9 * RAW
    assert adapter.lookup(keys) == [True] * 3 and adapter.lookup([key_of()]) == [False]
    _, targets = adapter.objects(3)
    assert adapter.load(keys, targets) == [True] * 3
    assert [held(obj) for obj in targets] == [held(obj) for obj in objects]
    assert adapter.adapter.get_usage().total_bytes_used == sum(sizes)


def test_what_is_there_is_not_stored_again(adapter):
    keys, objects = adapter.objects(2, seed=0)
    assert adapter.store(keys, objects).bytes_transferred() > 0
    again = adapter.store(keys, objects)
    assert again.is_successful() and again.bytes_transferred() == 0


@pytest.mark.parametrize("how", DAMAGES)
def test_one_damaged_object_is_one_miss_and_is_repaired(adapter, tmp_path, how):
    keys, objects = adapter.objects(4, seed=0)
    adapter.store(keys, objects)
    inner = adapter.inner
    bad = inner._frames.directory.path(inner._name(keys[1]))
    damage(bad, how)
    _, targets = adapter.objects(4)
    assert adapter.load(keys, targets) == [True, False, True, True]
    for i in (0, 2, 3):
        assert held(targets[i]) == held(objects[i])
    assert adapter.lookup(keys) == [True, False, True, True]
    # An object that is stored again is written, not skipped for ever.
    result = adapter.store(keys, objects)
    assert result.is_successful() and result.bytes_transferred() == os.path.getsize(bad)
    assert adapter.load(keys, targets) == [True] * 4
    assert held(targets[1]) == held(objects[1])


@pytest.mark.parametrize("layout", [HYBRID, MLA, FLOAT8, layout_of(tokens=7), layout_of(tokens=1)])
def test_layouts(adapter, layout):
    """Several groups and element types, MLA, fp8, and the partial chunk at the end of a prompt."""
    keys, objects = adapter.objects(2, layout, seed=5)
    assert adapter.store(keys, objects).is_successful()
    assert adapter.lookup(keys, layout) == [True, True]
    _, targets = adapter.objects(2, layout)
    assert adapter.load(keys, targets) == [True, True]
    assert [held(obj) for obj in targets] == [held(obj) for obj in objects]


def test_noise_needs_no_more_than_the_bound(adapter, tmp_path):
    keys, objects = adapter.objects(1)
    memoryview(objects[0].byte_array).cast("B")[:] = noise(RAW, 1).tobytes()
    assert adapter.store(keys, objects).bytes_transferred() == RAW + 128
    _, targets = adapter.objects(1)
    assert adapter.load(keys, targets) == [True] and held(targets[0]) == held(objects[0])


@pytest.mark.parametrize(
    "layout", [layout_of(dtype=torch.float16), layout_of(layers=1, tokens=2 * TOKENS), layout_of(tokens=32)]
)
def test_stale_layouts_are_misses(adapter, layout):
    keys, objects = adapter.objects(2, seed=0)
    adapter.store(keys, objects)
    assert adapter.lookup(keys, layout) == [False, False], "the bytes would mean something else"
    _, targets = adapter.objects(2, layout)
    assert adapter.load(keys, targets) == [False, False]


def test_stale_objects_are_replaced(adapter):
    """If a key is stored with another layout, the store writes it instead of skipping it for
    ever."""
    keys, objects = adapter.objects(1, seed=0)
    adapter.store(keys, objects)
    other = layout_of(dtype=torch.float16)
    _, newer = adapter.objects(1, other, seed=9)
    assert adapter.store(keys, newer).bytes_transferred() > 0
    assert adapter.lookup(keys, other) == [True] and adapter.lookup(keys) == [False]
    _, targets = adapter.objects(1, other)
    assert adapter.load(keys, targets) == [True] and held(targets[0]) == held(newer[0])


@pytest.mark.parametrize(
    "other",
    [{"model_name": "org/other"}, {"kv_rank": 0x02000201}, {"object_group_id": 1}, {"cache_salt": "tenant .2"}],
)
def test_objects_of_other_keys_are_misses(adapter, tmp_path, other):
    """The same if files were swapped: chunk hashes name tokens, not bytes."""
    key = key_of()
    foreign = key_of(chunk_hash=key.chunk_hash, **other)
    _, objects = adapter.objects(2, seed=0)
    adapter.store([key], objects[:1])
    assert adapter.lookup([foreign], None) == [False]
    adapter.store([foreign], objects[1:])
    first, second = frames_in(tmp_path)
    os.rename(first, first + "x"), os.rename(second, first), os.rename(first + "x", second)
    _, targets = adapter.objects(2)
    assert adapter.load([key], targets[:1]) == [False]
    assert adapter.load([foreign], targets[1:]) == [False]


def test_another_revision_is_a_miss_and_a_restart_is_not(l1, tmp_path):
    for mode in MODES.values():
        first = Adapter(l1, tmp_path, mode and {**mode, "revision": "a"}, revision="a")
        keys, objects = first.objects(2, seed=0)
        first.store(keys, objects)
        first.close()
        again = Adapter(l1, tmp_path, revision="a")
        _, targets = again.objects(2)
        assert again.lookup(keys) == [True, True] and again.load(keys, targets) == [True, True]
        again.close()
    other = Adapter(l1, tmp_path, revision="b")
    _, targets = other.objects(2)
    assert other.load(keys, targets) == [False, False]
    other.close()


def test_adapter_and_serde_write_the_same_files(l1, tmp_path):
    keys = [key_of(), key_of()]
    files = []
    for mode in MODES:
        adapter = Adapter(l1, tmp_path / mode, MODES[mode])
        _, objects = adapter.objects(2, seed=3)
        adapter.store(keys, objects)
        files.append({os.path.basename(path): open(path, "rb").read() for path in frames_in(tmp_path / mode)})
        adapter.close()
    assert files[0] == files[1]


def test_names_of_any_length(adapter):
    """Salts may contain dots and spaces, and model names may be long; file names have at most 255
    bytes."""
    keys = [
        key_of(model_name="org/" + "very-long-name" * 30, cache_salt="t" * 128),
        key_of(cache_salt="a b.c"),
        key_of(chunk_hash=b"\x00" * 64),
        key_of(chunk_hash=b"x"),
    ]
    _, objects = adapter.objects(4, seed=0)
    assert adapter.store(keys, objects).is_successful()
    _, targets = adapter.objects(4)
    assert adapter.load(keys, targets) == [True] * 4


def test_delete_and_listeners(l1, tmp_path):
    adapter = Adapter(l1, tmp_path)
    seen = []

    class Listener:
        def on_l2_keys_stored(self, keys, sizes):
            seen.append(("stored", list(keys), list(sizes)))

        def on_l2_keys_accessed(self, keys):
            seen.append(("accessed", list(keys)))

        def on_l2_keys_deleted(self, keys):
            seen.append(("deleted", list(keys)))

    adapter.adapter.register_listener(Listener())
    keys, objects = adapter.objects(2, seed=0)
    adapter.store(keys, objects)
    adapter.load(keys[:1], objects[:1])
    sizes = {os.path.getsize(path) for path in frames_in(tmp_path)}
    adapter.adapter.delete([keys[1], key_of()])
    assert [event[0] for event in seen] == ["stored", "accessed", "deleted"]
    assert set(seen[0][2]) == sizes and seen[1][1] == keys[:1] and seen[2][1] == [keys[1]]
    assert adapter.lookup(keys) == [True, False]
    assert adapter.adapter.get_usage().bytes_by_cache_salt[""] == os.path.getsize(frames_in(tmp_path)[0])
    adapter.close()


def test_accounting_follows_refusals_and_replacements(l1, tmp_path):
    adapter = Adapter(l1, tmp_path)
    keys, objects = adapter.objects(3, seed=0)
    adapter.store(keys, objects)
    damage(adapter.inner._frames.directory.path(adapter.inner._name(keys[0])), "flip")
    _, targets = adapter.objects(3)
    adapter.load(keys, targets)
    other = layout_of(dtype=torch.float16)
    _, newer = adapter.objects(1, other, seed=9)
    adapter.store(keys[1:2], newer)
    usage = adapter.adapter.get_usage()
    assert usage.bytes_by_cache_salt[""] == usage.total_bytes_used == sum(map(os.path.getsize, frames_in(tmp_path)))
    adapter.close()


@pytest.mark.parametrize("workers, threads", [(1, 1), (3, 2)])
def test_large_tasks_are_shared_by_the_workers(l1, tmp_path, workers, threads):
    """Objects of 4 MiB, so that a task has several parts, next to tasks of one object."""
    large = layout_of(tokens=4096)
    adapter = Adapter(l1, tmp_path, workers=workers, threads=threads)
    keys, objects = adapter.objects(5, large, seed=0)
    damaged = 3
    assert adapter.store(keys, objects).is_successful()
    damage(adapter.inner._frames.directory.path(adapter.inner._name(keys[damaged])), "flip")
    _, targets = adapter.objects(5, large)
    assert adapter.load(keys, targets) == [i != damaged for i in range(5)]
    assert all(held(targets[i]) == held(objects[i]) for i in range(5) if i != damaged)
    assert adapter.adapter.submit_store_task([], []) is not None, "a task of nothing ends, too"
    Adapter.wait(adapter.adapter.get_store_event_fd(), adapter.adapter.pop_completed_store_tasks)
    adapter.close()


def test_folder_keeps_to_its_limit(l1, tmp_path):
    adapter = Adapter(l1, tmp_path, max_gb=4.5 * RAW / (1 << 30))
    assert adapter.adapter.supports_global_eviction
    keys, objects = adapter.objects(10)
    for i, obj in enumerate(objects):
        memoryview(obj.byte_array).cast("B")[:] = noise(RAW, i).tobytes()
        assert adapter.store(keys[i : i + 1], objects[i : i + 1]).is_successful()
        assert sum(map(os.path.getsize, frames_in(tmp_path))) <= 4.5 * RAW
    assert adapter.lookup(keys) == [False] * 6 + [True] * 4
    usage = adapter.adapter.get_usage()
    assert usage.total_bytes_used == 4 * (RAW + 128) == usage.bytes_by_cache_salt[""]
    assert 0.8 < usage.usage_fraction < 1
    adapter.close()


class Ledger:
    """Tracks what LMCache believes to be stored, from its notifications: a key may not be stored twice, nor removed
    before it was stored."""

    def __init__(self):
        self.sizes, self.wrong = {}, []

    def on_l2_keys_stored(self, keys, sizes):
        self.wrong += [key for key in keys if key in self.sizes]
        self.sizes.update(zip(keys, sizes))

    def on_l2_keys_accessed(self, keys):
        pass

    def on_l2_keys_deleted(self, keys):
        self.wrong += [key for key in keys if self.sizes.pop(key, None) is None]


def test_what_a_store_evicted_is_not_told_of(l1, tmp_path):
    """If a task has more objects than the folder holds, its own writes evict its first objects."""
    adapter = Adapter(l1, tmp_path, max_gb=4.5 * RAW / (1 << 30))
    ledger = Ledger()
    adapter.adapter.register_listener(ledger)
    keys, objects = adapter.objects(10)
    for i, obj in enumerate(objects):
        memoryview(obj.byte_array).cast("B")[:] = noise(RAW, i).tobytes()
    assert adapter.store(keys, objects).is_successful()
    assert [key in ledger.sizes for key in keys] == adapter.lookup(keys) and len(ledger.sizes) == 4
    adapter.store([keys[0], keys[0]], [objects[0], objects[0]])  # evicts another; the same key twice
    assert [key in ledger.sizes for key in keys] == adapter.lookup(keys)
    usage = adapter.adapter.get_usage()
    assert usage.bytes_by_cache_salt[""] == usage.total_bytes_used == sum(ledger.sizes.values()) == 4 * (RAW + 128)
    assert not ledger.wrong
    adapter.close()


def test_lmcache_is_told_the_truth_by_many_threads(l1, tmp_path):
    """Stores, loads and deletes the same keys at once: at the end LMCache's records agree with the folder."""
    adapter = Adapter(l1, tmp_path, max_gb=6.5 * RAW / (1 << 30), workers=4)
    ledger = Ledger()
    adapter.adapter.register_listener(ledger)
    keys, objects = adapter.objects(12)
    for i, obj in enumerate(objects):
        memoryview(obj.byte_array).cast("B")[:] = noise(RAW, i).tobytes()
    _, targets = adapter.objects(12)

    def run(seed):
        for step in range(40):
            chosen = [(seed * 5 + step * 7 + i) % 12 for i in range(3)]
            kind = (seed + step) % 4
            if kind < 2:
                adapter.adapter.submit_store_task([keys[i] for i in chosen], [objects[i] for i in chosen])
            elif kind == 2:
                adapter.adapter.submit_load_task([keys[i] for i in chosen], [targets[i] for i in chosen])
            else:
                adapter.adapter.delete([keys[i] for i in chosen])

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for workers in adapter.inner._workers.values():
        workers.wait_idle()
    assert not ledger.wrong
    assert [key in ledger.sizes for key in keys] == adapter.lookup(keys) and any(adapter.lookup(keys))
    assert sum(ledger.sizes.values()) == sum(map(os.path.getsize, frames_in(tmp_path)))
    assert adapter.adapter.get_usage().bytes_by_cache_salt[""] == sum(ledger.sizes.values())
    adapter.close()


def test_a_listener_may_wait_for_a_thread_that_tells(l1, tmp_path):
    """An eviction policy with its own lock, which it also holds while it deletes."""
    adapter = Adapter(l1, tmp_path)
    lock = threading.Lock()

    class Policy(Ledger):
        def on_l2_keys_stored(self, keys, sizes):
            with lock:
                super().on_l2_keys_stored(keys, sizes)

    adapter.adapter.register_listener(Policy())
    keys, objects = adapter.objects(2, seed=0)

    def delete():
        for _ in range(200):
            with lock:
                adapter.adapter.delete(keys)

    thread = threading.Thread(target=delete, daemon=True)
    thread.start()
    for _ in range(50):
        adapter.store(keys, objects)
    thread.join(timeout=30)
    assert not thread.is_alive(), "a deadlock"
    adapter.close()


@pytest.mark.parametrize("what", NEWER)
def test_objects_of_a_newer_version_are_misses_and_stay(adapter, what):
    keys, objects = adapter.objects(3, seed=0)
    adapter.store(keys, objects)
    path = adapter.inner._frames.directory.path(adapter.inner._name(keys[1]))
    make_newer(path, what)
    newer = open(path, "rb").read()
    _, targets = adapter.objects(3)
    for _ in range(2):
        assert adapter.load(keys, targets) == [True, False, True]
        assert adapter.lookup(keys) == [True, False, True]
        again = adapter.store(keys, objects)
        assert again.is_successful() and again.bytes_transferred() == 0
        assert open(path, "rb").read() == newer


def test_a_full_disk_shows_in_the_status(adapter, monkeypatch):
    keys, objects = adapter.objects(2, seed=0)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert not adapter.store(keys, objects).is_successful()
    status = adapter.adapter.report_status()
    assert not status["is_healthy"] and "No space left" in status["store_problem"]
    monkeypatch.undo()
    assert not adapter.store(keys, objects).is_successful(), "stores wait"
    adapter.inner._frames._stores._next_try = 0
    assert adapter.store(keys, objects).is_successful() and adapter.adapter.report_status()["is_healthy"]
    _, targets = adapter.objects(2)
    assert adapter.load(keys, targets) == [True, True]


def test_status(adapter, tmp_path):
    keys, objects = adapter.objects(2, seed=0)
    adapter.store(keys, objects)
    status = adapter.adapter.report_status()
    assert status["is_healthy"] and status["type"] == "KvtoolAdapter" and status["folder_objects"] == 2
    assert status["folder_bytes"] == sum(map(os.path.getsize, frames_in(tmp_path)))


def test_bad_options_stop_the_start(l1, tmp_path):
    for params in ({"levle": "fast"}, {"level": "best"}, {"threads": -1}, {"workers": 0}, {"max_gb": "1"}, {"head_dim": 0}):
        with pytest.raises(ValueError):
            Adapter(l1, tmp_path, **params)
    with pytest.raises(ValueError):
        Adapter(l1, tmp_path, {"levle": "fast"})


def test_serde_over_the_mock_adapter(l1, tmp_path):
    """An adapter of LMCache that takes objects of any size. (LMCache's fs never loads one that is smaller than the
    bound; this module's adapter exists for that reason.)"""
    Adapter(l1, tmp_path).close()  # registers the serde, as a plugin adapter earlier in the list does
    adapter = Adapter(l1, tmp_path, {"threads": 2}, type_="mock")
    keys, objects = adapter.objects(3, seed=0)
    assert adapter.store(keys, objects).bytes_transferred() < 3 * 0.9 * RAW
    _, targets = adapter.objects(3)
    assert adapter.load(keys, targets) == [True] * 3
    assert [held(obj) for obj in targets] == [held(obj) for obj in objects]
    adapter.close()


def test_lmcaches_own_files_are_not_checked(l1, tmp_path):
    """Control: LMCache's own files do not detect the same damage."""
    adapter = Adapter(l1, tmp_path, type_="fs")
    keys, objects = adapter.objects(2, seed=0)
    adapter.store(keys, objects)
    path = sorted(os.path.join(tmp_path, name) for name in os.listdir(tmp_path))[0]
    damage(path, "flip")
    _, targets = adapter.objects(2)
    assert adapter.load(keys, targets) == [True, True]
    assert sum(held(target) != held(obj) for target, obj in zip(targets, objects)) == 1
    adapter.close()


def test_serde_over_lmcaches_files_never_loads(l1, tmp_path):
    """LMCache's own behaviour, which the documentation warns about: if this test fails, the warning can be
    removed."""
    Adapter(l1, tmp_path).close()
    adapter = Adapter(l1, tmp_path, {}, type_="fs")
    keys, objects = adapter.objects(2, seed=0)
    assert adapter.store(keys, objects).is_successful() and adapter.lookup(keys) == [True, True]
    _, targets = adapter.objects(2)
    assert adapter.load(keys, targets) == [False, False]
    adapter.close()


def test_serde_by_itself(l1):
    """The bound is the raw size plus the header; sizes are Python integers; padding is ignored."""
    from kvtool.lmcache import KvtoolDeserializer, KvtoolSerializer

    helper = Adapter(l1, "/tmp", type_="mock")
    serializer = KvtoolSerializer(kvtool.Codec())
    assert serializer.estimate_serialized_size(LAYOUT) == RAW + 128
    assert serializer.estimate_serialized_size(HYBRID) == bytes_of(HYBRID) + 128
    assert type(serializer.estimate_serialized_size(HYBRID)) is int
    (key,), (source,) = helper.objects(1, seed=0)
    bound = MemoryLayoutDesc(shapes=[torch.Size([RAW + 128])], dtypes=[torch.uint8])
    _, (temporary,) = helper.objects(1, bound)
    memoryview(temporary.byte_array).cast("B")[:] = b"\xaa" * (RAW + 128)  # a stale tail
    size = serializer.serialize(source, temporary, key)
    assert type(size) is int and size < RAW
    deserializer = KvtoolDeserializer(kvtool.Codec())
    _, (target,) = helper.objects(1)
    deserializer.deserialize(temporary, target, key)
    assert held(target) == held(source)
    with pytest.raises(kvtool.Error):
        deserializer.deserialize(temporary, target, key_of())
    helper.close()


def test_two_writers_on_one_folder(l1, tmp_path):
    adapters = [Adapter(l1, tmp_path, level=level) for level in ("fast", "high")]
    for _ in range(5):
        keys = [key_of() for _ in range(4)]
        owned = [adapter.objects(4, seed=0)[1] for adapter in adapters]
        threads = [
            threading.Thread(target=adapter.store, args=(keys, objects)) for adapter, objects in zip(adapters, owned)
        ]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        for adapter in adapters:
            _, targets = adapter.objects(4)
            assert adapter.load(keys, targets) == [True] * 4
            assert [held(obj) for obj in targets] == [held(obj) for obj in owned[0]]
    [adapter.close() for adapter in adapters]


def test_close_with_tasks_waiting(l1, tmp_path):
    adapter = Adapter(l1, tmp_path, level="high")
    keys, objects = adapter.objects(6, seed=0)
    for i in range(6):
        adapter.adapter.submit_store_task(keys[i : i + 1], objects[i : i + 1])
    adapter.close()
    adapter.adapter.close()
    again = Adapter(l1, tmp_path)
    _, targets = again.objects(6)
    for i, done in enumerate(again.load(keys, targets)):
        assert not done or held(targets[i]) == held(objects[i])
    again.close()


# ---- the storage manager with its controllers ----


def manager_of(folder, serde=None, **params):
    spec = {
        "type": "plugin",
        "module_path": "kvtool.lmcache",
        "class_name": "KvtoolAdapter",
        "adapter_params": {"base_path": str(folder), "threads": 2, **params},
        "eviction": {"eviction_policy": "LRU", "trigger_watermark": 0.5, "eviction_ratio": 0.3},
    }
    if serde is not None:
        spec["serde"] = {"type": "kvtool", **serde}
    l2 = parse_args_to_l2_adapters_config(argparse.Namespace(l2_adapter=[json.dumps(spec)]))
    memory = L1MemoryManagerConfig(size_in_bytes=64 << 20, use_lazy=False)
    return StorageManager(
        StorageManagerConfig(
            l1_manager_config=L1ManagerConfig(memory_config=memory),
            eviction_config=EvictionConfig(eviction_policy="LRU"),
            l2_adapter_config=l2,
        )
    )


def prefetch(manager, keys):
    """Requests the keys from the prefetch controller. Returns the contents of the objects, up to the first that was
    not found."""
    spec = PrefetchTaskSpec(key_groups=[GroupedObjectKeys(keys=keys, object_group_id=0, layout_desc=LAYOUT)])
    handle = manager.submit_prefetch_task(spec)
    end = time.monotonic() + 30
    while (result := manager.query_prefetch_status(handle)) is None:
        assert time.monotonic() < end, "the prefetch did not end"
        time.sleep(0.005)
    count = result.hit_cells[0].popcount()
    if not count:
        return []
    with manager.read_prefetched_results(keys[:count], result.l1_owners) as objects:
        contents = [held(obj) for obj in objects]
    manager.finish_read_prefetched(keys[:count], 1, result.l1_owners)
    return contents


def test_the_eviction_controller_sees_compressed_sizes(tmp_path):
    manager = manager_of(tmp_path, max_gb=8 * RAW / (1 << 30))
    keys = [key_of() for _ in range(7)]
    objects = manager.reserve_write(keys, LAYOUT)
    for i, key in enumerate(keys):
        memoryview(objects[key].byte_array).cast("B")[:] = content(i, RAW)
    manager.finish_write(keys)
    adapter = manager.l2_adapters()[0][1]
    end = time.monotonic() + 30
    while adapter.report_status().get("stored", 0) < 7 or adapter.get_usage().usage_fraction > 0.5:
        assert time.monotonic() < end, "nothing was evicted"
        time.sleep(0.05)
    manager.close()
    status = adapter.report_status()
    assert status["evicted"] == 0, "by the controller, not by the folder's limit"
    assert 0 < len(frames_in(tmp_path)) < 7


@pytest.mark.parametrize("mode", MODES)
def test_through_the_controllers(tmp_path, mode):
    keys = [key_of() for _ in range(5)]
    manager = manager_of(tmp_path, MODES[mode])
    objects = manager.reserve_write(keys, LAYOUT)
    for i, key in enumerate(keys):
        memoryview(objects[key].byte_array).cast("B")[:] = content(i, RAW)
    manager.finish_write(keys)
    end = time.monotonic() + 30
    while len(frames_in(tmp_path)) < 5:
        assert time.monotonic() < end, "the store controller stored nothing"
        time.sleep(0.01)
    time.sleep(0.2)
    manager.close()

    manager = manager_of(tmp_path, MODES[mode])  # after a restart L1 is empty
    assert prefetch(manager, keys) == [content(i, RAW) for i in range(5)]
    manager.close()

    manager = manager_of(tmp_path, MODES[mode])
    adapter = manager.l2_adapters()[0][1]
    adapter = getattr(adapter, "inner_adapter", adapter)
    damage(adapter._frames.directory.path(adapter._name(keys[2])), "flip")
    assert prefetch(manager, keys) == [content(i, RAW) for i in range(2)], "the prefix ends where the damage is"
    manager.close()


@pytest.fixture
def profile(root):
    return str(root / "testdata/profiles/s260k.kvp")


def test_compressed_chunks_stay_in_memory(l1, tmp_path):
    adapter = Adapter(l1, "", memory_gb=3.5 * RAW * 0.9 / (1 << 30))
    keys, objects = adapter.objects(6, seed=0)
    for i in range(6):
        assert adapter.store(keys[i : i + 1], objects[i : i + 1]).is_successful()
    status = adapter.adapter.report_status()
    assert status["is_healthy"] and status["folder"] == "memory" and status["evicted"] == 6 - status["folder_objects"] > 0
    assert status["folder_bytes"] == adapter.adapter.get_usage().total_bytes_used < 3.5 * 0.9 * RAW
    _, targets = adapter.objects(6)
    loaded = adapter.load(keys, targets)
    assert loaded == adapter.lookup(keys) and loaded[-3:] == [True] * 3 and not loaded[0]
    assert all(held(target) == held(obj) for target, obj, done in zip(targets, objects, loaded) if done)
    adapter.close()
    for params in ({"memory_gb": 1, "base_path": str(tmp_path)}, {"base_path": ""}, {"base_path": "", "memory_gb": -1}):
        with pytest.raises(ValueError):
            Adapter(l1, tmp_path, **params)


def test_a_profile(l1, tmp_path, profile):
    adapter = Adapter(l1, tmp_path, {"level": "default", "profile": profile}, level="default", profile=profile)
    keys, objects = adapter.objects(2, seed=0)
    assert adapter.store(keys, objects).is_successful() and adapter.lookup(keys) == [True, True]
    _, targets = adapter.objects(2)
    assert adapter.load(keys, targets) == [True, True] and held(targets[1]) == held(objects[1])
    adapter.close()
    without = Adapter(l1, tmp_path)
    assert without.lookup(keys) == [False, False], "who has no profile, or another one, has other objects"
    without.close()


def test_requests_can_be_left_out(l1, tmp_path):
    adapter = Adapter(l1, tmp_path, skip_salts=["private"])
    keys, objects = adapter.objects(2, seed=0, keys=[key_of(cache_salt="private"), key_of(cache_salt="shared")])
    result = adapter.store(keys, objects)
    assert result.is_successful() and len(frames_in(tmp_path)) == 1 and adapter.lookup(keys) == [False, True]
    adapter.close()
    with pytest.raises(ValueError):
        Adapter(l1, tmp_path, skip_salts="private")


@pytest.mark.parametrize("type_", ["fs", "fs_native"])
def test_serde_of_one_size_over_lmcaches_files(l1, tmp_path, type_):
    """stored_fraction: every object has the size that LMCache's file adapters request, and takes less disk
    space."""
    Adapter(l1, tmp_path / "other").close()
    adapter = Adapter(l1, tmp_path, {"stored_fraction": 0.9}, type_=type_)
    keys, objects = adapter.objects(3, seed=0)
    assert adapter.store(keys, objects).bytes_transferred() == 3 * int(0.9 * RAW)
    _, targets = adapter.objects(3)
    assert adapter.lookup(keys) == [True] * 3 and adapter.load(keys, targets) == [True] * 3
    assert [held(target) for target in targets] == [held(obj) for obj in objects]
    keys, objects = adapter.objects(1, seed=0)
    memoryview(objects[0].byte_array).cast("B")[:] = noise(RAW, 1).tobytes()
    assert not adapter.store(keys, objects).is_successful(), "it needs more than that"
    adapter.close()
    for wrong in (0, 1.5, "half"):
        with pytest.raises(ValueError):
            Adapter(l1, tmp_path, {"stored_fraction": wrong}, type_=type_)
