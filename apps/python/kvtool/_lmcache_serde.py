# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The kvtool authors
"""The LMCache serde "kvtool": objects as frames, for adapters that take objects of any size."""

import weakref

import kvtool
from kvtool._frames import Coder, reason_for
from kvtool._lmcache_objects import ObjectIdentity, bytes_of_layout, memory_of, shape_of

from lmcache.v1.distributed.serde import (
    AsyncSerdeProcessor,
    Deserializer,
    Serializer,
    get_registered_serde_types,
    register_serde_factory,
)

SERDE_NAME = "kvtool"

# Of the serdes in this process: what frames may carry that an adapter stores as they are.
_identities = []
# The adapters in this process, one of which may hold what a serde refuses.
_adapters = weakref.WeakSet()


def serde_identities():
    return list(_identities)


def listen_to_serdes(adapter):
    _adapters.add(adapter)


class KvtoolSerializer(Serializer):
    def __init__(self, coder, identity, head_dim=None):
        self._coder, self._identity, self._head_dim = coder, identity, head_dim

    def estimate_serialized_size(self, layout_desc):
        return int(kvtool.bound(bytes_of_layout(layout_desc)))

    def serialize(self, src, dst, key):
        with self._coder.lease() as lease:
            size = lease.context.encode(
                memory_of(src),
                context=self._identity.context(key, src.get_shapes(), src.get_dtypes()),
                out=memory_of(dst),
                **shape_of(src, self._head_dim).arguments(),
            )
        return int(size)  # LMCache would store the whole bound for any other kind of integer


class KvtoolDeserializer(Deserializer):
    def __init__(self, coder, identity):
        self._coder, self._identity = coder, identity

    def deserialize(self, src, dst, key):
        """The length comes from the frame: stores pad, and leave what was there before."""
        context = self._identity.context(key, dst.get_shapes(), dst.get_dtypes())
        try:
            with self._coder.lease() as lease:
                lease.context.decode(memory_of(src), context=context, out=memory_of(dst))
        except kvtool.Error as error:
            if reason_for(error.finding) not in (None, "version"):
                for adapter in list(_adapters):
                    adapter.recheck(key, context)  # or it would be found, refused and kept for ever
            raise


def _make_serde(options):
    """{"type": "kvtool", "level": ..., "threads": ..., "max_workers": ..., "revision": ..., "head_dim": ...}"""
    options = dict(options)
    identity = ObjectIdentity(options.pop("revision", ""))
    coder = Coder(options.pop("level", "fast"), options.pop("threads", 1))
    max_workers, head_dim = options.pop("max_workers", 1), options.pop("head_dim", None)
    if options:
        raise ValueError(f"serde kvtool: unknown options {', '.join(sorted(options))}")
    _identities.append(identity)
    return AsyncSerdeProcessor(
        KvtoolSerializer(coder, identity, head_dim), KvtoolDeserializer(coder, identity), max_workers=max_workers
    )


def register():
    """LMCache refuses a name that it knows; a module may be imported twice under two names."""
    if SERDE_NAME not in get_registered_serde_types():
        register_serde_factory(SERDE_NAME, _make_serde)
