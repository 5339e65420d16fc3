// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <set>

#include "formats/registry.h"
#include "lib/core/archive/chunk_encoder.h"
#include "lib/core/archive/records.h"
#include "lib/core/base/hash.h"
#include "tests/support/archives.h"
#include "tests/support/kv_source.h"
#include "tests/support/targets.h"
#include "tests/support/temp_dir.h"

namespace kv::kvz_test {
namespace {

using test::KvSourceBuilder;
using test::OpenBytes;
using test::Pack;
using test::Unpack;
using Shape = KvSourceBuilder::Shape;

Source OneFile(Bytes bytes) {
  Source source;
  source.path = "x.bin";
  source.files.push_back({"x.bin", FileSource::FromBytes(std::move(bytes), "x.bin")});
  return source;
}

void CheckRoundTrip(const Snapshot& snapshot, uint64_t chunk_bytes) {
  const Bytes packed = Pack(snapshot.source, &snapshot, chunk_bytes);
  const Archive archive = OpenBytes(packed);
  REQUIRE(archive.damage().empty());
  REQUIRE(archive.CheckRecords().empty());
  const test::Unpacked unpacked = Unpack(archive);
  REQUIRE(unpacked.files.size() == snapshot.source.files.size());
  for (size_t i = 0; i < unpacked.files.size(); ++i) {
    const ByteSpan original = snapshot.source.files[i].data->bytes();
    REQUIRE(unpacked.files[i] == test::CopyOf(original));
    CHECK(archive.files()[i].hash == Hash64(original));
  }
}

TEST_CASE("kvz: every order, dtype and head knowledge comes back byte for byte", "[kvz]") {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kQ8_0, DType::kQ4_0,
                            DType::kF64, DType::kI8}) {
    for (const Order order : {Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kHeadDimToken}) {
      for (const bool heads_known : {true, false}) {
        if (!heads_known && order == Order::kHeadTokenDim) continue;
        if (IsBlockQuantised(dtype) && order == Order::kHeadDimToken) continue;
        Shape k{.dtype = dtype, .order = order, .tokens = 77, .heads = 3, .head_dim = 32};
        k.heads_known = heads_known;
        if (!heads_known) {
          k.heads = 1;
          k.head_dim = 96;
        }
        Shape v = k;
        v.head_dim = k.head_dim * 2;
        v.pieces = 3;
        KvSourceBuilder builder(static_cast<uint32_t>(dtype) + 1);
        builder.Layer(k, &v);
        builder.Layer(v, nullptr);
        builder.Filler(5000);
        INFO(Name(dtype) << " " << Name(order) << " heads known " << heads_known);
        for (const uint64_t chunk_bytes : {100, 1000, 4096, 1 << 20}) {
          CheckRoundTrip(builder.Build(), chunk_bytes);
        }
      }
    }
  }
}

TEST_CASE("kvz: at compat known heads are coded head by head, unknown ones as rows", "[kvz]") {
  KvSourceBuilder builder;
  const Shape known{.tokens = 40, .heads = 4, .head_dim = 32};
  const Shape unknown{.tokens = 40, .heads = 1, .head_dim = 128, .heads_known = false};
  const Shape transposed{.order = Order::kHeadDimToken, .tokens = 40, .heads = 4, .head_dim = 32};
  builder.Layer(known, &transposed);
  builder.Layer(unknown, nullptr);
  const Snapshot snapshot = builder.Build();
  const Archive archive = OpenBytes(Pack(snapshot.source, &snapshot, 1 << 20, 1, Effort::kCompat));
  int seen = 0;
  for (const ArchivedChunk& chunk : archive.chunks()) {
    if (chunk.head.kind == ChunkKind::kOpaque) continue;
    ++seen;
    CodecScratch scratch;
    Bytes raw;
    archive.Decode(chunk, scratch, raw);
    const LayerKv& layer = *snapshot.Find(chunk.head.layer);
    const KvTensor& tensor = chunk.head.kind == ChunkKind::kKey ? layer.k : *layer.v;
    CHECK(chunk.head.order == (tensor.heads_known ? Order::kHeadTokenDim : Order::kTokenHeadDim));
    CHECK(raw == Gather(tensor, chunk.head.token_begin, chunk.head.tokens, chunk.head.order));
    // The payload is MNN's own container, gear.
    REQUIRE(static_cast<CodecId>(chunk.head.codec) == CodecId::kGear16);
    const ByteSpan payload =
        archive.data().bytes().subspan(chunk.payload_offset, chunk.payload_bytes);
    CHECK(DecodeGear(GearKind::kTwoPlanes, payload, scratch) == raw);
  }
  CHECK(seen == 3);
}

