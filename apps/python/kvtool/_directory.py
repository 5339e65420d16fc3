# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""A folder of frames with a limit on its size, which several processes may use at once.

A file is written under a temporary name and renamed when it is complete, so that no reader ever sees an incomplete
file, and a killed writer leaves only a temporary file, which the next start removes. File contents are not trusted: a
power loss can leave the right size and wrong bytes, so readers check the hash in the frame.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


HEADER_BYTES = 128
# Called with the (name, size) pairs that a limit removed, on the thread that stored.
Evicted = Callable[[list[tuple[str, int]]], object]

SUFFIX = ".kvf"
_TEMPORARY = "tmp"
# Name patterns of this module's files; all other files in the same folder belong to somebody else.
_OWN_NAME = re.compile(r"[0-9a-f]{3,}").fullmatch
_OWN_TEMPORARY = re.compile(r"[0-9a-f]{32}").fullmatch
_ABANDONED_SECONDS = 24 * 3600  # age at which a temporary file is removed if locks do not work
FULL = (errno.ENOSPC, errno.EDQUOT)
_SPARE_BYTES = 16 << 10  # extra bytes to free on a full disk, because folders grow, too
_MOST_READ_ERRORS = 3
# Opening neither waits for the writer of a pipe nor follows a link to another folder.
_OPEN_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW


