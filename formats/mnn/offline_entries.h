// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "lib/core/snapshot/dump_entries.h"

namespace kv::mnn {

// Every logical dump below a folder, whatever its run, in the order in which MNN's own script sees
// them. Like that script, this counts damage and goes on: it never throws for content. Views point
// into `source`.
std::vector<DumpEntry> ReadOfflineEntries(const Source& source);
// The packed dumps, read in the same way; those without data files are left out.
std::vector<PackedEntry> ReadPackedEntries(const Source& source);

inline DumpEntries ReadDumpEntries(const Source& source) {
  return {ReadOfflineEntries(source), ReadPackedEntries(source)};
}

}  // namespace kv::mnn
