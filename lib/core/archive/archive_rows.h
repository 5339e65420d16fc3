// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <deque>
#include <map>
#include <mutex>

#include "lib/core/archive/archive.h"
#include "lib/core/base/arena.h"

// K or V of one layer of an archive, read by ranges of tokens.
namespace kv {

struct ArchivePart {
  size_t layer = 0;  // index of the layer in the description
  bool is_value = false;
};

// Returns the tensors whose values all lie in chunks of their own. Throws kDuplicateName if two
// layers have the same number.
std::vector<ArchivePart> ListParts(const Archive& archive);
const KvTensor& FindTensor(const Archive& archive, const ArchivePart& part);
// Returns the stored bytes of each part's chunks.
std::vector<uint64_t> StoredBytes(const Archive& archive, std::span<const ArchivePart> parts);

// Returns the chunks that hold tokens [begin, begin + count). Throws kInconsistent if one does not
// fit the tensor, kLostChunk if a token is missing.
std::vector<const ArchivedChunk*> FindChunks(const Archive& archive, const ArchivePart& part,
                                             uint64_t begin, uint64_t count);
// Copies the part of tokens [begin, begin + count) that a decoded chunk holds to `out`,
// [token][head][dim].
void CopyTokens(const ChunkHead& head, ByteSpan raw, const KvTensor& tensor, uint64_t begin,
                uint64_t count, std::span<std::byte> out);

// Rows of an archive to which others refer. Only chunks with requested rows are decoded, each once.
// Rows that the archive takes from its own references are read there directly, so that a longer
// chain of growing saves costs almost nothing more.

class ArchiveRows : public RowSource {
 public:
  // All tensors must lie in chunks of their own.
  explicit ArchiveRows(Archive archive);

  void Read(size_t layer_position, bool is_value, uint64_t first, uint64_t count,
            std::span<std::byte> rows) const override;

 private:
  // A chunk, and its rows that were decoded so far.
  struct Chunk {
    const ArchivedChunk* chunk = nullptr;
    std::mutex mutex;
    std::optional<std::vector<ReferenceRun>> runs;
    Bytes whole, own;  // decoded when first needed; empty before
  };
  using Chunks = std::vector<std::shared_ptr<Chunk>>;

  static std::shared_ptr<Reuse<CodecScratch>> ShareScratches(const References& references);
  const Chunks& ChunksOfPart(const ArchivePart& part) const;
  // Reads the rows [begin, begin + count) of the chunk. Keeps the decoded chunk for the next reader
  // unless this one has read all of it.
  void ReadChunk(const std::shared_ptr<Chunk>& chunk, const KvTensor& tensor, uint64_t begin,
                 uint64_t count, std::span<std::byte> rows) const;
  bool ReadByRuns(Chunk& chunk, uint64_t begin, uint64_t count, std::span<std::byte> rows) const;
  void TakeOwn(Chunk& chunk, uint64_t all, uint64_t first, std::span<std::byte> rows,
               uint64_t row_bytes) const;
  // Frees the chunks decoded longest ago if all together take too much memory.
  void Keep(const std::shared_ptr<Chunk>& chunk, uint64_t bytes) const;

  const Archive archive_;
  // An archive shares this scratch with the one that refers to it: allocating memory for each chunk
  // would take longer than decoding it, and memory of its own would not be in the CPU cache.
  const std::shared_ptr<Reuse<CodecScratch>> scratches_;
  mutable std::mutex mutex_;  // guards everything below
  mutable std::map<std::pair<size_t, bool>, Chunks> parts_;
  mutable std::deque<std::pair<std::shared_ptr<Chunk>, uint64_t>> decoded_;
  mutable uint64_t decoded_bytes_ = 0;
};

}  // namespace kv
