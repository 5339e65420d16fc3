// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The gear encoder against the plainest one that follows the format's text, and what decoders must
// refuse.
#include "lib/core/codec/planes/gear.h"

#include <zstd.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/reference.h"
#include "tests/support/refusal.h"
#include "tests/support/targets.h"

namespace kv::gear_test {
namespace {

struct Sample {
  std::string name;
  Bytes bytes;
};

// Samples of words: each predictor and each backend wins in some plane.
std::vector<Sample> Samples(uint32_t word_bytes, size_t words) {
  std::mt19937 random(static_cast<uint32_t>(words));
  std::normal_distribution<float> gauss;
  std::vector<float> noise(words), walk(words);
  float level = 1;
  for (size_t i = 0; i < words; ++i) {
    noise[i] = gauss(random);
    walk[i] = level += 0.01f * gauss(random);
  }
  const auto store = [&](const std::vector<float>& values) {
    Bytes bytes(words * word_bytes);
    if (word_bytes == 2) {
      FloatToHalf(values.data(), bytes.data(), words);
    } else {
      std::memcpy(bytes.data(), values.data(), bytes.size());
    }
    return bytes;
  };
  Bytes ramp(words * word_bytes), flicker(words * word_bytes), random_bytes(words * word_bytes);
  for (size_t i = 0; i < ramp.size(); ++i) {
    ramp[i] = static_cast<std::byte>(i / word_bytes * 3);
    flicker[i] = static_cast<std::byte>(i / word_bytes % 2 != 0 ? 0x55 : 0xaa);
    random_bytes[i] = static_cast<std::byte>(random());
  }
  return {{"noise", store(noise)}, {"walk", store(walk)},    {"ramp", ramp},
          {"flicker", flicker},    {"random", random_bytes}, {"zeros", Bytes(words * word_bytes)}};
}

// Encodes step by step as the format's description says.
Bytes Plain(ByteSpan raw, size_t planes, const GearOptions& options) {
  ByteWriter out;
  const size_t words = raw.size() / planes;
  out.U32(static_cast<uint32_t>(words));
  for (size_t b = 0; b < planes; ++b) {
    Bytes plane(words), predicted(words), best;
    for (size_t i = 0; i < words; ++i) plane[i] = raw[i * planes + b];
    const PredictorSet& set = options.predictors[b];
    int best_mode = 0, best_codec = 0;
    const bool enabled[] = {set.raw, set.delta_seq, set.xor_seq};
    for (int mode = 0; mode < 3; ++mode) {
      if (!enabled[mode]) continue;
      predicted = plane;
      if (mode == 1) ref::DeltaEncode(plane.data(), words, predicted.data());
      if (mode == 2) ref::XorEncode(plane.data(), words, predicted.data());
      for (int codec = 0; codec < (options.zstd ? 2 : 1); ++codec) {
        Bytes payload(ZSTD_compressBound(words) + words / 128 + 1);
        payload.resize(codec == 0 ? ref::RleEncode(predicted.data(), words, payload.data())
                                  : ZSTD_compress(payload.data(), payload.size(), predicted.data(),
                                                  words, kGearZstdLevel));
        if (!best.empty() && payload.size() >= best.size()) continue;
        best = payload;
        best_mode = mode;
        best_codec = codec;
      }
    }
    out.U8(static_cast<uint8_t>(best_mode));
    out.U8(static_cast<uint8_t>(best_codec));
    out.U32(static_cast<uint32_t>(words));
    out.U32(static_cast<uint32_t>(best.size()));
    out.Append(best);
  }
  return out.Release();
}

std::vector<GearOptions> AllOptions() {
  std::vector<GearOptions> all;
  for (int bits = 1; bits < 8; ++bits) {
    const PredictorSet set{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
    const PredictorSet other{(bits & 4) != 0, (bits & 1) != 0, (bits & 2) != 0};
    all.push_back({{set, other, set, other}, true});
    all.push_back({{set, other, set, other}, false});
  }
  return all;
}

TEST_CASE("gear: any values and options give the plain encoder's bytes and come back", "[codec]") {
  CodecScratch scratch;
  for (const GearKind kind : {GearKind::kTwoPlanes, GearKind::kFourPlanes}) {
    for (const size_t words : {1, 2, 3, 7, 64, 129, 1000, 4099}) {
      for (const Sample& sample : Samples(CountPlanes(kind), words)) {
        for (const GearOptions& options : AllOptions()) {
          INFO(CountPlanes(kind) << " planes, " << words << " words of " << sample.name << ", lo "
                                 << ToText(options.predictors[0]) << ", zstd " << options.zstd);
          Bytes out;
          EncodeGear(kind, sample.bytes, options, scratch, out);
          CHECK((out == Plain(sample.bytes, CountPlanes(kind), options)));
          CHECK((DecodeGear(kind, out, scratch) == sample.bytes));
          CHECK(ReadGear(out).planes.size() == CountPlanes(kind));
        }
      }
    }
  }
}

TEST_CASE("gear: frames of a megabyte are alike on every target", "[codec]") {
  CodecScratch scratch;
  for (const Sample& sample : Samples(2, 400003)) {
    const Bytes expected = Plain(sample.bytes, 2, {});
    test::ForEachTarget([&](const std::string& target) {
      INFO(target << ", " << sample.name);
      Bytes out;
      EncodeGear(GearKind::kTwoPlanes, sample.bytes, {}, scratch, out);
      CHECK((out == expected));
      CHECK((DecodeGear(GearKind::kTwoPlanes, out, scratch) == sample.bytes));
    });
  }
}

TEST_CASE("gear: an encoder without predictors takes raw, an empty plane ten zeros", "[codec]") {
  CodecScratch scratch;
  Bytes out;
  const Bytes plane(9, std::byte{1});
  EncodePlane(plane, {false, false, false}, false, scratch, out);
  CHECK(out.size() == kPlaneHeaderBytes + 2);
  CHECK(out[0] == std::byte{0});
  out.clear();
  EncodePlane({}, {}, true, scratch, out);
  CHECK(out == Bytes(10));
  ByteReader reader(out);
  DecodePlane(ReadPlaneFrame(reader), {}, scratch);
}

// Makes a container whose planes all state `raw_len` and hold `payload`.
Bytes Container(uint32_t words, int planes, int mode, int codec, uint32_t raw_len,
                const Bytes& payload) {
  ByteWriter out;
  out.U32(words);
  for (int i = 0; i < planes; ++i) {
    out.U8(static_cast<uint8_t>(mode));
    out.U8(static_cast<uint8_t>(codec));
    out.U32(raw_len);
    out.U32(static_cast<uint32_t>(payload.size()));
    out.Append(payload);
  }
  return out.Release();
}

Finding FindingOf(GearKind kind, const Bytes& container) {
  CodecScratch scratch;
  return test::FindingOf([&] { DecodeGear(kind, container, scratch); });
}

TEST_CASE("gear: every rule of the decoder is enforced", "[codec][reject]") {
  const Bytes four = {std::byte{0x80}, std::byte{7}};  // RLE: 7 7 7 7
  const auto two = GearKind::kTwoPlanes;
  CodecScratch scratch;
  REQUIRE(DecodeGear(two, Container(4, 2, 0, 0, 4, four), scratch) == Bytes(8, std::byte{7}));

  CHECK(FindingOf(two, {}) == Finding::kTruncated);
  CHECK(FindingOf(two, Bytes(3)) == Finding::kTruncated);
  CHECK(FindingOf(two, Container(0, 2, 0, 0, 0, {})) == Finding::kBadFrame);
  CHECK(FindingOf(two, Container(4, 1, 0, 0, 4, four)) == Finding::kTruncated);
  CHECK(FindingOf(two, Container(4, 3, 0, 0, 4, four)) == Finding::kTrailingBytes);
  CHECK(FindingOf(two, Container(5, 2, 0, 0, 4, four)) == Finding::kBadFrame);
  CHECK(FindingOf(two, Container(4, 2, 0, 0, 0, four)) == Finding::kBadFrame);
  CHECK(FindingOf(two, Container(4, 2, 0, 0, 0, {})) == Finding::kBadFrame);
  CHECK(FindingOf(two, Container(4, 2, 3, 0, 4, four)) == Finding::kBadFrame);
  CHECK(FindingOf(two, Container(4, 2, 0, 2, 4, four)) == Finding::kBadFrame);
  CHECK(FindingOf(two, Container(4, 2, 0, 1, 4, four)) != Finding::kInternal);
  CHECK(FindingOf(two, Container(5, 2, 0, 0, 5, four)) == Finding::kBadPayload);
  CHECK(FindingOf(two, Container(3, 2, 0, 0, 3, four)) == Finding::kBadPayload);
  CHECK(FindingOf(GearKind::kFourPlanes, Container(4, 2, 0, 0, 4, four)) == Finding::kTruncated);
  CHECK_THROWS_AS(ReadGear(Container(4, 3, 0, 0, 4, four)), Error);
  CHECK_THROWS_AS(ReadGear(Container(4, 5, 0, 0, 4, four)), Error);
}

TEST_CASE("gear: a few bytes that claim gigabytes are refused before any allocation",
          "[codec][reject]") {
  const Bytes payload = {std::byte{0x28}, std::byte{0xb5}, std::byte{0x2f}, std::byte{0xfd}};
  for (const int codec : {0, 1}) {
    for (const uint32_t words : {0xffffffffu, 0x80000000u, 1u << 20}) {
      CHECK(FindingOf(GearKind::kTwoPlanes, Container(words, 2, 0, codec, words, payload)) ==
            Finding::kBadFrame);
    }
  }
  // A valid frame that is shorter than the header states: 8 bytes instead of 2^31, and instead of
  // 9.
  Bytes eight(64);
  eight.resize(ZSTD_compress(eight.data(), eight.size(), "12345678", 8, 3));
  for (const uint32_t words : {0x80000000u, 9u}) {
    CHECK(FindingOf(GearKind::kTwoPlanes, Container(words, 2, 0, 1, words, eight)) ==
          Finding::kBadFrame);
  }
  CHECK(FindingOf(GearKind::kTwoPlanes, Container(7, 2, 0, 1, 7, eight)) == Finding::kBadPayload);
  CHECK(MaxDecodedBytes(Backend::kRle, ByteSpan(eight).first(2)) == 131);
  CHECK(MaxDecodedBytes(Backend::kZstd, eight) == 8);
}

TEST_CASE("gear: no zstd frame is shorter than its floor", "[codec]") {
  for (const size_t size : {1, 2, 200, 255, 256, 65791, 65792, 131072, 131073, 1 << 20}) {
    const Bytes zeros(size);
    Bytes out(ZSTD_compressBound(size));
    CHECK(ZSTD_compress(out.data(), out.size(), zeros.data(), size, kGearZstdLevel) >=
          Zstd::Floor(size));
  }
}

TEST_CASE("gear: predictor lists are read as the runtime reads them", "[codec]") {
  const auto parsed = [](const char* list) { return ToText(ParsePredictors(list)); };
  CHECK(parsed("") == "raw");
  CHECK(parsed("raw,delta_seq,xor_seq,pair_delta") == "raw,delta_seq,xor_seq");
  CHECK(parsed(" xor_seq\t, \tdelta_seq ") == "delta_seq,xor_seq");
  CHECK(parsed("RAW,Delta_seq") == "raw");
  CHECK(parsed("pair_delta") == "raw");
  CHECK(parsed("delta seq") == "raw");
  CHECK(parsed("xor_seq\n") == "raw");
  CHECK(parsed(",,xor_seq,") == "xor_seq");
}

}  // namespace
}  // namespace kv::gear_test
