// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <random>

#include "lib/core/archive/archive_rows.h"
#include "lib/core/archive/records.h"
#include "lib/core/archive/reference.h"
#include "lib/core/base/half.h"
#include "lib/core/snapshot/layout.h"
#include "tests/support/archives.h"

namespace kv::references_test {
namespace {

constexpr uint32_t kChannels = 32;

// Returns a one-layer cache of these tokens; equal tokens have equal rows up to noise.
struct Cache {
  Source source;
  Snapshot snapshot;
};

Cache CacheOf(const std::vector<int32_t>& tokens, float noise, int64_t first = 0) {
  Bytes bytes;
  for (int which = 0; which < 2; ++which) {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::mt19937 random(static_cast<uint32_t>(tokens[i] * 2 + which));
      std::mt19937 more(static_cast<uint32_t>(i));
      std::normal_distribution<float> normal;
      for (uint32_t c = 0; c < kChannels; ++c) {
        const float value = normal(random) + noise * normal(more);
        const uint16_t half = F32ToF16(value);
        bytes.push_back(static_cast<std::byte>(half));
        bytes.push_back(static_cast<std::byte>(half >> 8));
      }
    }
  }
  Cache cache;
  cache.source.files.push_back({"", FileSource::FromBytes(std::move(bytes), "cache")});
  const std::byte* data = cache.source.files[0].data->bytes().data();
  Snapshot& snapshot = cache.snapshot;
  snapshot.source = cache.source;
  snapshot.format = "test";
  LayerKv layer{.index = 4};
  layer.k =
      ContiguousTensor(data, DType::kF16, tokens.size(), 2, kChannels / 2, Order::kTokenHeadDim);
  layer.v = ContiguousTensor(data + 2 * kChannels * tokens.size(), DType::kF16, tokens.size(), 2,
                             kChannels / 2, Order::kTokenHeadDim);
  snapshot.layers.push_back(layer);
  snapshot.tokens = tokens;
  CellGroup group;
  for (size_t i = 0; i < tokens.size(); ++i)
    group.cells.push_back({first + static_cast<int64_t>(i), 0, {}});
  snapshot.cell_groups.push_back(group);
  return cache;
}

std::shared_ptr<const Reference> ReferenceTo(const Cache& cache) {
  return std::make_shared<Reference>(Reference{{"base.bin", "test", 1, 2, 1}, cache.snapshot, {}});
}

std::vector<int32_t> Tokens(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 5000);
  return tokens;
}

