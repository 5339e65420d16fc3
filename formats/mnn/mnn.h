// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by mnn.cc, meta.cc, cache_files.cc, offline_entries.cc

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "lib/core/base/bytes.h"
#include "lib/core/snapshot/dump_entry.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::mnn {

// MNN's CPU attention packs one head for its matrix kernels: K in tiles of pack_h tokens by
// pack_l dims, V in tiles of pack_h dims by pack_l tokens inside blocks of `flash_block` tokens.
//   K [ceil(tokens / pack_h)][ceil(head_dim / pack_l)][pack_h][pack_l]
//   V [ceil(tokens / flash_block)][ceil(head_dim / pack_h)][ceil(flash_block / pack_l)][pack_h]
//     [pack_l]
// Lanes past head_dim or past the last token are padding and may hold anything.
struct PackGeometry {
  uint64_t tokens = 0;
  uint64_t head_dim = 0;
  uint64_t pack_h = 0, pack_l = 0;
  uint64_t flash_block = 0;  // the whole capacity if the engine runs without flash attention
};

// Return the elements of one head, including padding. Throw kOverflow; once these have returned,
// the index functions cannot overflow either.
uint64_t KeyElements(const PackGeometry& geometry);
uint64_t ValueElements(const PackGeometry& geometry);

// Return the index of element (token, dim) in its head. The largest index in use is that of the
// last token's last dim.
inline uint64_t KeyIndex(const PackGeometry& g, uint64_t token, uint64_t dim) {
  const uint64_t tile = g.pack_h * g.pack_l;
  const uint64_t tiles_per_group = g.head_dim / g.pack_l + (g.head_dim % g.pack_l != 0);
  return (token / g.pack_h * tiles_per_group + dim / g.pack_l) * tile +
         token % g.pack_h * g.pack_l + dim % g.pack_l;
}

inline uint64_t ValueIndex(const PackGeometry& g, uint64_t token, uint64_t dim) {
  const uint64_t tile = g.pack_h * g.pack_l;
  const uint64_t tiles_per_group = g.flash_block / g.pack_l + (g.flash_block % g.pack_l != 0);
  const uint64_t groups_per_block = g.head_dim / g.pack_h + (g.head_dim % g.pack_h != 0);
  const uint64_t in_block = token % g.flash_block;
  return ((token / g.flash_block * groups_per_block + dim / g.pack_h) * tiles_per_group +
          in_block / g.pack_l) *
             tile +
         dim % g.pack_h * g.pack_l + in_block % g.pack_l;
}

// Return views of `heads` packed heads, each `head_bytes` after the one before.
KvTensor PackedKeys(const std::byte* data, DType dtype, const PackGeometry& geometry,
                    uint32_t heads, uint64_t head_bytes);
KvTensor PackedValues(const std::byte* data, DType dtype, const PackGeometry& geometry,
                      uint32_t heads, uint64_t head_bytes);

// One meta_*.json or packed_meta_*.json, which describes its K and V files.
struct DumpMeta {
  bool is_packed = false;
  uint32_t layer = 0;
  uint64_t begin = 0;   // first token (logical; 0 for packed)
  uint64_t tokens = 0;  // number of rows in each file
  uint64_t added = 0;   // tokens of the engine's update; exceeds `tokens` if the dump was limited
  uint32_t kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF16;
  // true: the engine quantised its own cache; the dump has the values before that
  bool quantised_cache = false;
  std::string stage, run_id;
  std::string k_file, v_file;  // names of files in the folder of the metadata file
  // order of K's RoPE pairs; a field of kvtool's own, which the engine does not write
  std::string rope_pairs;

  // Only for packed dumps.
  PackGeometry pack;
  uint64_t key_head_bytes = 0, value_head_bytes = 0;  // bytes of one head in the files

  uint64_t end() const { return begin + tokens; }
  uint64_t k_bytes() const;  // size that the file must have
  uint64_t v_bytes() const;
};

// Meta files are far smaller; larger files are not read.
inline constexpr uint64_t kMaxMetaBytes = 64 << 10;

// Returns true if the bytes are a JSON object with the keys that every dump meta has.
bool LooksLikeMeta(ByteSpan bytes);

// Reads one meta file strictly. Throws kBadText (not JSON, a repeated key, a wrong type),
// kBadField, kInconsistent (fields that contradict each other), kSizeMismatch, kUnsafeName,
// kOverflow.
DumpMeta ParseMeta(ByteSpan bytes);

// Returns the text of a logical meta file, byte for byte as the engine writes it.
std::string LogicalMetaText(const DumpMeta& meta);

// KV dumps of MNN's distribution experiments: see FORMAT.md.
Confidence ProbeDump(const Source& source);

// Opens a layer folder, a run folder or a root with one run. `layout` "logical" or "packed" chooses
// if a layer has both (default logical); `as_dtype` "bf16" reads two-byte elements as bfloat16,
// which the engine does not distinguish from binary16. Throws kAmbiguousFormat for a root with
// several runs.
Snapshot OpenDump(Source source, const OpenOptions& options);

// Writes one logical update per layer from token 0, in f32 or f16. Throws kUnsupportedDtype,
// kUnsupportedLayout, kGeometryMissing.
void WriteDump(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);

// Returns every logical dump below a folder, of all runs, in the order of MNN's own script. Like
// that script, this counts damage and continues: content never makes it throw. Views point into
// `source`.
std::vector<DumpEntry> ReadOfflineEntries(const Source& source);
// Returns the packed dumps in the same way, without those that lack data files.
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
  std::vector<TokenRange> gaps;      // positions in the joined range that no update wrote
  std::vector<TokenRange> overlaps;  // positions that several updates wrote
};

// Joins the updates of one layer by position. If several hold a position, the one that begins later
// wins: an engine appends, so an update can only begin inside an earlier one after the cache was
// cut back to that length. Of two that begin together the longer one wins.
Joined JoinByPosition(std::span<const TokenRange> updates);

// A meta file with its data files, whose sizes were checked.
struct Dump {
  DumpMeta meta;
  const SourceFile* file = nullptr;  // the meta file itself
  const std::byte* k = nullptr;
  const std::byte* v = nullptr;
};

struct LayerDumps {
  std::vector<Dump> logical, packed;
  const Dump& first() const { return logical.empty() ? packed.front() : logical.front(); }
};

struct RunDumps {
  std::map<uint32_t, LayerDumps> layers;  // by layer id
  std::vector<std::string> strangers;     // files that no metadata file names
};

// Returns true if any file is a dump's meta by its content.
bool HoldsDumps(const Source& source);

// Reads every dump of the one run in a folder, checked for sizes, names and agreement within
// layers. The result points into `source`. Throws kAmbiguousFormat for several runs.
RunDumps ReadRun(const Source& source);

// Files that the engine itself keeps on disk: prefix caches (NAME_LAYER.k, NAME_LAYER.v) and caches
// in mapped files (ADDRESS.k, ADDRESS.v). They are packed memory without a header (FORMAT.md).

inline constexpr std::string_view kCachePreset = "mnn-cache";

// Returns true for the keys of sizes: H kv heads, D head size, T tokens in use, hP and lP the
// packing, FA the flash block (none: the engine ran without flash attention).
bool IsCacheKey(std::string_view key);

// Opens a folder of such files. Throws kUsage if a size is missing, kSizeMismatch if the sizes of
// the files do not fit the packing.
Snapshot OpenCacheFiles(Source source, DType dtype,
                        const std::map<std::string, uint64_t, std::less<>>& sizes);

}  // namespace kv::mnn
