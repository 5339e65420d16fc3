// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Codes coefficients of a learnt transform, and restores the values of chunks from them.
#include "lib/core/codec/transformed/transformed.h"

#include <algorithm>
#include <cstring>

#include "lib/core/kernels/dequantise.h"
#include "lib/core/kernels/ordered_product.h"
#include "lib/core/kernels/rans.h"

namespace kv {
namespace {

// Returns the lane, which is also the number of the table, of each symbol of a group of components.
std::vector<uint8_t> ListLanes(uint64_t tokens) {
  std::vector<uint8_t> lanes(tokens * kRansLanes);
  for (size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<uint8_t>(i % kRansLanes);
  return lanes;
}

RansContexts ByLane(const std::vector<uint8_t>& lanes) {
  RansContexts contexts;
  contexts.tables = lanes.data();
  return contexts;
}

// Sets the encoder's constants of the 16 components from `first` on. A lane without a component
// always codes symbol 0, which takes no bits.
void SetEncoder(const StepCode& code, size_t first, std::vector<RansEncoderSymbol>& symbols) {
  for (uint32_t lane = 0; lane < kRansLanes; ++lane) {
    RansEncoderSymbol* of_lane = &symbols[size_t{lane} * 256];
    if (first + lane >= code.tables.size()) {
      of_lane[0] = MakeRansEncoderSymbol(0, kRansTotal);
      continue;
    }
    uint32_t start = 0;
    for (const uint16_t frequency : code.tables[first + lane].frequencies) {
      *of_lane++ = MakeRansEncoderSymbol(start, frequency);
      start += frequency;
    }
  }
}

void SetDecoder(const StepCode& code, size_t first, std::vector<RansSlot>& slots) {
  static const std::vector<uint16_t> kNothing = {kRansTotal};
  for (uint32_t lane = 0; lane < kRansLanes; ++lane) {
    const bool is_used = first + lane < code.tables.size();
    RansSlot* slot = &slots[size_t{lane} * kRansTotal];
    uint32_t symbol = 0;
    for (const uint16_t frequency : is_used ? code.tables[first + lane].frequencies : kNothing) {
      for (uint32_t offset = 0; offset < frequency; ++offset)
        *slot++ = MakeRansSlot(symbol, frequency, offset);
      ++symbol;
    }
  }
}

}  // namespace

Bytes EncodeCoefficients(const StepCode& code, std::span<const int16_t> values, uint64_t tokens) {
  const size_t count = code.tables.size();
  KV_ASSERT(tokens <= kStreamTokens && values.size() == tokens * count);
  RansStates states;
  states.fill(kRansLow);
  const std::vector<uint8_t> lanes = ListLanes(tokens);
  std::vector<RansEncoderSymbol> constants(size_t{kRansLanes} * 256);
  std::vector<uint8_t> symbols(lanes.size());
  std::vector<uint16_t> words((count + kRansLanes) * tokens + kRansRoom);
  uint16_t* const end = words.data() + words.size();
  uint16_t* begin = end;
  for (size_t first = 0; first < count; first += kRansLanes) {
    std::fill(symbols.begin(), symbols.end(), uint8_t{0});
    for (size_t c = first; c < std::min<size_t>(first + kRansLanes, count); ++c) {
      for (uint64_t t = 0; t < tokens; ++t) {
        symbols[t * kRansLanes + c - first] =
            static_cast<uint8_t>(code.tables[c].Find(values[t * count + c]));
      }
    }
    SetEncoder(code, first, constants);
    begin = RansEncode(symbols.data(), {tokens, kRansLanes, kRansLanes}, ByLane(lanes),
                       constants.data(), begin, states);
  }
  ByteWriter out;
  for (uint32_t lane = 0; lane < kRansLanes; ++lane) out.U32(states[lane]);
  out.Append(std::as_bytes(std::span(begin, end)));
  for (size_t c = 0; c < count; ++c) {
    for (uint64_t t = 0; t < tokens; ++t) {
      const int16_t value = values[t * count + c];
      if (code.tables[c].Find(value) == code.tables[c].escape())
        out.U16(static_cast<uint16_t>(value));
    }
  }
  return out.Release();
}

namespace {

// Converts symbols into values, and reads the values of escapes from the stream.
void ReadEscapes(const StepCode& code, const std::vector<uint8_t>& places, uint64_t tokens,
                 ByteReader& in, std::span<int16_t> values) {
  const size_t count = code.tables.size();
  for (size_t c = 0; c < count; ++c) {
    const StepTable& table = code.tables[c];
    for (uint64_t t = 0; t < tokens; ++t) {
      int32_t value = places[c * tokens + t] - static_cast<int32_t>(table.reach);
      if (places[c * tokens + t] == table.escape()) {
        value = in.Read<int16_t>("escaped coefficient");
        if (table.Find(value) != table.escape())
          throw Error(Finding::kBadFrame, "the coefficient {} is escaped without need", value);
      }
      values[t * count + c] = static_cast<int16_t>(value);
    }
  }
}

}  // namespace

void DecodeCoefficients(const StepCode& code, ByteSpan stream, uint64_t tokens,
                        std::span<int16_t> values) {
  const size_t count = code.tables.size();
  KV_ASSERT(tokens <= kStreamTokens && values.size() == tokens * count);
  ByteReader in(stream);
  RansStates states{};
  for (uint32_t lane = 0; lane < kRansLanes; ++lane) {
    states[lane] = in.U32("state of a lane");
    if (states[lane] < kRansLow || states[lane] >> 31 != 0)
      throw Error(Finding::kBadFrame, "the state {:#x} of lane {}", states[lane], lane);
  }
  const std::vector<uint8_t> lanes = ListLanes(tokens);
  std::vector<RansSlot> slots(size_t{kRansLanes} * kRansTotal);
  std::vector<uint8_t> symbols(lanes.size()), places(count * tokens);
  // The encoder works from back to front, so its last components come first.
  for (size_t first = (count + kRansLanes - 1) / kRansLanes * kRansLanes; first > 0;) {
    first -= kRansLanes;
    SetDecoder(code, first, slots);
    const size_t words = RansDecode(symbols.data(), {tokens, kRansLanes, kRansLanes}, ByLane(lanes),
                                    slots.data(), in.rest().data(), in.remaining() / 2, states);
    if (words == SIZE_MAX) throw Error(Finding::kTruncated, "coefficients: words are missing");
    in.Skip(2 * words, "coefficients");
    for (size_t c = first; c < std::min<size_t>(first + kRansLanes, count); ++c) {
      for (uint64_t t = 0; t < tokens; ++t)
        places[c * tokens + t] = symbols[t * kRansLanes + c - first];
    }
  }
  for (uint32_t lane = 0; lane < kRansLanes; ++lane) {
    if (states[lane] != kRansLow)
      throw Error(Finding::kBadFrame, "lane {} of the coefficients ends in another state", lane);
  }
  ReadEscapes(code, places, tokens, in, values);
  in.ExpectEnd("the coefficients");
}

bool TakesTransform(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32;
}

HeadRotator::HeadRotator(const Rotation& rotation, uint64_t head_dim)
    : rotation_(rotation),
      head_dim_(head_dim),
      rotator_(rotation, 2 * rotation.angles.size()),
      cosines_(2 * rotation.angles.size()),
      sines_(cosines_.size()) {}

void HeadRotator::Rotate(uint32_t steps, std::span<float> row) {
  const uint64_t pairs = rotation_.angles.size(), distance = rotation_.distance;
  if (pairs == 0) return;
  rotator_.Angles(steps, cosines_.data(), sines_.data());
  for (uint64_t head = 0; head < row.size(); head += head_dim_) {
    for (uint64_t pair = 0; pair < pairs; ++pair) {
      const uint64_t at = distance == 1 ? 2 * pair : pair;
      const float a = row[head + at], b = row[head + at + distance];
      row[head + at] = a * cosines_[at] - b * sines_[at];
      row[head + at + distance] = b * cosines_[at] + a * sines_[at];
    }
  }
}

void RestoreRows(const ChunkShape& shape, const TransformedRows& rows, std::span<std::byte> raw) {
  const uint64_t columns = shape.heads * shape.units_per_head;
  if (shape.order != Order::kTokenHeadDim || shape.tokens > kStreamTokens ||
      raw.size() != shape.tokens * columns * Info(shape.dtype).block_bytes) {
    throw Error(Finding::kBadFrame, "a transformed chunk of {} tokens in {} bytes", shape.tokens,
                raw.size());
  }
  std::vector<float> values(shape.tokens * columns);
  for (uint64_t t = 0; t < shape.tokens; ++t) std::copy_n(rows.mean, columns, &values[t * columns]);
  AddProducts(rows.coefficients, shape.tokens, rows.components, rows.vectors, rows.stride, columns,
              values.data());
  if (rows.rotation != nullptr) {
    HeadRotator rotator(*rows.rotation, rows.head_dim);
    for (uint64_t t = 0; t < shape.tokens; ++t) {
      rotator.Rotate(static_cast<uint32_t>(rows.position + t),
                     std::span(values).subspan(t * columns, columns));
    }
  }
  KV_ASSERT(raw.size() == values.size() * Info(shape.dtype).block_bytes);
  FromFloats(shape.dtype, values, raw.data());
}

std::vector<float> WidenRows(DType dtype, ByteSpan raw) {
  std::vector<float> values(raw.size() / Info(dtype).block_bytes);
  ToFloats(dtype, raw, values);
  return values;
}

}  // namespace kv
