// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Tests the fuzzers' repair of hashes: after it, mutated bytes that a hash covers no longer count
// as damage.
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "formats/zip/zip.h"
#include "lib/core/archive/archive.h"
#include "lib/core/archive/records.h"
#include "tests/fuzz/repair.h"

namespace kv::fuzz_repair_test {
namespace {

Bytes Load(const std::string& name) {
  std::ifstream file(std::string(KVTOOL_TESTDATA) + "/fuzz/" + name, std::ios::binary);
  REQUIRE(file.good());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const ByteSpan bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

std::vector<Damage> DamageOf(const Bytes& archive) {
  ThreadPool pool(1);
  const Archive opened = Archive::Open(FileSource::FromBytes(archive, "repaired"));
  std::vector<Damage> damage = opened.damage();
  for (Damage& found : opened.CheckStored(pool)) damage.push_back(std::move(found));
  for (Damage& found : opened.CheckRecords()) damage.push_back(std::move(found));
  return damage;
}

}  // namespace

TEST_CASE("a repaired archive holds a mutation in any byte of its payloads", "[fuzz]") {
  const Bytes intact = Load("kvz/rows.kvz");
  const Archive archive = Archive::Open(FileSource::FromBytes(intact, "intact"));
  for (const ArchivedChunk& chunk : archive.chunks()) {
    Bytes mutated = intact;
    mutated[chunk.payload_offset + chunk.payload_bytes / 2] ^= std::byte{0x40};
    REQUIRE_FALSE(DamageOf(mutated).empty());
    CHECK(DamageOf(fuzz::RepairKvz(mutated, {})).empty());
  }
}

TEST_CASE("a repaired archive carries mutated heads into its index, or keeps its mutated index",
          "[fuzz]") {
  const Bytes raw_tables = fuzz::RepairKvz(Load("kvz/heads.kvz"), {});
  CHECK(DamageOf(raw_tables).empty());
  const Archive archive = Archive::Open(FileSource::FromBytes(raw_tables, "raw tables"));
  constexpr uint64_t kLayerAt = 4;
  Bytes mutated = raw_tables;
  mutated[archive.chunks().at(0).record_offset + kvz::kPrefixBytes + kLayerAt] = std::byte{77};
  const Bytes repaired = fuzz::RepairKvz(mutated, {});
  CHECK(Archive::Open(FileSource::FromBytes(repaired, "")).chunks().at(0).head.layer == 77);
  // The index was kept, so it still names the old layer.
  CHECK_FALSE(DamageOf(fuzz::RepairKvz(mutated, {.rebuild_index = false})).empty());
}

TEST_CASE("what has no records or no directory is left as it is", "[fuzz]") {
  const Bytes text = Load("zip/stored.npz");
  CHECK(fuzz::RepairKvz(text, {}) == text);
  CHECK(fuzz::RepairKvz({}, {}).empty());
  const Bytes archive = Load("kvz/rows.kvz");
  CHECK(fuzz::RepairZip(archive) == archive);
  CHECK(fuzz::RepairZip({}).empty());
}

TEST_CASE("a repaired zip has the CRC of its mutated member", "[fuzz]") {
  const Bytes intact = Load("zip/stored.npz");
  const auto check = [](const Bytes& bytes) {
    ZipArchive zip(FileSource::FromBytes(bytes, "zip"));
    zip.Inflate(1 << 20);
    for (const ZipEntry& entry : zip.entries()) zip.CheckStored(entry);
  };
  Bytes mutated = intact;
  // The member's content follows the local header and its name.
  mutated[120] ^= std::byte{1};
  CHECK_THROWS(check(mutated));
  CHECK_NOTHROW(check(fuzz::RepairZip(mutated)));
}

}  // namespace kv::fuzz_repair_test
