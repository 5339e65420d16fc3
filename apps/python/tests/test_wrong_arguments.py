# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Calls every bound function with every wrong kind of argument. It must raise one of Python's own exceptions, and
neither end the interpreter nor misinterpret bytes."""

import collections
import ctypes
import functools
import mmap
import os
import types

import kvtool
import numpy as np
import pytest

import conftest
from kvtool import _kvtool

PAGE = (np.arange(4 * 2 * 8, dtype=np.uint16) % 7 + 0x3F80).reshape(4, 2, 8)
FRAME = kvtool.encode(PAGE)
KEY = kvtool.hash128("key")


class Trouble(Exception):
    """Raised by the tests' own objects."""


def trouble(*_, **__):
    raise Trouble


def an(**methods):
    """Creates an object of a class with these methods and attributes."""
    return type("Odd", (), methods)()


class Shrinking(list):
    """A list that is emptied while its elements are read."""

    def __init__(self):
        super().__init__([PAGE, an(__dlpack__=lambda _, **__: self.clear(), dtype=None), PAGE])


class ArrayOfUsers(np.ndarray):
    pass


def closed_map():
    memory = mmap.mmap(-1, 4096)
    memory.close()
    return memory


def released_view():
    view = memoryview(bytearray(16))
    view.release()
    return view


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


OBJECTS = np.array([b"x" * 16, None, {}], dtype=object)

