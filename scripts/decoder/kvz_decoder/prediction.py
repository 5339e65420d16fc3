# SPDX-License-Identifier: Apache-2.0
"""Learned predictions: codecs 19 and 23."""
import struct

import numpy

from kvz_decoder.common import Damaged, unzstd
from kvz_decoder.context import Lanes, least_bits, raw_bits, raw_width, Tables, values_of
from kvz_decoder.rotation import Rotation


class Predictor:
    """The prediction that every channel learns; single precision throughout."""

    def __init__(self, columns, pairing, largest, bfloat):
        # One set of weights for rows without a similar row, with a poor one and with a good one.
        self.weights = numpy.zeros((3, 5, columns), numpy.float32)
        self.weights[:, 0] = [[0.5], [0.25], [0]]
        self.weights[:, 2] = [[0], [0.5], [1]]
        self.sigma, self.taught, self.which = numpy.zeros((3, columns), numpy.float32), [0, 0, 0], 0
        self.above = numpy.zeros((5, columns), numpy.float32)  # x1, p1, x2, p2, mean
        self.rows = []
        self.scale = numpy.ldexp(numpy.float32(1), 127 - largest)
        self.bfloat, self.row = bfloat, 0
        self.mine = numpy.arange(columns // (2 * pairing) * 2 * pairing if pairing else 0)
        self.partner = numpy.where(self.mine // max(pairing, 1) % 2 == 0, self.mine + pairing, self.mine - pairing)

    def predict(self, kind=0, like=None):
        """Returns (context, sign) of each channel; `like` is a row that this one resembles."""
        self.which = 0 if kind == 0 else 2 if kind < 4 else 1
        self.taps = self.above.copy()
        if kind:
            self.taps[2], self.taps[3] = like, 0
        t = self.weights[self.which] * self.taps
        self.m = ((t[0] + t[1]) + (t[2] + t[3])) + t[4]
        bits = self.m.view(numpy.uint32)
        bits[(bits & 0x7fffffff) >= 0x7f800000] = 0
        size = (bits & 0x7fffffff).astype(numpy.int64)
        octave = numpy.clip((size >> 22) - 210, 0, 47)
        certainty = numpy.clip((size >> 23) - (self.sigma[self.which].view(numpy.uint32) >> 23).astype(numpy.int64) + 2, 0, 6)
        context = 7 * octave + certainty
        return (context if self.row else numpy.full_like(context, 336)), bits >> 31

    def learn(self, words):
        self.row += 1
        self.taught[self.which] += 1
        words = words.astype(numpy.uint32)
        exponents = 0x7f80 if self.bfloat else 0x7c00
        x = ((words & 0x8000) << 16 | (words & 0x7fff) << (16 if self.bfloat else 13)).view(numpy.float32) * self.scale
        x[(words & exponents) == exponents] = 0
        x1, p1, x2, p2, mean = self.taps
        error = x - self.m
        power = (((x1 * x1 + p1 * p1) + (x2 * x2 + p2 * p2)) + mean * mean) + numpy.float32(1e-6)
        self.weights[self.which] += (error * numpy.float32(0.03)) / power * self.taps
        sigma = self.sigma[self.which]
        sigma += (abs(error) - sigma) * (numpy.float32(1) / numpy.float32(min(self.taught[self.which], 16)))
        mean = mean + (x - mean) * (numpy.float32(1) / numpy.float32(min(self.row, 32)))
        p = numpy.zeros_like(x)
        p[self.mine] = x[self.partner]
        self.above = numpy.stack([x, p, x1, p1, mean])
        self.rows.append(x)


def earlier_rows_of(payload, at, rows, columns):
    """Returns (class and distance of each row, rotations, offset after them)."""
    distance, count = struct.unpack_from("<HH", payload, at)
    angles = struct.unpack_from(f"<{count}I", payload, at + 4)
    (length,) = struct.unpack_from("<I", payload, at + 4 + 4 * count)
    at += 8 + 4 * count
    planes = numpy.frombuffer(unzstd(payload[at:at + length], 3 * rows), numpy.uint8).reshape(3, rows).astype(int)
    kinds, distances = planes[0], planes[1] | planes[2] << 8
    if (distances > numpy.arange(rows)).any() or ((kinds > 0) != (distances > 0)).any() or (kinds > 5).any():
        raise Damaged("like: a row is like one that does not exist")
    return list(zip(kinds.tolist(), distances.tolist())), Rotation(distance, angles, columns), at + length


def lms(payload, bfloat, size, with_earlier_rows=False, steps=None):
    shape, base, pairing, largest, rows, columns, escape_count = struct.unpack_from("<BBBBIII", payload, 0)
    bits = shape & 15
    if rows * columns * 2 != size or not least_bits(bfloat) <= bits <= 8 or not 1 <= largest <= 253:
        raise Damaged("lms: a grid that does not fit the chunk")
    steps = range(rows) if steps is None else steps
    if len(steps) != rows:
        raise Damaged("lms: other rows than the chunk")
    escapes = numpy.frombuffer(payload, numpy.uint8, escape_count, 16)
    earlier_rows, rotation, at = [(0, 0)] * rows, None, 16 + escape_count
    if with_earlier_rows:
        earlier_rows, rotation, at = earlier_rows_of(payload, at, rows, columns)
    tables = Tables(payload, at, bits, list(range(337)))
    low, at = raw_bits(payload, tables.end, rows * columns, raw_width(bfloat, bits))
    low = low.reshape(rows, columns)
    lanes, predictor = Lanes(payload, at, 16 << (shape >> 4)), Predictor(columns, pairing, largest, bfloat)
    out = bytearray()
    for row in range(rows):
        kind, distance = earlier_rows[row]
        like = rotation.rotated(predictor.rows[row - distance], steps[row] - steps[row - distance]) if kind else None
        context, sign = predictor.predict(kind, like)
        symbols = lanes.row(tables, tables.table_of[context]) ^ sign << (bits - 1)
        asked = int((symbols >> (bits - 6) & 31 == 0).sum()) if base else 0
        words = values_of(symbols, bits, bfloat, base, escapes[:asked], low[row])
        escapes = escapes[asked:]
        predictor.learn(numpy.frombuffer(words, "<u2"))
        out += words
    lanes.finish()
    if len(escapes):
        raise Damaged("the number of escapes does not fit the symbols")
    return bytes(out)
