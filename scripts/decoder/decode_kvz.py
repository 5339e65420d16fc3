#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Restores the source of a .kvz archive. An independent decoder, written only from lib/core/archive/FORMAT.md, the
pages of lib/core/codec that it links to and formats/gear/FORMAT.md; it shares no code with kvtool.

  decode_kvz.py ARCHIVE OUTPUT          restore the file or folder
  decode_kvz.py ARCHIVE --list          one line per chunk
  decode_kvz.py ARCHIVE OUTPUT --walk   do not use index and trailer, as after truncation

An archive that refers to other caches needs archives of these, in the order of its list: --base BASE.kvz ... A base
that needs bases itself is followed by them. One that was coded with a profile needs --profile MODEL.kvp unless it holds
the profile, one whose values a transform approximates --transform MODEL.kvx.

Needs numpy and zstandard (Debian: python3-numpy python3-zstandard). With python3-xxhash all hashes are checked; without
it the decoder says that it did not check them.
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

from kvz_decoder.cells import cells_of, order_of
from kvz_decoder.chunks import decode_as, RAW
from kvz_decoder.common import Damaged, Form, unzstd, widened
from kvz_decoder.profiled import Profile
from kvz_decoder.transformed import Approximation, Transform

MAGIC = b"\x89KVZ\r\n\x1a\n"
MARKER = b"KVZr"
TRAILER_MAGIC = b"KVZ.END\n"
SOURCE, CHUNK, INDEX, PROFILE = 1, 2, 3, 4
HEAD = struct.Struct("<II6BHQQ6I6Q")
FIELDS = ("file layer kind codec dtype order source_order heads_known by_cells token_begin tokens head_begin "
          "heads unit_begin units unit_bytes parameter raw_bytes raw_hash source_offset extent_bytes "
          "extent_tokens extent_token_begin").split()


def check(data, stored, what):
    if xxhash is not None and xxhash.xxh3_64_intdigest(data) != stored:
        raise Damaged(f"{what}: hash differs")


def decode(chunk, payload):
    order = order_of(chunk, chunk.get("cells"))
    if order is None:
        raw = decode_as(chunk["codec"], chunk, payload)
    else:
        rows, steps = order
        coded = decode_as(chunk["codec"], dict(chunk, rows=rows, steps=steps), payload)
        values = numpy.frombuffer(coded, numpy.uint8).reshape(len(rows), -1)
        raw = numpy.empty_like(values)
        raw[rows] = values
        raw = raw.tobytes()
    check(raw, chunk["raw_hash"], "decoded chunk")
    return raw


def head_of(data):
    if len(data) < HEAD.size:
        raise Damaged(f"a chunk header of {len(data)} bytes")
    return dict(zip(FIELDS, HEAD.unpack(data[:HEAD.size])), lead=bytes(data[HEAD.size:]))


def record_at(data, at):
    """Returns (type, head, payload offset, payload length, payload hash)."""
    marker, kind, head_len, _tag, length, digest = struct.unpack_from("<4sIIIQQ", data, at)
    if marker != MARKER or head_len > 256:
        raise Damaged(f"no record at {at}")
    end = at + 32 + head_len
    (stored,) = struct.unpack_from("<Q", data, end)
    check(data[at:end], stored, f"header of the record at {at}")
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
        files.append((os.fsdecode(table[at + 12:at + 12 + name_len]), size))
        at += 12 + name_len
    attributes = {"executable": bytes(count), "empty_folders": [], "groups": [], "cells": None,
                  "approximated": None, "embeds_profile": bool(flags & 512)}
    if flags & 4:
        attributes["executable"] = table[at:at + count]
        (folders,) = struct.unpack_from("<I", table, at + count)
        at += count + 4
        for _ in range(folders):
            (name_len,) = struct.unpack_from("<I", table, at)
            attributes["empty_folders"].append(os.fsdecode(table[at + 4:at + 4 + name_len]))
            at += 4 + name_len
    if flags & 32:
        (groups,) = struct.unpack_from("<I", table, at)
        at += 4
        for _ in range(groups):
            members, cuts = struct.unpack_from("<II", table, at)
            at += 8
            group = struct.unpack_from(f"<{members}I", table, at), struct.unpack_from(f"<{cuts}Q", table, at + 4 * members)
            attributes["groups"].append(group)
            at += 4 * members + 8 * cuts
    if flags & 64:
        if not flags & 2:
            raise Damaged("rows in the order of cells that are not described")
        attributes["cells"] = cells_of(table, at)
    if flags & 128:
        if not flags & 2:
            raise Damaged("approximated layers that are not described")
        attributes["approximated"] = table, at, flags
    return bool(flags & 1), files, attributes


