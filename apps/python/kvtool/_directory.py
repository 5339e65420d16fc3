# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""A folder of frames with a limit on its size, which several processes may use at once.

A file is written under a name of its own and renamed when it is complete, so that no reader ever sees half of it and a
killed writer leaves nothing but a temporary file, which the next start removes. What a file holds is not trusted: a
power loss can leave the right size and the wrong bytes, so readers check the hash in the frame.
"""

import fcntl
import os
import threading
import time
import uuid
from collections import OrderedDict

SUFFIX = ".kvf"
_TEMPORARY = "tmp"
_ABANDONED_SECONDS = 24 * 3600  # where there are no locks to ask


class FrameDirectory:
    """Files by name (hexadecimal digits), the least recently used of which go when `max_bytes` are reached.

    max_bytes: of all files together; 0: no limit. durable: write each file through to the disk before it appears.
    on_evict: called with the (name, size) pairs that the limit removed, on the thread that stored.
    """

    def __init__(self, root, max_bytes=0, durable=False, on_evict=None):
        if max_bytes < 0:
            raise ValueError("max_bytes must not be negative")
        self.root = os.path.abspath(os.fspath(root))
        self.max_bytes = max_bytes
        self._durable = durable
        self._on_evict = on_evict
        self._lock = threading.Lock()
        self._sizes = OrderedDict()  # name -> bytes, the least recently used first
        self._total = 0
        self._unscanned = 0  # bytes written since other processes' files were counted
        self._refused = set()  # damaged files that could not be removed
        self.evicted = 0
        os.makedirs(os.path.join(self.root, _TEMPORARY), exist_ok=True)
        self._remove_abandoned()
        self._scan()

    def path(self, name):
        return os.path.join(self.root, name[:2], name + SUFFIX)

    @property
    def total_bytes(self):
        with self._lock:
            return self._total

    def __len__(self):
        with self._lock:
            return len(self._sizes)

    def open(self, name):
        """A file descriptor and its status, or None where there is no such file. It counts as used."""
        if name in self._refused:
            return None
        try:
            fd = os.open(self.path(name), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._forget(name)
            return None
        except OSError:
            return None  # out of descriptors, say: a miss, but the file stays counted
        try:
            status = os.fstat(fd)
        except OSError:
            os.close(fd)
            return None
        self._note(name, status.st_size)
        return fd, status

    def touch(self, fd):
        """Lets other processes and later starts know that the file is in use."""
        try:
            os.utime(fd)
        except OSError:
            pass  # not our file: recency is then this process's own

    def put(self, name, data):
        """Publishes `data` under `name`, in place of what was there. Returns its size; raises OSError."""
        size = len(data)
        if self.max_bytes and size > self.max_bytes:
            raise OSError(f"{size} bytes are more than the folder may hold")
        self._make_room(size - self._sizes.get(name, 0), name)
        temporary, fd = self._new_temporary()
        try:
            try:
                view = memoryview(data).cast("B")
                while len(view):
                    view = view[os.write(fd, view) :]
                if self._durable:
                    os.fsync(fd)
                self._publish(temporary, self.path(name))
            finally:
                os.close(fd)
        except BaseException:
            _unlink(temporary)
            raise
        self._refused.discard(name)
        self._note(name, size)
        with self._lock:
            self._unscanned += size
            crowded = self.max_bytes and self._unscanned * 8 > self.max_bytes
        if crowded:
            self._scan()
        self._make_room(0, name)  # what other threads and processes stored meanwhile
        return size

    def discard(self, name, status=None):
        """Removes a file; with the status of the file that was read, only if it is still that one, because another
        process may have stored the object anew. Returns the bytes freed."""
        path = self.path(name)
        try:
            there = os.stat(path)
            if status is not None and (there.st_dev, there.st_ino) != (status.st_dev, status.st_ino):
                return 0
            os.unlink(path)
        except FileNotFoundError:
            self._forget(name)
            return 0
        except OSError:
            self._refused.add(name)  # it stays, but nobody is told that it is there
            self._forget(name)
            return 0
        self._forget(name)
        return there.st_size

    def clear(self):
        self._scan()
        for name in list(self._sizes):
            self.discard(name)

    def _new_temporary(self):
        """A file that is locked while it is written, so that no start of another process takes it for abandoned."""
        while True:
            path = os.path.join(self.root, _TEMPORARY, uuid.uuid4().hex)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            if _lock_file(fd) is not False and os.fstat(fd).st_nlink:
                return path, fd
            os.close(fd)  # one has, between the two calls

    def _publish(self, temporary, path):
        try:
            os.replace(temporary, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(temporary, path)

    def _note(self, name, size):
        with self._lock:
            self._total += size - self._sizes.get(name, 0)
            self._sizes[name] = size
            self._sizes.move_to_end(name)

    def _forget(self, name):
        with self._lock:
            self._total -= self._sizes.pop(name, 0)

    def _make_room(self, size, keep=None):
        if not self.max_bytes:
            return
        gone = []
        with self._lock:
            for name in list(self._sizes):
                if self._total + size <= self.max_bytes:
                    break
                if name == keep:
                    continue
                old = self._sizes.pop(name)
                self._total -= old
                gone.append((name, old))
        for name, _ in gone:
            _unlink(self.path(name))
        self.evicted += len(gone)
        if gone and self._on_evict:
            self._on_evict(gone)

    def _scan(self):
        """Counts what is there, oldest first; what this process used lately stays newest."""
        found = []
        for folder in _entries(self.root):
            if len(folder.name) != 2:
                continue
            for entry in _entries(folder.path):
                if not entry.name.endswith(SUFFIX):
                    continue
                try:
                    status = entry.stat()
                except OSError:
                    continue
                found.append((status.st_mtime_ns, entry.name[: -len(SUFFIX)], status.st_size))
        found.sort()
        with self._lock:
            used = [name for name in self._sizes]
            self._sizes = OrderedDict((name, size) for _, name, size in found)
            for name in used:
                if name in self._sizes:
                    self._sizes.move_to_end(name)
            self._total = sum(self._sizes.values())
            self._unscanned = 0

    def _remove_abandoned(self):
        for entry in _entries(os.path.join(self.root, _TEMPORARY)):
            try:
                fd = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                locked = _lock_file(fd)
                old = time.time() - os.fstat(fd).st_mtime > _ABANDONED_SECONDS
                if locked or (locked is None and old):  # its writer is dead
                    _unlink(entry.path)
            finally:
                os.close(fd)


def _lock_file(fd):
    """False: somebody else has the lock. None: this file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    except OSError:
        return None


def _unlink(path):
    try:
        os.unlink(path)
    except OSError:
        pass


def _entries(path):
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []
