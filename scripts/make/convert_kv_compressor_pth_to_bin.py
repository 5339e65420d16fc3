#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts a KV-compressor checkpoint (.pth) to the .bin that InfiniLM loads, without torch.

Takes the options of the original converter and writes the same bytes. Unlike the original, it reads pickles as data and
never runs them, reports a bias that is dropped, and leaves no half-written file after a failure. `kvtool weights
convert` does the same and more (text-only detection, wrappers, other containers).
"""
import argparse
import collections
import os
import pickle
import struct
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np

MAGIC = 0x4B56434D  # "MCVK" on disk
VERSION = 1
DTYPE_CODES = {"fp16": 0, "bf16": 1, "fp32": 2}
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C

# numpy has no bfloat16, so these elements are kept as marked 16-bit words.
STORAGES = {
    "FloatStorage": "f4", "HalfStorage": "f2", "DoubleStorage": "f8", "BFloat16Storage": "bf16", "LongStorage": "i8",
    "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?",
}
# Modules that data does not need; a file that names one was made to run code in its loader.
FORBIDDEN = frozenset("""__builtin__ __builtins__ _io _pickle asyncio builtins code codeop commands ctypes dill ftplib http
    importlib io joblib marshal multiprocessing nt ntpath os pickle pip platform posix posixpath pty requests runpy shutil
    signal smtplib socket ssl subprocess sys tempfile threading urllib webbrowser zipimport""".split())


class Refused(Exception):
    """Raised if the input cannot be converted."""


class Name:
    """A global of the pickle, known only by its name and never looked up."""

    def __init__(self, module, name):
        self.module, self.name = module, name


class Opaque(dict):
    """The result of calling a global, without the call. It is a dict so that it can store any state of the pickle."""

    def __init__(self, what):
        super().__init__()
        self.what = what

    def append(self, item):
        pass

    def extend(self, items):
        pass

    def __setstate__(self, state):
        pass


class StateDict(collections.OrderedDict):
    def __setstate__(self, state):  # _metadata of Module.state_dict()
        pass


class Storage:
    def __init__(self, kind, key, count):
        self.kind, self.key, self.count = kind, key, count


class Tensor:
    """A view of a storage, resolved when its values are read."""

    def __init__(self, storage, offset, size, stride):
        self.storage, self.offset = storage, offset
        self.shape, self.stride = tuple(size), tuple(stride)
        numbers = (offset, *self.shape, *self.stride)
        if len(self.shape) != len(self.stride) or any(type(n) is not int or n < 0 for n in numbers):
            raise Refused("a tensor has malformed sizes or strides")

    @property
    def numel(self):
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    def values(self, load):
        """Returns the elements in C order, and whether they are bfloat16 words."""
        flat, is_bf16 = load(self.storage)
        if self.numel == 0:
            return flat[:0], is_bf16
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.stride))
        if last >= len(flat):
            raise Refused(f"a tensor of shape {self.shape} leaves its storage {self.storage.key}")
        strides = [s * flat.itemsize for s in self.stride]
        view = np.lib.stride_tricks.as_strided(flat[self.offset:], self.shape, strides, writeable=False)
        return np.ascontiguousarray(view).reshape(-1), is_bf16


def rebuild_tensor(storage, offset, size, stride, *_):
    if not isinstance(storage, Storage):
        raise Refused("a tensor is made from something that is no storage")
    return Tensor(storage, offset, size, stride)


def rebuild_parameter(tensor, *_):
    return tensor


KNOWN = {
    ("collections", "OrderedDict"): StateDict,
    ("collections", "defaultdict"): lambda *_: StateDict(),
    ("collections", "Counter"): StateDict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): rebuild_tensor,
    ("torch._utils", "_rebuild_tensor_v2"): rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): rebuild_parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): rebuild_parameter,
    ("_codecs", "encode"): lambda text, _: text.encode("latin1"),
}


class DataUnpickler(pickle._Unpickler):  # the Python version, because its REDUCE can be replaced
    """Builds containers, numbers, texts and tensors. Everything else becomes Opaque or is
    refused."""

    dispatch = dict(pickle._Unpickler.dispatch)

    def find_class(self, module, name):
        known = KNOWN.get((module, name))
        if known is not None:
            return known
        top = module.split(".")[0]
        if top in FORBIDDEN or "." in name:
            raise Refused(f"the pickle refers to {module}.{name}; nothing was run")
        return Name(module, name)

    def persistent_load(self, pid):
        if not (isinstance(pid, tuple) and len(pid) in (5, 6) and pid[0] == "storage" and isinstance(pid[1], Name)):
            raise Refused("a persistent id is not ('storage', type, key, location, count)")
        if not isinstance(pid[2], str) or type(pid[4]) is not int or pid[4] < 0:
            raise Refused("a storage has a malformed key or count")
        if len(pid) == 6 and pid[5] is not None:
            raise Refused("views of storages are not supported here; kvtool weights convert reads them")
        return Storage(pid[1].name, pid[2], pid[4])

    def _call(self, function, args):
        if isinstance(function, Name):
            return Opaque(f"{function.module}.{function.name}")
        if function not in KNOWN.values():
            raise Refused("the pickle calls something that is no name")
        try:
            return function(*args)
        except (TypeError, ValueError, AttributeError) as error:
            raise Refused(f"malformed arguments: {error}") from error

    def load_reduce(self):
        args = self.stack.pop()
        self.stack[-1] = self._call(self.stack[-1], args)

    def load_newobj_ex(self):
        self.stack.pop()
        self.load_reduce()

    def load_build(self):
        self.stack.pop()  # kvtool needs no attributes

    def load_refused(self):
        raise Refused("the pickle uses an opcode that runs code")

    dispatch[pickle.REDUCE[0]] = load_reduce
    dispatch[pickle.NEWOBJ[0]] = load_reduce
    dispatch[pickle.NEWOBJ_EX[0]] = load_newobj_ex
    dispatch[pickle.BUILD[0]] = load_build
    for opcode in (pickle.INST, pickle.OBJ, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.PERSID):
        dispatch[opcode[0]] = load_refused


def load_pickle(stream):
    try:
        return DataUnpickler(stream, encoding="utf-8").load()
    except Refused:
        raise
    except Exception as error:  # on arbitrary bytes, a stack machine can fail in many ways
        raise Refused(f"malformed pickle: {type(error).__name__}: {error}") from error


def elements(data, kind, big_endian):
    """Returns the elements of a storage in host order, and whether they are bfloat16 words."""
    is_bf16 = kind == "bf16"
    dtype = np.dtype("u2" if is_bf16 else kind).newbyteorder(">" if big_endian else "<")
    return np.frombuffer(data, dtype).astype(dtype.newbyteorder("="), copy=False), is_bf16


def element_type(storage):
    if storage.kind not in STORAGES:
        raise Refused(f"storage {storage.key} is a {storage.kind}")
    kind = STORAGES[storage.kind]
    return kind, 2 if kind == "bf16" else np.dtype(kind).itemsize


def open_zip(path):
    archive = zipfile.ZipFile(path)
    pickles = [name for name in archive.namelist() if name.count("/") <= 1 and name.split("/")[-1] == "data.pkl"]
    if len(pickles) != 1:
        raise Refused("no single data.pkl in the zip file: torch did not write it")
    root = pickles[0][:-len("data.pkl")]
    names = set(archive.namelist())
    order = archive.read(root + "byteorder").strip() if root + "byteorder" in names else b"little"
    if order not in (b"little", b"big"):
        raise Refused(f"byteorder is {order!r}")

    def load(storage):
        kind, width = element_type(storage)
        name = f"{root}data/{storage.key}"
        if name not in names:
            raise Refused(f"record {name} is missing")
        data = archive.read(name)
        if len(data) < storage.count * width:
            raise Refused(f"record {name} has {len(data)} bytes, {storage.count * width} expected")
        return elements(data[:storage.count * width], kind, order == b"big")

    with archive.open(pickles[0]) as stream:
        return load_pickle(stream), load


def open_legacy(path):
    stream = open(path, "rb")
    if load_pickle(stream) != LEGACY_MAGIC:
        raise Refused("neither a zip file nor torch's older format")
    if load_pickle(stream) != 1001:
        raise Refused("unknown protocol version of torch's older format")
    system = load_pickle(stream)
    big_endian = isinstance(system, dict) and system.get("little_endian") is False
    storages = {}

    class Collector(DataUnpickler):
        def persistent_load(self, pid):
            storage = super().persistent_load(pid)
            return storages.setdefault(storage.key, storage)

    try:
        ckpt = Collector(stream, encoding="utf-8").load()
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"malformed pickle: {type(error).__name__}: {error}") from error
    left = os.path.getsize(path)
    records = {}
    for key in load_pickle(stream):
        if key not in storages:
            raise Refused(f"storage {key} is listed but not used")
        kind, width = element_type(storages[key])
        head = stream.read(8)
        count = int.from_bytes(head, "big" if big_endian else "little")
        size = count * width
        if len(head) < 8 or count != storages[key].count or size > left - stream.tell():
            raise Refused(f"storage {key}: unexpected end of file or element count")
        records[key] = (stream.tell(), size, kind)
        stream.seek(size, os.SEEK_CUR)

    def load(storage):
        if storage.key not in records:
            raise Refused(f"storage {storage.key} is missing")
        at, size, kind = records[storage.key]
        stream.seek(at)
        return elements(stream.read(size), kind, big_endian)

    return ckpt, load


def find_state(ckpt):
    if not isinstance(ckpt, dict) or isinstance(ckpt, Opaque):
        what = "torch.Tensor" if isinstance(ckpt, Tensor) else getattr(ckpt, "what", type(ckpt).__name__)
        raise Refused(f"Unsupported checkpoint type: {what}")
    wrapped = ckpt.get("model_state_dict")
    for holder in (wrapped, ckpt):
        inner = holder.get("compressor") if isinstance(holder, dict) else None
        if isinstance(inner, dict):
            if isinstance(inner, Opaque):
                raise Refused(f"the compressor is an object of {inner.what}")
            return inner
    if all(isinstance(key, str) for key in ckpt):
        return ckpt
    raise Refused("Cannot find compressor state dict in checkpoint")


def count_layers(state, prefixes):
    layers = set()
    for key in state:
        parts = str(key).split(".")
        if len(parts) >= 4 and any(str(key).startswith(prefix + ".") for prefix in prefixes):
            try:
                layers.add(int(parts[1]))
            except ValueError:
                continue
    if not layers or max(layers) < 0:
        raise Refused("Failed to infer num_layers from checkpoint keys")
    return max(layers) + 1


def rounded(values, is_bf16, dtype):
    """Returns bytes of the values as torch's .to(dtype) rounds them, including NaN."""
    if (dtype == "bf16" and is_bf16) or values.dtype == {"fp16": np.float16, "fp32": np.float32}.get(dtype):
        return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
    with np.errstate(all="ignore"):  # overflow to infinity is intended
        wide = (values.astype(np.uint32) << 16).view(np.float32) if is_bf16 else values.astype(np.float32)
        if dtype == "fp32":
            return wide.astype("<f4").tobytes()
        if dtype == "fp16":
            half = wide.astype(np.float16).view(np.uint16)
            half = np.where(np.isnan(wide), 0x7E00 | np.signbit(wide).astype(np.uint16) << 15, half)
            return half.astype("<u2").tobytes()
    bits = wide.view(np.uint32)
    nearest = (bits + (0x7FFF + ((bits >> 16) & 1)).astype(np.uint32)) >> 16
    nan = 0x7FC0 if values.dtype == np.float16 else 0xFFFF
    return np.where(np.isnan(wide), nan, nearest).astype("<u2").tobytes()


