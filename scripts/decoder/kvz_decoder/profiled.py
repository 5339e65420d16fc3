# SPDX-License-Identifier: Apache-2.0
"""Profiles, and chunks that are coded with the tables of one."""
import bisect
import struct

import numpy

from kvz_decoder.common import Damaged, Form
from kvz_decoder.context import Lanes, Tables, raw_bits, signed_order, values_of
from kvz_decoder.distribution import Slots

try:
    import xxhash
except ImportError:
    xxhash = None

MAGIC = b"\x89KVP\r\n\x1a\n"


class Profile:
    """The entries of a .kvp file; frames and archives identify it by `hash`."""

    def __init__(self, data):
        magic, version, count, size, length = struct.unpack_from("<8sIIQI", data)
        if magic != MAGIC or version not in (1, 2, 3) or size != len(data):
            raise Damaged("not a whole profile of version 1 to 3")
        self.hash = bytes(data[-16:])
        if xxhash is not None and xxhash.xxh3_128_digest(data[:-16]) != self.hash:
            raise Damaged("the profile's hash differs")
        self.name = data[28:28 + length].decode()
        at, self.entries = 28 + length, []
        for _ in range(count):
            _, _, dtype, bits, base, columns, _, rows = struct.unpack_from("<IBBBBIII", data, at)
            at += 20
            first = numpy.frombuffer(data, numpy.uint8, columns, at).astype(numpy.intp)
            tables = Tables(data, at + columns, bits, signed_order(bits))
            at = tables.end
            listed = numpy.frombuffer(data, "<u2", rows * columns, at).reshape(rows, columns)
            at += rows * columns * 2
            self.entries.append((dtype, bits, base, columns, first, tables, listed))
        self.rotation, self.regressions, self.knows_e4m3 = (1, ()), [], version > 2
        if version > 1:
            distance, turns = struct.unpack_from("<HH", data, at)
            self.rotation = distance, struct.unpack_from(f"<{turns}I", data, at + 4)
            (count,) = struct.unpack_from("<I", data, at + 4 + 4 * turns)
            at += 8 + 4 * turns
            for _ in range(count):
                self.regressions.append(Regression(data, at, version > 2, turns))
                at = self.regressions[-1].end
        if at != len(data) - 16:
            raise Damaged("the profile has bytes left over")


def shares_of_classes():
    """Returns the first slots of the integers from -127 on, and the end, for each class of taps."""
    classes, fall = [], 63000
    for _ in range(32):
        sizes, size = [], 1 << 16
        for _ in range(128):
            sizes.append(size + 1)
            size = size * (65536 - fall) >> 16
        begins = numpy.cumsum([0] + sizes[:0:-1] + sizes).tolist()
        unit = 2**30 // begins[-1]
        classes.append([unit * begin for begin in begins])
        fall = fall * 7 // 8
    return classes


class Start:
    """What the model of a frame knows before its first row."""

    def __init__(self, near, far):
        self.near, self.far = near, far

    def read(self, columns, upper_halves):
        self.variances, self.powers = upper_halves(columns), upper_halves(columns)
        self.spreads, self.errors = upper_halves(6), upper_halves(4)


