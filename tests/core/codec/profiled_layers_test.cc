// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <functional>
#include <numeric>
#include <random>

#include "lib/core/codec/chunk.h"
#include "lib/core/codec/profiled/profiled.h"
#include "tests/support/profiles.h"
#include "tests/support/refusal.h"
#include "tests/support/targets.h"

// Tests chunks of codec 33 by regressions that were made by hand; how they are learnt is tested in
// tests/core/archive/regression_trainer_test.cc.
namespace kv::profiled_layers_test {
namespace {

constexpr uint32_t kColumns = 16;
constexpr uint64_t kRows = 400;
constexpr size_t kWithNeighbours = 2;  // the regression with 16 columns in SmallRegressions

ChunkShape MakeShape(DType dtype, uint64_t rows = kRows, uint64_t columns = kColumns) {
  return {dtype, rows, 1, columns, Order::kTokenHeadDim};
}

// Neighbours gives K of layer 1 as f16 and V of layer 2 as bf16.
class Neighbours : public NeighbourSource {
 public:
  explicit Neighbours(uint64_t rows = kRows)
      : key_(std::make_shared<const Bytes>(test::ModelRows(DType::kF16, false, rows, 16, 1))),
        value_(std::make_shared<const Bytes>(test::ModelRows(DType::kBF16, false, rows, 16, 2))) {}
  NeighbourChunk Read(const Neighbour& neighbour) const override {
    return neighbour.is_value ? NeighbourChunk{DType::kBF16, value_}
                              : NeighbourChunk{DType::kF16, key_};
  }

 private:
  std::shared_ptr<const Bytes> key_, value_;
};

// Returns rows that the regression forecasts nearly: its own forecast would leave nothing to test.
Bytes MakeRows(const Profile& profile, const Neighbours& neighbours, DType dtype) {
  const Regression& one = profile.regressions().list[kWithNeighbours];
  const std::vector<float> weights =
      ScaleWeights(one, profile.GetIntegers(kWithNeighbours), kColumns);
  const NeighbourChunk value = neighbours.Read({2, true, 7});
  std::mt19937 random(9);
  Bytes raw(kRows * kColumns * 2);
  for (uint64_t row = 0; row < kRows; ++row) {
    for (uint64_t c = 0; c < kColumns; ++c) {
      float x = one.constants[c] + static_cast<float>(random() % 100) / 1000;
      for (uint64_t i = 0; i < 7; ++i) {
        x += BF16ToF32(LoadLE<uint16_t>(value.raw->data() + 2 * (row * 16 + i))) *
             weights[(16 + i) * kColumns + c];
      }
      StoreLE(raw.data() + 2 * (row * kColumns + c),
              dtype == DType::kF16 ? F32ToF16(x) : F32ToBF16(x));
    }
  }
  return raw;
}

Bytes Encode(const Profile& profile, size_t regression, uint32_t position, const ChunkShape& shape,
             ByteSpan raw, const NeighbourSource& source, const RowSteps& steps = {}) {
  CodecScratch scratch;
  Bytes payload;
  REQUIRE(EncodeProfiledLayers(profile, regression, position, shape, raw, source, UINT64_MAX,
                               scratch, payload, steps));
  return payload;
}

Bytes Decode(const ChunkShape& shape, ByteSpan payload, const ChunkInputs& inputs) {
  CodecScratch scratch;
  Bytes raw(shape.tokens * shape.units_per_head * Info(shape.dtype).block_bytes);
  DecodeChunk(CodecId::kProfiledLayers, shape, payload, raw, scratch, inputs);
  return raw;
}

}  // namespace

TEST_CASE("profiled layers: rows come back in every type, at every position and step",
          "[codec][profile]") {
  const auto profile = test::TrainedProfile();
  const Neighbours neighbours;
  std::vector<uint32_t> uneven;
  for (uint32_t row = 0; row < kRows; ++row) uneven.push_back(row + row / 10 * 1000);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const Bytes raw = MakeRows(*profile, neighbours, dtype);
    for (const uint32_t position : {0u, 4000u, UINT32_MAX - 3}) {
      for (const RowSteps& steps : {RowSteps(), RowSteps(uneven)}) {
        const Bytes payload =
            Encode(*profile, kWithNeighbours, position, MakeShape(dtype), raw, neighbours, steps);
        CHECK(Decode(MakeShape(dtype), payload,
                     {.steps = steps, .neighbours = &neighbours, .profile = profile.get()}) == raw);
      }
    }
  }
}

