// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <deque>
#include <map>
#include <mutex>

#include "lib/core/archive/archive.h"
#include "lib/core/base/arena.h"

// K or V of one layer of an archive, token range by token range.
namespace kv {

struct ArchivePart {
  size_t layer = 0;  // position in the description
  bool is_value = false;
};

// The tensors whose values all lie in chunks of their own. Throws kDuplicateName where two layers
// have the same number.
std::vector<ArchivePart> PartsOf(const Archive& archive);
const KvTensor& TensorOf(const Archive& archive, const ArchivePart& part);
// Of the chunks of each part.
std::vector<uint64_t> StoredBytes(const Archive& archive, std::span<const ArchivePart> parts);

// The chunks that hold some of tokens [begin, begin + count). Throws kInconsistent where one does
// not fit the tensor, kLostChunk where they leave a token out.
std::vector<const ArchivedChunk*> ChunksOf(const Archive& archive, const ArchivePart& part,
                                           uint64_t begin, uint64_t count);
// Copies what a decoded chunk holds of tokens [begin, begin + count) to `out`, [token][head][dim].
void CopyTokens(const ChunkHead& head, ByteSpan raw, const KvTensor& tensor, uint64_t begin,
                uint64_t count, std::span<std::byte> out);

// Rows of an archive that others refer to: only the chunks with rows that somebody asks for are
// decoded, each once, and rows that the archive has from its own references come from there, so
// that the length of a chain of growing saves costs next to nothing.

class ArchiveRows : public RowSource {
 public:
  // All tensors are in chunks of their own.
  explicit ArchiveRows(Archive archive);

  void Read(size_t layer_position, bool is_value, uint64_t first, uint64_t count,
            std::span<std::byte> rows) const override;

 private:
  // A chunk, as far as somebody needed it.
  struct Chunk {
    const ArchivedChunk* chunk = nullptr;
    std::mutex mutex;
    std::optional<std::vector<ReferenceRun>> runs;
    Bytes whole, own;  // decoded; empty until needed
  };
  using Chunks = std::vector<std::shared_ptr<Chunk>>;

  static std::shared_ptr<Reuse<CodecScratch>> ScratchesOf(const References& references);
  const Chunks& ChunksOfPart(const ArchivePart& part) const;
  // The rows [begin, begin + count) of the chunk, to `rows`. What is decoded is kept for the next
  // reader if this one has not had all of it.
  void ReadChunk(const std::shared_ptr<Chunk>& chunk, const KvTensor& tensor, uint64_t begin,
                 uint64_t count, std::span<std::byte> rows) const;
  bool ReadByRuns(Chunk& chunk, uint64_t begin, uint64_t count, std::span<std::byte> rows) const;
  void TakeOwn(Chunk& chunk, uint64_t all, uint64_t first, std::span<std::byte> rows,
               uint64_t row_bytes) const;
  // Forgets what was decoded longest ago once there is much of it.
  void Keep(const std::shared_ptr<Chunk>& chunk, uint64_t bytes) const;

  const Archive archive_;
  // New memory for each chunk would take longer than the chunk, and memory for each archive of a
  // chain would be cold: an archive uses that of the archive that it refers to.
  const std::shared_ptr<Reuse<CodecScratch>> scratches_;
  mutable std::mutex mutex_;  // of all below
  mutable std::map<std::pair<size_t, bool>, Chunks> parts_;
  mutable std::deque<std::pair<std::shared_ptr<Chunk>, uint64_t>> decoded_;
  mutable uint64_t decoded_bytes_ = 0;
};

}  // namespace kv