def convert(args, out):
    ckpt, load = (open_zip if zipfile.is_zipfile(args.input) else open_legacy)(args.input)
    state = find_state(ckpt)
    prefixes = [item.strip() for item in args.prefix_order.split(",") if item.strip()]
    slots = [int(item) for item in args.slot_order.split(",") if item.strip()]
    if len(slots) != 3:
        raise Refused("--slot-order must have exactly 3 entries (e.g. 0,3,6)")
    layers = count_layers(state, prefixes)

    def weight(key, missing):
        tensor = state.get(key)
        if tensor is None:
            raise Refused(missing)
        if not isinstance(tensor, Tensor):
            raise Refused(f"{key} is no tensor")
        return tensor

    first_key = f"{prefixes[0]}.0.{slots[0]}.weight"
    first = weight(first_key, f"Missing weight: {first_key}")
    if len(first.shape) != 2:
        raise Refused("Expected 2D linear weights")
    head_dim = args.head_dim if args.head_dim > 0 else first.shape[0]
    hidden_size = first.shape[1]
    if head_dim == 0 or hidden_size % head_dim != 0:
        raise Refused(f"Cannot infer compression factor: hidden_size={hidden_size} head_dim={head_dim}")
    factor = args.compression_factor if args.compression_factor > 0 else hidden_size // head_dim
    blocks = len(prefixes) * len(slots)
    out.write(struct.pack("<IIHH8I", MAGIC, VERSION, DTYPE_CODES[args.dtype], 0, layers, args.num_heads, head_dim,
                          hidden_size, factor, args.min_seq_len, blocks, 0))
    for layer in range(layers):
        for prefix in prefixes:
            for slot in slots:
                key = f"{prefix}.{layer}.{slot}"
                tensor = weight(f"{key}.weight", f"Missing weight: {key}.weight")
                if len(tensor.shape) != 2:
                    raise Refused(f"Expected 2D weight for {key}.weight, got {tensor.shape}")
                bias = state.get(f"{key}.bias")
                has_bias = isinstance(bias, Tensor) and bias.numel == tensor.shape[0]
                if bias is not None and not has_bias:
                    print(f"warning: {key}.bias does not fit {tensor.shape[0]} rows and is dropped", file=sys.stderr)
                out.write(struct.pack("<III", *tensor.shape, has_bias))
                out.write(rounded(*tensor.values(load), args.dtype))
                if has_bias:
                    out.write(rounded(*bias.values(load), args.dtype))
    return (f"(layers={layers}, weights/layer={blocks}, dtype={args.dtype}, factor={factor}, "
            f"hidden_size={hidden_size}, head_dim={head_dim})")


