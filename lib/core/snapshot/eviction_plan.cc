// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/eviction_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"

namespace kv {
namespace {

// The first position of `kept` that is not in `held`, whose ranges ascend in both; positions from
// `next` on are held.
std::optional<uint64_t> FirstNotHeld(const KeepPlan& kept, const KeepPlan& held, uint64_t next) {
  auto at = held.begin();
  for (const KeepRange& range : kept) {
    uint64_t position = range.begin;
    while (position < std::min<uint64_t>(range.end(), next)) {
      while (at != held.end() && at->end() <= position) ++at;
      if (at == held.end() || at->begin > position) return position;
      position = at->end();
    }
  }
  return std::nullopt;
}

std::optional<std::string> WrongRanges(const KeepPlan& kept, uint64_t token) {
  uint64_t end = 0;
  for (size_t i = 0; i < kept.size(); ++i) {
    const KeepRange& range = kept[i];
    const std::string name =
        fmt::format("range {} of 'kept', [{}, {}],", i, range.begin, range.count);
    if (range.count == 0) return name + " is empty";
    if (range.begin < end) return name + " does not come after the one before";
    end = uint64_t{range.begin} + range.count;
    if (end > token + 1) {
      return name + fmt::format(" keeps position {}, after the event's token {}", end - 1, token);
    }
  }
  return std::nullopt;
}

uint64_t LayerBytes(const LayerKv& layer) {
  const uint64_t row = layer.k.row_bytes() + (layer.v ? layer.v->row_bytes() : 0);
  return row * layer.k.tokens();
}

}  // namespace

EvictionPlanWalk::EvictionPlanWalk(const Snapshot& snapshot) {
  for (const LayerKv& layer : snapshot.layers) {
    KV_ASSERT(layer.k.heads_known);
    State& state = layers_[layer.index];
    state.layer = &layer;
    state.units.resize(layer.k.heads);
    full_bytes_ += LayerBytes(layer);
  }
}

std::optional<std::string> EvictionPlanWalk::Apply(const PlanEvent& event) {
  const auto found = layers_.find(event.layer);
  if (found == layers_.end()) return "the snapshot has no such layer";
  State& state = found->second;
  if (auto wrong = WrongWith(event, state)) return wrong;
  state.by_head = event.kv_head.has_value();
  last_token_ = event.token;
  for (uint32_t head = 0; head < state.units.size(); ++head) {
    if (event.kv_head && *event.kv_head != head) continue;
    Unit& unit = state.units[head];
    unit.held.clear();
    for (const KeepRange& range : event.kept) Append(unit.held, range);
    unit.next = event.token + 1;
    ++unit.events;
    const uint64_t words[] = {event.token, unit.held.size()};
    unit.history.Update(std::as_bytes(std::span(words)));
    unit.history.Update(std::as_bytes(std::span(unit.held)));
  }
  return std::nullopt;
}

std::optional<std::string> EvictionPlanWalk::WrongWith(const PlanEvent& event,
                                                       const State& state) const {
  if (event.kv_head && *event.kv_head >= state.units.size()) {
    return fmt::format("the layer has {} kv heads", state.units.size());
  }
  if (state.by_head && *state.by_head != event.kv_head.has_value()) {
    return "some events of the layer name kv heads and others do not";
  }
  const uint64_t tokens = state.layer->k.tokens();
  if (event.token >= tokens) return fmt::format("the layer has {} tokens", tokens);
  if (event.token < last_token_) {
    return fmt::format("comes after an event at token {}: events go by time", last_token_);
  }
  const Unit& unit = state.units[event.kv_head.value_or(0)];
  if (unit.events > 0 && event.token + 1 == unit.next) {
    return "is the second one of this layer and head at this token";
  }
  if (auto wrong = WrongRanges(event.kept, event.token)) return wrong;
  if (const auto gone = FirstNotHeld(event.kept, unit.held, unit.next)) {
    return fmt::format("keeps position {}, which went before", *gone);
  }
  const uint64_t length = KeptTokens(unit.held) + event.token + 1 - unit.next;
  if (event.length_before && *event.length_before != length) {
    return fmt::format("'length_before' is {}, but {} tokens are held", *event.length_before,
                       length);
  }
  return std::nullopt;
}

std::vector<EvictionPlanWalk::Layer> EvictionPlanWalk::Layers() const {
  std::vector<Layer> layers;
  for (const auto& [index, state] : layers_) {
    Layer layer{index, state.by_head.value_or(false), 0, {}};
    for (const Unit& unit : state.units) {
      layer.events = std::max(layer.events, unit.events);
      layer.kept.push_back(state.layer->k.tokens() - unit.next + KeptTokens(unit.held));
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

double EvictionPlanWalk::kept_bytes() const {
  double bytes = 0;
  for (const Layer& layer : Layers()) {
    const State& state = layers_.at(layer.layer);
    uint64_t held = 0;
    for (const uint64_t tokens : layer.kept) held += tokens;
    const auto all = static_cast<double>(state.layer->k.tokens() * layer.kept.size());
    bytes += static_cast<double>(LayerBytes(*state.layer)) * static_cast<double>(held) / all;
  }
  return bytes;
}

bool EvictionPlanWalk::is_common() const {
  std::optional<std::pair<uint64_t, uint64_t>> first;
  for (const auto& [index, state] : layers_) {
    for (const Unit& unit : state.units) {
      const std::pair<uint64_t, uint64_t> history = {unit.events, unit.history.Digest()};
      if (!first) first = history;
      if (history != *first) return false;
    }
  }
  return true;
}

}  // namespace kv
