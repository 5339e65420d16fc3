# SPDX-License-Identifier: Apache-2.0
"""Whole values coded under distributions: codec 22, and the errors of expected values of codec
26."""
import struct

import numpy

from kvz_decoder.common import Damaged, f32
from kvz_decoder.context import words16
from kvz_decoder.rotation import Rotation


class Slots:
    """One rANS state, read in parts of 2^30."""

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
    """The first slot of each of the 65536 places under a logistic distribution."""

    def __init__(self, shift, scale, zeros):
        shares, e = [0] * 770, 1.0
        for i in range(385):
            shares[384 + i] = int((2**30 - 2**20) / (1 + e) + 0.5)
            shares[384 - i] = int((2**30 - 2**20) * e / (1 + e) + 0.5)
            e *= 0.93941306281347579
        shares[0], shares[768], shares[769] = 0, 2**30 - 2**20, 2**30 - 2**20
        self.shares, self.unit = shares, 1 << zeros  # `unit`: number of 16-bit codes that decode to one value
        distance = numpy.arange(65536, dtype=numpy.int64) - 0x8000
        largest = int((numpy.finfo(f32).max / max(f32(1), scale)).view(numpy.uint32))
        bits = numpy.minimum((abs(distance) << shift) - (1 << (shift + zeros - 1)), largest)
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
        first, end = 0, 65536  # lower and upper bound of the value's code
        while end - first > self.unit:
            middle = (first + end) // 2 // self.unit * self.unit
            if self.below(middle, mean, sharpness) <= slots.target():
                first = middle
            else:
                end = middle
        start = self.below(first, mean, sharpness)
        slots.take(start, self.below(first + self.unit, mean, sharpness) - start)
        return 0x10000 - self.unit - first if first < 0x8000 else first - 0x8000


def within(x):
    return numpy.where(abs(x) < 4, x, f32(0))


