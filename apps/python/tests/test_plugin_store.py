# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The code that the plug-ins for LMCache, vLLM and SGLang share; no engine is needed here."""

import errno
import fcntl
import logging
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import kvtool
from kv_data import DAMAGES, NEWER, damage, frames_in, make_newer, noise, plane
from kvtool import Codec, PageLayout, _frames
from kvtool._configuration import size_option
from kvtool._directory import FrameDirectory
from kvtool._frames import FrameStore, Item
from kvtool._interleaved import Content, shape_apart
from kvtool._workers import Workers

SHAPE = PageLayout("bf16", (64, 4, 32))
RAW = 64 * 4 * 32 * 2


def name_of(number):
    return f"{number:040x}"


def identity_of(**fields):
    return Codec(identity=fields)


def items_of(count, identity=None, seed=0):
    identity = identity or identity_of(engine="test")
    raws = [plane(64, 4, 32, seed + i).reshape(-1).view(np.uint8) for i in range(count)]
    return [Item(identity.name(b"%d" % i), identity.context(b"%d" % i), raw) for i, raw in enumerate(raws)]


def targets_of(items):
    return [Item(item.name, item.context, bytearray(len(item.raw))) for item in items]


# ---- the folder ----


def test_put_replaces_and_counts(tmp_path):
    folder = FrameDirectory(tmp_path)
    assert folder.put(name_of(1), b"abc") == 3 and folder.put(name_of(2), b"x" * 10) == 10
    assert folder.put(name_of(1), b"12345") == 5
    assert (len(folder), folder.total_bytes) == (2, 15)
    with open(folder.path(name_of(1)), "rb") as file:
        assert file.read() == b"12345"
    assert folder.discard(name_of(1)) == 5 and folder.discard(name_of(1)) == 0
    assert (len(folder), folder.total_bytes) == (1, 10)
    folder.clear()
    assert frames_in(tmp_path) == [] and folder.total_bytes == 0


def test_least_recently_used_go_first(tmp_path):
    gone = []
    folder = FrameDirectory(tmp_path, max_bytes=30, on_evict=gone.extend)
    for number in range(3):
        folder.put(name_of(number), b"x" * 10)
    folder.open(name_of(0)).close()
    folder.put(name_of(3), b"x" * 15)
    assert gone == [(name_of(1), 10), (name_of(2), 10)]
    assert folder.total_bytes == 25 and folder.evicted == 2
    with pytest.raises(OSError):
        folder.put(name_of(4), b"x" * 31)
    assert folder.total_bytes == 25, "what can never fit drives nothing out"


def test_restart_remembers_size_and_recency(tmp_path):
    folder = FrameDirectory(tmp_path)
    for number in range(4):
        folder.put(name_of(number), b"x" * 10)
        os.utime(folder.path(name_of(number)), ns=(number, number))
    with folder.open(name_of(0)) as opened:
        opened.read(memoryview(bytearray(10)))
    again = FrameDirectory(tmp_path, max_bytes=40)
    assert again.total_bytes == 40
    again.put(name_of(9), b"y" * 20)
    assert [os.path.exists(again.path(name_of(n))) for n in range(4)] == [True, False, False, True]


def test_limit_covers_what_other_processes_store(tmp_path):
    mine, other = (FrameDirectory(tmp_path, max_bytes=400) for _ in range(2))
    for number in range(200):
        (mine if number % 2 else other).put(name_of(number), b"x" * 10)
        total = sum(map(os.path.getsize, frames_in(tmp_path)))
        assert total <= 400 + 2 * 60, "an eighth of the limit each may be written before the others are counted"
    assert total > 200


