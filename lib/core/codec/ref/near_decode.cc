// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/prev/frame_parts.h"
#include "lib/core/codec/ref/near_rows.h"

namespace kv {
namespace {

void LookUpTables(const uint8_t* table_of, uint64_t count, uint8_t* classes) {
  for (uint64_t i = 0; i < count; ++i) classes[i] = table_of[classes[i]];
}

std::vector<int16_t> ReadScales(ByteReader& reader, uint64_t columns, uint64_t at) {
  const int32_t base = reader.Read<int16_t>("base of the scales");
  std::vector<int16_t> scales;
  for (const std::byte stored : reader.Take(columns, "scales")) {
    const int32_t sum = base + std::to_integer<int32_t>(stored);
    if (sum > INT16_MAX - kFactorOfUsual)
      throw Error(Finding::kBadFrame, "a scale is impossible").At(at);
    scales.push_back(static_cast<int16_t>(sum));
  }
  return scales;
}

// Fills in the coded rows, run by run. False where distances lead to no value.
bool TakeValues(const uint8_t* symbols, const ResidualGrid& grid, ResidualBits& bits,
                NearRows& near) {
  bool good = true;
  for (uint64_t row = 0, end = 0; row < near.rows(); row = end) {
    const bool is_coded = near.factors[row] < kEqualRow;
    for (end = row; end < near.rows() && (near.factors[end] < kEqualRow) == is_coded;) ++end;
    if (!is_coded) continue;
    const uint64_t at = row * near.columns, more = (end - row) * near.columns;
    good = good && ResidualValues(symbols, near.expected.data() + at, more, grid, bits,
                                  near.values.data() + at);
    symbols += more;
  }
  return good;
}

}  // namespace

void DecodeNearRows(ByteReader& reader, NearRows& near, CodecScratch& codec) {
  ContextScratch& scratch = codec.context;
  const uint64_t columns = near.columns;
  const uint64_t grid_at = reader.offset();
  const ResidualGrid grid{near.bfloat, reader.U8("low zeros")};
  const uint32_t lane_code = reader.U8("lanes");
  if (grid.low_zeros > 15 || lane_code > 2)
    throw Error(Finding::kBadFrame, "the grid or the number of lanes is impossible").At(grid_at);
  ReadFactors(reader, near, codec);
  const uint64_t count = CodedRows(near) * columns;
  if (count > 0) {
    const std::vector<int16_t> scales = ReadScales(reader, columns, grid_at);
    const ContextModel model =
        ReadModel(reader, kResidualSymbolBits, ResidualClassOrder(), &scratch.arena);
    ResidualBits bits;
    bits.size = reader.U32("length of the raw bits");
    bits.bytes = reader.Take(bits.size, "raw bits").data();
    CodedPart coded;
    ReadStates(reader, kRansLanes << lane_code, coded);

    MakeSlots(model, scratch.slots);
    scratch.symbols.resize(count);
    scratch.tables.resize(count);
    ClassesOf(near, scales, scratch.tables.data());
    LookUpTables(model.table_of.data(), count, scratch.tables.data());
    RansStates states = coded.states;
    const size_t used = RansDecode(scratch.symbols.data(), {1, count, kRansLanes << lane_code},
                                   {.tables = scratch.tables.data()}, scratch.slots.data(),
                                   coded.words.data(), coded.word_count(), states);
    CheckCodedEnd(coded, used, states, 0);
    const bool good = TakeValues(scratch.symbols.data(), grid, bits, near);
    if (!good || (bits.at + 7) / 8 != bits.size) {
      throw Error(Finding::kBadPayload, "the distances do not lead to values, or bits are left")
          .At(coded.words_at);
    }
  }
  CopyEqualRows(near);
  reader.ExpectEnd("the near rows");
}

}  // namespace kv
