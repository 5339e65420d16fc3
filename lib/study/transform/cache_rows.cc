// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/transform/cache_rows.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/base/hash.h"
#include "lib/core/snapshot/layout.h"

namespace kv::transform {
namespace {

constexpr uint64_t kFingerprintTokens = 64;  // hashes every 64th token
constexpr uint64_t kSharedPart = 10;  // a tenth may be shared, such as a common system prompt

[[noreturn]] void RefuseRows(std::string_view what) {
  throw Error(Finding::kUnsupportedKind,
              "a transform needs one row of all layers for each token: {}", what);
}

void RequirePositions(const Snapshot& snapshot) {
  for (const CellGroup& group : snapshot.cell_groups) {
    for (size_t i = 0; i < group.cells.size(); ++i) {
      const Cell& cell = group.cells[i];
      if (cell.position != static_cast<int64_t>(i) || cell.sequences.size() > 1 ||
          !(cell.sequences == group.cells.front().sequences)) {
        RefuseRows("the positions are not 0, 1, 2 ... of one sequence");
      }
    }
  }
  if (BatchRows(snapshot) > 1) RefuseRows("the cache holds a batch; choose a row by --batch");
}

void Rotate(const ModelRope& rope, const Snapshot& snapshot, TokenRange range, bool is_back,
            CacheRows& rows) {
  std::vector<int64_t> positions(range.end - range.begin);
  std::iota(positions.begin(), positions.end(), static_cast<int64_t>(range.begin));
  const KvTensor& first = snapshot.layers.front().k;
  std::vector<KeyShift> shifts = ShiftsToZero(positions, first.tokens());
  for (KeyShift& shift : shifts) {
    if (is_back) continue;
    std::swap(shift.from, shift.to);
    std::swap(shift.from_length, shift.to_length);
  }
  for (size_t l = 0; l < snapshot.layers.size(); ++l) {
    const RopeTable table(rope.Of(snapshot.layers[l].index), first.head_dim, shifts);
    for (uint64_t t = 0; t < rows.tokens; ++t)
      table.Rotate(t, first.heads, &rows.values[t * rows.features + l * first.channels()]);
  }
}

}  // namespace

void RequireRows(const Snapshot& snapshot) {
  if (snapshot.layers.empty()) RefuseRows("the cache has no layers");
  RequireHeads(snapshot, "a transform");
  const LayerKv& first = snapshot.layers.front();
  for (const LayerKv& layer : snapshot.layers) {
    if (!layer.has_k() || !layer.v) RefuseRows("a layer has no K or no V of its own");
    for (const auto& [tensor, like] :
         {std::pair{&layer.k, &first.k}, std::pair{&*layer.v, &*first.v}}) {
      if (tensor->heads != like->heads || tensor->head_dim != like->head_dim ||
          tensor->tokens() != first.k.tokens()) {
        RefuseRows("layers differ from the first in heads or tokens");
      }
    }
  }
  RequirePositions(snapshot);
}

TokenRange MiddleRange(uint64_t tokens, uint64_t first, uint64_t last) {
  const uint64_t begin = std::min(first, tokens);
  return {begin, std::max(begin, tokens - std::min(last, tokens))};
}

std::vector<uint64_t> DropNotFinite(CacheRows& rows) {
  std::vector<uint64_t> places;
  CacheRows kept{{}, 0, rows.features};
  for (uint64_t t = 0; t < rows.tokens; ++t) {
    const std::span<const float> row(&rows.values[t * rows.features], rows.features);
    if (!std::all_of(row.begin(), row.end(), [](float value) { return std::isfinite(value); }))
      continue;
    kept.values.insert(kept.values.end(), row.begin(), row.end());
    places.push_back(t);
  }
  kept.tokens = places.size();
  rows = std::move(kept);
  return places;
}

void RequireRope(const Snapshot& snapshot, const ModelRope* rope) {
  if (rope != nullptr || snapshot.key_rotation == KeyRotation::kUnrotated) return;
  throw Error(Finding::kUsage, "K is coded before RoPE, and how it is rotated is unknown")
      .Hint("give --model MODEL, or --rope-base and --rope-style");
}

CacheRows CollectRows(const Snapshot& snapshot, bool is_key, const ModelRope* rope,
                      TokenRange range) {
  const LayerKv& first = snapshot.layers.front();
  const uint64_t row = is_key ? first.k.channels() : first.v->channels();
  CacheRows rows{{}, range.end - range.begin, row * snapshot.layers.size()};
  rows.values.resize(rows.tokens * rows.features);
  for (size_t l = 0; l < snapshot.layers.size(); ++l) {
    const LayerKv& layer = snapshot.layers[l];
    const std::vector<float> values =
        GatherFloats(is_key ? layer.k : *layer.v, range.begin, rows.tokens, Order::kTokenHeadDim);
    for (uint64_t t = 0; t < rows.tokens; ++t)
      std::copy_n(&values[t * row], row, &rows.values[t * rows.features + l * row]);
  }
  if (is_key) Unrotate(snapshot, rope, range, rows);
  return rows;
}

void Unrotate(const Snapshot& snapshot, const ModelRope* rope, TokenRange range, CacheRows& rows) {
  RequireRope(snapshot, rope);
  if (snapshot.key_rotation != KeyRotation::kUnrotated) Rotate(*rope, snapshot, range, true, rows);
}

void RotateToPositions(const Snapshot& snapshot, const ModelRope& rope, TokenRange range,
                       CacheRows& rows) {
  if (snapshot.key_rotation != KeyRotation::kUnrotated) Rotate(rope, snapshot, range, false, rows);
}

std::vector<uint64_t> Fingerprints(const Snapshot& snapshot) {
  const KvTensor& v = *snapshot.layers.back().v;
  std::vector<uint64_t> hashes;
  for (uint64_t t = kFingerprintTokens - 1; t < v.tokens(); t += kFingerprintTokens) {
    const std::vector<float> row = GatherFloats(v, t, 1, Order::kTokenHeadDim);
    hashes.push_back(Hash64(std::as_bytes(std::span(row))));
  }
  return hashes;
}

bool LearntFrom(const Transform& transform, const Snapshot& snapshot) {
  const std::vector<uint64_t> own = Fingerprints(snapshot), &seen = transform.fingerprints;
  const auto shared = static_cast<uint64_t>(std::count_if(own.begin(), own.end(), [&](uint64_t of) {
    return std::find(seen.begin(), seen.end(), of) != seen.end();
  }));
  return shared * kSharedPart > own.size();
}

}  // namespace kv::transform
