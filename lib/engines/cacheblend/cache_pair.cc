// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/cacheblend/cache_pair.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"

namespace kv::blend {
namespace {

// From where each old key must turn to its place in the prompt. A chunk's run was as long as its
// last position says; that of keys at the prompt's positions was the prompt.
std::vector<KeyTurn> TurnsOf(const OldCache& old, uint64_t prompt) {
  std::vector<KeyTurn> turns(old.rows.tokens());
  for (size_t t = 0; t < turns.size(); ++t) {
    const bool first = old.positions.empty();
    turns[t] = {first ? 0 : old.positions[t], static_cast<int64_t>(t), prompt, prompt, first};
  }
  if (old.positions.empty() || old.state == KeyState::kGlobal) return turns;
  for (const Chunk& chunk : old.chunks) {
    const uint64_t end = std::min<uint64_t>(chunk.start + chunk.tokens, turns.size());
    if (chunk.start >= end) continue;
    const uint64_t length = static_cast<uint64_t>(std::max<int64_t>(old.positions[end - 1], 0)) + 1;
    for (uint64_t t = chunk.start; t < end; ++t) turns[t].from_length = length;
  }
  return turns;
}

// Whether keys must turn: by their positions, or because runs of other lengths turn otherwise.
bool Any(const std::vector<KeyTurn>& turns, bool by_length) {
  return std::any_of(turns.begin(), turns.end(), [&](const KeyTurn& turn) {
    return turn.from != turn.to || (by_length && turn.from_length != turn.to_length);
  });
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

CachePair::CachePair(FullCache full, OldCache old, std::optional<ModelRope> rope)
    : full_(std::move(full)), old_(std::move(old)), rope_(std::move(rope)) {
  const std::vector<KeyTurn> old_turns = TurnsOf(old_, tokens());
  const bool by_length =
      rope_ && (rope_->rope.scaling.by_length() ||
                std::any_of(rope_->layers.begin(), rope_->layers.end(),
                            [](const Rope& rope) { return rope.scaling.by_length(); }));
  const bool turn_old = Any(old_turns, by_length);
  if (!turn_old && !full_.unrotated) return;
  if (!rope_) {
    throw Error(Finding::kUsage, fmt::format("keys of the {} must be rotated to the prompt's "
                                             "positions: give --rope-base and --rope-style",
                                             turn_old ? "chunks" : "full run"))
        .Hint(
            "--model reads them from a GGUF or a config.json; --rope-freqs FILE supplies the "
            "frequencies");
  }
  RequireUniformHeads(layers());
  if (turn_old) turn_old_ = MakeTurns(old_turns);
  if (!full_.unrotated) return;
  std::vector<KeyTurn> turns(tokens());
  for (size_t t = 0; t < turns.size(); ++t)
    turns[t] = {0, static_cast<int64_t>(t), tokens(), tokens(), /*is_first=*/true};
  turn_full_ = MakeTurns(turns);
}

CachePair::Turns CachePair::MakeTurns(std::span<const KeyTurn> turns) const {
  Turns made;
  std::vector<const Rope*> known;
  const std::vector<LayerKv>& stored = full_.rows.parts().front().snapshot->layers;
  for (size_t i = 0; i < layers().size(); ++i) {
    const KvRows::Layer& layer = layers()[i];
    const Rope& rope = rope_->Of(ModelNumber(stored[i]));
    size_t at = 0;
    while (at < known.size() && !(*known[at] == rope)) ++at;
    made.of_layer.push_back(at);
    if (at < known.size()) continue;
    RequireFit(rope, layer.k_dim);
    known.push_back(&rope);
    made.tables.emplace_back(rope, layer.k_dim, turns);
  }
  return made;
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
    turn_full_.Of(layer).Rotate(begin + t, shape.heads, out + t * shape.channels(false));
  }
}

void CachePair::TurnAgain(size_t layer, uint64_t begin, uint64_t count, float* keys) const {
  if (!turn_old_) return;
  const KvRows::Layer& shape = layers()[layer];
  for (uint64_t t = 0; t < count && begin + t < covered(); ++t) {
    turn_old_.Of(layer).Rotate(begin + t, shape.heads, keys + t * shape.channels(false));
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
    for (uint64_t t = 0; t < tokens(); ++t) turn_full_.Of(layer).Rotate(t, 1, &values[t * dim]);
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
    for (uint64_t t = 0; t < covered(); ++t) turn_old_.Of(layer).Rotate(t, 1, &values[t * dim]);
  }
  return values;
}

void CachePair::Drop(size_t layer) const {
  full_.rows.Drop(layer);
  old_.rows.Drop(layer);
}

}  // namespace kv::blend
