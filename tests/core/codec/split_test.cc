// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <random>

#include "lib/core/base/half.h"
#include "lib/core/codec/wrappers/wrappers.h"
#include "lib/core/frame/frame.h"

using namespace kv;

namespace {

// Draws heads as in a first layer: the first half is K, which is correlated along tokens; the
// second is V, which repeats with its token.
Bytes SideBySide(uint64_t tokens, uint32_t heads, uint32_t dim) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> state(heads * dim), values(8 * state.size());
  for (float& value : values) value = 0.1f * normal(random);
  Bytes raw(2 * tokens * state.size());
  for (uint64_t i = 0; i < tokens * state.size(); ++i) {
    float& key = state[i % state.size()];
    key = 0.97f * key + normal(random);
    StoreLE(raw.data() + 2 * i, F32ToBF16(i % dim < dim / 2 ? 8 * key : values[i % values.size()]));
  }
  return raw;
}

uint64_t FrameBytes(FrameRole role, uint64_t tokens, uint32_t dim, ByteSpan raw) {
  FrameCoder coder(Effort::kDefault);
  FrameDescription description;
  description.dtype = DType::kBF16;
  description.order = Order::kTokenHeadDim;
  description.role = role;
  description.heads = 4;
  description.head_dim = dim;
  description.tokens = tokens;
  Bytes frame(FrameBound(raw.size())), back(raw.size());
  frame.resize(coder.Encode(description, raw, frame));
  coder.Decode(frame, nullptr, back);
  REQUIRE(std::ranges::equal(back, raw));
  if (frame.size() < 200000) {  // one segment, whose codec is in the frame's header
    CHECK((ReadFrameHeader(frame).codec == CodecId::kSplit) == (role == FrameRole::kKeyAndValue));
  }
  return frame.size();
}

}  // namespace

TEST_CASE("K and V side by side are coded apart where a frame says so", "[codec][frame]") {
  constexpr uint32_t kHeads = 4, kDim = 128;
  for (const uint64_t tokens : {uint64_t{16}, uint64_t{200}, uint64_t{3000}}) {
    const Bytes raw = SideBySide(tokens, kHeads, kDim);
    const uint64_t together = FrameBytes(FrameRole::kUnknown, tokens, kDim, raw);
    const uint64_t apart = FrameBytes(FrameRole::kKeyAndValue, tokens, kDim, raw);
    INFO(tokens << " tokens: " << together << " bytes together, " << apart << " apart");
    CHECK(apart < together - together / (tokens == 16 ? 50 : 10));
  }
}

TEST_CASE("Where halves do not differ, or cannot be made, they stay together", "[codec][frame]") {
  constexpr uint32_t kHeads = 4;
  FrameCoder coder(Effort::kDefault);
  FrameDescription description;
  description.dtype = DType::kBF16;
  description.role = FrameRole::kKeyAndValue;
  description.heads = kHeads;
  description.tokens = 64;
  for (const uint32_t dim : {33u, 64u}) {
    description.order = dim == 33 ? Order::kTokenHeadDim : Order::kStorage;
    description.head_dim = dim;
    const Bytes raw = SideBySide(64, kHeads, dim);
    Bytes frame(FrameBound(raw.size())), back(raw.size());
    frame.resize(coder.Encode(description, raw, frame));
    CHECK(ReadFrameHeader(frame).codec != CodecId::kSplit);
    coder.Decode(frame, nullptr, back);
    CHECK(back == raw);
  }
}

TEST_CASE("Damaged split chunks are refused", "[codec][reject]") {
  const ChunkShape shape = {DType::kBF16, 16, 4, 64, Order::kTokenHeadDim};
  const Bytes raw = SideBySide(16, 4, 64);
  CodecScratch scratch;
  const EncodedChunk chunk = EncodeSplit(shape, raw, scratch, EncoderAt(Effort::kFast, scratch));
  Bytes back(raw.size());
  const auto refuses = [&](const ChunkShape& as, const Bytes& payload) {
    CHECK_THROWS_AS(DecodeChunk(CodecId::kSplit, as, payload, back, scratch), Error);
  };
  for (const size_t at : {0, 1}) {  // a split chunk may not contain a split chunk
    Bytes nested = chunk.payload;
    nested[at] = std::byte{24};
    refuses(shape, nested);
  }
  Bytes reserved = chunk.payload;
  reserved[2] = std::byte{1};
  refuses(shape, reserved);
  Bytes longer = chunk.payload;
  longer[7] = std::byte{0xff};
  refuses(shape, longer);
  refuses({DType::kBF16, 16, 4, 63, Order::kTokenHeadDim}, chunk.payload);
  refuses({DType::kBF16, 16, 4, 64, Order::kStorage}, chunk.payload);
  refuses({DType::kBF16, UINT64_MAX, 4, 64, Order::kTokenHeadDim}, chunk.payload);
  // Rows and floats may not contain a split chunk: their buffers are in use while they decode.
  for (const auto& [codec, dtype] :
       {std::pair{CodecId::kRows, DType::kBF16}, {CodecId::kWidened, DType::kF32}}) {
    const ChunkShape of = {dtype, 16, 4, dtype == DType::kF32 ? 32u : 64u, Order::kTokenHeadDim};
    Bytes holds(64);
    holds[0] = dtype == DType::kF32 ? std::byte{1} : std::byte{24};
    holds[1] = std::byte{24};
    CHECK_THROWS_AS(DecodeChunk(codec, of, holds, back, scratch), Error);
  }
}
