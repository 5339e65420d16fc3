# SPDX-License-Identifier: Apache-2.0
"""Doubles of five engines, with kvtool.Codec where each engine puts a codec. Their interfaces are those that the engines
published, as far as a codec sees them; none of the engines is imported.

An engine owns memory, sizes and completion. The doubles have three members for tests: store(pages) returns the bytes
stored for each page, None where the blob did not fit; stored[i] is the writable memory with the blob of page i; restore()
returns the pages, None for a miss. room: bytes for each blob; by default as many as the codec declares before there is
data (FlexKV: the size of the page).
"""

import asyncio
import ctypes
import dataclasses

import kvtool

TOO_SMALL = 6  # KV0006


def rooms_of(memory, size):
    """Slots of `size` bytes that lie one after another."""
    return [memory[at : at + size] for at in range(0, len(memory), size)]


class SglangStorage:
    """HiCacheStorage (0.5.23) before a store of opaque objects, NIXL or Mooncake (RFC 36522): the store takes an address
    and a size of memory that the engine registered."""

    def __init__(self, codec, raw_bytes, room=None, count=4):
        self.codec, self.raw_bytes = codec, raw_bytes
        self.room = room or codec.max_encoded_bytes(raw_bytes)
        self.keys = [f"{codec.fingerprint}:{i:064x}" for i in range(count)]  # in the form of hashes of token ids
        self.registered = rooms_of(memoryview(bytearray(count * self.room)), self.room)
        self.objects = {}  # the L3 store

    # ---- the interface ----

    def batch_set(self, keys, values):
        result = self.codec.encode_pages(values, keys, outs=self.registered[: len(keys)])
        for key, size, status, slot in zip(keys, result.sizes, result.status, self.registered):
            if status == 0:
                self.objects[key] = bytearray(slot[:size])  # put(key, address, size)
        return result.ok

    def batch_exists(self, keys):
        return next((i for i, key in enumerate(keys) if key not in self.objects), len(keys))

    def batch_get(self, keys, target_locations, target_sizes):
        blobs = [self.objects.get(key, b"") for key in keys]
        status = self.codec.decode_pages(blobs, keys, outs=target_locations).status
        return [None if code else target for code, target in zip(status, target_locations)]

    # ---- for tests ----

    def store(self, pages):
        self.batch_set(self.keys, pages)
        return [len(self.objects[key]) if key in self.objects else None for key in self.keys]

    @property
    def stored(self):
        return [self.objects[key] for key in self.keys]

    def restore(self):
        targets = [bytearray(self.raw_bytes) for _ in self.keys]
        loaded = self.batch_get(self.keys, targets, [self.raw_bytes] * len(targets))
        return [None if page is None else bytes(page) for page in loaded]


class MemoryObj:
    """LMCache's object in host memory: its bytes are ctypes', of format <B, and refuse slices until they are cast."""

    def __init__(self, size):
        self._memory, self._used = (ctypes.c_ubyte * size)(), size

    @property
    def byte_array(self):
        return memoryview(self._memory)[: self._used]

    def get_size(self):
        return self._used

    def set_used_size(self, size):
        if not isinstance(size, int) or not 0 <= size <= len(self._memory):
            raise ValueError(f"used size {size!r}")
        self._used = size


