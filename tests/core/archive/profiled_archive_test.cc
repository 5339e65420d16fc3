// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/core/archive/records.h"
#include "lib/core/snapshot/layout.h"
#include "tests/support/archives.h"
#include "tests/support/profiles.h"

namespace kv::profiled_archive_test {
namespace {

// Returns a cache that is layer 0 of the profile's model.
Snapshot CacheOf(Source& source) {
  Bytes bytes = test::ModelRows(DType::kF16, false, 200, 64, 3);
  const Bytes values = test::ModelRows(DType::kF16, true, 200, 64, 4);
  bytes.insert(bytes.end(), values.begin(), values.end());
  source.files.push_back({"", FileSource::FromBytes(std::move(bytes), "cache")});
  const std::byte* data = source.files[0].data->bytes().data();
  Snapshot snapshot;
  snapshot.source = source;
  snapshot.format = "test";
  LayerKv layer{.index = 0};
  layer.k = ContiguousTensor(data, DType::kF16, 200, 2, 32, Order::kTokenHeadDim);
  layer.v = ContiguousTensor(data + 200 * 128, DType::kF16, 200, 2, 32, Order::kTokenHeadDim);
  snapshot.layers.push_back(layer);
  return snapshot;
}

Bytes PackWith(const Source& source, const Snapshot& snapshot,
               std::shared_ptr<const Profile> profile, Effort effort = Effort::kDefault) {
  ThreadPool pool(1);
  MemorySink out;
  WriteOptions options;
  options.chunk_bytes = 8192;
  options.effort = effort;
  options.profile = std::move(profile);
  options.profile_file = "walks.kvp";
  WriteArchive(source, &snapshot, options, pool, out);
  return std::move(out.bytes());
}

Finding FindingOf(const Archive& archive) {
  try {
    CodecScratch scratch;
    Bytes raw;
    for (const ArchivedChunk& chunk : archive.chunks()) archive.Decode(chunk, scratch, raw);
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding::kInternal;  // decoded
}

}  // namespace

TEST_CASE("a profile makes the short chunks of an archive smaller, which then need it",
          "[kvz][profile]") {
  Source source;
  const Snapshot snapshot = CacheOf(source);
  const std::shared_ptr<const Profile> profile = test::TrainedProfile();
  for (const Effort effort : {Effort::kDefault, Effort::kHigh, Effort::kMax}) {
    const Bytes with = PackWith(source, snapshot, profile, effort),
                without = PackWith(source, snapshot, nullptr, effort);
    CHECK(with.size() < without.size());
    Archive archive = Archive::Open(FileSource::FromBytes(with, "with"));
    REQUIRE(archive.profile_name());
    CHECK(archive.profile_name()->file == "walks.kvp");
    CHECK(archive.profile_name()->model == "walks");
    CHECK(archive.profile_name()->hash == profile->hash());
    CHECK(archive.profiled_chunks() > 0);
    CHECK(FindingOf(archive) == Finding::kProfileMissing);
    CHECK_THROWS_AS(archive.RequireProfile(), Error);
    archive.UseProfile(profile);
    archive.RequireProfile();
    CHECK(FindingOf(archive) == Finding::kInternal);
  }
}

TEST_CASE("an archive that gains nothing from a profile names it and does not need it",
          "[kvz][profile]") {
  Source source;
  const Snapshot snapshot = CacheOf(source);
  ProfileTrainer trainer(7, false, DType::kF16, 64);
  trainer.Add(test::ModelRows(DType::kF16, false, 100, 64, 1));
  std::vector<ProfileEntry> entries;
  entries.push_back(trainer.Finish());
  const Archive archive = Archive::Open(FileSource::FromBytes(
      PackWith(source, snapshot, Profile::Make("another layer", std::move(entries))), "archive"));
  CHECK(archive.profile_name()->model == "another layer");
  CHECK(archive.profiled_chunks() == 0);
  archive.RequireProfile();
  CHECK(FindingOf(archive) == Finding::kInternal);
}

TEST_CASE("a profile's name that leads out of the folder, and unknown flags, are refused",
          "[kvz][profile][reject]") {
  kvz::SourceTable table;
  table.files.push_back({"", 0, std::nullopt, false});
  const auto refusal = [&](const std::string& file) {
    table.profile = ProfileName{file, "model", {}};
    try {
      kvz::DecodeTable(kvz::EncodeTable(table));
    } catch (const Error& error) {
      return error.finding();
    }
    return Finding::kInternal;
  };
  CHECK(refusal("model.kvp") == Finding::kInternal);
  CHECK(refusal("") == Finding::kInternal);
  CHECK(refusal("../model.kvp") == Finding::kUnsafeName);
  CHECK(refusal("models/model.kvp") == Finding::kUnsafeName);
  CHECK(refusal("/etc/passwd") == Finding::kUnsafeName);
  table.profile = ProfileName{"model.kvp", "model", {}};
  Bytes bytes = kvz::EncodeTable(table);
  bytes.pop_back();
  CHECK_THROWS_AS(kvz::DecodeTable(bytes), Error);
  bytes[3] = std::byte{0x80};
  CHECK_THROWS_AS(kvz::DecodeTable(bytes), Error);
}

}  // namespace kv::profiled_archive_test
