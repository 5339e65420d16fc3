# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""Lossless compression, inspection and replay of LLM key-value caches.

Frames are compressed pages in memory: encode, decode, Context; Codec is what engines put them through. Files are
snapshots, archives and traces: open, compress, verify, convert, inspect. docs/python.md is the manual.
"""

from __future__ import annotations

from ._arrays import decode_array
from ._batch import BatchResult
from ._codec import Caps, Codec, PageLayout
from ._errors import Error, ExistsError, IoError, NotFoundError, OptionError, explain
from ._files import (
    analyze,
    bench,
    compress,
    convert,
    decompress,
    diff,
    inspect,
    replay_evict,
    replay_h2o,
    run,
    train,
    verify,
)
from ._kvtool import (
    Context,
    Profile,
    _version,
    bound,
    decode,
    decode_batch,
    decode_tokens,
    encode,
    encode_batch,
    estimate,
    frame_info,
    hash128,
    verify_frame,
)
from ._snapshot import Layer, Snapshot, save
from ._stream import Writer, open

_number, build = _version()
__version__ = f"{_number // 10000}.{_number // 100 % 100}.{_number % 100}"

__all__ = [
    "BatchResult",
    "Caps",
    "Codec",
    "Context",
    "Error",
    "ExistsError",
    "IoError",
    "Layer",
    "NotFoundError",
    "OptionError",
    "PageLayout",
    "Profile",
    "Snapshot",
    "Writer",
    "analyze",
    "bench",
    "bound",
    "build",
    "compress",
    "convert",
    "decode",
    "decode_array",
    "decode_batch",
    "decode_tokens",
    "decompress",
    "diff",
    "encode",
    "encode_batch",
    "estimate",
    "explain",
    "frame_info",
    "hash128",
    "inspect",
    "open",
    "replay_evict",
    "replay_h2o",
    "run",
    "save",
    "train",
    "verify",
    "verify_frame",
]