def test_abandoned_temporary_files_go_and_living_ones_stay(tmp_path):
    FrameDirectory(tmp_path)
    dead, living = tmp_path / "tmp" / ("d" * 32), tmp_path / "tmp" / ("a" * 32)
    dead.write_bytes(b"half")
    living.write_bytes(b"half")
    with open(living, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        FrameDirectory(tmp_path)
        assert os.listdir(tmp_path / "tmp") == [living.name]
    FrameDirectory(tmp_path)
    assert os.listdir(tmp_path / "tmp") == []


def test_only_files_of_the_folders_own_are_removed(tmp_path):
    """If the folder has a tmp of its own, like /var and home folders, the files in it are kept."""
    foreign = [tmp_path / "tmp" / "thesis.odt", tmp_path / "tmp" / ("0" * 31), tmp_path / "ab" / "notes.kvf"]
    foreign += [tmp_path / "ab" / ("cd" + "0" * 38 + ".kvf"), tmp_path / "cd" / ".kvf", tmp_path / "cd" / "cd.txt"]
    for path in foreign:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 1000)
        os.utime(path, (1, 1))  # older than any other file
    elsewhere = tmp_path / "cd" / ("cd" + "0" * 38 + ".kvf")
    folder = FrameDirectory(tmp_path, max_bytes=1500)
    assert (len(folder), folder.total_bytes) == (0, 0)
    for number in range(4):
        folder.put(name_of(number), b"y" * 1000)
    assert folder.evicted == 3 and len(folder) == 1
    folder.clear()
    assert all(path.exists() for path in foreign) and not elsewhere.exists()


def test_starts_beside_writers_cost_no_store(tmp_path):
    """A starting process sees a temporary file before its writer has locked it."""
    folder = FrameDirectory(tmp_path)
    stop = threading.Event()

    def start_over():
        while not stop.is_set():
            FrameDirectory(tmp_path)

    threads = [threading.Thread(target=start_over) for _ in range(3)]
    [thread.start() for thread in threads]
    try:
        for number in range(300):
            assert folder.put(name_of(number % 7), b"x" * 100) == 100
    finally:
        stop.set()
        [thread.join() for thread in threads]


def test_file_systems_without_locks(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    folder = FrameDirectory(tmp_path)
    assert folder.put(name_of(1), b"abc") == 3
    young, old = tmp_path / "tmp" / ("a" * 32), tmp_path / "tmp" / ("b" * 32)
    young.write_bytes(b"half")
    old.write_bytes(b"half")
    os.utime(old, (0, 0))
    FrameDirectory(tmp_path)
    assert os.listdir(tmp_path / "tmp") == [young.name]


def test_failed_write_leaves_nothing_and_keeps_what_was(tmp_path, monkeypatch):
    folder = FrameDirectory(tmp_path)
    folder.put(name_of(1), b"good")
    real = os.write

    def full(fd, data):
        real(fd, bytes(data)[:2])
        raise OSError(errno.EFBIG, "File too large")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError):
        folder.put(name_of(1), b"better")
    with pytest.raises(OSError):
        folder.put(name_of(2), b"new")
    monkeypatch.undo()
    assert os.listdir(tmp_path / "tmp") == [] and len(frames_in(tmp_path)) == 1
    with open(folder.path(name_of(1)), "rb") as file:
        assert file.read() == b"good"


def test_short_writes_are_continued(tmp_path, monkeypatch):
    folder = FrameDirectory(tmp_path)
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    folder.put(name_of(1), b"0123456789")
    with open(folder.path(name_of(1)), "rb") as file:
        assert file.read() == b"0123456789"


def test_discard_spares_what_was_stored_anew(tmp_path):
    folder = FrameDirectory(tmp_path)
    folder.put(name_of(1), b"bad")
    opened = folder.open(name_of(1))
    folder.put(name_of(1), b"good")  # another thread stores it anew before the refusal
    assert folder.discard(name_of(1), opened) == 0 and os.path.exists(folder.path(name_of(1)))
    opened.close()


def test_what_cannot_be_removed_is_not_there(tmp_path, monkeypatch):
    folder = FrameDirectory(tmp_path)
    folder.put(name_of(1), b"bad")

    def refuse(*_, **__):
        raise PermissionError

    monkeypatch.setattr(os, "unlink", refuse)
    folder.discard(name_of(1))
    assert folder.open(name_of(1)) is None
    monkeypatch.undo()
    folder.put(name_of(1), b"good")
    folder.open(name_of(1)).close()


def test_folder_that_vanishes_is_made_again(tmp_path):
    folder = FrameDirectory(tmp_path)
    folder.put(name_of(1), b"x")
    os.unlink(folder.path(name_of(1)))
    os.rmdir(os.path.dirname(folder.path(name_of(1))))
    assert folder.open(name_of(1)) is None and folder.total_bytes == 0
    assert folder.put(name_of(1), b"x") == 1
    os.rmdir(tmp_path / "tmp")
    assert folder.put(name_of(2), b"x") == 1


