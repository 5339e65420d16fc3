// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "lib/core/base/file.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Pages of a cache as files. Stores name them by hash; --order supplies their sequence, which only
// the program that hashed the tokens knows.

// Returns the files that --order names, in its order: a pattern with '*' (sorted by name), or a
// file with a name or pattern per line. Names are relative to the folder; the last part is enough,
// with or without its extension, if it is unique. Throws kUsage, kMissingRecord, kOpenFailed.
std::vector<const SourceFile*> InOrder(const Source& folder, const std::string& order);

// Joins pages of one cache: appends in each layer the tokens of each part to those of the earlier
// parts. A part may hold only some of the layers. `whole` is the source that contains all parts.
// Throws kInconsistent if the parts do not belong to one cache.
Snapshot Concatenate(std::vector<Snapshot> parts, Source whole);

}  // namespace kv
