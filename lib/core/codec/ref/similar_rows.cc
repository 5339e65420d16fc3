// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Similar rows by static tables (similar_rows.h; FORMAT.md, "Similar rows"). The expected size of
// an error is the product of a scale per channel and a factor per row; together with the exponent
// of the expected value it gives a class, which is the context of the distance.

#include "lib/core/codec/ref/similar_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "lib/core/base/half.h"
#include "lib/core/codec/context/prev.h"
#include "lib/core/codec/halves.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/counts.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/kernels/residual.h"

namespace kv {

std::vector<uint16_t> ResidualClassOrder() {
  std::vector<uint16_t> order(kResidualClasses);
  std::iota(order.begin(), order.end(), uint16_t{0});
  return order;
}

uint64_t CodedRows(const SimilarRows& similar) {
  return static_cast<uint64_t>(std::count_if(similar.factors.begin(), similar.factors.end(),
                                             [](uint8_t factor) { return factor <= kMostFactor; }));
}

void ComputeClasses(const SimilarRows& similar, const std::vector<int16_t>& scales,
                    uint8_t* classes) {
  for (uint64_t row = 0; row < similar.rows(); ++row) {
    if (similar.factors[row] >= kEqualRow) continue;
    ClassifyResiduals(similar.expected.data() + row * similar.columns, scales.data(),
                      similar.columns, similar.factors[row] - kFactorOfUsual, similar.form.bfloat,
                      classes);
    classes += similar.columns;
  }
}

void MarkEqualRows(SimilarRows& similar) {
  for (uint64_t row = 0; row < similar.rows(); ++row) {
    const uint64_t at = row * similar.columns;
    const bool same = std::memcmp(similar.values.data() + at, similar.expected.data() + at,
                                  2 * similar.columns) == 0;
    similar.factors[row] = same ? kEqualRow : 0;
  }
}

void WriteFactors(const ArenaVector<uint8_t>& factors, CodecScratch& scratch, ByteWriter& out) {
  const ByteSpan bytes = std::as_bytes(std::span(factors));
  Arena* const arena = &scratch.context.arena;
  ArenaVector<std::byte> frame(Zstd::Bound(bytes.size()), arena), literals(frame.size(), arena);
  frame.resize(scratch.zstd.Compress(bytes, frame));
  literals.resize(scratch.zstd.CompressLiterals(bytes, literals));
  if (frame.empty() || (!literals.empty() && literals.size() < frame.size())) frame.swap(literals);
  KV_ASSERT(!frame.empty());
  out.U32(static_cast<uint32_t>(frame.size()));
  out.Append(frame);
}

void ReadFactors(ByteReader& reader, SimilarRows& similar, CodecScratch& scratch) {
  const uint64_t at = reader.offset();
  const uint32_t size = reader.U32("length of the row factors");
  const ByteSpan frame = reader.Take(size, "row factors");
  const auto bytes = std::as_writable_bytes(std::span(similar.factors));
  if (!scratch.zstd.Decompress(frame, bytes)) {
    throw Error(Finding::kBadPayload, "the row factors do not decode to {} bytes", bytes.size())
        .At(at);
  }
  for (const uint8_t factor : similar.factors) {
    if (factor > kOwnRow)
      throw Error(Finding::kBadFrame, "a row has the invalid factor {}", factor).At(at);
  }
}

void CopyEqualRows(SimilarRows& similar) {
  for (uint64_t row = 0; row < similar.rows(); ++row) {
    if (similar.factors[row] != kEqualRow) continue;
    const uint64_t at = row * similar.columns;
    std::copy_n(similar.expected.data() + at, similar.columns, similar.values.data() + at);
  }
}

void RequireRows(bool fits, const ReferenceRun& run) {
  if (fits) return;
  throw Error(Finding::kReferenceDiffers,
              "rows of layer {} {} of reference {} differ in size from the chunk's", run.layer,
              run.is_value ? 'V' : 'K', run.reference);
}

void ReferenceRows::ReadEqual(const ReferenceRun& run, DType dtype, uint64_t elements,
                              std::span<std::byte> rows) const {
  Bytes bytes;
  RequireRows(Read(run, elements, bytes) == dtype && bytes.size() == rows.size(), run);
  std::copy(bytes.begin(), bytes.end(), rows.begin());
}

ExpectedRows::ExpectedRows(HalfForm form, uint64_t columns, const Rotation& rotation)
    : form_(form),
      columns_(columns),
      rotation_(rotation),
      rotator_(rotation, columns),
      x_(columns),
      cosines_(columns),
      sines_(columns),
      partners_(columns) {}

// Rounds the values in x_ to the chunk's type.
void ExpectedRows::Round(uint16_t* expected) {
  auto* to = reinterpret_cast<std::byte*>(expected);
  if (form_.byte_shift == 0) {
    form_.bfloat ? FloatToBFloat(x_.data(), to, columns_) : FloatToHalf(x_.data(), to, columns_);
    return;
  }
  const auto rounded = form_.byte_shift == 7 ? F32ToE4M3 : F32ToE5M2;
  bytes_.resize(columns_);
  for (uint64_t c = 0; c < columns_; ++c) bytes_[c] = rounded(x_[c], Float8Overflow::kSaturate);
  AddSymbols(bytes_.data(), columns_, {.form = form_, .symbol_bits = 8}, to);
}

void ExpectedRows::Make(DType dtype, ByteSpan from, int32_t shift, uint16_t* expected) {
  const DTypeInfo& info = Info(dtype);
  const uint64_t row_bytes = columns_ / info.block_elements * info.block_bytes;
  KV_ASSERT(row_bytes > 0 && from.size() % row_bytes == 0);
  const bool same_type = form_.byte_shift != 0
                             ? FindByteShift(dtype) == form_.byte_shift
                             : dtype == (form_.bfloat ? DType::kBF16 : DType::kF16);
  if (shift == 0 && same_type) {
    const Halves halves(dtype, from, nullptr);
    std::memcpy(expected, halves.bytes().data(), halves.bytes().size());
    return;
  }
  if (shift != 0) {
    rotator_.Angles(static_cast<uint32_t>(shift), cosines_.data(), sines_.data());
    // The kernel adds x * cos + partner * sin, so the sign of the first half's sine is flipped
    // here.
    for (uint64_t c = 0; c < columns_; ++c) {
      if (c / rotation_.distance % 2 == 0) sines_[c] = -sines_[c];
    }
  }
  for (uint64_t at = 0; at < from.size(); at += row_bytes, expected += columns_) {
    ToFloats(dtype, from.subspan(at, row_bytes), x_);
    if (shift != 0) {
      CopyPartners(rotation_.distance, x_.data(), columns_, partners_.data());
      for (uint64_t c = 0; c < columns_; ++c) {
        const float rotated = x_[c] * cosines_[c] + partners_[c] * sines_[c];
        // A product beyond the largest float leaves the value unrotated, as FORMAT.md defines.
        x_[c] = std::fabs(rotated) <= std::numeric_limits<float>::max() ? rotated : x_[c];
      }
    }
    Round(expected);
  }
}

namespace {

// Class c means an expected error of up to 2^(c - kOctavesBelow) ULPs of the expected value.
constexpr int32_t kOctavesBelow = 8;
// Average number of bits per value beyond the octaves of its error, which the classes count.
constexpr double kBitsBeyond = 2.2;
// Number of rows sampled for the first estimate of the channels' scales.
constexpr uint64_t kScaleRows = 128;
// The remaining rows form a separate chunk, whose overhead does not pay for fewer values than this.
constexpr uint64_t kFewOwnValues = 2048;

// Approximates 2 * log2(x) from the float's bits, and the inverse.
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

// Measures how far rows are from their expected values, and derives scales per channel and factors
// per row: the error of a value is about the product of the two.
class Scales {
 public:
  explicit Scales(const SimilarRows& similar)
      : similar_(similar),
        values_(similar.columns),
        expected_(similar.columns),
        errors_(similar.columns),
        sum_(similar.columns),
        inverse_(similar.columns) {}

