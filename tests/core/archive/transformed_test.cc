// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <random>

#include "lib/core/archive/approximate.h"
#include "lib/core/base/hash.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/layout.h"
#include "tests/support/archives.h"
#include "tests/support/refusal.h"

namespace kv::transformed_test {
namespace {

constexpr uint32_t kLayers = 4, kHeads = 2, kDim = 8;
constexpr uint64_t kRow = kHeads * kDim, kTokens = 300;

// A basis of Hadamard's matrix, of `group` layers in each part.
TransformSide MakeSide(uint32_t group) {
  TransformSide side{kHeads, kDim, std::vector<float>(kLayers * kRow), {}, {}, {}};
  for (size_t i = 0; i < side.mean.size(); ++i) side.mean[i] = 0.25f * static_cast<float>(i % 5);
  TransformPlan plan{std::string(kStepForm), 4, {}, {0.125f, {}}, 0};
  for (uint32_t layer = 0; layer < kLayers; layer += group) {
    const uint32_t features = group * kRow;
    TransformPart part{layer * static_cast<uint32_t>(kRow), features, {}, {}};
    for (uint32_t c = 0; c < features; ++c) {
      // Parts have different variances, so that their components alternate in the plan's order.
      part.variances.push_back(1000.0 - c - 0.1 * layer);
      for (uint32_t f = 0; f < features; ++f) {
        const float sign = __builtin_popcount(c & f) % 2 == 0 ? 1.0f : -1.0f;
        part.vectors.push_back(sign / std::sqrt(static_cast<float>(features)));
      }
    }
    side.parts.push_back(std::move(part));
  }
  for (uint64_t i = 0; i < side.components() - 5; ++i) {
    StepTable table{12, std::vector<uint16_t>(26, 40)};
    table.frequencies[12] = 2048 - 25 * 40;
    plan.steps.tables.push_back(std::move(table));
  }
  side.plans.push_back(std::move(plan));
  return side;
}

std::shared_ptr<const Transform> MakeTransform(uint32_t group = kLayers) {
  auto transform = std::make_shared<Transform>();
  transform->model = "test";
  transform->layers = kLayers;
  transform->k = transform->v = MakeSide(group);
  RequireSound(*transform);
  return transform;
}

Approximation Wanted() {
  Approximation wanted;
  wanted.file = "test.kvx";
  wanted.model = "test";
  wanted.ratio = 4;
  wanted.sinks = 4;
  wanted.window = 20;
  wanted.source_hash = 7;
  wanted.rotations = {{1, {1u << 28, 1u << 26, 1u << 20}}, {4, {1u << 28, 3u << 26, 5, 0}}};
  for (uint32_t layer = 0; layer < kLayers; ++layer)
    wanted.layers.push_back({10 + layer, layer % 2, {}, {}});
  return wanted;
}

// Keys are [token][head][dim], values in `order`; 3 opaque bytes lie in front.
Snapshot MakeCache(DType dtype, Order order, Source& source) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const uint64_t unit = Info(dtype).block_bytes, side = kTokens * kRow * unit;
  std::vector<float> values(2 * kLayers * kTokens * kRow);
  for (float& value : values) value = normal(random);
  Bytes bytes(3 + values.size() * unit);
  FromFloats(dtype, values, &bytes[3]);
  source.files = {{"", FileSource::FromBytes(std::move(bytes), "cache")}};
  const std::byte* data = source.files[0].data->bytes().data() + 3;
  Snapshot snapshot;
  snapshot.source = source;
  snapshot.format = "test";
  for (uint32_t l = 0; l < kLayers; ++l, data += 2 * side) {
    LayerKv layer{.index = 10 + l};
    layer.k = ContiguousTensor(data, dtype, kTokens, kHeads, kDim, Order::kTokenHeadDim);
    layer.v = ContiguousTensor(data + side, dtype, kTokens, kHeads, kDim, order);
    snapshot.layers.push_back(std::move(layer));
  }
  return snapshot;
}

struct Made {
  Source source;
  ApproximatedSource approximated;
  Bytes archive;
};

Made MakeArchive(DType dtype, Order order, uint32_t group = kLayers, int threads = 1) {
  Made made;
  const Snapshot snapshot = MakeCache(dtype, order, made.source);
  ThreadPool pool(threads);
  made.approximated =
      ApproximateSource(made.source, snapshot, MakeTransform(group), Wanted(), pool);
  Source source;
  Snapshot other = MakeCache(dtype, order, source);
  source.files[0].data = FileSource::FromBytes(Bytes(made.approximated.files[0]), "cache");
  const std::byte* from = other.source.files[0].data->bytes().data();
  const std::byte* to = source.files[0].data->bytes().data();
  for (LayerKv& layer : other.layers) {
    for (KvTensor* tensor : {&layer.k, &*layer.v})
      tensor->pieces[0].data = to + (tensor->pieces[0].data - from);
  }
  other.source = source;
  MemorySink out;
  WriteOptions options;
  options.transformed = made.approximated.chunks;
  options.solid = false;
  WriteArchive(source, &other, options, pool, out);
  made.archive = std::move(out.bytes());
  return made;
}

Archive OpenMade(const Made& made, uint32_t group = kLayers) {
  Archive archive = test::OpenBytes(made.archive);
  archive.UseTransform(
      std::make_shared<ArchiveTransform>(MakeTransform(group), *archive.approximation()));
  return archive;
}

// Encodes the archive again after `change` altered the header and the payload of one chunk.
template <typename Change>
Finding FindRefusal(const Made& made, size_t place, const Change& change) {
  const Archive good = OpenMade(made);
  std::vector<const ArchivedChunk*> transformed;
  for (const ArchivedChunk& chunk : good.chunks()) {
    if (chunk.head.is_transformed()) transformed.push_back(&chunk);
  }
  Bytes bytes;
  const ArchivedChunk& chosen = *transformed.at(place);
  bytes.assign(made.archive.begin(),
               made.archive.begin() + static_cast<std::ptrdiff_t>(chosen.record_offset));
  ChunkHead head = chosen.head;
  Bytes payload(made.archive.begin() + static_cast<std::ptrdiff_t>(chosen.payload_offset),
                made.archive.begin() + static_cast<std::ptrdiff_t>(chosen.record_end()));
  change(head, payload);
  ByteWriter written;
  kvz::AppendHead(head, written);
  const uint32_t tag = kvz::ReadRecord(made.archive, chosen.record_offset).tag;
  const Bytes start = kvz::RecordStart(kvz::RecordType::kChunk, tag, written.bytes(),
                                       payload.size(), Hash64(payload));
  bytes.insert(bytes.end(), start.begin(), start.end());
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  // A reader that finds no index and trailer walks the records.
  bytes.insert(bytes.end(), made.archive.begin() + static_cast<std::ptrdiff_t>(chosen.record_end()),
               made.archive.end() - static_cast<std::ptrdiff_t>(kvz::kTrailerBytes));
  const uint64_t index = kvz::ReadTrailer(made.archive).index_offset;
  bytes.resize(bytes.size() - (made.archive.size() - kvz::kTrailerBytes - index));
  Archive archive = test::OpenBytes(bytes);
  archive.UseTransform(
      std::make_shared<ArchiveTransform>(MakeTransform(), *archive.approximation()));
  for (const ArchivedChunk& chunk : archive.chunks()) {
    if (chunk.head.layer != head.layer || chunk.head.kind != head.kind ||
        chunk.head.token_begin != head.token_begin)
      continue;
    CodecScratch scratch;
    Bytes raw;
    return test::FindingOf([&] { archive.Decode(chunk, scratch, raw); });
  }
  FAIL("the chunk is gone");
  return Finding::kInternal;
}

}  // namespace

