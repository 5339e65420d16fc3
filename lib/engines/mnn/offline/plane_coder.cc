// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/offline/plane_coder.h"

#include <algorithm>
#include <cstring>

namespace kv::mnn::offline {
namespace {

uint8_t* U8(std::byte* p) { return reinterpret_cast<uint8_t*>(p); }
const uint8_t* U8(const std::byte* p) { return reinterpret_cast<const uint8_t*>(p); }

// Written so that compilers turn the loops into vectors: `from` and `to` never overlap.
void DeltaRows(const PlaneShape& shape, const uint8_t* __restrict from, uint8_t* __restrict to) {
  const size_t size = shape.tokens * shape.row, row = shape.row;
  std::memcpy(to, from, row);
  for (size_t i = row; i < size; ++i) to[i] = static_cast<uint8_t>(from[i] - from[i - row]);
}

void XorRows(const PlaneShape& shape, const uint8_t* __restrict from, uint8_t* __restrict to) {
  const size_t size = shape.tokens * shape.row, row = shape.row;
  std::memcpy(to, from, row);
  for (size_t i = row; i < size; ++i) to[i] = from[i] ^ from[i - row];
}

// Odd dims minus the even dim before them; an odd last dim stays.
void PairDelta(const PlaneShape& shape, const uint8_t* __restrict from, uint8_t* __restrict to) {
  const size_t size = shape.tokens * shape.row, dim = shape.dim;
  if (dim % 2 == 0) {
    // Both bytes of a pair at once: as a 16-bit number, odd minus even is minus 256 times even.
    for (size_t i = 0; i < size; i += 2) {
      const auto pair = LoadLE<uint16_t>(from + i);
      StoreLE(to + i, static_cast<uint16_t>(pair - (pair << 8)));
    }
    return;
  }
  for (size_t head = 0; head < size; head += dim) {
    for (size_t d = 0; d < dim; ++d) {
      to[head + d] = static_cast<uint8_t>(from[head + d] - (d % 2 == 1 ? from[head + d - 1] : 0));
    }
  }
}

// From the last token to the first, so that it works in place.
void DeltaRowsInPlace(const PlaneShape& shape, uint8_t* data) {
  for (size_t token = shape.tokens - 1; token > 0; --token) {
    uint8_t* __restrict to = data + token * shape.row;
    const uint8_t* __restrict before = to - shape.row;
    for (size_t i = 0; i < shape.row; ++i) to[i] = static_cast<uint8_t>(to[i] - before[i]);
  }
}

// Several predictors write the same bytes for one token, or for heads of one dim. Such a candidate
// compresses to the size of the one it equals and can never win against it.
Predictor SimplestEqual(Predictor predictor, const PlaneShape& block) {
  const bool one_token = block.tokens == 1, one_dim = block.dim == 1;
  switch (predictor) {
    case Predictor::kDeltaSeq:
    case Predictor::kXorSeq:
      return one_token ? Predictor::kRaw : predictor;
    case Predictor::kPairDelta:
      return one_dim ? Predictor::kRaw : predictor;
    case Predictor::kPairDeltaDeltaSeq:
      if (one_dim) return SimplestEqual(Predictor::kDeltaSeq, block);
      return one_token ? Predictor::kPairDelta : predictor;
    case Predictor::kRaw:
      break;
  }
  return predictor;
}

}  // namespace

void Predict(Predictor predictor, const PlaneShape& shape, const std::byte* from, std::byte* to) {
  switch (predictor) {
    case Predictor::kRaw:
      std::memcpy(to, from, shape.tokens * shape.row);
      return;
    case Predictor::kDeltaSeq:
      return DeltaRows(shape, U8(from), U8(to));
    case Predictor::kXorSeq:
      return XorRows(shape, U8(from), U8(to));
    case Predictor::kPairDelta:
      return PairDelta(shape, U8(from), U8(to));
    case Predictor::kPairDeltaDeltaSeq:
      PairDelta(shape, U8(from), U8(to));
      return DeltaRowsInPlace(shape, U8(to));
  }
}

void BitShuffle(const std::byte* from, size_t size, std::byte* to) {
  if (size % 8 != 0) {
    std::memset(to, 0, size);
    for (size_t i = 0; i < size; ++i) {
      for (size_t b = 0; b < 8; ++b) {
        const size_t bit = b * size + i;
        U8(to)[bit / 8] |= static_cast<uint8_t>((U8(from)[i] >> b & 1) << bit % 8);
      }
    }
    return;
  }
  const size_t plane = size / 8;
  for (size_t i = 0; i < plane; ++i) {
    // The 8 x 8 bits of eight bytes, transposed by swapping blocks of 4, 2 and 1 bits.
    uint64_t x = LoadLE<uint64_t>(from + 8 * i);
    uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aa;
    x ^= t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000cccc0000cccc;
    x ^= t ^ (t << 14);
    t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0;
    x ^= t ^ (t << 28);
    for (size_t b = 0; b < 8; ++b) to[b * plane + i] = static_cast<std::byte>(x >> (8 * b));
  }
}

uint64_t PlaneCoder::Compressed(ByteSpan bytes, int level) {
  const size_t size = zstd_.Compress(bytes, compressed_.Get(Zstd::Bound(bytes.size())), level);
  KV_ASSERT(size > 0);  // the room is zstd's own bound
  return size;
}

ByteSpan PlaneCoder::Payload(Predictor predictor, const PlaneShape& block, const std::byte* from,
                             bool bitshuffle) {
  const size_t size = block.tokens * block.row;
  ByteSpan payload(from, size);
  if (predictor != Predictor::kRaw) {
    const auto predicted = predicted_.Get(size);
    Predict(predictor, block, from, predicted.data());
    payload = predicted;
  }
  if (bitshuffle) {
    const auto shuffled = shuffled_.Get(size);
    BitShuffle(payload.data(), size, shuffled.data());
    payload = shuffled;
  }
  return payload;
}

uint64_t PlaneCoder::BestOfBlock(const PlaneShape& block, const std::byte* from,
                                 const Options& options, const std::vector<Predictor>& predictors,
                                 Predictor& best, std::byte* to) {
  uint64_t best_size = UINT64_MAX;
  std::vector<Predictor> tried;
  for (const Predictor predictor : predictors) {
    const Predictor simplest = SimplestEqual(predictor, block);
    if (std::find(tried.begin(), tried.end(), simplest) != tried.end()) continue;
    tried.push_back(simplest);
    const ByteSpan payload = Payload(simplest, block, from, options.bitshuffle);
    const uint64_t size = Compressed(payload, options.zstd_level);
    if (size >= best_size) continue;  // of equal ones the first
    best_size = size;
    best = predictor;
    std::memcpy(to, payload.data(), payload.size());
  }
  return best_size;
}

uint64_t PlaneCoder::AdaptiveSize(ByteSpan plane, const PlaneShape& shape, const Options& options,
                                  Stream stream, std::map<Predictor, uint64_t>& counts) {
  const std::vector<Predictor>& predictors = options.predictors[stream];
  for (const Predictor predictor : predictors) counts.try_emplace(predictor, 0);
  const uint64_t block = std::min(static_cast<uint64_t>(options.block_tokens), shape.tokens);
  const auto merged = merged_.Get(plane.size());
  uint64_t blocks = 0, size_of_last = 0;
  for (uint64_t begin = 0; begin < shape.tokens; begin += block, ++blocks) {
    const PlaneShape part = {std::min(block, shape.tokens - begin), shape.row, shape.dim};
    Predictor best = predictors.front();
    size_of_last = BestOfBlock(part, plane.data() + begin * shape.row, options, predictors, best,
                               merged.data() + begin * shape.row);
    ++counts[best];
  }
  // One block is compressed as it was when it was chosen.
  const uint64_t data = blocks == 1 ? size_of_last : Compressed(merged, options.zstd_level);
  constexpr uint64_t kHeader = 8;
  return data + blocks + kHeader;
}

uint64_t PlaneCoder::Size(ByteSpan plane, const PlaneShape& shape, const Options& options,
                          Stream stream, std::map<Predictor, uint64_t>& counts) {
  KV_ASSERT(shape.tokens > 0 && plane.size() == shape.tokens * shape.row);
  if (options.codec == CodecMode::kAdaptive) {
    return AdaptiveSize(plane, shape, options, stream, counts);
  }
  const bool high = stream == kKHi || stream == kVHi;
  const Predictor predictor = high ? Predictor::kDeltaSeq : Predictor::kRaw;
  ++counts[predictor];
  return Compressed(Payload(predictor, shape, plane.data(), options.bitshuffle),
                    options.zstd_level);
}

}  // namespace kv::mnn::offline
