// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Codec, dtype, tokens, columns, effort, flags, then a payload. The payload is decoded as the codec
// says, and taken as values that must come back from the level and from the codec of the table that
// the upper bits of the flags name.
#include <cstdlib>

#include "lib/core/codec/table.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kv;
  if (size < 6) return 0;
  static CodecScratch scratch;
  const auto codec = static_cast<CodecId>(data[0]);
  const DType dtype = AllDTypes()[data[1] % AllDTypes().size()].dtype;
  const uint64_t tokens = data[2], columns = data[3];
  const auto effort = static_cast<Effort>(data[4] % 5);
  const ByteSpan rest = std::as_bytes(std::span(data + 6, size - 6));

  const ChunkShape shape{dtype, tokens, 1, columns, Order::kTokenHeadDim};
  Bytes raw(tokens * columns * Info(dtype).block_bytes);
  try {
    DecodeChunk(codec, shape, rest, raw, scratch);
    ++fuzz::accepted;
  } catch (const Error&) {
  }

  const uint64_t unit_bytes = Info(dtype).block_bytes;
  const uint64_t width = columns == 0 ? 1 : columns;
  const ChunkShape whole{dtype, rest.size() / (unit_bytes * width), 1, width, Order::kTokenHeadDim};
  const ByteSpan values = data[5] % 2 == 0 ? rest.first(whole.tokens * width * unit_bytes) : rest;
  Bytes back(values.size());
  const auto require_back = [&](const EncodedChunk& chunk) {
    DecodeChunk(chunk.codec, whole, chunk.payload, back, scratch);
    if (!std::equal(back.begin(), back.end(), values.begin(), values.end())) std::abort();
  };
  require_back(EncodeChunk(whole, values, effort, scratch));
  const CodecRow& row = Codecs()[data[5] / 2 % Codecs().size()];
  EncodedChunk chunk{row.id, {}, {}};
  if (!values.empty() && row.takes(dtype) && row.encode(whole, values, kAnySize, scratch, chunk)) {
    require_back(chunk);
  }
  return 0;
}
