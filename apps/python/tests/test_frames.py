# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Frames in memory: every kind of buffer, every way to call, and refused arguments."""

import ctypes
import threading
import time

import kvtool
import numpy as np
import pytest

KEY = kvtool.hash128("model, layer 3, tokens 0 to 63")
BF16_OF_ONE = 0x3F80


def walk(tokens=64, heads=4, dim=32, seed=1):
    """bf16 values that resemble a cache: neighbouring tokens are similar."""
    steps = np.random.default_rng(seed).standard_normal((tokens, heads, dim)).astype(np.float32)
    return (np.cumsum(steps, axis=0).view(np.uint32) >> 16).astype(np.uint16)


class DLPackOnly:
    """A tensor that offers only DLPack, as those of torch do."""

    def __init__(self, array, code=None, device=(1, 0)):
        self.array, self.code, self.device = array, code, device

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **_):
        capsule = self.array.__dlpack__()
        if self.code is not None:
            get = ctypes.pythonapi.PyCapsule_GetPointer
            get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            # data pointer, device (2 x int32), ndim, then the type's code
            ctypes.c_uint8.from_address(get(capsule, b"dltensor") + 20).value = self.code
        if self.device != (1, 0):
            get = ctypes.pythonapi.PyCapsule_GetPointer
            get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
            ctypes.c_int32.from_address(get(capsule, b"dltensor") + 8).value = self.device[0]
        return capsule


@pytest.mark.parametrize("level", ["fast", "default", "high", "max", 1, 4])
def test_round_trip(level):
    array = walk()
    frame = kvtool.encode(array, level=level, context=KEY, tag=7, role="k")
    assert isinstance(frame, bytes) and len(frame) < array.nbytes
    assert kvtool.decode(frame) == array.tobytes()
    info = kvtool.frame_info(frame)
    assert (info["tokens"], info["heads"], info["head_dim"]) == array.shape
    assert (info["dtype"], info["order"], info["role"], info["tag"]) == ("bf16", "token_head_dim", "k", 7)
    assert info["context"] == KEY and info["raw_bytes"] == array.nbytes and info["frame_bytes"] == len(frame)
    assert info["raw_hash"] == kvtool.hash128(array)
    kvtool.verify_frame(frame, context=KEY)


def buffers():
    array = walk()
    yield "uint16", array, "bf16", array.shape
    yield "int16", array.view(np.int16), "bf16", array.shape
    yield "V2", array.view("V2"), "bf16", array.shape
    yield "float16", array.view(np.float16), "f16", array.shape
    yield "float32", array.astype(np.float32), "f32", array.shape
    yield "int8", array.view(np.int8), "i8", (64, 4, 64)
    yield "uint8", array.view(np.uint8), "u8", (64, 4, 64)
    yield "bytes", array.tobytes(), "u8", None
    yield "bytearray", bytearray(array.tobytes()), "u8", None
    yield "memoryview", memoryview(array), "bf16", array.shape
    yield "dlpack", DLPackOnly(array.view(np.float16)), "f16", array.shape
    yield "dlpack bf16", DLPackOnly(array, code=4), "bf16", array.shape
    yield "two axes", array.reshape(64, 128), "bf16", (64, 1, 128)
    yield "five axes", array.reshape(2, 4, 8, 4, 32), "bf16", array.shape
    try:
        import ml_dtypes
    except ImportError:
        return
    yield "ml_dtypes bf16", array.view(ml_dtypes.bfloat16), "bf16", array.shape
    yield "ml_dtypes f8", array.view(np.uint8).view(ml_dtypes.float8_e4m3fn), "f8_e4m3", (64, 4, 64)


@pytest.mark.parametrize("data, dtype, shape", [pytest.param(*b[1:], id=b[0]) for b in buffers()])
def test_every_buffer_is_understood(data, dtype, shape):
    frame = kvtool.encode(data)
    info = kvtool.frame_info(frame)
    assert info["dtype"] == dtype
    found = (info["tokens"], info["heads"], info["head_dim"])
    assert found == (shape if shape else (0, 0, 0))
    raw = data.array.tobytes() if isinstance(data, DLPackOnly) else bytes(memoryview(data)) if isinstance(
        data, (bytes, bytearray, memoryview)) else data.tobytes()
    assert kvtool.decode(frame) == raw


def test_dtype_and_shape_override():
    array = walk()
    flat = array.view(np.int8).reshape(-1)
    info = kvtool.frame_info(kvtool.encode(flat, dtype="bf16", shape=array.shape, order="token_head_dim"))
    assert (info["dtype"], info["tokens"], info["heads"], info["head_dim"]) == ("bf16", 64, 4, 32)
    info = kvtool.frame_info(kvtool.encode(flat, dtype=np.float16, shape=(4, 64, 32), order="head_token_dim"))
    assert (info["dtype"], info["order"], info["tokens"], info["heads"]) == ("f16", "head_token_dim", 64, 4)
    # A shape that does not match the size is ignored: compression is worse, but still correct.
    frame = kvtool.encode(flat, dtype="bf16", shape=(3, 3, 3))
    assert kvtool.frame_info(frame)["order"] == "unknown" and kvtool.decode(frame) == flat.tobytes()
    described = kvtool.encode(array)
    assert len(described) < len(kvtool.encode(flat))