TEST_CASE("kvz: at compat elements in no named order are coded by their planes", "[kvz]") {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kQ8_0}) {
    KvSourceBuilder builder(9);
    builder.Layer({.dtype = dtype, .tokens = 100, .heads = 2, .head_dim = 64}, nullptr);
    Snapshot snapshot = builder.Build();
    // The piece no longer describes the bytes, but their stored range and type are known.
    const StridedPiece piece = snapshot.layers[0].k.pieces[0];
    snapshot.stored.push_back({piece.data, snapshot.layers[0].k.bytes(), dtype});
    snapshot.layers[0].k.pieces[0].dim.step *= 2;
    snapshot.layers[0].k.pieces[0].tokens = 10;
    for (const uint64_t chunk_bytes : {7, 1000, 1 << 20}) CheckRoundTrip(snapshot, chunk_bytes);
    const Archive archive =
        OpenBytes(Pack(snapshot.source, &snapshot, 1 << 20, 1, Effort::kCompat));
    CHECK_FALSE(archive.HoldsTensor(0, false));
    std::set<CodecId> codecs;
    for (const ArchivedChunk& chunk : archive.chunks()) {
      CHECK(chunk.head.kind == ChunkKind::kOpaque);
      codecs.insert(static_cast<CodecId>(chunk.head.codec));
    }
    const bool two = dtype == DType::kF16 || dtype == DType::kBF16;
    CHECK(codecs.count(CodecId::kGear16) == (two ? 1 : 0));
    CHECK(codecs.count(CodecId::kGear32) == (dtype == DType::kF32 ? 1 : 0));
  }
}

TEST_CASE("kvz: chunks are contiguous and near the size asked for", "[kvz]") {
  KvSourceBuilder builder;
  const Shape rows{.tokens = 1000, .heads = 2, .head_dim = 32};
  const Shape heads{.order = Order::kHeadTokenDim, .tokens = 1000, .heads = 5, .head_dim = 32};
  const Shape columns{.order = Order::kHeadDimToken, .tokens = 1000, .heads = 2, .head_dim = 32};
  builder.Layer(rows, &heads);
  builder.Layer(heads, &columns);
  const Snapshot snapshot = builder.Build();
  const std::vector<Region> regions = FindRegions(snapshot);
  const uint64_t sizes[] = {snapshot.source.files[0].data->size()};
  uint64_t position = 0;
  uint64_t in_extent = 0;
  for (const ChunkHead& head : kvz::PlanChunks(sizes, regions, 10000, Effort::kCompat)) {
    position += head.lead.size();
    REQUIRE(head.source_offset == position);
    CHECK(head.raw_bytes <= 12500);
    in_extent += head.raw_bytes;
    if (in_extent < head.extent_bytes) continue;
    CHECK(in_extent == head.extent_bytes);
    position += head.extent_bytes;
    in_extent = 0;
  }
  CHECK(position == snapshot.source.total_bytes());
}

TEST_CASE("kvz: same bytes from any number of threads and on every SIMD target", "[kvz]") {
  KvSourceBuilder builder;
  const Shape k{.tokens = 300, .heads = 4, .head_dim = 32};
  const Shape v{.order = Order::kHeadDimToken, .tokens = 300, .heads = 4, .head_dim = 32};
  for (int i = 0; i < 3; ++i) builder.Layer(k, &v);
  const Snapshot snapshot = builder.Build();
  const Bytes expected = Pack(snapshot.source, &snapshot);
  for (const int threads : {2, 8})
    CHECK(Pack(snapshot.source, &snapshot, 2048, threads) == expected);
  test::ForEachTarget([&](const std::string& target) {
    INFO(target);
    CHECK(Pack(snapshot.source, &snapshot, 2048, 2) == expected);
    CHECK(Unpack(OpenBytes(expected), false, 2).files[0] ==
          test::CopyOf(snapshot.source.files[0].data->bytes()));
  });
}

