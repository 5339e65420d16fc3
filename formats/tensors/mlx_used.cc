// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/mlx_used.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"

namespace kv::mlx {
namespace {

Error BadNumbers(std::string what) { return Error(Finding::kBadField, std::move(what)); }

Used UsedOfPlain(const LayerState& layer, uint64_t room) {
  const uint64_t offset = layer.numbers.empty() ? room : layer.numbers[0];
  if (offset > room)
    throw BadNumbers(fmt::format("offset {}, but room for {} tokens", offset, room));
  return {{{0, offset}}, offset, offset, offset};
}

// What was before the start was cut off. Former versions do not save how much of the rest is used,
// which only a cache from which nothing was cut still tells.
Used UsedOfChunked(const LayerState& layer, uint64_t room, bool in_arrays) {
  const auto& n = layer.numbers;
  if (n.size() != (in_arrays ? 3 : 2))
    throw BadNumbers(fmt::format("a chunk needs {} numbers, not {}", in_arrays ? 3 : 2, n.size()));
  const uint64_t start = n[in_arrays ? 2 : 1];
  if (!in_arrays && start != 0) {
    throw std::move(
        Error(Finding::kUnsupportedKind,
              fmt::format("starts at position {}, and its version of mlx-lm does not save where it "
                          "ends",
                          start))
            .Hint("make it anew with mlx-lm 0.32 or later, or archive the file with --from "
                  "opaque"));
  }
  const uint64_t offset = in_arrays ? n[0] : room;
  if (start > offset || offset - start > room)
    throw BadNumbers(
        fmt::format("start {} and offset {}, but room for {} tokens", start, offset, room));
  return {{{0, offset - start}}, offset - start, 0, offset};
}

// The numbers of a ring, whose order has changed.
struct Ring {
  uint64_t offset, keep, most, index;
};

Ring RingOf(const LayerState& layer, bool in_arrays) {
  const auto& n = layer.numbers;
  if (in_arrays && n.size() == 4) return {n[0], n[1], n[2], n[3]};
  if (!in_arrays && n.size() == 4) return {n[2], n[0], n[1], n[3]};
  if (!in_arrays && n.size() == 5) return {n[3], n[0], n[1], n[4]};
  throw BadNumbers(fmt::format("a ring needs 4 or 5 numbers, not {}", n.size()));
}

void CheckPlace(uint64_t index, uint64_t room) {
  if (index > room) throw BadNumbers(fmt::format("the ring's next place is {} of {}", index, room));
}

Used UsedOfRing(const Ring& ring, uint64_t room) {
  CheckPlace(ring.index, room);
  Used used{{}, room, 0, ring.offset};
  if (ring.index == room) {
    used.runs = {{0, room}};
  } else if (ring.index >= ring.offset) {
    used.runs = {{0, ring.index}};
    used.tokens = ring.index;
  } else {
    if (ring.keep > ring.index)
      throw BadNumbers(fmt::format("the ring's next place {} lies among the {} kept tokens",
                                   ring.index, ring.keep));
    used.runs = {{0, ring.keep}, {ring.index, room}, {ring.keep, ring.index}};
  }
  if (used.tokens > ring.offset)
    throw BadNumbers(fmt::format("holds {} tokens, but saw {}", used.tokens, ring.offset));
  used.kept = used.tokens == ring.offset ? used.tokens : std::min(ring.keep, used.tokens);
  return used;
}

// A row's padding is before its tokens, so far as a ring has not overwritten it.
Used WithoutPadding(std::vector<Used::Run> runs, uint64_t padding, uint64_t offset) {
  Used used{{}, 0, 0, offset};
  for (Used::Run run : runs) {
    const uint64_t cut = std::min(padding, run.end - run.begin);
    padding -= cut;
    run.begin += cut;
    used.tokens += run.end - run.begin;
    used.runs.push_back(run);
  }
  if (padding > 0) throw BadNumbers("a row has more padding than tokens");
  if (used.tokens > offset)
    throw BadNumbers(fmt::format("a row holds {} tokens, but saw {}", used.tokens, offset));
  return used;
}

Used UsedOfBatch(const LayerState& layer, uint64_t room, std::optional<uint64_t> row) {
  const auto& n = layer.numbers;
  std::vector<Used::Run> runs;
  if (layer.kind == LayerClass::kBatchRing) {
    if (n.size() != 4)
      throw BadNumbers(fmt::format("a ring of a batch needs 4 numbers, not {}", n.size()));
    const uint64_t index = n[2];
    CheckPlace(index, room);
    runs = n[3] != 0 ? std::vector<Used::Run>{{index, room}, {0, index}}
                     : std::vector<Used::Run>{{0, index}};
  } else {
    const uint64_t index = n.empty() ? room : n[0];
    if (index > room) throw BadNumbers(fmt::format("{} tokens, but room for {}", index, room));
    runs = {{0, index}};
  }
  if (!row) {
    uint64_t tokens = 0;
    for (const Used::Run& run : runs) tokens += run.end - run.begin;
    return {std::move(runs), tokens, tokens, tokens};
  }
  const int64_t offset = layer.offsets.at(*row), padding = layer.paddings.at(*row);
  if (offset < 0) throw BadNumbers(fmt::format("row {} ends at {}", *row, offset));
  Used used = WithoutPadding(std::move(runs), static_cast<uint64_t>(std::max<int64_t>(padding, 0)),
                             static_cast<uint64_t>(offset));
  if (layer.kind == LayerClass::kBatch && used.tokens != used.offset)
    throw BadNumbers(
        fmt::format("row {} holds {} tokens and ends at {}", *row, used.tokens, offset));
  return used;
}

}  // namespace

Used UsedOf(const LayerState& layer, uint64_t room, bool in_arrays, std::optional<uint64_t> row) {
  switch (layer.kind) {
    case LayerClass::kRing:
      return UsedOfRing(RingOf(layer, in_arrays), room);
    case LayerClass::kChunked:
      return UsedOfChunked(layer, room, in_arrays);
    case LayerClass::kBatch:
    case LayerClass::kBatchRing:
      return UsedOfBatch(layer, room, row);
    default:
      return UsedOfPlain(layer, room);
  }
}

}  // namespace kv::mlx
