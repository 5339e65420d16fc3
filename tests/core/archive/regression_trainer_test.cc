// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/regression_trainer.h"

#include <catch2/catch.hpp>

#include "lib/core/archive/neighbours.h"
#include "lib/core/archive/records.h"
#include "lib/core/archive/train.h"
#include "lib/core/codec/chunk.h"
#include "tests/support/archives.h"
#include "tests/support/layered_cache.h"
#include "tests/support/profiles.h"
#include "tests/support/refusal.h"
#include "tests/support/targets.h"

namespace kv::regression_trainer_test {
namespace {

using test::LayeredCache;

std::shared_ptr<const Profile> TrainOn(const LayeredCache& cache, uint64_t most_bytes = 1 << 20) {
  ThreadPool pool(2);
  ProfileBuilder builder;
  builder.Add(cache.snapshot);
  const LearntRegressions learnt = LearnRegressions({&cache.snapshot, 1}, most_bytes, pool);
  return builder.Finish("layers", learnt.regressions);
}

Bytes PackWith(const LayeredCache& cache, std::shared_ptr<const Profile> profile,
               bool embedded = false) {
  ThreadPool pool(2);
  MemorySink out;
  WriteOptions options;
  options.effort = Effort::kMax;
  options.chunk_bytes = 100 * LayeredCache::kChannels * 2;  // too few rows to learn much
  options.joined_layers = kJoinedLayers;
  options.profile = std::move(profile);
  options.profile_file = "layers.kvp";
  options.embeds_profile = embedded;
  WriteArchive(cache.source, &cache.snapshot, options, pool, out);
  return std::move(out.bytes());
}

uint64_t CountProfiledLayers(const Archive& archive) {
  return static_cast<uint64_t>(std::ranges::count_if(archive.chunks(), [](const auto& chunk) {
    return chunk.head.codec == static_cast<uint8_t>(CodecId::kProfiledLayers);
  }));
}

}  // namespace

TEST_CASE("regressions: another cache is smaller with those of its model, and comes back",
          "[kvz][layers][profile]") {
  const auto profile = TrainOn(LayeredCache(3, 1000));
  CHECK(profile->regressions().list.size() == 5);
  for (const Regression& one : profile->regressions().list) {
    CHECK(one.start.has_value());
    CHECK(one.block == LayeredCache::kChannels / 2);
  }
  // The same weights see other activations.
  const LayeredCache other(3, 1000, 0.02f, 3.0f);
  const Bytes plain = PackWith(other, nullptr), with = PackWith(other, profile);
  CHECK(static_cast<double>(with.size()) < 0.8 * static_cast<double>(plain.size()));
  Archive archive = test::OpenBytes(with);
  CHECK(CountProfiledLayers(archive) >= 40);
  CHECK(archive.profiled_chunks() >= CountProfiledLayers(archive));
  archive.UseProfile(profile);
  for (const int threads : {1, 3}) {
    const test::Unpacked unpacked = test::Unpack(archive, false, threads);
    CHECK(unpacked.files.at(0) == test::CopyOf(other.source.files[0].data->bytes()));
  }
}

TEST_CASE("regressions: an archive without its profile is refused", "[kvz][layers][reject]") {
  const LayeredCache cache(3, 300);
  const Archive archive = test::OpenBytes(PackWith(cache, TrainOn(cache)));
  REQUIRE(CountProfiledLayers(archive) > 0);
  CHECK(test::FindingOf([&] { test::Unpack(archive); }) == Finding::kProfileMissing);
}

TEST_CASE(
    "regressions: an archive that holds its profile gives it back, or says that it is damaged",
    "[kvz][layers][profile][reject]") {
  const LayeredCache cache(2, 200);
  const auto profile = TrainOn(cache);
  const Bytes packed = PackWith(cache, profile, true);
  Archive archive = test::OpenBytes(packed);
  REQUIRE(archive.profile_name()->embedded);
  const auto inside = archive.ReadEmbeddedProfile();
  CHECK(inside->file() == profile->file());
  CHECK(archive.CheckRecords().empty());
  archive.UseProfile(inside);
  CHECK(test::Unpack(archive).files.at(0) == test::CopyOf(cache.source.files[0].data->bytes()));
  // The source record comes first; any changed byte of the profile's record is found.
  const uint64_t begin = kvz::ReadRecord(packed, kvz::kHeaderBytes).end(),
                 end = kvz::ReadRecord(packed, begin).end();
  for (uint64_t at = begin; at < end; at += 1 + (at - begin) / 8) {
    Bytes damaged = packed;
    damaged[at] ^= std::byte{4};
    const Archive opened = test::OpenBytes(damaged);
    CHECK_THROWS_AS(opened.ReadEmbeddedProfile(), Error);
    CHECK(opened.CheckRecords().size() == 1);
  }
  for (const uint64_t size : {begin, begin + 20, end - 1}) {
    const Archive cut = test::OpenBytes(Bytes(packed.begin(), packed.begin() + size));
    CHECK_THROWS_AS(cut.ReadEmbeddedProfile(), Error);
  }
}

TEST_CASE("regressions: all SIMD targets write the same archive", "[kvz][layers][profile]") {
  const LayeredCache cache(3, 300);
  const auto profile = TrainOn(cache);
  const Bytes expected = PackWith(cache, profile);
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    CHECK(TrainOn(cache)->file() == profile->file());
    CHECK(PackWith(cache, profile) == expected);
  });
}

