# SPDX-License-Identifier: Apache-2.0
"""Rotation: the section on codec 22 of FORMAT.md; codec 23 uses it too."""
import numpy

from kvz_decoder.common import f32


class Rotation:
    """The angle by which every column has been rotated."""

    def __init__(self, distance, angles, columns):
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
        if angles:
            h = column % (2 * len(angles))
            self.angle = numpy.array(angles, numpy.uint64)[h // 2 if distance == 1 else h % distance]
        self.still = not angles

    def angles(self, rows):
        angle = (self.angle * numpy.uint64(rows % 2**32)) & numpy.uint64(0xffffffff)
        i, part = (angle >> numpy.uint64(20)).astype(int), (angle & numpy.uint64(0xfffff)).astype(f32) * f32(2**-20)
        return (self.table[i] + (self.table[i + 1] - self.table[i]) * part[:, None]).T

    def partners(self, x):
        return numpy.where(self.has_partner, x[self.partner], f32(0))

    def rotated(self, x, rows):
        if self.still:
            return x
        cosine, sine = self.angles(rows)
        other = self.partners(x) * sine
        return x * cosine + numpy.where(self.negative, -other, other)