TEST_CASE("profiled layers: a regression makes rows smaller than their own models do",
          "[codec][profile]") {
  const auto profile = test::TrainedProfile();
  const Neighbours neighbours;
  // V has no rotation, so the forecast is what MakeRows adds noise to.
  Regressions regressions = profile->regressions();
  regressions.list[kWithNeighbours].is_value = true;
  std::vector<int8_t> integers = profile->GetIntegers(kWithNeighbours);
  std::fill_n(integers.begin(), 16 * kColumns, int8_t{0});  // zero weights for K, which is rotated
  CodeWeights(integers, regressions.list[kWithNeighbours]);
  const auto values = test::TrainedProfile("values", regressions);
  const Bytes raw = MakeRows(*values, neighbours, DType::kF16);
  const ChunkShape shape = MakeShape(DType::kF16);
  CodecScratch scratch;
  const EncodedChunk alone = EncodeChunk(shape, raw, Effort::kMax, scratch);
  const Bytes with = Encode(*values, kWithNeighbours, 0, shape, raw, neighbours);
  CHECK(static_cast<double>(with.size()) < 0.95 * static_cast<double>(alone.payload.size()));
  // A result that is not smaller than asked for leaves the payload as it was.
  Bytes payload(5);
  CHECK_FALSE(EncodeProfiledLayers(*values, kWithNeighbours, 0, shape, raw, neighbours, with.size(),
                                   scratch, payload));
  CHECK(payload.size() == 5);
}

namespace {

constexpr uint32_t kWide = 64;
constexpr size_t kOfRows = 1;  // the regression of 64 columns in SmallRegressions

// Returns the profile whose regression of 64 columns also uses the row itself and has a start, as
// `change` leaves them.
std::shared_ptr<const Profile> RowProfile(
    bool is_value, const std::function<void(Regression&)>& change = [](Regression&) {}) {
  Regressions regressions = test::SmallRegressions();
  Regression& one = regressions.list[kOfRows];
  one.is_value = is_value;
  test::AddRowTaps(!is_value, one);
  change(one);
  return test::TrainedProfile("rows", regressions);
}

Bytes WideRows(DType dtype, uint64_t rows, uint32_t seed) {
  if (IsHalfFloat(dtype)) return test::ModelRows(dtype, false, rows, kWide, seed);
  // The upper bytes of f16 values are e5m2 values, and as good as any for e4m3.
  const Bytes halves = test::ModelRows(DType::kF16, false, rows, kWide, seed);
  Bytes bytes;
  for (size_t i = 1; i < halves.size(); i += 2) bytes.push_back(halves[i]);
  return bytes;
}

}  // namespace

TEST_CASE("profiled layers: rows come back where earlier columns predict later ones",
          "[codec][profile]") {
  const Neighbours neighbours;
  for (const bool is_value : {false, true}) {
    const auto profile = RowProfile(is_value);
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
      for (const uint64_t rows : {uint64_t{16}, uint64_t{150}}) {
        const ChunkShape shape = MakeShape(dtype, rows, kWide);
        const Bytes raw = WideRows(dtype, rows, 3);
        const Bytes payload = Encode(*profile, kOfRows, 5000, shape, raw, neighbours);
        const ChunkInputs inputs{.neighbours = &neighbours, .profile = profile.get()};
        CHECK(Decode(shape, payload, inputs) == raw);
        test::ForEachTarget([&](const std::string& target) {
          INFO(target);
          CHECK(Encode(*profile, kOfRows, 5000, shape, raw, neighbours) == payload);
        });
      }
    }
  }
}

