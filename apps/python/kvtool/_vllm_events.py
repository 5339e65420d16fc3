# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""KV events of the vLLM tier: the blocks in its storage, for routers that look for the engine with a
prefix."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from vllm.v1.kv_offload.base import OffloadingEvent


class TierEvents:
    """Blocks that this process stored. Existing ones are not announced, nor is their removal."""

    def __init__(self, medium: Any, locality: Any) -> None:
        self._medium, self._locality = medium, locality
        self._lock = threading.Lock()
        self._keys: dict[str, Any] = {}  # file name -> key of announced blocks
        self._events: list[Any] = []

    def stored(self, pairs: Sequence[tuple[str, Any]], is_offered: Callable[[str], bool]) -> None:
        """(file name, key) of blocks that a job stored or found. is_offered(name): whether the block is available
        now; the folder's limit may have removed it before the job ended, without an event."""
        with self._lock:
            new = {name: key for name, key in pairs if name not in self._keys and is_offered(name)}
            self._keys.update(new)
            self._add(list(new.values()), removed=False)

    def removed(self, names: Sequence[str]) -> None:
        """Any thread."""
        with self._lock:
            keys = [self._keys.pop(name) for name in names if name in self._keys]
            self._add(keys, removed=True)

    def take(self) -> list[Any]:
        with self._lock:
            events, self._events = self._events, []
        return events

    def _add(self, keys: list[Any], removed: bool) -> None:
        if keys:
            self._events.append(
                OffloadingEvent(keys=keys, medium=self._medium, removed=removed, locality=self._locality)
            )