# Every entry makes a new object, because a call uses some of them up.
WRONG = {
    "none": lambda: None,
    "true": lambda: True,
    "minus one": lambda: -1,
    "2**32": lambda: 2**32,
    "2**63": lambda: 2**63,
    "2**70": lambda: 2**70,
    "10**5000": lambda: 10**5000,
    "float": lambda: 1.5,
    "nan": lambda: float("nan"),
    "complex": lambda: 1j,
    "empty text": lambda: "",
    "text": lambda: "text",
    "text with NUL": lambda: "bf16\0",
    "lone surrogate": lambda: "\ud800",
    "bytes": lambda: b"bytes",
    "no bytes": lambda: b"",
    "dict": lambda: {"a": PAGE},
    "dict of numbers": lambda: {0: PAGE, 1: PAGE},
    "user dict": lambda: collections.UserDict({"a": PAGE}),
    "mapping": lambda: types.MappingProxyType({0: PAGE}),
    "set": lambda: {1, 2},
    "generator": lambda: (PAGE for _ in range(2)),
    "iterator": lambda: iter([PAGE]),
    "huge range": lambda: range(2**62),
    "list of None": lambda: [None],
    "list of lists": lambda: [[[PAGE]]],
    "class": lambda: dict,
    "function": lambda: trouble,
    "module": lambda: np,
    "object": object,
    # arrays
    "not contiguous": lambda: PAGE[:, :, ::2],
    "reversed": lambda: PAGE[::-1],
    "columns first": lambda: np.asfortranarray(PAGE),
    "broadcast": lambda: np.broadcast_to(np.zeros(1, np.uint8), (1 << 40, 4)),
    "big-endian f2": lambda: PAGE.view("<f2").astype(">f2"),
    "big-endian u2": lambda: PAGE.astype(">u2"),
    "big-endian f4": lambda: PAGE.astype(">f4"),
    "no axes": lambda: np.array(1, np.float64),
    "scalar": lambda: np.float64(1),
    "f8": lambda: PAGE.astype(np.float64),
    "i4": lambda: PAGE.astype(np.int32),
    "u4": lambda: PAGE.astype(np.uint32),
    "i8": lambda: PAGE.astype(np.int64),
    "long double": lambda: PAGE.astype(np.longdouble),
    "complex array": lambda: PAGE.astype(np.complex64),
    "bool array": lambda: PAGE > 3,
    "text array": lambda: PAGE.astype(str),
    "bytes array": lambda: PAGE.astype("S2"),
    "object array": lambda: OBJECTS.copy(),
    "structure with objects": lambda: np.zeros(3, [("O", "<f2"), ("x", object)]),
    "structure": lambda: np.zeros(3, [("O", "<f2"), ("z", "<f2")]),
    "dates": lambda: np.zeros(3, "datetime64[s]"),
    "empty array": lambda: np.zeros((0, 2, 8), np.float16),
    "masked": lambda: np.ma.masked_array(PAGE, PAGE > 3),
    "matrix": lambda: np.asmatrix(PAGE[0]),
    "subclass": lambda: PAGE.view(ArrayOfUsers),
    "read-only": lambda: read_only(PAGE),
    # other memory
    "ctypes doubles": lambda: (ctypes.c_double * 4)(),
    "ctypes pointers": lambda: (ctypes.c_void_p * 2)(),
    "ctypes strings": lambda: (ctypes.c_char_p * 2)(),
    "ctypes objects": lambda: (ctypes.py_object * 1)("x"),
    "released view": released_view,
    "closed map": closed_map,
    # objects that return false values or raise
    "length too long": lambda: an(__len__=lambda _: 2**62, __getitem__=lambda _, i: [PAGE][i]),
    "length too short": lambda: an(__len__=lambda _: 0, __getitem__=lambda _, i: PAGE),
    "length raises": lambda: an(__len__=trouble, __getitem__=lambda _, i: PAGE),
    "length no number": lambda: an(__len__=lambda _: "2", __getitem__=lambda _, i: PAGE),
    "length negative": lambda: an(__len__=lambda _: -1, __getitem__=lambda _, i: PAGE),
    "no length": lambda: an(__getitem__=lambda _, i: PAGE),
    "element raises": lambda: an(__len__=lambda _: 2, __getitem__=trouble),
    "shrinking list": Shrinking,
    "index raises": lambda: an(__index__=trouble),
    "index no number": lambda: an(__index__=lambda _: "1"),
    "text raises": lambda: an(__str__=trouble, __repr__=trouble),
    "text no text": lambda: an(__str__=lambda _: 3),
    "attributes raise": lambda: an(__getattr__=trouble, __getattribute__=trouble),
    "names itself f16": lambda: an(dtype=an(name="float16"), shape=(1,), view=lambda _: PAGE),
    "names itself bf16": lambda: an(dtype=an(name="bfloat16"), view=lambda _, dtype: OBJECTS),
    "views nothing": lambda: an(dtype=an(name="bfloat16"), view=lambda _, dtype: None),
    "view raises": lambda: an(dtype=an(name="bfloat16"), view=trouble),
    "name is surrogate": lambda: an(name="\ud800"),
    "dlpack raises": lambda: an(__dlpack__=trouble, __dlpack_device__=trouble),
    "dlpack of nothing": lambda: an(__dlpack__=lambda _, **__: None, __dlpack_device__=lambda _: (1, 0)),
    "uninitialised context": lambda: kvtool.Context.__new__(kvtool.Context),
    "profile class": lambda: kvtool.Profile,
}

CONTEXT = kvtool.Context("fast")


@functools.cache
def opened():
    return _kvtool._open([b"--kv-heads=2", os.fsencode(conftest.ROOT / "testdata" / "trace" / "kjv3m.seq0.bin")], "")


def pages(count=2):
    return [PAGE] * count


def rooms(count=2):
    return [bytearray(kvtool.bound(PAGE.nbytes)) for _ in range(count)]


def room():
    return bytearray(kvtool.bound(PAGE.nbytes))


