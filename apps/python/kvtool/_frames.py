# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""What the engines' plug-ins share: objects coded into frames and kept in a folder."""

import collections
import contextlib
import dataclasses
import errno
import logging
import os
import threading
import time

import kvtool
from kvtool._configuration import level_option
from kvtool._directory import FULL

logger = logging.getLogger(__name__)

# torch's names of element types, by the codec's. What is missing here is coded as bytes.
TORCH_DTYPES = {
    "torch.bfloat16": "bf16",
    "torch.float16": "f16",
    "torch.float32": "f32",
    "torch.float8_e4m3fn": "f8_e4m3",
    "torch.float8_e5m2": "f8_e5m2",
    "torch.int8": "i8",
    "torch.uint8": "u8",
}

_HEADER_BYTES = 128
# Findings below 1000 are about the call, not about the frame.
_FIRST_DATA_FINDING = 1000
# Findings of refused frames, as metrics name them. Those of "version" are sound frames that a newer version of kvtool
# wrote: an element type, codec or profile that this one does not have.
_REASONS = {
    1001: "short",
    1003: "not_a_frame",
    1008: "size",
    1010: "version",
    1103: "hash",
    1106: "context",
    1109: "version",
    1301: "version",
    1302: "version",
    1303: "version",
    1304: "version",
}
# After a full disk stores wait this long, and are then tried with one object.
PAUSE_SECONDS = 30
_PAUSING = (*FULL, errno.EROFS)


def reason_for(finding):
    """How metrics name a finding (its number, or a word); None where the call failed and not the frame."""
    if isinstance(finding, str):
        return finding
    return _REASONS.get(finding, "damaged") if finding >= _FIRST_DATA_FINDING else None


class Counters:
    """Sums that any thread may add to."""

    def __init__(self):
        self._lock = threading.Lock()
        self._sums = collections.Counter()

    def add(self, **amounts):
        with self._lock:
            self._sums.update(amounts)

    def snapshot(self):
        with self._lock:
            return dict(self._sums)


class _Stores:
    """Whether storing is worth a try. A full disk fails every store, so they wait, and the log says so once."""

    def __init__(self):
        self._lock = threading.Lock()
        self._said = set()  # errors that the log has had since the last good store
        self._next_try = 0.0
        self.problem = None

    def may_try(self):
        with self._lock:
            if self.problem is None:
                return True
            now = time.monotonic()
            if now < self._next_try:
                return False
            self._next_try = now + PAUSE_SECONDS  # the others wait for the outcome of this one
            return True

    @property
    def paused(self):
        """Whether a full disk makes stores wait. What is left of a batch is then not tried, either."""
        return self.problem is not None

    def failed(self, error):
        with self._lock:
            level = logging.DEBUG if error.errno in self._said else logging.WARNING
            self._said.add(error.errno)
            if error.errno not in _PAUSING:
                logger.log(level, "kvtool: objects are not stored: %s", error)
                return
            self.problem = str(error)
            self._next_try = time.monotonic() + PAUSE_SECONDS
            logger.log(level, "kvtool: nothing is stored until this is mended: %s", error)

    def succeeded(self):
        if not self._said:
            return
        with self._lock:
            if self.problem is not None:
                logger.warning("kvtool: objects are stored again")
            self._said.clear()
            self.problem = None


@dataclasses.dataclass
class Shape:
    """What the values of an object are, as far as the engine says it. It helps the codec and is never trusted."""

    dtype: str | None = None
    shape: tuple | None = None
    order: str = "token_head_dim"
    role: str = "unknown"

    def arguments(self):
        return {"dtype": self.dtype, "shape": self.shape, "order": self.order, "role": self.role}


@dataclasses.dataclass
class Item:
    """One object of a batch. raw: memory of the object, or, for a load, of where it goes."""

    name: str
    context: bytes
    raw: object
    tag: int = 0


class _Lease:
    """A context and scratch memory, which one call uses at a time."""

    def __init__(self, level, threads):
        self.context = kvtool.Context(level, threads=threads)
        self._memory = bytearray()

    def room(self, size):
        if len(self._memory) < size:
            self._memory = bytearray(size)
        return memoryview(self._memory)[:size]


class Coder:
    """Contexts of one level, each with `threads` threads. A call takes one that is free, so calls on several threads
    run side by side."""

    def __init__(self, level="fast", threads=1):
        self.level = level_option(level)
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
            raise ValueError(f"threads must be a number that is not negative, not {threads!r}")
        self.threads = threads
        self._free = collections.deque()

    @contextlib.contextmanager
    def lease(self):
        try:
            lease = self._free.pop()
        except IndexError:
            lease = _Lease(self.level, self.threads)
        try:
            yield lease
        finally:
            self._free.append(lease)

    def close(self):
        """Frees contexts, threads and scratch memory; later calls make new ones."""
        self._free.clear()