# ---- frames ----


def test_store_and_load(tmp_path):
    store = FrameStore(FrameDirectory(tmp_path))
    items = items_of(5)
    sizes = store.store(items, SHAPE)
    assert all(0 < size < 0.9 * RAW for size in sizes) and store.store(items, SHAPE) == [0] * 5
    targets = targets_of(items)
    assert store.load(targets) == [0] * 5
    assert all(bytes(target.raw) == item.raw.tobytes() for target, item in zip(targets, items))
    report = store.report()
    assert report["stored"] == 5 and report["already_stored"] == 5 and report["loaded"] == 5
    assert report["raw_bytes"] == 5 * RAW and report["stored_bytes"] == sum(sizes) == report["folder_bytes"]


@pytest.mark.parametrize("group_bytes", [1, RAW, 3 * RAW, 32 << 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_groups_and_threads_change_no_byte(tmp_path, group_bytes, threads):
    items = items_of(7)
    reference, store = (
        FrameStore(FrameDirectory(tmp_path / "a")),
        FrameStore(FrameDirectory(tmp_path / "b"), Codec(threads=threads), group_bytes),
    )
    assert reference.store(items, SHAPE) == store.store(items, SHAPE)
    for item in items:
        with open(reference.directory.path(item.name), "rb") as a, open(store.directory.path(item.name), "rb") as b:
            assert a.read() == b.read()
    assert store.load(targets_of(items)) == [0] * 7


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_refused_counted_and_repaired(tmp_path, how):
    store = FrameStore(FrameDirectory(tmp_path))
    items = items_of(3)
    store.store(items, SHAPE)
    damage(store.directory.path(items[1].name), how)
    assert store.load(targets_of(items)) == [0, None, 0]
    report = store.report()
    assert report["refused"] == 1 == sum(value for key, value in report.items() if key.startswith("refused_"))
    assert not store.has(items[1].name, items[1].context)
    assert store.store(items, SHAPE)[1] > 0 and store.load(targets_of(items)) == [0] * 3


@pytest.mark.parametrize("how", ["cut", "grow", "empty", "flip_header"])
def test_damage_that_a_header_shows_is_repaired_without_a_load(tmp_path, how):
    store = FrameStore(FrameDirectory(tmp_path))
    items = items_of(1)
    store.store(items, SHAPE)
    damage(store.directory.path(items[0].name), how)
    assert not store.has(items[0].name, items[0].context)
    assert store.store(items, SHAPE)[0] > 0 and store.load(targets_of(items)) == [0]


def test_every_cut_and_every_header_bit(tmp_path):
    """Every byte of the header and a sample of the payload: wrong data is never returned."""
    store = FrameStore(FrameDirectory(tmp_path))
    (item,) = items_of(1)
    store.store([item], SHAPE)
    path = store.directory.path(item.name)
    with open(path, "rb") as file:
        whole = file.read()
    cases = [whole[:length] for length in (*range(0, 129), *range(130, len(whole), 97))]
    for bit in (*range(128 * 8), *range(128 * 8, len(whole) * 8, 4099)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        cases.append(bytes(flipped))
    for case in cases:
        with open(path, "wb") as file:
            file.write(case)
        assert store.load(targets_of([item])) == [None]


# The reason in metrics for damage in the middle of a file, which the codec may find before the hash does.
REASONS = {
    "flip": {"hash", "damaged"},
    "flip_header": {"hash"},
    "cut": {"length"},
    "grow": {"length"},
    "empty": {"short"},
    "zeros": {"not_a_frame"},
    "garbage": {"not_a_frame"},
}


@pytest.mark.parametrize("how", DAMAGES)
def test_reasons_of_refusals(tmp_path, how):
    store = FrameStore(FrameDirectory(tmp_path))
    (item,) = items_of(1)
    store.store([item], SHAPE)
    damage(store.directory.path(item.name), how)
    assert store.load(targets_of([item])) == [None]
    reasons = {key for key in store.report() if key.startswith("refused_")}
    assert reasons <= {"refused_" + reason for reason in REASONS[how]} and len(reasons) == 1


@pytest.mark.parametrize("what", NEWER)
def test_frames_of_a_newer_version_stay(tmp_path, what):
    """During a rolling upgrade old and new processes share the folder: old ones miss what they cannot read, and
    neither remove nor overwrite it."""
    pytest.importorskip("xxhash")
    store = FrameStore(FrameDirectory(tmp_path))
    items = items_of(2)
    store.store(items, SHAPE)
    path = store.directory.path(items[0].name)
    make_newer(path, what)
    with open(path, "rb") as file:
        newer = file.read()
    for _ in range(2):
        assert store.load(targets_of(items)) == [None, 0]
        assert not store.has(items[0].name, items[0].context)
        assert store.store(items, SHAPE) == [0, 0]
        with open(path, "rb") as file:
            assert file.read() == newer
    assert store.report()["refused_version"] == store.report()["refused"] > 0
    # A process of a version that this one understands writes the object again.
    os.unlink(path)
    assert FrameStore(FrameDirectory(tmp_path)).store(items[:1], SHAPE)[0] > 0
    assert store.has(items[0].name, items[0].context) and store.load(targets_of(items)) == [0, 0]


def test_a_file_in_the_place_of_a_newer_one_is_served(tmp_path, monkeypatch):
    """Another process rewrites an object while this one refuses the previous frame."""
    store = FrameStore(FrameDirectory(tmp_path))
    items = items_of(1)
    store.store(items, SHAPE)
    (path,) = frames_in(tmp_path)
    with open(path, "rb") as file:
        sound = file.read()
    make_newer(path, "codec")
    refuse = store.refuse

    def replace_first(*arguments):
        with open(path + ".new", "wb") as file:
            file.write(sound)
        os.replace(path + ".new", path)
        refuse(*arguments)

    monkeypatch.setattr(store, "refuse", replace_first)
    assert store.load(targets_of(items)) == [None]
    monkeypatch.undo()
    assert store.has(items[0].name, items[0].context) and store.load(targets_of(items)) == [0]
    assert store.is_offered(items[0].name)
    make_newer(path, "version")
    assert store.is_settled(items[0].name, items[0].context) and not store.is_offered(items[0].name)


def test_what_somebody_refused_goes_only_if_it_is_wrong(tmp_path):
    """A serde may have received its object from another adapter."""
    store = FrameStore(FrameDirectory(tmp_path))
    items = items_of(5)
    store.store(items, SHAPE)
    sound, flipped, newer, foreign, absent = items
    damage(store.directory.path(flipped.name), "flip")
    make_newer(store.directory.path(newer.name), "version")
    os.unlink(store.directory.path(absent.name))
    for item in items:
        store.recheck(item.name, b"\1" * 16 if item is foreign else item.context)
    left = {os.path.basename(path) for path in frames_in(tmp_path)}
    assert left == {os.path.basename(store.directory.path(item.name)) for item in (sound, newer)}
    assert store.report()["refused_version"] == store.report()["refused_context"] == 1


def test_damage_of_a_version_is_damage(tmp_path):
    """A flipped bit in the version does not count as a newer version: the file is repaired."""
    store = FrameStore(FrameDirectory(tmp_path))
    (item,) = items_of(1)
    store.store([item], SHAPE)
    path = store.directory.path(item.name)
    with open(path, "r+b") as file:
        file.seek(8)
        file.write(b"\x03")
    assert store.load(targets_of([item])) == [None] and not os.path.exists(path)
    assert store.store([item], SHAPE)[0] > 0 and store.load(targets_of([item])) == [0]


def fail_once(monkeypatch, name, code, times=1):
    """os.NAME fails this many times, then works. The returned list has their number."""
    real, left = getattr(os, name), [times]

    def fail(*arguments, **keywords):
        if left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))
        return real(*arguments, **keywords)

    monkeypatch.setattr(os, name, fail)
    return left


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ESTALE, errno.EINTR, errno.EACCES])
@pytest.mark.parametrize("name", ["open", "fstat", "preadv", "pread", "utime"])
def test_one_failed_call_costs_no_file(tmp_path, monkeypatch, name, code):
    store = FrameStore(FrameDirectory(tmp_path))
    items = items_of(3)
    store.store(items, SHAPE)
    before = [open(path, "rb").read() for path in frames_in(tmp_path)]
    left = fail_once(monkeypatch, name, code)
    store.has(items[0].name, items[0].context)
    loaded = store.load(targets_of(items))
    assert left == [0] and loaded.count(None) <= 1
    assert [open(path, "rb").read() for path in frames_in(tmp_path)] == before
    assert store.load(targets_of(items)) == [0] * 3 and "refused" not in store.report()


