// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Layered chunks with the weights of a profile (profiled.h; FORMAT.md, "Profiled layers"). The
// forecast of a row depends on other chunks only, so many rows are computed in one product.

#include <cmath>
#include <memory>

#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/core/codec/cdf/cdf.h"
#include "lib/core/codec/context/lms.h"
#include "lib/core/codec/halves.h"
#include "lib/core/codec/profiled/profiled.h"
#include "lib/core/kernels/panel.h"

namespace kv {
namespace {

// Rows that are forecast together: their taps and results stay in the caches (1,000 taps and
// 192 columns: 0.3 MB).
constexpr uint64_t kForecastRows = 64;
// Exponent fields of 1.0, by which values get their natural scale back. An e4m3 float is widened to
// the f16 value with the same fields, an e5m2 float to the same value.
constexpr int kUnitOfBfloat = 127, kUnitOfHalf = 15, kUnitOfE4M3 = 7;

struct ProfiledLayersHead {
  size_t regression = 0;
  uint32_t position = 0;  // of the first row
};

int UnitExponent(HalfForm form, const Regressions& of) {
  if (form.bfloat) return kUnitOfBfloat;
  const bool is_e4m3 = form.byte_shift != 0 && form.byte_shift == FindByteShift(DType::kF8E4M3);
  return is_e4m3 && of.knows_e4m3 ? kUnitOfE4M3 : kUnitOfHalf;
}

const Regression& GetRegression(const Profile* profile, size_t place) {
  if (profile == nullptr)
    throw Error(Finding::kProfileMissing, "the chunk needs the profile that it was coded with");
  if (place >= profile->regressions().list.size())
    throw Error(Finding::kBadFrame, "the profile has no regression {}", place).At(0);
  return profile->regressions().list[place];
}

ProfiledLayersHead ReadProfiledLayersHead(ByteReader& reader) {
  ProfiledLayersHead head;
  head.regression = reader.U16("regression");
  head.position = reader.U32("position of the first row");
  return head;
}

// Returns the positions of a chunk's rows, modulo 2^32.
std::vector<uint32_t> ListPositions(uint32_t first, const RowSteps& steps, uint64_t rows) {
  std::vector<uint32_t> positions(rows);
  for (uint64_t row = 0; row < rows; ++row) positions[row] = first + steps[row];
  return positions;
}

// Limits of a start, so that no profile leads the model's arithmetic out of range.
constexpr float kMostStartPower = kRegressLimit * kRegressLimit, kMostStartWeight = 16,
                kLeastStartSpread = 1.0f / 1024, kMostStartSpread = 32, kMostStartError = 1 << 20;

// Returns values whose upper halves these are, multiplied by `scale` and limited.
std::vector<float> ScaleStart(std::span<const uint16_t> halves, float scale, float most) {
  std::vector<float> values;
  for (const uint16_t half : halves) values.push_back(std::min(BF16ToF32(half) * scale, most));
  return values;
}

// Makes the start of a frame whose values are multiplied by `scale`. `weights` are those of the
// regression, [tap][column] with `stride`.
ChannelStart MakeStart(const Regression& regression, const Rotation& rotation,
                       std::span<const float> weights, uint64_t stride, float scale) {
  const RegressionStart& from = *regression.start;
  ChannelStart start;
  start.near = from.near;
  start.far = from.far;
  if (!regression.is_value) start.rotation = rotation;
  start.variances = ScaleStart(from.variances, scale * scale, kMostStartPower);
  start.powers = ScaleStart(from.powers, scale * scale, kMostStartPower);
  for (size_t i = 0; i < from.spreads.size(); ++i)
    start.spreads[i] = std::clamp(BF16ToF32(from.spreads[i]), kLeastStartSpread, kMostStartSpread);
  for (size_t i = 0; i < from.errors.size(); ++i)
    start.relative_errors[i] = std::min(BF16ToF32(from.errors[i]), kMostStartError);
  const uint64_t first = regression.taps() - regression.frame_taps();
  const bool rotates = !start.rotation.angles.empty();
  for (uint64_t i = 0; i < regression.frame_taps(); ++i) {
    const bool constant = IsConstantTap(i, rotates);
    for (uint64_t c = 0; c < regression.columns; ++c) {
      const float weight = weights[(first + i) * stride + c] * (constant ? scale : 1.0f);
      start.weights.push_back(std::abs(weight) <= kMostStartWeight ? weight : 0);
    }
  }
  return start;
}

// Forecasts rows with the fixed weights of a regression.
class ProfiledForecast : public RowForecast {
 public:
  // `largest` is the chunk's largest exponent field; values are scaled by it.
  ProfiledForecast(const Regression& regression, const Regressions& of,
                   std::span<const int8_t> integers, std::vector<uint32_t> positions,
                   const NeighbourSource* source, HalfForm form, uint32_t largest)
      : RowForecast(positions.size(), regression.columns,
                    regression.block == 0 ? regression.columns : regression.block),
        regression_(regression),
        of_(of),
        rotation_(of.rotation),
        positions_(std::move(positions)),
        stride_(PaddedToPanel(columns)),
        taps_(kForecastRows * regression.neighbour_taps()),
        weights_(ScaleWeights(regression, integers, stride_)),
        forecast_(kForecastRows * stride_),
        own_(stride_),
        still_(stride_),
        rotated_(stride_),
        expected_(stride_),
        scale_(std::ldexp(1.0f, UnitExponent(form, of) - static_cast<int>(largest))),
        natural_(std::ldexp(1.0f, static_cast<int>(largest) - UnitExponent(form, of))),
        rotator_(of.rotation, columns) {
    for (const Neighbour& one : regression_.neighbours) {
      neighbours_.push_back(
          std::make_unique<NeighbourTaps>(one, source, rows, rotation_, RowSteps(positions_)));
    }
    if (!regression_.start) return;
    start_ = MakeStart(regression_, rotation_, weights_, stride_, scale_);
    start_->steps = RowSteps(positions_);
  }