# One argument of each call is wrong, the others are valid.
CALLS = {
    "encode data": lambda x: kvtool.encode(x),
    "encode data, dtype": lambda x: kvtool.encode(x, dtype="bf16"),
    "encode dtype": lambda x: kvtool.encode(PAGE, dtype=x),
    "encode shape": lambda x: kvtool.encode(PAGE, shape=x),
    "encode axis": lambda x: kvtool.encode(PAGE, shape=(x, 2, 8)),
    "encode order": lambda x: kvtool.encode(PAGE, order=x),
    "encode role": lambda x: kvtool.encode(PAGE, role=x),
    "encode tag": lambda x: kvtool.encode(PAGE, tag=x),
    "encode context": lambda x: kvtool.encode(PAGE, context=x),
    "encode level": lambda x: kvtool.encode(PAGE, level=x),
    "encode out": lambda x: kvtool.encode(PAGE, out=x),
    "decode frame": lambda x: kvtool.decode(x),
    "decode context": lambda x: kvtool.decode(FRAME, context=x),
    "decode out": lambda x: kvtool.decode(FRAME, out=x),
    "decode_tokens frame": lambda x: kvtool.decode_tokens(x, 0, 1),
    "decode_tokens begin": lambda x: kvtool.decode_tokens(FRAME, x, 1),
    "decode_tokens count": lambda x: kvtool.decode_tokens(FRAME, 0, x),
    "decode_tokens out": lambda x: kvtool.decode_tokens(FRAME, 0, 1, out=x),
    "verify_frame frame": lambda x: kvtool.verify_frame(x),
    "verify_frame context": lambda x: kvtool.verify_frame(FRAME, context=x),
    "encode_batch objects": lambda x: kvtool.encode_batch(x),
    "encode_batch object": lambda x: kvtool.encode_batch([PAGE, x]),
    "encode_batch piece": lambda x: kvtool.encode_batch([[PAGE, x]]),
    "encode_batch dtype": lambda x: kvtool.encode_batch([[PAGE, PAGE]], dtype=x),
    "encode_batch contexts": lambda x: kvtool.encode_batch(pages(), contexts=x),
    "encode_batch context": lambda x: kvtool.encode_batch(pages(), contexts=[KEY, x]),
    "encode_batch tags": lambda x: kvtool.encode_batch(pages(), tags=x),
    "encode_batch tag": lambda x: kvtool.encode_batch(pages(), tags=[1, x]),
    "encode_batch outs": lambda x: kvtool.encode_batch(pages(), outs=x),
    "encode_batch out": lambda x: kvtool.encode_batch(pages(), outs=[room(), x]),
    "decode_batch frames": lambda x: kvtool.decode_batch(x),
    "decode_batch frame": lambda x: kvtool.decode_batch([FRAME, x]),
    "decode_batch contexts": lambda x: kvtool.decode_batch([FRAME], contexts=x),
    "decode_batch context": lambda x: kvtool.decode_batch([FRAME], contexts=[x]),
    "decode_batch outs": lambda x: kvtool.decode_batch([FRAME], outs=x),
    "decode_batch out": lambda x: kvtool.decode_batch([FRAME], outs=[x]),
    "decode_batch piece": lambda x: kvtool.decode_batch([FRAME], outs=[[bytearray(64), x]]),
    "estimate data": lambda x: kvtool.estimate(x, ["fast"]),
    "estimate levels": lambda x: kvtool.estimate(PAGE, x),
    "estimate level": lambda x: kvtool.estimate(PAGE, [x]),
    "frame_info": lambda x: kvtool.frame_info(x),
    "bound": lambda x: kvtool.bound(x),
    "hash128": lambda x: kvtool.hash128(x),
    "decode_array frame": lambda x: kvtool.decode_array(x),
    "decode_array framework": lambda x: kvtool.decode_array(FRAME, framework=x),
    "Profile": lambda x: kvtool.Profile(x),
    "Context level": lambda x: kvtool.Context(x),
    "Context threads": lambda x: kvtool.Context(threads=x),
    "Context max_raw_bytes": lambda x: kvtool.Context(max_raw_bytes=x),
    "Context profile": lambda x: kvtool.Context(profile=x),
    "Context.encode data": lambda x: CONTEXT.encode(x),
    "Context.encode tag": lambda x: CONTEXT.encode(PAGE, tag=x),
    "Context.decode out": lambda x: CONTEXT.decode(FRAME, out=x),
    "Context.encode_batch objects": lambda x: CONTEXT.encode_batch(x),
    "Context.decode_batch frames": lambda x: CONTEXT.decode_batch(x),
    "a method's self": lambda x: kvtool.Context.encode(x, PAGE),
    "explain": lambda x: kvtool.explain(x),
    "_explain": lambda x: _kvtool._explain(x),
    "_run command": lambda x: _kvtool._run(x, [b"--json"]),
    "_run arguments": lambda x: _kvtool._run("formats", x),
    "_run argument": lambda x: _kvtool._run("formats", [b"--json", x]),
    "_open arguments": lambda x: _kvtool._open(x, ""),
    "_open dtype": lambda x: _kvtool._open([b"/dev/null"], x),
    "_save layers": lambda x: save(layers=x),
    "_save pair": lambda x: save(layers=[x]),
    "_save array": lambda x: save(layers=[(x, None)]),
    "_save dtype": lambda x: save(dtype=x),
    "_save positions": lambda x: save(positions=x),
    "_save position": lambda x: save(positions=[0, 1, 2, x]),
    "_save token": lambda x: save(tokens=[x]),
    "_OpenedSnapshot.array": lambda x: opened().array(x, False),
    "_OpenedSnapshot.array V": lambda x: opened().array(0, x),
}


