// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/codec/ref/ref.h"

// The runs of a frame. Internal to lib/core/codec/ref.
namespace kv {

constexpr uint64_t kRunBytes = 44;

// What precedes the rows of a frame.
struct ReferenceHead {
  std::vector<ReferenceRun> runs;
  CodecId own_codec = CodecId::kRaw;
  uint32_t own_bytes = 0;  // of the chunk of own rows; 0 if there are none
};

void WriteReferenceHead(const ReferenceHead& head, ByteWriter& out);
// Throws kTruncated, and kBadFrame for runs that no encoder writes.
ReferenceHead ReadReferenceHead(ByteReader& reader, const ChunkShape& shape, uint64_t raw_bytes);

// The rows that a chunk in order 0 consists of; 1 if its shape does not explain its bytes.
uint64_t ReferenceGridRows(const ChunkShape& shape, uint64_t raw_bytes);
// The own rows of a chunk: a chunk of their own.
ChunkShape OwnRowsShape(const ChunkShape& shape, uint64_t raw_bytes, uint64_t rows);

}  // namespace kv
