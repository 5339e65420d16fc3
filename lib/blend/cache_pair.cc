// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/blend/cache_pair.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/error.h"

namespace kv::blend {
namespace {

// How far each old key must turn to stand at its place in the prompt.
std::vector<int64_t> TurnsOf(const OldCache& old) {
  std::vector<int64_t> turns(old.rows.tokens());
  for (size_t t = 0; t < turns.size(); ++t) {
    turns[t] = static_cast<int64_t>(t) - (old.positions.empty() ? 0 : old.positions[t]);
  }
  return turns;
}

bool Any(const std::vector<int64_t>& turns) {
  return std::any_of(turns.begin(), turns.end(), [](int64_t turn) { return turn != 0; });
}

void RequireUniformHeads(const std::vector<KvRows::Layer>& layers) {
  for (const KvRows::Layer& layer : layers) {
    if (layer.k_dim == layers.front().k_dim) continue;
    throw Error(
        Finding::kUnsupportedLayout,
        fmt::format("keys of layer {} have {} values, those of layer {} {}: one RoPE does not "
                    "fit both",
                    layer.index, layer.k_dim, layers.front().index, layers.front().k_dim));
  }
}

}  // namespace

CachePair::CachePair(FullCache full, OldCache old, std::optional<Rope> rope)
    : full_(std::move(full)), old_(std::move(old)), rope_(rope) {
  const std::vector<int64_t> old_turns = TurnsOf(old_);
  const bool turn_old = Any(old_turns);
  if (!turn_old && !full_.unrotated) return;
  if (!rope_) {
    throw Error(Finding::kUsage,
                fmt::format("keys of the {} must be turned to the prompt's positions: --rope-base "
                            "and --rope-style say how",
                            turn_old ? "chunks" : "full run"))
        .Hint("--gguf MODEL knows them; config.json has rope_theta (10000 if it does not say)");
  }
  RequireUniformHeads(layers());
  const uint32_t dim = layers().front().k_dim;
  RequireFit(*rope_, dim);
  if (turn_old) turn_old_.emplace(*rope_, dim, old_turns);
  if (full_.unrotated) {
    std::vector<int64_t> positions(tokens());
    for (size_t t = 0; t < positions.size(); ++t) positions[t] = static_cast<int64_t>(t);
    turn_full_.emplace(*rope_, dim, positions);
  }
}

std::optional<size_t> CachePair::Place(uint32_t layer) const {
  for (size_t i = 0; i < layers().size(); ++i) {
    if (layers()[i].index == layer) return i;
  }
  return std::nullopt;
}

DType CachePair::dtype() const {
  return full_.rows.parts().front().snapshot->layers.front().v->dtype;
}

uint64_t CachePair::bytes() const { return full_.rows.bytes() + old_.rows.bytes(); }

void CachePair::ReadFull(size_t layer, bool is_value, uint64_t begin, uint64_t count,
                         float* out) const {
  full_.rows.Read(layer, is_value, begin, count, out);
  if (is_value || !turn_full_) return;
  const KvRows::Layer& shape = layers()[layer];
  for (uint64_t t = 0; t < count; ++t) {
    turn_full_->Rotate(begin + t, shape.heads, out + t * shape.channels(false));
  }
}

void CachePair::TurnAgain(size_t layer, uint64_t begin, uint64_t count, float* keys) const {
  if (!turn_old_) return;
  const KvRows::Layer& shape = layers()[layer];
  for (uint64_t t = 0; t < count && begin + t < covered(); ++t) {
    turn_old_->Rotate(begin + t, shape.heads, keys + t * shape.channels(false));
  }
}

void CachePair::ReadOld(size_t layer, bool is_value, uint64_t begin, uint64_t count,
                        float* out) const {
  const uint64_t end = std::clamp(covered(), begin, begin + count);
  if (end > begin) old_.rows.Read(layer, is_value, begin, end - begin, out);
  if (!is_value) TurnAgain(layer, begin, end - begin, out);
  if (end == begin + count) return;
  ReadFull(layer, is_value, end, begin + count - end,
           out + (end - begin) * layers()[layer].channels(is_value));
}

std::vector<float> CachePair::FullHead(size_t layer, bool is_value, uint32_t head) const {
  const KvRows::Layer& shape = layers()[layer];
  const uint64_t dim = is_value ? shape.v_dim : shape.k_dim;
  std::vector<float> values(tokens() * dim);
  full_.rows.ReadHead(layer, is_value, head, 0, tokens(), values.data());
  if (!is_value && turn_full_) {
    for (uint64_t t = 0; t < tokens(); ++t) turn_full_->Rotate(t, 1, &values[t * dim]);
  }
  return values;
}

std::vector<float> CachePair::OldHead(size_t layer, bool is_value, uint32_t head) const {
  const KvRows::Layer& shape = layers()[layer];
  const uint64_t dim = is_value ? shape.v_dim : shape.k_dim;
  // Where no chunk covers the prompt, the full run's values stay.
  std::vector<float> values =
      covered() == tokens() ? std::vector<float>(tokens() * dim) : FullHead(layer, is_value, head);
  old_.rows.ReadHead(layer, is_value, head, 0, covered(), values.data());
  if (!is_value && turn_old_) {
    for (uint64_t t = 0; t < covered(); ++t) turn_old_->Rotate(t, 1, &values[t * dim]);
  }
  return values;
}

void CachePair::Drop(size_t layer) const {
  full_.rows.Drop(layer);
  old_.rows.Drop(layer);
}

}  // namespace kv::blend