TEST_CASE("an archive restores the approximated values, whatever its layout",
          "[kvz][transformed]") {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (const Order order : {Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kHeadDimToken}) {
      for (const uint32_t group : {kLayers, 2u, 1u}) {
        INFO(Name(dtype) << ", order " << static_cast<int>(order) << ", group " << group);
        const Made made = MakeArchive(dtype, order, group);
        CHECK(made.approximated.tokens == kTokens - 24);
        CHECK(made.approximated.exact_blocks == 0);
        const Archive archive = OpenMade(made, group);
        CHECK(archive.transformed_chunks() > 0);
        const test::Unpacked unpacked = test::Unpack(archive);
        CHECK(unpacked.report.intact());
        CHECK(unpacked.files.at(0) == made.approximated.files[0]);
        const Loss k = archive.approximation()->WorstLoss(false),
                   v = archive.approximation()->WorstLoss(true);
        // Rounding to steps of 1/8 changes a coefficient by up to 1/16, and 5 of 64 components are
        // dropped.
        CHECK(k.relative > 0.01);
        CHECK(k.relative < 0.8);
        CHECK(v.largest > 0.01);
      }
    }
  }
}

TEST_CASE("first and last tokens and other bytes stay exact", "[kvz][transformed]") {
  const Made made = MakeArchive(DType::kF32, Order::kTokenHeadDim);
  const ByteSpan from = made.source.files[0].data->bytes(), to = made.approximated.files[0];
  CHECK(std::ranges::equal(from.first(3), to.first(3)));
  const uint64_t row = kRow * 4, side = kTokens * row;
  for (uint64_t tensor = 0; tensor < 2 * kLayers; ++tensor) {
    const ByteSpan a = from.subspan(3 + tensor * side, side),
                   b = to.subspan(3 + tensor * side, side);
    CHECK(std::ranges::equal(a.first(4 * row), b.first(4 * row)));
    CHECK(std::ranges::equal(a.last(20 * row), b.last(20 * row)));
    for (uint64_t t = 4; t < kTokens - 20; ++t)
      CHECK_FALSE(std::ranges::equal(a.subspan(t * row, row), b.subspan(t * row, row)));
  }
}