def test_decode_into_memory():
    array = walk()
    frame = kvtool.encode(array)
    target = bytearray(array.nbytes + 32)
    assert kvtool.decode(frame, out=memoryview(target)[16:-16]) == array.nbytes
    assert target == bytes(16) + array.tobytes() + bytes(16)
    other = np.empty_like(array)
    assert kvtool.decode(frame, out=other) == array.nbytes
    assert (other == array).all()
    with pytest.raises(kvtool.Error) as raised:
        kvtool.decode(frame, out=bytearray(array.nbytes - 1))
    assert raised.value.finding == 1008
    with pytest.raises(ValueError, match="read-only"):
        kvtool.decode(frame, out=bytes(array.nbytes))
    # Stores that pad their objects.
    assert kvtool.decode(frame + bytes(100)) == array.tobytes()


def test_encode_into_memory():
    array = walk()
    room = bytearray(kvtool.bound(array.nbytes))
    size = kvtool.encode(array, out=room)
    assert bytes(room[:size]) == kvtool.encode(array)
    with pytest.raises(kvtool.Error) as raised:
        kvtool.encode(array, out=bytearray(64))
    assert raised.value.finding == 6 and raised.value.fault == "caller"
    noise = np.random.default_rng(3).bytes(5000)
    assert kvtool.encode(noise, out=bytearray(kvtool.bound(len(noise)))) == len(noise) + 128


def test_decode_array():
    array = walk()
    frame = kvtool.encode(array)
    plain = kvtool.decode_array(frame, framework="uint16")
    assert plain.dtype == np.uint16 and plain.shape == array.shape and (plain == array).all()
    assert plain.flags.writeable
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = kvtool.decode_array(frame)
    assert values.dtype == ml_dtypes.bfloat16 and (values.view(np.uint16) == array).all()
    turned = kvtool.encode(array.transpose(1, 0, 2).copy(), order="head_token_dim")
    assert kvtool.decode_array(turned).shape == (4, 64, 32)
    assert kvtool.decode_array(kvtool.encode(b"")).shape == (0,)
    floats = array.astype(np.float32)
    assert (kvtool.decode_array(kvtool.encode(floats)) == floats).all()
    with pytest.raises(ValueError, match="framework"):
        kvtool.decode_array(frame, framework="abacus")


def test_decode_tokens():
    array = walk(tokens=2000, heads=8, dim=64)
    frame = kvtool.encode(array)
    assert kvtool.frame_info(frame)["segment_tokens"] > 0
    assert kvtool.decode_tokens(frame, 100, 17) == array[100:117].tobytes()
    out = np.empty((1900, 8, 64), np.uint16)
    assert kvtool.decode_tokens(frame, 100, 1900, out=out) == out.nbytes
    assert (out == array[100:]).all()
    for begin, count in ((0, 2001), (2000, 1), (2**63, 2**63)):
        with pytest.raises(kvtool.Error) as raised:
            kvtool.decode_tokens(frame, begin, count)
        assert raised.value.finding == 10


def test_what_is_refused():
    array = walk()
    with pytest.raises(TypeError, match="memory that can be used"):
        kvtool.encode(3)
    with pytest.raises(TypeError):
        kvtool.encode("text")
    with pytest.raises(ValueError, match="ascontiguousarray"):
        kvtool.encode(array[:, ::2])
    with pytest.raises(ValueError, match="level"):
        kvtool.encode(array, level="best")
    with pytest.raises(ValueError, match="level"):
        kvtool.encode(array, level=5)
    with pytest.raises(ValueError, match="dtype"):
        kvtool.encode(array, dtype="complex64")
    with pytest.raises(ValueError, match="order"):
        kvtool.encode(array, order="dim_first")
    with pytest.raises(ValueError, match="16 bytes"):
        kvtool.encode(array, context=b"short")
    with pytest.raises(TypeError, match="CPU"):
        kvtool.encode(DLPackOnly(array.view(np.float16), device=(2, 0)))
    with pytest.raises(ValueError):
        kvtool.bound(2**64 - 1)