TEST_CASE("profiled layers: a start that is learnt makes short chunks smaller",
          "[codec][profile]") {
  const Neighbours neighbours;
  Regressions regressions = test::SmallRegressions();
  const auto plain = test::TrainedProfile("plain", regressions);
  std::vector<int8_t> integers = plain->GetIntegers(kOfRows);
  std::vector<uint32_t> positions(1000);
  std::iota(positions.begin(), positions.end(), 0);
  LearnRegressionStart(regressions, WideRows(DType::kF16, 1000, 3), {false, 0}, positions,
                       neighbours, regressions.list[kOfRows], integers);
  const auto starting = test::TrainedProfile("starting", regressions);
  const uint64_t rows = 20;
  const ChunkShape shape = MakeShape(DType::kF16, rows, kWide);
  const Bytes raw = WideRows(DType::kF16, rows, 4);
  const auto size = [&](const Profile& profile) {
    return static_cast<double>(Encode(profile, kOfRows, 0, shape, raw, neighbours).size());
  };
  CHECK(size(*starting) < 0.98 * size(*plain));
}

TEST_CASE("profiled layers: no start leads to values that cannot be decoded",
          "[codec][profile][reject]") {
  const Neighbours neighbours;
  const uint16_t huge = 0x7f7f, zero = 0;
  const ChunkShape shape = MakeShape(DType::kBF16, 40, kWide);
  const Bytes raw = WideRows(DType::kBF16, 40, 3);
  for (const uint16_t variance : {huge, zero}) {
    for (const uint16_t step : {huge, zero}) {
      const auto profile = RowProfile(false, [&](Regression& one) {
        one.start->variances.assign(kWide, variance);
        one.start->powers.assign(kWide, step);
        one.start->spreads.fill(variance);
        one.start->errors.fill(step);
        std::ranges::fill(one.steps, step);
      });
      const ChunkInputs inputs{.neighbours = &neighbours, .profile = profile.get()};
      const Bytes payload = Encode(*profile, kOfRows, 0, shape, raw, neighbours);
      CHECK(Decode(shape, payload, inputs) == raw);
      test::ForEachTarget([&](const std::string& target) {
        INFO(target);
        CHECK(Encode(*profile, kOfRows, 0, shape, raw, neighbours) == payload);
      });
    }
  }
}

TEST_CASE("profiled layers: forged taps of the row are refused", "[codec][profile][reject]") {
  const auto refusal = [](const std::function<void(Regression&)>& change) {
    return test::FindingOf([&] { RowProfile(false, change); });
  };
  CHECK(refusal([](Regression& one) { one.start->far[0] = 15; }) == Finding::kBadField);
  CHECK(refusal([](Regression& one) { one.start->far[1] = kWide; }) == Finding::kBadField);
  CHECK(refusal([](Regression& one) { one.start->near = 33; }) == Finding::kBadField);
  CHECK(refusal([](Regression& one) { one.start->variances[3] = 0x7f80; }) == Finding::kBadField);
  CHECK(refusal([](Regression& one) { one.start->errors[3] = 0x8001; }) == Finding::kBadField);
  // The frame says which taps it has; they must be those of the start, and the rotation absent.
  const auto profile = RowProfile(false);
  const Neighbours neighbours;
  const ChunkShape shape = MakeShape(DType::kF16, 40, kWide);
  const Bytes payload =
      Encode(*profile, kOfRows, 0, shape, WideRows(DType::kF16, 40, 3), neighbours);
  const ChunkInputs inputs{.neighbours = &neighbours, .profile = profile.get()};
  const size_t frame = 6, near = frame + 1, far = frame + 2, distance = frame + 20;
  for (const size_t at : {near, far, distance}) {
    Bytes forged = payload;
    forged[at] ^= std::byte{1};
    CHECK(test::FindingOf([&] { Decode(shape, forged, inputs); }) == Finding::kBadFrame);
  }
}

