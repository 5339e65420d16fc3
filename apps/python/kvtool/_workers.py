# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Threads that run a plug-in's work in the order in which it was given."""

from __future__ import annotations

import collections
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)


class Workers:
    """Up to `count` threads, started with the first work, and again in a child process."""

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._condition = threading.Condition()
        self._waiting: collections.deque[Any] = collections.deque()
        self._running = 0
        self._closed = False
        self._threads: list[threading.Thread] = []

    def submit(self, work: Callable[[], object]) -> None:
        """Runs work() on one of the threads. It must not raise."""
        if self._pid != os.getpid():
            self._reset()  # threads do not survive a fork, nor do locks that they held
        with self._condition:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed")
            if len(self._threads) < self._count:
                thread = threading.Thread(
                    target=self._loop, name=f"{self._name}-{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
            self._waiting.append(work)
            self._condition.notify()

    def wait_idle(self) -> None:
        with self._condition:
            self._condition.wait_for(lambda: not self._waiting and not self._running)

    def close(self) -> list[Any]:
        """Waits for running work, drops queued work and returns it."""
        with self._condition:
            self._closed = True
            dropped = list(self._waiting)
            self._waiting.clear()
            self._condition.notify_all()
        for thread in self._threads:
            thread.join()
        return dropped

    def _loop(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                work = self._waiting.popleft()
                self._running += 1
            try:
                work()
            except Exception:
                logger.exception("kvtool: %s: work failed", self._name)
            finally:
                del work
                with self._condition:
                    self._running -= 1
                    self._condition.notify_all()
