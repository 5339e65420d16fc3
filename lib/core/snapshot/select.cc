// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/select.h"

#include <algorithm>
#include <map>

#include "lib/core/base/error.h"

namespace kv {
namespace {

// Appends tokens [begin, end) of one piece. Grouped token axes are cut at group borders, so that
// every part starts at an offset that its strides can express.
void SlicePiece(const StridedPiece& piece, uint64_t begin, uint64_t end,
                std::vector<StridedPiece>& out) {
  while (begin < end) {
    StridedPiece part = piece;
    part.data = piece.data + piece.token.Offset(begin);
    const uint64_t group = piece.token.group;
    const bool aligned = group == UINT64_MAX || begin % group == 0;
    const uint64_t part_end = aligned ? end : std::min(end, (begin / group + 1) * group);
    if (!aligned) part.token = {piece.token.step};
    part.tokens = part_end - begin;
    out.push_back(part);
    begin = part_end;
  }
}

// Keeps the selected cells, with the engine's extensions of them.
void KeepCells(const std::vector<bool>& keep, CellGroup& group) {
  const uint32_t words = group.extension_words;
  size_t to = 0;
  for (size_t i = 0; i < keep.size(); ++i) {
    if (!keep[i]) continue;
    if (to != i) {
      group.cells[to] = std::move(group.cells[i]);
      std::copy_n(group.extensions.begin() + static_cast<std::ptrdiff_t>(i * words), words,
                  group.extensions.begin() + static_cast<std::ptrdiff_t>(to * words));
    }
    ++to;
  }
  group.cells.resize(to);
  group.extensions.resize(to * words);
}

KvTensor KeepTokens(const KvTensor& tensor, const std::vector<bool>& keep) {
  KvTensor kept = tensor;
  kept.pieces.clear();
  for (uint64_t begin = 0, end; begin < keep.size(); begin = end) {
    end = begin + 1;
    if (!keep[begin]) continue;
    while (end < keep.size() && keep[end]) ++end;
    const KvTensor run = SliceTokens(tensor, begin, end - begin);
    kept.pieces.insert(kept.pieces.end(), run.pieces.begin(), run.pieces.end());
  }
  return kept;
}

// Returns which of the first `count` tokens are selected.
std::vector<bool> SelectTokens(const Selection& selection, uint64_t count) {
  std::vector<bool> keep(count);
  for (const TokenRange& range : selection.tokens) {
    for (uint64_t i = range.begin; i < std::min(range.end, count); ++i) keep[i] = true;
  }
  return keep;
}

}  // namespace

bool Selection::HasLayer(uint32_t layer) const {
  return !layers || std::binary_search(layers->begin(), layers->end(), layer);
}

bool Selection::HasTokens(uint64_t begin, uint64_t end) const {
  return tokens.empty() || std::any_of(tokens.begin(), tokens.end(), [&](const TokenRange& range) {
           return begin < range.end && range.begin < end;
         });
}

KvTensor SliceTokens(const KvTensor& tensor, uint64_t begin, uint64_t count) {
  KV_ASSERT(begin + count <= tensor.tokens());
  KvTensor sliced = tensor;
  sliced.pieces.clear();
  uint64_t piece_begin = 0;
  for (const StridedPiece& piece : tensor.pieces) {
    const uint64_t from = std::max(begin, piece_begin),
                   to = std::min(begin + count, piece_begin + piece.tokens);
    if (from < to) SlicePiece(piece, from - piece_begin, to - piece_begin, sliced.pieces);
    piece_begin += piece.tokens;
  }
  return sliced;
}

Snapshot Select(Snapshot snapshot, const Selection& selection) {
  if (selection.is_all()) return snapshot;
  if (selection.layers) {
    for (const uint32_t layer : *selection.layers) {
      if (snapshot.Find(layer) == nullptr) {
        throw Error(Finding::kUsage, "--layers: there is no layer {}", layer)
            .File(snapshot.source.path);
      }
    }
    std::erase_if(snapshot.layers,
                  [&](const LayerKv& layer) { return !selection.HasLayer(layer.index); });
  }
  if (selection.tokens.empty()) return snapshot;
  uint64_t most = 0;
  for (LayerKv& layer : snapshot.layers) {
    const uint64_t tokens = layer.has_k() || !layer.v ? layer.k.tokens() : layer.v->tokens();
    most = std::max(most, tokens);
    const std::vector<bool> keep = SelectTokens(selection, tokens);
    if (layer.has_k()) layer.k = KeepTokens(layer.k, keep);
    if (layer.v) layer.v = KeepTokens(*layer.v, keep);
  }
  if (!selection.HasTokens(0, most)) {
    throw Error(Finding::kUsage, "--tokens: no layer has tokens from {} on",
                selection.tokens.front().begin)
        .File(snapshot.source.path);
  }
  if (snapshot.tokens.size() == most) {  // otherwise ids do not match rows one to one
    const std::vector<bool> keep = SelectTokens(selection, most);
    size_t to = 0;
    for (size_t i = 0; i < keep.size(); ++i) {
      if (keep[i]) snapshot.tokens[to++] = snapshot.tokens[i];
    }
    snapshot.tokens.resize(to);
  }
  for (CellGroup& group : snapshot.cell_groups) {
    KeepCells(SelectTokens(selection, group.cells.size()), group);
  }
  return snapshot;
}

Snapshot SelectSequence(Snapshot snapshot, int32_t sequence) {
  std::map<std::string, std::vector<bool>> kept;
  uint64_t count = 0;
  for (CellGroup& group : snapshot.cell_groups) {
    std::vector<bool>& keep = kept[group.group];
    for (Cell& cell : group.cells) {
      const auto ids = cell.sequences.ids();
      keep.push_back(std::find(ids.begin(), ids.end(), sequence) != ids.end());
      count += keep.back();
    }
    // The token list does not say which sequence it belongs to, so a cut cache loses it.
    if (std::find(keep.begin(), keep.end(), false) != keep.end()) snapshot.tokens.clear();
    KeepCells(keep, group);
    for (Cell& cell : group.cells) cell.sequences = {sequence};
  }
  if (count == 0) {
    throw Error(Finding::kUsage, "--sequence {}: no cell of the cache belongs to it", sequence)
        .File(snapshot.source.path);
  }
  for (LayerKv& layer : snapshot.layers) {
    const auto keep = kept.find(layer.group);
    for (KvTensor* tensor : {&layer.k, layer.v ? &*layer.v : nullptr}) {
      if (tensor == nullptr || tensor->pieces.empty()) continue;
      if (keep == kept.end() || keep->second.size() != tensor->tokens()) {
        throw Error(Finding::kUnsupportedLayout, "it is not recorded which sequence its rows hold")
            .In("layer {}", layer.index)
            .File(snapshot.source.path);
      }
      *tensor = KeepTokens(*tensor, keep->second);
    }
  }
  return snapshot;
}

uint64_t KeptTokens(const KeepPlan& plan) {
  uint64_t tokens = 0;
  for (const KeepRange& range : plan) tokens += range.count;
  return tokens;
}

bool IsApplicable(const KeepPlan& plan, uint64_t length) {
  uint64_t previous_end = 0;
  for (const KeepRange& range : plan) {
    const uint64_t end = uint64_t{range.begin} + range.count;
    if (range.count == 0 || range.begin < previous_end || end > length) return false;
    previous_end = end;
  }
  return true;
}

void Append(KeepPlan& plan, KeepRange range) {
  if (range.count == 0) return;
  if (!plan.empty() && plan.back().end() == range.begin) {
    plan.back().count += range.count;
  } else {
    plan.push_back(range);
  }
}

KeepPlan MakeKeepPlan(std::span<const uint32_t> sorted_tokens) {
  KeepPlan plan;
  for (const uint32_t token : sorted_tokens) Append(plan, {token, 1});
  return plan;
}

std::vector<uint32_t> ListTokens(const KeepPlan& plan) {
  std::vector<uint32_t> tokens;
  tokens.reserve(KeptTokens(plan));
  for (const KeepRange& range : plan) {
    for (uint32_t i = 0; i < range.count; ++i) tokens.push_back(range.begin + i);
  }
  return tokens;
}

KeepPlan Select(const KeepPlan& positions, const KeepPlan& kept) {
  KeepPlan result;
  size_t piece = 0;
  uint64_t piece_begin = 0;  // index of the piece's first token in the cache
  for (const KeepRange& range : kept) {
    for (uint32_t done = 0; done < range.count;) {
      const uint64_t index = uint64_t{range.begin} + done;
      while (piece < positions.size() && index >= piece_begin + positions[piece].count) {
        piece_begin += positions[piece++].count;
      }
      KV_ASSERT(piece < positions.size());
      const auto skip = static_cast<uint32_t>(index - piece_begin);
      const uint32_t count = std::min(range.count - done, positions[piece].count - skip);
      Append(result, {positions[piece].begin + skip, count});
      done += count;
    }
  }
  return result;
}

}  // namespace kv