def save(layers=((PAGE, PAGE),), dtype=None, positions=None, tokens=None):
    # The format does not exist: all arguments are read before it is looked up, and nothing is written.
    _kvtool._save(b"/nowhere", "none", layers, dtype, positions, tokens, False)


# BufferError: NumPy's refusal to export memory. IndexError: sequences that are shorter than their length.
ALLOWED = (TypeError, ValueError, OverflowError, MemoryError, BufferError, IndexError, KeyError, Trouble)


@pytest.mark.parametrize("call", CALLS)
def test_wrong_arguments_raise(call):
    for name, make in WRONG.items():
        try:
            CALLS[call](make())
        except ALLOWED as error:
            assert "std::" not in str(error), (call, name)
        except Exception as error:
            pytest.fail(f"{call}, {name}: {type(error).__name__}: {error}")
    assert kvtool.decode(kvtool.encode(PAGE)) == PAGE.tobytes() and CONTEXT.decode(FRAME) == PAGE.tobytes()


# Arrays whose element type no frame can name: encoding them as bytes would lose it.
UNNAMED = [
    "f8", "i4", "u4", "i8", "long double", "complex array", "bool array", "text array", "bytes array", "object array",
    "structure with objects", "structure", "scalar", "no axes", "ctypes doubles", "ctypes pointers", "ctypes strings",
    "ctypes objects", "big-endian f2", "big-endian u2", "big-endian f4",
]  # fmt: skip
FUNCTIONS = {
    "encode": lambda data: kvtool.encode(data),
    "estimate": lambda data: kvtool.estimate(data, ["fast"]),
    "object of a batch": lambda data: kvtool.encode_batch([PAGE, data]),
    "piece of a batch": lambda data: kvtool.encode_batch([[data, data]]),
    "array of a snapshot": lambda data: save(layers=[(data, None)]),
}


def test_an_e4m3_with_infinities_is_no_e4m3fn():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.zeros((64, 4, 64), np.uint8)
    assert kvtool.frame_info(kvtool.encode(array.view(ml_dtypes.float8_e4m3fn)))["dtype"] == "f8_e4m3"
    for function in FUNCTIONS.values():
        with pytest.raises((TypeError, ValueError)):
            function(array.view(ml_dtypes.float8_e4m3))


@pytest.mark.parametrize("name", UNNAMED)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_element_types_are_not_lost(function, name):
    with pytest.raises(TypeError, match="values of type|pointers"):
        FUNCTIONS[function](WRONG[name]())