def main():
    parser = argparse.ArgumentParser(description="Convert KV-compressor .pth to InfiniLM .bin format, without torch")
    parser.add_argument("--input", required=True, help="checkpoint (.pth)")
    parser.add_argument("--output", required=True, help="file to write (.bin)")
    parser.add_argument("--dtype", default="fp16", choices=["fp16", "bf16", "fp32"], help="type of the values written")
    parser.add_argument("--compression-factor", type=int, default=0, help="header field, 0 = from the first shape")
    parser.add_argument("--min-seq-len", type=int, default=2, help="header field")
    parser.add_argument("--prefix-order", default="compress_tk,compress_tv,compress_ik,compress_iv",
                        help="prefixes to write, in their order within a layer")
    parser.add_argument("--slot-order", default="0,3,6", help="indices of the three linear layers")
    parser.add_argument("--num-heads", type=int, default=0, help="header field")
    parser.add_argument("--head-dim", type=int, default=0, help="header field, 0 = rows of the first weight")
    args = parser.parse_args()

    output = Path(args.output)
    temporary = None
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=output.parent, prefix=f".{output.name}.", delete=False) as out:
            temporary = out.name
            summary = convert(args, out)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, output)
        temporary = None
    except (Refused, OSError, ValueError, struct.error, zipfile.BadZipFile, RecursionError, MemoryError) as error:
        sys.exit(f"{parser.prog}: error: {args.input}: {error}")
    finally:
        if temporary is not None:
            os.unlink(temporary)
    print(f"Wrote {output} {summary}")


if __name__ == "__main__":
    main()
