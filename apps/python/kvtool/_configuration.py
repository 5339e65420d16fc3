# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The options of all plug-ins, whatever their engine calls them: how to code, and where frames lie.

An object is named twice. The name of its file and the context in its frame are hashes of everything that its bytes
depend on, so that a file which was copied, renamed or written by another configuration is refused.
"""

from __future__ import annotations

import dataclasses
from importlib import metadata
from typing import Any

from ._codec import Codec, level_option
from ._directory import Evicted, FrameDirectory
from ._frames import FrameStore, Storage
from ._memory import FrameMemory

# An engine passes this key as False with a request to keep its pages out of the store.
REQUEST_KEY = "kvtool"


@dataclasses.dataclass(kw_only=True)
class CodecOptions:
    """level, threads, profile: those of Codec. revision: revision of the model's weights; objects of another revision
    are misses."""

    level: str = "fast"
    threads: int = 1
    profile: str | None = None
    revision: str = ""

    def __post_init__(self) -> None:
        level_option(self.level)
        if not isinstance(self.revision, str):
            raise ValueError("revision must be a string")

    def codec(self, identity: dict[str, Any]) -> Codec:
        """Returns the codec of an engine's objects. identity: everything that their bytes depend on, apart from the
        revision."""
        identity = {**identity, "revision": self.revision}
        return Codec(self.level, threads=self.threads, profile=self.profile, identity=identity)


@dataclasses.dataclass(kw_only=True)
class StoreOptions(CodecOptions):
    """folder: for the frames; engines may share it. memory_gb: keep frames in this much memory instead. max_gb: limit
    of the folder in GiB, beyond which the least recently used are deleted; 0: no limit. durable: write each file
    through to the disk.
    """

    folder: str = ""
    memory_gb: float = 0
    max_gb: float = 0
    durable: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        size_option(self.max_gb, "max_gb")
        if not isinstance(self.folder, str) or bool(self.folder) == bool(size_option(self.memory_gb, "memory_gb")):
            raise ValueError("kvtool needs either a folder or memory_gb")
        if not isinstance(self.durable, bool):
            raise ValueError("durable must be true or false")

    def store(self, codec: Codec, on_evict: Evicted | None = None, group_bytes: int = 32 << 20) -> FrameStore:
        storage: Storage
        if self.folder:
            limit = size_option(self.max_gb, "max_gb")
            storage = FrameDirectory(self.folder, limit, self.durable, on_evict)
        else:
            storage = FrameMemory(size_option(self.memory_gb, "memory_gb"), on_evict)
        return FrameStore(storage, codec, group_bytes)


def is_off(parameters: Any) -> bool:
    """True if a request asks for its pages to be neither stored nor looked up, by {"kvtool":
    false}."""
    return isinstance(parameters, dict) and parameters.get(REQUEST_KEY) is False


def engine_version(package: str) -> str:
    """Returns the major and minor version of an installed engine, because its layouts may change with
    either."""
    try:
        return ".".join(metadata.version(package).split(".")[:2])
    except metadata.PackageNotFoundError:
        return "unknown"


def size_option(value: Any, name: str) -> int:
    """Converts a configured number of GiB to bytes."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1 << 30:
        raise ValueError(f"{name} must be a number of GiB that is not negative, not {value!r}")
    return int(value * (1 << 30))


def count_option(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, not {value!r}")
    return value
