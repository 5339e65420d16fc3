# SPDX-License-Identifier: Apache-2.0
"""Rows that are predicted from other chunks of the same archive: codec 27, and codec 33, whose weights are a
profile's."""
import struct

import numpy

from kvz_decoder.common import Damaged, f32
from kvz_decoder.distribution import Cdf, within
from kvz_decoder.rotation import Rotation


def largest_exponent(halves, bfloat):
    exponent = halves >> 7 & 0xff if bfloat else halves >> 10 & 0x1f
    finite = exponent != (0xff if bfloat else 0x1f)
    return min(max(int(exponent[finite].max(initial=0)), 1), 253)


def scaled(halves, bfloat, largest):
    halves = halves.astype(numpy.uint32)
    exponents = 0x7f80 if bfloat else 0x7c00
    # An f16 becomes the float whose exponent has its five bits, which scales it by a constant power of two.
    bits = (halves & 0x8000) << 16 | (halves & 0x7fff) << (16 if bfloat else 13)
    with numpy.errstate(over="ignore"):
        x = bits.view(f32) * numpy.ldexp(f32(1), 127 - largest)
    return numpy.where(halves & exponents != exponents, within(x), f32(0))


def unit_exponent(form, knows_e4m3):
    """Returns the exponent field of 1.0; an e4m3 value is read as the f16 value with the same fields."""
    return 127 if form else 7 if form.zeros == 7 and knows_e4m3 else 15


def taps_from(chunk, wanted, distance, angles, positions, unit_of=None):
    """Returns the rows of the neighbours side by side, K without its rotation; with `unit_of` in their own scale."""
    rows, taps = len(positions), []
    for layer, is_value, zero, width in wanted:
        if is_value > 1 or zero or not width:
            raise Damaged("layers: an invalid neighbour")
        bfloat, raw = chunk["neighbour"](chunk, layer, is_value)
        halves = numpy.frombuffer(raw, "<u2").reshape(rows, -1)
        largest = largest_exponent(halves, bfloat)
        x = scaled(halves, bfloat, largest)
        if "rows" in chunk:
            x = x[chunk["rows"]]
        if not is_value:
            still = Rotation(distance, angles, x.shape[1])
            x = numpy.array([still.rotated(row, -step) for step, row in zip(positions, x)])
        if unit_of:
            x = x * numpy.ldexp(f32(1), largest - unit_of(bfloat))
        taps.append(x[:, :width])
    return taps