def embedded_profile(data):
    """Returns the profile in the archive's second record."""
    _, _, offset, length, _ = record_at(data, 24)
    kind, *rest = record_at(data, offset + length)
    if kind != PROFILE:
        raise Damaged("the second record is not the profile")
    return Profile(table_of(data, *rest))


def open_archive(data, walk):
    """Returns (is_folder, files, attributes, chunks, file hashes)."""
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
        is_folder, files, attributes = files_of(index[8:8 + table_len])
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
        return is_folder, files, attributes, chunks, hashes
    at, is_folder, files, attributes = 24, False, None, None
    while at + 40 <= len(data) and data[at:at + 4] == MARKER:
        kind, head, offset, length, digest = record_at(data, at)
        if kind == SOURCE:
            is_folder, files, attributes = files_of(table_of(data, head, offset, length, digest))
        elif kind == CHUNK and offset + length <= len(data):
            chunk = head_of(head)
            chunk.update(offset=offset, length=length, digest=digest)
            chunks.append(chunk)
        at = offset + length
    return is_folder, files, attributes, chunks, None


def place(chunk, raw, out):
    """Writes decoded units to their places; `out` is the file."""
    begin, end = chunk["source_offset"], chunk["source_offset"] + chunk["extent_bytes"]
    heads, tokens, units, size = chunk["heads"], chunk["tokens"], chunk["units"], chunk["unit_bytes"]
    out[begin - len(chunk["lead"]):begin] = numpy.frombuffer(chunk["lead"], numpy.uint8)
    if chunk["kind"] == 0:
        out[begin:end] = numpy.frombuffer(raw, numpy.uint8)
        return
    shape = {0: (tokens, heads, units, size), 1: (heads, tokens, units, size)}[chunk["order"]]
    values = numpy.frombuffer(raw, numpy.uint8).reshape(shape)
    if chunk["order"] == 0:
        values = values.transpose(1, 0, 2, 3)  # from here on, values are [head][token][unit]
    extent = out[begin:end]
    if chunk["source_order"] == 0:
        extent[:] = values.transpose(1, 0, 2, 3).reshape(-1)
    elif chunk["source_order"] == 1:
        extent[:] = values.reshape(-1)
    else:
        first = chunk["extent_token_begin"]
        columns = extent.reshape(heads, units, chunk["extent_tokens"], size)
        columns[:, :, first:first + tokens] = values.transpose(0, 2, 1, 3)


class Base:
    """Rows of an archive that another one refers to."""

    def __init__(self, path, references):
        self.data = memoryview(pathlib.Path(path).read_bytes())
        _, _, attributes, self.chunks, _ = open_archive(self.data, False)
        extras = {"references": references, "cells": attributes["cells"]}
        self.extras = dict(extras, neighbour=neighbours_of(self.data, self.chunks, extras))
        self.decoded = {}  # by offset, because chunks that use neighbours read the same rows again

    def rows(self, layer, is_value, first, count):
        """Returns (bytes [token][head][unit], dtype)."""
        mine = [c for c in self.chunks if c["kind"] == 1 + is_value and c["layer"] == layer
                and c["token_begin"] < first + count and first < c["token_begin"] + c["tokens"]]
        if not mine:
            raise Damaged(f"a base has no layer {layer}")
        size = mine[0]["unit_bytes"]
        heads, units = max(c["head_begin"] + c["heads"] for c in mine), max(c["unit_begin"] + c["units"] for c in mine)
        out, missing = numpy.zeros((count, heads, units, size), numpy.uint8), numpy.ones((count, heads, units), bool)
        for c in mine:
            if c["offset"] not in self.decoded:
                payload = bytes(self.data[c["offset"]:c["offset"] + c["length"]])
                self.decoded[c["offset"]] = decode(dict(c, **self.extras), payload)
            values = numpy.frombuffer(self.decoded[c["offset"]], numpy.uint8)
            if c["order"] == 0:
                values = values.reshape(c["tokens"], c["heads"], c["units"], size)
            else:
                values = values.reshape(c["heads"], c["tokens"], c["units"], size).transpose(1, 0, 2, 3)
            begin, end = max(first, c["token_begin"]), min(first + count, c["token_begin"] + c["tokens"])
            to = (slice(begin - first, end - first), slice(c["head_begin"], c["head_begin"] + c["heads"]),
                  slice(c["unit_begin"], c["unit_begin"] + c["units"]))
            out[to] = values[begin - c["token_begin"]:end - c["token_begin"]]
            missing[to] = False
        if missing.any():
            raise Damaged(f"a base lacks tokens of layer {layer}")
        return out.tobytes(), mine[0]["dtype"]


