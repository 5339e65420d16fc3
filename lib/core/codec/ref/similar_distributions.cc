// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Similar rows under learned distributions (similar_rows.h; FORMAT.md has the grammar of codec 26):
// a ChannelModel predicts the errors, and the value is coded under the distribution that follows
// for it.

#include <algorithm>
#include <cmath>

#include "lib/core/codec/cdf/cdf.h"
#include "lib/core/codec/context/lms.h"
#include "lib/core/codec/ref/similar_rows.h"

namespace kv {
namespace {

// Errors are multiplied by a power of two per channel, so that their deviation becomes about
// 2^-kErrorBits; even much larger errors then stay below the models' limit.
constexpr int32_t kErrorBits = 6;
// Range of the stored powers: above -kPowerBias and at most kMostPower.
constexpr int32_t kPowerBias = 8, kMostPower = 100;

float PowerOfTwo(int32_t n) { return std::bit_cast<float>(static_cast<uint32_t>(n + 127) << 23); }

// The factors for each channel's errors, and their inverses.
struct ErrorScales {
  std::vector<float> up, down;

  void Add(int32_t power) {
    up.push_back(PowerOfTwo(power));
    down.push_back(PowerOfTwo(-power));
  }
  static float Limited(float error) { return std::abs(error) < kRegressLimit ? error : 0; }
};

// A coded row as the model sees it: its expected values, and a forecast of its errors as hints.
class ExpectedRow {
 public:
  ExpectedRow(const SimilarRows& similar, const ChannelShape& shape, const ErrorScales& scales,
              const ModelValue& value_of, ErrorForecast* forecast)
      : similar_(similar),
        scales_(scales),
        value_of_(value_of),
        forecast_(forecast),
        distance_(shape.rotation.distance),
        r_(similar.columns),
        partners_(similar.columns),
        hint_(similar.columns),
        errors_(similar.columns) {
    if (forecast != nullptr) hints_.push_back(hint_.data());
    hints_.push_back(r_.data());
    hints_.push_back(partners_.data());
    KV_ASSERT(shape.hints <= hints_.size());
  }

  void Load(uint64_t row) {
    const uint16_t* from = similar_.expected.data() + row * similar_.columns;
    for (uint64_t c = 0; c < similar_.columns; ++c) r_[c] = value_of_(from[c]);
    CopyPartners(distance_, r_.data(), similar_.columns, partners_.data());
    if (forecast_ == nullptr) return;
    const float* errors = forecast_->Expect(row);
    for (uint64_t c = 0; c < similar_.columns; ++c)
      hint_[c] = ErrorScales::Limited(ErrorScales::Limited(errors[c]) * scales_.up[c]);
  }
  // Passes the errors of the row's actual values to the forecast.
  void Learn(uint64_t row, const uint16_t* values) {
    if (forecast_ == nullptr) return;
    for (uint64_t c = 0; c < similar_.columns; ++c)
      errors_[c] = ErrorScales::Limited(value_of_(values[c]) - r_[c]);
    forecast_->Learn(row, errors_.data());
  }

  const float* const* hints() const { return hints_.data(); }
  // Convert the distribution of the scaled error to that of the value.
  float Mean(uint64_t column, float error) const {
    return r_[column] + error * scales_.down[column];
  }
  float InverseScale(uint64_t column, float inverse) const { return inverse * scales_.up[column]; }
  // Returns the scaled error of a value.
  float Error(uint64_t column, uint16_t value) const {
    return ErrorScales::Limited((value_of_(value) - r_[column]) * scales_.up[column]);
  }

