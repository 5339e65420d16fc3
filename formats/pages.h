// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "formats/registry.h"

namespace kv {

// Stores that keep a cache as pages name them by hashes: which follows which is known to whoever
// hashed the tokens. --order says it.

// The files that --order names, in its order: a pattern with '*' (sorted by name), or a file with a
// name or pattern per line. Names are relative to the folder; the last part will do, with or
// without its ending, where it is the only one. Throws kUsage, kMissingRecord, kOpenFailed.
std::vector<const SourceFile*> InOrder(const Source& folder, const std::string& order);

// Reads the files of a folder one by one and joins them in that order. Like OpenUndivided, it
// leaves rows whole whose heads are not in the files.
Snapshot OpenPages(Source folder, const OpenOptions& options);

// One source in the format that it has or that the options name: OpenSnapshot without --order and
// without the geometry.
Snapshot OpenUndivided(Source source, const OpenOptions& options);

}  // namespace kv