def neighbours_of(data, chunks, extras):
    """Returns a function that decodes another chunk of the same tokens."""
    places, decoded = {}, {}
    for chunk in sorted(chunks, key=lambda c: (c["file"], c["source_offset"], c["extent_token_begin"])):
        if chunk["kind"] and chunk["order"] == 0 and not chunk["head_begin"] and not chunk["unit_begin"]:
            places.setdefault((chunk["kind"], chunk["layer"], chunk["token_begin"], chunk["tokens"]), chunk)

    def depth(chunk):
        return chunk["parameter"] if chunk["codec"] in (27, 29, 33) else 0

    def neighbour(of, layer, is_value):
        """Returns (whether it is bf16, bytes)."""
        key = (1 + is_value, layer, of["token_begin"], of["tokens"])
        chunk = places.get(key)
        if chunk is None:
            raise Damaged(f"no chunk of layer {layer} that another one needs")
        if depth(chunk) >= depth(of) or chunk["dtype"] not in (1, 2, 13, 14):
            raise Damaged("a chunk may not be coded by another")
        if key not in decoded:
            payload = bytes(data[chunk["offset"]:chunk["offset"] + chunk["length"]])
            check(payload, chunk["digest"], "payload")
            decoded[key] = decode(dict(chunk, **extras, neighbour=neighbour), payload)
        return Form(chunk["dtype"]), widened(decoded[key], chunk["dtype"])
    return neighbour


def ready(data, chunks, extras):
    """Returns the chunks with everything that decoding one needs."""
    neighbour = neighbours_of(data, chunks, extras)
    coefficients = coefficients_of(data, chunks)
    return [dict(chunk, **extras, neighbour=neighbour, coefficients=coefficients) for chunk in chunks]


def coefficients_of(data, chunks):
    """Returns a function that reads the coefficients which another layer's chunk holds."""
    places = {}
    for chunk in sorted(chunks, key=lambda c: (c["file"], c["source_offset"], c["extent_token_begin"])):
        if chunk["codec"] == 32 and chunk["parameter"] == 0:
            places.setdefault((chunk["layer"], chunk["kind"], chunk["token_begin"], chunk["tokens"]), chunk)

    def coefficients(of):
        chunk = places.get((of["parameter"] - 1, of["kind"], of["token_begin"], of["tokens"]))
        if chunk is None:
            raise Damaged(f"no chunk of layer {of['parameter'] - 1} with coefficients that another one needs")
        payload = bytes(data[chunk["offset"]:chunk["offset"] + chunk["length"]])
        check(payload, chunk["digest"], "payload")
        return payload
    return coefficients


def references_of(paths):
    """Returns a function that reads rows of the bases, each of which may refer to those after it."""
    bases = [Base(path, references_of(paths[i + 1:])) for i, path in enumerate(paths)]

    def rows(reference, *which):
        if reference >= len(bases):
            raise Damaged("the archive refers to other caches: give archives of them with --base")
        return bases[reference].rows(*which)
    return rows


def safe(name):
    parts = name.split("/")
    return bool(name) and "\\" not in name and "\0" not in name and not any(p in ("", ".", "..") for p in parts)