def test_a_file_that_can_never_be_read_is_stored_anew(tmp_path, monkeypatch):
    """A bad sector: the file exists, but cannot be read. After some misses it is no longer reported as
    existing."""
    store = FrameStore(FrameDirectory(tmp_path))
    items = items_of(1)
    store.store(items, SHAPE)
    fail_once(monkeypatch, "preadv", errno.EIO, times=3)
    for _ in range(3):
        assert store.has(items[0].name, items[0].context) and store.load(targets_of(items)) == [None]
    assert not store.has(items[0].name, items[0].context) and len(frames_in(tmp_path)) == 1
    assert store.store(items, SHAPE)[0] > 0 and store.load(targets_of(items)) == [0]
    assert store.report()["read_errors"] == 3


def test_calls_that_fail_say_nothing_of_a_file(tmp_path):
    store = FrameStore(FrameDirectory(tmp_path))
    (item,) = items_of(1)
    store.store([item], SHAPE)
    for finding in (2, 7, 8, 9, 106):
        store.refuse(item.name, os.stat(store.directory.path(item.name)), finding)
    assert store.load(targets_of([item])) == [0] and "refused" not in store.report()


# ---- a full disk ----


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"no small file system can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_makes_room(small_disk, caplog):
    """Without a limit the folder adapts to the disk: the least recently used objects are
    deleted."""
    gone = []
    store = FrameStore(FrameDirectory(small_disk, on_evict=gone.extend))
    items = items_of(150)
    with caplog.at_level(logging.WARNING, logger="kvtool"):
        sizes = [store.store([item], SHAPE)[0] for item in items]
    assert None not in sizes and sum(sizes) > 1 << 20 and not caplog.records
    assert len(frames_in(small_disk)) == len(store.directory) == 150 - len(gone)
    assert store.load(targets_of(items[-3:])) == [0] * 3 and store.load(targets_of(items[:1])) == [None]
    assert store.report()["storing"] and store.report()["evicted"] == len(gone) > 0
    assert os.listdir(small_disk / "tmp") == []