TEST_CASE("keys are transformed without their rotation", "[kvz][transformed]") {
  // Keys that equal the mean, rotated to each position, are restored almost without loss.
  Source source;
  Snapshot snapshot = MakeCache(DType::kF32, Order::kTokenHeadDim, source);
  Approximation wanted = Wanted();
  const std::shared_ptr<const Transform> transform = MakeTransform();
  Bytes bytes(source.files[0].data->bytes().begin(), source.files[0].data->bytes().end());
  for (uint32_t l = 0; l < kLayers; ++l) {
    HeadRotator rotator(wanted.rotations[wanted.layers[l].rotation], kDim);
    for (uint32_t t = 0; t < kTokens; ++t) {
      std::vector<float> row(&transform->k.mean[l * kRow], &transform->k.mean[l * kRow] + kRow);
      rotator.Rotate(t, row);
      std::memcpy(&bytes[3 + (2 * l * kTokens + t) * kRow * 4], row.data(), kRow * 4);
    }
  }
  const std::byte* before = source.files[0].data->bytes().data();
  source.files[0].data = FileSource::FromBytes(std::move(bytes), "cache");
  for (LayerKv& layer : snapshot.layers) {
    for (KvTensor* tensor : {&layer.k, &*layer.v}) {
      tensor->pieces[0].data =
          source.files[0].data->bytes().data() + (tensor->pieces[0].data - before);
    }
  }
  snapshot.source = source;
  ThreadPool pool(2);
  const ApproximatedSource made = ApproximateSource(source, snapshot, transform, wanted, pool);
  const Loss k = made.chunks->transform->approximation().WorstLoss(false);
  CHECK(k.relative < 1e-5);
}

TEST_CASE("blocks with values that are not finite stay exact", "[kvz][transformed]") {
  Source source;
  Snapshot snapshot = MakeCache(DType::kF16, Order::kTokenHeadDim, source);
  Bytes bytes(source.files[0].data->bytes().begin(), source.files[0].data->bytes().end());
  StoreLE<uint16_t>(&bytes[3 + 10 * kRow * 2], 0x7c00);  // token 10 of layer 0's K
  const std::byte* before = source.files[0].data->bytes().data();
  source.files[0].data = FileSource::FromBytes(Bytes(bytes), "cache");
  for (LayerKv& layer : snapshot.layers) {
    for (KvTensor* tensor : {&layer.k, &*layer.v}) {
      tensor->pieces[0].data =
          source.files[0].data->bytes().data() + (tensor->pieces[0].data - before);
    }
  }
  snapshot.source = source;
  ThreadPool pool(1);
  const ApproximatedSource made =
      ApproximateSource(source, snapshot, MakeTransform(), Wanted(), pool);
  CHECK(made.exact_blocks == 1);
  CHECK(made.chunks->streams.size() == 5);  // 3 blocks of K and V
  CHECK(std::equal(bytes.begin(), bytes.begin() + 3 + 132 * kRow * 2, made.files[0].begin()));
}