std::vector<int32_t> operator+(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<TokenRun> Match(const Cache& cache, const References& references) {
  const ReferencePlan plan(cache.snapshot, references);
  std::vector<TokenRun> runs;
  for (const ReferenceRun& run : plan.ListRuns(4, false, 0, cache.snapshot.tokens.size()))
    runs.push_back({run.reference, run.first_row, run.first_token, run.rows, run.position_shift});
  return runs;
}

Bytes PackBy(const Cache& cache, const References& references, int threads = 1) {
  ThreadPool pool(threads);
  MemorySink out;
  WriteOptions options;
  options.chunk_bytes = 4096;
  options.references = references;
  WriteArchive(cache.source, &cache.snapshot, options, pool, out);
  return std::move(out.bytes());
}

Finding RefusalOf(const ReferenceName& name) {
  kvz::SourceTable table;
  table.files.push_back({"", 0, std::nullopt, false});
  table.references.push_back(name);
  try {
    kvz::DecodeTable(kvz::EncodeTable(table));
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding::kInternal;  // accepted
}

}  // namespace

TEST_CASE("references: tokens that both have are found, wherever they stand", "[kvz][ref]") {
  const std::vector<int32_t> a = Tokens(100, 1), b = Tokens(60, 2), c = Tokens(40, 3);
  const auto check = [&](const std::vector<int32_t>& here, const std::vector<int32_t>& there,
                         const std::vector<TokenRun>& expected) {
    const std::vector<TokenRun> runs =
        Match(CacheOf(here, 0), {ReferenceTo(CacheOf(there, 0.01f))});
    REQUIRE(runs.size() == expected.size());
    for (size_t i = 0; i < runs.size(); ++i) {
      CHECK(runs[i].here == expected[i].here);
      CHECK(runs[i].there == expected[i].there);
      CHECK(runs[i].tokens == expected[i].tokens);
      CHECK(runs[i].position_shift == expected[i].position_shift);
    }
  };
  check(a, a, {{0, 0, 0, 100, 0}});
  check(a + b, a, {{0, 0, 0, 100, 0}});  // a chat that was continued
  // A text that moved to another position.
  check(c + a, a, {{0, 40, 0, 100, 40}});
  // A new prompt was put before the text.
  check(a + c, b + c, {{0, 100, 60, 40, 40}});
  check(a + c + b, a + b, {{0, 0, 0, 100, 0}, {0, 140, 100, 60, 40}});  // an edit
  check(a, c, {});
  check(Tokens(8, 1), Tokens(8, 1), {});  // 8 tokens are too few for a run
}

TEST_CASE("references: of several, the nearest one counts, then the longest", "[kvz][ref]") {
  const std::vector<int32_t> a = Tokens(100, 1), b = Tokens(60, 2);
  const Cache here = CacheOf(a + b, 0);
  const auto same = ReferenceTo(CacheOf(a, 0)), noisy = ReferenceTo(CacheOf(a + b, 0.3f)),
             near = ReferenceTo(CacheOf(a + b, 0.2f));
  for (const References& references : {References{noisy, same}, References{same, noisy}}) {
    const std::vector<TokenRun> runs = Match(here, references);
    REQUIRE(runs.size() == 2);
    CHECK(references[runs[0].reference] == same);
    CHECK(runs[0].tokens == 100);
    CHECK(references[runs[1].reference] == noisy);
    CHECK(runs[1].here == 100);
    CHECK(runs[1].there == 100);
    CHECK(runs[1].tokens == 60);
  }
  // If no reference is clearly nearer, the longer one is chosen.
  const auto shorter = ReferenceTo(CacheOf(a, 0.2f));
  const std::vector<TokenRun> runs = Match(here, {shorter, noisy});
  REQUIRE(runs.size() == 1);
  CHECK(runs[0].reference == 1);
  CHECK(Match(here, {noisy, near})[0].tokens == 160);
}

TEST_CASE("references: without ids, values and then positions tell tokens", "[kvz][ref]") {
  const std::vector<int32_t> a = Tokens(100, 1), c = Tokens(40, 3);
  Cache here = CacheOf(c + a, 0), there = CacheOf(a, 0);
  here.snapshot.tokens.clear();
  const ReferencePlan moved(here.snapshot, {ReferenceTo(there)});
  REQUIRE(moved.ListRuns(4, false, 0, 140).size() == 1);
  CHECK(moved.ListRuns(4, false, 0, 140)[0].position_shift == 40);
  CHECK(moved.ListRuns(4, true, 0, 140)[0].position_shift == 0);  // V is not rotated
  CHECK(moved.ListRuns(4, false, 50, 20)[0].first_token == 10);
  CHECK(moved.ListRuns(4, false, 0, 30).empty());
  CHECK(moved.ListRuns(3, false, 0, 140).empty());
  Cache same = CacheOf(a, 0), noisy = CacheOf(a, 0.01f);
  same.snapshot.tokens.clear();
  const ReferencePlan placed(same.snapshot, {ReferenceTo(noisy)});
  REQUIRE(placed.ListRuns(4, false, 0, 100).size() == 1);
  CHECK(placed.ListRuns(4, false, 0, 100)[0].rows == 100);
}

TEST_CASE("references: archives come back with them and are refused without", "[kvz][ref]") {
  const std::vector<int32_t> a = Tokens(300, 1), b = Tokens(80, 2);
  const Cache here = CacheOf(a + b, 0);
  const References references = {ReferenceTo(CacheOf(Tokens(50, 9), 0)),
                                 ReferenceTo(CacheOf(a, 0.01f)), ReferenceTo(CacheOf(b, 0))};
  const Bytes packed = PackBy(here, references);
  CHECK(PackBy(here, references, 3) == packed);
  CHECK(packed.size() < test::Pack(here.source, &here.snapshot, 4096).size() * 3 / 4);
  Archive archive = test::OpenBytes(packed);
  // The first reference is listed although no chunk uses it.
  REQUIRE(archive.reference_names().size() == 2);
  CHECK(archive.reference_names()[0] == references[1]->name);
  const auto finding = [&] {
    try {
      test::Unpack(archive);
    } catch (const Error& error) {
      return error.finding();
    }
    return Finding::kInternal;
  };
  CHECK(finding() == Finding::kReferenceMissing);
  CHECK_FALSE(test::Unpack(archive, true).report.lost.empty());
  archive.UseReferences({references[1], references[2]});
  const test::Unpacked unpacked = test::Unpack(archive);
  CHECK(unpacked.report.intact());
  CHECK(unpacked.files[0] == test::CopyOf(here.source.files[0].data->bytes()));
  archive.UseReferences({references[2], references[1]});
  CHECK(finding() == Finding::kReferenceDiffers);
  archive.UseReferences({references[1]});
  CHECK(finding() == Finding::kBadFrame);
  Reference gone;
  gone.missing = Error(Finding::kReferenceMissing, "gone");
  archive.UseReferences({std::make_shared<Reference>(gone), references[2]});
  CHECK(finding() == Finding::kReferenceMissing);
}

TEST_CASE("references: rows that are copied from another cache than the archive's are refused",
          "[kvz][ref]") {
  const std::vector<int32_t> a = Tokens(300, 1);
  const References references = {ReferenceTo(CacheOf(a, 0))};
  const Cache here = CacheOf(a + Tokens(40, 2), 0);
  Archive archive = test::OpenBytes(PackBy(here, references));
  uint64_t all_equal = 0;
  for (const ArchivedChunk& chunk : archive.chunks()) {
    const std::vector<ReferenceRun> runs = archive.ListRuns(chunk);
    all_equal += !runs.empty() && std::ranges::all_of(runs, &ReferenceRun::equal) ? 1 : 0;
  }
  REQUIRE(all_equal > 0);
  archive.UseReferences(references);
  CHECK(test::Unpack(archive).report.intact());
  archive.UseReferences({ReferenceTo(CacheOf(a, 0.01f))});
  const RestoreReport report = test::Unpack(archive, true).report;
  CHECK(report.damage.size() >= all_equal);
  for (const Damage& damage : report.damage) CHECK(damage.finding == Finding::kReferenceDiffers);
  // If the content differs although its rows match, the chunk is damaged.
  CodecScratch scratch;
  Bytes raw;
  archive.UseReferences(references);
  for (ArchivedChunk chunk : archive.chunks()) {
    ++chunk.head.raw_hash;
    try {
      archive.Decode(chunk, scratch, raw);
      FAIL("accepted");
    } catch (const Error& error) {
      CHECK(error.finding() == Finding::kChecksum);
    }
  }
}

TEST_CASE("references: one that has the tokens and other values costs its name alone",
          "[kvz][ref]") {
  constexpr uint64_t kName = 64;
  const std::vector<int32_t> a = Tokens(2000, 1);
  const Cache here = CacheOf(a, 0);
  Cache other = CacheOf(Tokens(2000, 2), 0);
  other.snapshot.tokens = a;
  const uint64_t alone = test::Pack(here.source, &here.snapshot, 4096).size();
  CHECK(PackBy(here, {ReferenceTo(other)}).size() <= alone + alone / 1000 + kName);
  // Some rows in the middle are equal: the search finds them, and the others cost nothing.
  std::vector<int32_t> some = Tokens(2000, 2);
  std::copy(a.begin() + 500, a.begin() + 1500, some.begin() + 500);
  Cache partly = CacheOf(some, 0);
  partly.snapshot.tokens = a;
  CHECK(PackBy(here, {ReferenceTo(partly)}).size() < alone * 6 / 10);
}

// Returns a reference to an archive whose rows are decoded on demand.
std::shared_ptr<const Reference> LazyReferenceTo(const Bytes& packed, References its_references) {
  Archive archive = test::OpenBytes(packed);
  archive.UseReferences(std::move(its_references));
  Reference reference{{"base.bin", "test", 1, 2, 1}, *archive.description(), {}};
  reference.rows = std::make_shared<ArchiveRows>(std::move(archive));
  return std::make_shared<Reference>(std::move(reference));
}

TEST_CASE("references: chains of archives come back, decoded where they are needed", "[kvz][ref]") {
  const std::vector<int32_t> all = Tokens(430, 1);
  const auto first = [&](size_t count) {
    return std::vector<int32_t>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count));
  };
  // There are three caches, each an extension of the one before; a similar copy of the last; an
  // extension of that copy.
  const Cache caches[] = {CacheOf(first(150), 0), CacheOf(first(260), 0), CacheOf(first(400), 0),
                          CacheOf(first(400), 0.01f), CacheOf(all, 0.01f)};
  References chain;
  Bytes first_packed;
  for (const Cache& cache : caches) {
    const Bytes packed = PackBy(cache, chain);
    if (chain.empty()) first_packed = packed;
    for (const int threads : {1, 3}) {
      Archive archive = test::OpenBytes(packed);
      archive.UseReferences(chain);
      const test::Unpacked unpacked = test::Unpack(archive, false, threads);
      CHECK(unpacked.report.intact());
      CHECK(unpacked.files[0] == test::CopyOf(cache.source.files[0].data->bytes()));
    }
    chain = {LazyReferenceTo(packed, chain)};
  }
  // Tokens can be read in any order; tokens beyond the end are refused.
  const RowsOfReferences rows(chain);
  const auto read = [&](const ReferenceRun& run) {
    Bytes bytes;
    REQUIRE(rows.Read(run, kChannels, bytes) == DType::kF16);
    const KvTensor& tensor = caches[4].snapshot.layers[0].k;
    CHECK(bytes == Gather(tensor, run.first_token, run.rows, Order::kTokenHeadDim));
  };
  for (const uint64_t token : {429, 0, 63, 149, 259, 300, 64})
    read({.layer = 4, .rows = 1, .first_token = token});
  read({.layer = 4, .rows = 430});
  read({.layer = 4, .rows = 200, .first_token = 140});
  const auto refusal = [&](const References& references, const ReferenceRun& run) {
    try {
      Bytes bytes;
      RowsOfReferences(references).Read(run, kChannels, bytes);
    } catch (const Error& error) {
      return error.finding();
    }
    return Finding::kInternal;  // accepted
  };
  CHECK(refusal(chain, {.layer = 3, .rows = 1}) == Finding::kReferenceDiffers);
  CHECK(refusal(chain, {.layer = 4, .rows = 2, .first_token = 429}) == Finding::kReferenceDiffers);
  // A reference that is damaged, or lacks its own reference, is refused.
  Bytes damaged = first_packed;
  damaged[first_packed.size() / 4] ^= std::byte{1};
  CHECK(refusal({LazyReferenceTo(damaged, {})}, {.layer = 4, .rows = 150}) ==
        Finding::kReferenceDiffers);
  const Bytes second = PackBy(caches[1], {LazyReferenceTo(first_packed, {})});
  CHECK(refusal({LazyReferenceTo(second, {})}, {.layer = 4, .rows = 260}) ==
        Finding::kReferenceMissing);
  CHECK(refusal({LazyReferenceTo(second, {LazyReferenceTo(second, {})})},
                {.layer = 4, .rows = 260}) == Finding::kReferenceMissing);
}

TEST_CASE("references: names that lead elsewhere and endless chains are refused", "[kvz][ref]") {
  CHECK(RefusalOf({"base.bin", "test", 1, 2, 8}) == Finding::kInternal);
  CHECK(RefusalOf({"../base.bin", "test", 1, 2, 1}) == Finding::kUnsafeName);
  CHECK(RefusalOf({"a/base.bin", "test", 1, 2, 1}) == Finding::kUnsafeName);
  CHECK(RefusalOf({"", "test", 1, 2, 1}) == Finding::kUnsafeName);
  CHECK(RefusalOf({"base.bin", "test", 1, 2, 0}) == Finding::kLimit);
  CHECK(RefusalOf({"base.bin", "test", 1, 2, 9}) == Finding::kLimit);
}

}  // namespace kv::references_test