def parted(joined, sizes, cuts):
    """Splits the joined bytes of a group into its files."""
    if not cuts:
        ends = numpy.cumsum(sizes)
        return [joined[end - size:end] for size, end in zip(sizes, ends)]
    bounds = [0, *cuts, sizes[0]]
    columns = [joined[a * len(sizes):b * len(sizes)].reshape(len(sizes), b - a) for a, b in zip(bounds, bounds[1:])]
    return list(numpy.concatenate(columns, axis=1))


def restored_files(data, files, groups, chunks, hashes):
    """Yields (number, bytes) of each file."""
    by_file = {}
    for chunk in chunks:
        by_file.setdefault(chunk["file"], []).append(chunk)
    joined = {members[0]: (members, cuts) for members, cuts in groups}
    later = {number for members, _ in groups for number in members[1:]}
    for first in range(len(files)):
        if first in later:
            continue
        members, cuts = joined.get(first, ((first,), ()))
        sizes = [files[number][1] for number in members]
        out = numpy.zeros(sum(sizes), numpy.uint8)
        covered = 0
        for chunk in by_file.get(first, []):
            payload = bytes(data[chunk["offset"]:chunk["offset"] + chunk["length"]])
            check(payload, chunk["digest"], "payload")
            place(chunk, decode(chunk, payload), out)
            covered += chunk["raw_bytes"] + len(chunk["lead"])
        if covered != len(out):
            names = ", ".join(files[number][0] for number in members)
            print(f"{names}: {len(out) - covered} of {len(out)} bytes are not in the archive", file=sys.stderr)
        for number, content in zip(members, parted(out, sizes, cuts)):
            if covered == len(out) and hashes is not None:
                check(content.tobytes(), hashes[number], "restored file")
            yield number, content


def restore(data, files, attributes, is_folder, chunks, hashes, output):
    for number, out in restored_files(data, files, attributes["groups"], chunks, hashes):
        name, _ = files[number]
        if is_folder and not safe(name):
            raise Damaged(f"unsafe name {name!r}")
        path = pathlib.Path(output, name) if is_folder else pathlib.Path(output)
        os.makedirs(path.parent, exist_ok=True)
        out.tofile(path)
        if attributes["executable"][number]:
            mode = path.stat().st_mode
            path.chmod(mode | (mode & 0o444) >> 2)
    for name in attributes["empty_folders"]:
        if not safe(name):
            raise Damaged(f"unsafe name {name!r}")
        os.makedirs(pathlib.Path(output, name), exist_ok=True)


def main():
    parser = argparse.ArgumentParser(description="independent decoder of .kvz archives")
    parser.add_argument("archive")
    parser.add_argument("output", nargs="?")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--base", action="append", default=[], metavar="ARCHIVE")
    parser.add_argument("--profile", type=pathlib.Path)
    parser.add_argument("--transform", type=pathlib.Path)
    parser.add_argument("--walk", action="store_true")
    options = parser.parse_intermixed_args()
    data = memoryview(numpy.memmap(options.archive, numpy.uint8, "r"))
    data = memoryview(bytes(data)) if len(data) < 1 << 30 else data
    try:
        is_folder, files, attributes, chunks, hashes = open_archive(data, options.walk)
        references = references_of(options.base)
        profile = options.profile and Profile(options.profile.read_bytes())
        if attributes["embeds_profile"] and profile is None:
            profile = embedded_profile(data)
        transform = options.transform and Transform(options.transform.read_bytes())
        approximated = attributes["approximated"]
        approximation = Approximation(*approximated, transform) if approximated else None
        chunks = ready(data, chunks, {"references": references, "profile": profile, "cells": attributes["cells"],
                                      "approximation": approximation})
        if options.list:
            for chunk in chunks:
                print(" ".join(f"{key}={chunk[key]}" for key in FIELDS if key != "raw_hash"))
        if options.output:
            if xxhash is None:
                print("python3-xxhash is missing: hashes are not checked", file=sys.stderr)
            if is_folder:
                os.makedirs(options.output, exist_ok=True)
            restore(data, files, attributes, is_folder, chunks, hashes, options.output)
    except (Damaged, struct.error, zstandard.ZstdError) as error:
        print(f"decode_kvz.py: {options.archive}: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