TEST_CASE("regressions: they fit the size asked for, or are refused", "[profile]") {
  const LayeredCache cache(4, 300);
  ThreadPool pool(1);
  uint64_t before = UINT64_MAX;
  for (const uint64_t most : {20000, 14000, 9000}) {
    const LearntRegressions learnt = LearnRegressions({&cache.snapshot, 1}, most, pool);
    ByteWriter out;
    WriteRegressions(learnt.regressions, out);
    CHECK(out.size() <= most + 200);  // the rotation and the count come on top
    CHECK(out.size() < before);
    before = out.size();
  }
  CHECK(test::FindingOf([&] {
          LearnRegressions({&cache.snapshot, 1}, 500, pool);
        }) == Finding::kLimit);
}

TEST_CASE("regressions: weights come back, the widest and the rarest", "[profile]") {
  Regression one;
  one.columns = 300;
  one.steps.assign(6, ToUpperHalf(0.5f));
  std::vector<int8_t> integers(one.weights());
  for (size_t i = 0; i < integers.size(); ++i) {
    const int spread = i / one.columns == 0 ? 0 : 1 << (i / one.columns);
    integers[i] = static_cast<int8_t>(static_cast<int>(i * 31 % (2 * spread + 1)) - spread);
  }
  integers[7] = kMostRegressionWeight;
  integers[8] = -kMostRegressionWeight;
  CodeWeights(integers, one);
  CHECK(DecodeWeights(one) == integers);
  one.coded.resize(one.coded.size() - 4);
  CHECK(test::FindingOf([&] { DecodeWeights(one); }) == Finding::kBadPayload);
}

TEST_CASE("regressions: forged profiles are refused or decode to the right size",
          "[profile][reject]") {
  const Bytes file = TrainOn(LayeredCache(2, 300))->file();
  // The name "layers" and the entries come first; the regressions are the file's last third.
  size_t refused = 0;
  for (size_t at = 8; at + 16 < file.size(); ++at) {
    for (const std::byte value : {std::byte{0}, std::byte{0x7f}, std::byte{0xff}}) {
      if (test::ReadChanged(file, at, value)) ++refused;
    }
  }
  CHECK(refused > 0);
}

TEST_CASE("regressions: caches of different models are refused", "[profile][reject]") {
  const std::vector<Snapshot> caches = {LayeredCache(2, 100).snapshot,
                                        LayeredCache(3, 100).snapshot};
  ThreadPool pool(1);
  CHECK(test::FindingOf([&] { LearnRegressions(caches, 1 << 20, pool); }) ==
        Finding::kInconsistent);
}

TEST_CASE("regressions: layers with other tokens or twice the same number are refused",
          "[profile][reject]") {
  ThreadPool pool(1);
  const LayeredCache cache(2, 100);
  Snapshot shorter = cache.snapshot, twice = cache.snapshot, none = cache.snapshot;
  shorter.layers[1] = LayeredCache(2, 64).snapshot.layers[1];
  twice.layers[1].index = 0;
  none.layers.clear();
  const auto finding = [&](const Snapshot& of) {
    return test::FindingOf([&] { LearnRegressions({&of, 1}, 1 << 20, pool); });
  };
  CHECK(finding(shorter) == Finding::kInconsistent);
  CHECK(finding(twice) == Finding::kInconsistent);
  CHECK(finding(none) == Finding::kUnsupportedDtype);
}

TEST_CASE("regressions: layers in any order of the file learn the same", "[profile]") {
  ThreadPool pool(1);
  const LayeredCache cache(3, 300);
  Snapshot reversed = cache.snapshot;
  std::ranges::reverse(reversed.layers);
  CHECK(LearnRegressions({&reversed, 1}, 1 << 20, pool).regressions.list ==
        LearnRegressions({&cache.snapshot, 1}, 1 << 20, pool).regressions.list);
}

// A profile of a model with longer heads must leave an archive as it would be without regressions.
TEST_CASE("regressions: a profile of another model is no use and no fault",
          "[kvz][layers][profile]") {
  const LayeredCache cache(3, 300);
  Regressions other = TrainOn(cache)->regressions();
  other.rotation = {48, std::vector<uint32_t>(48, 0x01000000)};  // more than a row has
  for (Regression& one : other.list) {
    if (one.is_value) continue;
    // Blocks of K would have to be whole heads.
    one.block = 0;
    one.start.reset();
    one.steps.resize(one.neighbour_taps());
    CodeWeights(std::vector<int8_t>(one.weights(), 1), one);
  }
  const auto profile = test::TrainedProfile("other", other);
  Archive archive = test::OpenBytes(PackWith(cache, profile));
  archive.UseProfile(profile);
  // All regressions predict K or have K as a neighbour, and the K of this profile does not fit.
  CHECK(CountProfiledLayers(archive) == 0);
  CHECK(test::Unpack(archive).files.at(0) == test::CopyOf(cache.source.files[0].data->bytes()));
}

}  // namespace kv::regression_trainer_test
