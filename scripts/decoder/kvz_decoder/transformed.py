# SPDX-License-Identifier: Apache-2.0
"""Learnt transforms (.kvx), and chunks that one restores: codec 32."""
import struct

import numpy

from kvz_decoder.cells import Reader, read_description
from kvz_decoder.common import Damaged, f32
from kvz_decoder.context import Lanes
from kvz_decoder.rotation import Rotation

TOKENS, LANES, TOTAL = 128, 16, 2048


def array(read, dtype, count):
    size = numpy.dtype(dtype).itemsize * count
    if read.at + size > len(read.data):
        raise Damaged("the transform ends early")
    read.at += size
    return numpy.frombuffer(read.data, dtype, count, read.at - size)


class Side:
    """K or V: mean, parts of the basis, and steps with tables by ratio."""

    def __init__(self, read, layers, is_bfloat, is_weighted):
        self.heads, self.dim = read.take("II")
        self.mean = array(read, "<f4", layers * self.heads * self.dim)
        if is_weighted:
            array(read, "<f4", len(self.mean))  # weights, which only encoders need
        self.parts, variances, first = [], [], 0
        for _ in range(read.take("I")):
            features, rank = read.take("II")
            variances += list(array(read, "<f8", rank))
            vectors = array(read, "<u2" if is_bfloat else "<f4", rank * features)
            if is_bfloat:
                vectors = (vectors.astype("<u4") << 16).view("<f4")
            self.parts.append((first, features, vectors.reshape(rank, features)))
            first += features
        self.order = numpy.argsort(-numpy.array(variances), kind="stable")
        self.plans = {}
        for _ in range(read.take("I")):
            form = bytes(array(read, "u1", read.take("H")))
            ratio, _, groups = read.take("ddI")
            for _ in range(groups):
                read.take("IB")
            step, tables = read.take("fI")
            listed = [array(read, "<u2", 2 * read.take("B") + 2) for _ in range(tables)]
            if form == b"kvtc_rans":
                self.plans.setdefault(ratio, (f32(step), listed))

    def group(self, layer, ratio):
        """Returns first feature, vectors, step and tables of the part with this layer, counted from 0."""
        step, tables = self.plans[ratio]
        begin = 0
        for first, features, vectors in self.parts:
            if first <= layer * self.heads * self.dim < first + features:
                mine = [(place - begin, table) for place, table in zip(self.order, tables)
                        if begin <= place < begin + len(vectors)]
                if [place for place, _ in mine] != list(range(len(mine))):
                    raise Damaged("variances of the transform do not descend")
                return first, vectors[:len(mine)], step, [table for _, table in mine]
            begin += len(vectors)
        raise Damaged(f"the transform has no layer {layer}")


class Transform:
    def __init__(self, data):
        version = struct.unpack_from("<I", data, 8)[0]
        if data[:8] != b"KVTOOL-X" or version not in (1, 2):
            raise Damaged("not a transform of version 1 or 2")
        self.hash = bytes(data[-16:])
        read = Reader(data, 12)
        flags = read.take("I")
        for _ in range(2):
            array(read, "u1", read.take("H"))
        self.layers = read.take("I")
        read.take("IIQ")
        for _ in range(read.take("I")):
            array(read, "u1", read.take("H"))
        array(read, "<u8", read.take("I"))
        self.k, self.v = [Side(read, self.layers, flags == 1, version == 2) for _ in range(2)]


