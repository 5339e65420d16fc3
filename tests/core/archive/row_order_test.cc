// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Tests rows that are coded by sequence and position: what that saves, that nothing else changes,
// and forged archives.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <random>

#include "lib/core/archive/archive.h"
#include "lib/core/archive/coded_rows.h"
#include "lib/core/archive/records.h"
#include "lib/core/base/half.h"
#include "tests/support/archives.h"
#include "tests/support/refusal.h"

namespace kv::row_order_test {
namespace {

using test::OpenBytes;
using test::Unpack;

constexpr uint32_t kHeadDim = 32, kLayers = 2;

// Makes independent sequences (random walks) whose keys are rotated by their positions. With
// `turns` their rows alternate, otherwise one sequence follows the other.
struct Batched {
  Batched(uint32_t sequences, uint64_t each, bool turns, uint32_t gap = 1) {
    const uint64_t tokens = sequences * each;
    Bytes bytes(2 * kLayers * tokens * kHeadDim * 2);
    CellGroup cells;
    cells.cells.resize(tokens);
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (uint32_t sequence = 0; sequence < sequences; ++sequence) {
      for (uint32_t tensor = 0; tensor < 2 * kLayers; ++tensor) {
        std::vector<float> walk(kHeadDim);
        for (float& x : walk) x = 3 * normal(random);
        for (uint64_t t = 0; t < each; ++t) {
          const uint64_t row = turns ? t * sequences + sequence : sequence * each + t;
          const int64_t position = static_cast<int64_t>(t * gap);
          cells.cells[row] = {position, 0, {static_cast<int32_t>(sequence)}};
          for (float& x : walk) x += 0.05f * normal(random);
          std::vector<float> x = walk;
          if (tensor % 2 == 0) Rotate(static_cast<float>(position), x);
          for (uint32_t c = 0; c < kHeadDim; ++c) {
            StoreLE(bytes.data() + 2 * ((tensor * tokens + row) * kHeadDim + c), F32ToF16(x[c]));
          }
        }
      }
    }
    source.files.push_back({"", FileSource::FromBytes(std::move(bytes), "cache")});
    snapshot.source = source;
    snapshot.format = "test";
    const std::byte* data = source.files[0].data->bytes().data();
    const auto tensor = [&](uint32_t place) {
      return ContiguousTensor(data + uint64_t{place} * tokens * kHeadDim * 2, DType::kF16, tokens,
                              1, kHeadDim, Order::kTokenHeadDim);
    };
    for (uint32_t layer = 0; layer < kLayers; ++layer)
      snapshot.layers.push_back({layer, {}, {}, tensor(2 * layer), tensor(2 * layer + 1)});
    snapshot.cell_groups.push_back(std::move(cells));
  }

  static void Rotate(float position, std::vector<float>& x) {
    for (uint32_t pair = 0; pair < kHeadDim / 2; ++pair) {
      const float angle =
          position * std::pow(1e4f, -2 * static_cast<float>(pair) / static_cast<float>(kHeadDim));
      float &a = x[pair], &b = x[pair + kHeadDim / 2];
      const float rotated = a * std::cos(angle) - b * std::sin(angle);
      b = a * std::sin(angle) + b * std::cos(angle);
      a = rotated;
    }
  }

