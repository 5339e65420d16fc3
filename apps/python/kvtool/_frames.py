# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The part that the engines' plug-ins share: objects are coded into frames by a Codec and kept in a folder or in
memory."""

from __future__ import annotations

import collections
import dataclasses
import errno
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ._codec import Codec, PageLayout, _Lease
from ._directory import FULL, HEADER_BYTES, FrameDirectory, OpenFile
from ._errors import Error
from ._kvtool import bound, frame_info
from ._memory import FrameMemory, OpenBytes

logger = logging.getLogger(__name__)

Storage = FrameDirectory | FrameMemory
Opened = OpenFile | OpenBytes

# Findings below 1000 are about the call, not about the frame.
_FIRST_DATA_FINDING = 1000
# Names of findings of refused frames in metrics. "version": a valid frame of a newer version of kvtool, with an
# element type, codec or profile that this one does not have.
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
# Seconds that stores are suspended after a full disk; then one object is tried.
PAUSE_SECONDS = 30
_PAUSING = (*FULL, errno.EROFS)


def reason_for(finding: int | str) -> str | None:
    """Name of a finding in metrics (its number, or a word); None if the call failed and not the
    frame."""
    if isinstance(finding, str):
        return finding
    return _REASONS.get(finding, "damaged") if finding >= _FIRST_DATA_FINDING else None


class Counters:
    """Sums that any thread may add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: collections.Counter[str] = collections.Counter()

    def add(self, **amounts: Any) -> None:
        with self._lock:
            self._sums.update(amounts)

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            return dict(self._sums)


