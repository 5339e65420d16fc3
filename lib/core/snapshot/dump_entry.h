// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/snapshot/snapshot.h"

namespace kv {

// Reasons why an entry cannot be simulated, in the order in which MNN's script checks.
enum class DumpDefect : uint8_t {
  kNone,
  kMetaParse,    // the metadata is not JSON
  kMetaNumbers,  // a size in the metadata is not a number
  kNoFileNames,  // the metadata names no file of K or of V
  kNoFiles,      // the named files do not exist
  kUnreadable,   // the files cannot be read
  kWrongSize,    // the files do not have the stated size
};

// K and V of some tokens of one layer: one update of an engine, or one layer of a snapshot.
struct DumpEntry {
  std::string run;    // entries of one run and layer may be joined; empty: unnamed
  std::string place;  // distinguishes unnamed runs
  std::string stage;  // "prefill", "decode"
  int64_t layer = 0;
  std::optional<uint32_t> model_layer;  // set if the model uses another number for the layer
  int64_t seq_start = 0;                // position of the first token
  int64_t tokens = 0, heads = 0, head_dim = 0;
  int64_t element_bytes = 0;
  KvTensor k, v;  // empty after a defect, or if the element type is unknown
  DumpDefect defect = DumpDefect::kNone;
};

// Returns one entry per layer, stage "prefill". Layers of a partial snapshot (without K or V) have
// the defect kNoFiles.
std::vector<DumpEntry> ListDumpEntries(const Snapshot& snapshot);

// One packed dump: the cache in the engine's own tiles, including padding.
struct PackedEntry {
  int64_t layer = 0;
  std::string stage;
  int64_t used_tokens = 0, max_tokens = 0, heads = 0, head_dim = 0, element_bytes = 0;
  int64_t pack_h = 0, pack_l = 0, flash_block = 0, key_used_bytes = 0, value_used_bytes = 0;
  ByteSpan k, v;
};

// All dumps in an engine's folder, one by one, across all runs.
struct DumpEntries {
  std::vector<DumpEntry> logical;
  std::vector<PackedEntry> packed;
};

}  // namespace kv
