# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The codec apart from a store: pages, batches, awaitables, and frames in memory."""

import asyncio
import threading

import numpy as np
import pytest
from kv_data import noise, plane

import kvtool
from kvtool import Codec, PageLayout
from kvtool._frames import FrameStore, Item
from kvtool._memory import FrameMemory

LAYOUT = PageLayout("bf16", (64, 4, 32))
RAW = 64 * 4 * 32 * 2


def pages_of(count, seed=0):
    return [plane(64, 4, 32, seed + i).tobytes() for i in range(count)]


@pytest.fixture
def codec():
    with Codec(layout=LAYOUT, identity={"model": "toy", "revision": "1"}) as codec:
        yield codec


# ---- the class ----


def test_a_page_comes_back_and_is_smaller(codec):
    (page,) = pages_of(1)
    blob = codec.encode_page(page, "k")
    assert len(blob) < 0.9 * RAW and codec.decode_page(blob, "k") == page
    room, target = bytearray(codec.max_encoded_bytes(RAW)), bytearray(RAW)
    assert codec.encode_page(page, b"k", out=room) == len(blob) and room.startswith(blob)
    assert codec.decode_page(room, b"k", out=target) == RAW and target == page, "what follows a blob is ignored"


def test_a_page_is_missed_but_not_mistaken(codec):
    blob = codec.encode_page(*pages_of(1), "k")
    for other, key in ((codec, "l"), (Codec(identity={"model": "toy", "revision": "2"}), "k")):
        with pytest.raises(kvtool.Error) as caught:
            other.decode_page(blob, key)
        assert caught.value.finding == 1106


def test_what_an_engine_plans_with(codec):
    caps = codec.caps
    assert (caps.lossless, caps.needs_positions, caps.head_shards) == (True, False, True)
    assert caps.overhead == codec.max_encoded_bytes(RAW) - RAW == 128
    assert (caps.alignment, caps.page_tokens) == (1, 1)
    assert codec.fingerprint == Codec(identity={"revision": "1", "model": "toy"}).fingerprint
    assert codec.fingerprint == Codec("high", threads=2, identity={"model": "toy", "revision": "1"}).fingerprint
    assert codec.fingerprint != Codec().fingerprint
    assert repr(codec) == f"<kvtool.Codec fast, {codec.fingerprint}>"


def test_heads_are_shards_of_their_own(codec):
    """Tensor parallelism splits heads over ranks: each rank's page is coded and decoded without the others."""
    page = plane(64, 4, 32, 0)
    shards = [np.ascontiguousarray(page[:, i : i + 2]) for i in (0, 2)]
    layout = PageLayout("bf16", (64, 2, 32))
    blobs = [codec.encode_page(shard, f"k:{i}", layout=layout) for i, shard in enumerate(shards)]
    assert codec.decode_page(blobs[1], "k:1") == shards[1].tobytes()


