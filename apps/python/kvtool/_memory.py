# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Keeps frames in memory, as a folder does on disk. At its limit the least recently used frames are removed."""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from typing import Any

from ._directory import HEADER_BYTES, Evicted


class OpenBytes:
    """A frame that stays readable while a caller holds it, even if it was evicted; used as an
    OpenFile."""

    def __init__(self, data: bytes) -> None:
        self.size, self.identity = len(data), id(data)
        self._data = data

    def close(self) -> None: ...

    def __enter__(self) -> OpenBytes:
        return self

    def __exit__(self, *_: object) -> None: ...

    def header(self) -> bytes:
        return self._data[:HEADER_BYTES]

    def read(self, room: memoryview) -> int:
        room[: self.size] = self._data
        return self.size


class FrameMemory:
    """A FrameDirectory without files. max_bytes: limit of all frames together."""

    root = "memory"

    def __init__(self, max_bytes: int, on_evict: Evicted | None = None) -> None:
        if max_bytes <= 0:
            raise ValueError("frames in memory need a limit")
        self.max_bytes, self.evicted = max_bytes, 0
        self._on_evict = on_evict
        self._lock = threading.Lock()
        self._frames: OrderedDict[str, bytes] = OrderedDict()  # the least recently used first
        self._total = 0

    def path(self, name: str) -> str:
        return name

    @property
    def total_bytes(self) -> int:
        return self._total

    def __len__(self) -> int:
        return len(self._frames)

    def __contains__(self, name: object) -> bool:
        return name in self._frames

    def open(self, name: str) -> OpenBytes | None:
        with self._lock:
            if name not in self._frames:
                return None
            self._frames.move_to_end(name)
            return OpenBytes(self._frames[name])

    def note_read(self, name: str, succeeded: bool) -> None:
        """Memory has no errors of reading."""

    def put(self, name: str, data: Any) -> int:
        frame = bytes(data)
        if len(frame) > self.max_bytes:
            raise OSError(errno.EFBIG, f"{len(frame)} bytes are more than the memory may hold")
        gone = []
        with self._lock:
            self._total += len(frame) - len(self._frames.pop(name, b""))
            while self._total > self.max_bytes:
                old, lost = self._frames.popitem(last=False)
                self._total -= len(lost)
                gone.append((old, len(lost)))
            self._frames[name] = frame
            self.evicted += len(gone)
        if gone and self._on_evict:
            self._on_evict(gone)
        return len(frame)

    def discard(self, name: str, opened: Any = None) -> int:
        with self._lock:
            frame = self._frames.get(name)
            if frame is None or (opened is not None and opened.identity != id(frame)):
                return 0
            del self._frames[name]
            self._total -= len(frame)
            return len(frame)

    def clear(self) -> None:
        with self._lock:
            self._frames.clear()
            self._total = 0
