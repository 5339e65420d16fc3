// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/lmcache/chunk_header.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::lmcache {

// The layers of a chunk whose groups lie one behind the other in `payload`, numbered through.
// Throws kLimit, kSizeMismatch. The caller adds the source.
Snapshot SnapshotOfArrays(std::span<const GroupArray> groups, ByteSpan payload,
                          std::optional<uint64_t> batch);

}  // namespace kv::lmcache