def test_too_little_room_is_said(codec):
    page = noise(RAW, 0)
    with pytest.raises(kvtool.Error) as caught:
        codec.encode_page(page, out=bytearray(RAW // 2))
    assert caught.value.finding == 6


def test_a_profile_is_part_of_the_identity(root):
    path = root / "testdata/profiles/s260k.kvp"
    page = (root / "testdata/profiles/page.f16").read_bytes()
    layout = PageLayout("f16", (len(page) // 64, 4, 8), role="k")
    plain, with_profile = Codec("default", layout=layout), Codec("default", profile=path, layout=layout)
    blob = with_profile.encode_page(page)
    assert len(blob) < len(plain.encode_page(page)) and with_profile.decode_page(blob) == page
    assert plain.fingerprint != with_profile.fingerprint
    with pytest.raises(ValueError, match="level 'fast'"):
        Codec(profile=path)
    with pytest.raises(FileNotFoundError):
        Codec("default", profile="missing.kvp")


def test_wrong_arguments():
    for wrong in ({"level": "best"}, {"level": 2}, {"threads": -1}, {"threads": True}):
        with pytest.raises(ValueError):
            Codec(**wrong)


def test_threads_share_a_codec(codec):
    pages, failed = pages_of(8), []

    def work(i):
        for _ in range(20):
            if codec.decode_page(codec.encode_page(pages[i], str(i)), str(i)) != pages[i]:
                failed.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failed


def test_one_bad_blob_changes_no_other(codec):
    pages, keys = pages_of(3), ["a", "b", "c"]
    blobs = codec.encode_pages(pages, keys).objects
    damaged = bytearray(blobs[1])
    damaged[len(damaged) // 2] ^= 1
    result = codec.decode_pages([blobs[0], damaged, blobs[2]], keys)
    assert list(result) == [pages[0], None, pages[2]] and not result.ok
    assert repr(result) == "<kvtool.BatchResult of 3, 1 failed>" and result[-1] == pages[2]


# ---- frames in memory ----


def test_memory_has_a_limit_and_forgets_the_oldest():
    gone = []
    memory = FrameMemory(30, gone.extend)
    for name in "abc":
        memory.put(name, b"x" * 10)
    assert memory.open("a") is not None  # opening it makes "b" the oldest
    memory.put("d", b"y" * 10)
    assert gone == [("b", 10)] and (len(memory), memory.total_bytes, memory.evicted) == (3, 30, 1)
    held = memory.open("c")
    assert memory.discard("c") == 10 and memory.discard("c") == 0
    room = memoryview(bytearray(10))
    assert held.read(room) == 10 and bytes(room) == b"x" * 10, "who has opened a frame can read it"
    memory.put("c", b"z")
    assert memory.discard("c", held) == 0, "another frame of that name"
    with pytest.raises(OSError):
        memory.put("e", b"x" * 31)
    memory.clear()
    assert (len(memory), memory.total_bytes) == (0, 0)
    with pytest.raises(ValueError):
        FrameMemory(0)


def test_a_store_in_memory(codec):
    store = FrameStore(FrameMemory(1 << 20), codec)
    pages = pages_of(3)
    items = [Item(codec.name(str(i)), codec.context(str(i)), page) for i, page in enumerate(pages)]
    sizes = store.store(items, LAYOUT)
    assert all(0 < size < 0.9 * RAW for size in sizes) and store.store(items, LAYOUT) == [0, 0, 0]
    targets = [Item(item.name, item.context, bytearray(RAW)) for item in items]
    targets[1].context = codec.context("another")
    assert store.load(targets) == [0, None, 0] and bytes(targets[2].raw) == pages[2]
    assert not store.has(items[1].name, items[1].context), "what was refused is gone"
    assert store.report()["folder"] == "memory" and store.report()["refused_context"] == 1


# ---- awaitables ----


def test_pages_in_the_background(codec):
    pages = pages_of(12)

    async def work():
        blobs = await asyncio.gather(*[codec.encode_page_async(page, str(i)) for i, page in enumerate(pages)])
        assert blobs == [codec.encode_page(page, str(i)) for i, page in enumerate(pages)]
        assert await codec.decode_page_async(blobs[3], "3") == pages[3]
        targets = [bytearray(RAW) for _ in pages]
        keys = [str(i) for i in range(len(pages))]
        result = await codec.decode_pages_async(blobs, keys, outs=targets)
        assert result.ok and targets == [bytearray(page) for page in pages]
        with pytest.raises(kvtool.Error) as caught:
            await codec.decode_page_async(blobs[3], "4")
        assert caught.value.finding == 1106
        with pytest.raises(TypeError):
            await codec.encode_page_async(3)

    asyncio.run(work())
    asyncio.run(work())  # another event loop


def test_more_tickets_than_a_queue_holds(codec):
    (page,) = pages_of(1)

    async def work():
        return await asyncio.gather(*[codec.encode_page_async(page, str(i)) for i in range(300)])

    assert len(set(asyncio.run(work()))) == 300


def test_the_loop_goes_on_while_a_queue_works():
    page = plane(1 << 15, 4, 32, 0)

    async def work(codec):
        coding = asyncio.ensure_future(codec.encode_page_async(page))
        turns = 0
        while not coding.done():
            await asyncio.sleep(0)
            turns += 1
        return turns, await coding

    with Codec("max", layout=PageLayout("bf16", (1 << 15, 4, 32))) as codec:
        turns, blob = asyncio.run(work(codec))
        assert turns > 10 and codec.decode_page(blob) == page.tobytes()


def test_a_wait_that_is_cancelled_changes_no_other(codec):
    pages = pages_of(4)

    async def work():
        tasks = [asyncio.ensure_future(codec.encode_page_async(page)) for page in pages]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    results = asyncio.run(work())
    assert isinstance(results[1], asyncio.CancelledError)
    assert [results[i] for i in (0, 2, 3)] == [codec.encode_page(pages[i]) for i in (0, 2, 3)]


def test_a_codec_that_is_closed_cancels_what_waits():
    async def work():
        with Codec("max") as codec:
            page = noise(8 << 20, 0)  # takes a second or more: the last of 8 is still queued at the close
            tasks = [asyncio.ensure_future(codec.encode_page_async(page)) for _ in range(8)]
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await tasks[-1]
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(work())