  // Returns the half octaves of each channel's errors, and sets the factors of the rows, which tell
  // by how much a row's errors differ from the usual.
  std::vector<int32_t> Find(ArenaVector<uint8_t>& factors) {
    std::vector<uint32_t> rows;
    for (uint32_t row = 0; row < similar_.rows(); ++row) {
      if (factors[row] != kEqualRow) rows.push_back(row);
    }
    const uint64_t step = std::max<uint64_t>(1, rows.size() / kScaleRows);
    uint64_t looked = 0;
    // A first mean over some rows weights the channels; then each row's factor is measured relative
    // to it, and the channels again with the rows' factors removed.
    for (uint64_t i = 0; i < rows.size(); i += step, ++looked) {
      ComputeErrors(rows[i]);
      AddWeighted(errors_.data(), 1.0f, similar_.columns, sum_.data());
    }
    for (uint64_t c = 0; c < similar_.columns; ++c)
      inverse_[c] = sum_[c] > 0 ? static_cast<float>(looked) / sum_[c] : 0.0f;
    std::fill(sum_.begin(), sum_.end(), 0.0f);
    for (const uint32_t row : rows) {
      ComputeErrors(row);
      const float mean = MeanWeighted(errors_.data(), inverse_.data(), similar_.columns);
      const int32_t factor = std::clamp(HalfOctaves(mean), -int32_t{kFactorOfUsual},
                                        int32_t{kMostFactor} - kFactorOfUsual);
      factors[row] = static_cast<uint8_t>(factor + kFactorOfUsual);
      AddWeighted(errors_.data(), FromHalfOctaves(-factor), similar_.columns, sum_.data());
    }
    std::vector<int32_t> scales;
    for (const float sum : sum_)
      scales.push_back(HalfOctaves(sum / static_cast<float>(rows.size())));
    return scales;
  }