class LmcacheSerde:
    """Serializer and Deserializer (0.5.6) over an adapter that keeps objects in memory. A serializer is asked for a bound
    before there is data, and returns an int; a deserializer raises, which fails its whole task."""

    def __init__(self, codec, raw_bytes, room=None, count=4):
        self.codec, self.raw_bytes, self.room = codec, raw_bytes, room
        self.keys = [f"{i:016x}" for i in range(count)]
        self.objects = {}

    # ---- the interface ----

    def estimate_serialized_size(self, layout):
        return self.codec.max_encoded_bytes(layout)

    def serialize(self, src, dst, key):
        return self.codec.encode_page(src.byte_array.cast("B"), key, out=dst.byte_array.cast("B"))

    def deserialize(self, src, dst, key):
        self.codec.decode_page(src.byte_array.cast("B"), key, out=dst.byte_array.cast("B"))

    # ---- for tests: what AsyncSerdeProcessor does with one object in each task ----

    def store(self, pages):
        sizes = []
        for key, page in zip(self.keys, pages):
            source = MemoryObj(len(page))
            source.byte_array.cast("B")[:] = page
            target = MemoryObj(self.room or self.estimate_serialized_size(len(page)))
            try:
                target.set_used_size(self.serialize(source, target, key))
                self.objects[key] = target
                sizes.append(target.get_size())
            except kvtool.Error as error:
                assert error.finding == TOO_SMALL
                sizes.append(None)
        return sizes

    @property
    def stored(self):
        return [self.objects[key].byte_array.cast("B") for key in self.keys]

    def restore(self):
        pages = []
        for key in self.keys:
            target = MemoryObj(self.raw_bytes)
            try:
                self.deserialize(self.objects[key], target, key)
                pages.append(bytes(target.byte_array))
            except kvtool.Error:
                pages.append(None)
        return pages


@dataclasses.dataclass
class TransferJob:
    job_id: int
    keys: list
    chunk_ids: list


@dataclasses.dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: tuple | None


class VllmTier:
    """SecondaryTierManager (0.33) behind the offloading connector: jobs on rows of a signed view of the primary tier. The
    tier owns its format, results come from get_finished_jobs(), and a key that failed is a miss from then on."""

    def __init__(self, codec, raw_bytes, room=None, count=4):
        self.codec, self.room = codec, room
        self.keys = [bytes([i]) * 32 + (0).to_bytes(4, "big") for i in range(count)]  # block hash, group
        self.primary = memoryview(bytearray(count * raw_bytes)).cast("b", (count, raw_bytes))
        self.blobs, self.finished = {}, []

    # ---- the interface ----

    def lookup(self, key):
        return "HIT" if key in self.blobs else "MISS"

    def submit_store(self, job):
        outs = [bytearray(self.room) for _ in job.keys] if self.room else None
        result = self.codec.encode_pages(self._rows(job), job.keys, outs=outs)
        for key, blob, size, status in zip(job.keys, outs or result.objects, result.sizes, result.status):
            if status == 0:
                self.blobs[key] = bytearray(blob[:size])
        self.finished.append(JobResult(job.job_id, result.ok, None))

    def submit_load(self, job):
        blobs = [self.blobs[key] for key in job.keys]
        status = self.codec.decode_pages(blobs, job.keys, outs=self._rows(job)).status
        good = tuple(key for key, code in zip(job.keys, status) if code == 0)
        for key in set(job.keys) - set(good):
            del self.blobs[key]
        self.finished.append(JobResult(job.job_id, not any(status), good if any(status) else None))

    def get_finished_jobs(self):
        finished, self.finished = self.finished, []
        return finished

    def _rows(self, job):
        return [self.primary[chunk : chunk + 1].cast("B") for chunk in job.chunk_ids]

    # ---- for tests ----

    def _job(self):
        return TransferJob(7, self.keys, list(range(len(self.keys))))

    def store(self, pages):
        for row, page in zip(self._rows(self._job()), pages):
            row[:] = page
        self.submit_store(self._job())
        (result,) = self.get_finished_jobs()
        assert result.success == all(self.lookup(key) == "HIT" for key in self.keys)
        return [len(self.blobs[key]) if key in self.blobs else None for key in self.keys]

    @property
    def stored(self):
        return [self.blobs[key] for key in self.keys]

    def restore(self):
        for row in self._rows(self._job()):
            row[:] = bytes(len(row))
        self.submit_load(self._job())
        (result,) = self.get_finished_jobs()
        good = self.keys if result.success else result.successful_keys
        assert all((self.lookup(key) == "HIT") == (key in good) for key in self.keys)
        return [bytes(row) if key in good else None for key, row in zip(self.keys, self._rows(self._job()))]


