// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "lib/core/codec/prev/frame_parts.h"
#include "lib/core/codec/ref/near_rows.h"
#include "lib/core/kernels/context_count.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/error_scale.h"

namespace kv {
namespace {

// Classes are octaves above 2^-kOctavesBelow steps of the expected value.
constexpr int32_t kOctavesBelow = 8;
// What a value takes beyond the octaves that its error has, on average.
constexpr double kBitsBeyond = 2.2;
// Rows that first estimates of the channels' scales look at.
constexpr uint64_t kScaleRows = 128;
// Own rows are a chunk of their own, which does not pay for fewer values.
constexpr uint64_t kFewOwnValues = 2048;

// Twice the logarithm to base 2, near enough, and its inverse.
int32_t HalfOctaves(float x) {
  return static_cast<int32_t>(std::bit_cast<uint32_t>(x) >> 22) - 254;
}
float FromHalfOctaves(int32_t n) {
  return std::bit_cast<float>(static_cast<uint32_t>(n + 254) << 22);
}

void ToFloat(bool bfloat, const uint16_t* from, float* to, uint64_t count) {
  const auto* bytes = reinterpret_cast<const std::byte*>(from);
  bfloat ? BFloatToFloat(bytes, to, count) : HalfToFloat(bytes, to, count);
}

// How far the values of rows are from what is expected, and the scales that follow from it.
class Scales {
 public:
  explicit Scales(const NearRows& near)
      : near_(near),
        values_(near.columns),
        expected_(near.columns),
        errors_(near.columns),
        sum_(near.columns),
        inverse_(near.columns) {}

  // Half octaves of the errors of each channel; rows differ from it by their factors, which it
  // sets.
  std::vector<int32_t> Find(ArenaVector<uint8_t>& factors) {
    std::vector<uint32_t> rows;
    for (uint32_t row = 0; row < near_.rows(); ++row) {
      if (factors[row] != kEqualRow) rows.push_back(row);
    }
    const uint64_t step = std::max<uint64_t>(1, rows.size() / kScaleRows);
    uint64_t looked = 0;
    for (uint64_t i = 0; i < rows.size(); i += step, ++looked) {
      ErrorsOf(rows[i]);
      AddWeighted(errors_.data(), 1.0f, near_.columns, sum_.data());
    }
    for (uint64_t c = 0; c < near_.columns; ++c)
      inverse_[c] = sum_[c] > 0 ? static_cast<float>(looked) / sum_[c] : 0.0f;
    std::fill(sum_.begin(), sum_.end(), 0.0f);
    for (const uint32_t row : rows) {
      ErrorsOf(row);
      const float mean = MeanWeighted(errors_.data(), inverse_.data(), near_.columns);
      const int32_t factor = std::clamp(HalfOctaves(mean), -int32_t{kFactorOfUsual},
                                        int32_t{kMostFactor} - kFactorOfUsual);
      factors[row] = static_cast<uint8_t>(factor + kFactorOfUsual);
      AddWeighted(errors_.data(), FromHalfOctaves(-factor), near_.columns, sum_.data());
    }
    std::vector<int32_t> scales;
    for (const float sum : sum_)
      scales.push_back(HalfOctaves(sum / static_cast<float>(rows.size())));
    return scales;
  }

 private:
  void ErrorsOf(uint64_t row) {
    ToFloat(near_.bfloat, near_.values.data() + row * near_.columns, values_.data(), near_.columns);
    ToFloat(near_.bfloat, near_.expected.data() + row * near_.columns, expected_.data(),
            near_.columns);
    AbsoluteErrors(values_.data(), expected_.data(), near_.columns, errors_.data());
  }