def test_damage_is_named():
    frame = bytearray(kvtool.encode(walk(), context=KEY))
    cases = {1001: frame[:100], 1003: b"x" * 200, 1103: frame[:60] + bytes([frame[60] ^ 1]) + frame[61:]}
    for finding, bad in cases.items():
        with pytest.raises(kvtool.Error) as raised:
            kvtool.decode(bad)
        error = raised.value
        assert error.finding == finding and error.fault == "data" and isinstance(error, ValueError)
        assert f"KV{finding}" in str(error)
    with pytest.raises(kvtool.Error) as raised:
        kvtool.decode(frame, context=kvtool.hash128("another model"))
    assert raised.value.finding == 1106
    for position in range(0, len(frame), 37):
        bad = bytearray(frame)
        bad[position] ^= 0x10
        with pytest.raises(kvtool.Error):
            kvtool.decode(bad)


def test_a_lie_about_the_size_takes_no_memory():
    """A header may claim 64 GiB with a valid checksum, so the payload is checked before memory is
    allocated."""
    frame = bytearray(kvtool.encode(walk(tokens=8192).tobytes(), dtype="bf16"))
    claim = 2**36
    assert len(frame) > 128 + claim // 2**20 * 16
    frame[16:24] = claim.to_bytes(8, "little")
    frame[120:128] = xxh3_64(bytes(frame[:120]))
    assert kvtool.frame_info(frame)["raw_bytes"] == claim
    with pytest.raises(kvtool.Error):
        kvtool.decode(frame)
    result = kvtool.decode_batch([frame])
    assert result.status[0] < 0 and result.objects == [None]


def xxh3_64(data):
    library = pytest.importorskip("xxhash")
    return library.xxh3_64_intdigest(data).to_bytes(8, "little")


def test_batches():
    pages = [walk(seed=seed) for seed in range(5)]
    keys = [kvtool.hash128(f"page {i}") for i in range(5)]
    for context in (kvtool.Context("fast"), kvtool.Context("default", threads=3)):
        encoded = context.encode_batch(
            [pages[0], [pages[1][:10], pages[1][10:]], (pages[2],), pages[3].tobytes(), pages[4]],
            dtype="bf16", shape=(64, 4, 32), contexts=keys, tags=range(5))
        assert encoded.ok and len(encoded) == 5
        assert encoded.sizes == [len(frame) for frame in encoded.objects]
        for page, key, tag, frame in zip(pages, keys, range(5), encoded.objects):
            info = kvtool.frame_info(frame)
            assert (info["context"], info["tag"], info["tokens"]) == (key, tag, 64)
            # Threads, batches and pieces do not change the frames.
            assert frame == kvtool.encode(page, level=context.level, context=key, tag=tag)
        frames = list(encoded.objects)
        frames[1] = frames[1][:-1]
        wanted = list(keys)
        wanted[3] = kvtool.hash128("someone else's")
        outs = [np.empty_like(page) for page in pages]
        halves = [outs[0], outs[1], [outs[2][:30], outs[2][30:]], outs[3], memoryview(outs[4]).cast("B")]
        decoded = context.decode_batch(frames, contexts=wanted, outs=halves)
        assert decoded.status == [0, -1001, 0, -1106, 0] and not decoded.ok
        assert decoded.sizes == [pages[0].nbytes, 0, pages[2].nbytes, 0, pages[4].nbytes]
        assert decoded.objects == [None] * 5
        for index in (0, 2, 4):
            assert (outs[index] == pages[index]).all()
        fresh = context.decode_batch(frames, contexts=[None] * 5)
        assert fresh.status == [0, -1001, 0, 0, 0] and fresh.objects[1] is None
        assert fresh.objects[3] == pages[3].tobytes()
    assert kvtool.encode_batch([]).ok
    with pytest.raises(ValueError, match="one for each"):
        kvtool.encode_batch(pages, tags=[1])
    with pytest.raises(TypeError):
        kvtool.encode_batch([pages[0], 3])


def test_encode_batch_into_memory():
    pages = [walk(seed=seed) for seed in range(3)]
    rooms = [bytearray(kvtool.bound(page.nbytes)) for page in pages]
    rooms[1] = bytearray(10)
    result = kvtool.encode_batch(pages, outs=rooms)
    assert result.status == [0, -6, 0] and result.objects == [None] * 3
    assert kvtool.decode(rooms[2]) == pages[2].tobytes()


def test_limits_and_stats():
    context = kvtool.Context("fast", max_raw_bytes=1000)
    with pytest.raises(kvtool.Error) as raised:
        context.encode(bytes(1001))
    assert raised.value.finding == 1014
    frame = context.encode(bytes(1000))
    context.decode(frame)
    stats = context.stats()
    assert stats["frames"] == 1 and stats["raw_bytes"] == 1000 and stats["stored_bytes"] == len(frame)
    assert stats["decoded"] == 1 and stats["encode_ns"] > 0
    assert (context.level, context.threads) == ("fast", 1)


