# SPDX-License-Identifier: Apache-2.0
"""Rows coded relative to those of other caches, codecs 25, 26 and 30: lib/core/codec/ref/FORMAT.md."""
import heapq
import struct

import numpy

from kvz_decoder.common import Damaged, f32, Form, narrowed, unzstd, widened
from kvz_decoder.context import Lanes, Tables, words16
from kvz_decoder.distribution import errors
from kvz_decoder.rotation import Rotation

try:
    import xxhash
except ImportError:
    xxhash = None

F32, F16, BF16, F8_E4M3, Q8_0 = 0, 1, 2, 13, 15
EQUAL, OWN = 62, 63


def as_floats(data, dtype, rows):
    if dtype == F32:
        values = numpy.frombuffer(data, "<f4")
    elif dtype == F16:
        values = numpy.frombuffer(data, "<f2").astype(f32)
    elif dtype == BF16:
        values = (numpy.frombuffer(data, "<u2").astype(numpy.uint32) << 16).view(f32)
    elif Form(dtype).zeros:
        # E4M3 is an f16 divided by 256 except for its NaNs; E5M2 is the upper byte of an f16.
        values = numpy.frombuffer(widened(data, dtype), "<f2").astype(f32) * f32(256 if dtype == F8_E4M3 else 1)
        if dtype == F8_E4M3:
            nan = numpy.frombuffer(data, numpy.uint8) & 0x7f == 0x7f
            values = numpy.where(nan, numpy.copysign(f32("nan"), values), values)
    elif dtype == Q8_0:
        blocks = numpy.frombuffer(data, numpy.uint8).reshape(-1, 34)
        scale = numpy.ascontiguousarray(blocks[:, :2]).view("<f2").astype(f32)
        values = scale * numpy.ascontiguousarray(blocks[:, 2:]).view(numpy.int8).astype(f32)
    else:
        raise Damaged(f"a reference of type {dtype}, which this decoder does not read")
    return values.reshape(rows, -1)


def as_bytes_of(values, zeros):
    """Returns the nearest 8-bit floats, as f16: ties to even, and the largest one for values beyond it."""
    known = numpy.arange(0x7f if zeros == 7 else 0x7c, dtype=numpy.uint16) << zeros
    sizes = known.view("<f2").astype(f32) * f32(256 if zeros == 7 else 1)
    size = numpy.minimum(abs(values), sizes[-1])
    above = numpy.clip(numpy.searchsorted(sizes, size), 1, len(sizes) - 1)
    low, high = size - sizes[above - 1], sizes[above] - size
    place = numpy.where((low < high) | (low == high) & (above % 2 == 1), above - 1, above)
    place = numpy.where(numpy.isnan(values), 0x7f, place).astype(numpy.uint32)
    return (numpy.signbit(values).astype(numpy.uint32) << 15 | place << zeros).astype(numpy.uint16)