class OpenFile:
    """An open file. It stays readable even if it is removed meanwhile. identity: distinguishes it from a later file
    of the same name."""

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self.size, self.identity = status.st_size, (status.st_dev, status.st_ino)
        self.fd = fd

    def header(self) -> bytes:
        """Returns its first bytes; raises OSError."""
        return os.pread(self.fd, HEADER_BYTES, 0)

    def read(self, room: memoryview) -> int:
        """Fills `room`, which is large enough. Returns the number of bytes; raises OSError."""
        count = 0
        while count < self.size:
            got = os.preadv(self.fd, [room[count : self.size]], count)
            if got == 0:
                break
            count += got
        try:
            os.utime(self.fd)  # shows other processes and later starts that the file is in use
        except OSError:
            pass  # not our file, so its use is only recorded in this process
        return count

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FrameDirectory:
    """Files by name (hexadecimal digits). When `max_bytes` are reached, the least recently used are deleted.

    max_bytes: limit of all files together; 0: no limit. durable: write each file through to the disk before it
    appears. on_evict: called with the (name, size) pairs that the limit removed, on the thread that stored.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        max_bytes: int = 0,
        durable: bool = False,
        on_evict: Evicted | None = None,
    ) -> None:
        if max_bytes < 0:
            raise ValueError("max_bytes must not be negative")
        self.root = os.path.abspath(os.fspath(root))
        self.max_bytes = max_bytes
        self._durable = durable
        self._on_evict = on_evict
        self._lock = threading.Lock()  # guards the figures below; never held while waiting for the disk
        self._moves = threading.Lock()  # locks for names: a removed file is not the one that was just stored
        self._sizes: OrderedDict[str, int] = OrderedDict()  # name -> bytes, the least recently used first
        self._total = 0
        self._unscanned = 0  # bytes written since the files of other processes were last counted
        self._scanning = threading.Lock()
        self._changed: set[str] = set()  # names stored and removed while the folder is counted
        self._hidden: set[str] = set()  # files not offered: damaged and not removable, or never readable
        self._read_errors: dict[str, int] = {}  # name -> number of failed reads since the last good one
        self.evicted = 0
        self._temporary = os.path.join(self.root, _TEMPORARY)
        os.makedirs(self._temporary, exist_ok=True)
        if os.path.islink(self._temporary):
            raise ValueError(f"{self._temporary} is a symbolic link: files elsewhere would be removed; delete the link")
        self._remove_abandoned()
        self._scan()

    def path(self, name: str) -> str:
        return os.path.join(self.root, name[:2], name + SUFFIX)

    @property
    def total_bytes(self) -> int:
        with self._lock:
            return self._total

    def __len__(self) -> int:
        with self._lock:
            return len(self._sizes)

    def __contains__(self, name: object) -> bool:
        """True if the file is counted and offered."""
        with self._lock:
            return name in self._sizes and name not in self._hidden

    def open(self, name: str) -> OpenFile | None:
        """Returns the file, or None if there is none. Marks it as used."""
        if name in self._hidden:
            return None
        try:
            fd = os.open(self.path(name), _OPEN_FLAGS)
        except FileNotFoundError:
            self._forget(name)
            return None
        except OSError:
            return None  # such as no free descriptor: a miss, but the file stays counted
        try:
            opened = OpenFile(fd)
        except OSError:
            os.close(fd)
            return None
        self._note_used(name, opened.size)
        return opened

    def note_read(self, name: str, succeeded: bool) -> None:
        """A single failed read proves nothing, so the file stays. After repeated failures it is not offered until it
        is stored again: otherwise it would be found and missed for ever."""
        if succeeded and name not in self._read_errors:
            return
        with self._lock:
            failed = 0 if succeeded else self._read_errors.pop(name, 0) + 1
            if failed >= _MOST_READ_ERRORS:
                self._hidden.add(name)
            elif failed:
                self._read_errors[name] = failed
            else:
                self._read_errors.pop(name, None)

    def put(self, name: str, data: Any) -> int:
        """Publishes `data` under `name`, replacing any existing file. Returns its size; raises OSError.

        If the disk is full, the least recently used files are deleted.
        """
        size = len(data)
        if self.max_bytes and size > self.max_bytes:
            raise OSError(errno.EFBIG, f"{size} bytes are more than the folder may hold")
        self._make_room(size, name)
        try:
            self._write(name, data)
        except OSError as error:
            wanted = size + _SPARE_BYTES
            # If deleting cannot free enough, nothing is deleted.
            if error.errno not in FULL or self.total_bytes < wanted or not self._evict(lambda: wanted, name):
                raise
            self._write(name, data)
        with self._lock:
            self._unscanned += size
            crowded = self.max_bytes and self._unscanned * 8 > self.max_bytes
        if crowded:
            self._scan()
        self._make_room(0, name)  # makes room for files that others stored meanwhile
        return size

    def _write(self, name: str, data: Any) -> None:
        temporary, fd = self._new_temporary()
        try:
            try:
                view = memoryview(data).cast("B")
                while len(view):
                    view = view[os.write(fd, view) :]
                if self._durable:
                    os.fsync(fd)
                with self._moves:
                    self._publish(temporary, self.path(name))
                    self._note(name, len(data))
                    with self._lock:
                        self._hidden.discard(name)
                        self._read_errors.pop(name, None)
            finally:
                os.close(fd)
        except BaseException:
            _unlink(temporary)
            raise

    def discard(self, name: str, opened: Any = None) -> int:
        """Removes a file. If the file that was read is given, removes only that one, because another process may have
        stored a new one. Returns the bytes freed."""
        path = self.path(name)
        with self._moves:
            try:
                there = os.stat(path, follow_symlinks=False)
                if opened is not None and (there.st_dev, there.st_ino) != opened.identity:
                    return 0
                os.unlink(path)
            except FileNotFoundError:
                self._forget(name)
                return 0
            except OSError:
                with self._lock:
                    self._hidden.add(name)  # the file stays, but is not offered
                self._forget(name)
                return 0
            self._forget(name)
        return there.st_size

    def clear(self) -> None:
        self._scan()
        for name in list(self._sizes):
            self.discard(name)

    def _new_temporary(self) -> tuple[str, int]:
        """A file that is locked while it is written, so that a starting process does not take it for
        abandoned."""
        while True:
            path = os.path.join(self._temporary, uuid.uuid4().hex)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            try:
                fd = os.open(path, flags, 0o644)
            except FileNotFoundError:  # the folder was emptied meanwhile
                os.makedirs(self._temporary, exist_ok=True)
                fd = os.open(path, flags, 0o644)
            if _lock_file(fd) is not False and os.fstat(fd).st_nlink:
                return path, fd
            os.close(fd)  # another process created it between the two calls

    def _publish(self, temporary: str, path: str) -> None:
        try:
            os.replace(temporary, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(temporary, path)

    def _note(self, name: str, size: int) -> None:
        with self._lock:
            self._total += size - self._sizes.get(name, 0)
            self._sizes[name] = size
            self._sizes.move_to_end(name)
            self._mark_changed(name)

    def _mark_changed(self, name: str) -> None:
        if self._scanning.locked():
            self._changed.add(name)

    def _note_used(self, name: str, size: int) -> None:
        with self._lock:
            if name in self._sizes:
                self._sizes.move_to_end(name)
                return
        with self._moves:  # the file belongs to another process, or was evicted since it was opened
            if os.path.lexists(self.path(name)):
                self._note(name, size)

    def _forget(self, name: str) -> None:
        with self._lock:
            self._total -= self._sizes.pop(name, 0)
            self._mark_changed(name)

    def _make_room(self, size: int, keep: str) -> None:
        """Enforces the limit before `keep` becomes a file of `size` bytes; with size 0 for the files as they
        are."""
        if self.max_bytes:
            self._evict(lambda: self._total - self.max_bytes + (size - self._sizes.get(keep, 0) if size else 0), keep)

    def _evict(self, excess: Callable[[], int], keep: str) -> int:
        """Deletes the least recently used files, but never `keep`, until excess() bytes are freed. Returns the
        bytes."""
        gone: list[tuple[str, int]] = []
        freed = 0
        with self._moves:
            with self._lock:
                wanted = excess()
                for name in list(self._sizes):
                    if freed >= wanted:
                        break
                    if name == keep:
                        continue
                    old = self._sizes.pop(name)
                    self._mark_changed(name)
                    freed += old
                    gone.append((name, old))
                self._total -= freed
                self.evicted += len(gone)
            for name, _ in gone:
                _unlink(self.path(name))
        if gone and self._on_evict:
            self._on_evict(gone)
        return freed

    def _scan(self) -> None:
        """Counts the existing files, oldest first; files that this process used recently stay
        newest."""
        if not self._scanning.acquire(blocking=False):
            return  # another thread does this already
        try:
            self._count()
        finally:
            self._scanning.release()

    def _count(self) -> None:
        with self._lock:
            self._changed.clear()
        found = []
        for folder in _entries(self.root):
            if len(folder.name) != 2 or folder.is_symlink():
                continue
            for entry in _entries(folder.path):
                name = entry.name.removesuffix(SUFFIX)
                if name == entry.name or name[:2] != folder.name or not _OWN_NAME(name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                found.append((status.st_mtime_ns, name, status.st_size))
        found.sort()
        with self._lock:
            used = self._sizes
            # For files that changed while the folder was read, this process's own records are used.
            self._sizes = OrderedDict((name, size) for _, name, size in found if name not in self._changed)
            for name, size in used.items():
                if name in self._changed:
                    self._sizes[name] = size
                elif name in self._sizes:
                    self._sizes.move_to_end(name)
            self._total = sum(self._sizes.values())
            self._unscanned = 0
            self._changed.clear()

    def _remove_abandoned(self) -> None:
        for entry in _entries(self._temporary):
            if not _OWN_TEMPORARY(entry.name):
                continue
            try:
                fd = os.open(entry.path, _OPEN_FLAGS)
            except OSError:
                continue
            try:
                locked = _lock_file(fd)
                old = time.time() - os.fstat(fd).st_mtime > _ABANDONED_SECONDS
                if locked or (locked is None and old):  # its writer has died
                    _unlink(entry.path)
            finally:
                os.close(fd)


def _lock_file(fd: int) -> bool | None:
    """False: another process has the lock. None: this file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return None


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []
