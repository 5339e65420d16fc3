// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Tests LMCache's chunks of several groups, its keys as names, and raw-block files.
#include <catch2/catch.hpp>
#include <fstream>

#include "formats/lmcache/lmcache.h"
#include "formats/registry.h"
#include "lib/core/base/hash.h"
#include "tests/support/temp_dir.h"

namespace kv::lmcache_groups_test {
namespace {

Source Named(std::string name, Bytes bytes) {
  Source source;
  source.path = name;
  source.files.push_back({name, FileSource::FromBytes(std::move(bytes), name)});
  return source;
}

Finding Refusal(const Source& source, const OpenOptions& options = {}) {
  try {
    OpenSnapshot(source, options);
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding{0};
}

struct Group {
  int32_t dtype;
  std::array<int32_t, 4> shape;
};

Bytes Chunk(int32_t format, const std::vector<Group>& groups, size_t payload) {
  ByteWriter out;
  out.I32(static_cast<int32_t>(payload));
  out.I32(format);
  for (const Group& group : groups) {
    out.I32(group.dtype);
    for (const int32_t extent : group.shape) out.I32(extent);
  }
  for (size_t i = 0; i < payload; ++i) out.U8(static_cast<uint8_t>(i));
  return out.Release();
}

TEST_CASE("as many groups are read as make the file, and no other number") {
  const Group wide = {1, {2, 2, 3, 4}}, latent = {6, {1, 3, 3, 5}};  // 96 and 45 bytes
  const Snapshot both = OpenSnapshot(Named("a", Chunk(1, {wide, latent}, 141)), {});
  REQUIRE(both.layers.size() == 5);
  CHECK(both.layers[1].group == "g0");
  CHECK(both.layers[4].index == 4);
  CHECK(both.layers[4].group == "g1");
  CHECK_FALSE(both.layers[4].v);
  CHECK(both.source.files[0].data->OffsetOf(both.layers[2].k.pieces[0].data) == 48 + 96);
  std::vector<Group> many(64, {6, {1, 1, 1, 1}});
  CHECK(OpenSnapshot(Named("a", Chunk(1, many, 64)), {}).layers.size() == 64);
  many.push_back(many[0]);
  CHECK(Refusal(Named("a", Chunk(1, many, 65))) == Finding::kUnknownFormat);
  CHECK(Refusal(Named("a", Chunk(1, {wide, {99, {1, 1, 1, 1}}}, 97))) == Finding::kSizeMismatch);
  CHECK(Refusal(Named("a", Chunk(1, {wide, {6, {3, 1, 1, 1}}}, 99))) == Finding::kSizeMismatch);
  // Three planes are neither K and V nor one of the two.
  CHECK(Refusal(Named("a", Chunk(1, {{6, {3, 1, 1, 4}}}, 12))) == Finding::kBadField);
  // These sizes match the file only if their product overflows.
  CHECK(Refusal(Named("a", Chunk(1, {wide, {5, {2, 1 << 30, 1 << 30, 1 << 30}}}, 96))) ==
        Finding::kSizeMismatch);
}

TEST_CASE("LMCache's keys say what they say and nothing else") {
  const auto served = lmcache::ParseKeyFileName("x/a-SEP-m.1@0x04030201@1f@00ff@half.data");
  REQUIRE(served);
  CHECK(served->model == "a/m.1");
  CHECK_FALSE(served->dtype);  // a salt
  REQUIRE(served->facts.size() == 3);
  CHECK(served->facts[0].second == "3 of 4, 1 of 2 on its machine");
  CHECK(served->facts[1].second == "31");
  const auto layer = lmcache::ParseKeyFileName("m@2@1@ab12@bfloat16@7@tag%x.pt");
  REQUIRE(layer);
  CHECK(layer->layer == 7);  // before the tags
  CHECK(layer->dtype == DType::kBF16);
  CHECK_FALSE(lmcache::ParseKeyName("m@1@0@ab12@half@tag%7")->layer);
  for (const char* none : {"m", "m@1@0@xyz@half", "m@0x1@0@ab", "m@one@0@ab@half", "@@@@", ""})
    CHECK_FALSE(lmcache::ParseKeyName(none));
}

TEST_CASE("BLAKE2b of eight bytes is Python's hashlib.blake2b(digest_size=8)") {
  CHECK(Blake2b64({}) == 0xb4b2797457a0a6e4);
  CHECK(Blake2b64(AsBytes("abc")) == 0x5995d533d814bbd8);
  const std::string block(128, 'x'), more(129, 'x');
  CHECK(Blake2b64(AsBytes(block)) == 0x0224e1e874e31c90);
  CHECK(Blake2b64(AsBytes(more)) == 0xa3a5eed8b914de18);
}

Bytes Store() {
  std::ifstream file(KVTOOL_TESTDATA "/engines/lmcache/object.rawblock", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  REQUIRE(text.size() == 16384);
  const ByteSpan bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

TEST_CASE("a raw-block file is only as large as it says") {
  const Bytes good = Store();
  OpenOptions all;
  all.order = "*";
  CHECK(OpenSnapshot(Named("store", good), all).layers.at(0).k.tokens() == 12);
  CHECK(Refusal(Named("store", good)) == Finding::kUsage);
  const auto with = [&](size_t at, uint64_t value) {
    Bytes bytes = good;
    StoreLE(&bytes[at], value);
    StoreLE(&bytes[4096 + at], value);
    return Refusal(Named("store", std::move(bytes)), all);
  };
  CHECK(with(8, 2) == Finding::kChecksum);                // an undefined version
  CHECK(with(20, uint64_t{1} << 40) == Finding::kLimit);  // the index would be larger than any file
  CHECK(with(20, 16000) == Finding::kChecksum);           // past the end
  CHECK(Refusal(Named("store", Bytes(good.begin(), good.begin() + 100)), all) ==
        Finding::kChecksum);
}

TEST_CASE("looking for a torn index costs a few readings of the file, not one for each header") {
  // A header every 512 bytes, each with an index that would cover the rest of the file.
  constexpr size_t kHeaders = 4096;
  Bytes bytes(kHeaders * 512, std::byte{'{'});
  for (size_t i = 0; i < kHeaders; ++i) {
    std::byte* at = &bytes[i * 512];
    std::copy_n(AsBytes("LMCIDX01").begin(), 8, at);
    StoreLE<uint32_t>(at + 8, 1);
    StoreLE<uint64_t>(at + 12, i);
    StoreLE<uint64_t>(at + 20, (kHeaders - i) * 512 - 32);
  }
  CHECK(Refusal(Named("store", bytes)) == Finding::kChecksum);
}

}  // namespace
}  // namespace kv::lmcache_groups_test