class Regression:
    """The regression that every column learns; arrays [tap][column]."""

    def __init__(self, columns, taps, sizes, deviation):
        self.sizes = sizes
        self.g = numpy.zeros((taps, taps, columns), f32)
        self.b = numpy.zeros((taps, columns), f32)
        self.w = numpy.zeros((4, taps, columns), f32)
        self.e = numpy.zeros((4, columns), f32)
        self.v = numpy.full(columns, deviation * deviation, f32)
        self.u = numpy.zeros(columns, f32)
        self.samples = f32(0)

    def begin(self, weights, powers, variances, spreads, errors):
        """Takes a start as the knowledge of sixteen rows. `powers` are those of the taps, [tap][column]."""
        for i, product in enumerate(powers * f32(16)):
            self.g[i, i], self.b[i] = product, product * weights[i]
        self.v, self.e = variances.copy(), variances * errors[:, None]
        self.samples = f32(16)

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
        # g and b after eliminating the first taps; the columns become those of l.
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
    """Returns (class, distance) of a row."""
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
    """The known rows, and the next one to decode."""
    hints = 0

    def __init__(self, payload, bfloat, size, steps=None, rotation=None):
        largest, self.near, far, flag, rows, columns, deviation, distance, turns = struct.unpack_from("<BBBBIIfHH", payload, 0)
        if rows * columns * 2 != size or flag > 1 or not 1 <= largest <= 253 or rows < 16:
            raise Damaged("cdf: a grid that does not fit the chunk")
        self.far = struct.unpack_from(f"<{far}H", payload, 20)
        angles = struct.unpack_from(f"<{turns}I", payload, 20 + 2 * far)
        self.shift, self.exponents = (16, 0x7f80) if bfloat else (13, 0x7c00)
        self.scale = numpy.ldexp(f32(1), 127 - largest)
        self.logistic = Logistic(self.shift, self.scale, bfloat.zeros)
        self.rows, self.columns, self.flag = rows, columns, flag
        self.steps = range(rows) if steps is None else steps  # position of each row relative to the first
        if len(self.steps) != rows:
            raise Damaged("cdf: other rows than the chunk")
        self.slots = Slots(payload, self.extend(payload, 20 + 2 * far + 4 * turns))
        self.stride = -(-columns // 16) * 16
        self.before = 2 * self.stride  # zeros before the first row, which taps may read
        self.x = numpy.zeros(self.before + rows * self.stride, f32)
        self.rotation = rotation or Rotation(distance, angles, columns)
        if rotation is not None and angles:
            raise Damaged("cdf: a rotation beside that of a profile")
        self.known = 0  # rows that a start stands for
        self.ahead = 5 + 2 * (not self.rotation.still) + 2 * flag + self.hints
        taps = self.ahead + self.near + far
        sizes = (2 if flag else 3, self.ahead, min(taps, self.ahead + 8), taps)
        if self.hints:
            sizes = (0, 1 + self.hints, self.ahead, taps)
        self.regression = Regression(columns, taps, sizes, f32(deviation))
        self.spread = [f32(s) for s in (1, 0.003, 0.02, 0.1, 0.3, 0.6)]

    def extend(self, _, at):
        """Reads a frame's optional fields; returns the offset of its slots."""
        return at

    def hints_of(self, _):
        return []

    def read_value(self, row, column, m, sharpness):
        """Returns (bits, the model's expectation of the value)."""
        half = self.logistic.read(self.slots, float(m), float(sharpness))
        return half, self.value(half)

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
        """Returns all taps of a row; those in the row itself are views, filled in as its values become known."""
        ones = [numpy.ones(self.columns, f32)]
        taps = ones + self.hints_of(row) if self.hints else []
        if self.flag:
            like = [numpy.zeros(self.columns, f32)] * 2
            if q:
                like[q > 3] = self.rotation.rotated(self.row(row - distance), self.steps[row] - self.steps[row - distance])
            taps += like
        taps += [self.row(row - 1), self.rotation.partners(self.row(row - 1))]
        taps += [] if self.hints else ones
        if not self.rotation.still:
            taps += list(self.rotation.angles(self.steps[row]))
        taps += [self.row(row - 2), self.rotation.partners(self.row(row - 2))]
        return taps + [self.row(row, left) for left in [*range(1, self.near + 1), *self.far]]

    def group(self, row, first, weights, taps, sharpness, out):
        """Returns values and expectations of up to sixteen columns."""
        end = min(first + 16, self.columns)
        m = numpy.zeros(end - first, f32)
        serial = min(self.near, 15)
        for i, tap in enumerate(taps):
            if not self.ahead <= i < self.ahead + serial:
                m += weights[i, first:end] * tap[first:end]
        # of_known[j, c] is the weight of known column j in the prediction of column c of the group. The known columns
        # are the `serial` columns before the group, then those of the group itself.
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
            half, value = self.read_value(row, first + c, m[c], sharpness[first + c])
            out.append(half)
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
            rows = self.known + row + 1
            if rows > 1:
                self.spread[q] += (total / f32(self.columns) - self.spread[q]) * f32(0.1)
                self.spread[q] = max(self.spread[q], f32(2**-10))
            o = f32(1) / self.spread[q]
            taps, x = numpy.array(taps), self.row(row)
            learned.learn(taps, x, numpy.concatenate(expected), o, rows)
            pending.append((taps, x, numpy.sqrt(o)))
            if len(pending) >= min(max(rows // 16, 1), 16):
                learned.solve(pending)
                pending = []
        self.slots.finish()
        return words16(numpy.array(out))


class Errors(Cdf):
    """Rows coded as errors, the differences from expected rows (bits)."""

    def __init__(self, payload, bfloat, expected):
        self.expected = expected
        super().__init__(payload, bfloat, 2 * expected.size)
        if expected.shape != (self.rows, self.columns) or self.flag or not self.rotation.still:
            raise Damaged("ref-cdf: another grid")
        self.expected = numpy.array([[self.value(int(half)) for half in row] for row in expected])

    def extend(self, payload, at):
        self.of_expected = self.hints = payload[at]
        powers = numpy.frombuffer(payload, numpy.uint8, self.columns, at + 1).astype(int) - 8
        if self.hints not in (1, 2) or (powers > 100).any():
            raise Damaged("ref-cdf: impossible hints or powers")
        self.up, self.down = numpy.ldexp(f32(1), powers), numpy.ldexp(f32(1), -powers)
        return at + 1 + self.columns

    def hints_of(self, row):
        expected = self.expected[row]
        return [expected, self.rotation.partners(expected)][:self.of_expected]

    def read_value(self, row, column, m, sharpness):
        expected = self.expected[row, column]
        half = self.logistic.read(self.slots, float(expected + m * self.down[column]), float(sharpness * self.up[column]))
        return half, within((self.value(half) - expected) * self.up[column])


def errors(payload, bfloat, expected):
    return numpy.frombuffer(Errors(payload, bfloat, expected).read(), "<u2").reshape(expected.shape)


def cdf(payload, bfloat, size, steps=None):
    return Cdf(payload, bfloat, size, steps).read()
