# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""What the plug-ins are told, and what follows from it for the names of objects.

An object is named twice. The name of its file and the context in its frame are hashes of everything that its bytes
depend on, so that a file which was copied, renamed or written by another configuration is refused.
"""

import hashlib
import json
from importlib import metadata

import kvtool

LEVELS = ("fast", "default", "high", "max")


class Identity:
    """Everything that objects of one configuration have in common, hashed: engine, model, revision, layout, ranks."""

    def __init__(self, **fields):
        self.fields = fields
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str)
        self._prefix = hashlib.blake2b(text.encode(), digest_size=32).digest()

    def name(self, key):
        """Of the file that holds the object of `key` (bytes)."""
        return hashlib.blake2b(key, digest_size=20, key=self._prefix).hexdigest()

    def context(self, key):
        """The 16 bytes that its frame must carry."""
        return kvtool.hash128(self._prefix + key)


def engine_version(package):
    """Major and minor version of an installed engine: its layouts may change with either."""
    try:
        return ".".join(metadata.version(package).split(".")[:2])
    except metadata.PackageNotFoundError:
        return "unknown"


def size_option(value, name):
    """Bytes of a configured number of GiB."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1 << 30:
        raise ValueError(f"{name} must be a number of GiB that is not negative, not {value!r}")
    return int(value * (1 << 30))


def level_option(value):
    if value not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {value!r}")
    return value