@pytest.mark.parametrize("name", UNNAMED)
def test_bytes_of_any_values_on_request(name):
    """dtype="u8" says that bytes are intended. Pointers are never values."""
    data = WRONG[name]()
    if "object" in name or name in ("ctypes pointers", "ctypes strings"):
        with pytest.raises(TypeError, match="pointers"):
            kvtool.encode(data, dtype="u8")
        with pytest.raises(TypeError, match="pointers"):
            kvtool.hash128(data)
    else:
        frame = kvtool.encode(data, dtype="u8")
        assert kvtool.decode(frame) == bytes(memoryview(data)) and kvtool.frame_info(frame)["dtype"] == "u8"
    if "big-endian" in name:
        with pytest.raises(TypeError, match="newbyteorder"):
            kvtool.encode(data, dtype="f16")


def test_byte_order_of_results():
    """A big-endian array is refused as a target for little-endian values, and as a name of their
    type."""
    for target in (np.zeros(PAGE.shape, ">f2"), np.zeros(PAGE.shape, ">u2")):
        with pytest.raises(TypeError, match="big-endian"):
            kvtool.decode(FRAME, out=target)
        assert not target.any()
    with pytest.raises(ValueError, match=">f2"):
        kvtool.encode(PAGE.tobytes(), dtype=np.dtype(">f2"))


def test_objects_are_never_overwritten():
    target = np.array([{}] * 16, dtype=object)
    for call in (
        lambda: kvtool.decode(FRAME, out=target),
        lambda: kvtool.decode_tokens(FRAME, 0, 4, out=target),
        lambda: kvtool.encode(PAGE, out=target),
        lambda: kvtool.decode_batch([FRAME], outs=[target]),
        lambda: kvtool.decode_batch([FRAME], outs=[[target]]),
        lambda: kvtool.encode_batch([PAGE], outs=[target]),
    ):
        with pytest.raises(TypeError, match="pointers"):
            call()
    assert all(entry == {} for entry in target)


def test_pieces_keep_their_type():
    for array in (PAGE, PAGE.view(np.float16), PAGE.astype(np.float32), PAGE.view(np.int8)):
        info = kvtool.frame_info(kvtool.encode_batch([[array[:1], array[1:]]]).objects[0])
        assert info["dtype"] == kvtool.frame_info(kvtool.encode(array))["dtype"]
    mixed = [[PAGE, PAGE.view(np.float16)]]
    with pytest.raises(TypeError, match="bf16 and of f16"):
        kvtool.encode_batch(mixed)
    assert kvtool.encode_batch(mixed, dtype="bf16").ok