 private:
  const SimilarRows& similar_;
  const ErrorScales& scales_;
  const ModelValue& value_of_;
  ErrorForecast* const forecast_;
  const uint32_t distance_;
  std::vector<float> r_, partners_, hint_, errors_;
  std::vector<const float*> hints_;
};

std::vector<uint64_t> ListCodedRows(const SimilarRows& similar) {
  std::vector<uint64_t> rows;
  for (uint64_t row = 0; row < similar.rows(); ++row) {
    if (similar.factors[row] < kEqualRow) rows.push_back(row);
  }
  return rows;
}

std::vector<uint8_t> PowersFor(const SimilarRows& similar, const std::vector<uint64_t>& rows,
                               const ModelValue& value_of) {
  std::vector<double> squares(similar.columns);
  for (const uint64_t row : rows) {
    const uint64_t at = row * similar.columns;
    for (uint64_t c = 0; c < similar.columns; ++c) {
      const double error = static_cast<double>(value_of(similar.values[at + c])) -
                           static_cast<double>(value_of(similar.expected[at + c]));
      squares[c] += error * error;
    }
  }
  std::vector<uint8_t> powers;
  for (const double sum : squares) {
    const double deviation = std::sqrt(sum / static_cast<double>(rows.size()));
    const int32_t power = deviation > 0 ? -std::ilogb(deviation) - kErrorBits : kMostPower;
    powers.push_back(
        static_cast<uint8_t>(std::clamp(power, 1 - kPowerBias, kMostPower) + kPowerBias));
  }
  return powers;
}

}  // namespace

bool EncodeSimilarDistributions(SimilarRows& similar, uint64_t head_dim, CodecScratch& scratch,
                                ByteWriter& out, ErrorForecast* forecast) {
  Arena* const arena = &scratch.context.arena;
  MarkEqualRows(similar);
  const std::vector<uint64_t> rows = ListCodedRows(similar);
  if (!FitsCdf(rows.size(), similar.columns)) return false;
  WriteFactors(similar.factors, scratch, out);

  const ByteSpan all = std::as_bytes(std::span(similar.values));
  const uint32_t largest =
      std::max(LmsLargestExponent(all, similar.form.bfloat),
               LmsLargestExponent(std::as_bytes(std::span(similar.expected)), similar.form.bfloat));
  const float scale = LmsScale(largest);
  const ModelValue value_of(similar.form.bfloat, scale);
  const Rotation rotation = FindRotation(all, similar.form.bfloat, scale, similar.rows(),
                                         similar.columns, head_dim, {}, arena);
  std::vector<float> first(similar.columns);
  ChannelShape shape =
      ShapeFor(first.data(), rows.size(), similar.columns, head_dim, rotation, kLongReach);
  shape.rotation.angles.clear();  // errors depend on the column only, so they are not rotated
  shape.first_deviation = PowerOfTwo(-kErrorBits);
  WriteShape(largest, shape, out);
  shape.hints = rotation.angles.empty() ? 1 : 2;
  out.U8(static_cast<uint8_t>(shape.hints));
  const std::vector<uint8_t> powers = PowersFor(similar, rows, value_of);
  out.Append(std::as_bytes(std::span(powers)));
  ErrorScales errors;
  for (const uint8_t power : powers) errors.Add(power - kPowerBias);
  if (forecast != nullptr) ++shape.hints;
  const LogisticCode code(similar.form, scale);
  ArenaVector<CodeSlot> slots(rows.size() * similar.columns, arena);
  ExpectedRow expected(similar, shape, errors, value_of, forecast);
  ChannelModel model(std::move(shape), arena);
  ArenaVector<float> known(similar.columns, arena), means(similar.columns, arena),
      inverse_scales(similar.columns, arena);
  CodeSlot* to = slots.data();
  for (const uint64_t row : rows) {
    expected.Load(row);
    const uint16_t* values = similar.values.data() + row * similar.columns;
    for (uint64_t c = 0; c < similar.columns; ++c) known[c] = expected.Error(c, values[c]);
    model.BeginRow(0, 0, expected.hints());
    model.SetRow(known.data(), means.data(), inverse_scales.data());
    for (uint64_t c = 0; c < similar.columns; ++c) {
      means[c] = expected.Mean(c, means[c]);
      inverse_scales[c] = expected.InverseScale(c, inverse_scales[c]);
    }
    code.FindSlots(values, means.data(), inverse_scales.data(), similar.columns, to);
    to += similar.columns;
    model.EndRow();
    expected.Learn(row, values);
  }
  WriteSlots(slots, out, arena);
  return true;
}

void DecodeSimilarDistributions(ByteReader& reader, SimilarRows& similar, CodecScratch& scratch,
                                ErrorForecast* forecast) {
  ReadFactors(reader, similar, scratch);
  const std::vector<uint64_t> rows = ListCodedRows(similar);
  const uint64_t head_at = reader.offset();
  uint32_t largest = 0;
  ChannelShape shape = ReadShape(reader, 2 * rows.size() * similar.columns, largest);
  shape.hints = reader.U8("hints");
  if (shape.columns != similar.columns || shape.has_earlier_rows ||
      !shape.rotation.angles.empty() || shape.hints < 1 || shape.hints > 2) {
    throw Error(Finding::kBadFrame, "the error distributions do not fit the similar rows")
        .At(head_at);
  }
  ErrorScales errors;
  for (const std::byte power : reader.Take(similar.columns, "powers of errors")) {
    if (std::to_integer<int32_t>(power) > kMostPower + kPowerBias)
      throw Error(Finding::kBadFrame, "an error's power of two is out of range").At(head_at);
    errors.Add(std::to_integer<int32_t>(power) - kPowerBias);
  }
  SlotReader slots(reader);
  const float scale = LmsScale(largest);
  const ModelValue value_of(similar.form.bfloat, scale);
  const LogisticCode code(similar.form, scale);
  if (forecast != nullptr) ++shape.hints;
  ExpectedRow expected(similar, shape, errors, value_of, forecast);
  ChannelModel model(std::move(shape), &scratch.context.arena);
  for (const uint64_t row : rows) {
    expected.Load(row);
    uint16_t* values = similar.values.data() + row * similar.columns;
    model.BeginRow(0, 0, expected.hints());
    for (uint64_t group = 0, c = 0; group < model.groups(); ++group) {
      model.BeginGroup(group);
      for (uint64_t lane = 0; lane < model.lanes(group); ++lane, ++c) {
        const ChannelModel::Expected error = model.Expect(lane);
        CodeSlot slot;
        values[c] = code.Find(slots.target(), expected.Mean(c, error.mean),
                              expected.InverseScale(c, error.inverse_scale), slot);
        slots.Take(slot);
        model.Set(lane, error.mean, expected.Error(c, values[c]));
      }
      model.EndGroup();
    }
    model.EndRow();
    expected.Learn(row, values);
  }
  slots.CheckEnd();
  CopyEqualRows(similar);
  reader.ExpectEnd("the similar rows");
}

}  // namespace kv
