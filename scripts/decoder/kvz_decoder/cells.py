# SPDX-License-Identifier: Apache-2.0
"""Rows in the order of cells: the snapshot description of the source table."""
import struct

import numpy

from kvz_decoder.common import Damaged


class Reader:
    def __init__(self, data, at):
        self.data, self.at = data, at

    def take(self, fields):
        values = struct.unpack_from("<" + fields, self.data, self.at)
        self.at += struct.calcsize("<" + fields)
        return values if len(values) > 1 else values[0]

    def text(self):
        length = self.take("I")
        self.at += length
        return bytes(self.data[self.at - length:self.at])


def cells_of(table, at):
    """Returns {layer: (stream, smallest sequence, position) of each of its cells}."""
    layers, groups = read_description(Reader(table, at))
    found = {}
    for number, group, tokens in layers:
        mine = [cells for name, cells in groups if name == group or len(groups) == 1][:1]
        if mine and len(mine[0]) == tokens:
            found.setdefault(number, mine[0])
    return found


def read_description(read):
    """Reads a snapshot description up to its token ids. Returns layers and groups of cells."""
    for _ in range(4):
        read.text()
    read.take("4B")
    for _ in range(read.take("I")):
        read.text(), read.text()
    for _ in range(read.take("I")):
        read.take("B"), read.text()
    layers = []
    for _ in range(read.take("I")):
        number, _, group, has_v = read.take("I"), read.text(), read.text(), read.take("B")
        tokens = read.take("4BIIQ")[6]
        if has_v:
            read.take("4BIIQ")
        layers.append((number, group, tokens))
    groups = []
    for _ in range(read.take("I")):
        name, cells = read.text(), []
        read.take("I")
        for _ in range(read.take("I")):
            first, count, stream, n = read.take("qIII")
            sequences = [read.take("i") for _ in range(n)]
            smallest = min(sequences) if sequences else float("-inf")
            cells += [(stream, smallest, first + i) for i in range(count)]
        groups.append((name, cells))
    return layers, groups


def order_of(chunk, cells):
    """Returns (rows in the order in which they are coded, distance of each from the first); None if they are coded in
    place."""
    if not chunk["by_cells"]:
        return None
    begin, tokens = chunk["token_begin"], chunk["tokens"]
    mine = (cells or {}).get(chunk["layer"], [])[begin:begin + tokens]
    if chunk["by_cells"] != 1 or len(mine) != tokens or chunk["order"] != 0 or chunk["codec"] in (25, 26, 29, 30):
        raise Damaged("rows in the order of cells that are not there")
    rows = sorted(range(tokens), key=lambda row: mine[row])
    return numpy.array(rows), [mine[row][2] - mine[rows[0]][2] for row in rows]