TEST_CASE("archives of a transform do not depend on the number of threads", "[kvz][transformed]") {
  CHECK(MakeArchive(DType::kF16, Order::kHeadDimToken, 2, 1).archive ==
        MakeArchive(DType::kF16, Order::kHeadDimToken, 2, 3).archive);
}

TEST_CASE("one layer and a few tokens need only the coefficients of these tokens",
          "[kvz][transformed]") {
  const Made made = MakeArchive(DType::kF16, Order::kTokenHeadDim);
  const Archive archive = OpenMade(made);
  for (const ArchivedChunk& chunk : archive.chunks()) {
    const std::vector<size_t> needed = archive.NeededBy(chunk);
    if (!chunk.head.is_transformed() || chunk.head.layer == 10) {
      CHECK(needed.empty());
      continue;
    }
    CHECK(chunk.payload_bytes == 0);
    REQUIRE(needed.size() == 1);
    const ChunkHead& holder = archive.chunks()[needed[0]].head;
    CHECK(holder.layer == 10);
    CHECK(holder.token_begin == chunk.head.token_begin);
    CHECK(holder.kind == chunk.head.kind);
  }
}

TEST_CASE("without the transform, the archive says which one it needs",
          "[kvz][transformed][reject]") {
  const Made made = MakeArchive(DType::kF16, Order::kTokenHeadDim);
  const Archive archive = test::OpenBytes(made.archive);
  CHECK(test::FindingOf([&] { archive.RequireTransform(); }) == Finding::kProfileMissing);
  CHECK(test::FindingOf([&] { test::Unpack(archive); }) == Finding::kProfileMissing);
  CHECK_FALSE(test::Unpack(archive, true).report.intact());
}

TEST_CASE("forged transformed chunks are refused", "[kvz][transformed][reject]") {
  const Made made = MakeArchive(DType::kF16, Order::kTokenHeadDim);
  // Chunk 0 holds the coefficients of K's first block; 6 is K of layer 11, which needs them.
  CHECK(FindRefusal(made, 0, [](ChunkHead&, Bytes& payload) { payload.clear(); }) ==
        Finding::kTruncated);
  CHECK(FindRefusal(made, 0, [](ChunkHead&, Bytes& payload) { payload.resize(70); }) !=
        Finding::kInternal);
  CHECK(FindRefusal(made, 0, [](ChunkHead& head, Bytes&) { head.codec_parameter = 12; }) ==
        Finding::kLostChunk);
  CHECK(FindRefusal(made, 0, [](ChunkHead& head, Bytes&) { head.codec_parameter = 11; }) ==
        Finding::kLostChunk);
  CHECK(FindRefusal(made, 6, [](ChunkHead&, Bytes& payload) { payload.resize(2); }) ==
        Finding::kTrailingBytes);
  CHECK(FindRefusal(made, 6, [](ChunkHead& head, Bytes&) { head.codec_parameter = 99; }) ==
        Finding::kLostChunk);
  CHECK(FindRefusal(made, 6, [](ChunkHead& head, Bytes&) { head.codec_parameter = 12; }) ==
        Finding::kLostChunk);
  CHECK(FindRefusal(made, 6, [](ChunkHead& head, Bytes&) { head.codec_parameter = 0; }) ==
        Finding::kTruncated);
  CHECK(FindRefusal(made, 6, [](ChunkHead& head, Bytes&) { head.raw_hash ^= 1; }) ==
        Finding::kChecksum);
  CHECK(FindRefusal(made, 6, [](ChunkHead& head, Bytes&) { head.dtype = DType::kBF16; }) ==
        Finding::kChecksum);
}

TEST_CASE("transforms that do not fit an archive are refused", "[kvz][transformed][reject]") {
  const auto refuse = [](const std::function<void(Transform&, Approximation&)>& change) {
    Transform transform = *MakeTransform(2);
    Approximation wanted = Wanted();
    change(transform, wanted);
    return test::FindingOf([&] {
      const ArchiveTransform unused(std::make_shared<const Transform>(transform), wanted);
    });
  };
  CHECK(refuse([](Transform&, Approximation& of) { of.ratio = 5; }) == Finding::kInconsistent);
  CHECK(refuse([](Transform&, Approximation& of) { of.layers.pop_back(); }) ==
        Finding::kInconsistent);
  CHECK(refuse([](Transform&, Approximation& of) { of.rotations[0].angles.resize(5); }) ==
        Finding::kInconsistent);
  CHECK(refuse([](Transform&, Approximation& of) { of.rotations[1].distance = 3; }) ==
        Finding::kInconsistent);
  CHECK(refuse([](Transform& transform, Approximation&) {
          std::swap(transform.k.parts[0].variances[0], transform.k.parts[0].variances[1]);
        }) == Finding::kBadField);
  CHECK(refuse([](Transform& transform, Approximation&) {
          transform.v.parts[0].features -= 1;
          transform.v.parts[1].first_feature -= 1;
        }) == Finding::kBadField);
}

