#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Restores the source of a .kvz archive: an independent decoder, written from formats/kvz/FORMAT.md
and formats/gear/FORMAT.md alone, that shares no code with kvtool.

  decode_kvz.py ARCHIVE OUTPUT          restore the file or folder
  decode_kvz.py ARCHIVE --list          one line per chunk
  decode_kvz.py ARCHIVE OUTPUT --walk   do not use index and trailer, as after truncation

Needs numpy and zstandard (Debian: python3-numpy python3-zstandard). With python3-xxhash all hashes
are checked; without it the decoder says that it did not.
"""
import argparse
import os
import pathlib
import struct
import sys

import numpy
import zstandard

try:
    import xxhash
except ImportError:
    xxhash = None

MAGIC = b"\x89KVZ\r\n\x1a\n"
MARKER = b"KVZr"
TRAILER_MAGIC = b"KVZ.END\n"
SOURCE, CHUNK, INDEX = 1, 2, 3
RAW, GEAR_F16, GEAR_F32, ZSTD_PLANES, ZSTD, PREV, ROTATED, ROWS, LMS, WINDOW4, WIDENED, CDF, LIKE = 0, 1, 2, 3, 4, 16, 17, 18, 19, 20, 21, 22, 23
F16, BF16 = 1, 2
HEAD = struct.Struct("<II6BHQQ6I6Q")
FIELDS = ("file layer kind codec dtype order source_order heads_known reserved token_begin tokens head_begin "
          "heads unit_begin units unit_bytes parameter raw_bytes raw_hash source_offset extent_bytes "
          "extent_tokens extent_token_begin").split()
# Fields of a block struct as (begin, end), one zstd frame each.
BLOCK_PLANES = {
    15: [(0, 1), (1, 2), (2, 34)],                          # q8_0
    16: [(0, 1), (1, 2), (2, 18)],                          # q4_0
    17: [(0, 1), (1, 2), (2, 3), (3, 4), (4, 20)],          # q4_1
    18: [(0, 1), (1, 2), (2, 6), (6, 22)],                  # q5_0
    19: [(0, 1), (1, 2), (2, 3), (3, 4), (4, 8), (8, 24)],  # q5_1
    20: [(0, 1), (1, 2), (2, 18)],                          # iq4_nl
}


class Damaged(Exception):
    pass


def check(data, stored, what):
    if xxhash is not None and xxhash.xxh3_64_intdigest(data) != stored:
        raise Damaged(f"{what}: hash differs")


def unzstd(payload, size):
    raw = zstandard.ZstdDecompressor().decompress(payload, max_output_size=size) if size else b""
    if len(raw) != size:
        raise Damaged(f"a zstd frame of {len(raw)} bytes, {size} expected")
    return raw


# ---- gear -----------------------------------------------------------------------------------------


def unrle(payload, size):
    out = bytearray()
    at = 0
    while at < len(payload):
        control = payload[at]
        if control < 128:
            piece = payload[at + 1:at + 2 + control]
            if len(piece) != control + 1:
                raise Damaged("RLE: literals end early")
            at += 2 + control
        else:
            piece = payload[at + 1:at + 2] * ((control & 127) + 4)
            at += 2
        out += piece
    if len(out) != size:
        raise Damaged(f"RLE: {len(out)} bytes, {size} expected")
    return bytes(out)


def plane(data, at, words):
    mode, codec, raw_len, payload_len = struct.unpack_from("<BBII", data, at)
    at += 10
    payload = data[at:at + payload_len]
    if raw_len != words or len(payload) != payload_len or mode > 2 or codec > 1:
        raise Damaged("gear: a plane that does not fit its container")
    residual = numpy.frombuffer(unzstd(payload, words) if codec else unrle(payload, words), numpy.uint8)
    if mode == 1:
        residual = numpy.cumsum(residual, dtype=numpy.uint8)
    elif mode == 2:
        residual = numpy.bitwise_xor.accumulate(residual)
    return residual, at + payload_len


def gear(payload, planes, size):
    (words,) = struct.unpack_from("<I", payload, 0)
    if words * planes != size:
        raise Damaged(f"gear: {words} words of {planes} bytes are not {size}")
    out = numpy.empty((words, planes), numpy.uint8)
    at = 4
    for lane in range(planes):
        out[:, lane], at = plane(payload, at, words)
    if at != len(payload):
        raise Damaged("gear: bytes after the last plane")
    return out.tobytes()


def block_planes(payload, dtype, unit_bytes, size):
    blocks = size // unit_bytes
    out = numpy.empty((blocks, unit_bytes), numpy.uint8)
    at = 0
    for begin, end in BLOCK_PLANES[dtype]:
        (length,) = struct.unpack_from("<I", payload, at)
        raw = unzstd(payload[at + 4:at + 4 + length], blocks * (end - begin))
        out[:, begin:end] = numpy.frombuffer(raw, numpy.uint8).reshape(blocks, end - begin)
        at += 4 + length
    if at != len(payload):
        raise Damaged("zstd-planes: bytes after the last plane")
    return out.tobytes()


# ---- kvtool's own codecs --------------------------------------------------------------------------


def words16(values):
    return values.astype("<u2").tobytes()


def rotated(payload, size):
    words = numpy.frombuffer(gear(payload, 2, size), "<u2")
    return words16((words >> 1) | (words << 15))


def raw_bits(data, at, count, width):
    """The planes of `width` bits per value: (values, offset behind them)."""
    padded, out, shift = -(-count // 8) * 8, numpy.zeros(-(-count // 8) * 8, numpy.uint32), 0
    for w in (8, 4, 2, 1):
        if width & w:
            size = padded * w // 8
            plane = numpy.frombuffer(data, numpy.uint8, size, at).astype(numpy.uint32)
            parts = [plane >> (g * w) & ((1 << w) - 1) for g in range(8 // w)]
            out |= numpy.concatenate(parts) << shift
            at, shift = at + size, shift + w
    return out[:count], at


def signed_order(bits):
    half = 1 << (bits - 1)
    return list(range(2 * half - 1, half - 1, -1)) + list(range(half))


class Bits:
    """Codes of small numbers, from the lowest bit of each byte on."""

    def __init__(self, data, at):
        self.data, self.at = data, 8 * at

    def take(self, count):
        value = 0
        for i in range(count):
            value |= (self.data[self.at >> 3] >> (self.at & 7) & 1) << i
            self.at += 1
        return value

    def zeros(self):
        """Zeros before a one, which is taken, too; 12 are all there are."""
        for count in range(12):
            if self.take(1):
                return count
        return 12

    def gamma(self, order):
        bits = self.zeros() + order
        if bits == 12 + order:
            raise Damaged("the tables are not made of levels")
        return (1 << bits | self.take(bits)) - (1 << order)

    def rice(self, order):
        high = self.zeros()
        return self.take(7) if high == 12 else high << order | self.take(order)


def levels_of(bits, above, count, spread):
    """One table's levels in the order of symbols, and the spread for the next."""
    levels = [0] * (count + 1)  # the level before the first is 0
    i = 1
    while i <= count:
        left = levels[i - 1]
        if left == 0:
            i += bits.gamma(1)
            if i <= count:
                levels[i] = bits.gamma(1) + 1
        else:
            up, corner = (above[i], above[i - 1]) if above else (left, left)
            plane = max(min(left, up), min(max(left, up), left + up - corner))
            folded = bits.rice((spread >> 4).bit_length())
            spread += folded - (spread >> 3)
            predicted = (plane + (left + up + 1) // 2) // 2
            levels[i] = predicted + folded // 2 + 1 if folded % 2 else predicted - folded // 2
        if i <= count and not 0 <= levels[i] <= 41 or i > count + 1:
            raise Damaged("the tables are not made of levels")
        i += 1
    return levels, spread


def from_levels(levels):
    """Frequencies, in the order of the levels."""
    weights = [level - 1 if level < 5 else (4 + (level - 1) % 4) << ((level - 1) // 4 - 1) for level in levels]
    present = [i for i, level in enumerate(levels) if level]
    if not present:
        raise Damaged("a table without symbols")
    total, shared = sum(weights[i] for i in present), 2048 - len(present)
    frequencies = [0] * len(levels)
    for i in present:
        frequencies[i] = 1 + (weights[i] * shared // total if total else 0)
    frequencies[levels.index(max(levels))] += 2048 - sum(frequencies)
    return frequencies


class Tables:
    """Static rANS tables and which context takes which."""

    def __init__(self, data, at, bits, order):
        count, packed = data[at] & 127, data[at] >> 7
        (runs,) = struct.unpack_from("<H", data, at + 1)
        at += 3
        covered = [run >> 4 for run in data[at:at + runs] for _ in range((run & 15) + 1)]
        if not 1 <= count <= 16 or len(covered) != len(order) or max(covered) >= count:
            raise Damaged("the context map does not cover the contexts")
        self.table_of = numpy.zeros(max(order) + 1, numpy.intp)
        self.table_of[order] = covered
        at += runs
        tables, self.end = (self.packed if packed else self.listed)(data, at, bits, count)
        self.symbol, self.frequency, self.offset = (numpy.zeros((count, 2048), numpy.uint32) for _ in range(3))
        for table, frequencies in enumerate(tables):
            if sum(frequencies) != 2048:
                raise Damaged("frequencies do not sum to 2048")
            self.symbol[table] = numpy.repeat(numpy.arange(1 << bits), frequencies)
            self.frequency[table] = numpy.repeat(frequencies, frequencies)
            self.offset[table] = numpy.concatenate([numpy.arange(f) for f in frequencies])

    @staticmethod
    def packed(data, at, bits, count):
        reader, above, spread, tables = Bits(data, at), None, 24, []
        order = signed_order(bits)
        for _ in range(count):
            above, spread = levels_of(reader, above, 1 << bits, spread)
            levels = [0] * (1 << bits)
            for symbol, level in zip(order, above[1:]):
                levels[symbol] = level
            tables.append(from_levels(levels))
        return tables, (reader.at + 7) // 8

    @staticmethod
    def listed(data, at, bits, count):
        tables = []
        for _ in range(count):
            mask = data[at:at + (1 << bits) // 8]
            at += len(mask)
            frequencies = [0] * (1 << bits)
            for s in range(1 << bits):
                if mask[s // 8] >> (s % 8) & 1:
                    f = data[at]
                    at += 1
                    if f >= 128:
                        f = (f & 127) << 8 | data[at]
                        at += 1
                    frequencies[s] = f
            tables.append(frequencies)
        return tables, at


class Lanes:
    """Interleaved rANS decoders; a row of symbols at a time."""

    def __init__(self, data, at, lanes):
        if lanes > 64:
            raise Damaged(f"{lanes} lanes")
        self.states = numpy.frombuffer(data, "<u4", lanes, at).astype(numpy.uint64)
        if (len(data) - at) % 2:
            raise Damaged("half a word at the end")
        self.words = numpy.frombuffer(data, "<u2", offset=at + 4 * lanes).astype(numpy.uint64)
        self.used = 0

    def row(self, tables, which):
        out = numpy.empty(len(which), numpy.uint32)
        lanes = len(self.states)
        for begin in range(0, len(which), lanes):
            table = which[begin:begin + lanes]
            x = self.states[:len(table)]
            slot = (x & 2047).astype(numpy.intp)
            out[begin:begin + lanes] = tables.symbol[table, slot]
            x = tables.frequency[table, slot] * (x >> 11) + tables.offset[table, slot]
            low = x < 1 << 15
            need = int(low.sum())
            x[low] = x[low] << 16 | self.words[self.used:self.used + need]
            self.used += need
            self.states[:len(table)] = x
        return out

    def finish(self, most=0):
        """What the lanes end with on top of 2^15."""
        extra = self.states - (1 << 15)
        if self.used != len(self.words) or (self.states < 1 << 15).any() or (extra > most).any():
            raise Damaged("the coded symbols do not end where they should")
        return [int(state) for state in extra]


def values_of(symbols, bits, bfloat, base, escapes, low):
    """16-bit floats from symbols, escaped exponents and raw bits."""
    if not bfloat:
        return words16(symbols << (16 - bits) | low)
    field = symbols >> (bits - 6) & 31
    exponent = field + base
    if base:
        if int((field == 0).sum()) != len(escapes):
            raise Damaged("the number of escapes does not fit the symbols")
        exponent[field == 0] = escapes
    top = symbols & ((1 << (bits - 6)) - 1)
    return words16(symbols >> (bits - 1) << 15 | exponent << 7 | top << (13 - bits) | low)


def prev(payload, bfloat, size):
    shape, base, hides, rows, columns, escape_count = struct.unpack_from("<BBHIII", payload, 0)
    bits, count = shape & 15, 16 << (shape >> 4)
    if rows * columns * 2 != size or not 6 <= bits <= 8 or hides > 1:
        raise Damaged("prev: a grid that does not fit the chunk")
    at = 16 + escape_count
    escapes = numpy.frombuffer(payload, numpy.uint8, escape_count, 16)
    tables = Tables(payload, at, bits, signed_order(bits))
    width = (13 if bfloat else 16) - bits
    end = tables.end + -(-rows * columns // 8) * width - (15 * count // 8 if hides else 0)
    lanes = Lanes(payload, end, count)
    symbols = numpy.zeros((rows, columns), numpy.uint32)
    above = numpy.zeros(columns, numpy.uint32)
    for row in symbols:
        row[:] = lanes.row(tables, tables.table_of[above])
        above = row
    hidden = sum(extra << 15 * lane for lane, extra in enumerate(lanes.finish(32767 if hides else 0)))
    planes = bytes(payload[tables.end:end]) + (hidden.to_bytes(15 * count // 8, "little") if hides else b"")
    low, _ = raw_bits(planes, 0, rows * columns, width)
    return values_of(symbols.reshape(-1), bits, bfloat, base, escapes, low)


class Predictor:
    """What every channel learns; single precision throughout."""

    def __init__(self, columns, pairing, largest, bfloat):
        # Sets for rows without a likeness, with a poor one and with a good one.
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
        """(context, sign) of each channel; `like` is a row that this one resembles"""
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


def likenesses_of(payload, at, rows, columns):
    """(class and distance of each row, turns, offset behind them)"""
    distance, count = struct.unpack_from("<HH", payload, at)
    turns = struct.unpack_from(f"<{count}I", payload, at + 4)
    (length,) = struct.unpack_from("<I", payload, at + 4 + 4 * count)
    at += 8 + 4 * count
    planes = numpy.frombuffer(unzstd(payload[at:at + length], 3 * rows), numpy.uint8).reshape(3, rows).astype(int)
    kinds, distances = planes[0], planes[1] | planes[2] << 8
    if (distances > numpy.arange(rows)).any() or ((kinds > 0) != (distances > 0)).any() or (kinds > 5).any():
        raise Damaged("like: a row is like one that does not exist")
    return list(zip(kinds.tolist(), distances.tolist())), Turns(distance, turns, columns), at + length


def lms(payload, bfloat, size, with_likenesses=False):
    shape, base, pairing, largest, rows, columns, escape_count = struct.unpack_from("<BBBBIII", payload, 0)
    bits = shape & 15
    if rows * columns * 2 != size or not 6 <= bits <= 8 or not 1 <= largest <= 253:
        raise Damaged("lms: a grid that does not fit the chunk")
    escapes = numpy.frombuffer(payload, numpy.uint8, escape_count, 16)
    likenesses, turns, at = [(0, 0)] * rows, None, 16 + escape_count
    if with_likenesses:
        likenesses, turns, at = likenesses_of(payload, at, rows, columns)
    tables = Tables(payload, at, bits, list(range(337)))
    low, at = raw_bits(payload, tables.end, rows * columns, (13 if bfloat else 16) - bits)
    low = low.reshape(rows, columns)
    lanes, predictor = Lanes(payload, at, 16 << (shape >> 4)), Predictor(columns, pairing, largest, bfloat)
    out = bytearray()
    for row in range(rows):
        kind, distance = likenesses[row]
        like = turns.turned(predictor.rows[row - distance], distance) if kind else None
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


f32 = numpy.float32


class Slots:
    """One rANS state in parts of 2^30."""

    def __init__(self, data, at):
        (self.state,) = struct.unpack_from("<Q", data, at)
        self.words = iter(struct.unpack_from(f"<{(len(data) - at - 8) // 4}I", data, at + 8))
        if (len(data) - at) % 4:
            raise Damaged("cdf: half a word at the end")

    def target(self):
        return self.state & 0x3fffffff

    def take(self, start, size):
        if not start <= self.target() < start + size:
            raise Damaged("cdf: in no slot")
        self.state = size * (self.state >> 30) + self.target() - start
        if self.state < 1 << 31:
            self.state = self.state << 32 | next(self.words, 0)

    def finish(self):
        if next(self.words, None) is not None or self.state != 1 << 31:
            raise Damaged("cdf: the values do not end where they should")


class Logistic:
    """Where the slots of all 65536 places begin, under any distribution."""

    def __init__(self, shift, scale):
        shares, e = [0] * 770, 1.0
        for i in range(385):
            shares[384 + i] = int((2**30 - 2**20) / (1 + e) + 0.5)
            shares[384 - i] = int((2**30 - 2**20) * e / (1 + e) + 0.5)
            e *= 0.93941306281347579
        shares[0], shares[768], shares[769] = 0, 2**30 - 2**20, 2**30 - 2**20
        self.shares = shares
        distance = numpy.arange(65536, dtype=numpy.int64) - 0x8000
        largest = int((numpy.finfo(f32).max / max(f32(1), scale)).view(numpy.uint32))
        bits = numpy.minimum((abs(distance) << shift) - (1 << (shift - 1)), largest)
        bits[0x8000] = 0
        border = bits.astype(numpy.uint32).view(f32) * scale
        self.border = numpy.where(distance < 0, -border, border).tolist()

    def below(self, place, mean, sharpness):
        if place in (0, 65536):
            return place << 14
        step = min(max((self.border[place] - mean) * (sharpness * 16) + 384, 0), 768)
        step = int(step * (1 << 20))
        low, high = self.shares[step >> 20], self.shares[(step >> 20) + 1]
        return low + ((high - low) * (step & 0xfffff) >> 20) + 16 * place

    def read(self, slots, mean, sharpness):
        first, end = 0, 65536  # the place is one of these
        while end - first > 1:
            middle = (first + end) // 2
            if self.below(middle, mean, sharpness) <= slots.target():
                first = middle
            else:
                end = middle
        start = self.below(first, mean, sharpness)
        slots.take(start, self.below(first + 1, mean, sharpness) - start)
        return 0xffff - first if first < 0x8000 else first - 0x8000


class Turns:
    """How far every column has turned."""

    def __init__(self, distance, turns, columns):
        table = [(1.0, 0.0)]
        for _ in range(4096):
            c, s = table[-1]
            table.append((c * 0.99999882345170190 - s * 0.0015339801862847657,
                          c * 0.0015339801862847657 + s * 0.99999882345170190))
        self.table = numpy.array(table).astype(f32)
        column = numpy.arange(columns)
        self.negative = column // distance % 2 == 0
        self.has_partner = column < columns // (2 * distance) * 2 * distance
        self.partner = numpy.where(self.has_partner, numpy.where(self.negative, column + distance, column - distance), 0)
        if turns:
            h = column % (2 * len(turns))
            self.turn = numpy.array(turns, numpy.uint64)[h // 2 if distance == 1 else h % distance]
        self.still = not turns

    def angles(self, rows):
        angle = (self.turn * numpy.uint64(rows)) & numpy.uint64(0xffffffff)
        i, part = (angle >> numpy.uint64(20)).astype(int), (angle & numpy.uint64(0xfffff)).astype(f32) * f32(2**-20)
        return (self.table[i] + (self.table[i + 1] - self.table[i]) * part[:, None]).T

    def partners(self, x):
        return numpy.where(self.has_partner, x[self.partner], f32(0))

    def turned(self, x, rows):
        if self.still:
            return x
        cosine, sine = self.angles(rows)
        other = self.partners(x) * sine
        return x * cosine + numpy.where(self.negative, -other, other)


def within(x):
    return numpy.where(abs(x) < 4, x, f32(0))


class Regression:
    """What every column learns; arrays [tap][column]."""

    def __init__(self, columns, taps, sizes, deviation):
        self.sizes = sizes
        self.g = numpy.zeros((taps, taps, columns), f32)
        self.b = numpy.zeros((taps, columns), f32)
        self.w = numpy.zeros((4, taps, columns), f32)
        self.e = numpy.zeros((4, columns), f32)
        self.v = numpy.full(columns, deviation * deviation, f32)
        self.u = numpy.zeros(columns, f32)
        self.samples = f32(0)

    def weights(self):
        d = self.e + f32(1e-12)
        square = numpy.square(d.min(axis=0) / d)
        t = square * square
        part = (t / ((t[0] + t[1]) + (t[2] + t[3])))[:, None] * self.w
        return (part[0] + part[1]) + (part[2] + part[3])

    def learn(self, taps, x, m, o, rows):
        def rate(least, more):
            return max(f32(least), f32(1) / f32(rows + more))

        for k, size in enumerate(self.sizes):
            predicted = numpy.zeros_like(x)
            for i in range(size):
                predicted += self.w[k, i] * taps[i]
            error = x - within(predicted)
            self.e[k] += (error * error * o - self.e[k]) * rate(0.05, 0)
        error = x - m
        self.v += (error * error * o - self.v) * rate(0.04, 2)
        self.u += (x * x - self.u) * rate(0.02, 0)

    def solve(self, pending):
        decay = f32(1)
        for _ in pending:
            decay *= f32(0.9995)
        self.samples = self.samples * decay + f32(len(pending))
        self.g *= decay
        self.b *= decay
        for taps, x, root in pending:
            taps, x = taps * root, x * root
            self.g += taps[:, None] * taps
            self.b += taps * x
        ridge = (numpy.minimum(self.v / (self.u + f32(1e-12)), f32(1)) * f32(8) + f32(0.05)) / self.samples
        # What is left of g and b once the first taps are taken out; its columns become those of l.
        left, y = self.g.copy(), self.b.copy()
        least = numpy.einsum("iic->ic", self.g) * ridge + f32(1e-12)
        o = numpy.empty_like(y)
        for i in range(len(y)):
            left[i, i] += least[i]
        for i in range(len(y)):
            o[i] = f32(1) / numpy.sqrt(numpy.maximum(left[i, i], least[i]))
            left[i + 1:, i] *= o[i]
            y[i] *= o[i]
            column = left[i + 1:, i]
            left[i + 1:, i + 1:] -= column[:, None] * column
            y[i + 1:] -= column * y[i]
        for k, size in enumerate(self.sizes):
            for i in reversed(range(size)):
                w = y[i].copy()
                for j in range(i + 1, size):
                    w -= left[j, i] * self.w[k, j]
                self.w[k, i] = w * o[i]


def class_of(slots, counts, row):
    """(class, distance) of a row"""
    unit, start = 2**30 // sum(counts), 0
    for q, count in enumerate(counts):
        if slots.target() < start + unit * count:
            break
        start += unit * count
    slots.take(start, unit * count)
    counts[q] += 1
    if q == 0:
        return 0, 0
    if row == 0:
        raise Damaged("cdf: the first row is like another")
    unit = 2**30 // row
    distance = slots.target() // unit + 1
    slots.take(unit * (distance - 1), unit if distance <= row else 0)
    return q, distance


class Cdf:
    """Rows that are known, and the one that comes next."""

    def __init__(self, payload, bfloat, size):
        largest, self.near, far, flag, rows, columns, deviation, distance, turns = struct.unpack_from("<BBBBIIfHH", payload, 0)
        if rows * columns * 2 != size or flag > 1 or not 1 <= largest <= 253 or rows < 16:
            raise Damaged("cdf: a grid that does not fit the chunk")
        self.far = struct.unpack_from(f"<{far}H", payload, 20)
        angles = struct.unpack_from(f"<{turns}I", payload, 20 + 2 * far)
        self.slots = Slots(payload, 20 + 2 * far + 4 * turns)
        self.shift, self.exponents = (16, 0x7f80) if bfloat else (13, 0x7c00)
        self.scale = numpy.ldexp(f32(1), 127 - largest)
        self.logistic = Logistic(self.shift, self.scale)
        self.rows, self.columns, self.flag = rows, columns, flag
        self.stride = -(-columns // 16) * 16
        self.before = 2 * self.stride  # zeros before the first row: near and far channels reach less
        self.x = numpy.zeros(self.before + rows * self.stride, f32)
        self.turns = Turns(distance, angles, columns)
        self.ahead = 5 + 2 * (not self.turns.still) + 2 * flag
        taps = self.ahead + self.near + far
        sizes = (2 if flag else 3, self.ahead, min(taps, self.ahead + 8), taps)
        self.regression = Regression(columns, taps, sizes, f32(deviation))
        self.spread = [f32(s) for s in (1, 0.003, 0.02, 0.1, 0.3, 0.6)]

    def row(self, number, left=0):
        begin = self.before + number * self.stride - left
        return self.x[begin:begin + self.columns]

    def value(self, half):
        if half & self.exponents == self.exponents:
            return f32(0)
        bits = numpy.uint32((half & 0x8000) << 16 | (half & 0x7fff) << self.shift)
        x = bits.view(f32) * self.scale
        return x if abs(x) < 4 else f32(0)

    def taps(self, row, q, distance):
        """All taps of a row; those in the row itself are views, filled in as it becomes known."""
        taps = []
        if self.flag:
            like = [numpy.zeros(self.columns, f32)] * 2
            if q:
                like[q > 3] = self.turns.turned(self.row(row - distance), distance)
            taps += like
        taps += [self.row(row - 1), self.turns.partners(self.row(row - 1)), numpy.ones(self.columns, f32)]
        if not self.turns.still:
            taps += list(self.turns.angles(row))
        taps += [self.row(row - 2), self.turns.partners(self.row(row - 2))]
        return taps + [self.row(row, left) for left in [*range(1, self.near + 1), *self.far]]

    def group(self, row, first, weights, taps, sharpness, out):
        """Values and expectations of up to sixteen columns."""
        end = min(first + 16, self.columns)
        m = numpy.zeros(end - first, f32)
        serial = min(self.near, 15)
        for i, tap in enumerate(taps):
            if not self.ahead <= i < self.ahead + serial:
                m += weights[i, first:end] * tap[first:end]
        # Of every column from `serial` before the group: its weight in each of the group.
        lane = numpy.arange(end - first)
        apart = lane - numpy.arange(-serial, end - first)[:, None]
        reaches = (apart >= 1) & (apart <= serial)
        which = numpy.where(reaches, self.ahead + apart - 1, 0)
        of_known = numpy.where(reaches, weights[which, first + lane], f32(0))
        x = self.row(row, serial - first)[:serial] if serial else ()
        for known, value in enumerate(x):
            m += of_known[known] * value
        for c in lane:
            m[c] = within(m[c])
            half = self.logistic.read(self.slots, float(m[c]), float(sharpness[first + c]))
            out.append(half)
            value = self.value(half)
            self.row(row)[first + c] = value
            m[c + 1:] += of_known[serial + c, c + 1:] * value
        return m

    def read(self):
        out, pending, counts = [], [], [1] * 6
        learned = self.regression
        for row in range(self.rows):
            q, distance = class_of(self.slots, counts, row) if self.flag else (0, 0)
            taps, weights = self.taps(row, q, distance), learned.weights()
            surprise, count, total = f32(8), f32(8), f32(0)
            expected = []
            for first in range(0, self.columns, 16):
                spread = self.spread[q] * (surprise / count)
                sharpness = f32(1) / (f32(0.53) * numpy.sqrt(learned.v * spread + f32(1e-12)))
                m = self.group(row, first, weights, taps, sharpness, out)
                error = self.row(row)[first:first + 16] - m
                h = error * error / (learned.v[first:first + 16] + f32(1e-12))
                for one in h:
                    total += min(one, f32(25))
                    surprise += min(one / self.spread[q], f32(25))
                    count += f32(1)
                expected.append(m)
            if row > 0:
                self.spread[q] += (total / f32(self.columns) - self.spread[q]) * f32(0.1)
                self.spread[q] = max(self.spread[q], f32(2**-10))
            o = f32(1) / self.spread[q]
            taps, x = numpy.array(taps), self.row(row)
            learned.learn(taps, x, numpy.concatenate(expected), o, row + 1)
            pending.append((taps, x, numpy.sqrt(o)))
            if len(pending) >= min(max((row + 1) // 16, 1), 16):
                learned.solve(pending)
                pending = []
        self.slots.finish()
        return words16(numpy.array(out))


def cdf(payload, bfloat, size):
    return Cdf(payload, bfloat, size).read()


def window4(payload, size):
    base, escaped = struct.unpack_from("<II", payload, 0)
    count = size // 2
    half = (count + 1) // 2
    data = numpy.frombuffer(payload, numpy.uint8, offset=8).astype(numpy.uint32)
    if len(data) != count + half + escaped:
        raise Damaged("window4: bytes missing or left over")
    field, packed, escapes = data[:count], data[count:count + half], data[count + half:]
    number = numpy.concatenate([packed & 15, packed >> 4])[:count]
    exponent = number + base
    if int((number == 15).sum()) != escaped:
        raise Damaged("the number of escapes does not fit the exponents")
    exponent[number == 15] = escapes
    return words16((field & 128) << 8 | exponent << 7 | field & 127)


def widened(chunk, payload):
    form, codec, _, length = struct.unpack_from("<BBHI", payload, 0)
    if form not in (1, 2) or codec == ROWS:
        raise Damaged(f"widened: form {form}")
    count = chunk["raw_bytes"] // 4
    inner = dict(chunk, codec=codec, raw_bytes=2 * count, unit_bytes=2, dtype=F16 if form == 1 else BF16)
    halves = decode_as(codec, inner, payload[8:8 + length])
    if form == 1:
        return numpy.frombuffer(halves, "<f2").astype("<f4").tobytes()
    out = numpy.empty((count, 4), numpy.uint8)
    out[:, 2:] = numpy.frombuffer(halves, numpy.uint8).reshape(count, 2)
    at = 8 + length
    for byte in range(2):
        out[:, byte], at = plane(payload, at, count)
    return out.tobytes()


def rows_of(chunk, payload):
    rows = chunk["tokens"] if chunk["order"] == 0 else chunk["heads"] * chunk["tokens"]
    codec, new, length = struct.unpack_from("<BII", payload, 0)
    width = (new.bit_length() + 7) // 8
    planes = numpy.frombuffer(unzstd(payload[9:9 + length], rows * width), numpy.uint8).reshape(width, rows)
    references = sum(planes[byte].astype(numpy.int64) << (8 * byte) for byte in range(width))
    if codec == ROWS or int((references == 0).sum()) != new:
        raise Damaged("rows: the references do not fit the rows")
    inner = dict(chunk, codec=codec, raw_bytes=chunk["raw_bytes"] // rows * new, tokens=new, heads=1,
                 units=chunk["raw_bytes"] // rows // chunk["unit_bytes"], order=0)
    unique = numpy.frombuffer(decode_as(codec, inner, payload[9 + length:]), numpy.uint8).reshape(new, -1)
    first = numpy.cumsum(references == 0) - 1
    return unique[numpy.where(references == 0, first, references - 1)].tobytes()


def decode_as(codec, chunk, payload):
    size = chunk["raw_bytes"]
    if codec == RAW:
        raw = payload
    elif codec == GEAR_F16:
        raw = gear(payload, 2, size)
    elif codec == GEAR_F32:
        raw = gear(payload, 4, size)
    elif codec == ZSTD_PLANES:
        raw = block_planes(payload, chunk["dtype"], chunk["unit_bytes"], size)
    elif codec == ZSTD:
        raw = unzstd(payload, size)
    elif codec == PREV:
        raw = prev(payload, chunk["dtype"] == BF16, size)
    elif codec == LMS:
        raw = lms(payload, chunk["dtype"] == BF16, size)
    elif codec == LIKE:
        raw = lms(payload, chunk["dtype"] == BF16, size, True)
    elif codec == CDF:
        raw = cdf(payload, chunk["dtype"] == BF16, size)
    elif codec == WINDOW4:
        raw = window4(payload, size)
    elif codec == WIDENED:
        raw = widened(chunk, payload)
    elif codec == ROTATED:
        raw = rotated(payload, size)
    elif codec == ROWS:
        raw = rows_of(chunk, payload)
    else:
        raise Damaged(f"codec {codec} is unknown")
    if len(raw) != size:
        raise Damaged(f"{len(raw)} bytes decoded, {size} expected")
    return raw


def decode(chunk, payload):
    raw = decode_as(chunk["codec"], chunk, payload)
    check(raw, chunk["raw_hash"], "decoded chunk")
    return raw


# ---- the archive ----------------------------------------------------------------------------------


def head_of(data):
    if len(data) < HEAD.size:
        raise Damaged(f"a chunk head of {len(data)} bytes")
    return dict(zip(FIELDS, HEAD.unpack(data[:HEAD.size])), lead=bytes(data[HEAD.size:]))


def record_at(data, at):
    """(type, head, payload offset, payload length, payload hash)"""
    marker, kind, head_len, _tag, length, digest = struct.unpack_from("<4sIIIQQ", data, at)
    if marker != MARKER or head_len > 256:
        raise Damaged(f"no record at {at}")
    end = at + 32 + head_len
    (stored,) = struct.unpack_from("<Q", data, end)
    check(data[at:end], stored, f"head of the record at {at}")
    return kind, bytes(data[at + 32:end]), end + 8, length, digest


def table_of(data, head, offset, length, digest):
    codec, _, raw_bytes = struct.unpack("<IIQ", head)
    payload = bytes(data[offset:offset + length])
    check(payload, digest, "table")
    return payload if codec == RAW else unzstd(payload, raw_bytes)


def files_of(table):
    flags, count = struct.unpack_from("<II", table, 0)
    files, at = [], 8
    for _ in range(count):
        size, name_len = struct.unpack_from("<QI", table, at)
        files.append((table[at + 12:at + 12 + name_len].decode(), size))
        at += 12 + name_len
    return bool(flags & 1), files


def open_archive(data, walk):
    """(is_folder, files, chunks, file hashes)"""
    if data[:8] != MAGIC or struct.unpack_from("<I", data, 8)[0] != 1:
        raise Damaged("not a .kvz archive of version 1")
    check(data[:16], struct.unpack_from("<Q", data, 16)[0], "header")
    chunks = []
    if not walk:
        trailer = data[-40:]
        if trailer[32:] != TRAILER_MAGIC:
            raise Damaged("the archive has no trailer; try --walk")
        check(trailer[:24], struct.unpack_from("<Q", trailer, 24)[0], "trailer")
        index_offset, _, total = struct.unpack_from("<QQQ", trailer, 0)
        if total != len(data):
            raise Damaged("the trailer speaks of another length")
        _, *rest = record_at(data, index_offset)
        index = table_of(data, *rest)
        (table_len,) = struct.unpack_from("<Q", index, 0)
        is_folder, files = files_of(index[8:8 + table_len])
        at = 8 + table_len
        hashes = struct.unpack_from(f"<{len(files)}Q", index, at)
        at += 8 * len(files) + 8
        (count,) = struct.unpack_from("<Q", index, at)
        at += 8
        for _ in range(count):
            offset, length, digest, head_len = struct.unpack_from("<QQQI", index, at)
            chunk = head_of(index[at + 28:at + 28 + head_len])
            chunk.update(offset=offset + 32 + head_len + 8, length=length, digest=digest)
            chunks.append(chunk)
            at += 28 + head_len
        return is_folder, files, chunks, hashes
    at, is_folder, files = 24, False, None
    while at + 40 <= len(data) and data[at:at + 4] == MARKER:
        kind, head, offset, length, digest = record_at(data, at)
        if kind == SOURCE:
            is_folder, files = files_of(table_of(data, head, offset, length, digest))
        elif kind == CHUNK and offset + length <= len(data):
            chunk = head_of(head)
            chunk.update(offset=offset, length=length, digest=digest)
            chunks.append(chunk)
        at = offset + length
    return is_folder, files, chunks, None


def place(chunk, raw, out):
    """Puts decoded units where they were; `out` is the file."""
    begin, end = chunk["source_offset"], chunk["source_offset"] + chunk["extent_bytes"]
    heads, tokens, units, size = chunk["heads"], chunk["tokens"], chunk["units"], chunk["unit_bytes"]
    out[begin - len(chunk["lead"]):begin] = numpy.frombuffer(chunk["lead"], numpy.uint8)
    if chunk["kind"] == 0:
        out[begin:end] = numpy.frombuffer(raw, numpy.uint8)
        return
    shape = {0: (tokens, heads, units, size), 1: (heads, tokens, units, size)}[chunk["order"]]
    values = numpy.frombuffer(raw, numpy.uint8).reshape(shape)
    if chunk["order"] == 0:
        values = values.transpose(1, 0, 2, 3)  # [head][token][unit] from here on
    extent = out[begin:end]
    if chunk["source_order"] == 0:
        extent[:] = values.transpose(1, 0, 2, 3).reshape(-1)
    elif chunk["source_order"] == 1:
        extent[:] = values.reshape(-1)
    else:
        first = chunk["extent_token_begin"]
        columns = extent.reshape(heads, units, chunk["extent_tokens"], size)
        columns[:, :, first:first + tokens] = values.transpose(0, 2, 1, 3)


def safe(name):
    parts = name.split("/")
    return bool(name) and "\\" not in name and "\0" not in name and not any(p in ("", ".", "..") for p in parts)


def restore(data, files, is_folder, chunks, hashes, output):
    by_file = {}
    for chunk in chunks:
        by_file.setdefault(chunk["file"], []).append(chunk)
    for number, (name, size) in enumerate(files):
        out = numpy.zeros(size, numpy.uint8)
        covered = 0
        for chunk in by_file.get(number, []):
            payload = bytes(data[chunk["offset"]:chunk["offset"] + chunk["length"]])
            check(payload, chunk["digest"], "payload")
            place(chunk, decode(chunk, payload), out)
            covered += chunk["raw_bytes"] + len(chunk["lead"])
        if covered != size:
            print(f"{name or output}: {size - covered} of {size} bytes are not in the archive", file=sys.stderr)
        elif hashes is not None:
            check(out, hashes[number], "restored file")
        if is_folder and not safe(name):
            raise Damaged(f"unsafe name {name!r}")
        path = pathlib.Path(output, name) if is_folder else pathlib.Path(output)
        os.makedirs(path.parent, exist_ok=True)
        out.tofile(path)


def main():
    parser = argparse.ArgumentParser(description="independent decoder of .kvz archives")
    parser.add_argument("archive")
    parser.add_argument("output", nargs="?")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--walk", action="store_true")
    options = parser.parse_args()
    data = memoryview(numpy.memmap(options.archive, numpy.uint8, "r"))
    data = memoryview(bytes(data)) if len(data) < 1 << 30 else data
    try:
        is_folder, files, chunks, hashes = open_archive(data, options.walk)
        if options.list:
            for chunk in chunks:
                print(" ".join(f"{key}={chunk[key]}" for key in FIELDS if key not in ("reserved", "raw_hash")))
        if options.output:
            if xxhash is None:
                print("python3-xxhash is missing: hashes are not checked", file=sys.stderr)
            if is_folder:
                os.makedirs(options.output, exist_ok=True)
            restore(data, files, is_folder, chunks, hashes, options.output)
    except (Damaged, struct.error, zstandard.ZstdError) as error:
        print(f"decode_kvz.py: {options.archive}: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
