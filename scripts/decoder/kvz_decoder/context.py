# SPDX-License-Identifier: Apache-2.0
"""Symbols in context: the section on codec 16 of FORMAT.md, and parts that other codecs share with it."""
import struct

import numpy

from kvz_decoder.common import Damaged
from kvz_decoder.gear import gear, plane


def words16(values):
    return values.astype("<u2").tobytes()


def rotated(payload, size):
    words = numpy.frombuffer(gear(payload, 2, size), "<u2")
    return words16((words >> 1) | (words << 15))


def raw_bits(data, at, count, width):
    """Reads planes of `width` bits per value: returns (values, offset after them)."""
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
    """Reads codes of small numbers, from the lowest bit of each byte on."""

    def __init__(self, data, at):
        self.data, self.at = data, 8 * at

    def take(self, count):
        value = 0
        for i in range(count):
            value |= (self.data[self.at >> 3] >> (self.at & 7) & 1) << i
            self.at += 1
        return value

    def zeros(self):
        """Counts zeros before a one, which is read, too; there are at most 12."""
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
    """Returns one table's levels in the order of symbols, and the spread for the next."""
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
    """Returns frequencies, in the order of the levels."""
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
    """Static rANS tables, and the context of each."""

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
    """Interleaved rANS decoders, which decode a row of symbols at a time."""

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
        """Returns the final states of the lanes, minus 2^15."""
        extra = self.states - (1 << 15)
        if self.used != len(self.words) or (self.states < 1 << 15).any() or (extra > most).any():
            raise Damaged("the coded symbols do not end where they should")
        return [int(state) for state in extra]


def least_bits(form):
    return 8 if form.zeros else 6


def raw_width(form, bits):
    """Returns the raw bits of a value: 0 for an 8-bit float, which is its own symbol."""
    return 0 if form.zeros else (13 if form else 16) - bits


def values_of(symbols, bits, bfloat, base, escapes, low):
    """Returns 16-bit floats from symbols, escaped exponents and raw bits."""
    if bfloat.zeros:
        return words16((symbols & 0x80) << 8 | (symbols & 0x7f) << bfloat.zeros)
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
    if rows * columns * 2 != size or not least_bits(bfloat) <= bits <= 8 or hides > 1:
        raise Damaged("prev: a grid that does not fit the chunk")
    at = 16 + escape_count
    escapes = numpy.frombuffer(payload, numpy.uint8, escape_count, 16)
    tables = Tables(payload, at, bits, signed_order(bits))
    width = raw_width(bfloat, bits)
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
