# SPDX-License-Identifier: Apache-2.0
"""Reads and writes safetensors files without kvtool."""
import json
import struct

import numpy

# BF16 has no numpy type, so its bits are used.
TYPES = {"F16": "<f2", "F32": "<f4", "BF16": "<u2", "I32": "<i4", "U32": "<u4", "I64": "<i8"}
NAMES = {numpy.dtype(code): name for name, code in TYPES.items() if name != "BF16"}


def header_bytes(path):
    with open(path, "rb") as file:
        return struct.unpack("<Q", file.read(8))[0]


def read(path):
    """Returns (metadata, arrays by name)."""
    with open(path, "rb") as file:
        data = file.read()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    metadata = header.pop("__metadata__", {})
    return metadata, {name: numpy.frombuffer(data[8 + size:][slice(*entry["data_offsets"])], TYPES[entry["dtype"]])
                      .reshape(entry["shape"]) for name, entry in header.items()}


def write(path, metadata, arrays):
    header, data = {"__metadata__": metadata}, b""
    for name, array in arrays.items():
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape),
                        "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