 private:
  void ComputeErrors(uint64_t row) {
    ToFloat(similar_.form.bfloat, similar_.values.data() + row * similar_.columns, values_.data(),
            similar_.columns);
    ToFloat(similar_.form.bfloat, similar_.expected.data() + row * similar_.columns,
            expected_.data(), similar_.columns);
    AbsoluteErrors(values_.data(), expected_.data(), similar_.columns, errors_.data());
  }

  const SimilarRows& similar_;
  std::vector<float> values_, expected_, errors_, sum_, inverse_;
};

// Returns the model with one table per class instead of a map, which saves the encoder a lookup per
// value.
ContextModel ByClass(const ContextModel& model) {
  ContextModel by_class = model;
  by_class.tables.clear();
  for (const uint8_t table : model.table_of) by_class.tables.push_back(model.tables[table]);
  return by_class;
}

// Returns the number of low bits that are 0 in every coded value.
uint32_t LowZeros(const SimilarRows& similar) {
  uint32_t any = 0x8000;
  for (uint64_t row = 0; row < similar.rows() && any % 2 == 0; ++row) {
    if (similar.factors[row] >= kEqualRow) continue;
    const uint16_t* values = similar.values.data() + row * similar.columns;
    for (uint64_t c = 0; c < similar.columns; ++c) any |= values[c];
  }
  return static_cast<uint32_t>(std::countr_zero(any));
}

// Marks rows as remaining rows if their errors are so large that coding them without a reference
// takes fewer bits, judged by the sum of their classes. Returns true if there are any.
bool FindOwnRows(SimilarRows& similar, const uint8_t* classes, double own_bits) {
  std::vector<uint32_t> own;
  const double most =
      (own_bits - kBitsBeyond + kOctavesBelow) * static_cast<double>(similar.columns);
  for (uint32_t row = 0; row < similar.rows(); ++row) {
    if (similar.factors[row] == kEqualRow) continue;
    const uint32_t sum = std::accumulate(classes, classes + similar.columns, 0u);
    if (sum > most) own.push_back(row);
    classes += similar.columns;
  }
  if (own.size() * similar.columns < kFewOwnValues) return false;
  for (const uint32_t row : own) similar.factors[row] = kOwnRow;
  return true;
}

// Counts symbols by class.
void CountResiduals(const uint8_t* classes, const uint8_t* symbols, uint64_t count,
                    ContextCounts& counts) {
  // Four histograms in rotation: equal neighbours in one would stall on store-to-load forwarding.
  constexpr size_t kTurns = 4;
  const size_t cells = counts.counts.size();
  ArenaVector<uint32_t> in_turns(kTurns * cells, counts.counts.get_allocator());
  CountWithContexts(classes, symbols, count, kResidualSymbolBits, kTurns, cells, in_turns.data());
  for (size_t at = 0; at < in_turns.size(); ++at) counts.counts[at % cells] += in_turns[at];
}

// Scales of the channels: as stored, above a common base, and as the classes use them, in half
// octaves of the exponent field.
struct ChannelScales {
  int32_t base = 0;
  std::vector<uint8_t> stored;
  std::vector<int16_t> scales;
};

ChannelScales FindScales(SimilarRows& similar) {
  const std::vector<int32_t> found = Scales(similar).Find(similar.factors);
  const int32_t bias_and_mantissa =
      similar.form.bfloat ? 127 + 7 : 15 + 10 - static_cast<int32_t>(similar.form.byte_shift);
  const int32_t one = 2 * (bias_and_mantissa + kOctavesBelow);
  const int32_t least = *std::max_element(found.begin(), found.end()) - UINT8_MAX;
  ChannelScales channels{.base = least + one, .stored = {}, .scales = {}};
  for (const int32_t scale : found) {
    channels.stored.push_back(static_cast<uint8_t>(std::max(scale - least, 0)));
    channels.scales.push_back(static_cast<int16_t>(channels.base + channels.stored.back()));
  }
  return channels;
}

void ComputeSymbols(const SimilarRows& similar, const ResidualGrid& grid, uint8_t* symbols,
                    uint16_t* extras) {
  for (uint64_t row = 0; row < similar.rows(); ++row) {
    if (similar.factors[row] >= kEqualRow) continue;
    ResidualSymbols(similar.values.data() + row * similar.columns,
                    similar.expected.data() + row * similar.columns, similar.columns, grid, symbols,
                    extras);
    symbols += similar.columns;
    extras += similar.columns;
  }
}

ContextModel MakeResidualModel(const ContextCounts& counts, const std::vector<uint16_t>& order,
                               Arena* arena) {
  const ContextGroups groups = MergeContexts(counts, order, 1, false);
  ContextCounts grouped(groups.groups, kResidualSymbolBits, arena);
  for (uint32_t c = 0; c < kResidualClasses; ++c) {
    for (uint32_t s = 0; s < 1u << kResidualSymbolBits; ++s)
      grouped.Of(groups.group_of[c])[s] += counts.Of(c)[s];
  }
  return MakeModel(groups, grouped);
}

// Returns the number of bits that follow the symbols uncoded.
uint64_t RawBits(const ContextCounts& counts) {
  uint64_t bits = 0;
  for (size_t i = 0; i < counts.counts.size(); ++i) {
    const uint8_t symbol = i % (1u << kResidualSymbolBits);
    bits += uint64_t{counts.counts[i]} * ResidualBitCount(symbol);
  }
  return bits;
}

}  // namespace

// Equal rows are only marked. The others get scales, classes from them, perhaps a second round
// without the remaining rows, and are then coded as symbols by class with raw low bits.
void EncodeSimilarRows(SimilarRows& similar, double own_bits, CodecScratch& codec,
                       ByteWriter& out) {
  ContextScratch& scratch = codec.context;
  MarkEqualRows(similar);
  ChannelScales channels;
  if (CodedRows(similar) > 0) {
    channels = FindScales(similar);
    scratch.tables.resize(CodedRows(similar) * similar.columns);
    ComputeClasses(similar, channels.scales, scratch.tables.data());
    if (FindOwnRows(similar, scratch.tables.data(), own_bits))
      ComputeClasses(similar, channels.scales, scratch.tables.data());
  }
  const uint64_t count = CodedRows(similar) * similar.columns;
  const ResidualGrid grid{similar.form.bfloat, count == 0 ? 0 : LowZeros(similar)};
  const uint32_t lanes = RansLanesFor({1, count}, 1 << 14, 1 << 16);
  out.U8(static_cast<uint8_t>(grid.low_zeros));
  out.U8(static_cast<uint8_t>(std::countr_zero(lanes / kRansLanes)));
  WriteFactors(similar.factors, codec, out);
  if (count == 0) return;

  scratch.symbols.resize(count);
  scratch.tables.resize(count);
  scratch.contexts.resize(count);
  uint8_t *symbols = scratch.symbols.data(), *tables = scratch.tables.data();
  uint16_t* extras = scratch.contexts.data();
  ComputeSymbols(similar, grid, symbols, extras);
  ContextCounts counts(kResidualClasses, kResidualSymbolBits, &scratch.arena);
  CountResiduals(tables, symbols, count, counts);
  const std::vector<uint16_t> order = ResidualClassOrder();
  const ContextModel model = MakeResidualModel(counts, order, &scratch.arena);
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
  // PackResidualBits stores whole words, so the buffer ends some bytes after the last bit.
  ArenaVector<std::byte> raw(raw_bytes + 16, &scratch.arena);
  PackResidualBits(symbols, extras, count, raw.data(), 0);
  out.Append(ByteSpan(raw).first(raw_bytes));
  out.Append(std::as_bytes(std::span(states).first(lanes)));
  out.Append(std::as_bytes(std::span(begin, end)));
}

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
      throw Error(Finding::kBadFrame, "a scale is too large").At(at);
    scales.push_back(static_cast<int16_t>(sum));
  }
  return scales;
}