def test_a_disk_that_others_have_filled(small_disk, caplog, monkeypatch):
    store = FrameStore(FrameDirectory(small_disk))
    items = items_of(40)
    with open(small_disk / "other", "wb", buffering=0) as other, caplog.at_level(logging.DEBUG, logger="kvtool"):
        try:
            while other.write(b"x" * 4096):
                pass
        except OSError:
            pass
        assert store.store(items[:20], SHAPE) == [None] * 20
        report = store.report()
        assert not report["storing"] and "No space left" in report["store_problem"]
        # Stores are suspended: nothing is tried, and the log has one line.
        monkeypatch.setattr(os, "write", lambda *_: pytest.fail("a store was tried"))
        assert store.store(items, SHAPE) == [None] * 40
        monkeypatch.undo()
        assert store.report()["store_failures"] == 60
        assert [r.levelname for r in caplog.records if r.levelno >= logging.WARNING] == ["WARNING"]
        # One attempt after the pause, and no new log line.
        store._stores._next_try = 0
        assert store.store(items, SHAPE) == [None] * 40
        assert [r.levelname for r in caplog.records if r.levelno >= logging.WARNING] == ["WARNING"]
        other.truncate(0)
        assert store.store(items, SHAPE) == [None] * 40, "the pause is not over"
        store._stores._next_try = 0
        assert None not in store.store(items, SHAPE)
    assert store.report()["storing"] and store.report()["store_problem"] is None
    assert [r.levelname for r in caplog.records if r.levelno >= logging.WARNING] == ["WARNING"] * 2
    assert store.load(targets_of(items)) == [0] * 40


def full_disk(monkeypatch, name, code, is_full):
    """Makes os.NAME fail while is_full() is true."""
    real = getattr(os, name)

    def fail(*arguments, **keywords):
        writes = name != "open" or arguments[1] & os.O_CREAT
        if writes and is_full():
            raise OSError(code, os.strerror(code))
        return real(*arguments, **keywords)

    monkeypatch.setattr(os, name, fail)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("name", ["open", "write", "fsync", "replace"])