  Source source;
  Snapshot snapshot;
};

Bytes Pack(const Batched& cache, Effort effort, uint64_t chunk_bytes = 1 << 20, int threads = 1,
           uint32_t joined = 2) {
  ThreadPool pool(threads);
  MemorySink out;
  WriteOptions options;
  options.chunk_bytes = chunk_bytes;
  options.effort = effort;
  options.joined_layers = joined;
  WriteArchive(cache.source, &cache.snapshot, options, pool, out);
  return std::move(out.bytes());
}

uint64_t KeysAndValues(const Archive& archive) {
  return archive.stored_bytes(ChunkKind::kKey) + archive.stored_bytes(ChunkKind::kValue);
}

// Replaces the source table of the same records; all hashes match.
Bytes WithTable(const Bytes& bytes, const std::function<void(kvz::SourceTable&)>& change) {
  const kvz::Record record = kvz::ReadRecord(bytes, kvz::kHeaderBytes);
  kvz::SourceTable table = kvz::DecodeTable(kvz::ReadTable(bytes, record, 1 << 20));
  change(table);
  const Bytes encoded = kvz::EncodeTable(table);
  const uint32_t tag = kvz::ReadTag(encoded);
  Bytes out = kvz::HeaderBytes();
  const auto append = [&](const Bytes& part) { out.insert(out.end(), part.begin(), part.end()); };
  append(kvz::TableRecord(kvz::RecordType::kSource, tag, encoded));
  const Archive archive = OpenBytes(bytes);
  for (const ArchivedChunk& chunk : archive.chunks()) {
    const ByteSpan payload = ByteSpan(bytes).subspan(chunk.payload_offset, chunk.payload_bytes);
    ByteWriter head;
    kvz::AppendHead(chunk.head, head);
    append(kvz::RecordStart(kvz::RecordType::kChunk, tag, head.bytes(), payload.size(),
                            chunk.payload_hash));
    out.insert(out.end(), payload.begin(), payload.end());
  }
  return out;
}

Finding DecodingFails(const Archive& archive) {
  return test::FindingOf([&] {
    CodecScratch scratch;
    Bytes raw;
    archive.Decode(archive.chunks().at(0), scratch, raw);
  });
}

}  // namespace

TEST_CASE("row order: rows by turns are as small as one sequence after another", "[kvz][rows]") {
  const Batched apart(4, 150, false), turns(4, 150, true);
  for (const Effort effort : {Effort::kDefault, Effort::kHigh, Effort::kMax}) {
    INFO(Name(effort));
    const Bytes bytes = Pack(turns, effort);
    const Archive archive = OpenBytes(bytes), other = OpenBytes(Pack(apart, effort));
    CHECK(archive.ordered_chunks() == 2 * kLayers);
    CHECK(archive.has_index());
    CHECK(static_cast<double>(KeysAndValues(archive)) <
          1.005 * static_cast<double>(KeysAndValues(other)));
    for (const int threads : {1, 3}) {
      const test::Unpacked unpacked = Unpack(archive, false, threads);
      CHECK(unpacked.report.intact());
      CHECK(unpacked.files.at(0) == test::CopyOf(turns.source.files[0].data->bytes()));
    }
    CHECK(Pack(turns, effort, 1 << 20, 3) == bytes);
  }
}

TEST_CASE("row order: without the cells, rows by turns take more", "[kvz][rows]") {
  const Batched turns(4, 150, true);
  Batched unknown(4, 150, true);
  unknown.snapshot.cell_groups.clear();
  for (const Effort effort : {Effort::kDefault, Effort::kHigh, Effort::kMax}) {
    INFO(Name(effort));
    const Archive with = OpenBytes(Pack(turns, effort)), without = OpenBytes(Pack(unknown, effort));
    CHECK(without.ordered_chunks() == 0);
    CHECK(KeysAndValues(with) < 97 * KeysAndValues(without) / 100);
  }
}

TEST_CASE("row order: positions with gaps turn keys as far as they are apart", "[kvz][rows]") {
  const Batched evicted(1, 400, false, 7);
  Batched unknown(1, 400, false, 7);
  unknown.snapshot.cell_groups.clear();
  for (const Effort effort : {Effort::kHigh, Effort::kMax}) {
    INFO(Name(effort));
    const Archive archive = OpenBytes(Pack(evicted, effort));
    CHECK(archive.ordered_chunks() >= kLayers);
    CHECK(Unpack(archive).report.intact());
    CHECK(KeysAndValues(archive) < KeysAndValues(OpenBytes(Pack(unknown, effort))));
  }
}

TEST_CASE("row order: one sequence in order is written as if nobody knew of cells", "[kvz][rows]") {
  const Batched one(1, 300, false), turns(2, 150, true);
  for (const Effort effort :
       {Effort::kCompat, Effort::kFast, Effort::kDefault, Effort::kHigh, Effort::kMax}) {
    CHECK(OpenBytes(Pack(one, effort)).ordered_chunks() == 0);
  }
  // Levels that do not compare rows keep the stored order.
  CHECK(OpenBytes(Pack(turns, Effort::kCompat)).ordered_chunks() == 0);
  CHECK(OpenBytes(Pack(turns, Effort::kFast)).ordered_chunks() == 0);
}

TEST_CASE("row order: parts and lost chunks are the same tokens as ever", "[kvz][rows]") {
  const Batched turns(3, 100, true);
  constexpr uint64_t kRow = kHeadDim * 2;
  Bytes bytes = Pack(turns, Effort::kMax, 90 * kRow, 1, 1);
  const Archive archive = OpenBytes(bytes);
  ThreadPool pool(2);
  Selection wanted;
  wanted.tokens = {TokenRange{95, 140}};
  const Snapshot part = LoadTensors(archive, wanted, pool, nullptr);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    CHECK(Gather(part.layers[layer].k, 95, 45, Order::kTokenHeadDim) ==
          Gather(turns.snapshot.layers[layer].k, 95, 45, Order::kTokenHeadDim));
    CHECK(Gather(*part.layers[layer].v, 95, 45, Order::kTokenHeadDim) ==
          Gather(*turns.snapshot.layers[layer].v, 95, 45, Order::kTokenHeadDim));
  }
  bytes[archive.chunks()[1].payload_offset + 100] ^= std::byte{1};
  const test::Unpacked unpacked = Unpack(OpenBytes(bytes), true);
  REQUIRE(unpacked.report.lost.size() == 1);
  CHECK(unpacked.report.lost[0].offset == 90 * kRow);
  CHECK(unpacked.report.lost[0].bytes() == 90 * kRow);
  Bytes expected = test::CopyOf(turns.source.files[0].data->bytes());
  std::fill_n(expected.begin() + 90 * kRow, 90 * kRow, std::byte{0});
  CHECK(unpacked.files.at(0) == expected);
}

