// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <vector>

#include "lib/core/snapshot/snapshot.h"
#include "lib/store/state.h"

// How a source is cut into pieces, so that those of another state are met again.
namespace kv::store {

// A tail of fewer tokens than this is not kept as it is when a state grows.
constexpr uint64_t kShortTokens = 64;

// The files of a source in extents without pieces. `snapshot`, if given, is the source as a format
// reads it.
std::vector<StoredFile> ExtentsOf(const Source& source, const Snapshot* snapshot);

// Copy rows [begin, begin + count) of a tensor between their places in the file and [token][head]
// [unit].
void GatherRows(const Extent& extent, ByteSpan bytes, uint64_t begin, uint64_t count,
                std::span<std::byte> rows);
void ScatterRows(const Extent& extent, ByteSpan rows, uint64_t begin, uint64_t count,
                 std::span<std::byte> bytes);

// Where the piece that begins at `begin` ends: at a multiple of `block_tokens`, so that states meet
// which have only their beginning in common, but no piece is short if that can be.
uint64_t EndOfPiece(const Extent& extent, uint64_t begin, uint64_t block_tokens);
// Whether a piece of an earlier state is worth being kept, where this one goes on behind it.
bool IsWorthKeeping(const Extent& extent, uint64_t begin, uint64_t count, uint64_t block_tokens);

// By what states are found that begin alike: the hash of the first rows of the last tensor, on
// which all that came before has left its mark. Zeros where there are too few.
struct Guide {
  const StoredFile* file = nullptr;
  const Extent* extent = nullptr;
  uint64_t offset = 0;  // of the extent in its file
  ObjectId id = {};
};
Guide GuideOf(const Source& source, const std::vector<StoredFile>& files);

}  // namespace kv::store
