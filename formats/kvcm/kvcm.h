// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/core/weights/weights.h"

namespace kv {

// KV-compressor weights `.bin` v1; the grammar is in FORMAT.md.

inline constexpr uint32_t kKvcmMagic = 0x4B56434D;  // the letters MCVK in the file
inline constexpr uint32_t kKvcmVersion = 1;
inline constexpr uint64_t kKvcmHeaderBytes = 44;
inline constexpr uint64_t kKvcmBlockHeaderBytes = 12;

enum class KvcmReading {
  kStrict,  // refuses a file that breaks any rule
  kCompat,  // accepts what csrc's loader accepts; each oddity becomes a warning
};

// All faults of a file, and the weights that could be read.
struct KvcmExamination {
  std::optional<CompressorWeights> weights;  // empty if a fault is fatal
  std::vector<WeightsFault> faults;
};

bool LooksLikeKvcm(ByteSpan bytes);
KvcmExamination ExamineKvcm(Source source);
// Throws the first fault that this mode of reading does not accept.
CompressorWeights ReadKvcm(Source source, KvcmReading reading);

// Writes header, metadata and blocks; values are rounded to `dtype` as InfiniLM's converter does.
RoundingCounts WriteKvcm(const CompressorWeights& weights, DType dtype, Sink& sink);

// Prediction of how one of the two real loaders would treat a file.
struct LoaderVerdict {
  std::string_view loader;  // "csrc", "legacy"
  bool loads = false;
  std::string message;  // the loader's own message when it refuses
  std::optional<uint64_t> offset;
};
LoaderVerdict CsrcLoader(ByteSpan bytes, std::string_view path);
LoaderVerdict LegacyLoader(ByteSpan bytes, std::string_view path);

}  // namespace kv
