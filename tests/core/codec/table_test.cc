// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "lib/core/base/half.h"
#include "lib/core/codec/chunk.h"
#include "tests/support/any_codec.h"
#include "tests/support/profiles.h"

// Tests what every codec must do; a new row of the table is tested without further work.
namespace kv::table_test {
namespace {

struct Sample {
  ChunkShape shape;
  Bytes raw;
};

// Returns slow waves in which every seventh row copies an earlier one: something for every codec to
// find.
float ValueAt(uint64_t row, uint64_t column) {
  if (row % 7 == 6) row /= 2;
  return std::sin(static_cast<float>(row * (column % 16 + 1)) * 0.05f) +
         static_cast<float>(column % 5);
}

Sample Waves(DType dtype, uint64_t rows, uint64_t columns) {
  Sample sample{{dtype, rows, 1, columns, Order::kTokenHeadDim}, {}};
  const uint64_t unit_bytes = Info(dtype).block_bytes;
  sample.raw.resize(rows * columns * unit_bytes);
  for (uint64_t i = 0; i < rows * columns; ++i) {
    const float value = ValueAt(i / columns, i % columns);
    std::byte* unit = sample.raw.data() + i * unit_bytes;
    if (dtype == DType::kF32) {
      StoreLE(unit, F16ToF32(F32ToF16(value)));
    } else if (dtype == DType::kF16) {
      StoreLE(unit, F32ToF16(value));
    } else if (dtype == DType::kBF16) {
      StoreLE(unit, F32ToBF16(value));
    } else {
      for (uint64_t b = 0; b < unit_bytes; ++b) {
        unit[b] = static_cast<std::byte>(static_cast<int>(8 * value) + static_cast<int>(b % 3));
      }
    }
  }
  return sample;
}

Sample Noise(DType dtype, uint64_t rows, uint64_t columns) {
  Sample sample = Waves(dtype, rows, columns);
  std::mt19937 random(static_cast<uint32_t>(rows * columns));
  for (std::byte& byte : sample.raw) byte = static_cast<std::byte>(random());
  return sample;
}

std::vector<Sample> Samples() {
  std::vector<Sample> samples;
  for (const DTypeInfo& info : AllDTypes()) {
    for (const auto& [rows, columns] :
         {std::pair<uint64_t, uint64_t>(1, 1), {3, 5}, {64, 32}, {64, 48}}) {
      samples.push_back(Waves(info.dtype, rows, columns));
      samples.push_back(Noise(info.dtype, rows, columns));
    }
  }
  return samples;
}

std::string Say(const CodecRow& codec, const Sample& sample) {
  return std::string(codec.name) + ' ' + std::string(Name(sample.shape.dtype)) + ' ' +
         std::to_string(sample.shape.tokens) + 'x' + std::to_string(sample.shape.units_per_head);
}

}  // namespace

TEST_CASE("the table lists codecs by ascending id, each under a name of its own", "[codec]") {
  std::set<std::string_view> names;
  int last = -1;
  for (const CodecRow& codec : Codecs()) {
    CHECK(static_cast<int>(codec.id) > last);
    last = static_cast<int>(codec.id);
    CHECK(names.insert(codec.name).second);
    CHECK(FindCodec(codec.id) == &codec);
    CHECK(Name(codec.id) == codec.name);
    // A codec that needs more than the chunk has no stand-alone encoder, and may not be inside
    // another codec.
    const bool needs_others =
        codec.needs.references || codec.needs.neighbours || codec.needs.transform;
    CHECK(NeedsOthers(codec.id) == needs_others);
    CHECK((codec.encode == nullptr) == (needs_others || codec.needs.profile));
    CHECK(MayBeInside(codec.id) == (!needs_others && codec.id != CodecId::kSplit));
  }
}

TEST_CASE("what a codec of the table stores comes back, and every codec stores something",
          "[codec]") {
  CodecScratch scratch;  // one scratch for all chunks, as in an archive
  const auto profile = test::TrainedProfile();
  const ChunkInputs inputs{.profile = profile.get()};
  std::map<std::string_view, int> stored;
  // Coefficients need a whole archive: tests/core/archive/transformed_test.cc tests this codec.
  stored[Name(CodecId::kTransformed)] = 0;
  for (const Sample& sample : Samples()) {
    for (const CodecRow& codec : Codecs()) {
      if (!codec.takes(sample.shape.dtype)) continue;
      INFO(Say(codec, sample));
      EncodedChunk chunk{codec.id, {}, {}};
      if (!test::EncodeByRow(codec, sample.shape, sample.raw, *profile, scratch, chunk)) continue;
      ++stored[codec.name];
      CHECK(chunk.codec == codec.id);
      Bytes back(sample.raw.size());
      DecodeChunk(codec.id, sample.shape, chunk.payload, back, scratch, inputs);
      REQUIRE(back == sample.raw);
    }
  }
  CHECK(stored.size() == Codecs().size());
}

TEST_CASE("no codec reads a type that it does not take, or a payload cut short",
          "[codec][reject]") {
  CodecScratch scratch;
  const auto profile = test::TrainedProfile();
  const ChunkInputs inputs{.profile = profile.get()};
  for (const Sample& sample : Samples()) {
    for (const CodecRow& codec : Codecs()) {
      INFO(Say(codec, sample));
      Bytes back(sample.raw.size());
      if (!codec.takes(sample.shape.dtype)) {
        CHECK_THROWS_AS(DecodeChunk(codec.id, sample.shape, sample.raw, back, scratch), Error);
        continue;
      }
      EncodedChunk chunk{codec.id, {}, {}};
      if (!test::EncodeByRow(codec, sample.shape, sample.raw, *profile, scratch, chunk)) continue;
      chunk.payload.pop_back();
      CHECK_THROWS_AS(DecodeChunk(codec.id, sample.shape, chunk.payload, back, scratch, inputs),
                      Error);
    }
  }
}

TEST_CASE("no level writes a codec that is too slow for it", "[codec]") {
  CodecScratch scratch;
  for (const Sample& sample : Samples()) {
    for (const Effort effort :
         {Effort::kCompat, Effort::kFast, Effort::kDefault, Effort::kHigh, Effort::kMax}) {
      const EncodedChunk chunk = EncodeChunk(sample.shape, sample.raw, effort, scratch);
      const CodecRow* codec = FindCodec(chunk.codec);
      REQUIRE(codec != nullptr);
      INFO(Say(*codec, sample) << " at " << Name(effort));
      CHECK(codec->since <= effort);
      CHECK(codec->takes(sample.shape.dtype));
    }
  }
}

}  // namespace kv::table_test