TEST_CASE("kvz: a single file's name is not stored, nor where it lay", "[kvz]") {
  Bytes bytes(1000, std::byte{7});
  Source a = OneFile(bytes), b = OneFile(bytes);
  b.path = "/somewhere/else";
  b.files[0].name = "else";
  CHECK(Pack(a, nullptr) == Pack(b, nullptr));
}

TEST_CASE("kvz: empty files, empty folders and folders of files", "[kvz]") {
  CHECK(Unpack(OpenBytes(Pack(OneFile({}), nullptr))).files == std::vector<Bytes>{Bytes()});

  const test::TempDir dir;
  std::filesystem::create_directory(dir / "empty");
  const Source empty = Source::Open(dir / "empty");
  CHECK(Unpack(OpenBytes(Pack(empty, nullptr))).files.empty());

  const Bytes a(5000, std::byte{1}), b(3, std::byte{2});
  dir.WriteFile("tree/a/x.bin", a);
  dir.WriteFile("tree/a/empty", {});
  dir.WriteFile("tree/b", b);
  const Archive archive = OpenBytes(Pack(Source::Open(dir / "tree"), nullptr));
  CHECK(archive.is_folder());
  REQUIRE(archive.files().size() == 3);
  CHECK(archive.files()[0].name == "a/empty");
  CHECK(archive.files()[1].name == "a/x.bin");
  CHECK(Unpack(archive).files == std::vector<Bytes>{Bytes(), a, b});
}

TEST_CASE("kvz: an archive can be archived", "[kvz]") {
  KvSourceBuilder builder;
  const Shape k{.tokens = 100};
  builder.Layer(k, &k);
  const Snapshot snapshot = builder.Build();
  const Bytes inner = Pack(snapshot.source, &snapshot);
  CHECK(Unpack(OpenBytes(Pack(OneFile(inner), nullptr))).files[0] == inner);

  // An archive is archived like any other file: FindRegions returns none of the tensors that the
  // inner archive holds.
  OpenOptions options;
  options.metadata_only = true;
  const Snapshot read = OpenSnapshot(OneFile(inner), options);
  CHECK(read.format == "kvz");
  CHECK(read.layers.size() == 1);
  CHECK(FindRegions(read).empty());
  CHECK(Unpack(OpenBytes(Pack(read.source, &read))).files[0] == inner);
}

TEST_CASE("kvz: the description survives", "[kvz]") {
  KvSourceBuilder builder;
  const Shape k{.tokens = 9, .heads = 1, .head_dim = 64, .heads_known = false};
  builder.Layer(k, nullptr);
  Snapshot snapshot = builder.Build();
  snapshot.layers[0].label = "model.layers.0";
  snapshot.layers[0].group = "swa";
  snapshot.key_rotation = KeyRotation::kRotated;
  snapshot.v_hadamard = HadamardState::kNo;
  snapshot.notes.push_back({"odd", false});
  CellGroup group{.group = "swa", .streams = 2, .cells = {}};
  for (int i = 0; i < 5; ++i) group.cells.push_back({i, 0, {0}});
  for (int i = 0; i < 3; ++i) group.cells.push_back({10 + i, 1, {1, 2}});
  group.cells.push_back({3, 1, {}});
  snapshot.cell_groups.push_back(group);

  const Snapshot read = *OpenBytes(Pack(snapshot.source, &snapshot)).description();
  CHECK(read.format == snapshot.format);
  CHECK(read.format_version == snapshot.format_version);
  CHECK(read.engine == snapshot.engine);
  CHECK(read.facts == snapshot.facts);
  CHECK(read.tokens == snapshot.tokens);
  CHECK(read.key_rotation == KeyRotation::kRotated);
  CHECK(read.v_hadamard == HadamardState::kNo);
  REQUIRE(read.notes.size() == 1);
  CHECK(read.notes[0].text == "odd");
  REQUIRE(read.layers.size() == 1);
  CHECK(read.layers[0].label == "model.layers.0");
  CHECK(read.layers[0].group == "swa");
  CHECK(read.layers[0].k.tokens() == 9);
  CHECK_FALSE(read.layers[0].k.heads_known);
  CHECK_FALSE(read.layers[0].v);
  REQUIRE(read.cell_groups.size() == 1);
  REQUIRE(read.cell_groups[0].cells.size() == group.cells.size());
  for (size_t i = 0; i < group.cells.size(); ++i) {
    CHECK(read.cell_groups[0].cells[i].position == group.cells[i].position);
    CHECK(read.cell_groups[0].cells[i].stream == group.cells[i].stream);
    CHECK(read.cell_groups[0].cells[i].sequences == group.cells[i].sequences);
  }
}