class Block:
    """Regresses all columns on the same taps."""

    def __init__(self, taps, columns, ridge=0.01):
        self.ridge = f32(ridge)
        self.sums = numpy.zeros((taps, taps + columns), f32)
        self.weights = numpy.zeros((taps, columns), f32)
        self.rows, self.next = 0, 32

    def expect(self, taps):
        out = numpy.zeros(self.weights.shape[1], f32)
        for tap, weights in zip(taps, self.weights):
            out += tap * weights
        return out

    def learn(self, taps, x):
        self.sums += taps[:, None] * numpy.concatenate([taps, x])
        self.rows += 1
        if self.rows == self.next:
            self.solve()
            self.next += min(max(self.rows // 4, 16), 512)

    def solve(self):
        n = len(self.sums)
        ridge = self.ridge * f32(n) / f32(self.rows)
        least = numpy.diagonal(self.sums) * ridge + f32(1e-12)
        left, o = self.sums.copy(), numpy.empty(n, f32)
        for i in range(n):
            left[i, i] += least[i]
        for i in range(n):
            o[i] = f32(1) / numpy.sqrt(max(left[i, i], least[i]))
            left[i, i:] *= o[i]
            left[i + 1:, i + 1:] -= left[i, i + 1:n, None] * left[i, i + 1:]
        w = left[:, n:].copy()
        for i in reversed(range(n)):
            w[i] *= o[i]
            w[:i] -= left[:i, i, None] * w[i]
        self.weights = w


class Forecast(Cdf):
    hints = 1

    def __init__(self, payload, bfloat, size, steps, block, taps_of, turns, rotation=None):
        super().__init__(payload, bfloat, size, steps, rotation)
        models = 2 * self.flag
        taps = self.regression.sizes[3]
        self.regression.sizes = (max(models, 1), models + 2, self.ahead, taps)
        self.block, self.taps_of, self.own_rotation = block, taps_of, turns

    def taps(self, row, q, distance):
        if row:
            before = self.row(row - 1)
            back = before if self.own_rotation is None else self.own_rotation.rotated(before, -self.steps[row - 1])
            self.block.learn(self.taps_of(row - 1), back)
        expected = self.block.expect(self.taps_of(row))
        if self.own_rotation is not None:
            expected = self.own_rotation.rotated(expected, self.steps[row])
        self.expected = within(expected)
        ones, hint, *rest = super().taps(row, q, distance)
        models = 2 * self.flag
        return rest[:models] + [ones, hint] + rest[models:]

    def hints_of(self, _):
        return [self.expected]


def layers(chunk, payload, form, size):
    count, flags = payload[0], payload[1]
    rows = chunk["tokens"]
    columns = chunk["heads"] * chunk["units"]
    if count > 4 or flags > 1 or chunk["order"] != 0 or columns > 4096:
        raise Damaged("layers: invalid neighbours")
    wanted = [struct.unpack_from("<IBBH", payload, 2 + 8 * i) for i in range(count)]
    at = 2 + 8 * count
    distance, turns = struct.unpack_from("<HH", payload, at)
    angles = struct.unpack_from(f"<{turns}I", payload, at + 4)
    steps = chunk.get("steps", range(rows))
    taps = taps_from(chunk, wanted, distance, angles, steps)
    taps = numpy.concatenate(taps + [numpy.ones((rows, 1), f32)], axis=1)
    if taps.shape[1] > 1024:
        raise Damaged("layers: too many columns")
    own = Rotation(distance, angles, columns) if flags and turns else None
    block = Block(taps.shape[1], columns)
    frame = payload[at + 4 + 4 * turns:]
    return Forecast(frame, form, size, steps, block, taps.__getitem__, own).read()


class Profiled(Forecast):
    """Rows whose forecast, in the natural scale, comes from a regression of a profile."""

    def __init__(self, payload, form, size, regression, rows, positions, steps, own, unit):
        self.regression_of, self.rows_of, self.positions, self.own = regression, rows, positions, own
        self.own_weights, frame_weights = regression.weights()[1:]
        start = regression.start
        super().__init__(payload, form, size, positions if start else steps, self, lambda row: row, None, own if start else None)
        self.natural = numpy.ldexp(f32(1), payload[0] - unit)
        self.block_columns = regression.block or self.columns
        if start:
            self.begin(start, frame_weights)

    def begin(self, start, weights):
        if (self.near, self.far) != (start.near, start.far):
            raise Damaged("profiled layers: other taps than the regression's")
        scale = f32(1) / self.natural
        constant = [i in ((2,) if self.rotation.still else (2, 6, 7)) for i in range(len(weights))]
        weights = numpy.where(numpy.array(constant)[:, None], weights * scale, weights)
        weights = numpy.where(abs(weights) <= 16, weights, f32(0))
        variances, powers = (numpy.minimum(one * (scale * scale), f32(16)) for one in (start.variances, start.powers))
        self.spread = list(numpy.clip(start.spreads, f32(1 / 1024), f32(32)))
        partners = self.rotation.partners(powers)
        shifted = [numpy.concatenate([numpy.zeros(left, f32), powers])[:self.columns]
                   for left in [*range(1, self.near + 1), *self.far]]
        turns = [] if self.rotation.still else [numpy.full(self.columns, 0.5, f32)] * 2
        taps = [powers, powers, numpy.ones(self.columns, f32), powers, powers, partners, *turns, powers, partners, *shifted]
        skipped = 0 if self.flag else 2
        self.regression.begin(weights[skipped:], numpy.array(taps[skipped:]), variances, start.spreads,
                              numpy.minimum(start.errors, f32(1 << 20)))
        self.regression.u, self.known = powers, 16
        self.regression.solve([])

    def learn(self, *_):
        pass

    def expect(self, row):
        self.natural_row = self.rows_of[row].copy()
        self.at = row
        return self.finished()

    def finished(self):
        with numpy.errstate(over="ignore", invalid="ignore"):
            x = self.natural_row * (f32(1) / self.natural)
            return within(x if self.own is None else self.own.rotated(x, self.positions[self.at]))

    def group(self, row, first, weights, taps, sharpness, out):
        if first and first % self.block_columns == 0:
            x = self.row(row).copy()
            x[first:] = 0
            if self.own is not None:
                x = self.own.rotated(x, -self.positions[row])
            end = first + self.block_columns
            with numpy.errstate(over="ignore", invalid="ignore"):
                for value, weight in zip(x[:first] * self.natural, self.own_weights):
                    self.natural_row[first:end] += value * weight[first:end]
            self.expected[first:end] = self.finished()[first:end]
        return super().group(row, first, weights, taps, sharpness, out)


def profiled_layers(chunk, payload, form, size):
    profile = chunk.get("profile")
    if profile is None:
        raise Damaged("needs a profile")
    number, position = struct.unpack_from("<HI", payload)
    frame = payload[6:]
    columns = chunk["heads"] * chunk["units"]
    if number >= len(profile.regressions) or chunk["order"] != 0 or not frame:
        raise Damaged("profiled layers: the head")
    regression, (distance, angles) = profile.regressions[number], profile.rotation
    if regression.columns != columns:
        raise Damaged("profiled layers: other columns than the regression")
    steps = chunk.get("steps", range(chunk["tokens"]))
    positions = [position + step for step in steps]
    with numpy.errstate(over="ignore", invalid="ignore"):
        taps = taps_from(chunk, regression.neighbours, distance, angles, positions,
                         lambda form: unit_exponent(form, profile.knows_e4m3))
        forecast = numpy.tile(regression.constants, (len(positions), 1))
        if taps:
            for tap, weights in zip(numpy.concatenate(taps, axis=1).T, regression.weights()[0]):
                forecast += tap[:, None] * weights
    own = Rotation(1, (), columns) if regression.is_value else Rotation(distance, angles, columns)
    unit = unit_exponent(form, profile.knows_e4m3)
    return Profiled(frame, form, size, regression, forecast, positions, steps, own, unit).read()