def test_wherever_the_disk_is_full(tmp_path, monkeypatch, name, code):
    """No space for a name, for bytes, for bytes that are written late, or in the folder."""
    store = FrameStore(FrameDirectory(tmp_path, durable=True))
    items = items_of(8)
    store.store(items[:6], SHAPE)
    full_disk(monkeypatch, name, code, lambda: len(frames_in(tmp_path)) > 3)
    assert store.store(items[6:], SHAPE) != [None, None]
    assert store.report()["storing"] and 0 < len(frames_in(tmp_path)) < 6
    assert os.listdir(tmp_path / "tmp") == []
    monkeypatch.undo()
    monkeypatch.setattr(_frames, "PAUSE_SECONDS", 0.2)
    full_disk(monkeypatch, name, code, lambda: True)
    kept = frames_in(tmp_path)
    assert store.store(items, SHAPE).count(None) >= 1 and not store.report()["storing"]
    assert len(frames_in(tmp_path)) <= len(kept)
    monkeypatch.undo()
    time.sleep(0.25)
    assert None not in store.store(items, SHAPE) and store.report()["storing"]
    assert store.load(targets_of(items)) == [0] * 8


def test_the_rest_of_a_batch_waits_too(tmp_path, monkeypatch):
    """If evicting does not help the first object, the others must not evict as well."""
    store = FrameStore(FrameDirectory(tmp_path))
    items = items_of(60)
    store.store(items[:40], SHAPE)
    before = len(frames_in(tmp_path))
    real, tries = os.write, []

    def fail(fd, data):
        tries.append(len(data))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", fail)
    assert store.store(items[40:], SHAPE) == [None] * 20
    assert len(tries) == 2, "one object, before and after making room"
    assert before - len(frames_in(tmp_path)) <= 8
    assert store.report()["store_failures"] == 20 and not store.report()["storing"]
    monkeypatch.setattr(os, "write", real)
    store._stores._next_try = 0
    assert None not in store.store(items[40:], SHAPE) and store.report()["storing"]


def test_other_errors_of_a_store_are_said_once_and_pause_nothing(tmp_path, monkeypatch, caplog):
    store = FrameStore(FrameDirectory(tmp_path))
    items = items_of(10)
    left = fail_once(monkeypatch, "replace", errno.EIO, times=8)
    with caplog.at_level(logging.WARNING, logger="kvtool"):
        assert store.store(items, SHAPE).count(None) == 8 and left == [0]
    assert len(caplog.records) == 1 and store.report()["storing"]
    assert None not in store.store(items, SHAPE)


def test_names_and_files_agree_after_a_crowd_of_threads(tmp_path):
    """Evicts, removes and stores the same names concurrently: the accounts equal what exists."""
    folder = FrameDirectory(tmp_path, max_bytes=900)
    names = [name_of(number) for number in range(12)]

    def run(seed):
        random = np.random.default_rng(seed)
        for _ in range(300):
            name = names[random.integers(12)]
            if random.random() < 0.2:
                folder.discard(name)
            elif random.random() < 0.3:
                opened = folder.open(name)
                if opened is not None:
                    opened.close()
            else:
                folder.put(name, b"x" * int(random.integers(50, 150)))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    there = {os.path.basename(path)[:-4]: os.path.getsize(path) for path in frames_in(tmp_path)}
    assert there == dict(folder._sizes) and folder.total_bytes == sum(there.values()) <= 900


