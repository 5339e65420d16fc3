// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "formats/format.h"

namespace kv::infinilm {

// The dump of InfiniLM's compression test, a cache before and after the step; see FORMAT.md.

inline constexpr std::string_view kMetaName = "meta.json";
inline constexpr std::string_view kInputName = "input_kv.bin";
inline constexpr std::string_view kOutputName = "output_kv.bin";
inline constexpr uint64_t kMostMetaBytes = 64 << 10;
inline constexpr uint64_t kMostLayers = 10000;

struct DumpMeta {
  uint64_t layers = 0, heads = 0, head_dim = 0;
  uint64_t seq_len_in = 0, seq_len_out = 0;
  uint64_t compression_factor = 0, min_seq_len = 0, image_len = 0;
  // order of K's RoPE pairs; a field of kvtool's own, which InfiniLM does not write
  std::string rope_pairs;
};

// Throws kBadText, kMissingRecord, kBadField, kLimit.
DumpMeta ParseDumpMeta(ByteSpan json);

// Detects the format, for the registry.
Confidence ProbeDump(const Source& source);
Snapshot OpenDump(Source source, const OpenOptions& options);
void WriteDump(const Snapshot& snapshot, const std::string& path, const OutputRules& rules);
void WriteDumpPair(const Snapshot& before, const Snapshot& after, const StepPlan& plan,
                   const std::string& path, const OutputRules& rules);

}  // namespace kv::infinilm