// Decodes the coded rows, one run of them at a time. Returns false if a distance leads outside the
// range of values.
bool TakeValues(const uint8_t* symbols, const ResidualGrid& grid, ResidualBits& bits,
                SimilarRows& similar) {
  bool good = true;
  for (uint64_t row = 0, end = 0; row < similar.rows(); row = end) {
    const bool is_coded = similar.factors[row] < kEqualRow;
    for (end = row; end < similar.rows() && (similar.factors[end] < kEqualRow) == is_coded;) ++end;
    if (!is_coded) continue;
    const uint64_t at = row * similar.columns, more = (end - row) * similar.columns;
    good = good && ResidualValues(symbols, similar.expected.data() + at, more, grid, bits,
                                  similar.values.data() + at);
    symbols += more;
  }
  return good;
}

}  // namespace

void DecodeSimilarRows(ByteReader& reader, SimilarRows& similar, CodecScratch& codec) {
  ContextScratch& scratch = codec.context;
  const uint64_t columns = similar.columns;
  const uint64_t grid_at = reader.offset();
  const ResidualGrid grid{similar.form.bfloat, reader.U8("low zeros")};
  const uint32_t lane_code = reader.U8("lanes");
  if (grid.low_zeros > 15 || lane_code > 2)
    throw Error(Finding::kBadFrame, "the grid or the number of lanes is too large").At(grid_at);
  ReadFactors(reader, similar, codec);
  const uint64_t count = CodedRows(similar) * columns;
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
    ComputeClasses(similar, scales, scratch.tables.data());
    LookUpTables(model.table_of.data(), count, scratch.tables.data());
    RansStates states = coded.states;
    const size_t used = RansDecode(scratch.symbols.data(), {1, count, kRansLanes << lane_code},
                                   {.tables = scratch.tables.data()}, scratch.slots.data(),
                                   coded.words.data(), coded.word_count(), states);
    CheckCodedEnd(coded, used, states, 0);
    const bool good = TakeValues(scratch.symbols.data(), grid, bits, similar);
    if (!good || (bits.at + 7) / 8 != bits.size) {
      throw Error(Finding::kBadPayload,
                  "the distances do not decode to valid values, or bits are left over")
          .At(coded.words_at);
    }
  }
  CopyEqualRows(similar);
  reader.ExpectEnd("the similar rows");
}

}  // namespace kv
