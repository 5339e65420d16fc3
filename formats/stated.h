// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/format.h"

namespace kv {

// Flags say what a file does not. Throws kUsage, naming both values, where --kv-heads, --head-dim,
// --input-dtype or --rotated say something else than the file that was read with them.
void RequireAgreement(const OpenOptions& told, const Snapshot& snapshot);

// The same for flags that choose among readings of a file, where its format has one.
void RequireUse(const OpenOptions& told, const FormatEntry& format, const Snapshot& snapshot);
// The same for an archive of a snapshot that was decided when it was archived.
void RequireAsArchived(const OpenOptions& told, const Snapshot& described);

}  // namespace kv