TEST_CASE("kvz: tensors load as they were, whole or in part", "[kvz]") {
  for (const Order order : {Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kHeadDimToken}) {
    KvSourceBuilder builder;
    const Shape k{.order = order, .tokens = 210, .heads = 3, .head_dim = 32};
    const Shape v{.order = order, .tokens = 210, .heads = 3, .head_dim = 64, .pieces = 2};
    for (int i = 0; i < 3; ++i) builder.Layer(k, &v);
    const Snapshot original = builder.Build();
    Bytes packed = Pack(original.source, &original);
    ThreadPool pool(2);
    const Archive archive = OpenBytes(packed);
    const Snapshot whole = LoadTensors(archive, {}, pool);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(Gather(whole.layers[i].k, 0, 210, Order::kTokenHeadDim) ==
            Gather(original.layers[i].k, 0, 210, Order::kTokenHeadDim));
      CHECK(Gather(*whole.layers[i].v, 0, 210, Order::kTokenHeadDim) ==
            Gather(*original.layers[i].v, 0, 210, Order::kTokenHeadDim));
    }

    // Reading a range touches only the chunks that it needs: all other payloads may be damaged.
    Selection wanted;
    wanted.layers = {{3}};
    wanted.tokens = {{20, 50}};
    wanted.values = false;
    int needed = 0;
    for (const ArchivedChunk& chunk : archive.chunks()) {
      const ChunkHead& head = chunk.head;
      if (head.kind == ChunkKind::kKey && head.layer == 3 && head.token_begin < 50 &&
          head.token_begin + head.tokens > 20) {
        ++needed;
      } else {
        packed[chunk.payload_offset] ^= std::byte{1};
      }
    }
    CHECK(needed > 0);
    const Snapshot part = LoadTensors(OpenBytes(packed), wanted, pool);
    CHECK(Gather(part.layers[1].k, 20, 30, Order::kTokenHeadDim) ==
          Gather(original.layers[1].k, 20, 30, Order::kTokenHeadDim));
    CHECK_THROWS_AS(LoadTensors(OpenBytes(packed), {}, pool), Error);
  }
}

TEST_CASE("kvz: the registry reads archives", "[kvz]") {
  KvSourceBuilder builder;
  const Shape k{.tokens = 50};
  builder.Layer(k, &k);
  const Snapshot original = builder.Build();
  const Bytes packed = Pack(original.source, &original);
  const Snapshot read = OpenSnapshot(OneFile(packed), {});
  CHECK(read.format == "kvz");
  CHECK(read.engine == "engine");
  CHECK(Gather(*read.layers[0].v, 0, 50, Order::kTokenHeadDim) ==
        Gather(*original.layers[0].v, 0, 50, Order::kTokenHeadDim));
  CHECK_THROWS_AS(OpenSnapshot(OneFile(Pack(OneFile(Bytes(100)), nullptr)), {}), Error);
}

}  // namespace
}  // namespace kv::kvz_test