def test_cancel_and_busy():
    """Another thread cancels a slow call; until then the context is busy, which is an error and not a
    race."""
    slow = np.random.default_rng(0).standard_normal(16 << 20).astype(np.float32)
    context = kvtool.Context("max")
    seen = {}

    def encode():
        try:
            context.encode(slow)
            seen["finding"] = 0
        except kvtool.Error as error:
            seen["finding"], seen["fault"] = error.finding, error.fault

    thread = threading.Thread(target=encode)
    thread.start()
    while context.stats()["frames"] == 0 and thread.is_alive() and "busy" not in seen:
        try:
            context.verify_frame(b"")
        except kvtool.Error as error:
            if error.finding == 7:
                seen["busy"] = True
        time.sleep(0.001)
    while thread.is_alive():
        context.cancel()
        thread.join(0.01)
    assert seen == {"busy": True, "finding": 8, "fault": "stopped"}
    # The context remains usable.
    assert context.decode(context.encode(b"abc")) == b"abc"


def test_threads_run_beside_python():
    """The GIL is free while a call computes: another Python thread continues."""
    array = np.random.default_rng(0).standard_normal(4 << 20).astype(np.float32)
    done = threading.Event()

    def encode():
        kvtool.Context("high").encode(array)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    steps = 0
    while not done.is_set():
        steps += 1
        time.sleep(0.001)
    thread.join()
    assert steps > 5


def test_estimate():
    array = walk(tokens=4096)
    estimates = kvtool.estimate(array)
    assert [entry["level"] for entry in estimates] == ["fast", "default", "high", "max"]
    assert all(entry["encode_mb_s"] > 0 and entry["decode_mb_s"] > 0 for entry in estimates)
    real = array.nbytes / len(kvtool.encode(array))
    (only,) = kvtool.estimate(array.tobytes(), ["default"], dtype="bf16", shape=array.shape)
    assert 0.7 < only["ratio"] / real < 1.3


def test_explain():
    page = kvtool.explain("KV1103")
    assert page["finding"] == 1103 and page["fault"] == "data" and page["text"]
    assert kvtool.explain(-1103) == kvtool.explain(1103) == page
    assert kvtool.explain(39999)["summary"]
    with pytest.raises(ValueError):
        kvtool.explain("KVX")


def test_version():
    assert kvtool.__version__ in kvtool.build
    assert kvtool.hash128("") == kvtool.hash128(b"")


def test_torch():
    """Real tensors: bf16 by DLPack, eight-bit floats by a view, writable targets."""
    torch = pytest.importorskip("torch")
    values = torch.randn(64, 4, 32)
    for dtype, name in ((torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.float32, "f32"),
                        (torch.float8_e4m3fn, "f8_e4m3"), (torch.float8_e5m2, "f8_e5m2"), (torch.int8, "i8")):
        tensor = values.to(dtype)
        frame = kvtool.encode(tensor)
        info = kvtool.frame_info(frame)
        assert (info["dtype"], info["tokens"], info["heads"], info["head_dim"]) == (name, 64, 4, 32)
        again = kvtool.decode_array(frame, framework="torch")
        assert again.dtype == dtype and again.shape == tensor.shape
        assert torch.equal(again.view(torch.uint8), tensor.view(torch.uint8))
        target = torch.zeros_like(tensor)
        assert kvtool.decode(frame, out=target) == target.numel() * target.element_size()
        assert torch.equal(target.view(torch.uint8), tensor.view(torch.uint8))
    with pytest.raises(ValueError, match="contiguous"):
        kvtool.encode(values.transpose(0, 1))
    assert kvtool.encode(values.clone().requires_grad_()) == kvtool.encode(values)


def test_contexts_are_closed():
    with kvtool.Context("high", threads=2) as context:
        frame = context.encode(b"page")
        assert repr(context) == "<kvtool.Context high, threads 2>" and not context.closed
    assert context.closed and repr(context) == "<kvtool.Context high, threads 2, closed>"
    context.close()
    for call in (lambda: context.decode(frame), lambda: context.encode_batch([b"x"]), context.stats, context.cancel):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert (context.level, context.threads) == ("high", 2)


def test_a_call_outlives_the_close_of_its_context():
    page = np.random.default_rng(0).integers(0, 1 << 12, 1 << 18, np.uint16)
    for _ in range(10):
        context, results = kvtool.Context("high"), []

        def work(context=context, results=results):
            try:
                results.append(context.encode(page))
            except ValueError:
                results.append(None)  # closed before

        thread = threading.Thread(target=work)
        thread.start()
        context.close()
        thread.join()
        assert results[0] is None or kvtool.decode(results[0]) == page.tobytes()


def test_batch_results_are_sequences():
    result = kvtool.encode_batch([b"a", b"bb"])
    assert list(result) == result.objects == [result[0], result[1]] and len(result) == 2
    assert repr(result) == "<kvtool.BatchResult of 2, 0 failed>"
    with pytest.raises(IndexError):
        result[2]
