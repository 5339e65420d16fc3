// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/archive/archive.h"

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

}  // namespace kv