class FrameStore:
    """Objects of an engine in a folder, coded and checked.

    group_bytes: what is coded in one call, which bounds the scratch memory that each context keeps.
    """

    def __init__(self, directory, level="fast", threads=1, group_bytes=32 << 20):
        self.directory = directory
        self.coder = Coder(level, threads)
        self.counters = Counters()
        self._stores = _Stores()
        self._newer = {}  # name -> header of a frame that only a newer version can decode
        self._group_bytes = group_bytes

    def header(self, name):
        """frame_info of a file that is a whole frame by its header; None for anything else, without a word."""
        return self._look(name)[0]

    def _look(self, name):
        """The header or None, and whether a sound frame is there that only a newer version of kvtool can read."""
        opened = self.directory.open(name)
        if opened is None:
            return None, False
        fd, status = opened
        try:
            header = os.pread(fd, _HEADER_BYTES, 0)
            if header == self._newer.get(name):
                return None, True
            info = kvtool.frame_info(header)
            self._newer.pop(name, None)
            return (info if info["frame_bytes"] == status.st_size else None), False
        except kvtool.Error as error:
            newer = reason_for(error.finding) == "version"
            if newer:
                self._newer[name] = header
            return None, newer
        except OSError:
            return None, False
        finally:
            os.close(fd)

    def has(self, name, context):
        """Whether there is a frame of this context, by its header. Its bytes are checked when they are loaded."""
        info = self.header(name)
        return info is not None and info["context"] == context

    def is_offered(self, name):
        """Whether the folder holds a file that this process can serve, as far as it has seen."""
        return name in self.directory and name not in self._newer

    def is_settled(self, name, context):
        """Whether there is nothing to store: there is a frame of this context, or one of a newer version, which other
        processes can read."""
        info, newer = self._look(name)
        return newer or (info is not None and info["context"] == context)

    # ---- storing ----

    def store(self, items, shape):
        """Stores what is not there yet. Returns per item the bytes written, 0 where it was there, None on failure."""
        results = [None] * len(items)
        missing = []
        for index, item in enumerate(items):
            if self.is_settled(item.name, item.context):
                results[index] = 0
            else:
                missing.append(index)
        self.counters.add(already_stored=len(items) - len(missing))
        for group in self._groups(items, missing):
            if not self._stores.may_try():
                self.counters.add(store_failures=len(group))
                continue
            with self.coder.lease() as lease:
                self._store_group(lease, [(index, items[index]) for index in group], shape, results)
        return results

    def _store_group(self, lease, group, shape, results):
        rooms = [kvtool.bound(_bytes_of(item.raw)) for _, item in group]
        outs = _split(lease.room(sum(rooms)), rooms)
        start = time.perf_counter()
        try:
            coded = lease.context.encode_batch(
                [item.raw for _, item in group],
                contexts=[item.context for _, item in group],
                tags=[item.tag for _, item in group],
                outs=outs,
                **shape.arguments(),
            )
        except (kvtool.Error, TypeError, ValueError, MemoryError) as error:
            logger.warning("kvtool: %d objects were not stored: %s", len(group), error)
            self.counters.add(store_failures=len(group))
            return
        self.counters.add(encode_seconds=time.perf_counter() - start)
        tried = False  # the first object finds out whether the disk is still full
        for (index, item), size, status, out in zip(group, coded.sizes, coded.status, outs):
            if status == 0 and not (tried and self._stores.paused):
                results[index] = self._write(item.name, out[:size])
                tried = True
            else:
                self.counters.add(store_failures=1)

    def store_frame(self, name, frame):
        """Stores a whole frame as it is. Returns its size, 0 where it was there, None on failure."""
        if self.is_settled(name, kvtool.frame_info(frame)["context"]):
            return 0
        if self._stores.may_try():
            return self._write(name, frame)
        self.counters.add(store_failures=1)
        return None

    def _write(self, name, frame):
        """Publishes a frame. Returns its size, or None."""
        raw_bytes = kvtool.frame_info(frame[:_HEADER_BYTES])["raw_bytes"]
        start = time.perf_counter()
        try:
            size = self.directory.put(name, frame)
        except OSError as error:
            self._stores.failed(error)
            self.counters.add(store_failures=1)
            return None
        self._stores.succeeded()
        self._newer.pop(name, None)
        self.counters.add(
            stored=1,
            raw_bytes=raw_bytes,
            stored_bytes=size,
            stored_raw=int(size == kvtool.bound(raw_bytes)),
            write_seconds=time.perf_counter() - start,
        )
        return size

    # ---- loading ----

    def load(self, items):
        """Fills item.raw of each. Returns per item the frame's tag, or None: then raw holds garbage, and a file that
        was there and damaged is gone."""
        results = [None] * len(items)
        for group in self._groups(items, range(len(items))):
            with self.coder.lease() as lease:
                self._load_group(lease, [(index, items[index]) for index in group], results)
        return results

    def _load_group(self, lease, group, results):
        rooms = [kvtool.bound(_bytes_of(item.raw)) for _, item in group]
        found = []  # index, item, frame, status of the file, tag
        for (index, item), room in zip(group, _split(lease.room(sum(rooms)), rooms)):
            read = self.read(item.name, room)
            if read is None:
                continue
            frame, status = read
            try:
                info = kvtool.frame_info(frame)
                if info["frame_bytes"] != len(frame):
                    self.refuse(item.name, status, "length")
                else:
                    found.append((index, item, frame, status, info["tag"]))
            except kvtool.Error as error:
                self.refuse(item.name, status, error.finding)
        if not found:
            return
        start = time.perf_counter()
        try:
            decoded = lease.context.decode_batch(
                [frame for _, _, frame, _, _ in found],
                contexts=[item.context for _, item, _, _, _ in found],
                outs=[item.raw for _, item, _, _, _ in found],
            )
        except (kvtool.Error, TypeError, ValueError, MemoryError) as error:
            logger.warning("kvtool: %d objects were not loaded: %s", len(found), error)
            self.counters.add(load_failures=len(found))
            return
        self.counters.add(decode_seconds=time.perf_counter() - start)
        for (index, item, frame, status, tag), code in zip(found, decoded.status):
            if code == 0:
                results[index] = tag
                self.counters.add(loaded=1, loaded_bytes=len(frame), loaded_raw_bytes=_bytes_of(item.raw))
            else:
                self.refuse(item.name, status, -code)

    def read(self, name, room):
        """The bytes of a file, in `room`, and its status; None where there is none, where it can be no frame of the size
        expected, and where only a newer version can decode it."""
        opened = self.directory.open(name)
        if opened is None:
            return None
        fd, status = opened
        start = time.perf_counter()
        try:
            if status.st_size > len(room):
                self.refuse(name, status, _finding_in(os.pread(fd, _HEADER_BYTES, 0)) or "length")
                return None
            count = 0
            while count < status.st_size:
                got = os.preadv(fd, [room[count : status.st_size]], count)
                if got == 0:
                    break
                count += got
            self.directory.touch(fd)
        except OSError as error:  # memory, descriptors, a network: the file stays
            logger.warning("kvtool: %s could not be read: %s", self.directory.path(name), error)
            self.counters.add(load_failures=1, read_errors=1)
            self.directory.note_read(name, succeeded=False)
            return None
        finally:
            os.close(fd)
        self.directory.note_read(name, succeeded=True)
        self.counters.add(read_seconds=time.perf_counter() - start)
        frame = room[:count]
        if name in self._newer and frame[:_HEADER_BYTES] == self._newer.get(name):
            return None
        return frame, status

    def recheck(self, name, context):
        """Reads a file that somebody found wrong, who may have read another copy, and refuses it if it is."""
        opened = self.directory.open(name)
        if opened is None:
            return
        os.close(opened[0])
        read = self.read(name, memoryview(bytearray(opened[1].st_size)))
        if read is None:
            return
        frame, status = read
        try:
            with self.coder.lease() as lease:
                lease.context.verify_frame(frame, context=context)
        except kvtool.Error as error:
            self.refuse(name, status, error.finding)

    def refuse(self, name, status, finding):
        """Counts a file that cannot be served. A damaged one is removed, so that the next store repairs it; a frame of a
        newer version stays for those who can read it, and a call that failed for want of memory says nothing of a file.
        """
        reason = reason_for(finding)
        if reason is None:
            self.counters.add(load_failures=1)
            return
        self.counters.add(**{"refused": 1, "refused_" + reason: 1})
        logger.warning("kvtool: refused %s (%s)", self.directory.path(name), reason)
        if reason == "version":
            self._remember_newer(name, status)
        else:
            self.directory.discard(name, status)

    def _remember_newer(self, name, status):
        """Not every header says that its frame is of a newer version; the codec of a segment, for example, is not there.
        A file that took the place of the one with this status may be sound."""
        opened = self.directory.open(name)
        if opened is None:
            return
        try:
            if (opened[1].st_dev, opened[1].st_ino) == (status.st_dev, status.st_ino):
                self._newer[name] = os.pread(opened[0], _HEADER_BYTES, 0)
        except OSError:
            pass  # it will be looked at again
        finally:
            os.close(opened[0])

    def _groups(self, items, indices):
        """Consecutive indices whose objects together need no more memory than a group may, at least one each."""
        group, total = [], 0
        for index in indices:
            size = _bytes_of(items[index].raw)
            if group and total + size > self._group_bytes:
                yield group
                group, total = [], 0
            group.append(index)
            total += size
        if group:
            yield group

    def report(self):
        """Counters and the state of the folder, for logs and health reports."""
        sums = self.counters.snapshot()
        raw, stored = sums.get("raw_bytes", 0), sums.get("stored_bytes", 0)
        return {
            "level": self.coder.level,
            "folder": self.directory.root,
            "folder_bytes": self.directory.total_bytes,
            "folder_objects": len(self.directory),
            "evicted": self.directory.evicted,
            "storing": self._stores.problem is None,
            "store_problem": self._stores.problem,
            "ratio": raw / stored if stored else None,
            **sums,
        }


def _finding_in(header):
    """What is wrong with the header of a frame; None if nothing is."""
    try:
        kvtool.frame_info(header)
    except kvtool.Error as error:
        return error.finding
    return None


def _bytes_of(raw):
    return memoryview(raw).nbytes


def _split(memory, sizes):
    parts, at = [], 0
    for size in sizes:
        parts.append(memory[at : at + size])
        at += size
    return parts
