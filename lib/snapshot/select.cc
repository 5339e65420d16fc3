// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/snapshot/select.h"

#include <fmt/format.h>

#include <algorithm>

namespace kv {
namespace {

// Tokens [begin, end) of one piece. Grouped token axes are cut at group borders, so that every part
// starts at an offset that its strides can express.
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

}  // namespace

bool Selection::HasLayer(uint32_t layer) const {
  return !layers || std::binary_search(layers->begin(), layers->end(), layer);
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
        throw Error(Finding::kUsage, fmt::format("--layers: there is no layer {}", layer))
            .File(snapshot.source.path);
      }
    }
    std::erase_if(snapshot.layers,
                  [&](const LayerKv& layer) { return !selection.HasLayer(layer.index); });
  }
  bool any = false;
  uint64_t most = 0;
  for (LayerKv& layer : snapshot.layers) {
    const uint64_t tokens = layer.has_k() || !layer.v ? layer.k.tokens() : layer.v->tokens();
    const uint64_t end = std::min(selection.token_end, tokens);
    const uint64_t begin = std::min(selection.token_begin, end);
    any |= begin < end;
    most = std::max(most, tokens);
    if (layer.has_k()) layer.k = SliceTokens(layer.k, begin, end - begin);
    if (layer.v) layer.v = SliceTokens(*layer.v, begin, end - begin);
  }
  if (!any) {
    throw Error(Finding::kUsage,
                fmt::format("--tokens: no layer has tokens from {} on", selection.token_begin))
        .File(snapshot.source.path);
  }
  if (snapshot.tokens.size() == most) {  // else the list is not one id per row
    const auto first = snapshot.tokens.begin();
    const auto at = [&](uint64_t token) {
      return first + static_cast<std::ptrdiff_t>(std::min(token, most));
    };
    snapshot.tokens = std::vector<int32_t>(at(selection.token_begin), at(selection.token_end));
  }
  for (CellGroup& group : snapshot.cell_groups) {
    const auto end = group.cells.begin() + static_cast<std::ptrdiff_t>(std::min<uint64_t>(
                                               selection.token_end, group.cells.size()));
    group.cells.erase(end, group.cells.end());
    group.cells.erase(group.cells.begin(),
                      group.cells.begin() + static_cast<std::ptrdiff_t>(std::min<uint64_t>(
                                                selection.token_begin, group.cells.size())));
  }
  return snapshot;
}

}  // namespace kv
