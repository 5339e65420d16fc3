# SPDX-License-Identifier: Apache-2.0
"""Checks that JSON carries the names of hostile files without control characters."""
import json

raw = open("j.json", "rb").read() + open("printed.json", "rb").read()
assert not any(byte < 32 and byte != 10 or byte == 127 for byte in raw)
assert b"\xc2\x9b" not in raw and b"\xe2\x80\xae" not in raw and b"\xd8\x9c" not in raw
for file, want in (("v.json", "a\x1b[31mred\nkvtool: fine\r\x9bb\u202e\u2066\u061c\\xff.bin.kvz"), ("w.json", "back\\slash é.kvz"),
                   ("x.json", "back\\\\slash \\xff.kvz")):
    got = json.load(open(file))["results"][0]["inputs"][0]["file"]
    assert got == want, (got, want)
