// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/rope_pairs.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/bytes.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

bool HasPlainDims(const KvTensor& tensor) {
  return std::all_of(tensor.pieces.begin(), tensor.pieces.end(),
                     [](const StridedPiece& piece) { return piece.dim.group == UINT64_MAX; });
}

// A copy in [token, head, dim], which every order of dims is a view of.
KvTensor Straightened(const KvTensor& tensor, Snapshot& snapshot) {
  snapshot.spools.push_back(FileSource::FromBytes(
      Gather(tensor, 0, tensor.tokens(), Order::kTokenHeadDim), "reordered keys"));
  return ContiguousTensor(snapshot.spools.back()->bytes().data(), tensor.dtype, tensor.tokens(),
                          tensor.heads, tensor.head_dim, Order::kTokenHeadDim);
}

void Reorder(KeyPairs to, KvTensor& tensor, Snapshot& snapshot) {
  if (IsBlockQuantised(tensor.dtype)) {
    throw Error(Finding::kUnsupportedDtype, "the RoPE pairs of {} blocks cannot be reordered",
                Name(tensor.dtype))
        .Hint("--dtype f16, bf16 or f32 converts them first");
  }
  if (tensor.head_dim % 2 != 0)
    throw Error(Finding::kInconsistent, "heads of {} values", tensor.head_dim);
  if (!HasPlainDims(tensor)) tensor = Straightened(tensor, snapshot);
  const uint64_t half = tensor.head_dim / 2;
  for (StridedPiece& piece : tensor.pieces) {
    const uint64_t step = piece.dim.step;
    // Neighbours 2i, 2i + 1 come from i and i + half, and the other way about.
    piece.dim = to == KeyPairs::kNeighbours
                    ? AxisStride{.step = half * step, .group = 2, .group_step = step}
                    : AxisStride{.step = 2 * step, .group = half, .group_step = step};
  }
}

}  // namespace

std::string_view Name(KeyPairs pairs) {
  switch (pairs) {
    case KeyPairs::kUnknown:
      return "unknown";
    case KeyPairs::kNone:
      return "none";
    case KeyPairs::kNeighbours:
      return "neighbours";
    case KeyPairs::kHalves:
      return "halves";
  }
  return "?";
}

std::optional<KeyPairs> ParseRopePairs(std::string_view word) {
  for (const std::string_view known :
       {"neighbours", "neighbors", "interleaved", "adjacent", "gptj", "norm", "llama"}) {
    if (word == known) return KeyPairs::kNeighbours;
  }
  for (const std::string_view known : {"halves", "half", "split", "neox", "hf"}) {
    if (word == known) return KeyPairs::kHalves;
  }
  return std::nullopt;
}

PairsOwner FindPairsOwner(const Snapshot& snapshot) {
  const auto recorded = snapshot.storage.find(kRopePairs);
  const bool is_recorded = recorded != snapshot.storage.end();
  const std::string& owner = is_recorded ? recorded->second : snapshot.engine;
  if (owner == kPairsOfLlama) return PairsOwner::kLlama;
  if (is_recorded)
    return owner == kPairsOfTransformers ? PairsOwner::kTransformers : PairsOwner::kUnknown;
  // InfiniLM reorders weights as it loads them, and MNN keeps what its exporter made of them.
  return owner == "InfiniLM" || owner == "MNN" ? PairsOwner::kUnknown : PairsOwner::kTransformers;
}

std::string PairsToRecord(const Snapshot& snapshot) {
  const auto recorded = snapshot.storage.find(kRopePairs);
  if (recorded != snapshot.storage.end()) return recorded->second;
  switch (FindPairsOwner(snapshot)) {
    case PairsOwner::kLlama:
      return std::string(kPairsOfLlama);
    case PairsOwner::kTransformers:
      return std::string(kPairsOfTransformers);
    case PairsOwner::kUnknown:
      break;
  }
  return {};
}

void TakeRecordedPairs(const std::string& word, Snapshot& snapshot) {
  if (word.empty()) return;
  const bool is_known =
      word == kPairsOfLlama || word == kPairsOfTransformers || ParseRopePairs(word).has_value();
  if (!is_known) {
    throw Error(Finding::kBadField,
                "rope_pairs '{}' is neither an order nor an engine that has one",
                Escaped(word, 40));
  }
  snapshot.storage[kRopePairs] = word;
  snapshot.facts.emplace_back("RoPE pairs",
                              ParseRopePairs(word) ? word : fmt::format("as {} has them", word));
}

void ReorderKeys(KeyPairs from, KeyPairs to, Snapshot& snapshot) {
  if (from == to) return;
  RequireHeads(snapshot, "reordering the RoPE pairs of K");
  for (LayerKv& layer : snapshot.layers) {
    try {
      if (layer.has_k()) Reorder(to, layer.k, snapshot);
    } catch (Error& error) {
      throw error.In(fmt::format("layer {} K", layer.index));
    }
  }
}

}  // namespace kv
