// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/residency.h"

#include <algorithm>

namespace kv {
namespace {

const FileSource* HolderOf(const Snapshot& snapshot, const std::byte* p) {
  if (const SourceFile* file = snapshot.source.FileOf(p)) return file->data.get();
  for (const auto& spool : snapshot.spools) {
    if (spool->Contains(p)) return spool.get();
  }
  return nullptr;
}

// From the first to the last byte of a run of tokens, whatever lies between.
void DropRange(const Snapshot& snapshot, const KvTensor& tensor, const StridedPiece& piece,
               uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  const FileSource* file = HolderOf(snapshot, piece.data);
  if (file == nullptr) return;
  const uint64_t last = piece.token.Offset(end - 1) + piece.head.Offset(tensor.heads - 1) +
                        piece.dim.Offset(tensor.units_per_head() - 1) + tensor.unit_bytes();
  const uint64_t first = piece.token.Offset(begin);
  file->Drop(file->OffsetOf(piece.data) + first, last - first);
}

}  // namespace

void DropTokens(const Snapshot& snapshot, const KvTensor& tensor, uint64_t begin, uint64_t count) {
  uint64_t piece_begin = 0;
  for (const StridedPiece& piece : tensor.pieces) {
    const bool rows = piece.token.step >= piece.head.step * (tensor.heads - 1) &&
                      piece.token.step >= piece.dim.step && piece.token.group == UINT64_MAX;
    const uint64_t from = std::max(begin, piece_begin),
                   to = std::min(begin + count, piece_begin + piece.tokens);
    if (rows && from < to) {
      DropRange(snapshot, tensor, piece, from - piece_begin, to - piece_begin);
    }
    piece_begin += piece.tokens;
  }
}

void DropTensor(const Snapshot& snapshot, const KvTensor& tensor) {
  for (const StridedPiece& piece : tensor.pieces)
    DropRange(snapshot, tensor, piece, 0, piece.tokens);
}

}  // namespace kv