TEST_CASE("a damaged section of the source table is refused", "[kvz][transformed][reject]") {
  Source source;
  const Snapshot snapshot = MakeCache(DType::kF16, Order::kTokenHeadDim, source);
  const auto refuse = [&](const std::function<void(kvz::SourceTable&)>& change) {
    kvz::SourceTable table = kvz::DescribeSource(source, &snapshot, FindRegions(snapshot));
    table.approximation = Wanted();
    change(table);
    return test::FindingOf([&] { kvz::DecodeTable(kvz::EncodeTable(table)); });
  };
  kvz::SourceTable good = kvz::DescribeSource(source, &snapshot, FindRegions(snapshot));
  good.approximation = Wanted();
  good.approximation->layers[1].k = {0.5, 2};
  const kvz::SourceTable back = kvz::DecodeTable(kvz::EncodeTable(good));
  REQUIRE(back.approximation);
  CHECK(back.approximation->layers == good.approximation->layers);
  CHECK(back.approximation->source_hash == 7);
  CHECK_FALSE(back.approximation->expected_kl);
  good.approximation->expected_kl = 0.25;
  CHECK(kvz::DecodeTable(kvz::EncodeTable(good)).approximation->expected_kl == 0.25);
  good.approximation->expected_kl.reset();

  CHECK(refuse([](auto& of) { of.approximation->file = "../x.kvx"; }) == Finding::kUnsafeName);
  CHECK(refuse([](auto& of) { of.approximation->ratio = 0.5; }) == Finding::kBadField);
  CHECK(refuse([](auto& of) { of.approximation->ratio = NAN; }) == Finding::kBadField);
  CHECK(refuse([](auto& of) { of.approximation->expected_kl = NAN; }) == Finding::kBadField);
  CHECK(refuse([](auto& of) { of.approximation->expected_kl = -1; }) == Finding::kBadField);
  CHECK(refuse([](auto& of) { of.approximation->layers[0].v.largest = INFINITY; }) ==
        Finding::kBadField);
  CHECK(refuse([](auto& of) { of.approximation->layers[0].k.relative = -1; }) ==
        Finding::kBadField);
  CHECK(refuse([](auto& of) { of.approximation->layers[2].rotation = 2; }) == Finding::kBadField);
  CHECK(refuse([](auto& of) { of.approximation->layers[2].number = 9; }) == Finding::kBadField);
  CHECK(refuse([](auto& of) { of.approximation->layers.clear(); }) == Finding::kBadField);
  CHECK(refuse([](auto& of) { of.description.reset(); }) == Finding::kBadField);
  const Bytes whole = kvz::EncodeTable(good);
  for (size_t cut = 1; cut < 200; ++cut)
    CHECK_THROWS_AS(kvz::DecodeTable(ByteSpan(whole).first(whole.size() - cut)), Error);
}

TEST_CASE("caches that leave nothing to approximate, or cannot be replaced, are refused",
          "[kvz][transformed][reject]") {
  Source source;
  Snapshot snapshot = MakeCache(DType::kF16, Order::kTokenHeadDim, source);
  ThreadPool pool(1);
  Approximation wanted = Wanted();
  wanted.window = 296;
  CHECK(test::FindingOf([&] {
          ApproximateSource(source, snapshot, MakeTransform(), wanted, pool);
        }) == Finding::kUsage);
  KvTensor& v = *snapshot.layers[2].v;
  v.pieces = {{v.pieces[0].data, 100, v.pieces[0].token, v.pieces[0].head, v.pieces[0].dim},
              {v.pieces[0].data + 100 * kRow * 2, 200, v.pieces[0].token, v.pieces[0].head,
               v.pieces[0].dim}};
  CHECK(test::FindingOf([&] {
          ApproximateSource(source, snapshot, MakeTransform(), Wanted(), pool);
        }) == Finding::kUnsupportedLayout);
}

}  // namespace kv::transformed_test
