// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "formats/registry.h"

namespace kv {

// Paged stores name files by hash; --order supplies their sequence, which only the program that
// hashed the tokens knows.

// The files that --order names, in its order: a pattern with '*' (sorted by name), or a file with a
// name or pattern per line. Names are relative to the folder; the last part is enough, with or
// without its ending, if it is unique. Throws kUsage, kMissingRecord, kOpenFailed.
std::vector<const SourceFile*> InOrder(const Source& folder, const std::string& order);

// Reads the files of a folder one by one and joins them in that order. Like OpenUndivided, it
// leaves rows whole if the files do not tell the heads.
Snapshot OpenPages(Source folder, const OpenOptions& options);

// Opens one source in its own format or the one that the options name: OpenSnapshot without --order
// and without the geometry.
Snapshot OpenUndivided(Source source, const OpenOptions& options);

}  // namespace kv
