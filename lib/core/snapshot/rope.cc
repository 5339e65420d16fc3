// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/rope.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <tuple>

#include "lib/core/base/error.h"

namespace kv {

RopePairs ParsePairs(std::string_view text) {
  if (text == "neox") return RopePairs::kHalves;
  if (text == "gptj") return RopePairs::kNeighbours;
  throw Error(Finding::kUsage, fmt::format("--rope-style '{}': expected neox or gptj", text));
}

std::string_view Name(RopePairs pairs) { return pairs == RopePairs::kHalves ? "neox" : "gptj"; }

void RequireFit(const Rope& rope, uint32_t head_dim) {
  if (!(rope.theta > 0) || !std::isfinite(rope.theta)) {
    throw Error(Finding::kUsage,
                fmt::format("--rope-base {}: expected a positive number", rope.theta));
  }
  const uint32_t dim = rope.DimOf(head_dim);
  if (dim > head_dim || dim % 2 != 0) {
    throw Error(
        Finding::kUsage,
        fmt::format(
            "RoPE rotates {} values of a head, which has {}: expected an even number up to that",
            dim, head_dim))
        .Hint("--rope-dims, --head-dim");
  }
  InverseFrequencies(rope, head_dim);  // has the lists of pairs checked
  if (rope.scaling.by_length()) InverseFrequencies(rope, head_dim, UINT64_MAX);
}

void RequireOneSetOfFrequencies(const Rope& rope, uint64_t tokens, std::string_view what) {
  if (!rope.scaling.by_length() || static_cast<double>(tokens) <= rope.scaling.original) return;
  throw std::move(
      Error(Finding::kUnsupportedKind,
            fmt::format("{}: with RoPE scaling {} the frequencies of keys go by how long the run "
                        "was when they were computed, beyond {} tokens; this one has {}",
                        what, Name(rope.scaling), rope.scaling.original, tokens))
          .Hint("--rope-freqs FILE says which frequencies all keys were rotated by"));
}

std::vector<KeyTurn> TurnsBack(std::span<const int64_t> positions, uint64_t length) {
  std::vector<KeyTurn> turns;
  turns.reserve(positions.size());
  for (const int64_t position : positions) turns.push_back({position, 0, length, length, false});
  return turns;
}

RopeTable::RopeTable(const Rope& rope, uint32_t head_dim, std::span<const KeyTurn> turns)
    : style_(rope.pairs), head_dim_(head_dim), pairs_(rope.DimOf(head_dim) / 2) {
  Add(turns, rope);
}

RopeTable::RopeTable(const Rope& rope, uint32_t head_dim, std::span<const int64_t> positions)
    : style_(rope.pairs), head_dim_(head_dim), pairs_(rope.DimOf(head_dim) / 2) {
  std::vector<KeyTurn> turns(positions.size());
  for (size_t i = 0; i < turns.size(); ++i) turns[i].to = positions[i];
  Add(turns, rope);
}

void RopeTable::Add(std::span<const KeyTurn> turns, const Rope& rope) {
  const bool by_length = rope.scaling.by_length();
  const double factor = AttentionFactor(rope.scaling);
  std::map<uint64_t, std::vector<double>> of_length;
  const auto frequencies = [&](uint64_t length) -> const std::vector<double>& {
    if (!by_length) length = 0;
    const auto at = of_length.find(length);
    if (at != of_length.end()) return at->second;
    return of_length.emplace(length, InverseFrequencies(rope, head_dim_, length)).first->second;
  };
  std::map<std::tuple<int64_t, int64_t, uint64_t, uint64_t, bool>, uint32_t> rows;
  row_of_.reserve(turns.size());
  for (const KeyTurn& turn : turns) {
    const bool same_run = !by_length || turn.is_first || turn.from_length == turn.to_length;
    const double scale = turn.is_first ? factor : 1;
    const int64_t from = turn.is_first ? 0 : turn.from;
    if (scale == 1 && same_run && turn.to == from) {
      row_of_.push_back(kStays);
      continue;
    }
    // Within a run only the difference matters.
    const auto key = same_run ? std::tuple(turn.to - from, int64_t{0}, turn.to_length,
                                           turn.to_length, turn.is_first)
                              : std::tuple(turn.to, from, turn.to_length, turn.from_length, false);
    const auto [row, is_new] = rows.emplace(key, static_cast<uint32_t>(rows.size()));
    row_of_.push_back(row->second);
    if (!is_new) continue;
    const std::vector<double>& there = frequencies(turn.to_length);
    const std::vector<double>& here = same_run ? there : frequencies(turn.from_length);
    for (uint32_t i = 0; i < pairs_; ++i) {
      const double angle =
          same_run ? static_cast<double>(turn.to - from) * there[i]
                   : static_cast<double>(turn.to) * there[i] - static_cast<double>(from) * here[i];
      cosines_.push_back(std::cos(angle) * scale);
      sines_.push_back(std::sin(angle) * scale);
    }
  }
}

void RopeTable::Rotate(size_t token, uint32_t heads, float* row) const {
  if (row_of_[token] == kStays) return;
  const size_t at = size_t{row_of_[token]} * pairs_;
  for (uint32_t h = 0; h < heads; ++h) {
    RotatePairs(row + size_t{h} * head_dim_, pairs_, style_, &cosines_[at], &sines_[at]);
  }
}

}  // namespace kv