  const NearRows& near_;
  std::vector<float> values_, expected_, errors_, sum_, inverse_;
};

// The same with a table for each class, which saves the encoder a look-up per value.
ContextModel ByClass(const ContextModel& model) {
  ContextModel by_class = model;
  by_class.tables.clear();
  for (const uint8_t table : model.table_of) by_class.tables.push_back(model.tables[table]);
  return by_class;
}

// Bits that are 0 in every value.
uint32_t LowZeros(const NearRows& near) {
  uint32_t any = 0x8000;
  for (uint64_t row = 0; row < near.rows() && any % 2 == 0; ++row) {
    if (near.factors[row] >= kEqualRow) continue;
    const uint16_t* values = near.values.data() + row * near.columns;
    for (uint64_t c = 0; c < near.columns; ++c) any |= values[c];
  }
  return static_cast<uint32_t>(std::countr_zero(any));
}

// Rows whose errors are so large that coding them without a reference takes less, by the classes of
// all coded rows. Returns whether there are any.
bool FindOwnRows(NearRows& near, const uint8_t* classes, double own_bits) {
  std::vector<uint32_t> own;
  const double most = (own_bits - kBitsBeyond + kOctavesBelow) * static_cast<double>(near.columns);
  for (uint32_t row = 0; row < near.rows(); ++row) {
    if (near.factors[row] == kEqualRow) continue;
    const uint32_t sum = std::accumulate(classes, classes + near.columns, 0u);
    if (sum > most) own.push_back(row);
    classes += near.columns;
  }
  if (own.size() * near.columns < kFewOwnValues) return false;
  for (const uint32_t row : own) near.factors[row] = kOwnRow;
  return true;
}

// How often each class has each symbol.
void CountResiduals(const uint8_t* classes, const uint8_t* symbols, uint64_t count,
                    ContextCounts& counts) {
  constexpr size_t kTurns = 4;
  const size_t cells = counts.counts.size();
  ArenaVector<uint32_t> in_turns(kTurns * cells, counts.counts.get_allocator());
  CountWithContexts(classes, symbols, count, kResidualSymbolBits, kTurns, cells, in_turns.data());
  for (size_t at = 0; at < in_turns.size(); ++at) counts.counts[at % cells] += in_turns[at];
}

void MarkEqualRows(NearRows& near) {
  for (uint64_t row = 0; row < near.rows(); ++row) {
    const uint64_t at = row * near.columns;
    const bool same =
        std::memcmp(near.values.data() + at, near.expected.data() + at, 2 * near.columns) == 0;
    near.factors[row] = same ? kEqualRow : 0;
  }
}

// The scales of the channels as they are written, above a base, and as classes want them: in half
// octaves of the exponent's field.
struct ChannelScales {
  int32_t base = 0;
  std::vector<uint8_t> stored;
  std::vector<int16_t> scales;
};

ChannelScales FindScales(NearRows& near) {
  const std::vector<int32_t> found = Scales(near).Find(near.factors);
  const int32_t one = 2 * ((near.bfloat ? 127 + 7 : 15 + 10) + kOctavesBelow);
  const int32_t least = *std::max_element(found.begin(), found.end()) - UINT8_MAX;
  ChannelScales channels{.base = least + one, .stored = {}, .scales = {}};
  for (const int32_t scale : found) {
    channels.stored.push_back(static_cast<uint8_t>(std::max(scale - least, 0)));
    channels.scales.push_back(static_cast<int16_t>(channels.base + channels.stored.back()));
  }
  return channels;
}

void SymbolsOf(const NearRows& near, const ResidualGrid& grid, uint8_t* symbols, uint16_t* extras) {
  for (uint64_t row = 0; row < near.rows(); ++row) {
    if (near.factors[row] >= kEqualRow) continue;
    ResidualSymbols(near.values.data() + row * near.columns,
                    near.expected.data() + row * near.columns, near.columns, grid, symbols, extras);
    symbols += near.columns;
    extras += near.columns;
  }
}

ContextModel ModelOf(const ContextCounts& counts, const std::vector<uint16_t>& order,
                     Arena* arena) {
  const ContextGroups groups = MergeContexts(counts, order, 1, false);
  ContextCounts grouped(groups.groups, kResidualSymbolBits, arena);
  for (uint32_t c = 0; c < kResidualClasses; ++c) {
    for (uint32_t s = 0; s < 1u << kResidualSymbolBits; ++s)
      grouped.Of(groups.group_of[c])[s] += counts.Of(c)[s];
  }
  return MakeModel(groups, grouped);
}

// The bits that the symbols leave to be written as they are.
uint64_t RawBits(const ContextCounts& counts) {
  uint64_t bits = 0;
  for (size_t i = 0; i < counts.counts.size(); ++i) {
    const uint8_t symbol = i % (1u << kResidualSymbolBits);
    bits += uint64_t{counts.counts[i]} * ResidualBitCount(symbol);
  }
  return bits;
}

}  // namespace

void EncodeNearRows(NearRows& near, double own_bits, CodecScratch& codec, ByteWriter& out) {
  ContextScratch& scratch = codec.context;
  MarkEqualRows(near);
  ChannelScales channels;
  if (CodedRows(near) > 0) {
    channels = FindScales(near);
    scratch.tables.resize(CodedRows(near) * near.columns);
    ClassesOf(near, channels.scales, scratch.tables.data());
    if (FindOwnRows(near, scratch.tables.data(), own_bits))
      ClassesOf(near, channels.scales, scratch.tables.data());
  }
  const uint64_t count = CodedRows(near) * near.columns;
  const ResidualGrid grid{near.bfloat, count == 0 ? 0 : LowZeros(near)};
  const uint32_t lanes = RansLanesFor({1, count}, 1 << 14, 1 << 16);
  out.U8(static_cast<uint8_t>(grid.low_zeros));
  out.U8(static_cast<uint8_t>(std::countr_zero(lanes / kRansLanes)));
  WriteFactors(near.factors, codec, out);
  if (count == 0) return;

  scratch.symbols.resize(count);
  scratch.tables.resize(count);
  scratch.contexts.resize(count);
  uint8_t *symbols = scratch.symbols.data(), *tables = scratch.tables.data();
  uint16_t* extras = scratch.contexts.data();
  SymbolsOf(near, grid, symbols, extras);
  ContextCounts counts(kResidualClasses, kResidualSymbolBits, &scratch.arena);
  CountResiduals(tables, symbols, count, counts);
  const std::vector<uint16_t> order = ResidualClassOrder();
  const ContextModel model = ModelOf(counts, order, &scratch.arena);
  MakeEncoderSymbols(ByClass(model), scratch.encoder_symbols);
  scratch.words.resize(count + kRansRoom);
  RansStates states;
  states.fill(kRansLow);
  uint16_t* end = scratch.words.data() + count + kRansRoom;
  const uint16_t* begin = RansEncode(symbols, {1, count, lanes}, {.tables = tables},
                                     scratch.encoder_symbols.data(), end, states);

  out.Write(static_cast<int16_t>(channels.base));
  out.Append(std::as_bytes(std::span(channels.stored)));
  WriteModel(model, order, out);
  const uint64_t raw_bytes = (RawBits(counts) + 7) / 8;
  out.U32(static_cast<uint32_t>(raw_bytes));
  ArenaVector<std::byte> raw(raw_bytes + 16, &scratch.arena);
  PackResidualBits(symbols, extras, count, raw.data(), 0);
  out.Append(ByteSpan(raw).first(raw_bytes));
  out.Append(std::as_bytes(std::span(states).first(lanes)));
  out.Append(std::as_bytes(std::span(begin, end)));
}

}  // namespace kv