  const float* Expect(uint64_t row) override {
    if (row % kForecastRows == 0) ComputeRows(row, std::min(kForecastRows, rows - row));
    Finish(row, 0);
    return expected_.data();
  }
  void Continue(uint64_t row, uint64_t begin, const float* x) override {
    const uint64_t first = begin - block;
    if (rotates()) {
      // A block has whole heads, so its columns depend on no others.
      std::copy(x + first, x + begin, still_.begin() + static_cast<ptrdiff_t>(first));
      rotator_.Rotate(0u - positions_[row], still_.data(), rotated_.data());
      x = rotated_.data();
    }
    for (uint64_t c = first; c < begin; ++c) own_[c] = x[c] * natural_;
    const uint64_t width = std::min(block, stride_ - begin);
    PanelAdd(GetRow(row) + begin, stride_, 1, width,
             {own_.data(), 1, 0, weights_.data() + regression_.neighbour_taps() * stride_ + begin,
              static_cast<ptrdiff_t>(stride_), begin});
    Finish(row, begin);
  }
  void Learn(uint64_t, const float*) override {}
  const ChannelStart* start() const override { return start_ ? &*start_ : nullptr; }

 private:
  bool rotates() const { return !regression_.is_value && !rotation_.angles.empty(); }
  float* GetRow(uint64_t row) { return forecast_.data() + row % kForecastRows * stride_; }

  // Scales and rotates the forecast of the block at `begin`.
  void Finish(uint64_t row, uint64_t begin) {
    const uint64_t end = std::min(begin + block, columns);
    const float* forecast = GetRow(row);
    float* to = rotates() ? still_.data() : expected_.data();
    for (uint64_t c = begin; c < end; ++c) to[c] = forecast[c] * scale_;
    if (rotates()) {
      rotator_.Rotate(positions_[row], still_.data(), rotated_.data());
      std::copy(rotated_.data() + begin, rotated_.data() + end, expected_.data() + begin);
    }
    // A forecast out of range, or not a number, must not reach the model's arithmetic.
    for (uint64_t c = begin; c < end; ++c) {
      if (!(std::abs(expected_[c]) < kRegressLimit)) expected_[c] = 0;
    }
  }

