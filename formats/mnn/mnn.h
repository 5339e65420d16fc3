// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by mnn.cc, offline_entries.cc

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "formats/format.h"
#include "formats/mnn/meta.h"
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

// Tokens [begin, end) as update `update` wrote them.
struct JoinedRange {
  size_t update = 0;
  uint64_t begin = 0, end = 0;
  bool operator==(const JoinedRange&) const = default;
};

struct Joined {
  std::vector<JoinedRange> ranges;   // ascending, disjoint
  std::vector<TokenRange> gaps;      // positions inside the whole that no update holds
  std::vector<TokenRange> overlaps;  // positions that more than one update holds
};

// Joins the updates of one layer by position. Where several hold a position, the one that begins
// later wins: an engine appends, so it can only begin inside an earlier update after its cache was
// cut back to that length. Of two that begin together the longer one wins.
Joined JoinByPosition(std::span<const TokenRange> updates);

// One meta with the data files it names, whose sizes have been checked against it.
struct Dump {
  DumpMeta meta;
  const SourceFile* file = nullptr;  // the meta itself
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
};

struct LayerDumps {
  std::vector<Dump> logical, packed;
  const Dump& first() const { return logical.empty() ? packed.front() : logical.front(); }
};

struct RunDumps {
  std::map<uint32_t, LayerDumps> layers;  // by layer id
  std::vector<std::string> strangers;     // files that no meta names
};

// Whether any file is a dump's meta by its content.
bool HoldsDumps(const Source& source);

// Every dump of the one run in a folder, checked for sizes, names and agreement within layers. The
// result points into `source`. Throws kAmbiguousFormat for several runs.
RunDumps ReadRun(const Source& source);

}  // namespace kv::mnn
