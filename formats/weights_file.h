// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>
#include <vector>

#include "formats/kvcm/kvcm.h"
#include "lib/core/base/output.h"
#include "lib/core/weights/checkpoint.h"

namespace kv {

// Reads and writes compressor weights in any container: InfiniLM's .bin, torch checkpoints,
// safetensors. Commands include this file and no reader of a container.

enum class WeightsContainer { kBin, kTorch, kSafetensors };

struct WeightsForm {
  WeightsContainer container;
  std::string_view name;
  std::string_view summary;
};
std::span<const WeightsForm> WeightsForms();

// Parses "bin", "pth" or "safetensors"; nothing for other words.
std::optional<WeightsContainer> ParseWeightsContainer(std::string_view word);
std::string_view Name(WeightsContainer container);
// Detects the container by content. Throws kUnknownFormat.
WeightsContainer DetectWeights(const Source& source);

struct WeightsFile {
  CompressorWeights weights;
  WeightsContainer container = WeightsContainer::kBin;
  std::optional<CheckpointShares> shares;  // for a checkpoint
};

struct WeightsOpenOptions {
  CheckpointOptions checkpoint;
  KvcmReading reading = KvcmReading::kStrict;
  uint64_t max_bytes = uint64_t{64} << 30;  // limit on inflated data, and on every tensor
};

// Returns true if a checkpoint's names are those of a compressor, even if it has faults.
bool HoldsCompressor(const Source& source, uint64_t max_bytes);

// Opens weights. Errors carry the file's name. Throws kLimit.
WeightsFile OpenWeights(Source source, const WeightsOpenOptions& options = {});

// Writes the weights to `path`, completely or not at all. `notes` receives what the container
// cannot hold.
RoundingCounts WriteWeights(const CompressorWeights& weights, WeightsContainer container,
                            DType dtype, const std::string& path, const OutputRules& rules,
                            std::vector<std::string>& notes);

// The faults of a file, and what the two engines' loaders would do with it.
struct WeightsVerdict {
  WeightsContainer container = WeightsContainer::kBin;
  std::optional<CompressorWeights> weights;  // empty if the file could not be read as weights
  std::vector<WeightsFault> faults;
  LoaderVerdict csrc, legacy;
};
WeightsVerdict VerifyWeights(Source source, const WeightsOpenOptions& options = {});

}  // namespace kv
