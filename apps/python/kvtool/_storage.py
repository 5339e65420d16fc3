# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""What a store of frames needs of the place where they lie: a folder, or memory."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any

HEADER_BYTES = 128
# Called with the (name, size) pairs that a limit removed, on the thread that stored.
Evicted = Callable[[list[tuple[str, int]]], object]


class Opened(abc.ABC):
    """A frame that was found. identity: tells it from one that takes its name later."""

    def __init__(self, size: int, identity: object) -> None:
        self.size, self.identity = size, identity

    @abc.abstractmethod
    def header(self) -> bytes:
        """Its first bytes; raises OSError."""

    @abc.abstractmethod
    def read(self, room: memoryview) -> int:
        """Fills `room`, which is large enough, and returns the bytes read; raises OSError."""

    def close(self) -> None:
        """Nothing is kept open, unless a subclass says so."""

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Storage(abc.ABC):
    """Frames by name (hexadecimal digits). Any thread may call anything."""

    root: str
    max_bytes: int
    evicted: int

    @abc.abstractmethod
    def path(self, name: str) -> str:
        """What messages call the frame."""

    @property
    @abc.abstractmethod
    def total_bytes(self) -> int:
        """Of all frames together."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __contains__(self, name: object) -> bool:
        """Whether the frame counts, and is offered."""

    @abc.abstractmethod
    def open(self, name: str) -> Opened | None:
        """The frame, or None where there is none. It counts as used."""

    @abc.abstractmethod
    def note_read(self, name: str, succeeded: bool) -> None:
        """How a read went."""

    @abc.abstractmethod
    def put(self, name: str, data: Any) -> int:
        """Publishes `data` under `name`, in place of what was there. Returns its size; raises OSError."""

    @abc.abstractmethod
    def discard(self, name: str, opened: Opened | None = None) -> int:
        """Removes a frame; with the one that was read, only if it is still that one, because somebody may have stored the
        object anew. Returns the bytes freed."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Removes all frames."""
