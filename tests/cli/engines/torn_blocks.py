# SPDX-License-Identifier: Apache-2.0
"""Writes copies of object.rawblock with a torn checkpoint, a reused slot, and a cut end."""
data = bytearray(open("object.rawblock", "rb").read())
data[4096 + 512 + 40] ^= 1
open("newer-torn", "wb").write(data)
data[512 + 40] ^= 1
open("both-torn", "wb").write(data)
data = bytearray(open("object.rawblock", "rb").read())
data[512 + 40] ^= 1
open("older-torn", "wb").write(data)
data = bytearray(open("object.rawblock", "rb").read())
data[8192 + 8] ^= 1  # flips a bit in the identity of the first slot
open("reused", "wb").write(data)
open("short", "wb").write(data[:8192 + 2048 + 100])
