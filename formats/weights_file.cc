// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Detects containers of compressor weights, and converts between them.
#include "formats/weights_file.h"

#include <fmt/format.h>

#include <filesystem>

#include "formats/format.h"
#include "formats/safetensors/safetensors.h"
#include "formats/torch/torch.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

constexpr WeightsForm kForms[] = {
    {WeightsContainer::kBin, "bin", "what the engine loads: header, blocks, one element type"},
    {WeightsContainer::kTorch, "pth", "torch checkpoints, read without running a pickle"},
    {WeightsContainer::kSafetensors, "safetensors", "the checkpoint's names, the .bin's header"},
};

// Numbers of the .bin header that a checkpoint cannot hold; safetensors keep them as text.
constexpr std::string_view kMinSeqLenKey = "kvtool.weights.min_seq_len";
constexpr std::string_view kNumHeadsKey = "kvtool.weights.num_heads";
constexpr std::string_view kHeadDimKey = "kvtool.weights.head_dim";
constexpr std::string_view kFactorKey = "kvtool.weights.compression_factor";
constexpr std::string_view kMetadataKey = "kvtool.weights.metadata_hex";
constexpr uint32_t kDefaultMinSeqLen = 2;

const FileSource& OnlyFile(const Source& source) {
  if (source.files.size() != 1 || source.is_folder) {
    throw Error(Finding::kUnsupportedKind, "weights are one file, not a folder");
  }
  return *source.files.front().data;
}

std::optional<uint32_t> Number(const TensorMetadata& metadata, std::string_view key) {
  return ParseNumber<uint32_t>(Lookup(metadata, key));
}

Bytes FromHex(std::string_view hex) {
  Bytes out;
  for (size_t i = 0; i < hex.size(); i += 2) {
    const std::string_view digits = hex.substr(i, 2);
    const auto value = ParseNumber<uint8_t>(digits, 16);
    if (!value || digits.size() != 2) {
      throw Error(Finding::kBadField, "metadata '{}': '{}' is not a byte in hexadecimal",
                  kMetadataKey, Escaped(digits));
    }
    out.push_back(static_cast<std::byte>(*value));
  }
  return out;
}

// Returns options from flags first, then from a safetensors file of kvtool, then the converter's
// defaults.
CheckpointOptions WithRemembered(CheckpointOptions options, const TensorMetadata& metadata) {
  if (!options.min_seq_len) options.min_seq_len = Number(metadata, kMinSeqLenKey);
  const auto fill = [&](uint32_t& field, std::string_view key) {
    if (field == 0) field = Number(metadata, key).value_or(0);
  };
  fill(options.num_heads, kNumHeadsKey);
  fill(options.head_dim, kHeadDimKey);
  fill(options.compression_factor, kFactorKey);
  return options;
}

TensorFile ReadCheckpointTensors(Source source, WeightsContainer container, uint64_t max_bytes) {
  return container == WeightsContainer::kTorch ? ReadTorch(std::move(source), max_bytes)
                                               : ReadSafetensors(std::move(source), OpenOptions());
}

WeightsFile OpenAny(Source source, const WeightsOpenOptions& options) {
  WeightsFile file;
  file.container = DetectWeights(source);
  if (file.container == WeightsContainer::kBin) {
    file.weights = Adjusted(ReadKvcm(std::move(source), options.reading), options.checkpoint);
    return file;
  }
  TensorFile tensors = ReadCheckpointTensors(std::move(source), file.container, options.max_bytes);
  const CheckpointOptions checkpoint = WithRemembered(options.checkpoint, tensors.metadata);
  const Bytes metadata = FromHex(Lookup(tensors.metadata, kMetadataKey));
  file.weights = MakeWeights(std::move(tensors), checkpoint, &file.shares.emplace());
  file.weights.metadata = metadata;
  return file;
}

// Returns weight and bias of every block under the names of the training code.
std::vector<TensorToWrite> ToTensors(const CompressorWeights& weights, DType dtype,
                                     RoundingCounts& counts) {
  std::vector<TensorToWrite> tensors;
  const auto add = [&](std::string name, const TensorView& view) {
    tensors.push_back({std::move(name), dtype, view.shape, [&counts, dtype, view](Sink& sink) {
                         sink.Write(RoundValues(view, dtype, &counts));
                       }});
  };
  for (uint32_t layer = 0; layer < weights.header.num_layers; ++layer) {
    for (uint32_t i = 0; i < weights.header.blocks_per_layer; ++i) {
      const LinearBlock& block = weights.Block(layer, i);
      const std::string key = BlockKey(weights, layer, i);
      add(key + ".weight", block.weight);
      if (block.has_bias()) add(key + ".bias", block.bias);
    }
  }
  return tensors;
}

