// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Layered chunks with the weights of a profile (profiled.h; FORMAT.md, "Profiled layers"). The
// forecast of a row depends on other chunks only, so many rows are computed in one product.

#include <cmath>
#include <memory>

#include "lib/core/base/error.h"
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
// Exponent fields of 1.0, by which values get their natural scale back.
constexpr int kUnitOfBfloat = 127, kUnitOfHalf = 15;

struct ProfiledLayersHead {
  size_t regression = 0;
  uint32_t position = 0;  // of the first row
};

int UnitExponent(bool bfloat) { return bfloat ? kUnitOfBfloat : kUnitOfHalf; }

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

// Forecasts rows with the fixed weights of a regression.
class ProfiledForecast : public RowForecast {
 public:
  // `largest` is the chunk's largest exponent field; values are scaled by it.
  ProfiledForecast(const Profile& profile, const ProfiledLayersHead& head, const ChunkGrid& grid,
                   const RowSteps& steps, const NeighbourSource* source, HalfForm form,
                   uint32_t largest)
      : RowForecast(grid.rows, grid.columns),
        regression_(profile.regressions().list[head.regression]),
        rotation_(profile.regressions().rotation),
        positions_(ListPositions(head.position, steps, grid.rows)),
        stride_(PaddedToPanel(grid.columns)),
        taps_(kForecastRows * regression_.taps()),
        weights_(ScaleWeights(regression_, profile.GetIntegers(head.regression), stride_)),
        forecast_(kForecastRows * stride_),
        scale_(std::ldexp(1.0f, UnitExponent(form.bfloat) - static_cast<int>(largest))),
        rotator_(rotation_, grid.columns),
        rotated_(grid.columns) {
    for (const Neighbour& one : regression_.neighbours) {
      neighbours_.push_back(
          std::make_unique<NeighbourTaps>(one, source, grid.rows, rotation_, RowSteps(positions_)));
    }
  }

  const float* Expect(uint64_t row) override {
    if (row % kForecastRows == 0) ComputeRows(row, std::min(kForecastRows, rows - row));
    float* expected = forecast_.data() + row % kForecastRows * stride_;
    for (uint64_t c = 0; c < columns; ++c) expected[c] *= scale_;
    if (!regression_.is_value && !rotation_.angles.empty()) {
      rotator_.Rotate(positions_[row], expected, rotated_.data());
      expected = rotated_.data();
    }
    // A forecast out of range, or not a number, must not reach the model's arithmetic.
    for (uint64_t c = 0; c < columns; ++c) {
      if (!(std::abs(expected[c]) < kRegressLimit)) expected[c] = 0;
    }
    return expected;
  }
  void Learn(uint64_t, const float*) override {}

 private:
  void ComputeRows(uint64_t first, uint64_t count) {
    const uint64_t width = regression_.taps();
    uint64_t begin = 0;
    for (const auto& one : neighbours_) {
      const int exponent = static_cast<int>(one->largest()) - UnitExponent(one->bfloat());
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
  const Rotation& rotation_;
  const std::vector<uint32_t> positions_;
  const uint64_t stride_;
  std::vector<float> taps_;
  const std::vector<float> weights_;
  std::vector<float> forecast_;
  const float scale_;
  Rotator rotator_;
  std::vector<float> rotated_;
  std::vector<std::unique_ptr<NeighbourTaps>> neighbours_;
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
  ProfiledForecast forecast(profile, {regression, position}, grid, steps, &source, form,
                            LmsLargestExponent(halves.bytes(), form.bfloat));
  if (to_beat > head_bytes &&
      EncodeCdf(halves.bytes(), form, grid.rows, grid.columns, HeadDim(shape), steps,
                to_beat - head_bytes, payload, &scratch.context.arena, &forecast)) {
    return true;
  }
  payload.resize(begin);
  return false;
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
  ProfiledForecast forecast(*inputs.profile, head, grid, inputs.steps, inputs.neighbours,
                            MakeForm(shape), largest);
  DecodeCdf(frame, MakeForm(shape), raw, inputs.steps, &scratch.context.arena, &forecast);
}

}  // namespace kv