def test_numbers_out_of_range_are_named():
    for call, text in (
        (lambda: kvtool.encode(PAGE, tag=2**32), "tag: expected a number from 0 to 4294967295"),
        (lambda: kvtool.encode(PAGE, tag=-1), "tag: expected a number from 0 to 4294967295"),
        (lambda: kvtool.encode_batch([PAGE], tags=[2**32]), "tag: expected a number"),
        (lambda: kvtool.encode(PAGE, shape=(-1, 2, 8)), "shape: expected a number from 0"),
        (lambda: kvtool.encode(PAGE, shape=(1,) * 65), "shape: expected at most 64 axes"),
        (lambda: kvtool.encode(PAGE, level=2**70), "level: expected a number"),
        (lambda: save(positions=[0, 1, 2, 2**63]), "positions: expected a number"),
        (lambda: save(tokens=[2**31]), "tokens: expected a number"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    for call, text in (
        (lambda: kvtool.encode_batch({"a": PAGE}), "objects: expected a list, a tuple or another sequence, not 'dict'"),
        (lambda: kvtool.encode_batch(page for page in [PAGE]), "objects: expected a list"),
        (lambda: kvtool.encode_batch([PAGE], tags={1: 2}), "tags: expected a list"),
        (lambda: kvtool.decode_batch({0: FRAME}), "frames: expected a list"),
        (lambda: kvtool.encode(PAGE, tag="1"), "tag: expected a whole number, not 'str'"),
        (lambda: kvtool.encode(PAGE, shape=(4, 2, 8.0)), "shape: expected a whole number, not 'float'"),
        (lambda: kvtool.encode(PAGE, shape=7), "shape: expected a list"),
        (lambda: kvtool.encode(PAGE, order=3), "order: expected a word such as 'token_head_dim', not 'int'"),
        (lambda: kvtool.encode(PAGE, level=2.0), "level: expected a word such as 'fast', not 'float'"),
    ):
        with pytest.raises(TypeError, match=text):
            call()
    assert kvtool.frame_info(kvtool.encode(PAGE, tag=np.int64(7), shape=np.array(PAGE.shape)))["tag"] == 7
    assert kvtool.encode_batch(np.stack(pages(3))).ok, "an array is a sequence of its rows"


@pytest.mark.parametrize("name", ["positions", "tokens"])
@pytest.mark.parametrize(
    "values", [{3: 0, 1: 0, 2: 0, 0: 0}, {0, 1, 2, 3}, "0123", [0.5, 1, 2, 3], [0, 1, 2, None], 7]
)
def test_what_has_no_order_numbers_no_tokens(tmp_path, name, values):
    """save() used to accept the keys of a dictionary, unordered sets and digits of a text, and to truncate
    fractions."""
    with pytest.raises(TypeError):
        kvtool.save(tmp_path / "cache.npz", layers=[(PAGE, PAGE)], **{name: values})
    assert list(tmp_path.iterdir()) == []


def test_memory_is_let_go_after_a_failure():
    """A pinned buffer cannot be resized, so a server would fail long after the faulty call."""
    memory, target = bytearray(PAGE.tobytes()), room()
    for call in (
        lambda: kvtool.encode(memory, tag=-1),
        lambda: kvtool.encode(memory, shape=(-1,), out=target),
        lambda: kvtool.encode(memory, out=bytes(8)),
        lambda: kvtool.encode_batch([memory, 3], outs=[target, target]),
        lambda: kvtool.decode(memory, out=target),
        lambda: kvtool.decode(FRAME, context=b"short", out=target),
        lambda: kvtool.decode_batch([memory, None], outs=[target, target]),
        lambda: kvtool.encode(memoryview(memory)[::2]),
    ):
        with pytest.raises((TypeError, ValueError)):
            call()
        memory.append(1), memory.pop(), target.append(1), target.pop()


def test_memory_that_overlaps():
    """The result of a call may not overlap its input: an error, or correct bytes."""
    memory = bytearray(2 * kvtool.bound(PAGE.nbytes))
    memory[: PAGE.nbytes] = PAGE.tobytes()
    for begin in (0, 1, PAGE.nbytes - 1):
        with pytest.raises(kvtool.Error) as raised:
            kvtool.encode(memoryview(memory)[: PAGE.nbytes], out=memoryview(memory)[begin:])
        assert raised.value.fault == "caller"
    assert bytes(memory[: PAGE.nbytes]) == PAGE.tobytes()
    framed = bytearray(FRAME) + bytearray(PAGE.nbytes)
    with pytest.raises(kvtool.Error) as raised:
        kvtool.decode(framed, out=memoryview(framed)[64 : 64 + PAGE.nbytes])
    assert raised.value.fault == "caller" and framed.startswith(FRAME)
    kvtool.decode(memoryview(framed)[: len(FRAME)], out=memoryview(framed)[len(FRAME) :])
    assert framed == FRAME + PAGE.tobytes()


def test_contexts_that_were_made_wrong():
    with pytest.raises(TypeError):
        kvtool.Context.__new__(kvtool.Context).encode(PAGE)
    for hidden in (kvtool.BatchResult, _kvtool._OpenedSnapshot):
        with pytest.raises(TypeError):
            hidden()
    context = kvtool.Context("fast", threads=2)
    try:
        context.__init__("high")
    except (TypeError, RuntimeError):
        pass
    assert context.decode(context.encode(PAGE)) == PAGE.tobytes()
