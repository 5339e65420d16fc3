// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/core/base/dtype.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/store/object.h"

// The record of a state: its files as runs of objects, and what `list` says of it (FORMAT.md).
namespace kv::store {

// Tensors that are not stored token by token are put together in memory.
constexpr uint64_t kMostOfTensor = 1 << 30;

// An object, and how much of its extent it fills: tokens of a tensor, bytes of anything else.
struct Piece {
  ObjectId id = {};
  uint64_t count = 0;
};

// What a file is made of, from its first byte to its last.
struct Extent {
  enum class Kind : uint8_t { kLiteral = 0, kOpaque = 1, kTensor = 2 };

  Kind kind = Kind::kLiteral;
  Bytes literal;             // a few bytes, as they are
  DType dtype = DType::kU8;  // of kOpaque and kTensor
  uint64_t bytes = 0;        // of kOpaque
  // Of kTensor. Objects hold rows, [token][head][unit], whatever the order in the file.
  uint32_t layer = 0, heads = 0, units = 0;
  bool is_value = false;
  Order order = Order::kTokenHeadDim;
  uint64_t token_begin = 0, tokens = 0;
  std::vector<Piece> pieces;

  uint64_t row_bytes() const { return uint64_t{heads} * units * Info(dtype).block_bytes; }
  uint64_t size() const;
  uint64_t BytesOf(const Piece& piece) const;
  // Whether the objects, one after another, are the extent.
  bool in_order() const { return kind == Kind::kOpaque || order == Order::kTokenHeadDim; }
  // Whether it is the same part of a cache, however long that is.
  bool SamePart(const Extent& other) const;
};

struct StoredFile {
  std::string name;  // empty if the state is a single file
  uint64_t size = 0, hash = 0;
  bool executable = false;
  std::vector<Extent> extents;
};

struct StateRecord {
  uint64_t id = 0;
  std::string name;
  int64_t added_us = 0;  // since 1970
  std::string format, model, geometry;
  uint64_t tokens = 0, layers = 0, source_bytes = 0, source_hash = 0;
  // What came into the store with it, this record left out.
  uint64_t own_bytes = 0;
  Effort level = Effort::kDefault;
  ObjectId guide = {};  // of its first rows; zeros if it has none
  bool is_folder = false;
  std::vector<StoredFile> files;
  std::vector<std::string> empty_folders;
};

// Calls `use` with each object of a state and its extent.
template <typename Use>
void ForEachPiece(const StateRecord& record, const Use& use) {
  for (const StoredFile& file : record.files) {
    for (const Extent& extent : file.extents) {
      for (const Piece& piece : extent.pieces) use(extent, piece);
    }
  }
}

Bytes Encode(const StateRecord& record);
// Throws kTruncated, kBadMagic, kChecksum, kUnsupportedVersion, kBadField, kUnsafeName, kLimit,
// kTrailingBytes.
StateRecord DecodeState(ByteSpan bytes);
// Whether a state may have this name: it becomes that of a file.
bool IsStateName(std::string_view name);

// How a source is cut into pieces, so that those of another state are met again.

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
