// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/profiled/profile.h"

#include <catch2/catch.hpp>
#include <random>

#include "lib/core/codec/profiled/profiled.h"
#include "lib/core/frame/frame.h"
#include "tests/support/profiles.h"

namespace kv::profile_test {
namespace {

using test::ModelRows;
using test::TrainedProfile;

constexpr uint32_t kColumns = 64;

ChunkShape ShapeOf(DType dtype, uint64_t rows, uint64_t columns) {
  return {dtype, rows, 1, columns, Order::kTokenHeadDim};
}

Bytes Back(const Profile* profile, const ChunkShape& shape, ByteSpan payload, size_t size) {
  CodecScratch scratch;
  Bytes raw(size);
  DecodeChunk(CodecId::kProfiled, shape, payload, raw, scratch, {.profile = profile});
  return raw;
}

// Encodes with an entry and decodes; returns the payload.
Bytes RoundTrip(const Profile& profile, size_t entry, DType dtype, uint32_t columns,
                const Bytes& raw) {
  CodecScratch scratch;
  Bytes payload;
  EncodeProfiled(profile, entry, columns, raw, scratch, payload);
  const ChunkShape shape = ShapeOf(dtype, raw.size() / 2 / columns, columns);
  REQUIRE(Back(&profile, shape, payload, raw.size()) == raw);
  return payload;
}

}  // namespace

TEST_CASE("pages coded with a profile come back, whatever is in them", "[profile]") {
  const auto profile = TrainedProfile();
  REQUIRE(profile->entries().size() == 4);  // K and V, each in f16 and bf16
  for (size_t entry = 0; entry < 4; ++entry) {
    const DType dtype = profile->entries()[entry].dtype;
    const bool is_value = profile->entries()[entry].is_value;
    for (const uint64_t rows : {1, 2, 40, 300}) {
      INFO(Name(dtype) << (is_value ? " V " : " K ") << rows);
      Bytes raw = ModelRows(dtype, is_value, rows, kColumns, 7);
      const Bytes payload = RoundTrip(*profile, entry, dtype, kColumns, raw);
      if (rows >= 40) CHECK(payload.size() < raw.size() * 9 / 10);
      // Narrower rows, as in a part of the heads.
      RoundTrip(*profile, entry, dtype, kColumns / 2, raw);
      // Random bytes give values that no table contains.
      std::mt19937 random(1);
      for (size_t i = 0; i < raw.size(); i += 1 + random() % 64)
        raw[i] = static_cast<std::byte>(random());
      RoundTrip(*profile, entry, dtype, kColumns, raw);
      for (std::byte& byte : raw) byte = static_cast<std::byte>(random());
      RoundTrip(*profile, entry, dtype, kColumns, raw);
      for (std::byte& byte : raw) byte = std::byte{0};
      RoundTrip(*profile, entry, dtype, kColumns, raw);
    }
  }
}

// A profile learnt only from zeros has exponent base 0, so field 0 of a symbol stands for exponent
// 0 and for all above 31.
TEST_CASE("pages come back by a profile that saw zeros, alone or first", "[profile]") {
  const Bytes zeros(64 * kColumns * 2), raw = ModelRows(DType::kBF16, true, 300, kColumns, 7);
  const auto trained = [&](const std::vector<ByteSpan>& pages) {
    ProfileTrainer trainer(0, true, DType::kBF16, kColumns);
    for (const ByteSpan page : pages) trainer.Add(page);
    std::vector<ProfileEntry> entries;
    entries.push_back(trainer.Finish());
    return Profile::Make("zeros", std::move(entries));
  };
  const auto alone = trained({zeros}), first = trained({zeros, raw}), without = trained({raw});
  CHECK(alone->entries()[0].shape.exponent_base == 0);
  CHECK(first->entries()[0].shape.exponent_base == without->entries()[0].shape.exponent_base);
  RoundTrip(*alone, 0, DType::kBF16, kColumns, zeros);
  RoundTrip(*alone, 0, DType::kBF16, kColumns, raw);
  const size_t size = RoundTrip(*without, 0, DType::kBF16, kColumns, raw).size();
  CHECK(RoundTrip(*first, 0, DType::kBF16, kColumns, raw).size() <= size + size / 100);
  // A profile that was written and read again works the same.
  RoundTrip(*Profile::Read(alone->file()), 0, DType::kBF16, kColumns, raw);
}

TEST_CASE("rows that a profile lists cost next to nothing", "[profile]") {
  const auto profile = TrainedProfile();
  const ProfileEntry& entry = profile->entries()[2];
  REQUIRE(entry.is_value);
  REQUIRE(entry.row_count() > 20);
  const Bytes listed(entry.rows.begin(), entry.rows.begin() + 20 * entry.row_bytes());
  CHECK(RoundTrip(*profile, 2, entry.dtype, kColumns, listed).size() < 64);
  // The rows are in the table, new, or repeated.
  Bytes mixed = listed;
  const Bytes fresh = ModelRows(entry.dtype, false, 3, kColumns, 99);
  for (int i = 0; i < 2; ++i) mixed.insert(mixed.end(), fresh.begin(), fresh.end());
  CHECK(RoundTrip(*profile, 2, entry.dtype, kColumns, mixed).size() < fresh.size() + 128);
}

TEST_CASE("the values of a page tell which layer it is of", "[profile]") {
  const auto profile = TrainedProfile();
  CodecScratch scratch;
  const Bytes key = ModelRows(DType::kF16, false, 40, kColumns, 5);
  const ChunkShape shape = ShapeOf(DType::kF16, 40, kColumns);
  CHECK(FindProfileEntry(*profile, {}, shape, key, nullptr) == 0u);
  CHECK(FindProfileEntry(*profile, {.layer = 0, .is_value = true}, shape, key, nullptr) == 2u);
  CHECK(FindProfileEntry(*profile, {.layer = 1, .is_value = {}}, shape, key, nullptr) ==
        std::nullopt);
  CHECK(FindProfileEntry(*profile, {}, ShapeOf(DType::kF32, 20, kColumns), key, nullptr) ==
        std::nullopt);
  CHECK(FindProfileEntry(*profile, {}, ShapeOf(DType::kF16, 27, 96), key, nullptr) == std::nullopt);
}

TEST_CASE("a level without gain from the profile codes as without it", "[profile]") {
  const auto profile = TrainedProfile();
  CodecScratch scratch;
  Bytes noise(8192);
  std::mt19937 random(3);
  for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
  const ChunkShape shape = ShapeOf(DType::kF16, 64, kColumns);
  const auto codec_of = [&](ByteSpan raw, Effort effort) {
    return EncodeWithProfile(*profile, {}, shape, raw, effort, scratch, EncoderAt(effort, scratch))
        .codec;
  };
  CHECK(codec_of(noise, Effort::kDefault) == CodecId::kRaw);
  const Bytes page = ModelRows(DType::kF16, false, 64, kColumns, 6);
  CHECK(codec_of(page, Effort::kDefault) == CodecId::kProfiled);
  CHECK(codec_of(page, Effort::kFast) != CodecId::kProfiled);
}

TEST_CASE("a profile's file is read back whole, or not at all", "[profile][reject]") {
  const auto profile = TrainedProfile("walks", {});
  const Bytes& file = profile->file();
  CHECK(Profile::Read(file)->hash() == profile->hash());
  CHECK(Profile::Read(file)->name() == "walks");
  const auto finding_of = [](ByteSpan bytes) {
    try {
      Profile::Read(bytes);
    } catch (const Error& error) {
      return error.finding();
    }
    return Finding::kInternal;
  };
  Bytes longer = file;
  longer.push_back(std::byte{0});
  Bytes changed = file;
  changed[100] ^= std::byte{1};
  CHECK(finding_of({}) == Finding::kBadMagic);
  CHECK(finding_of(ByteSpan(file).first(20)) == Finding::kTruncated);
  CHECK(finding_of(ByteSpan(file).first(file.size() - 1)) == Finding::kTruncated);
  CHECK(finding_of(longer) == Finding::kTrailingBytes);
  CHECK(finding_of(changed) == Finding::kChecksum);
  // These fields are changed, with a matching hash: version, number of entries, length of the name,
  // role, type, bits, columns.
  const size_t entry = 28 + 5;
  for (const auto version : {std::byte{2}, std::byte{3}})
    CHECK(test::ReadChanged(file, 8, version) == Finding::kTruncated);  // without its regressions
  CHECK(test::ReadChanged(file, 8, std::byte{4}) == Finding::kUnsupportedVersion);
  CHECK(test::ReadChanged(file, 13, std::byte{4}) == Finding::kLimit);
  CHECK(test::ReadChanged(file, 12, std::byte{3}) == Finding::kTrailingBytes);
  CHECK(test::ReadChanged(file, 25, std::byte{1}) == Finding::kBadField);
  CHECK(test::ReadChanged(file, 28, std::byte{0xff}) == Finding::kBadField);
  CHECK(test::ReadChanged(file, entry + 4, std::byte{3}) == Finding::kBadField);
  CHECK(test::ReadChanged(file, entry + 5, std::byte{0}) == Finding::kBadField);
  CHECK(test::ReadChanged(file, entry + 6, std::byte{9}) == Finding::kBadField);
  CHECK(test::ReadChanged(file, entry + 7, std::byte{1}) == Finding::kBadField);
  CHECK(test::ReadChanged(file, entry + 11, std::byte{1}) == Finding::kBadField);
  CHECK(test::ReadChanged(file, entry + 18, std::byte{1}) == Finding::kBadField);
  CHECK(test::ReadChanged(file, entry + 20 + kColumns, std::byte{0}) == Finding::kBadFrame);
  CHECK(test::ReadChanged(file, entry, std::byte{9}) == Finding::kDuplicateName);
}

TEST_CASE("regressions of a profile are read back whole, or not at all", "[profile][reject]") {
  const auto profile = TrainedProfile();
  const Bytes& file = profile->file();
  CHECK(Profile::Read(file)->regressions().list == test::SmallRegressions().list);
  CHECK(test::ReadChanged(file, 8, std::byte{1}) == Finding::kTrailingBytes);
  ByteWriter out;
  WriteRegressions(profile->regressions(), out);
  // Begins with the distance; angles, a count and the regressions follow.
  const size_t begin = file.size() - 16 - out.size();
  const size_t count = begin + 4 + 8 * 4, first = count + 4;
  CHECK(test::ReadChanged(file, begin, std::byte{0}) == Finding::kBadFrame);
  CHECK(test::ReadChanged(file, begin + 3, std::byte{0xff}) == Finding::kBadFrame);
  CHECK(test::ReadChanged(file, count, std::byte{0}) == Finding::kLimit);
  CHECK(test::ReadChanged(file, count + 1, std::byte{5}) == Finding::kLimit);
  CHECK(test::ReadChanged(file, count, std::byte{2}) == Finding::kTrailingBytes);
  CHECK(test::ReadChanged(file, count, std::byte{4}) == Finding::kTruncated);
  CHECK(test::ReadChanged(file, first + 4, std::byte{3}) == Finding::kBadField);     // role
  CHECK(test::ReadChanged(file, first + 5, std::byte{13}) == Finding::kBadField);    // neighbours
  CHECK(test::ReadChanged(file, first + 7, std::byte{0x11}) == Finding::kBadField);  // columns
  CHECK(test::ReadChanged(file, first + 8, std::byte{24}) == Finding::kBadField);    // block
  CHECK(test::ReadChanged(file, first + 8, std::byte{32}) == Finding::kBadField);  // the whole row
  CHECK(test::ReadChanged(file, first + 10, std::byte{2}) == Finding::kBadField);  // start
  for (const size_t without_start : {11, 12, 13})
    CHECK(test::ReadChanged(file, first + without_start, std::byte{1}) == Finding::kBadField);
  CHECK(test::ReadChanged(file, first + 14 + 1, std::byte{0xbf}) ==
        Finding::kBadField);                                                       // a scale < 0
  CHECK(test::ReadChanged(file, first, std::byte{9}) == Finding::kDuplicateName);  // order
}

TEST_CASE("profiled chunks that are cut, changed or of another shape are refused",
          "[profile][reject]") {
  const auto profile = TrainedProfile();
  CodecScratch scratch;
  Bytes raw = ModelRows(DType::kF16, true, 40, kColumns, 7);
  raw[77] = std::byte{0x7f};
  Bytes payload;
  EncodeProfiled(*profile, 2, kColumns, raw, scratch, payload);
  const ChunkShape shape = ShapeOf(DType::kF16, 40, kColumns);
  CHECK_THROWS_AS(Back(nullptr, shape, payload, raw.size()), Error);
  CHECK_THROWS_AS(Back(profile.get(), shape, payload, raw.size() - 2), Error);
  CHECK_THROWS_AS(Back(profile.get(), ShapeOf(DType::kBF16, 40, kColumns), payload, raw.size()),
                  Error);
  for (size_t size = 0; size < payload.size(); ++size) {
    CHECK_THROWS_AS(Back(profile.get(), shape, ByteSpan(payload).first(size), raw.size()), Error);
  }
  // Checks that no value of any byte leads to a read or a write outside the chunk.
  for (size_t at = 0; at < std::min<size_t>(payload.size(), 200); ++at) {
    for (const int value : {0, 1, 4, 0x7f, 0xff}) {
      Bytes changed = payload;
      changed[at] = static_cast<std::byte>(value);
      try {
        Back(profile.get(), shape, changed, raw.size());
      } catch (const Error& error) {
        CHECK(error.code() == ErrorCode::kInvalidData);
      }
    }
  }
}

TEST_CASE("a frame names its profile and decodes with no other", "[profile][frame]") {
  const auto profile = TrainedProfile();
  const Bytes page = ModelRows(DType::kBF16, false, 256, kColumns, 8);
  const FrameDescription description{.dtype = DType::kBF16,
                                     .order = Order::kTokenHeadDim,
                                     .role = FrameRole::kKey,
                                     .heads = 2,
                                     .head_dim = 32,
                                     .tokens = 256};
  FrameCoder coder(Effort::kDefault);
  Bytes without(FrameBound(page.size()));
  without.resize(coder.Encode(description, page, without));
  coder.UseProfile(profile);
  Bytes frame(FrameBound(page.size()));
  frame.resize(coder.Encode(description, page, frame));
  CHECK(frame.size() < without.size());
  CHECK(ReadFrameHeader(frame).profile == profile->hash());
  CHECK(ReadFrameHeader(without).profile == Hash128Bytes{});

  Bytes back(page.size());
  coder.Decode(frame, nullptr, back);
  CHECK(back == page);
  coder.Decode(without, nullptr, back);
  CHECK(back == page);
  coder.Verify(frame, nullptr);
  Bytes part(16 * kColumns * 2);
  coder.DecodeTokens(frame, nullptr, 100, 16, part);
  CHECK(std::equal(part.begin(), part.end(), page.begin() + 100 * kColumns * 2));

  const auto finding = [&](FrameCoder& one) {
    try {
      one.Decode(frame, nullptr, back);
    } catch (const Error& error) {
      CHECK_THAT(error.message(), Catch::Contains(ProfileHashText(profile->hash())));
      return error.finding();
    }
    return Finding::kInternal;
  };
  FrameCoder plain(Effort::kDefault);
  CHECK(finding(plain) == Finding::kProfileMissing);
  plain.UseProfile(TrainedProfile("others"));
  CHECK(finding(plain) == Finding::kProfileMissing);
}

}  // namespace kv::profile_test