class TensorRtColdPages:
    """TensorRT-LLM's cold-page codec: asked once how large a cold page is, then it migrates batches between two pools,
    each named by base, stride and indices. The engine awaits the batch; a page that failed keeps its place."""

    def __init__(self, codec, raw_bytes, room=None, count=4):
        self.codec = codec
        self.cold_bytes = room or self.cold_page_bytes(raw_bytes)
        self.hot = rooms_of(memoryview(bytearray((count + 2) * raw_bytes)), raw_bytes)
        self.cold = rooms_of(memoryview(bytearray((count + 2) * self.cold_bytes)), self.cold_bytes)
        self.hot_index = [count + 1 - i for i in range(count)]
        self.cold_index = [(i + 3) % (count + 2) for i in range(count)]

    # ---- the interface ----

    def cold_page_bytes(self, hot_page_bytes):
        return self.codec.max_encoded_bytes(hot_page_bytes)

    async def to_cold(self, hot_index, cold_index):
        pages, slots = [self.hot[i] for i in hot_index], [self.cold[i] for i in cold_index]
        return await self.codec.encode_pages_async(pages, self._keys(len(pages)), outs=slots)

    async def to_hot(self, cold_index, hot_index):
        slots, pages = [self.cold[i] for i in cold_index], [self.hot[i] for i in hot_index]
        return await self.codec.decode_pages_async(slots, self._keys(len(pages)), outs=pages)

    def _keys(self, count):
        return [f"sequence 5, block {i}" for i in range(count)]

    # ---- for tests ----

    def store(self, pages):
        for i, page in zip(self.hot_index, pages):
            self.hot[i][:] = page
        result = asyncio.run(self.to_cold(self.hot_index, self.cold_index))
        return [None if status else size for size, status in zip(result.sizes, result.status)]

    @property
    def stored(self):
        return [self.cold[i] for i in self.cold_index]

    def restore(self):
        for page in self.hot:
            page[:] = bytes(len(page))
        status = asyncio.run(self.to_hot(self.cold_index, self.hot_index)).status
        assert not any(bytes(self.hot[i]).strip(b"\0") for i in range(len(self.hot)) if i not in self.hot_index)
        return [None if code else bytes(self.hot[i]) for i, code in zip(self.hot_index, status)]


class FlexKvStrategy:
    """FlexKV's compression strategy (183): slots of the CPU keep the raw size, a table keeps the size of each payload, 0
    for a page that lies there as it is, and the payloads go to the SSD one after another."""

    def __init__(self, codec, raw_bytes, room=None, count=4):
        self.codec, self.room = codec, room or raw_bytes
        self.raw_bytes, self.table = raw_bytes, [0] * count
        self.slots = rooms_of(memoryview(bytearray(count * raw_bytes)), raw_bytes)

    # ---- the interface ----

    def compress(self, page, slot, number):
        """Returns the bytes in the slot that are the payload; 0: the page did not shrink to the room that it has."""
        try:
            return self.codec.encode_page(page, str(number), out=slot[: self.room])
        except kvtool.Error as error:
            if error.finding != TOO_SMALL:
                raise
            slot[:] = page
            return 0

    def decompress(self, payload, page, number):
        if len(payload) == len(page):
            page[:] = payload
        else:
            self.codec.decode_page(payload, str(number), out=page)

    # ---- for tests ----

    def store(self, pages):
        self.table = [self.compress(page, slot, i) for i, (page, slot) in enumerate(zip(pages, self.slots))]
        return [size or None for size in self.table]

    @property
    def stored(self):
        return [slot[: size or self.raw_bytes] for slot, size in zip(self.slots, self.table)]

    def restore(self):
        disk, at, pages = b"".join(self.stored), 0, []
        for number, slot in enumerate(self.stored):
            page, payload = bytearray(self.raw_bytes), disk[at : at + len(slot)]
            at += len(slot)
            try:
                self.decompress(payload, page, number)
                pages.append(bytes(page))
            except kvtool.Error:
                pages.append(None)
        return pages


ENGINES = (SglangStorage, LmcacheSerde, VllmTier, TensorRtColdPages, FlexKvStrategy)
