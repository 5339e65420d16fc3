// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Encoder and decoder of cdf frames (cdf.h; FORMAT.md, "Distribution chunks"): the frame's header,
// the list of similar rows, the loop over rows and values, and the integer form of the logistic
// distribution.

#include "lib/core/codec/cdf/cdf.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lib/core/codec/context/earlier_rows.h"
#include "lib/core/codec/context/lms.h"

namespace kv {
namespace {

// Limits of the grammar. With fewer rows, learning the model costs more than it saves.
constexpr uint64_t kLeastRows = 16, kMostValues = uint64_t{1} << 27;

// Adaptive frequencies of the similarity classes. Each count starts at one, so that every class has
// a slot.
class SimilarityCounts {
 public:
  CodeSlot GetSlot(uint32_t similarity) const {
    uint32_t before = 0;
    for (uint32_t i = 0; i < similarity; ++i) before += counts_[i];
    return MakeShare(before, counts_[similarity], total_);
  }
  void Add(uint32_t similarity) {
    ++counts_[similarity];
    ++total_;
  }

 private:
  std::array<uint32_t, kSimilarityClasses> counts_ = {1, 1, 1, 1, 1, 1};
  uint32_t total_ = kSimilarityClasses;
};

void AddEarlierRow(const EarlierRow& like, uint64_t row, SimilarityCounts& counts,
                   ArenaVector<CodeSlot>& slots) {
  slots.push_back(counts.GetSlot(like.similarity));
  if (like.similarity > 0) slots.push_back(MakeShare(like.distance - 1, 1, row));
  counts.Add(like.similarity);
}

EarlierRow ReadEarlierRow(SlotReader& slots, SimilarityCounts& counts, uint64_t row) {
  EarlierRow like;
  CodeSlot slot = counts.GetSlot(0);
  // The classes are few: a linear search is cheaper than a lookup table.
  while (slots.target() - slot.start >= slot.size) {
    if (++like.similarity == kSimilarityClasses)
      slots.Refuse("a row's similarity class is out of range");
    slot = counts.GetSlot(like.similarity);
  }
  slots.Take(slot);
  counts.Add(like.similarity);
  if (like.similarity == 0) return like;
  if (row == 0) slots.Refuse("the first row refers to a row above it");
  const uint64_t before = slots.target() / MakeShare(0, 1, row).size;
  if (before >= row) slots.Refuse("a row refers to one that does not exist");
  slots.Take(MakeShare(before, 1, row));
  like.distance = static_cast<uint32_t>(before) + 1;
  return like;
}

[[noreturn]] void RefuseHeader(uint64_t at, const std::string& what) {
  throw Error(Finding::kBadFrame, what).At(at);
}

void CheckShape(const ChannelShape& shape, uint64_t value_bytes) {
  if (!FitsCdf(shape.rows, shape.columns) || shape.rows * shape.columns * 2 != value_bytes) {
    RefuseHeader(4, fmt::format("the frame has {} rows of {} values, expected {} bytes in at least "
                                "{} rows of at most {}",
                                shape.rows, shape.columns, value_bytes, kLeastRows,
                                ChannelModel::kMaxColumns));
  }
  if (shape.near > ChannelModel::kMaxNear || shape.near >= shape.columns)
    RefuseHeader(
        1, fmt::format("{} neighbours of {} channels are too many", shape.near, shape.columns));
  if (!(shape.first_deviation >= 0 && shape.first_deviation <= kRegressLimit))
    RefuseHeader(12, "the deviation of the first row is out of range");
  CheckRotation(shape.rotation.distance, shape.rotation.angles.size(), shape.columns, 16);
  for (const uint16_t far : shape.far) {
    if (!IsFarTap(far, shape.near, shape.columns))
      RefuseHeader(20, fmt::format("far channel {}", far));
  }
}

}  // namespace

bool FitsCdf(uint64_t rows, uint64_t columns) {
  return rows >= kLeastRows && columns > 0 && columns <= ChannelModel::kMaxColumns &&
         rows <= kMostValues / columns;
}

ChannelShape ShapeFor(const float* x, uint64_t rows, uint64_t columns, uint64_t head_dim,
                      Rotation rotation, Reach reach) {
  ChannelShape shape;
  shape.rows = rows;
  shape.columns = columns;
  shape.rotation = std::move(rotation);
  shape.near = static_cast<uint32_t>(std::min(reach.near, columns - 1));
  const auto add = [&](uint64_t distance) {
    if (IsFarTap(distance, shape.near, columns))
      shape.far.push_back(static_cast<uint16_t>(distance));
  };
  if (shape.rotation.distance > 1) add(shape.rotation.distance);
  if (head_dim == 0) head_dim = 2 * shape.rotation.angles.size();
  for (uint64_t head = 1; head_dim > 0 && head <= reach.heads; ++head) add(head * head_dim);
  // The first row has no row above it: the model starts from the root mean square of its values.
  double power = 0;
  for (uint64_t c = 0; c < columns; ++c)
    power += static_cast<double>(x[c]) * static_cast<double>(x[c]);
  shape.first_deviation = static_cast<float>(std::sqrt(power / static_cast<double>(columns)));
  return shape;
}

void WriteShape(uint32_t largest, const ChannelShape& shape, ByteWriter& frame) {
  frame.U8(static_cast<uint8_t>(largest));
  frame.U8(static_cast<uint8_t>(shape.near));
  frame.U8(static_cast<uint8_t>(shape.far.size()));
  frame.U8(shape.has_earlier_rows ? 1 : 0);
  frame.U32(static_cast<uint32_t>(shape.rows));
  frame.U32(static_cast<uint32_t>(shape.columns));
  frame.U32(std::bit_cast<uint32_t>(shape.first_deviation));
  frame.U16(static_cast<uint16_t>(shape.rotation.distance));
  frame.U16(static_cast<uint16_t>(shape.rotation.angles.size()));
  for (const uint16_t distance : shape.far) frame.U16(distance);
  for (const uint32_t angle : shape.rotation.angles) frame.U32(angle);
}

ChannelShape ReadShape(ByteReader& reader, uint64_t value_bytes, uint32_t& largest) {
  ChannelShape shape;
  largest = reader.U8("largest exponent");
  if (largest == 0 || largest > kMaxLmsExponent)
    RefuseHeader(0, fmt::format("exponent {}", largest));
  shape.near = reader.U8("near channels");
  const uint32_t far = reader.U8("far channels"), flags = reader.U8("flags");
  if (far > ChannelModel::kMaxFar || flags > 1)
    RefuseHeader(2, fmt::format("a frame cannot have {} far channels and flags {}", far, flags));
  shape.has_earlier_rows = flags == 1;
  shape.rows = reader.U32("rows");
  shape.columns = reader.U32("columns");
  shape.first_deviation = std::bit_cast<float>(reader.U32("deviation of the first row"));
  shape.rotation.distance = reader.U16("distance of partners");
  const uint32_t angles = reader.U16("number of angles");
  for (uint32_t i = 0; i < far; ++i) shape.far.push_back(reader.U16("far channel"));
  for (uint32_t i = 0; i < angles; ++i) shape.rotation.angles.push_back(reader.U32("turn"));
  CheckShape(shape, value_bytes);
  return shape;
}

namespace {

// Sets what the frame's header does not hold: positions, forecast and start.
void AddForecast(const RowForecast* forecast, const RowSteps& steps, ChannelShape& shape) {
  shape.steps = steps;
  if (forecast == nullptr) return;
  shape.hints = 1;
  shape.forecast = true;
  shape.start = forecast->start();
  if (shape.start == nullptr) return;
  shape.rotation = shape.start->rotation;
  shape.steps = shape.start->steps;
}

// Returns the shape of a frame whose taps and rotation the start gives.
ChannelShape ShapeOfStart(const ChannelStart& start, uint64_t rows, uint64_t columns) {
  ChannelShape shape;
  shape.rows = rows;
  shape.columns = columns;
  shape.near = start.near;
  shape.far = start.far;
  return shape;
}

// Returns the expected values of a row whose values are known, or nullptr without a forecast.
const float* ExpectKnown(RowForecast* forecast, uint64_t row, const float* x) {
  if (forecast == nullptr) return nullptr;
  const float* expected = forecast->Expect(row);
  for (uint64_t begin = forecast->block; begin < forecast->columns; begin += forecast->block)
    forecast->Continue(row, begin, x);
  return expected;
}

ArenaVector<float> ListModelValues(ByteSpan values, const ModelValue& value_of, Arena* arena) {
  ArenaVector<float> x(values.size() / 2, arena);
  for (uint64_t i = 0; i < x.size(); ++i) x[i] = value_of(LoadLE<uint16_t>(values.data() + 2 * i));
  return x;
}

}  // namespace

// The encoder knows all values, so the model predicts whole rows (SetRow); the decoder predicts
// channel by channel. Both perform the same operations in the same order, which makes the slots
// equal. The slots are collected first, because rANS writes them in reverse.
bool EncodeCdf(ByteSpan values, HalfForm form, uint64_t rows, uint64_t columns, uint64_t head_dim,
               const RowSteps& steps, uint64_t to_beat, Bytes& out, Arena* arena,
               RowForecast* forecast) {
  const uint64_t count = rows * columns;
  KV_ASSERT(count * 2 == values.size() && FitsCdf(rows, columns));
  const uint32_t largest = LmsLargestExponent(values, form.bfloat);
  const float scale = LmsScale(largest);
  const ArenaVector<float> x = ListModelValues(values, ModelValue(form.bfloat, scale), arena);
  const bool starts = forecast != nullptr && forecast->start() != nullptr;
  ChannelShape shape = starts ? ShapeOfStart(*forecast->start(), rows, columns)
                              : ShapeFor(x.data(), rows, columns, head_dim,
                                         FindRotation(values, form.bfloat, scale, rows, columns,
                                                      head_dim, steps, arena),
                                         kShortReach);
  const Rotation& rotation = starts ? forecast->start()->rotation : shape.rotation;
  const ArenaVector<EarlierRow> earlier_rows =
      FindEarlierRows(values, form.bfloat, rows, columns, rotation, steps, true, arena);
  for (const EarlierRow& like : earlier_rows) shape.has_earlier_rows |= like.similarity > 0;
  const bool with_earlier_rows = shape.has_earlier_rows;
  const size_t begin = out.size();
  ByteWriter frame(std::move(out));
  WriteShape(largest, shape, frame);
  AddForecast(forecast, steps, shape);

  const LogisticCode code(form, scale);
  // One slot per value; each row also has slots for its class and its distance.
  ArenaVector<CodeSlot> slots(arena);
  slots.reserve(count + 2 * rows);
  ChannelModel model(std::move(shape), arena);
  SimilarityCounts counts;
  ArenaVector<uint16_t> halves(columns, arena);
  ArenaVector<float> means(columns, arena), inverse_scales(columns, arena);
  for (uint64_t row = 0; row < rows; ++row) {
    const float* x_row = x.data() + row * columns;
    if (with_earlier_rows) AddEarlierRow(earlier_rows[row], row, counts, slots);
    const float* expected = ExpectKnown(forecast, row, x_row);
    model.BeginRow(earlier_rows[row].similarity, earlier_rows[row].distance, &expected);
    model.SetRow(x_row, means.data(), inverse_scales.data());
    std::memcpy(halves.data(), values.data() + 2 * row * columns, 2 * columns);
    slots.resize(slots.size() + columns);
    code.FindSlots(halves.data(), means.data(), inverse_scales.data(), columns,
                   slots.data() + slots.size() - columns);
    model.EndRow();
    if (forecast != nullptr) forecast->Learn(row, x_row);
  }
  WriteSlots(slots, frame, arena);
  out = frame.Release();
  if (out.size() - begin < to_beat) return true;
  out.resize(begin);
  return false;
}

ChannelStart LearnStart(ByteSpan values, HalfForm form, const Rotation& rotation, uint64_t head_dim,
                        const RowSteps& steps, RowForecast& forecast) {
  const uint64_t rows = forecast.rows, columns = forecast.columns;
  const float scale = LmsScale(LmsLargestExponent(values, form.bfloat));
  const ArenaVector<float> x = ListModelValues(values, ModelValue(form.bfloat, scale), nullptr);
  ChannelShape shape = ShapeFor(x.data(), rows, columns, head_dim, rotation, kShortReach);
  shape.has_earlier_rows = true;
  AddForecast(&forecast, steps, shape);
  const ArenaVector<EarlierRow> earlier_rows =
      FindEarlierRows(values, form.bfloat, rows, columns, rotation, steps, true);
  ChannelModel model(std::move(shape));
  std::vector<float> means(columns), inverse_scales(columns);
  for (uint64_t row = 0; row < rows; ++row) {
    const float* x_row = x.data() + row * columns;
    const float* expected = ExpectKnown(&forecast, row, x_row);
    model.BeginRow(earlier_rows[row].similarity, earlier_rows[row].distance, &expected);
    model.SetRow(x_row, means.data(), inverse_scales.data());
    model.EndRow();
  }
  return model.MakeStart();
}

namespace {

// Throws kBadFrame unless a frame has the taps of its start.
void CheckStart(const ChannelShape& shape, const ChannelStart* start) {
  if (start == nullptr) return;
  if (shape.near != start->near || shape.far != start->far || !shape.rotation.angles.empty())
    RefuseHeader(1, "the frame's taps are not those of its profile");
}

}  // namespace

// Decodes value by value: a channel may be a tap of the next one in its group.
void DecodeCdf(ByteSpan frame, HalfForm form, std::span<std::byte> values, const RowSteps& steps,
               Arena* arena, RowForecast* forecast) {
  ByteReader reader(frame);
  uint32_t largest = 0;
  ChannelShape shape = ReadShape(reader, values.size(), largest);
  CheckSteps(steps, shape.rows);
  SlotReader slots(reader);
  const uint64_t rows = shape.rows;
  const bool with_earlier_rows = shape.has_earlier_rows;
  if (forecast != nullptr) {
    if (shape.rows != forecast->rows || shape.columns != forecast->columns)
      RefuseHeader(4, "the frame's rows do not match the chunk's");
    CheckStart(shape, forecast->start());
  }
  AddForecast(forecast, steps, shape);
  const float scale = LmsScale(largest);
  const ModelValue value_of(form.bfloat, scale);
  const LogisticCode code(form, scale);
  std::vector<float> known(forecast == nullptr ? 0 : shape.columns);
  ChannelModel model(std::move(shape), arena);
  SimilarityCounts counts;
  std::byte* to = values.data();
  for (uint64_t row = 0; row < rows; ++row) {
    const EarlierRow like = with_earlier_rows ? ReadEarlierRow(slots, counts, row) : EarlierRow{};
    const float* expected_row = forecast == nullptr ? nullptr : forecast->Expect(row);
    model.BeginRow(like.similarity, like.distance, &expected_row);
    for (uint64_t group = 0; group < model.groups(); ++group) {
      model.BeginGroup(group);
      for (uint64_t lane = 0; lane < model.lanes(group); ++lane, to += 2) {
        const ChannelModel::Expected expected = model.Expect(lane);
        CodeSlot slot;
        const uint16_t half =
            code.Find(slots.target(), expected.mean, expected.inverse_scale, slot);
        slots.Take(slot);
        StoreLE(to, half);
        const float value = value_of(half);
        model.Set(lane, expected.mean, value);
        if (forecast != nullptr) known[group * kRegressLanes + lane] = value;
      }
      model.EndGroup();
      const uint64_t next = (group + 1) * kRegressLanes;
      if (forecast != nullptr && next < forecast->columns && next % forecast->block == 0) {
        forecast->Continue(row, next, known.data());
        model.ExtendHint(expected_row, next, std::min(forecast->block, forecast->columns - next));
      }
    }
    model.EndRow();
    if (forecast != nullptr) forecast->Learn(row, known.data());
  }
  slots.CheckEnd();
}

const LogisticCode::Table LogisticCode::kTable;

// Tabulates 1 / (1 + e^-x), scaled to the part of 2^30 that the floors of all values leave. Powers
// of e^(-1/16) come from multiplications alone, so that every machine computes the same table; a
// library's exp would differ in the last bit.
LogisticCode::Table::Table() {
  constexpr double kShrink = 0.93941306281347579;  // e^(-1/16)
  constexpr double kWhole = kSlotTotal - (65536 << LogisticShares::kFloorBits);
  constexpr uint32_t kMiddle = kSpan * kSteps;
  double e = 1;
  for (uint32_t i = 0; i <= kMiddle; ++i, e *= kShrink) {
    // floor(x + 0.5) on the two halves keeps the table symmetric, as FORMAT.md spells it.
    below[kMiddle + i] = static_cast<uint32_t>(kWhole / (1 + e) + 0.5);
    below[kMiddle - i] = static_cast<uint32_t>(kWhole * e / (1 + e) + 0.5);
  }
  below[0] = 0;
  below[2 * kMiddle] = below[2 * kMiddle + 1] = static_cast<uint32_t>(kWhole);
}

// Guesses the ordinal of the value at a target by inverting the logistic function. Find corrects
// it, so that the rounding of std::log, which differs between libraries, cannot change the result.
uint32_t LogisticCode::Guess(uint32_t target, float mean, float inverse_scale) const {
  const float share = (static_cast<float>(target) + 0.5f) * (1.0f / kSlotTotal);
  const float value = mean + std::log(share / (1 - share)) / inverse_scale;
  const uint32_t bits = std::bit_cast<uint32_t>(value / shares_.scale);
  const uint32_t magnitude = ((bits & 0x7fffffff) + shares_.half_step) >> shares_.shift;
  const uint32_t limited = std::min<uint32_t>(magnitude, 0x7fff);
  return ((bits >> 31) != 0 ? 0x7fff - limited : 0x8000 + limited) >> shares_.unit_bits;
}

uint16_t LogisticCode::Find(uint32_t target, float mean, float inverse_scale,
                            CodeSlot& slot) const {
  // Slots of the ordinals [first, last], in units of 2^unit_bits, may still contain the target.
  const int unit_bits = shares_.unit_bits;
  uint32_t first = 0, last = 0xffffu >> unit_bits;
  uint32_t place = Guess(target, mean, inverse_scale);
  for (uint32_t tries = 0;; ++tries) {
    // A guess is rarely off by more than one. After three steps the search bisects, so that damaged
    // input cannot make it walk through all 65536 ordinals.
    const bool halve = tries >= 3;
    slot.start = Below(place << unit_bits, mean, inverse_scale);
    if (target < slot.start) {
      last = place - 1;
      place = halve ? first + (last - first) / 2 : last;
      continue;
    }
    const uint32_t end = Below((place + 1) << unit_bits, mean, inverse_scale);
    if (target < end) {
      slot.size = end - slot.start;
      return HalfAt(place << unit_bits, unit_bits);
    }
    first = place + 1;
    place = halve ? first + (last - first) / 2 : first;
  }
}

// Encodes from the last slot to the first, because rANS decodes in the reverse order of encoding.
void WriteSlots(std::span<const CodeSlot> slots, ByteWriter& out, Arena* arena) {
  uint64_t state = kSlotStateLow;
  ArenaVector<uint32_t> words(arena);
  words.reserve(slots.size());
  for (size_t i = slots.size(); i-- > 0;) {
    const CodeSlot& slot = slots[i];
    // Renormalises before the state would exceed 63 bits; the quotient below then fits.
    if (state >= (kSlotStateLow >> kSlotBits << 32) * slot.size) {
      words.push_back(static_cast<uint32_t>(state));
      state >>= 32;
    }
    state = (state / slot.size << kSlotBits) + state % slot.size + slot.start;
  }
  out.U64(state);
  for (size_t i = words.size(); i-- > 0;) out.U32(words[i]);
}

SlotReader::SlotReader(ByteReader& reader) : state_(reader.U64("state")) {
  words_at_ = reader.offset();
  words_ = reader.Take(reader.remaining(), "words");
  if (words_.size() % 4 != 0)
    throw Error(Finding::kTrailingBytes, "the coded values end with half a word").At(words_at_);
}

void SlotReader::Refill() {
  if (used_ == words_.size()) Refuse("the coded values end early");
  state_ = state_ << 32 | LoadLE<uint32_t>(words_.data() + used_);
  used_ += 4;
}

void SlotReader::CheckEnd() const {
  if (used_ != words_.size()) {
    throw Error(Finding::kTrailingBytes, "{} bytes are left over", words_.size() - used_)
        .At(words_at_ + used_);
  }
  // The encoder starts from the lowest state, so an intact frame ends there.
  if (state_ != kSlotStateLow) Refuse("the coded values end in a wrong state");
}

void SlotReader::Refuse(const char* what) const {
  throw Error(Finding::kBadPayload, what).At(words_at_ + used_);
}

}  // namespace kv
