# SPDX-License-Identifier: Apache-2.0
"""Rows coded relative to those of other caches, whose errors are also predicted from those of other chunks: codec
29."""
import struct

import numpy

from kvz_decoder.common import Damaged, f32
from kvz_decoder.distribution import Errors, within
from kvz_decoder.layers import Block, largest_exponent, scaled
from kvz_decoder.reference import check_rows, expected_rows, learned_rows
from kvz_decoder.rotation import Rotation


class ErrorsByNeighbours(Errors):
    """Errors with taps from a neighbour. `taps` are those of the coded rows, whose numbers in the chunk are
    `places`."""

    def __init__(self, payload, bfloat, expected, taps, places, turns):
        super().__init__(payload, bfloat, expected)
        self.taps_of, self.places, self.own_rotation = taps, places, turns
        self.block = Block(taps.shape[1], self.columns, 0.1)
        self.errors = numpy.zeros((self.rows, self.columns), f32)

    def extend(self, payload, at):
        at = super().extend(payload, at)
        self.hints += 1
        return at

    def rotated(self, x, row, sign):
        return x if self.own_rotation is None else self.own_rotation.rotated(x, sign * int(self.places[row]))

    def hints_of(self, row):
        if row:
            self.block.learn(self.taps_of[row - 1], self.rotated(self.errors[row - 1], row - 1, -1))
        error = within(self.rotated(self.block.expect(self.taps_of[row]), row, 1))
        return [within(error * self.up)] + super().hints_of(row)

    def read_value(self, row, column, m, sharpness):
        half, e = super().read_value(row, column, m, sharpness)
        self.errors[row, column] = within(self.value(half) - self.expected[row, column])
        return half, e


def neighbour_errors(chunk, neighbour, layers, digest, near, own_rotation, turns):
    """Returns the taps from one neighbour for the rows of all similar runs, run after run."""
    layer, is_value, zero, width = neighbour
    if is_value > 1 or zero or not width:
        raise Damaged("ref-layers: an invalid neighbour")
    bfloat, raw = chunk["neighbour"](chunk, layer, is_value)
    halves = numpy.frombuffer(raw, "<u2").reshape(chunk["tokens"], -1)
    if width > halves.shape[1]:
        raise Damaged("ref-layers: a neighbour with fewer columns")
    rotation = Rotation(*turns, halves.shape[1])
    if rotation.still and not is_value and any(own_rotation):
        raise Damaged("ref-layers: rotations of K without a rotation")
    expected, all_data = [], b""
    for run, layer_there, turn in zip(near, layers, own_rotation):
        data, dtype = chunk["references"](run.reference, layer_there, is_value, run.token, run.length)
        expected.append(expected_rows(data, dtype, run.length, 0 if is_value else turn, rotation, bfloat))
        all_data += data
    check_rows(all_data, digest, "of a neighbour")
    largest = largest_exponent(halves, bfloat)
    places = numpy.concatenate([run.rows for run in near])
    x = scaled(halves[places], bfloat, largest) - scaled(numpy.concatenate(expected), bfloat, largest)
    x = within(x)
    if not is_value:
        x = numpy.array([rotation.rotated(row, -int(place)) for row, place in zip(x, places)])
    return x[:, :width]


def with_neighbours(chunk, payload, at, near):
    """Returns (a function that decodes the similar rows, offset of the rows without a run)."""
    count, flag = payload[at], payload[at + 1]
    columns = chunk["heads"] * chunk["units"]
    if not 1 <= count <= 4 or flag > 1 or chunk["order"] != 0 or columns > 4096:
        raise Damaged("ref-layers: invalid neighbours")
    at += 2
    fields = struct.Struct(f"<IBBH{len(near)}I16s")
    described = [fields.unpack_from(payload, at + i * fields.size) for i in range(count)]
    at += count * fields.size
    distance, turns = struct.unpack_from("<HH", payload, at)
    angles = struct.unpack_from(f"<{turns}I", payload, at + 4)
    at += 4 + 4 * turns
    key_turns = struct.unpack_from(f"<{len(near)}i", payload, at)
    at += 4 * len(near)
    taps = [neighbour_errors(chunk, one[:4], one[4:-1], one[-1], near, key_turns, (distance, angles)) for one in described]
    places = numpy.concatenate([run.rows for run in near])
    taps = numpy.concatenate(taps + [numpy.ones((len(places), 1), f32)], axis=1)
    if taps.shape[1] > 1024:
        raise Damaged("ref-layers: too many columns")
    own = Rotation(distance, angles, columns) if flag else None

    def decode(rest, bfloat, expected, coded):
        model = ErrorsByNeighbours(rest, bfloat, expected, taps[coded], places[coded], own)
        return numpy.frombuffer(model.read(), "<u2").reshape(expected.shape)
    return lambda *near_rows: learned_rows(*near_rows, decode), at
