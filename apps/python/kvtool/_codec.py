# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The codec apart from any store: pages become opaque blobs, and the engine owns memory, sizes and completion.

The plug-ins use the same class: engines differ in where a blob goes, not in how a page is coded.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from . import _kvtool
from ._batch import BatchResult
from ._errors import FAULTS, explain, make_error
from ._kvtool import Context, Profile

if TYPE_CHECKING:
    import asyncio

    from ._tickets import Tickets

LEVELS = ("fast", "default", "high", "max")

Key = bytes | str
ProfileSource = Profile | str | os.PathLike[str] | None


@dataclasses.dataclass(frozen=True)
class PageLayout:
    """Describes the values of a page as far as the engine knows them: a hint, which the codec does not trust.

    shape: (tokens, heads, head_dim) in the order given. role: "k", "v", "kv" (side by side in each head) or "unknown".
    """

    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    order: str = "token_head_dim"
    role: str = "unknown"

    def arguments(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "shape": self.shape, "order": self.order, "role": self.role}


class Caps(NamedTuple):
    """The guarantees of a codec that engines rely on; they are the same at all levels."""

    lossless: bool  # every byte is restored
    needs_positions: bool  # the codec must know the position of a page in the sequence
    page_tokens: int  # a page has a multiple of this many tokens
    head_shards: bool  # blobs of some of the heads decode without the others
    alignment: int  # every buffer needs this alignment
    overhead: int  # a blob is at most this many bytes longer than its page


def level_option(value: Any) -> str:
    if value not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {value!r}")
    return str(value)


def _profile_of(source: ProfileSource, level: str) -> Profile | None:
    if source is None or source == "":
        return None
    if level == "fast":
        raise ValueError("profile: level 'fast' does not use one; choose 'default', 'high' or 'max'")
    if isinstance(source, Profile):
        return source
    with open(source, "rb") as file:
        return Profile(file.read())


class _Lease:
    """A context and scratch memory, which one call uses at a time."""

    def __init__(self, codec: Codec) -> None:
        level: Any = codec.level
        self.context = Context(level, codec.threads, profile=codec.profile)
        self._memory = bytearray()

    def room(self, size: int) -> memoryview:
        if len(self._memory) < size:
            self._memory = bytearray(size)
        return memoryview(self._memory)[:size]