def as_halves(values, bfloat):
    if bfloat.zeros:
        return as_bytes_of(values, bfloat.zeros)
    if not bfloat:
        with numpy.errstate(over="ignore"):
            return values.astype("<f2").view(numpy.uint16)
    bits = values.view(numpy.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return numpy.where(nan, bits >> 16 | 0x40, rounded).astype(numpy.uint16)


def expected_rows(data, dtype, rows, shift, rotation, bfloat):
    form = Form(dtype)
    if shift == 0 and (form.zeros or dtype in (F16, BF16)) and (form.zeros, bool(form)) == (bfloat.zeros, bool(bfloat)):
        return numpy.frombuffer(widened(data, dtype), "<u2").reshape(rows, -1)
    values = as_floats(data, dtype, rows)
    if shift != 0:
        with numpy.errstate(all="ignore"):
            rotated = numpy.stack([rotation.rotated(row, shift & 0xFFFFFFFF) for row in values])
        values = numpy.where(numpy.isfinite(rotated), rotated, values)
    return as_halves(values, bfloat)


def bits_of(data, at, widths):
    """Returns numbers of given widths in bits, one after another, the lowest bit of each byte first."""
    stream = numpy.unpackbits(numpy.frombuffer(data, numpy.uint8), bitorder="little").astype(numpy.int64)
    begins = numpy.cumsum(widths) - widths
    if begins[-1] + widths[-1] > len(stream) or -(-int(begins[-1] + widths[-1]) // 8) != len(data):
        raise Damaged("ref: raw bits are missing or left over")
    out = numpy.zeros(len(widths), numpy.int64)
    for bit in range(int(widths.max())):
        some = widths > bit
        out[some] |= stream[begins[some] + bit] << bit
    return out


def factors_at(payload, at, rows):
    (size,) = struct.unpack_from("<I", payload, at)
    factors = numpy.frombuffer(unzstd(payload[at + 4:at + 4 + size], rows), numpy.uint8)
    if (factors > OWN).any():
        raise Damaged("ref: an impossible factor")
    return factors, at + 4 + size


def learned_rows(payload, at, expected, bfloat, decode=None):
    factors, at = factors_at(payload, at, len(expected))
    values, coded = expected.copy(), factors < EQUAL
    if decode is None:
        values[coded] = errors(payload[at:], bfloat, expected[coded])
    else:
        values[coded] = decode(payload[at:], bfloat, expected[coded], coded)
    return values, factors


class Mean:
    """Reads numbers coded around the mean of earlier ones."""

    def __init__(self, bits, first):
        self.bits, self.sum, self.count = bits, first, 1

    def plain(self):
        k = 0
        while self.count << (k + 1) <= self.sum:
            k += 1
        return k

    def learn(self, number):
        self.sum, self.count = self.sum + number, self.count + 1
        if self.count == 16:
            self.sum, self.count = self.sum // 2, self.count // 2

    def zeros(self, most):
        number = 0
        while number < most and self.bits.take(1) == 0:
            number += 1
        return number

    def distance(self):
        k = self.plain()
        quotient = self.zeros(24)
        number = self.bits.take(16) if quotient == 24 else quotient << k | self.bits.take(k)
        self.learn(number)
        return number

    def gap(self, left):
        """Returns the number of values before the next difference; `left` if there is none."""
        k = self.plain()
        none = ((left - 1) >> k) + 1
        quotient = self.zeros(min(none, 24))
        if quotient == none:
            return left
        number = self.bits.take(24) if quotient == 24 else quotient << k | self.bits.take(k)
        if quotient == 24 and number == left:
            return left
        if number >= left:
            raise Damaged("ref-sparse: a gap beyond the last value")
        self.learn(number)
        return number


class Bits:
    def __init__(self, payload):
        self.stream, self.at = int.from_bytes(payload, "little"), 0
        self.size = 8 * len(payload)

    def take(self, count):
        if self.at + count > self.size:
            raise Damaged("ref-sparse: bits are missing")
        value = self.stream & ((1 << count) - 1)
        self.stream >>= count
        self.at += count
        return value

    def finish(self):
        if self.size - self.at >= 8 or self.stream != 0:
            raise Damaged("ref-sparse: bits are left over")


def listed_rows(payload, at, expected, bfloat):
    values, start, bits = expected.reshape(-1).copy(), payload[at], Bits(payload[at + 1:])
    if start > 23:
        raise Damaged("ref-sparse: an impossible start")
    exponents = (values & 0x7FFF).astype(numpy.int64) >> (7 if bfloat else 10)
    classes = numpy.minimum(exponents.max() - exponents, 15)
    places = [numpy.flatnonzero(classes == c) for c in range(16)]
    means = [Mean(bits, 1 << max(start - c, 0)) for c in range(16)]
    after, differs = [0] * 16, []  # values of each class so far; (index, class) of the next difference

    def look(c):
        left = len(places[c]) - after[c]
        if left > 0:
            gap = means[c].gap(left)
            if gap < left:
                heapq.heappush(differs, (int(places[c][after[c] + gap]), c))
            after[c] += gap + 1

    for c in range(16):
        look(c)
    distances = Mean(bits, 0)
    zeros = bfloat.zeros
    top, full = 0x8000 >> zeros, 0xFFFF >> zeros
    while differs:
        i, c = heapq.heappop(differs)
        v = int(values[i])
        place = v >> zeros ^ (full if v & 0x8000 else top)
        down = (bits.take(1) == 1) != (v & 0x8000 != 0)
        distance = distances.distance() + 1
        place += -distance if down else distance
        if not 0 <= place <= full:
            raise Damaged("ref-sparse: a value outside its type")
        values[i] = (place ^ (top if place & top else full)) << zeros
        look(c)
    bits.finish()
    return values.reshape(expected.shape), numpy.zeros(len(expected), numpy.uint8)


def near_rows(payload, at, columns, expected, bfloat, rows_of):
    """Returns values and factors; values of rows without a similar row are undefined. `expected` is called once the
    rotations are known."""
    distance, count = struct.unpack_from("<HH", payload, at)
    angles = struct.unpack_from(f"<{count}I", payload, at + 4)
    expected = expected(Rotation(distance, angles, columns))
    at += 4 + 4 * count
    if rows_of is not None:
        return rows_of(payload, at, expected, bfloat)
    low, lanes = struct.unpack_from("<BB", payload, at)
    factors, at = factors_at(payload, at + 2, len(expected))
    values = expected.copy()
    coded = factors < EQUAL
    if low > 15 or lanes > 2:
        raise Damaged("ref: an impossible grid")
    if not coded.any():
        if at != len(payload):
            raise Damaged("ref: bytes are left over")
        return values, factors
    (base,) = struct.unpack_from("<h", payload, at)
    scales = base + numpy.frombuffer(payload, numpy.uint8, columns, at + 2).astype(numpy.int64)
    at += 2 + columns
    tables = Tables(payload, at, 7, list(range(32)))
    (size,) = struct.unpack_from("<I", payload, tables.end)
    raw = payload[tables.end + 4:tables.end + 4 + size]
    near = expected[coded].astype(numpy.int64)
    exponent = near >> 7 & 255 if bfloat else near >> 10 & 31
    k = scales[None, :] + factors[coded].astype(numpy.int64)[:, None] - 32
    classes = numpy.clip((k >> 1) - numpy.maximum(exponent, 1), 0, 31)
    coder = Lanes(payload, tables.end + 4 + size, 16 << lanes)
    symbols = coder.row(tables, tables.table_of[classes.reshape(-1)]).astype(numpy.int64)
    coder.finish()
    bucket = numpy.where(symbols < 64, symbols, symbols - 63)
    widths = numpy.where(bucket < 16, 0, bucket // 4 - 2)
    extra = bits_of(raw, 0, widths)
    z = numpy.where(bucket < 16, bucket, (bucket % 4 + 4) << widths | extra)
    top = 1 << (15 - low)
    full = 2 * top - 1
    v = near.reshape(-1) >> low
    below = v & top != 0
    place = (v ^ numpy.where(below, full, top)) + numpy.where((symbols >= 64) != below, -z, z)
    if (place < 0).any() or (place > full).any() or (bucket > 63).any():
        raise Damaged("ref: a value outside its type")
    values[coded] = ((place ^ numpy.where(place & top != 0, top, full)) << low).astype(numpy.uint16).reshape(-1, columns)
    return values, factors


def check_rows(data, digest, reference):
    if xxhash is not None and xxhash.xxh3_128_digest(data) != digest:
        raise Damaged(f"reference {reference} has other rows than the archive needs")


class SimilarRun:
    """A run whose rows are similar to those of a reference."""

    def __init__(self, reference, first, length, token, shift, data, dtype):
        self.reference, self.length, self.token, self.shift = reference, length, token, shift
        self.data, self.dtype = data, dtype
        self.rows = numpy.arange(first, first + length)

    def expected(self, rotation, bfloat):
        return expected_rows(self.data, self.dtype, self.length, self.shift, rotation, bfloat)


def ref(chunk, payload, decode_as, rows_of=None, between=None):
    """Decodes a chunk. `between` reads what codec 29 stores between the runs and the rows without a run, and returns
    a function that decodes the similar rows."""
    rows = chunk["tokens"] if chunk["order"] == 0 else 1
    size, bfloat = chunk["raw_bytes"], Form(chunk["dtype"])
    codec, zero, zeros, own_bytes, count = struct.unpack_from("<BBHII", payload, 0)
    if codec in (24, 25, 26, 27, 29, 30) or zero or zeros or count > rows:
        raise Damaged("ref: an impossible head")
    at = 12 + 44 * count
    runs = list(struct.iter_unpack("<HBBIIIQi16s", payload[12:at]))
    out = numpy.zeros((rows, size // rows), numpy.uint8)
    is_own = numpy.ones(rows, bool)
    near = []
    for reference, is_value, equal, layer, first, length, token, shift, digest in runs:
        data, dtype = chunk["references"](reference, layer, is_value, token, length)
        check_rows(data, digest, reference)
        is_own[first:first + length] = False
        if equal:
            out[first:first + length] = numpy.frombuffer(data, numpy.uint8).reshape(length, -1)
        else:
            near.append(SimilarRun(reference, first, length, token, shift, data, dtype))
    if near and between is not None:
        rows_of, at = between(chunk, payload, at, near)
    own_chunk, at = payload[at:at + own_bytes], at + own_bytes
    if near:
        columns = size // rows // (1 if bfloat.zeros else 2)
        values, factors = near_rows(
            payload, at, columns,
            lambda rotation: numpy.concatenate([run.expected(rotation, bfloat) for run in near]), bfloat, rows_of)
        places = numpy.concatenate([run.rows for run in near])
        # Rows without a run are decoded later; until then their values are 0.
        near_values = numpy.where((factors == OWN)[:, None], 0, values)
        out[places] = numpy.frombuffer(narrowed(words16(near_values), chunk["dtype"]), numpy.uint8).reshape(len(places), -1)
        is_own[places] = factors == OWN
    elif at != len(payload):
        raise Damaged("ref: bytes are left over")
    if is_own.any():
        own = int(is_own.sum())
        inner = dict(chunk, codec=codec, tokens=own, order=0, raw_bytes=size // rows * own)
        if own == rows:
            inner = dict(chunk, codec=codec)
        out[is_own] = numpy.frombuffer(decode_as(codec, inner, own_chunk), numpy.uint8).reshape(own, -1)
    return out.tobytes()