class _Stores:
    """Decides whether to try to store. On a full disk every store fails, so stores are suspended, and the log reports
    it once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: set[int | None] = set()  # errors logged since the last successful store
        self._next_try = 0.0
        self.problem: str | None = None

    def may_try(self) -> bool:
        with self._lock:
            if self.problem is None:
                return True
            now = time.monotonic()
            if now < self._next_try:
                return False
            self._next_try = now + PAUSE_SECONDS  # the other threads wait for the result of this attempt
            return True

    @property
    def paused(self) -> bool:
        """True if a full disk suspends stores. The rest of a batch is then not tried, either."""
        return self.problem is not None

    def failed(self, error: OSError) -> None:
        with self._lock:
            level = logging.DEBUG if error.errno in self._said else logging.WARNING
            self._said.add(error.errno)
            if error.errno not in _PAUSING:
                logger.log(level, "kvtool: objects are not stored: %s", error)
                return
            self.problem = str(error)
            self._next_try = time.monotonic() + PAUSE_SECONDS
            logger.log(level, "kvtool: nothing is stored until this is fixed: %s", error)

    def succeeded(self) -> None:
        if not self._said:
            return
        with self._lock:
            if self.problem is not None:
                logger.warning("kvtool: the disk accepts data again; storing resumed")
            self._said.clear()
            self.problem = None


@dataclasses.dataclass
class Item:
    """One object of a batch. raw: memory of the object, or, for a load, of its destination."""

    name: str
    context: bytes
    raw: Any
    tag: int = 0


class FrameStore:
    """Objects of an engine in a folder or in memory, coded and checked.

    group_bytes: bytes that are coded in one call, which bounds the scratch memory of each context.
    """

    def __init__(self, storage: Storage, codec: Codec | None = None, group_bytes: int = 32 << 20) -> None:
        self.directory = storage
        self.codec = codec or Codec()
        self.counters = Counters()
        self._stores = _Stores()
        self._newer: dict[str, bytes] = {}  # name -> header of a frame that only a newer version can decode
        self._group_bytes = group_bytes

    def close(self) -> None:
        self.codec.close()

    def header(self, name: str) -> dict[str, Any] | None:
        """Returns frame_info of a file whose header describes a whole frame; None for anything else, without an
        error."""
        return self._look(name)[0]

    def _look(self, name: str) -> tuple[dict[str, Any] | None, bool]:
        """Returns the header or None, and whether there is a valid frame that only a newer version of kvtool can
        read."""
        opened = self.directory.open(name)
        if opened is None:
            return None, False
        header = b""
        try:
            with opened:
                header = opened.header()
            if header == self._newer.get(name):
                return None, True
            info = frame_info(header)
            self._newer.pop(name, None)
            return (info if info["frame_bytes"] == opened.size else None), False
        except Error as error:
            newer = reason_for(error.finding) == "version"
            if newer:
                self._newer[name] = header
            return None, newer
        except OSError:
            return None, False

    def has(self, name: str, context: bytes) -> bool:
        """True if there is a frame of this context, by its header. Loading checks its bytes."""
        info = self.header(name)
        return info is not None and info["context"] == context

    def is_offered(self, name: str) -> bool:
        """True if the folder holds a file that this process can serve, as far as it knows."""
        return name in self.directory and name not in self._newer

    def is_settled(self, name: str, context: bytes) -> bool:
        """True if nothing needs to be stored: there is a frame of this context, or one of a newer version, which
        other processes can read."""
        info, newer = self._look(name)
        return newer or (info is not None and info["context"] == context)

    # ---- storing ----

    def store(
        self, items: Sequence[Item], layout: PageLayout, prepare: Callable[[list[Item]], object] | None = None
    ) -> list[int | None]:
        """Stores the items that the folder lacks. Returns for each the bytes written, 0 if it was stored already, None
        on failure.

        prepare: gets the items that are about to be coded together, and may give them other memory and tags."""
        results: list[int | None] = [0 if self.is_settled(item.name, item.context) else None for item in items]
        missing = [index for index, result in enumerate(results) if result is None]
        self.counters.add(already_stored=len(items) - len(missing))
        for group in grouped(missing, lambda index: _bytes_of(items[index].raw), self._group_bytes):
            if not self._stores.may_try():
                self.counters.add(store_failures=len(group))
                continue
            if prepare:
                prepare([items[index] for index in group])
            with self.codec.lease() as lease:
                self._store_group(lease, [(index, items[index]) for index in group], layout, results)
        return results

    def _store_group(
        self, lease: _Lease, group: list[tuple[int, Item]], layout: PageLayout, results: list[int | None]
    ) -> None:
        rooms = [bound(_bytes_of(item.raw)) for _, item in group]
        outs = _split(lease.room(sum(rooms)), rooms)
        start = time.perf_counter()
        try:
            coded = lease.context.encode_batch(
                [item.raw for _, item in group],
                contexts=[item.context for _, item in group],
                tags=[item.tag for _, item in group],
                outs=outs,
                **layout.arguments(),
            )
        except (Error, TypeError, ValueError, MemoryError) as error:
            logger.warning("kvtool: %d objects were not stored: %s", len(group), error)
            self.counters.add(store_failures=len(group))
            return
        self.counters.add(encode_seconds=time.perf_counter() - start)
        tried = False  # the first object tests whether the disk is still full
        for (index, item), size, status, out in zip(group, coded.sizes, coded.status, outs):
            if status == 0 and not (tried and self._stores.paused):
                results[index] = self._write(item.name, out[:size])
                tried = True
            else:
                self.counters.add(store_failures=1)

    def store_frame(self, name: str, frame: memoryview) -> int | None:
        """Stores a whole frame as it is. Returns its size, 0 if it was stored already, None on
        failure."""
        if self.is_settled(name, frame_info(frame)["context"]):
            return 0
        if self._stores.may_try():
            return self._write(name, frame)
        self.counters.add(store_failures=1)
        return None

    def _write(self, name: str, frame: memoryview) -> int | None:
        """Publishes a frame. Returns its size, or None."""
        raw_bytes = frame_info(frame[:HEADER_BYTES])["raw_bytes"]
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
            stored_raw=int(size == bound(raw_bytes)),
            write_seconds=time.perf_counter() - start,
        )
        return size

    # ---- loading ----

    def load(self, items: Sequence[Item]) -> list[int | None]:
        """Fills item.raw of each. Returns for each item the frame's tag, or None: the contents of raw are then
        undefined, and a damaged file was removed."""
        results: list[int | None] = [None] * len(items)
        for group in grouped(range(len(items)), lambda index: _bytes_of(items[index].raw), self._group_bytes):
            with self.codec.lease() as lease:
                self._load_group(lease, [(index, items[index]) for index in group], results)
        return results

    def _load_group(self, lease: _Lease, group: list[tuple[int, Item]], results: list[int | None]) -> None:
        rooms = [bound(_bytes_of(item.raw)) for _, item in group]
        found = []  # entries: (index, item, frame, open file, tag)
        for (index, item), room in zip(group, _split(lease.room(sum(rooms)), rooms)):
            read = self.read(item.name, room)
            if read is None:
                continue
            frame, opened = read
            try:
                info = frame_info(frame)
                if info["frame_bytes"] != len(frame):
                    self.refuse(item.name, opened, "length")
                else:
                    found.append((index, item, frame, opened, info["tag"]))
            except Error as error:
                self.refuse(item.name, opened, error.finding)
        if not found:
            return
        start = time.perf_counter()
        try:
            decoded = lease.context.decode_batch(
                [frame for _, _, frame, _, _ in found],
                contexts=[item.context for _, item, _, _, _ in found],
                outs=[item.raw for _, item, _, _, _ in found],
            )
        except (Error, TypeError, ValueError, MemoryError) as error:
            logger.warning("kvtool: %d objects were not loaded: %s", len(found), error)
            self.counters.add(load_failures=len(found))
            return
        self.counters.add(decode_seconds=time.perf_counter() - start)
        for (index, item, frame, opened, tag), code in zip(found, decoded.status):
            if code == 0:
                results[index] = tag
                self.counters.add(loaded=1, loaded_bytes=len(frame), loaded_raw_bytes=_bytes_of(item.raw))
            else:
                self.refuse(item.name, opened, -code)

    def read(self, name: str, room: memoryview) -> tuple[memoryview, Opened] | None:
        """Returns the bytes of a file, in `room`, and the open file. None if there is none, if it cannot be a frame
        of the expected size, or if only a newer version can decode it."""
        opened = self.directory.open(name)
        if opened is None:
            return None
        start = time.perf_counter()
        try:
            with opened:
                if opened.size > len(room):
                    self.refuse(name, opened, _finding_in(opened.header()) or "length")
                    return None
                frame = room[: opened.read(room)]
        except OSError as error:  # a failure of memory, descriptors or network: the file stays
            logger.warning("kvtool: %s could not be read: %s", self.directory.path(name), error)
            self.counters.add(load_failures=1, read_errors=1)
            self.directory.note_read(name, succeeded=False)
            return None
        self.directory.note_read(name, succeeded=True)
        self.counters.add(read_seconds=time.perf_counter() - start)
        if name in self._newer and bytes(frame[:HEADER_BYTES]) == self._newer.get(name):
            return None
        return frame, opened

    def verify(self, name: str, frame: memoryview, opened: Opened, context: bytes | None = None) -> bool:
        """Returns whether a frame that was read is valid; refuses it otherwise."""
        try:
            with self.codec.lease() as lease:
                lease.context.verify_frame(frame, context=context)
            return True
        except Error as error:
            self.refuse(name, opened, error.finding)
            return False

    def recheck(self, name: str, context: bytes) -> None:
        """Reads a file that a caller found damaged, perhaps in another copy, and refuses it if it is
        damaged."""
        opened = self.directory.open(name)
        if opened is None:
            return
        opened.close()
        read = self.read(name, memoryview(bytearray(opened.size)))
        if read is not None:
            self.verify(name, *read, context=context)

    def refuse(self, name: str, opened: Opened, finding: int | str) -> None:
        """Counts a file that cannot be served. A damaged one is removed, so that the next store repairs it. A frame
        of a newer version stays for processes that can read it, and a call that failed for lack of memory proves
        nothing about the file.
        """
        reason = reason_for(finding)
        if reason is None:
            self.counters.add(load_failures=1)
            return
        self.counters.add(**{"refused": 1, "refused_" + reason: 1})
        logger.warning("kvtool: refused %s (%s)", self.directory.path(name), reason)
        if reason == "version":
            self._remember_newer(name, opened)
        else:
            self.directory.discard(name, opened)

    def _remember_newer(self, name: str, refused: Opened) -> None:
        """A header does not always show that its frame is of a newer version: it does not have the codecs of
        segments, for example. A file that replaced the refused one may be valid."""
        opened = self.directory.open(name)
        if opened is None:
            return
        try:
            with opened:
                if opened.identity == refused.identity:
                    self._newer[name] = opened.header()
        except OSError:
            pass  # the next scan examines it again

    def report(self) -> dict[str, Any]:
        """Counters and the state of the folder, for logs and health reports."""
        sums = self.counters.snapshot()
        raw, stored = sums.get("raw_bytes", 0), sums.get("stored_bytes", 0)
        return {
            "level": self.codec.level,
            "folder": self.directory.root,
            "folder_bytes": self.directory.total_bytes,
            "folder_objects": len(self.directory),
            "evicted": self.directory.evicted,
            "storing": self._stores.problem is None,
            "store_problem": self._stores.problem,
            "ratio": raw / stored if stored else None,
            **sums,
        }


def grouped(indices: Iterable[int], size_of: Callable[[int], int], most_bytes: int) -> Iterator[list[int]]:
    """Consecutive indices whose sizes together are at most `most_bytes`, at least one each."""
    group: list[int] = []
    total = 0
    for index in indices:
        size = size_of(index)
        if group and total + size > most_bytes:
            yield group
            group, total = [], 0
        group.append(index)
        total += size
    if group:
        yield group


def _finding_in(header: bytes) -> int | None:
    """Returns what is wrong with the header of a frame; None if nothing is."""
    try:
        frame_info(header)
    except Error as error:
        return error.finding
    return None


def _bytes_of(raw: Any) -> int:
    return memoryview(raw).nbytes


def _split(memory: memoryview, sizes: Iterable[int]) -> list[memoryview]:
    parts, at = [], 0
    for size in sizes:
        parts.append(memory[at : at + size])
        at += size
    return parts
