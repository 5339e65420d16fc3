// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "formats/format.h"

namespace kv {

// Checks flags against what the file says. Throws kUsage, naming both values, if --kv-heads,
// --head-dim, --input-dtype or --rotated differ from the file that was read with them.
void RequireAgreement(const OpenOptions& told, const Snapshot& snapshot);

// Checks flags that choose between interpretations of a file, if its format has only one.
void RequireUse(const OpenOptions& told, const FormatEntry& format, const Snapshot& snapshot);
// Checks flags for an archive of a snapshot, whose interpretation was fixed when it was archived.
void RequireAsArchived(const OpenOptions& told, const Snapshot& described);

}  // namespace kv