  void ComputeRows(uint64_t first, uint64_t count) {
    const uint64_t width = regression_.neighbour_taps();
    uint64_t begin = 0;
    for (const auto& one : neighbours_) {
      const int exponent = static_cast<int>(one->largest()) - UnitExponent(one->form(), of_);
      const float natural = std::ldexp(1.0f, exponent);
      for (uint64_t row = 0; row < count; ++row) {
        float* taps = taps_.data() + row * width + begin;
        one->Row(first + row, taps);
        for (uint64_t i = 0; i < one->wanted(); ++i) taps[i] *= natural;
      }
      begin += one->wanted();
    }
    for (uint64_t row = 0; row < count; ++row)
      std::ranges::copy(regression_.constants, forecast_.data() + row * stride_);
    PanelAdd(forecast_.data(), stride_, count, stride_,
             {taps_.data(), 1, static_cast<ptrdiff_t>(width), weights_.data(),
              static_cast<ptrdiff_t>(stride_), width});
  }

  const Regression& regression_;
  const Regressions& of_;
  const Rotation& rotation_;
  const std::vector<uint32_t> positions_;
  const uint64_t stride_;
  std::vector<float> taps_;
  const std::vector<float> weights_;
  // Forecast rows and the known columns of one row, in their natural scale, K without its rotation.
  std::vector<float> forecast_, own_;
  // Blocks of a row as the model sees them: K before and after its rotation, and the result.
  std::vector<float> still_, rotated_, expected_;
  const float scale_, natural_;
  Rotator rotator_;
  std::vector<std::unique_ptr<NeighbourTaps>> neighbours_;
  std::optional<ChannelStart> start_;
};

bool FitsRegression(const Profile& profile, const Regression& regression, const ChunkGrid& grid) {
  const Rotation& rotation = profile.regressions().rotation;
  const bool rotates = !regression.is_value;
  return FitsCdf(grid.rows, grid.columns) && grid.columns == regression.columns &&
         (!rotates || FitsRotation(rotation.distance, rotation.angles.size(), grid.columns));
}

}  // namespace

bool EncodeProfiledLayers(const Profile& profile, size_t regression, uint32_t position,
                          const ChunkShape& shape, ByteSpan raw, const NeighbourSource& source,
                          uint64_t to_beat, CodecScratch& scratch, Bytes& payload,
                          const RowSteps& steps) {
  const Arena::Scope temporaries(&scratch.context.arena);
  const ChunkGrid grid = FindGrid(shape, raw.size());
  if (!FitsLayers(shape) || grid.rows != shape.tokens ||
      !FitsRegression(profile, GetRegression(&profile, regression), grid))
    return false;
  const Halves halves(shape.dtype, raw, &scratch.context.arena);
  const HalfForm form = MakeForm(HalvesShape(shape));
  const size_t begin = payload.size();
  ByteWriter out(std::move(payload));
  out.U16(static_cast<uint16_t>(regression));
  out.U32(position);
  payload = out.Release();
  const uint64_t head_bytes = payload.size() - begin;
  ProfiledForecast forecast(profile.regressions().list[regression], profile.regressions(),
                            profile.GetIntegers(regression),
                            ListPositions(position, steps, grid.rows), &source, form,
                            LmsLargestExponent(halves.bytes(), form.bfloat));
  if (to_beat > head_bytes &&
      EncodeCdf(halves.bytes(), form, grid.rows, grid.columns, HeadDim(shape), steps,
                to_beat - head_bytes, payload, &scratch.context.arena, &forecast)) {
    return true;
  }
  payload.resize(begin);
  return false;
}

namespace {

// The largest integer of a tap of the frame, which leaves room for the rounding of its step.
constexpr float kMostStartInteger = 120;

std::vector<uint16_t> HalveStart(std::span<const float> values, float factor) {
  std::vector<uint16_t> halves;
  for (const float value : values) halves.push_back(ToUpperHalf(value * factor));
  return halves;
}

// Appends a tap's weights, rounded to multiples of a step that is as fine as the error allows:
// `deviation` is that of the tap's values.
void AppendTap(std::span<const float> weights, float deviation, Regression& regression,
               std::vector<int8_t>& integers) {
  float step = 1 / std::max(deviation, 1e-12f);
  const auto scale = [&](uint64_t c) { return BF16ToF32(regression.scales[c]); };
  for (uint64_t c = 0; c < weights.size(); ++c) {
    if (scale(c) > 0) step = std::max(step, std::abs(weights[c]) / scale(c) / kMostStartInteger);
  }
  regression.steps.push_back(ToUpperHalf(step));
  for (uint64_t c = 0; c < weights.size(); ++c) {
    const float unit = BF16ToF32(regression.steps.back()) * scale(c);
    const float wanted = unit > 0 ? std::round(weights[c] / unit) : 0;
    integers.push_back(static_cast<int8_t>(
        std::clamp<float>(wanted, -kMostRegressionWeight, kMostRegressionWeight)));
  }
}

}  // namespace

void LearnRegressionStart(const Regressions& of, ByteSpan values, HalfForm form,
                          const std::vector<uint32_t>& positions, const NeighbourSource& source,
                          Regression& regression, std::vector<int8_t>& integers) {
  const uint32_t largest = LmsLargestExponent(values, form.bfloat);
  ChannelStart start;
  {
    ProfiledForecast forecast(regression, of, integers, positions, &source, form, largest);
    start = LearnStart(values, form, regression.is_value ? Rotation() : of.rotation,
                       2 * of.rotation.angles.size(), RowSteps(positions), forecast);
  }
  const float natural = std::ldexp(1.0f, static_cast<int>(largest) - UnitExponent(form, of));
  RegressionStart& to = regression.start.emplace();
  to.near = start.near;
  to.far = start.far;
  to.variances = HalveStart(start.variances, natural * natural);
  to.powers = HalveStart(start.powers, natural * natural);
  std::ranges::copy(HalveStart(start.spreads, 1), to.spreads.begin());
  for (float& error : start.relative_errors) error = std::min(error, kMostStartError);
  std::ranges::copy(HalveStart(start.relative_errors, 1), to.errors.begin());
  const uint64_t columns = regression.columns, taps = start.weights.size() / columns;
  float power = 0;
  for (const float one : start.powers) power += one / static_cast<float>(columns);
  for (uint64_t i = 0; i < taps; ++i) {
    const bool constant = IsConstantTap(i, !start.rotation.angles.empty());
    std::span<float> weights(start.weights.data() + i * columns, columns);
    if (constant) {
      for (float& weight : weights) weight *= natural;
    }
    AppendTap(weights, constant ? 1 : std::sqrt(power) * natural, regression, integers);
  }
  CodeWeights(integers, regression);
}

const std::vector<Neighbour>& ReadProfiledNeighbours(ByteSpan payload, const Profile* profile) {
  ByteReader reader(payload);
  return GetRegression(profile, ReadProfiledLayersHead(reader).regression).neighbours;
}

void DecodeProfiledLayers(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                          CodecScratch& scratch, const ChunkInputs& inputs) {
  ByteReader reader(payload);
  const ProfiledLayersHead head = ReadProfiledLayersHead(reader);
  const Regression& regression = GetRegression(inputs.profile, head.regression);
  const ChunkGrid grid = FindGrid(shape, raw.size());
  if (shape.order != Order::kTokenHeadDim || grid.rows != shape.tokens ||
      !FitsRegression(*inputs.profile, regression, grid))
    throw Error(Finding::kBadFrame, "the chunk's rows are not those of its regression").At(0);
  CheckSteps(inputs.steps, grid.rows);
  const ByteSpan frame = reader.Take(reader.remaining(), "distributions");
  // A frame begins with its largest exponent, which the forecast needs to scale its values.
  const uint32_t largest = frame.empty() ? 0 : static_cast<uint32_t>(frame[0]);
  ProfiledForecast forecast(regression, inputs.profile->regressions(),
                            inputs.profile->GetIntegers(head.regression),
                            ListPositions(head.position, inputs.steps, grid.rows),
                            inputs.neighbours, MakeForm(shape), largest);
  DecodeCdf(frame, MakeForm(shape), raw, inputs.steps, &scratch.context.arena, &forecast);
}

}  // namespace kv
