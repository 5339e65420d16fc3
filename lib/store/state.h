// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lib/core/base/dtype.h"
#include "lib/core/base/file.h"
#include "lib/core/base/hash.h"
#include "lib/core/codec/backends.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::store {

// Objects: pieces of states, each stored once and named by the hash of its bytes. Packs are the
// files that hold them (FORMAT.md).

// BLAKE2b of the decoded bytes. States may come from an adversary, so the hash must resist the
// construction of a second content.
using ObjectId = Hash256Bytes;

constexpr uint64_t kMaxObjectBytes = 16 << 20;
constexpr uint64_t kPackHeaderBytes = 16, kObjectHeadBytes = 104;

// The header before the payload of an object.
struct ObjectHead {
  ObjectId id = {};
  CodecId codec = CodecId::kRaw;
  Effort level = Effort::kDefault;
  ChunkShape shape;
  uint64_t raw_bytes = 0, raw_hash = 0, payload_bytes = 0, payload_hash = 0;

  uint64_t stored_bytes() const { return kObjectHeadBytes + payload_bytes; }
};

Bytes PackHeader();
// Throws kTruncated, kBadMagic, kUnsupportedVersion.
void CheckPackHeader(const FileSource& pack);
Bytes HeadBytes(const ObjectHead& head);
// Reads and checks the header of the object at `offset`, whose payload must lie in the pack. Throws
// kTruncated, kBadMagic, kChecksum, kBadField, kUnknownDtype, kLimit.
ObjectHead ReadObjectHead(const FileSource& pack, uint64_t offset);
// Returns the first offset, from `from` on, of an object; the size of the pack if there is none.
uint64_t FindObject(const FileSource& pack, uint64_t from);
// Checks the hash of the payload without decoding it. Throws kChecksum.
void CheckPayload(const FileSource& pack, uint64_t offset, const ObjectHead& head);
// Decodes the object at `offset` and checks everything except its id. Throws what ReadObjectHead
// throws and DecodeChunk, kChecksum.
void DecodeObject(const FileSource& pack, uint64_t offset, const ObjectHead& head,
                  CodecScratch& scratch, Bytes& raw);

// The record of a state: its files as runs of objects, and the facts that `list` shows (FORMAT.md).

// Tensors that are not stored token by token are assembled in memory, up to this size.
constexpr uint64_t kMostOfTensor = 1 << 30;

// An object, and how much of its extent it fills: tokens of a tensor, bytes of anything else.
struct Piece {
  ObjectId id = {};
  uint64_t count = 0;
};

// A part of a file; together the extents cover it from its first byte to its last.
struct Extent {
  enum class Kind : uint8_t { kLiteral = 0, kOpaque = 1, kTensor = 2 };

  Kind kind = Kind::kLiteral;
  Bytes literal;             // a few bytes, unchanged
  DType dtype = DType::kU8;  // type of kOpaque and kTensor
  uint64_t bytes = 0;        // bytes of kOpaque
  // Fields of kTensor. Objects hold rows, [token][head][unit], whatever the order in the file.
  uint32_t layer = 0, heads = 0, units = 0;
  bool is_value = false;
  Order order = Order::kTokenHeadDim;
  uint64_t token_begin = 0, tokens = 0;
  std::vector<Piece> pieces;

  uint64_t row_bytes() const { return uint64_t{heads} * units * Info(dtype).block_bytes; }
  uint64_t size() const;
  uint64_t BytesOf(const Piece& piece) const;
  // Returns true if the concatenated objects are the extent's bytes.
  bool in_order() const { return kind == Kind::kOpaque || order == Order::kTokenHeadDim; }
  // Returns true if both are the same tensor of a cache, whatever their lengths.
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
  // Size of the objects that this state brought into the store, without this record.
  uint64_t own_bytes = 0;
  Effort level = Effort::kDefault;
  ObjectId guide = {};  // id of the state's first rows; zeros if it has none
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
// Returns true if a state may have this name, which becomes a file name.
bool IsStateName(std::string_view name);

// Constants and functions that cut a source into pieces, so that another state contains the same
// pieces. A last piece of fewer tokens than this is not reused when a state grows.
constexpr uint64_t kShortTokens = 64;

// Returns the files of a source as extents without pieces. `snapshot`, if given, is the source as
// read by a format.
std::vector<StoredFile> CutIntoExtents(const Source& source, const Snapshot* snapshot);

// Copy rows [begin, begin + count) of a tensor between their places in the file and [token][head]
// [unit].
void GatherRows(const Extent& extent, ByteSpan bytes, uint64_t begin, uint64_t count,
                std::span<std::byte> rows);
void ScatterRows(const Extent& extent, ByteSpan rows, uint64_t begin, uint64_t count,
                 std::span<std::byte> bytes);

// Returns the end of the piece that begins at `begin`: a multiple of `block_tokens`, so that states
// with only a common beginning share pieces; avoids short pieces if possible.
uint64_t EndOfPiece(const Extent& extent, uint64_t begin, uint64_t block_tokens);
// Returns true if a piece of an earlier state is worth keeping where this state continues beyond
// it.
bool IsWorthKeeping(const Extent& extent, uint64_t begin, uint64_t count, uint64_t block_tokens);

// Identifies states with the same beginning: the hash of the first rows of the last tensor, which
// depend on all layers before. Zeros if there are too few rows.
struct Guide {
  const StoredFile* file = nullptr;
  const Extent* extent = nullptr;
  uint64_t offset = 0;  // offset of the extent in its file
  ObjectId id = {};
};
Guide FindGuide(const Source& source, const std::vector<StoredFile>& files);

}  // namespace kv::store