TensorMetadata ToMetadata(const CompressorWeights& weights) {
  const WeightsHeader& header = weights.header;
  TensorMetadata metadata = {{"format", "pt"}};
  metadata.emplace(kMinSeqLenKey, std::to_string(header.min_seq_len));
  metadata.emplace(kNumHeadsKey, std::to_string(header.num_heads));
  metadata.emplace(kHeadDimKey, std::to_string(header.head_dim));
  metadata.emplace(kFactorKey, std::to_string(header.compression_factor));
  if (!weights.metadata.empty()) metadata.emplace(kMetadataKey, Hex(weights.metadata));
  return metadata;
}

void NoteLosses(const CompressorWeights& weights, std::vector<std::string>& notes) {
  const WeightsHeader& header = weights.header;
  if (!weights.metadata.empty()) {
    notes.push_back(
        fmt::format("a .pth has no place for the {} bytes of metadata", weights.metadata.size()));
  }
  if (header.min_seq_len != kDefaultMinSeqLen || header.num_heads != 0) {
    notes.push_back(
        fmt::format("a .pth has no place for min_seq_len {} and num_heads {}; give them again when "
                    "converting back",
                    header.min_seq_len, header.num_heads));
  }
}

void RequireNames(const CompressorWeights& weights) {
  if (weights.prefixes.size() * kSlotsPerMlp == weights.header.blocks_per_layer) return;
  throw Error(Finding::kUnsupportedLayout,
              "{} blocks per layer: those after the first {} have no names in a checkpoint",
              weights.header.blocks_per_layer, weights.prefixes.size() * kSlotsPerMlp)
      .Hint("choose MLPs with --prefix-order");
}

}  // namespace

std::span<const WeightsForm> WeightsForms() { return kForms; }

std::optional<WeightsContainer> ParseWeightsContainer(std::string_view word) {
  for (const WeightsForm& known : kForms) {
    if (known.name == word) return known.container;
  }
  return word == "pt" ? std::optional(WeightsContainer::kTorch) : std::nullopt;
}

std::string_view Name(WeightsContainer container) {
  return kForms[static_cast<size_t>(container)].name;
}

WeightsContainer DetectWeights(const Source& source) {
  const FileSource& file = OnlyFile(source);
  if (LooksLikeKvcm(file.bytes())) return WeightsContainer::kBin;
  if (LooksLikeTorch(source)) return WeightsContainer::kTorch;
  if (ProbeSafetensors(source) != Confidence::kNo) return WeightsContainer::kSafetensors;
  throw Error(Finding::kUnknownFormat,
              "neither a weights .bin nor a torch or safetensors file by its content");
}

bool HoldsCompressor(const Source& source, uint64_t max_bytes) {
  const WeightsContainer container = DetectWeights(source);
  return container != WeightsContainer::kBin &&
         NamesCompressor(ReadCheckpointTensors(source, container, max_bytes));
}

WeightsFile OpenWeights(Source source, const WeightsOpenOptions& options) {
  const std::string path = source.path;
  try {
    return OpenAny(std::move(source), options);
  } catch (Error& error) {
    throw error.File(path);
  }
}

RoundingCounts WriteWeights(const CompressorWeights& weights, WeightsContainer container,
                            DType dtype, const std::string& path, const OutputRules& rules,
                            std::vector<std::string>& notes) {
  RoundingCounts counts;
  AtomicFile file(path, rules);
  switch (container) {
    case WeightsContainer::kBin:
      counts = WriteKvcm(weights, dtype, file);
      break;
    case WeightsContainer::kTorch:
      RequireNames(weights);
      WriteTorch(ToTensors(weights, dtype, counts), std::filesystem::path(path).stem().string(),
                 file);
      NoteLosses(weights, notes);
      break;
    case WeightsContainer::kSafetensors:
      RequireNames(weights);
      WriteSafetensorsFile(ToTensors(weights, dtype, counts), ToMetadata(weights), file);
      break;
  }
  file.Commit();
  return counts;
}

WeightsVerdict VerifyWeights(Source source, const WeightsOpenOptions& options) {
  const std::string path = source.path;
  WeightsVerdict verdict;
  try {
    const ByteSpan bytes = OnlyFile(source).bytes();
    verdict.csrc = CsrcLoader(bytes, path);
    verdict.legacy = LegacyLoader(bytes, path);
    // A file that is no other container is checked as a .bin: a damaged magic number is a fault
    // like any other.
    const bool is_other = LooksLikeTorch(source) || ProbeSafetensors(source) != Confidence::kNo;
    if (is_other && !LooksLikeKvcm(bytes)) {
      WeightsFile opened = OpenAny(std::move(source), options);
      verdict.container = opened.container;
      verdict.faults = CheckWeights(opened.weights);
      verdict.weights = std::move(opened.weights);
    } else {
      KvcmExamination examined = ExamineKvcm(std::move(source));
      verdict.faults = std::move(examined.faults);
      verdict.weights = std::move(examined.weights);
    }
  } catch (Error& error) {
    throw error.File(path);
  }
  return verdict;
}

}  // namespace kv