def test_links_and_pipes_in_the_folder(tmp_path):
    """If another user can write into the folder, a start does not remove files elsewhere, and a load does not
    block."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "letter").write_bytes(b"dear")
    root = tmp_path / "root"
    root.mkdir()
    os.symlink(mine, root / "tmp")
    with pytest.raises(ValueError, match="symbolic link"):
        FrameDirectory(root)
    os.unlink(root / "tmp")
    folder = FrameDirectory(root, max_bytes=10)
    os.symlink(mine / "letter", root / "tmp" / ("c" * 32))
    os.mkfifo(root / "tmp" / ("e" * 32))
    (mine / (name_of(0) + ".kvf")).write_bytes(b"x" * 100)
    os.symlink(mine, root / "00")
    folder = FrameDirectory(root, max_bytes=10)
    folder.put("ff" + name_of(1)[2:], b"x" * 10)
    assert sorted(os.listdir(mine)) == [name_of(0) + ".kvf", "letter"]
    os.unlink(root / "00")
    os.makedirs(root / "00")
    os.mkfifo(folder.path(name_of(5)))
    store = FrameStore(folder)
    assert store.load([Item(name_of(5), b"c" * 16, bytearray(RAW))]) == [None]


def test_another_identity_is_a_miss(tmp_path):
    store = FrameStore(FrameDirectory(tmp_path))
    items = items_of(1, identity_of(engine="test", model="a"))
    store.store(items, SHAPE)
    (other,) = items_of(1, identity_of(engine="test", model="b"))
    assert store.load(targets_of([other])) == [None]
    stolen = Item(items[0].name, other.context, bytearray(RAW))
    assert store.load([stolen]) == [None]
    assert store.report()["refused_context"] == 1


def test_contexts_of_identities_and_keys_differ():
    identities = [identity_of(a=1), identity_of(a="1"), identity_of(a=1, b=None), identity_of(b=1), identity_of(a=[1])]
    keys = [b"", b"0", b"00", b"1"]
    for kind in ("name", "context"):
        made = {getattr(identity, kind)(key) for identity in identities for key in keys}
        assert len(made) == len(identities) * len(keys)
    assert identity_of(b=2, a=1).name(b"k") == identity_of(a=1, b=2).name(b"k")


def test_wrong_size_is_a_miss(tmp_path):
    store = FrameStore(FrameDirectory(tmp_path))
    (item,) = items_of(1)
    store.store([item], SHAPE)
    assert store.load([Item(item.name, item.context, bytearray(RAW + 2))]) == [None]


def test_noise_is_stored_raw_within_the_bound(tmp_path):
    store = FrameStore(FrameDirectory(tmp_path))
    item = Item(name_of(1), b"c" * 16, noise(RAW, 1))
    assert store.store([item], SHAPE) == [kvtool.bound(RAW)] == [RAW + 128]
    assert store.report()["stored_raw"] == 1
    target = Item(item.name, item.context, bytearray(RAW))
    assert store.load([target]) == [0] and bytes(target.raw) == item.raw.tobytes()


def test_threads_side_by_side(tmp_path):
    store = FrameStore(FrameDirectory(tmp_path), Codec(threads=2))
    items = items_of(40)
    failures = []

    def run(mine):
        for _ in range(5):
            sizes = store.store(mine, SHAPE)
            targets = targets_of(mine)
            if None in sizes or store.load(targets) != [0] * len(mine):
                failures.append(sizes)
            if any(bytes(t.raw) != i.raw.tobytes() for t, i in zip(targets, mine)):
                failures.append("bytes")

    threads = [threading.Thread(target=run, args=(items[i : i + 25],)) for i in (0, 5, 10, 15)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures


@pytest.mark.parametrize("value", [-1, "1", None, True, float("nan")])
def test_sizes_that_make_no_sense(value):
    with pytest.raises(ValueError):
        size_option(value, "max_gb")


# ---- K and V side by side ----


@pytest.mark.parametrize("k, v", [(64, 64), (2, 2), (128, 64), (3, 5), (16383, 1)])
@pytest.mark.parametrize("size", [0, 1, 127, 128, 4096, 16384, 40000])
def test_taking_apart_and_putting_together(k, v, size):
    content, source = Content(k, v), noise(size, 1)
    apart, back = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    content.take_apart(source, apart)
    count = content.contents_of(size)
    rows = source[: count * (k + v)].reshape(count, k + v)
    expected = np.concatenate([rows[:, :k].reshape(-1), rows[:, k:].reshape(-1), source[count * (k + v) :]])
    assert (apart == expected).all()
    content.put_together(apart, back)
    assert (back == source).all()
    assert Content.of_tag(content.tag) == content


def test_tags_that_mean_something_else():
    assert Content.of_tag(0) is None
    for tag in (1, 0xFFFFFFFF, 1 << 28, 2 << 28 | 64 << 14 | 64):
        with pytest.raises(ValueError):
            Content.of_tag(tag)
    for sizes in ((0, 1), (1, 0), (1 << 14, 1), (-1, 1)):
        with pytest.raises(ValueError):
            Content(*sizes)


def test_shapes_multiply_or_are_left_out():
    content = Content(64, 64)
    assert shape_apart(content, 128 * 12, "bf16", 3, False).shape == (8, 3, 32)
    assert shape_apart(content, 128 * 12, "bf16", 3, True).shape == (24, 1, 32)
    assert shape_apart(content, 128 * 12, "bf16", 5, False).shape == (24, 1, 32)
    assert shape_apart(content, 128 * 12 + 2, "bf16", 3, False).shape is None
    assert shape_apart(Content(64, 32), 96 * 12, "bf16", 3, False).shape is None


# ---- threads and processes ----


def test_workers_keep_order_and_drop_what_waits():
    workers, done = Workers(1, "test"), []
    for number in range(50):
        workers.submit(lambda number=number: done.append(number))
    workers.wait_idle()
    assert done == list(range(50))
    gate = threading.Event()
    workers.submit(gate.wait)
    time.sleep(0.05)
    workers.submit(lambda: done.append("never"))
    closer = threading.Timer(0.1, gate.set)
    closer.start()
    assert len(workers.close()) == 1 and "never" not in done
    with pytest.raises(RuntimeError):
        workers.submit(lambda: None)


def test_work_that_fails_stops_nothing():
    workers, done = Workers(2, "test"), []
    workers.submit(lambda: 1 / 0)
    workers.submit(lambda: done.append(1))
    workers.wait_idle()
    workers.close()
    assert done == [1]


def _in_child(store, items, workers, queue):
    done = []
    workers.submit(lambda: done.append(store.load(targets_of(items))))
    workers.wait_idle()
    queue.put(done[0])


def test_after_a_fork(tmp_path):
    """LMCache and SGLang fork, and threads of the codec and of the plug-in do not survive that."""
    store, workers = FrameStore(FrameDirectory(tmp_path), Codec(threads=2)), Workers(1, "test")
    items = items_of(6)
    workers.submit(lambda: store.store(items, SHAPE))
    workers.wait_idle()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(store, items, workers, queue))
    child.start()
    assert queue.get(timeout=30) == [0] * 6
    child.join(timeout=30)
    assert store.load(targets_of(items)) == [0] * 6
    workers.close()


def _crowd(folder, seed, seconds, queue):
    """Stores, loads and damages objects with distinct contents. Returns how many loads were
    correct."""
    store = FrameStore(FrameDirectory(folder, max_bytes=20 * RAW))
    identity, random = identity_of(engine="crowd"), np.random.default_rng(seed)
    right, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        number = int(random.integers(60))
        (content,) = items_of(1, identity, seed=number)
        item = Item(identity.name(b"%d" % number), identity.context(b"%d" % number), content.raw)
        assert store.store([item], SHAPE) != [None]
        (target,) = targets_of([item])
        if store.load([target]) == [0]:  # an item may be gone or damaged, but never has other contents
            assert bytes(target.raw) == item.raw.tobytes()
            right += 1
        if random.random() < 0.1:
            try:
                damage(store.directory.path(item.name), str(random.choice(DAMAGES)))
            except (FileNotFoundError, IndexError):
                pass
    queue.put(right)


def test_processes_crowd_one_folder(tmp_path):
    """Three processes store, load, evict and damage the same objects; one of them is killed."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    victim = context.Process(target=_crowd, args=(tmp_path, 9, 60, queue))
    workers = [context.Process(target=_crowd, args=(tmp_path, seed, 2, queue)) for seed in range(2)]
    [process.start() for process in (victim, *workers)]
    end = time.monotonic() + 60
    while len(frames_in(tmp_path)) < 5 and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.3)
    victim.kill()
    victim.join()
    rights = [queue.get(timeout=60) for _ in workers]
    [process.join(timeout=60) for process in workers]
    assert [process.exitcode for process in workers] == [0, 0] and min(rights) > 0
    directory = FrameDirectory(tmp_path, max_bytes=20 * RAW)
    assert os.listdir(tmp_path / "tmp") == [] and directory.total_bytes <= 24 * RAW


def test_modules_of_engines_are_imported_only_when_asked():
    script = (
        "import sys, kvtool\n"
        "for name in ('torch', 'lmcache', 'vllm', 'sglang', 'kvtool.lmcache', 'kvtool._frames'):\n"
        "    assert name not in sys.modules, name"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
