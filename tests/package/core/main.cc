// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// What an engine does with the core alone: encodes a chunk at every level and decodes it again. The
// second half of the rows resembles the first, so that the highest level searches for likenesses.
#include <cmath>
#include <cstdio>
#include <string>

#include "lib/core/base/half.h"
#include "lib/core/codec/chunk.h"

int main() {
  constexpr uint64_t kTokens = 256;
  constexpr uint32_t kHeads = 2, kHeadDim = 64;
  const kv::ChunkShape shape = {kv::DType::kF16, kTokens, kHeads, kHeadDim,
                                kv::Order::kTokenHeadDim};
  kv::Bytes raw(2 * kTokens * kHeads * kHeadDim);
  for (size_t i = 0; i < raw.size() / 2; ++i) {
    const size_t token = i / (kHeads * kHeadDim), channel = i % (kHeads * kHeadDim);
    const double phase = static_cast<double>((token % (kTokens / 2)) * 131 + channel * 17);
    const double value = std::sin(phase * phase) + 0.01 * std::cos(static_cast<double>(i * i));
    kv::StoreLE(raw.data() + 2 * i, kv::F32ToF16(static_cast<float>(value)));
  }
  kv::CodecScratch scratch;
  for (const kv::Effort effort : {kv::Effort::kCompat, kv::Effort::kFast, kv::Effort::kDefault,
                                  kv::Effort::kHigh, kv::Effort::kMax}) {
    const kv::EncodedChunk chunk = kv::EncodeChunk(shape, raw, effort, scratch);
    kv::Bytes back(raw.size());
    kv::DecodeChunk(chunk.codec, shape, chunk.payload, back, scratch);
    std::printf("%s: %zu bytes as %zu, %s\n", std::string(kv::Name(effort)).c_str(), raw.size(),
                chunk.payload.size(), std::string(kv::Name(chunk.codec)).c_str());
    if (back != raw || chunk.payload.size() >= raw.size()) return 1;
  }
  return 0;
}
