# SPDX-License-Identifier: Apache-2.0
"""Restores every golden archive with the independent decoder: restore_golden.py SCRIPTS ARCHIVES."""
import pathlib
import sys

scripts, archives = map(pathlib.Path, sys.argv[1:])
sys.dont_write_bytecode = True
sys.path[:0] = [str(scripts / "decoder"), str(scripts / "make")]
import decode_kvz
from add_archives import content_of, sha256
rows = [line.split("\t") for line in (archives / "manifest.tsv").read_text().splitlines()[1:]]
wrong = 0
for number, (name, archive_hash, size, content_hash, _flags) in enumerate(rows):
    data = (archives / name).read_bytes()
    if sha256(data) != archive_hash:
        print(f"{name}: is not the archive of the manifest")
    # Every second archive is opened without its index.
    is_folder, files, attributes, chunks, hashes = decode_kvz.open_archive(data, number % 2 == 1)
    chunks = decode_kvz.ready(data, chunks, {"cells": attributes["cells"]})
    output = pathlib.Path(f"restored{number}")
    if is_folder:
        output.mkdir()
    decode_kvz.restore(data, files, attributes, is_folder, chunks, hashes, output)
    content = content_of(output)
    if len(content) != int(size) or sha256(content) != content_hash:
        print(f"{name}: restored as other bytes")
        wrong += 1
print(f"{wrong} of {len(rows)} archives differ" if wrong or not rows else "all archives are restored")
