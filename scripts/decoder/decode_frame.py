#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decodes a frame. An independent decoder, written only from lib/core/frame/FORMAT.md and the codecs' grammar; it
shares no code with kvtool.

  decode_frame.py FRAME OUTPUT      write the raw bytes
  decode_frame.py FRAME --info      print the header's fields
  --profile FILE                    the profile that the frame needs

Needs numpy and zstandard (Debian: python3-numpy python3-zstandard). With python3-xxhash all hashes are checked; without
it the decoder says that it did not check them.
"""
import argparse
import pathlib
import struct
import sys

try:
    import xxhash
except ImportError:
    xxhash = None

from kvz_decoder.chunks import RAW, decode_as
from kvz_decoder.common import Damaged
from kvz_decoder.profiled import Profile

HEADER = struct.Struct("<8sHHBBHQQ16s16s16s16sBBBBIIIQQ")
FIELDS = ("magic version header_size level segmentation segment_rows raw_size payload_size raw_hash context profile "
          "reference dtype order role codec heads head_dim tag tokens header_hash").split()
MAGIC = b"\x89KVF\r\n\x1a\n"
BYTE_SEGMENT = 1 << 20
# For each element type, by its number: bytes and values of one block.
BLOCK = {0: (4, 1), 1: (2, 1), 2: (2, 1), 3: (8, 1), 4: (1, 1), 5: (1, 1), 6: (2, 1), 7: (2, 1), 8: (4, 1), 9: (4, 1),
         10: (8, 1), 11: (8, 1), 12: (1, 1), 13: (1, 1), 14: (1, 1), 15: (34, 32), 16: (18, 32), 17: (20, 32),
         18: (22, 32), 19: (24, 32), 20: (18, 32)}


def header_of(frame):
    if len(frame) < HEADER.size:
        raise Damaged("shorter than a header")
    head = dict(zip(FIELDS, HEADER.unpack_from(frame)))
    if head["magic"] != MAGIC or head["version"] not in (1, 2) or head["header_size"] != HEADER.size:
        raise Damaged("not a frame of version 1 or 2")
    if xxhash is not None and xxhash.xxh3_64_intdigest(frame[:120]) != head["header_hash"]:
        raise Damaged("the header's hash differs")
    if any(head["reference"]):
        raise Damaged("needs a reference")
    return head


def rows_of(head):
    """Returns (bytes of a row, heads and blocks of a row), or (0, 0, 0) without rows."""
    block_bytes, values = BLOCK[head["dtype"]]
    if head["order"] == 3:
        return 0, 0, 0
    heads, units = head["heads"] if head["order"] == 0 else 1, head["head_dim"] // values
    if head["heads"] * units * block_bytes * head["tokens"] != head["raw_size"]:
        raise Damaged("the product of the shape is not the raw size")
    return heads * units * block_bytes, heads, units


def require(good, text):
    if not good:
        raise Damaged(text)


def segments_of(head, payload, row):
    """Yields (raw bytes, payload, codec, hash) of every segment; a frame of one segment has no hash."""
    size = {0: max(1, head["raw_size"]), 1: head["segment_rows"] * row, 2: BYTE_SEGMENT}[head["segmentation"]]
    count = max(1, -(-head["raw_size"] // size))
    table, at = [(len(payload), head["codec"], None)], 0
    if head["segmentation"]:
        table, at = [struct.unpack_from("<IIQ", payload, 16 * i) for i in range(count)], 16 * count
    require(head["version"] != 2 or all(codec == head["codec"] for _, codec, _ in table),
            "a segment has another codec than the header says")
    for number, (length, codec, digest) in enumerate(table):
        yield min(size, head["raw_size"] - number * size), bytes(payload[at:at + length]), codec, digest
        at += length
    require(at == len(payload), "sizes differ")


def decode(frame, profile=None):
    head = header_of(frame)
    if not any(head["profile"]):
        profile = None
    elif profile is None or profile.hash != head["profile"]:
        raise Damaged(f"needs the profile {head['profile'].hex()}")
    payload = frame[HEADER.size:HEADER.size + head["payload_size"]]
    require(len(payload) == head["payload_size"], "the payload is cut")
    row, heads, units = rows_of(head)
    raw = bytearray()
    for number, (raw_bytes, coded, codec, digest) in enumerate(segments_of(head, payload, row)):
        chunk = {"codec": codec, "raw_bytes": raw_bytes, "dtype": head["dtype"], "order": 0 if row else 3,
                 "tokens": raw_bytes // row if row else 0, "heads": heads, "units": units,
                 "unit_bytes": BLOCK[head["dtype"]][0], "profile": profile}
        segment = coded if codec == RAW else decode_as(codec, chunk, coded)
        if digest is not None and xxhash is not None:
            require(xxhash.xxh3_64_intdigest(segment) == digest, f"segment {number}: hash differs")
        raw += segment
    require(len(raw) == head["raw_size"], "sizes differ")
    if xxhash is not None:
        require(xxhash.xxh3_128_digest(bytes(raw)) == head["raw_hash"], "the raw hash differs")
    return bytes(raw)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frame", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path, nargs="?")
    parser.add_argument("--info", action="store_true")
    parser.add_argument("--profile", type=pathlib.Path)
    options = parser.parse_intermixed_args()
    frame = options.frame.read_bytes()
    try:
        if options.info:
            for name, value in header_of(frame).items():
                print(f"{name:14} {value.hex() if isinstance(value, bytes) else value}")
        if options.output:
            options.output.write_bytes(decode(frame, options.profile and Profile(options.profile.read_bytes())))
            if xxhash is None:
                print("without python3-xxhash no hash was checked", file=sys.stderr)
    except Damaged as failure:
        sys.exit(f"{options.frame}: {failure}")


if __name__ == "__main__":
    main()
