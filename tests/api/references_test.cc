// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Archives that need another cache, through kvtool.hpp.
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "lib/api/kvtool.hpp"

namespace {

using kvtool::Bytes;
using Data = std::vector<std::byte>;

constexpr uint32_t kHeads = 2, kDim = 64;
constexpr size_t kRow = 2 * kHeads * kDim;

// Returns noise in bf16, which hardly compresses without a reference.
Data Noise(uint64_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  Data rows(tokens * kRow);
  for (std::byte& byte : rows) byte = static_cast<std::byte>(random() & 0x3f);
  return rows;
}

kvtool::ReadAt From(const Data& data) {
  return [&data](uint64_t offset, kvtool::MutableBytes to) {
    if (!to.empty()) std::memcpy(to.data(), data.data() + offset, to.size());
  };
}
kvtool::Write To(Data& data) {
  return [&data](Bytes more) { data.insert(data.end(), more.begin(), more.end()); };
}
kvtool::File FindFile(const std::string& name, const Data& data) {
  return {name, data.size(), From(data)};
}

// Makes a safetensors file of two layers: rows drawn with `seed`, then `more` rows drawn with
// another one.
Data CacheFile(const kvtool::Context& context, uint64_t tokens, uint64_t more = 0) {
  std::vector<kvt_desc> descs(4, kvtool::Describe(KVT_BF16, tokens + more, kHeads, kDim));
  std::vector<kvt_part> parts;
  for (uint32_t i = 0; i < 4; ++i) {
    descs[i].role = i % 2 == 0 ? KVT_K : KVT_V;
    parts.push_back(kvtool::Part(i / 2, descs[i]));
  }
  Data archive, file;
  kvtool::Writer writer(context, parts, To(archive));
  for (uint32_t i = 0; i < 4; ++i) {
    Data rows = Noise(tokens, i);
    const Data rest = Noise(more, 100 + i);
    rows.insert(rows.end(), rest.begin(), rest.end());
    writer.Add(i, rows);
  }
  writer.Finish();
  kvtool::Unpack(context, archive.size(), From(archive), [&](auto, auto) { return To(file); });
  return file;
}

Data PackOne(const kvtool::Context& context, const Data& file,
             std::span<const kvtool::Reference> references = {}) {
  Data archive;
  const kvtool::File named = FindFile("today.safetensors", file);
  kvtool::Pack(context, {&named, 1}, To(archive), references);
  return archive;
}

// The file that the archive restores to, or the finding that explains the failure.
struct Outcome {
  Data file;
  int finding = 0;
  bool opened = false;
};
Outcome UnpackOne(const kvtool::Context& context, const Data& archive,
                  std::span<const kvtool::Reference> references) {
  Outcome outcome;
  try {
    kvtool::Unpack(
        context, archive.size(), From(archive),
        [&](auto, auto) {
          outcome.opened = true;
          return To(outcome.file);
        },
        references);
  } catch (const kvtool::Error& error) {
    outcome.finding = error.finding();
  }
  return outcome;
}

template <typename F>
int FindingOf(F&& f) {
  try {
    f();
  } catch (const kvtool::Error& error) {
    return error.finding();
  }
  return 0;
}

std::vector<kvtool::Reference> ReferenceTo(const kvtool::Context& context, const Data& file,
                                           std::span<const kvtool::Reference> needed = {}) {
  const kvtool::File named = FindFile("chats/yesterday.safetensors", file);
  std::vector<kvtool::Reference> references;
  references.emplace_back(context, std::span(&named, 1), needed);
  return references;
}

TEST_CASE("An archive coded beside another cache needs it, and comes back with it") {
  const kvtool::Context context;
  const kvtool::Pool pool(3);
  const kvtool::Context threaded(KVT_DEFAULT, &pool);
  const Data yesterday = CacheFile(context, 900), today = CacheFile(context, 900, 200),
             foreign = CacheFile(context, 50);
  const auto beside = ReferenceTo(context, yesterday);
  const Data alone = PackOne(context, today), archive = PackOne(context, today, beside);
  CHECK(archive.size() < alone.size() / 3);
  CHECK(archive == PackOne(threaded, today, beside));

  const Outcome without = UnpackOne(context, archive, {});
  CHECK(without.finding == 1107);
  CHECK_FALSE(without.opened);
  const Outcome wrong = UnpackOne(context, archive, ReferenceTo(context, foreign));
  CHECK(wrong.finding == 1108);
  CHECK_FALSE(wrong.opened);
  CHECK(UnpackOne(threaded, archive, beside).file == today);
  // References are recognised by their rows: another file with the same rows works, and so does an
  // archive of one.
  CHECK(UnpackOne(context, archive, ReferenceTo(context, today)).file == today);
  CHECK(UnpackOne(context, archive, ReferenceTo(threaded, PackOne(context, yesterday))).file ==
        today);
  // A reference that saves nothing is not needed for decoding.
  CHECK(UnpackOne(context, PackOne(context, today, ReferenceTo(context, foreign)), {}).file ==
        today);
}

TEST_CASE("A reader names the caches that it needs, and reads beside them") {
  const kvtool::Context context;
  const Data yesterday = CacheFile(context, 900), today = CacheFile(context, 900, 200);
  std::vector<kvtool::Reference> beside = ReferenceTo(context, yesterday);
  const Data archive = PackOne(context, today, beside);
  uint64_t fetched = 0;
  kvtool::Reader reader(context, archive.size(), [&](uint64_t offset, kvtool::MutableBytes to) {
    fetched += to.size();
    From(archive)(offset, to);
  });
  REQUIRE(reader.parts() == 4);
  REQUIRE(reader.Needs().size() == 1);
  CHECK(reader.Needs()[0].name == "yesterday.safetensors");
  CHECK(reader.Needs()[0].format == "safetensors");
  CHECK(reader.Needs()[0].bytes == yesterday.size());
  CHECK_FALSE(reader.Needs()[0].found);
  Data rows(300 * kRow);
  CHECK(FindingOf([&] { reader.Read(0, 0, 300, rows); }) == 1107);
  reader.Beside(ReferenceTo(context, CacheFile(context, 50)));
  CHECK_FALSE(reader.Needs()[0].found);
  CHECK(FindingOf([&] { reader.Read(0, 0, 300, rows); }) == 1108);
  reader.Beside(beside);
  beside.clear();  // the reader owns the references now
  CHECK(reader.Needs()[0].found);
  fetched = 0;
  CHECK(reader.Read(2, 100, 300, rows) == rows.size());
  CHECK(fetched < archive.size() / 2);
  const Data all = Noise(900, 2);
  CHECK(std::memcmp(rows.data(), all.data() + 100 * kRow, rows.size()) == 0);
}

TEST_CASE("A reference may itself be an archive that needs one, for a few steps") {
  const kvtool::Context context(KVT_FAST);
  const Data file = CacheFile(context, 100), more = CacheFile(context, 100, 10);
  const auto first = ReferenceTo(context, file);
  Data archive = PackOne(context, more, first);
  CHECK(FindingOf([&] { ReferenceTo(context, archive); }) == 1107);
  const auto second = ReferenceTo(context, archive, first);
  CHECK(UnpackOne(context, PackOne(context, more, second), second).file == more);
  std::vector<kvtool::Reference> chain = ReferenceTo(context, archive, first);
  int steps = 1;
  for (; FindingOf([&] { archive = PackOne(context, more, chain); }) == 0; ++steps) {
    REQUIRE(steps < 20);
    std::vector<kvtool::Reference> known = std::move(chain);
    const kvtool::File named = FindFile("older.kvz", archive);
    chain.clear();
    chain.emplace_back(context, std::span(&named, 1), known);
  }
  CHECK(FindingOf([&] { PackOne(context, more, chain); }) == 1014);
  CHECK(steps == 8);
}

TEST_CASE("Misuse of references is refused, and damage is a status") {
  const kvtool::Context context;
  const Data yesterday = CacheFile(context, 300), today = CacheFile(context, 300, 50);
  const auto beside = ReferenceTo(context, yesterday);
  const Data sound = PackOne(context, today, beside);
  const Data noise = Noise(10, 1);
  const kvtool::File nothing = FindFile("noise", noise);
  CHECK(FindingOf([&] { kvtool::Reference(context, {&nothing, 1}); }) == 3);
  CHECK(FindingOf([&] { kvtool::Reference(context, {}); }) == 10);
  const kvt_reference* const null = nullptr;
  kvt_reference* out = nullptr;
  kvt_sink sink = {sizeof sink, 0, nullptr, [](void*, const void*, size_t) { return 0; }};
  const kvt_source none = {sizeof none, 0, 0, nullptr, nullptr};
  const kvt_file file = {sizeof file, 0, "a", &none};
  CHECK(kvt_reference_create(context.get(), &file, 1, &null, 1, &out) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_reference_create(context.get(), &file, 1, nullptr, 1, &out) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_reference_create(context.get(), &file, 1, nullptr, 0, nullptr) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_pack_beside(context.get(), &file, 1, &null, 1, &sink) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_reader_beside(nullptr, nullptr, 0) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_reader_need(nullptr, 0, nullptr) == KVT_E_BAD_ARGUMENT);
  kvt_reference_free(nullptr);

  std::mt19937 random(5);
  for (int i = 0; i < 60; ++i) {
    Data damaged = sound;
    damaged[random() % damaged.size()] ^= static_cast<std::byte>(1u << random() % 8);
    const Outcome outcome = UnpackOne(context, damaged, beside);
    CHECK((outcome.finding != 0 || outcome.file == today));
    CHECK(kvt_fault(-outcome.finding) != KVT_FAULT_INTERNAL);
    const int finding = FindingOf([&] {
      kvtool::Reader reader(context, damaged.size(), From(damaged));
      reader.Beside(beside);
      Data rows(kRow);
      for (uint64_t part = 0; part < reader.parts(); ++part) reader.Read(part, 7, 1, rows);
    });
    CHECK(kvt_fault(-finding) != KVT_FAULT_INTERNAL);
  }
}

TEST_CASE("Packing and unpacking end where they are cancelled") {
  kvtool::Context context;
  const Data file = CacheFile(context, 3000);
  const Data archive = PackOne(context, file);
  const kvtool::File named = FindFile("a", file);
  CHECK(FindingOf([&] {
          kvtool::Pack(context, {&named, 1}, [&](Bytes) { context.Cancel(); });
        }) == 8);
  CHECK(FindingOf([&] {
          kvtool::Unpack(context, archive.size(), From(archive),
                         [&](auto, auto) { return [&](Bytes) { context.Cancel(); }; });
        }) == 8);
  CHECK(PackOne(context, file) == archive);
}

}  // namespace
