// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <set>

#include "lib/core/archive/records.h"
#include "lib/core/snapshot/layout.h"
#include "tests/support/archives.h"
#include "tests/support/profiles.h"

namespace kv::groups_test {
namespace {

using test::CopyOf;
using test::OpenBytes;
using test::Unpack;

constexpr uint32_t kHeadCount = 2, kDim = 16;
constexpr uint64_t kPageTokens = 4;

// Makes pages of K and V of two layers; the order of the names is not that of the tokens.
struct PagedCache {
  Source source;
  Snapshot snapshot;
};

PagedCache PagesOf(size_t pages, Order order) {
  PagedCache cache;
  cache.source.is_folder = true;
  constexpr uint64_t kTensor = kPageTokens * kHeadCount * kDim * 2;
  std::vector<Bytes> rows;
  for (uint32_t tensor = 0; tensor < 4; ++tensor)
    rows.push_back(
        test::ModelRows(DType::kF16, false, pages * kPageTokens, kHeadCount * kDim, tensor + 1));
  std::vector<Bytes> content(pages);
  for (size_t page = 0; page < pages; ++page) {
    for (const Bytes& one : rows) {
      Bytes part(kTensor);
      Reorder(ByteSpan(one).subspan(page * kTensor, kTensor), Order::kTokenHeadDim, part, order,
              kPageTokens, kHeadCount, kDim, 2);
      content[page].insert(content[page].end(), part.begin(), part.end());
    }
  }
  std::vector<LayerKv> layers(2);
  for (size_t i = 0; i < pages; ++i) {
    cache.source.files.push_back(
        {fmt::format("{:04}", i), FileSource::FromBytes(content[pages - 1 - i], "page")});
  }
  for (uint32_t layer = 0; layer < 2; ++layer) {
    layers[layer].index = layer;
    for (const bool is_value : {false, true}) {
      KvTensor tensor;
      for (size_t page = 0; page < pages; ++page) {
        const std::byte* data = cache.source.files[pages - 1 - page].data->bytes().data() +
                                kTensor * (2 * layer + (is_value ? 1 : 0));
        KvTensor one = ContiguousTensor(data, DType::kF16, kPageTokens, kHeadCount, kDim, order);
        if (page == 0) {
          tensor = std::move(one);
        } else {
          tensor.pieces.push_back(one.pieces[0]);
        }
      }
      if (is_value) {
        layers[layer].v = std::move(tensor);
      } else {
        layers[layer].k = std::move(tensor);
      }
    }
  }
  cache.snapshot.source = cache.source;
  cache.snapshot.format = "test";
  cache.snapshot.layers = std::move(layers);
  return cache;
}

Bytes PackPages(const PagedCache& cache, bool solid, int threads = 1,
                Effort effort = Effort::kDefault) {
  ThreadPool pool(threads);
  MemorySink out;
  WriteOptions options;
  options.chunk_bytes = 4096;
  options.solid = solid;
  options.effort = effort;
  WriteArchive(cache.source, &cache.snapshot, options, pool, out);
  return std::move(out.bytes());
}

bool IsWhole(const PagedCache& cache, const std::vector<Bytes>& files) {
  for (size_t i = 0; i < cache.source.files.size(); ++i) {
    if (!std::ranges::equal(files.at(i), cache.source.files[i].data->bytes())) return false;
  }
  return files.size() == cache.source.files.size();
}

Finding RefusalOfGroups(const std::vector<FileGroup>& groups, const std::vector<uint64_t>& sizes) {
  kvz::SourceTable table;
  table.is_folder = true;
  for (size_t i = 0; i < sizes.size(); ++i)
    table.files.push_back({fmt::format("f{}", i), sizes[i], std::nullopt, false});
  table.groups = groups;
  try {
    kvz::DecodeTable(kvz::EncodeTable(table));
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding::kInternal;  // accepted
}

}  // namespace

TEST_CASE("groups: every byte of a file has one place among the joined ones", "[kvz][solid]") {
  for (const std::vector<uint64_t>& cuts :
       {std::vector<uint64_t>(), {1}, {5}, {2, 3, 7}, {1, 2, 3, 4, 5, 6, 7, 8, 9}}) {
    const std::vector<uint64_t> sizes =
        cuts.empty() ? std::vector<uint64_t>{3, 10, 1} : std::vector<uint64_t>{10, 10, 10};
    const GroupLayout layout({{4, 2, 9}, cuts}, sizes);
    Bytes joined(layout.bytes());
    std::vector<Bytes> files;
    for (size_t place = 0; place < 3; ++place) {
      Bytes file(sizes[place]);
      for (size_t i = 0; i < file.size(); ++i) file[i] = static_cast<std::byte>(16 * place + i + 1);
      layout.Join(place, file, joined);
      files.push_back(file);
    }
    CHECK(std::ranges::count(joined, std::byte{0}) == 0);
    for (size_t place = 0; place < 3; ++place) {
      Bytes back(sizes[place]);
      layout.Part(place, joined, back);
      CHECK(back == files[place]);
      for (uint64_t i = 0; i < sizes[place]; ++i)
        CHECK(joined[layout.JoinedOffset(place, i)] == files[place][i]);
    }
    for (uint64_t begin = 0; begin < joined.size(); ++begin) {
      uint64_t covered = 0;
      layout.ForEachPiece(begin, joined.size() - begin, [&](const GroupLayout::Piece& piece) {
        CHECK(piece.joined_offset == begin + covered);
        covered += piece.bytes;
        for (uint64_t i = 0; i < piece.bytes; ++i)
          CHECK(joined[piece.joined_offset + i] == files[piece.place][piece.file_offset + i]);
      });
      CHECK(covered == joined.size() - begin);
    }
  }
}

TEST_CASE("groups: pages become one tensor, in any order of axes, and come back", "[kvz][solid]") {
  for (const Order order : {Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kHeadDimToken}) {
    const PagedCache cache = PagesOf(40, order);
    for (const Effort effort : {Effort::kCompat, Effort::kDefault, Effort::kMax}) {
      const Bytes solid = PackPages(cache, true, 1, effort),
                  apart = PackPages(cache, false, 1, effort);
      CHECK(solid == PackPages(cache, true, 3, effort));
      CHECK(solid.size() * (effort == Effort::kCompat ? 10 : 20) < apart.size() * 10);
      const Archive archive = OpenBytes(solid);
      REQUIRE(archive.groups().size() == 1);
      CHECK(archive.groups()[0].first() == 39);  // file 39 has the page with the first tokens
      CHECK(IsWhole(cache, Unpack(archive, false, 3).files));
      CHECK(archive.HoldsTensor(1, true));
      ThreadPool pool(1);
      const Snapshot loaded = LoadTensors(archive, {}, pool);
      CHECK(Gather(*loaded.layers[1].v, 10, 100, Order::kTokenHeadDim) ==
            Gather(*cache.snapshot.layers[1].v, 10, 100, Order::kTokenHeadDim));
    }
  }
}

TEST_CASE("groups: a lost chunk names every file that it takes with it, and no other byte",
          "[kvz][solid][damage]") {
  for (const Order order : {Order::kTokenHeadDim, Order::kHeadDimToken}) {
    const PagedCache cache = PagesOf(40, order);
    Bytes bytes = PackPages(cache, true);
    const size_t which = 2;
    const ArchivedChunk chunk = OpenBytes(CopyOf(bytes)).chunks()[which];
    bytes[chunk.payload_offset + 5] ^= std::byte{1};
    const Archive archive = OpenBytes(bytes);
    CHECK_THROWS_AS(Unpack(archive), Error);
    const test::Unpacked unpacked = Unpack(archive, true);
    CHECK(unpacked.report.lost_bytes == chunk.head.raw_bytes);
    std::vector<Bytes> expected;
    for (const SourceFile& file : cache.source.files)
      expected.push_back(CopyOf(file.data->bytes()));
    std::set<uint32_t> named;
    for (const LostRange& lost : unpacked.report.lost) {
      named.insert(lost.file);
      REQUIRE(lost.chunk);
      CHECK(lost.chunk->token_begin == chunk.head.token_begin);
      for (uint64_t run = 0; run < lost.runs; ++run)
        std::memset(expected[lost.file].data() + lost.offset + run * lost.run_step, 0,
                    lost.run_bytes);
    }
    CHECK(named.size() == chunk.head.tokens / kPageTokens);
    CHECK(unpacked.files == expected);
    // The file is truncated: the missing part is not invented.
    Bytes cut = PackPages(cache, true);
    cut.resize(cut.size() / 2);
    const test::Unpacked rest = Unpack(OpenBytes(cut), true);
    uint64_t lost_bytes = 0;
    for (const LostRange& lost : rest.report.lost) lost_bytes += lost.bytes();
    CHECK(lost_bytes == rest.report.lost_bytes);
    CHECK(rest.report.lost_bytes > 0);
    CHECK(rest.report.bytes == cache.source.total_bytes());
  }
}

TEST_CASE("groups: small files that no reader knows are joined, large and empty ones are not",
          "[kvz][solid]") {
  Source source;
  source.is_folder = true;
  for (int i = 0; i < 30; ++i) {
    Bytes content(i == 7 ? 0 : i == 9 ? 20000 : 50 + static_cast<size_t>(i));
    std::iota(reinterpret_cast<uint8_t*>(content.data()),
              reinterpret_cast<uint8_t*>(content.data() + content.size()), uint8_t{1});
    source.files.push_back(
        {fmt::format("{:02}", i), FileSource::FromBytes(content, "small"), i == 3});
  }
  const Archive archive = OpenBytes(test::Pack(source, nullptr, 4096));
  REQUIRE(archive.groups().size() == 1);
  CHECK(archive.groups()[0].files.size() == 28);
  CHECK(archive.groups()[0].cuts.empty());
  const test::Unpacked unpacked = Unpack(archive);
  for (size_t i = 0; i < source.files.size(); ++i)
    CHECK(std::ranges::equal(unpacked.files[i], source.files[i].data->bytes()));
  CHECK(archive.files()[3].executable);
  const ArchivedChunk* chunk = archive.FindChunk(29, 70);
  REQUIRE(chunk != nullptr);
  CHECK(chunk->head.file == 0);
}

TEST_CASE("groups: tables that lie about groups are refused", "[kvz][solid][reject]") {
  const std::vector<uint64_t> sizes = {8, 8, 9, 0, uint64_t{40} << 20, uint64_t{40} << 20};
  const auto refusal = [&](FileGroup group) { return RefusalOfGroups({std::move(group)}, sizes); };
  CHECK(refusal({{0, 1}, {}}) == Finding::kInternal);
  CHECK(refusal({{0, 2}, {}}) == Finding::kInternal);
  CHECK(refusal({{1, 0}, {2, 7}}) == Finding::kInternal);
  CHECK(refusal({{0}, {4}}) == Finding::kBadField);
  CHECK(refusal({{}, {4, 5}}) == Finding::kBadField);
  CHECK(refusal({{0, 6}, {}}) == Finding::kBadField);
  CHECK(refusal({{0, 0}, {}}) == Finding::kBadField);
  CHECK(refusal({{0, 3}, {}}) == Finding::kBadField);
  CHECK(refusal({{0, 2}, {4}}) == Finding::kBadField);
  CHECK(refusal({{0, 1}, {0}}) == Finding::kBadField);
  CHECK(refusal({{0, 1}, {8}}) == Finding::kBadField);
  CHECK(refusal({{0, 1}, {4, 4}}) == Finding::kBadField);
  CHECK(refusal({{4, 5}, {}}) == Finding::kLimit);
  CHECK(RefusalOfGroups({{{0, 1}, {}}, {{1, 2}, {}}}, sizes) == Finding::kBadField);
  CHECK(RefusalOfGroups({{{2, 4}, {}}, {{0, 1}, {}}}, sizes) == Finding::kBadField);
}

}  // namespace kv::groups_test
