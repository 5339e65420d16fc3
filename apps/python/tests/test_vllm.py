# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The vLLM tier through vLLM's own factory, region, primary tier and manager, in host memory."""

import itertools
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest

import engines
from kv_data import DAMAGES, NEWER, bf16, damage, frames_in, make_newer, noise, plane

reason = engines.prepare("vllm")
if reason:
    pytest.skip(reason, allow_module_level=True)

from vllm.v1.kv_offload.base import (  # noqa: E402
    LookupResult,
    Medium,
    OffloadingKVEventsConfig,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.config import (  # noqa: E402
    OffloadingCacheConfig,
    OffloadingConfig,
    OffloadingGroupConfig,
    OffloadingModelConfig,
    OffloadingParallelConfig,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion  # noqa: E402
from vllm.v1.kv_offload.tiering.base import TransferJob  # noqa: E402
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory  # noqa: E402
from vllm.v1.kv_offload.tiering.manager import (  # noqa: E402
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)

ROW = 64 << 10
ROWS = 24
HEADS, DIM = 2, 32
END = ScheduleEndContext((), ())
_numbers = itertools.count(1)


def spec_of(model="org/toy", dtype="bfloat16", layout="LBNHC", row=ROW, rank=0, tp=1, agnostic=True, layers=("l0", "l1"),
            events=False):
    config = OffloadingConfig(
        groups=(OffloadingGroupConfig(16, layers, 0),),
        worker_kv_bytes_per_block=row,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="test" + os.urandom(4).hex(),
        model=OffloadingModelConfig(model, dtype),
        cache=OffloadingCacheConfig(16, 1),
        parallel=OffloadingParallelConfig(rank, tp, tp, 1, 1, 1, 0, 1, None, agnostic),
        kv_cache_layout=layout,
    )
    return types.SimpleNamespace(
        config=config, blocks_per_chunk=1, kv_events_config=OffloadingKVEventsConfig(events, False)
    )


def row_of(seed):
    """Returns [token, head, K then V] of bf16."""
    tokens = ROW // (HEADS * DIM * 4)
    k = plane(tokens, HEADS, DIM, seed)
    v = bf16(np.random.default_rng(seed + 1000).standard_normal((tokens, HEADS, DIM)))
    return np.concatenate([k, v], axis=-1).reshape(-1).view(np.uint8)


def keys_of(count):
    return [make_offload_key(os.urandom(32), 0) for _ in range(count)]


class Tier:
    """A tier on its own rows, driven as the manager drives one."""

    def __init__(self, folder, spec=None, rows=ROWS, row=ROW, **options):
        # The engine's view is signed, and its memory is mapped.
        self.rows = np.frombuffer(mmap.mmap(-1, rows * row), np.uint8).reshape(rows, row)
        view = memoryview(self.rows.view(np.int8))
        config = {"type": "KvtoolTier", "module_path": "kvtool.vllm", "root_dir": str(folder), **options}
        if config["type"] == "fs":
            del config["module_path"]
        self.tier = SecondaryTierFactory.create_secondary_tier(config, view, spec or spec_of(row=row))
        self.request = ReqContext("request")
        self.tier.on_new_request(self.request)

    def submit(self, keys, rows, load):
        job = TransferJob(next(_numbers), list(keys), np.array(rows, np.int32), load, self.request)
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        return job.job_id

    def finish(self, count=1):
        results, end = [], time.monotonic() + 60
        while len(results) < count:
            assert time.monotonic() < end, "jobs did not end"
            results += self.tier.get_finished_jobs()
            time.sleep(0.001)
        return results

    def store(self, keys, rows):
        self.submit(keys, rows, load=False)
        return self.finish()[0]

    def load(self, keys, rows):
        self.submit(keys, rows, load=True)
        return self.finish()[0]

    def lookup(self, keys):
        """Looks a key up in two steps: the first answer is RETRY, unless it was looked up before."""
        request = ReqContext("lookup" + os.urandom(4).hex())
        end = time.monotonic() + 30
        while True:
            found = [self.tier.lookup(key, request) for key in keys]
            self.tier.on_schedule_end(END)
            if LookupResult.RETRY not in found:
                self.tier.on_request_finished(request)
                return [result == LookupResult.HIT for result in found]
            assert time.monotonic() < end, "lookups did not end"
            time.sleep(0.002)

    def close(self):
        self.tier.drain_jobs()
        self.tier.shutdown()


@pytest.fixture
def tier(tmp_path):
    tier = Tier(tmp_path, kv_heads=HEADS, head_size=DIM)
    yield tier
    tier.close()


def fill(tier, count):
    keys = keys_of(count)
    for i in range(count):
        tier.rows[i] = row_of(i)
    assert tier.store(keys, range(count)).success
    return keys


def test_blocks_come_back_and_are_smaller(tier, tmp_path):
    keys = fill(tier, 3)
    sizes = [os.path.getsize(path) for path in frames_in(tmp_path)]
    assert len(sizes) == 3 and max(sizes) < 0.85 * ROW
    assert tier.lookup(keys) == [True] * 3
    result = tier.load(keys, [8, 9, 10])
    assert result.success and result.transfer_bytes == 3 * ROW
    for i in range(3):
        assert (tier.rows[8 + i] == row_of(i)).all()


def test_first_lookup_is_retry_and_unknown_keys_miss(tier):
    request = ReqContext("r")
    key = keys_of(1)[0]
    assert tier.tier.lookup(key, request) == LookupResult.RETRY
    assert tier.lookup([key]) == [False]


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_block_is_a_miss_alone_and_at_once(tier, tmp_path, how):
    keys = fill(tier, 3)
    request = ReqContext("same request")
    [tier.tier.lookup(key, request) for key in keys]
    tier.tier.on_schedule_end(END)
    time.sleep(0.1)
    assert [tier.tier.lookup(key, request) for key in keys] == [LookupResult.HIT] * 3
    bad = tier.tier._frames.directory.path(tier.tier._codec.name(keys[1]))
    damage(bad, how)
    result = tier.load(keys, [8, 9, 10])
    assert not result.success
    assert set(result.successful_keys) == {keys[0], keys[2]}
    assert (tier.rows[8] == row_of(0)).all() and (tier.rows[10] == row_of(2)).all()
    # The request that saw a HIT sees a MISS from then on, and so do all others.
    assert tier.tier.lookup(keys[1], request) == LookupResult.MISS
    assert not os.path.exists(bad)
    assert tier.lookup(keys) == [True, False, True]
    # After storing it again, it is found again.
    assert tier.store([keys[1]], [1]).success
    assert tier.load([keys[1]], [12]).success and (tier.rows[12] == row_of(1)).all()


def test_vllms_own_files_are_not_checked(tmp_path):
    """Control: vLLM's own files do not detect the same damage."""
    tier = Tier(tmp_path, type="fs")
    keys = fill(tier, 2)
    (path,) = tmp_path.rglob(keys[0][:-4].hex() + ".bin")
    damage(path, "flip")
    assert tier.load(keys, [8, 9]).success
    assert (tier.rows[8] != row_of(0)).any() and (tier.rows[9] == row_of(1)).all()
    tier.close()


def test_all_damaged_reports_no_successful_keys(tier, tmp_path):
    keys = fill(tier, 2)
    for path in frames_in(tmp_path):
        damage(path, "flip")
    result = tier.load(keys, [8, 9])
    assert not result.success and result.successful_keys is None


def test_block_that_cannot_be_removed_is_a_miss(tier, tmp_path, monkeypatch):
    keys = fill(tier, 1)
    damage(frames_in(tmp_path)[0], "flip")

    def refuse(*_, **__):
        raise PermissionError("read-only folder")

    monkeypatch.setattr(os, "unlink", refuse)
    assert not tier.load(keys, [8]).success
    assert tier.lookup(keys) == [False]


@pytest.mark.parametrize("what", NEWER)
def test_blocks_of_a_newer_version_are_misses_and_stay(tier, tmp_path, what):
    keys = fill(tier, 2)
    path = tier.tier._frames.directory.path(tier.tier._codec.name(keys[0]))
    make_newer(path, what)
    with open(path, "rb") as file:
        newer = file.read()
    result = tier.load(keys, [8, 9])
    assert not result.success and tuple(result.successful_keys) == (keys[1],)
    assert tier.lookup(keys) == [False, True] and tier.store(keys, [0, 1]).success
    with open(path, "rb") as file:
        assert file.read() == newer


def test_files_swapped_are_misses(tier, tmp_path):
    keys = fill(tier, 2)
    first, second = frames_in(tmp_path)
    os.rename(first, first + "x"), os.rename(second, first), os.rename(first + "x", second)
    assert tier.lookup(keys) == [False, False]
    result = tier.load(keys, [8, 9])
    assert not result.success and result.successful_keys is None


@pytest.mark.parametrize(
    "other",
    [
        {"model": "org/other"},
        {"dtype": "float16"},
        {"layout": "LBHNC"},
        {"layers": ("l0", "l2")},
        {"tp": 2, "agnostic": False},
        {"rank": 1, "tp": 2, "agnostic": False},
    ],
)
def test_blocks_of_another_configuration_are_misses(tmp_path, other):
    tier = Tier(tmp_path)
    keys = fill(tier, 2)
    tier.close()
    foreign = Tier(tmp_path, spec_of(**other))
    assert foreign.lookup(keys) == [False, False]
    assert not foreign.load(keys, [8, 9]).success
    foreign.close()
    again = Tier(tmp_path)
    assert again.lookup(keys) == [True, True]
    again.close()


def test_another_revision_and_row_size_are_misses(tmp_path):
    tier = Tier(tmp_path, revision="a")
    keys = fill(tier, 1)
    tier.close()
    for options in ({"revision": "b"}, {"row": 2 * ROW, "spec": spec_of(row=2 * ROW)}):
        other = Tier(tmp_path, **options)
        assert other.lookup(keys) == [False]
        assert not other.load(keys, [0]).success
        other.close()


def test_hint_is_never_trusted(tmp_path):
    """Written with one hint; read with another, without one, and with one that does not divide the
    row."""
    hints = [{}, {"head_size": DIM}, {"head_size": DIM, "kv_heads": HEADS}, {"head_size": 50, "kv_heads": 3},
             {"head_size": 100, "head_size_v": 7}]
    sizes = []
    for writer in hints:
        folder = tmp_path / str(len(sizes))
        tier = Tier(folder, level="default", **writer)
        keys = fill(tier, 2)
        tier.close()
        sizes.append(os.path.getsize(frames_in(folder)[0]))
        for reader in hints:
            tier = Tier(folder, **reader)
            assert tier.load(keys, [8, 9]).success
            assert (tier.rows[8] == row_of(0)).all() and (tier.rows[9] == row_of(1)).all()
            tier.close()
    assert sizes[2] < 0.95 * sizes[0], "taking K and V apart does not help"


def test_noise_and_stale_padding_come_back(tmp_path):
    """Rows of arbitrary bytes: a frame is never larger than the row plus its header."""
    tier = Tier(tmp_path, head_size=DIM)
    tier.rows[0] = noise(ROW, 1)
    tier.rows[1] = 0
    tier.rows[2, : ROW // 2] = noise(ROW // 2, 2)
    keys = keys_of(3)
    assert tier.store(keys, [0, 1, 2]).success
    assert max(os.path.getsize(path) for path in frames_in(tmp_path)) <= ROW + 128
    assert tier.load(keys, [8, 9, 10]).success
    assert (tier.rows[8:11] == tier.rows[:3]).all()
    tier.close()


def test_misspelt_and_bad_options_stop_the_start(tmp_path):
    with pytest.raises(TypeError):
        Tier(tmp_path, levle="fast")
    for options in ({"level": "best"}, {"max_gb": -1}, {"n_read_threads": 0}, {"head_size": "128"}):
        with pytest.raises(ValueError):
            Tier(tmp_path, **options)


def test_folder_keeps_to_its_limit_and_recency(tmp_path):
    tier = Tier(tmp_path, max_gb=10 * ROW / (1 << 30))
    keys = []
    for i in range(40):
        tier.rows[0] = noise(ROW, i)
        key = keys_of(1)[0]
        keys.append(key)
        assert tier.store([key], [0]).success
        assert tier.load([keys[0]], [1]).success, "what is used stays"
        total = sum(os.path.getsize(path) for path in frames_in(tmp_path))
        assert total <= 10 * ROW
    found = tier.lookup(keys)
    assert found[0] and found[-1] and sum(found) == len(frames_in(tmp_path)) < 10
    assert tier.tier.report()["evicted"] == 40 - sum(found)
    tier.close()


def test_limit_holds_over_a_restart(tmp_path):
    tier = Tier(tmp_path)
    keys = []
    for i in range(8):
        tier.rows[0] = noise(ROW, i)
        keys += keys_of(1)
        assert tier.store(keys[-1:], [0]).success
        time.sleep(0.01)
    tier.close()
    tier = Tier(tmp_path, max_gb=5 * ROW / (1 << 30))
    tier.rows[0] = noise(ROW, 99)
    last = keys_of(1)
    assert tier.store(last, [0]).success
    assert tier.lookup(keys + last) == [False] * 5 + [True] * 3 + [True]
    tier.close()


def test_a_full_disk_loses_the_copy_only(tier, monkeypatch):
    keys = keys_of(2)
    real = os.write

    def full(fd, data):
        real(fd, bytes(data)[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    tier.rows[0] = row_of(0)
    assert not tier.store(keys[:1], [0]).success
    monkeypatch.undo()
    assert tier.lookup(keys) == [False, False]
    assert not tier.store(keys[:1], [0]).success, "stores wait"
    tier.tier._frames._stores._next_try = 0
    assert tier.store(keys[:1], [0]).success and tier.lookup(keys) == [True, False]
    assert os.listdir(os.path.join(tier.tier._frames.directory.root, "tmp")) == []


def test_thousands_of_blocks_and_concurrent_jobs(tmp_path):
    """3000 blocks in overlapping jobs, while earlier blocks are loaded."""
    row, rows, per_job, jobs = 4096, 256, 20, 150
    tier = Tier(tmp_path, row=row, rows=rows, spec=spec_of(row=row))
    contents = {}
    keys = keys_of(per_job * jobs)
    stored = 0
    for j in range(jobs):
        half = (j % 4) * per_job
        mine = keys[j * per_job : (j + 1) * per_job]
        for i, key in enumerate(mine):
            contents[key] = noise(64, j * per_job + i)
            tier.rows[half + i] = np.resize(contents[key], row)
        pending = [tier.submit(mine, range(half, half + per_job), load=False)]
        if j:
            earlier = keys[(j - 1) * per_job : j * per_job]
            pending.append(tier.submit(earlier, range(128, 128 + per_job), load=True))
        results = {result.job_id: result for result in tier.finish(len(pending))}
        assert set(results) == set(pending) and all(result.success for result in results.values())
        if j:
            for i, key in enumerate(earlier):
                assert (tier.rows[128 + i] == np.resize(contents[key], row)).all()
        stored += len(mine)
    assert stored == 3000 == tier.tier.report()["folder_objects"]
    # Many jobs run at once.
    pending = [
        tier.submit(keys[i * 20 : (i + 1) * 20], range(20 * (i % 12), 20 * (i % 12) + 20), load=False)
        for i in range(100)
    ]
    assert {result.job_id for result in tier.finish(len(pending))} == set(pending)
    tier.close()


def test_two_writers_on_one_folder(tmp_path):
    """Two engines with one configuration store the same blocks at once, at different levels."""
    tiers = [Tier(tmp_path, level="fast"), Tier(tmp_path, level="high", head_size=DIM)]
    keys = keys_of(12)
    for tier in tiers:
        for i in range(12):
            tier.rows[i] = row_of(i)
    for _ in range(5):
        threads = [threading.Thread(target=tier.store, args=(keys, range(12))) for tier in tiers]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        for tier in tiers:
            assert tier.load(keys, range(12, 24)).success
            assert (tier.rows[12:] == tier.rows[:12]).all()
        for path in frames_in(tmp_path):
            os.unlink(path)
    [tier.close() for tier in tiers]


def test_metrics(tier, tmp_path):
    names = type(tier.tier).build_metric_definitions({})
    keys = fill(tier, 3)
    stats = tier.tier.get_stats()
    values = {name: next(iter(value.values())) for name, value in stats.data["data"].items()}
    assert values["vllm:kvtool_tier_raw_bytes"] == 3 * ROW
    assert values["vllm:kvtool_tier_stored_bytes"] == sum(map(os.path.getsize, frames_in(tmp_path)))
    assert values["vllm:kvtool_tier_folder_objects"] == 3
    assert set(values) <= set(names)
    assert tier.tier.get_stats() is None, "nothing new"
    damage(frames_in(tmp_path)[0], "flip")
    tier.load(keys, [8, 9, 10])
    values = {name: next(iter(value.values())) for name, value in tier.tier.get_stats().data["data"].items()}
    assert values["vllm:kvtool_tier_refused"] == 1 and values["vllm:kvtool_tier_loaded"] == 2
    info = tier.tier.config_info()
    assert set(info) == set(type(tier.tier).config_info_keys({})) and info["kvtool_level"] == "fast"


def test_events(tmp_path):
    tier = Tier(tmp_path, spec_of(events=True), enable_kv_events=True, locality="LOCAL", max_gb=4.5 * ROW / (1 << 30))
    keys = keys_of(6)
    tier.rows[:] = noise(ROWS * ROW, 5).reshape(ROWS, ROW)
    assert tier.store(keys[:2], [0, 1]).success
    (event,) = tier.tier.take_events()
    assert (event.keys, event.removed, event.medium, event.locality.name) == (keys[:2], False, Medium.STORAGE, "LOCAL")
    assert tier.store(keys[:2], [0, 1]).success and list(tier.tier.take_events()) == [], "they were there"
    damage(tier.tier._frames.directory.path(tier.tier._codec.name(keys[0])), "flip")
    tier.load(keys[:2], [8, 9])
    (event,) = tier.tier.take_events()
    assert (event.keys, event.removed) == ([keys[0]], True)
    for i in range(2, 6):
        assert tier.store([keys[i]], [i]).success
    events = list(tier.tier.take_events())
    assert [event.keys for event in events if not event.removed] == [[key] for key in keys[2:]]
    assert [event.keys for event in events if event.removed] == [[keys[1]]], "the limit took the oldest"
    tier.close()
    quiet = Tier(tmp_path, spec_of(events=False), enable_kv_events=True)
    quiet.store(keys[:1], [0])
    assert list(quiet.tier.take_events()) == []
    quiet.close()


def test_events_are_of_blocks_that_are_there(tmp_path):
    """A job whose own writes evict some of its blocks, and blocks that only a newer version can
    read."""
    tier = Tier(tmp_path, spec_of(events=True), enable_kv_events=True, max_gb=4.5 * ROW / (1 << 30))
    keys = keys_of(8)
    tier.rows[:] = noise(ROWS * ROW, 5).reshape(ROWS, ROW)
    assert tier.store(keys[:7], range(7)).success
    events = list(tier.tier.take_events())
    there = [key for key in keys if tier.tier._codec.name(key) in tier.tier._frames.directory]
    assert len(there) == 4 and [set(event.keys) for event in events] == [set(there)]
    assert not events[0].removed
    tier.store([keys[7]], [7])
    make_newer(tier.tier._frames.directory.path(tier.tier._codec.name(keys[7])), "version")
    list(tier.tier.take_events())
    tier.tier._events._keys.clear()
    assert tier.store([keys[7]], [7]).success and list(tier.tier.take_events()) == []
    tier.close()


# ---- the whole manager ----


def manager_of(folder, rows=16):
    spec = spec_of()
    region = SharedOffloadRegion(
        engine_id=spec.config.engine_id, num_chunks=rows, rank=None, kv_bytes_per_chunk=ROW, cpu_page_size=ROW
    )
    primary = CPUPrimaryTierOffloadingManager(num_chunks=rows, mmap_region=region)
    view = primary.get_kv_memoryview()
    config = {"type": "KvtoolTier", "module_path": "kvtool.vllm", "root_dir": str(folder), "head_size": DIM}
    tier = SecondaryTierFactory.create_secondary_tier(config, view, spec)
    return TieringOffloadingManager(primary, [tier]), tier, view


def promote(manager, tier, keys, steps=50):
    """Looks keys up step by step. Returns the answers of the last step."""
    request = ReqContext("promote" + os.urandom(4).hex())
    with manager.lock:
        manager.on_new_request(request)
    for _ in range(steps):
        with manager.lock:
            found = [manager.lookup(key, request) for key in keys]
            manager.on_schedule_end(END)
        if not {LookupResult.RETRY, LookupResult.HIT_PENDING} & set(found):
            break
        tier.drain_jobs()
        time.sleep(0.01)
    return request, found


@pytest.mark.parametrize("bad", [False, True])
def test_through_the_manager(tmp_path, bad):
    manager, tier, view = manager_of(tmp_path)
    keys, request = keys_of(3), ReqContext("store")
    rows = np.asarray(view).view(np.uint8)
    with manager.lock:
        manager.on_new_request(request)
        output = manager.prepare_store(keys, request)
        for i, chunk in enumerate(output.store_spec.chunk_ids):
            rows[int(chunk)] = row_of(i)
        manager.complete_store(keys, request)
        manager.on_schedule_end(END)
    tier.drain_jobs()
    with manager.lock:
        manager.on_schedule_end(END)
        manager.on_request_finished(request)
        manager.reset_cache()
        manager.on_reset_flushed()
    rows[:] = 0
    if bad:
        damage(tier._frames.directory.path(tier._codec.name(keys[1])), "flip")
    request, found = promote(manager, tier, keys)
    if not bad:
        assert found == [LookupResult.HIT] * 3
    else:
        # If a tier kept answering HIT, the engine would ask it to promote the block in every step, for ever.
        assert found == [LookupResult.HIT, LookupResult.MISS, LookupResult.HIT]
        assert manager._job_id_counter < 12
    good = [i for i in range(3) if found[i] == LookupResult.HIT]
    with manager.lock:
        chunks = manager.prepare_load([keys[i] for i in good], request).chunk_ids
        for i, chunk in zip(good, chunks):
            assert (rows[int(chunk)] == row_of(i)).all()
        manager.complete_load([keys[i] for i in good], request)
        assert manager.get_stats() is not None
        manager.on_request_finished(request)
    del rows, view
    manager.shutdown()  # unmaps the region; raises if any view of it still exists


# ---- processes ----

WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
import numpy as np
from test_vllm import *
tier = Tier(sys.argv[1], rows=8, head_size=DIM)
for number in itertools.count():
    keys = [make_offload_key(number.to_bytes(4, "big") * 8, 0)]
    tier.rows[0] = row_of(number)
    tier.store(keys, [0])
    print(number, flush=True)
"""


def test_killed_writers_leave_blocks_that_are_right_or_absent(tmp_path):
    here = os.path.dirname(os.path.abspath(__file__))
    seen = 0
    for round_ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), here], stdout=subprocess.PIPE, text=True
        )
        last = -1
        for line in writer.stdout:
            last = int(line)
            if last >= seen + 15 + 7 * round_:
                break
        time.sleep(0.003 * round_)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert last >= 0, "the writer did not start"
        tier = Tier(tmp_path, head_size=DIM)
        keys = [make_offload_key(number.to_bytes(4, "big") * 8, 0) for number in range(last + 3)]
        found = tier.lookup(keys)
        assert all(found[: last + 1]), "what was reported as stored survives a restart"
        for number, there in enumerate(found):
            if there:
                assert tier.load([keys[number]], [2]).success
                assert (tier.rows[2] == row_of(number)).all()
        assert os.listdir(tmp_path / "tmp") == []
        tier.close()
        seen = last


def test_requests_can_be_left_out(tier, tmp_path):
    tier.request = ReqContext("off", kv_transfer_params={"kvtool": False})
    keys = fill(tier, 2)
    assert frames_in(tmp_path) == []
    tier.request = ReqContext("on", kv_transfer_params={"other": 1})
    assert tier.store(keys, [0, 1]).success and len(frames_in(tmp_path)) == 2
    assert tier.tier.lookup(keys[0], ReqContext("off", kv_transfer_params={"kvtool": False})) == LookupResult.MISS
    assert tier.lookup(keys) == [True, True]


def test_blocks_in_memory_with_a_profile(root, tmp_path):
    profile = str(root / "testdata/profiles/s260k.kvp")
    tier = Tier("", memory_gb=0.1, level="default", profile=profile, kv_heads=HEADS, head_size=DIM)
    keys = fill(tier, 2)
    assert tier.lookup(keys) == [True, True] and tier.load(keys, [8, 9]).success
    assert (tier.rows[9] == row_of(1)).all() and tier.tier.report()["folder"] == "memory"
    tier.close()
