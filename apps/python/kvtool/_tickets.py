# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Batches in the background for asyncio: a queue's tickets become futures, and its file descriptor wakes the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ._batch import BatchResult
from ._errors import Error
from ._kvtool import Context, _Queue

_BUSY = 7
DEPTH = 64


class Tickets:
    """The queue of one codec and one event loop. All methods belong to the loop's thread."""

    def __init__(self, context: Context, threads: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue = _Queue(context, threads, DEPTH)
        self._futures: dict[int, asyncio.Future[BatchResult]] = {}
        self._room = asyncio.Event()
        self._loop.add_reader(self._queue.fileno(), self._take)

    async def run(self, submit: Callable[[_Queue], int]) -> BatchResult:
        """Submits a batch once fewer than DEPTH are outstanding, and waits for its result."""
        while True:
            try:
                ticket = submit(self._queue)
                break
            except Error as error:
                if error.finding != _BUSY or not self._futures:
                    raise
            self._room.clear()
            await self._room.wait()
        future: asyncio.Future[BatchResult] = self._loop.create_future()
        self._futures[ticket] = future
        return await future

    def _take(self) -> None:
        for ticket, result in self._queue.poll():
            future = self._futures.pop(ticket)
            if not future.done():  # the waiting task may have been cancelled
                future.set_result(result)
        self._room.set()

    def close(self) -> None:
        """Cancels all outstanding batches."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._queue.fileno())
        self._queue.close()
        for future in self._futures.values():
            future.cancel()
        self._futures.clear()
        self._room.set()
