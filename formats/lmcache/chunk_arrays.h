// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/lmcache/chunk_header.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::lmcache {

// The layers of a chunk, numbered consecutively; its groups follow each other in `payload`. Throws
// kLimit, kSizeMismatch. The caller adds the source.
Snapshot SnapshotOfArrays(std::span<const GroupArray> groups, ByteSpan payload,
                          std::optional<uint64_t> batch);

}  // namespace kv::lmcache