class Regression:
    """A regression of a layer's K or V on other layers and on its own columns."""

    def __init__(self, data, at, extended, turns):
        _, role, count, self.columns = struct.unpack_from("<IBBH", data, at)
        self.is_value, at = role == 2, at + 8
        self.block, self.start, far = 0, None, 0
        if extended:
            self.block, starts, near, far, _ = struct.unpack_from("<HBBBB", data, at)
            at += 6
        self.neighbours = [struct.unpack_from("<IBBH", data, at + 8 * i) for i in range(count)]
        at += 8 * count
        self.neighbour_taps = sum(one[3] for one in self.neighbours)
        self.own_taps = (self.columns - 1) // self.block * self.block if self.block else 0
        taps = self.neighbour_taps + self.own_taps
        if extended and starts:
            self.start = Start(near, struct.unpack_from(f"<{far}H", data, at))
            at += 2 * far
            taps += 8 + 2 * (not self.is_value and turns > 0) + near + far

        def upper_halves(count):
            nonlocal at
            at += 2 * count
            return (numpy.frombuffer(data, "<u2", count, at - 2 * count).astype(numpy.uint32) << 16).view(numpy.float32)

        self.steps, self.scales = upper_halves(taps), upper_halves(self.columns)
        self.constants = numpy.frombuffer(data, "<f4", self.columns, at)
        self.classes = data[at + 4 * self.columns:at + 4 * self.columns + taps]
        at += 4 * self.columns + taps
        if self.start:
            self.start.read(self.columns, upper_halves)
        (size,) = struct.unpack_from("<I", data, at)
        self.slots, self.end = data[at + 4:at + 4 + size], at + 4 + size

    def weights(self):
        """Returns the weights of the neighbours' taps, of the row's own columns, and of the frame's taps."""
        slots, shares = Slots(self.slots, 0), shares_of_classes()
        integers = numpy.zeros((len(self.steps), self.columns), numpy.float32)
        own = range(self.neighbour_taps, self.neighbour_taps + self.own_taps)
        for tap, begins in enumerate(shares[number] for number in self.classes):
            first = ((tap - own.start) // self.block + 1) * self.block if tap in own else 0
            for column in range(first, self.columns):
                place = bisect.bisect_right(begins, slots.target()) - 1
                if place > 254:
                    raise Damaged("regressions: a weight lies in no slot")
                slots.take(begins[place], begins[place + 1] - begins[place])
                integers[tap, column] = place - 127
        slots.finish()
        return numpy.split(integers * self.steps[:, None] * self.scales, [own.start, own.stop])


def number(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at
        if shift > 28:
            raise Damaged("profiled: a number is too long")


def profiled(profile, chunk, payload):
    if profile is None:
        raise Damaged("needs a profile")
    which, lanes, flags = struct.unpack_from("<HBB", payload)
    if which >= len(profile.entries) or lanes > 2 or flags > 7:
        raise Damaged("profiled: the head")
    dtype, bits, base, width, first, tables, listed = profile.entries[which]
    columns, at = number(payload, 4) if flags & 4 else (width, 4)
    exceptions, at = number(payload, at)
    if dtype != chunk["dtype"] or columns == 0 or chunk["raw_bytes"] % (2 * columns):
        raise Damaged("profiled: the rows")
    rows = new = chunk["raw_bytes"] // (2 * columns)
    codes = None
    if flags & 1:
        new, at = number(payload, at)
        listed = listed if columns == width else numpy.zeros((0, columns), "<u2")
        bits_of_code = (len(listed) + new).bit_length()
        size = (rows * bits_of_code + 7) // 8
        packed = int.from_bytes(payload[at:at + size], "little")
        codes = [packed >> bits_of_code * i & ((1 << bits_of_code) - 1) for i in range(rows)]
        at += size
    replaced, place = [], 0
    for _ in range(exceptions):
        gap, at = number(payload, at)
        place += gap
        replaced.append((place, struct.unpack_from("<H", payload, at)[0]))
        place, at = place + 1, at + 2
    values = numpy.zeros((0, columns), "<u2")
    if new:
        values = new_rows(payload, at, new, columns, (Form(dtype), bits, base, first, tables), 16 << lanes, flags & 2)
        for place, value in replaced:
            values.reshape(-1)[place] = value
    elif at != len(payload):
        raise Damaged("profiled: bytes left over")
    return (values if codes is None else placed(codes, values, listed)).tobytes()


def new_rows(payload, at, rows, columns, entry, lane_count, hides):
    bfloat, bits, base, first, tables = entry
    hidden_bytes = 15 * lane_count // 8 if hides else 0
    width = (13 if bfloat else 16) - bits
    end = at + -(-rows * columns // 8) * width - hidden_bytes
    lanes = Lanes(payload, end, lane_count)
    symbols = numpy.zeros((rows, columns), numpy.uint32)
    above = first[numpy.arange(columns) % len(first)]
    for row in symbols:
        row[:] = lanes.row(tables, tables.table_of[above])
        above = row
    hidden = sum(extra << 15 * lane for lane, extra in enumerate(lanes.finish(32767 if hides else 0)))
    planes = bytes(payload[at:end]) + hidden.to_bytes(15 * lane_count // 8, "little")
    low, _ = raw_bits(planes, 0, rows * columns, width)
    values = values_of(symbols.reshape(-1), bits, bfloat, base, numpy.zeros(0, numpy.uint8), low)
    return numpy.frombuffer(values, "<u2").reshape(rows, columns).copy()


def placed(codes, values, listed):
    out, seen = numpy.zeros((len(codes), values.shape[1]), "<u2"), 0
    for row, code in enumerate(codes):
        if code == 0:
            out[row], seen = values[seen], seen + 1
        elif code <= len(listed):
            out[row] = listed[code - 1]
        elif code - 1 - len(listed) < seen:
            out[row] = values[code - 1 - len(listed)]
        else:
            raise Damaged("profiled: a row repeats a row that does not exist")
    if seen != len(values):
        raise Damaged("profiled: rows are left over")
    return out
