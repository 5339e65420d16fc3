// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Tests chunks that are coded with other chunks of their archive: what that saves and costs, what a
// damaged chunk makes unreadable, and forged archives.
#include "lib/core/archive/neighbours.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>

#include "lib/core/archive/records.h"
#include "lib/core/archive/reference.h"
#include "lib/core/base/hash.h"
#include "tests/support/archives.h"
#include "tests/support/layered_cache.h"
#include "tests/support/refusal.h"

namespace kv::neighbours_test {
namespace {

using test::LayeredCache;
using test::OpenBytes;
using test::Unpack;

Bytes PackJoined(const LayeredCache& cache, uint32_t joined, uint64_t chunk_bytes = 1 << 20,
                 int threads = 1, const References& references = {}) {
  ThreadPool pool(threads);
  MemorySink out;
  WriteOptions options;
  options.chunk_bytes = chunk_bytes;
  options.effort = Effort::kMax;
  options.joined_layers = joined;
  options.references = references;
  WriteArchive(cache.source, &cache.snapshot, options, pool, out);
  return std::move(out.bytes());
}

bool IsLayered(const ArchivedChunk& chunk) {
  return HasNeighbours(static_cast<CodecId>(chunk.head.codec));
}

bool HoldsLayered(const Archive& archive) {
  return std::any_of(archive.chunks().begin(), archive.chunks().end(), IsLayered);
}

References BesideOf(const LayeredCache& cache) {
  return {
      std::make_shared<Reference>(Reference{{"base.bin", "test", 1, 2, 1}, cache.snapshot, {}})};
}

const ArchivedChunk& ChunkOf(const Archive& archive, uint32_t layer, ChunkKind kind) {
  for (const ArchivedChunk& chunk : archive.chunks()) {
    if (chunk.head.layer == layer && chunk.head.kind == kind) return chunk;
  }
  FAIL("the chunk is there");
  return archive.chunks()[0];
}

// Returns the archive without its index and with changed headers and payloads; all hashes match.
template <typename Change>
Archive Rewritten(const Bytes& bytes, const Change& change) {
  const Archive archive = OpenBytes(bytes);
  const uint64_t first = archive.chunks()[0].record_offset;
  const uint32_t tag = LoadLE<uint32_t>(bytes.data() + first + 12);
  Bytes out(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(first));
  for (const ArchivedChunk& chunk : archive.chunks()) {
    ChunkHead head = chunk.head;
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(chunk.payload_offset);
    Bytes payload(begin, begin + static_cast<std::ptrdiff_t>(chunk.payload_bytes));
    change(head, payload);
    ByteWriter head_bytes;
    kvz::AppendHead(head, head_bytes);
    const Bytes start = kvz::RecordStart(kvz::RecordType::kChunk, tag, head_bytes.bytes(),
                                         payload.size(), Hash64(payload));
    out.insert(out.end(), start.begin(), start.end());
    out.insert(out.end(), payload.begin(), payload.end());
  }
  return OpenBytes(std::move(out));
}

Finding RefusalOf(const Archive& archive, uint32_t layer, ChunkKind kind) {
  return test::FindingOf([&] {
    CodecScratch scratch;
    Bytes raw;
    archive.Decode(ChunkOf(archive, layer, kind), scratch, raw);
  });
}

}  // namespace

TEST_CASE("neighbours: layers of one model are smaller together, and come back", "[kvz][layers]") {
  const LayeredCache cache(4, 300);
  const Bytes apart = PackJoined(cache, 1), joined = PackJoined(cache, 4);
  CHECK(static_cast<double>(joined.size()) < 0.9 * static_cast<double>(apart.size()));
  CHECK(PackJoined(cache, 4, 1 << 20, 3) == joined);
  for (const int threads : {1, 3}) {
    const Archive archive = OpenBytes(joined);
    CHECK(HoldsLayered(archive));
    const test::Unpacked unpacked = Unpack(archive, false, threads);
    const ByteSpan source = cache.source.files[0].data->bytes();
    CHECK(unpacked.files.at(0) == test::CopyOf(source));
  }
  CHECK(!HoldsLayered(OpenBytes(apart)));
}

TEST_CASE("neighbours: chunks of several token ranges look at their own tokens", "[kvz][layers]") {
  const LayeredCache cache(3, 400);
  const Bytes bytes = PackJoined(cache, 3, 100 * LayeredCache::kChannels * 2);
  const Archive archive = OpenBytes(bytes);
  CHECK(archive.chunks().size() == 24);
  for (const ArchivedChunk& chunk : archive.chunks()) {
    for (const size_t at : archive.NeededBy(chunk)) {
      CHECK(archive.chunks()[at].head.token_begin == chunk.head.token_begin);
      CHECK(archive.chunks()[at].head.tokens == chunk.head.tokens);
    }
  }
  CHECK(Unpack(archive).report.intact());
}

TEST_CASE("neighbours: what has nothing in common stands on its own", "[kvz][layers]") {
  const LayeredCache cache(3, 200, 40.0f);
  const Bytes joined = PackJoined(cache, 3);
  CHECK(joined == PackJoined(cache, 1));
}

TEST_CASE("neighbours: layers are joined up to the barrier, and parts need no more",
          "[kvz][layers]") {
  const LayeredCache cache(4, 300);
  const Archive archive = OpenBytes(PackJoined(cache, 2));
  const auto needs = [&](uint32_t layer, ChunkKind kind) {
    std::vector<std::pair<uint32_t, ChunkKind>> chunks;
    for (const size_t at : archive.NeededBy(ChunkOf(archive, layer, kind)))
      chunks.emplace_back(archive.chunks()[at].head.layer, archive.chunks()[at].head.kind);
    return chunks;
  };
  using Chunks = std::vector<std::pair<uint32_t, ChunkKind>>;
  CHECK(needs(0, ChunkKind::kKey).empty());
  CHECK(needs(2, ChunkKind::kKey).empty());
  CHECK(needs(2, ChunkKind::kValue) == Chunks{{2, ChunkKind::kKey}});
  CHECK(needs(3, ChunkKind::kKey) == Chunks{{2, ChunkKind::kKey}, {2, ChunkKind::kValue}});
  CHECK(needs(3, ChunkKind::kValue) ==
        Chunks{{2, ChunkKind::kKey}, {2, ChunkKind::kValue}, {3, ChunkKind::kKey}});
  Selection wanted;
  wanted.layers = std::vector<uint32_t>{3};
  ThreadPool pool(1);
  const Snapshot part = LoadTensors(archive, wanted, pool);
  Bytes loaded(300 * LayeredCache::kChannels * 2), original(loaded.size());
  Gather(*part.layers[3].v, 0, 300, 0, 2, Order::kTokenHeadDim, loaded);
  Gather(*cache.snapshot.layers[3].v, 0, 300, 0, 2, Order::kTokenHeadDim, original);
  CHECK(loaded == original);
}

TEST_CASE("neighbours: a chunk that is lost takes those with it that need it, and no others",
          "[kvz][layers][damage]") {
  const LayeredCache cache(4, 300);
  Bytes bytes = PackJoined(cache, 2);
  const ArchivedChunk lost = ChunkOf(OpenBytes(bytes), 2, ChunkKind::kKey);
  bytes[lost.payload_offset + 40] ^= std::byte{1};
  for (const int threads : {1, 3}) {
    const test::Unpacked unpacked = Unpack(OpenBytes(bytes), true, threads);
    REQUIRE(unpacked.report.damage.size() == 4);
    for (const Damage& damage : unpacked.report.damage) {
      CHECK(damage.chunk->layer >= 2);
      const bool itself = damage.chunk->layer == 2 && damage.chunk->kind == ChunkKind::kKey;
      CHECK(damage.finding == (itself ? Finding::kChecksum : Finding::kLostChunk));
      if (!itself) CHECK(damage.text.find("layer 2 K tokens 0:300") != std::string::npos);
    }
    const ByteSpan source = cache.source.files[0].data->bytes();
    const uint64_t tensor = 300 * LayeredCache::kChannels * 2;
    CHECK(std::equal(source.begin(), source.begin() + 2 * static_cast<std::ptrdiff_t>(tensor),
                     unpacked.files.at(0).begin()));
  }
}

TEST_CASE("neighbours: circles, chunks of themselves and missing ones are refused",
          "[kvz][layers][reject]") {
  const Bytes bytes = PackJoined(LayeredCache(3, 300), 3);
  // Offset of the first neighbour in the payload: u32 layer, then u8, 1 for V.
  constexpr size_t kFirstNeighbour = 2;
  const auto change = [&](const std::function<void(ChunkHead&, Bytes&)>& body) {
    return Rewritten(bytes, [&](ChunkHead& head, Bytes& payload) {
      const bool is_last_k = head.layer == 2 && head.kind == ChunkKind::kKey;
      if (is_last_k) body(head, payload);
    });
  };
  REQUIRE(IsLayered(ChunkOf(OpenBytes(bytes), 2, ChunkKind::kKey)));
  const auto unchanged = change([](ChunkHead&, Bytes&) {});
  CHECK(Unpack(unchanged, true).report.lost_bytes == 0);
  const auto refusal = [&](const std::function<void(ChunkHead&, Bytes&)>& body) {
    return RefusalOf(change(body), 2, ChunkKind::kKey);
  };
  // A chunk may use neither itself nor V of its own layer, which depends on it.
  CHECK(refusal([](ChunkHead&, Bytes& payload) {
          StoreLE(payload.data() + kFirstNeighbour, uint32_t{2});
          payload[kFirstNeighbour + 4] = std::byte{0};
        }) == Finding::kBadFrame);
  CHECK(refusal([](ChunkHead&, Bytes& payload) {
          StoreLE(payload.data() + kFirstNeighbour, uint32_t{2});
          payload[kFirstNeighbour + 4] = std::byte{1};
        }) == Finding::kBadFrame);
  CHECK(refusal([](ChunkHead& head, Bytes&) { head.codec_parameter = 0; }) == Finding::kBadFrame);
  CHECK(refusal([](ChunkHead& head, Bytes&) { head.codec_parameter = 65; }) == Finding::kLimit);
  CHECK(refusal([](ChunkHead&, Bytes& payload) {
          StoreLE(payload.data() + kFirstNeighbour, uint32_t{77});
        }) == Finding::kLostChunk);
  CHECK(refusal([](ChunkHead&, Bytes& payload) { payload[0] = std::byte{5}; }) ==
        Finding::kBadFrame);
  // More columns are claimed than the neighbour has, or than the format allows.
  for (const uint16_t columns : {33, 1024, 0}) {
    CHECK(refusal([&](ChunkHead&, Bytes& payload) {
            StoreLE(payload.data() + kFirstNeighbour + 6, columns);
          }) == Finding::kBadFrame);
  }
}

TEST_CASE("neighbours: beside a reference, layers differ from it alike", "[kvz][layers][ref]") {
  const LayeredCache cache(4, 300), other(4, 300, 0.02f, 0.05f);
  const References references = BesideOf(other);
  const Bytes apart = PackJoined(cache, 1, 1 << 20, 1, references);
  const Bytes joined = PackJoined(cache, 4, 1 << 20, 1, references);
  CHECK(static_cast<double>(joined.size()) < 0.9 * static_cast<double>(apart.size()));
  CHECK(PackJoined(cache, 4, 1 << 20, 3, references) == joined);
  const ByteSpan source = cache.source.files[0].data->bytes();
  for (const int threads : {1, 3}) {
    Archive archive = OpenBytes(joined);
    CHECK(HoldsLayered(archive));
    CHECK(ChunkOf(archive, 3, ChunkKind::kValue).head.codec ==
          static_cast<uint8_t>(CodecId::kRefLayers));
    archive.UseReferences(References(references));
    CHECK(Unpack(archive, false, threads).files.at(0) == test::CopyOf(source));
  }
  CHECK(RefusalOf(OpenBytes(joined), 3, ChunkKind::kKey) == Finding::kLostChunk);
  CHECK(RefusalOf(OpenBytes(joined), 0, ChunkKind::kKey) == Finding::kReferenceMissing);
  // Rows of another cache are refused even if only the neighbour's rows differ.
  LayeredCache changed(4, 300, 0.02f, 0.05f);
  Bytes bytes = test::CopyOf(changed.source.files[0].data->bytes());
  const uint64_t tensor = 300 * LayeredCache::kChannels * 2;
  bytes[2 * tensor + 100] ^= std::byte{1};  // K of layer 2
  const Bytes& kept = bytes;
  changed.snapshot.layers[2].k = ContiguousTensor(kept.data() + 2 * tensor, DType::kF16, 300, 2,
                                                  LayeredCache::kHeadDim, Order::kTokenHeadDim);
  Archive archive = OpenBytes(joined);
  archive.UseReferences(BesideOf(changed));
  CHECK(RefusalOf(archive, 2, ChunkKind::kKey) == Finding::kReferenceDiffers);
  CHECK(RefusalOf(archive, 3, ChunkKind::kValue) == Finding::kLostChunk);
}

TEST_CASE("neighbours: what a reference does not have is coded by layers alone",
          "[kvz][layers][ref]") {
  const LayeredCache cache(3, 400);
  LayeredCache fewer(3, 400, 0.02f, 0.05f);  // used with half of its rows
  const std::byte* data = fewer.source.files[0].data->bytes().data();
  const uint64_t tensor = 400 * LayeredCache::kChannels * 2;
  const auto half = [&](uint64_t place) {
    return ContiguousTensor(data + place * tensor, DType::kF16, 200, 2, LayeredCache::kHeadDim,
                            Order::kTokenHeadDim);
  };
  for (uint32_t i = 0; i < 3; ++i) {
    fewer.snapshot.layers[i].k = half(i);
    fewer.snapshot.layers[i].v = half(3 + i);
  }
  const Bytes bytes = PackJoined(cache, 3, 200 * LayeredCache::kChannels * 2, 1, BesideOf(fewer));
  Archive archive = OpenBytes(bytes);
  const auto codec_of = [&](uint64_t first_token) {
    for (const ArchivedChunk& chunk : archive.chunks()) {
      if (chunk.head.layer == 2 && chunk.head.kind == ChunkKind::kValue &&
          chunk.head.token_begin == first_token) {
        return static_cast<CodecId>(chunk.head.codec);
      }
    }
    return CodecId::kRaw;
  };
  CHECK(codec_of(0) == CodecId::kRefLayers);
  CHECK(codec_of(200) == CodecId::kLayers);
  archive.UseReferences(BesideOf(fewer));
  CHECK(Unpack(archive).files.at(0) == test::CopyOf(cache.source.files[0].data->bytes()));
}

TEST_CASE("neighbours: circles among chunks beside a reference are refused",
          "[kvz][layers][ref][reject]") {
  const References references = BesideOf(LayeredCache(3, 300, 0.02f, 0.05f));
  const Bytes bytes = PackJoined(LayeredCache(3, 300), 3, 1 << 20, 1, references);
  constexpr size_t kFirstNeighbour = 12 + 44 + 2;
  const auto refusal = [&](const std::function<void(ChunkHead&, Bytes&)>& body) {
    Archive archive = Rewritten(bytes, [&](ChunkHead& head, Bytes& payload) {
      if (head.layer == 2 && head.kind == ChunkKind::kKey) body(head, payload);
    });
    archive.UseReferences(References(references));
    return RefusalOf(archive, 2, ChunkKind::kKey);
  };
  CHECK(refusal([](ChunkHead&, Bytes& payload) {
          StoreLE(payload.data() + kFirstNeighbour, uint32_t{2});
          payload[kFirstNeighbour + 4] = std::byte{0};
        }) == Finding::kBadFrame);
  CHECK(refusal([](ChunkHead& head, Bytes&) { head.codec_parameter = 0; }) == Finding::kBadFrame);
  CHECK(refusal([](ChunkHead& head, Bytes&) { head.codec_parameter = 65; }) == Finding::kLimit);
  CHECK(refusal([](ChunkHead&, Bytes& payload) {
          StoreLE(payload.data() + kFirstNeighbour, uint32_t{77});
        }) == Finding::kLostChunk);
}

}  // namespace kv::neighbours_test