TEST_CASE("profiled layers: rows of another shape are not coded", "[codec][profile]") {
  const auto profile = test::TrainedProfile();
  const Neighbours neighbours;
  CodecScratch scratch;
  Bytes payload;
  const auto encodes = [&](const Profile& with, const ChunkShape& shape) {
    const Bytes raw(shape.tokens * shape.units_per_head * 2);
    return EncodeProfiledLayers(with, kWithNeighbours, 0, shape, raw, neighbours, UINT64_MAX,
                                scratch, payload);
  };
  CHECK_FALSE(encodes(*profile, MakeShape(DType::kF16, kRows, 24)));
  Regressions wide = profile->regressions();
  wide.rotation = {64, std::vector<uint32_t>(64, 0x01000000)};
  CHECK_FALSE(encodes(*test::TrainedProfile("wide", wide), MakeShape(DType::kF16)));
}

TEST_CASE("profiled layers: forged chunks are refused", "[codec][profile][reject]") {
  const auto profile = test::TrainedProfile();
  const Neighbours neighbours, few(kRows / 2);
  const ChunkShape shape = MakeShape(DType::kF16);
  const Bytes raw = MakeRows(*profile, neighbours, DType::kF16);
  const Bytes payload = Encode(*profile, kWithNeighbours, 0, shape, raw, neighbours);
  const ChunkInputs inputs{.neighbours = &neighbours, .profile = profile.get()};
  const auto finding = [&](ByteSpan bytes, const ChunkInputs& with) {
    return test::FindingOf([&] { Decode(shape, bytes, with); });
  };
  CHECK(finding(payload, {.neighbours = &neighbours}) == Finding::kProfileMissing);
  CHECK(finding(payload, {.profile = profile.get()}) == Finding::kLostChunk);
  CHECK(finding(payload, {.neighbours = &few, .profile = profile.get()}) == Finding::kBadFrame);
  CHECK(finding(ByteSpan(payload).first(5), inputs) == Finding::kTruncated);
  CHECK(finding(ByteSpan(payload).first(6), inputs) == Finding::kTruncated);
  for (const uint16_t number : {uint16_t{0}, uint16_t{3}, uint16_t{UINT16_MAX}}) {
    Bytes forged = payload;
    StoreLE(forged.data(), number);
    CHECK(finding(forged, inputs) == Finding::kBadFrame);
  }
  // Weights that nobody can decode are found when they are first used.
  Regressions cut = profile->regressions();
  cut.list[kWithNeighbours].coded.resize(8);
  const auto broken = test::TrainedProfile("cut", cut);
  CHECK(finding(payload, {.neighbours = &neighbours, .profile = broken.get()}) ==
        Finding::kBadPayload);
}

TEST_CASE("profiled layers: damaged chunks decode to the right size or are refused",
          "[codec][profile][reject]") {
  const auto plain = test::TrainedProfile(), of_rows = RowProfile(false);
  const Neighbours neighbours;
  const bool starts = GENERATE(false, true);
  const auto& profile = starts ? of_rows : plain;
  const ChunkShape shape = starts ? MakeShape(DType::kF16, 40, kWide) : MakeShape(DType::kF16);
  const Bytes raw =
      starts ? WideRows(DType::kF16, 40, 3) : MakeRows(*profile, neighbours, DType::kF16);
  const Bytes payload =
      Encode(*profile, starts ? kOfRows : kWithNeighbours, 0, shape, raw, neighbours);
  std::mt19937 random(3);
  size_t refused = 0;
  for (int round = 0; round < 200; ++round) {
    Bytes damaged = payload;
    damaged[random() % std::min<size_t>(damaged.size(), round < 100 ? 40 : SIZE_MAX)] ^=
        static_cast<std::byte>(1 + random() % 255);
    try {
      Decode(shape, damaged, {.neighbours = &neighbours, .profile = profile.get()});
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused > 0);
}

}  // namespace kv::profiled_layers_test
