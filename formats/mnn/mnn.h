// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by mnn.cc, offline_entries.cc

#include <vector>

#include "formats/format.h"
#include "lib/core/snapshot/dump_entry.h"

namespace kv::mnn {
// KV dumps of MNN's distribution experiments: see FORMAT.md.
Confidence ProbeDump(const Source& source);

// A layer folder, a run folder or a root with one run. `layout` "logical" or "packed" chooses where
// a layer has both (logical otherwise); `as_dtype` "bf16" reads two-byte elements as bfloat16,
// which the engine does not tell from binary16. Throws kAmbiguousFormat for a root with several
// runs.
Snapshot OpenDump(Source source, const OpenOptions& options);

// One logical update per layer from token 0, in f32 or f16. Throws kUnsupportedDtype,
// kUnsupportedLayout, kGeometryMissing.
void WriteDump(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);

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
