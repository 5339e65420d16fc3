// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by lmcache_reader.cc

#include "formats/registry.h"

namespace kv::lmcache {

// Chunks as LMCache's fs connector writes them (.data): a header, then one array for each group of
// layers. Grammar and what is refused: FORMAT.md.

Confidence ProbeChunk(const Source& source);
// One chunk. Throws kTruncated, kBadField, kUnknownDtype, kSizeMismatch, kUnsupportedKind for
// chunks that hold no K and V.
Snapshot OpenChunk(Source source, const OpenOptions& options);

}  // namespace kv::lmcache