TEST_CASE("row order: archives that lie about cells are refused", "[kvz][rows][reject]") {
  const Batched turns(3, 100, true);
  const Bytes bytes = Pack(turns, Effort::kHigh);
  // WithTable cuts the index off; without other changes the archive still decodes.
  CHECK(Unpack(OpenBytes(WithTable(bytes, [](kvz::SourceTable&) {})), true).report.lost.empty());
  const auto no_cells = [](kvz::SourceTable& table) { table.description->cell_groups.clear(); };
  CHECK(DecodingFails(OpenBytes(WithTable(bytes, no_cells))) == Finding::kInconsistent);
  const auto too_few = [](kvz::SourceTable& table) {
    table.description->cell_groups[0].cells.pop_back();
  };
  CHECK(DecodingFails(OpenBytes(WithTable(bytes, too_few))) == Finding::kInconsistent);
  // The hash covers the rows in their order in the source, so another coding order fails its check.
  const auto others = [](kvz::SourceTable& table) {
    std::swap(table.description->cell_groups[0].cells[5],
              table.description->cell_groups[0].cells[6]);
  };
  CHECK(DecodingFails(OpenBytes(WithTable(bytes, others))) == Finding::kChecksum);
  // Chunks without the flag in the table are dropped as damaged; without a description there is no
  // order.
  const Archive unflagged =
      OpenBytes(WithTable(bytes, [](kvz::SourceTable& table) { table.by_cells = false; }));
  CHECK(std::count_if(unflagged.damage().begin(), unflagged.damage().end(),
                      [](const Damage& one) { return one.chunk.has_value(); }) == 2 * kLayers);
  kvz::SourceTable table;
  table.files.push_back({"", 1, std::nullopt, false});
  table.by_cells = true;
  CHECK(test::FindingOf([&] { kvz::DecodeTable(kvz::EncodeTable(table)); }) == Finding::kBadField);
}

TEST_CASE("row order: streams, sequences, positions, and what is equal", "[kvz][rows]") {
  Snapshot snapshot;
  CellGroup group;
  // The cells are shared by two sequences, of the second alone, of no sequence, of another stream,
  // and of the first alone.
  group.cells = {{4, 0, {1}}, {2, 0, {1, 0}}, {9, 0, {}},         {0, 1, {0}},
                 {3, 0, {0}}, {4, 0, {1}},    {INT64_MAX, 1, {}}, {INT64_MIN, 1, {0}}};
  snapshot.layers.push_back(
      {7, {}, {}, ContiguousTensor(nullptr, DType::kF16, 8, 1, 16, Order::kTokenHeadDim), {}});
  snapshot.cell_groups.push_back(group);
  const RowOrders orders(snapshot);
  CHECK(!orders.empty());
  const auto order = orders.Of(7, 0, 8);
  REQUIRE(order != nullptr);
  CHECK(order->rows == std::vector<uint32_t>{2, 1, 4, 0, 5, 6, 7, 3});
  CHECK(order->steps ==
        std::vector<uint32_t>{0, 0u - 7, 0u - 6, 0u - 5, 0u - 5, 0u - 10, 0u - 9, 0u - 9});
  CHECK(orders.Of(7, 0, 8) == order);
  CHECK(orders.Of(7, 4, 2)->rows == std::vector<uint32_t>{0, 1});
  CHECK(!orders.Of(7, 4, 2)->moves);
  CHECK(orders.Of(7, 1, 8) == nullptr);
  CHECK(orders.Of(7, UINT64_MAX, 2) == nullptr);
  CHECK(orders.Of(6, 0, 8) == nullptr);
  CHECK(orders.Of(7, 0, 0) == nullptr);
}

}  // namespace kv::row_order_test