class Codec:
    """Converts pages to blobs and back. Any thread may call at any time, and calls run concurrently.

    A blob is one complete page and opaque to its store. A call returns a page only after a hash of every byte,
    `identity` and the page's key were checked, and fails otherwise: a lookup may miss, but never returns another
    page.

    level: "fast", "default", "high" or "max". threads: number of threads that code one call; 0: as many as the
    process may use. profile: a Profile or the name of a .kvp file, which blobs then need; for levels from "default"
    on. layout: the layout of pages without one of their own. identity: everything that the bytes of all pages depend
    on (model, revision, ranks).
    """

    def __init__(
        self,
        level: str = "fast",
        *,
        threads: int = 1,
        profile: ProfileSource = None,
        layout: PageLayout | None = None,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        self.level = level_option(level)
        if isinstance(threads, bool) or not isinstance(threads, int) or threads < 0:
            raise ValueError(f"threads must be a number that is not negative, not {threads!r}")
        self.threads = threads
        self.profile = _profile_of(profile, self.level)
        self.layout = layout or PageLayout()
        self._free: collections.deque[_Lease] = collections.deque()
        self._queues: dict[asyncio.AbstractEventLoop, Tickets] = {}
        self._identify(identity or {})

    def _identify(self, identity: Mapping[str, Any]) -> None:
        fields = dict(identity)
        if self.profile is not None:
            fields["profile"] = self.profile.hash.hex()  # a caller without it cannot decode
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str)
        self._prefix = hashlib.blake2b(text.encode(), digest_size=32).digest()

    def derive(self, *, layout: PageLayout | None = None, identity: Mapping[str, Any] | None = None) -> Codec:
        """Returns the same codec for other pages, with shared contexts, threads and memory."""
        other = copy.copy(self)
        other.layout = layout or self.layout
        other._identify(identity or {})
        return other

    # ---- guarantees for engines ----

    @property
    def caps(self) -> Caps:
        return Caps(**_kvtool._caps())

    @property
    def fingerprint(self) -> str:
        """Hexadecimal digits for an engine's own keys. Codecs with the same fingerprint read each other's
        blobs."""
        return hashlib.blake2b(self._prefix, digest_size=16).hexdigest()

    def max_encoded_bytes(self, raw_bytes: int) -> int:
        """The size of a buffer that holds the blob of any page of `raw_bytes`."""
        return _kvtool.bound(raw_bytes)

    def name(self, key: Key) -> str:
        """Returns 40 hexadecimal digits for the page of `key`, which depend on the identity, too."""
        return hashlib.blake2b(_bytes_of(key), digest_size=20, key=self._prefix).hexdigest()

    def context(self, key: Key) -> bytes:
        """Returns the 16 bytes that the blob of `key` contains."""
        return _kvtool.hash128(self._prefix + _bytes_of(key))

    # ---- pages ----

    @overload
    def encode_page(self, page: Any, key: Key = b"", *, layout: PageLayout | None = None) -> bytes: ...
    @overload
    def encode_page(self, page: Any, key: Key = b"", *, layout: PageLayout | None = None, out: Any) -> int: ...
    def encode_page(
        self, page: Any, key: Key = b"", *, layout: PageLayout | None = None, out: Any = None
    ) -> bytes | int:
        """Returns the blob of a page; with out, a writable buffer, its size. Raises KV0006 early if the blob cannot
        fit into out."""
        arguments = (layout or self.layout).arguments()
        if out is not None:
            arguments["out"] = out
        with self.lease() as lease:
            coded: bytes | int = lease.context.encode(page, context=self.context(key), **arguments)
        return coded

    @overload
    def decode_page(self, blob: Any, key: Key = b"") -> bytes: ...
    @overload
    def decode_page(self, blob: Any, key: Key = b"", *, out: Any) -> int: ...
    def decode_page(self, blob: Any, key: Key = b"", *, out: Any = None) -> bytes | int:
        """Returns the page of a blob; with out, a buffer of exactly its size, that size. Bytes after the blob are
        ignored."""
        with self.lease() as lease:
            if out is None:
                return lease.context.decode(blob, context=self.context(key))
            return lease.context.decode(blob, context=self.context(key), out=out)

    def encode_pages(
        self, pages: Sequence[Any], keys: Sequence[Key], *, layout: PageLayout | None = None, outs: Any = None
    ) -> BatchResult:
        """Encodes many pages in one call, on the codec's threads. Failures are values in the result's
        status."""
        contexts = [self.context(key) for key in keys]
        with self.lease() as lease:
            arguments = (layout or self.layout).arguments()
            return lease.context.encode_batch(pages, contexts=contexts, outs=outs, **arguments)

    def decode_pages(self, blobs: Sequence[Any], keys: Sequence[Key], *, outs: Any = None) -> BatchResult:
        """Decodes many blobs in one call. If a blob's status is not 0, the contents of its output are
        undefined."""
        with self.lease() as lease:
            return lease.context.decode_batch(blobs, contexts=[self.context(key) for key in keys], outs=outs)

    # ---- in the background, for asyncio ----

    async def encode_page_async(self, page: Any, key: Key = b"", *, layout: PageLayout | None = None) -> bytes:
        """Runs encode_page on the threads of a queue, while the event loop continues."""
        return _only(await self.encode_pages_async([page], [key], layout=layout))

    async def decode_page_async(self, blob: Any, key: Key = b"") -> bytes:
        """Runs decode_page on the threads of a queue."""
        return _only(await self.decode_pages_async([blob], [key]))

    async def encode_pages_async(
        self, pages: Sequence[Any], keys: Sequence[Key], *, layout: PageLayout | None = None, outs: Any = None
    ) -> BatchResult:
        """Does what encode_pages does. Do not change pages and outs until the result is ready."""
        contexts = [self.context(key) for key in keys]
        arguments = (layout or self.layout).arguments()
        return await self._tickets().run(
            lambda queue: queue.encode(pages, contexts=contexts, outs=outs, **arguments)
        )

    async def decode_pages_async(self, blobs: Sequence[Any], keys: Sequence[Key], *, outs: Any = None) -> BatchResult:
        """Runs decode_pages on the threads of a queue."""
        contexts = [self.context(key) for key in keys]
        return await self._tickets().run(lambda queue: queue.decode(blobs, contexts=contexts, outs=outs))

    def _tickets(self) -> Tickets:
        """Returns the queue of this event loop, with the codec's threads. Closes those of loops that have
        ended."""
        import asyncio  # imported on first use, because it takes longer than importing all of kvtool

        from ._tickets import Tickets

        loop = asyncio.get_running_loop()
        for other in [other for other in self._queues if other.is_closed()]:
            self._queues.pop(other).close()
        if loop not in self._queues:
            with self.lease() as lease:
                self._queues[loop] = Tickets(lease.context, self.threads)
        return self._queues[loop]

    # ---- contexts ----

    @contextlib.contextmanager
    def lease(self) -> Iterator[_Lease]:
        """Yields a context and scratch memory that no other call uses meanwhile."""
        try:
            lease = self._free.pop()
        except IndexError:
            lease = _Lease(self)
        try:
            yield lease
        finally:
            self._free.append(lease)

    def close(self) -> None:
        """Frees contexts, threads and scratch memory; later calls make new ones."""
        self._free.clear()
        for tickets in self._queues.values():
            tickets.close()
        self._queues.clear()

    def __enter__(self) -> Codec:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvtool.Codec {self.level}, {self.fingerprint}>"


def _only(result: BatchResult) -> bytes:
    """Returns the object of a batch of one; raises what a single call would have raised."""
    (page,), (status,) = result.objects, result.status
    if page is None:
        known = explain(status)
        fault = FAULTS.index(known["fault"])
        raise make_error(known["finding"], known["id"], fault, known["summary"], None, "", "", "")
    return page


def _bytes_of(key: Key) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)