class Approximation:
    """The section of the source table, with the transform that it names."""

    def __init__(self, table, at, flags, transform):
        read = Reader(table, at)
        read_description(read)
        tokens = read.take("Q")
        read.at += 4 * tokens
        if flags & 8:
            for _ in range(read.take("I")):
                read.text(), read.text(), read.take("QQI")
        if flags & 16:
            read.text(), read.text(), read.take("16B")
        read.text(), read.text()
        digest = bytes(read.take("16B"))
        self.ratio, _, _, _ = read.take("dIIQ")
        self.rotations = []
        for _ in range(read.take("I")):
            distance, pairs = read.take("HH")
            self.rotations.append((distance, [read.take("I") for _ in range(pairs)]))
        layers = [read.take("IIdddd")[:2] for _ in range(read.take("I"))]
        self.place = {number: (i, rotation) for i, (number, rotation) in enumerate(layers)}
        if transform is None:
            raise Damaged("needs a transform: --transform")
        if transform.hash != digest or transform.layers != len(layers):
            raise Damaged("another transform than the archive's")
        self.transform, self.streams = transform, {}

    def values(self, chunk, stream):
        """Returns the chunk's values, [token][column]."""
        side = self.transform.v if chunk["kind"] == 2 else self.transform.k
        layer, rotation = self.place[chunk["layer"]]
        first, vectors, step, tables = side.group(layer, self.ratio)
        key = (chunk["kind"], first, chunk["token_begin"])
        if key not in self.streams:
            self.streams[key] = coefficients(stream, tables, chunk["tokens"]).astype(f32) * step
        begin = (layer * side.heads + chunk["head_begin"]) * side.dim + chunk["unit_begin"]
        columns = slice(begin, begin + chunk["heads"] * chunk["units"])
        values = numpy.repeat(side.mean[None, columns], chunk["tokens"], 0)
        for y, vector in zip(self.streams[key].T, vectors):
            values += y[:, None] * vector[None, columns.start - first:columns.stop - first]
        distance, turns = self.rotations[rotation]
        if chunk["kind"] == 1 and turns:
            rotator, width = Rotation(distance, turns, 2 * len(turns)), 2 * len(turns)
            for token, row in enumerate(values.reshape(chunk["tokens"], chunk["heads"], side.dim)):
                for head in row:
                    head[:width] = rotator.rotated(head[:width], chunk["token_begin"] + token)
        return values


class Grid:
    """The tables of 16 lanes, as Lanes reads them."""

    def __init__(self, tables):
        self.symbol = numpy.zeros((LANES, TOTAL), numpy.uint32)
        self.frequency, self.offset = (numpy.zeros((LANES, TOTAL), numpy.uint64) for _ in range(2))
        for lane in range(LANES):
            frequencies = tables[lane] if lane < len(tables) else numpy.array([TOTAL])
            starts = numpy.cumsum(frequencies.astype(int)) - frequencies
            symbol = numpy.repeat(numpy.arange(len(frequencies)), frequencies)
            self.symbol[lane] = symbol
            self.frequency[lane] = frequencies[symbol]
            self.offset[lane] = numpy.arange(TOTAL) - starts[symbol]


def coefficients(stream, tables, tokens):
    """Returns [token][component], in units of the step."""
    out = numpy.zeros((tokens, len(tables)), numpy.int64)
    lanes = Lanes(stream, 0, LANES)
    for first in reversed(range(0, len(tables), LANES)):
        grid = Grid(tables[first:first + LANES])
        width = len(tables[first:first + LANES])
        for token in range(tokens):
            out[token, first:first + width] = lanes.row(grid, numpy.arange(LANES))[:width]
    if (lanes.states != 1 << 15).any():
        raise Damaged("the lanes of the coefficients end in another state")
    escapes = iter(lanes.words[lanes.used:].astype(numpy.uint16).view(numpy.int16))
    for component, table in enumerate(tables):
        reach = len(table) // 2 - 1
        for token in range(tokens):
            symbol = out[token, component]
            value = symbol - reach if symbol < len(table) - 1 else int(next(escapes, 0))
            if symbol == len(table) - 1 and abs(value) <= reach:
                raise Damaged("a coefficient is escaped without need")
            out[token, component] = value
    if next(escapes, None) is not None:
        raise Damaged("bytes after the coefficients")
    return out


def transformed(chunk, payload):
    """Restores a chunk; `coefficients` finds the payload of the chunk that holds its coefficients."""
    if chunk["approximation"] is None or chunk["tokens"] > TOKENS or chunk["order"] != 0 or chunk["by_cells"]:
        raise Damaged("a chunk of a transform, which the archive does not name or cannot have")
    if chunk["parameter"]:
        if payload:
            raise Damaged("a payload beside coefficients of another layer")
        payload = chunk["coefficients"](chunk)
    values = chunk["approximation"].values(chunk, payload)
    if chunk["dtype"] == 1:
        return values.astype("<f2").tobytes()
    if chunk["dtype"] == 0:
        return values.astype("<f4").tobytes()
    if chunk["dtype"] != 2:
        raise Damaged("transformed values of another type")
    words = values.astype("<f4").view("<u4")
    return ((words + 0x7fff + (words >> 16 & 1)) >> 16).astype("<u2").tobytes()
