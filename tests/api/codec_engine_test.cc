// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>
#include <cstring>
#include <random>
#include <vector>

#include "lib/api/kvtool.h"

namespace {

using Buffer = std::vector<uint8_t>;
constexpr uint32_t kHeads = 4, kDim = 64;
constexpr size_t kRow = size_t{2} * kHeads * kDim;

kvt_desc Describe(uint64_t tokens) {
  kvt_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.dtype = KVT_BF16;
  desc.order = KVT_TOKEN_HEAD_DIM;
  desc.heads = kHeads;
  desc.head_dim = kDim;
  desc.tokens = tokens;
  return desc;
}

// Returns bf16 channels, each correlated with its previous token.
Buffer Values(uint64_t tokens, uint32_t seed = 3) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> state(kRow / 2);
  Buffer raw(tokens * kRow);
  for (size_t i = 0; i < raw.size() / 2; ++i) {
    float& x = state[i % state.size()];
    x = 0.9f * x + normal(random);
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    raw[2 * i] = static_cast<uint8_t>(bits >> 16);
    raw[2 * i + 1] = static_cast<uint8_t>(bits >> 24);
  }
  return raw;
}

struct Context {
  explicit Context(uint32_t level, kvt_pool* pool = nullptr) {
    const kvt_params params = {sizeof params, level, 0, pool};
    REQUIRE(kvt_ctx_create(&params, &ctx) == 0);
  }
  ~Context() { kvt_ctx_free(ctx); }
  kvt_ctx* ctx = nullptr;
};

}  // namespace

TEST_CASE("The codec says what it can do") {
  kvt_caps caps = {};
  CHECK(kvt_codec_caps(&caps) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_codec_caps(nullptr) == KVT_E_BAD_ARGUMENT);
  caps.struct_size = sizeof caps;
  REQUIRE(kvt_codec_caps(&caps) == 0);
  CHECK(caps.lossless == 1);
  CHECK(caps.needs_positions == 0);
  CHECK(caps.head_shards == 1);
  CHECK(kvt_encode_bound(1000) == 1000 + caps.frame_overhead);
  CHECK(caps.block_bytes == 65536);
}

TEST_CASE("Encoding within a room fits, or says so with an estimate") {
  const Buffer raw = Values(64);
  const kvt_desc desc = Describe(64);
  const Context context(KVT_DEFAULT);
  Buffer frame(kvt_encode_bound(raw.size())), within(frame.size());
  size_t size = 0, written = 0;
  REQUIRE(kvt_encode(context.ctx, &desc, raw.data(), raw.size(), frame.data(), frame.size(),
                     &size) == 0);
  const auto encode = [&](size_t cap) {
    return kvt_encode_within(context.ctx, &desc, raw.data(), raw.size(), within.data(), cap,
                             &written);
  };
  CHECK(encode(size) == 0);
  CHECK(written == size);
  CHECK(
      std::equal(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size), within.begin()));
  CHECK(encode(raw.size() / 4) == KVT_E_OUTPUT_TOO_SMALL);
  CHECK(written > raw.size() / 4);
  CHECK(encode(size - 1) == KVT_E_OUTPUT_TOO_SMALL);
  CHECK(written == size);
  CHECK(kvt_encode_within(context.ctx, &desc, raw.data(), raw.size(),
                          const_cast<uint8_t*>(raw.data()), raw.size(),
                          nullptr) == KVT_E_BAD_ARGUMENT);
}

TEST_CASE("A frame of values that repeat is refused after its first segments") {
  // Rows differ only in their lowest bits. No sample shows how small such segments become, so the
  // estimate uses the segments that were coded.
  constexpr uint64_t kTokens = 8192;
  Buffer raw = Values(kTokens);
  for (size_t i = kRow; i < raw.size(); ++i) {
    raw[i] =
        i % 2 == 1 ? raw[i - kRow] : static_cast<uint8_t>((raw[i % kRow] & 0xf0) | raw[i] % 16);
  }
  const kvt_desc desc = Describe(kTokens);
  const Context context(KVT_DEFAULT);
  Buffer frame(kvt_encode_bound(raw.size()));
  size_t size = 0, written = 0;
  const auto encode = [&](auto& call, size_t cap, size_t* used) {
    return call(context.ctx, &desc, raw.data(), raw.size(), frame.data(), cap, used);
  };
  REQUIRE(encode(kvt_encode, frame.size(), &size) == 0);
  CHECK(encode(kvt_encode_within, size, &written) == 0);
  CHECK(encode(kvt_encode_within, size / 4, &written) == KVT_E_OUTPUT_TOO_SMALL);
  CHECK(written > size / 2);
}

TEST_CASE("A padded frame is accepted where it fits exactly") {
  // Zeros within a segment and in segments of their own, after rows that repeat and rows that do
  // not.
  constexpr uint64_t kTokens = 4096;
  const Buffer values = Values(kTokens);
  for (const bool repeat : {false, true}) {
    for (const uint64_t used : {uint64_t{300}, uint64_t{1000}, uint64_t{2000}}) {
      Buffer raw(kTokens * kRow);
      for (size_t i = 0; i < used * kRow; ++i) {
        const bool same = repeat && i >= kRow && i % 2 == 1;
        raw[i] = same ? raw[i - kRow] : values[i];
      }
      const kvt_desc desc = Describe(kTokens);
      for (uint32_t level = KVT_FAST; level <= KVT_HIGH; ++level) {
        const Context context(level);
        Buffer frame(kvt_encode_bound(raw.size()));
        size_t size = 0, written = 0;
        REQUIRE(kvt_encode(context.ctx, &desc, raw.data(), raw.size(), frame.data(), frame.size(),
                           &size) == 0);
        INFO("level " << level << ", " << used << " rows, repeated: " << repeat);
        CHECK(kvt_encode_within(context.ctx, &desc, raw.data(), raw.size(), frame.data(), size,
                                &written) == 0);
      }
    }
  }
}

TEST_CASE("Blocks are listed, and planes join to the values") {
  const Buffer raw = Values(3000);
  const kvt_desc desc = Describe(3000);
  const Context context(KVT_FAST);
  CHECK(kvt_ctx_use_blocks(context.ctx, 2) == KVT_E_BAD_ARGUMENT);
  REQUIRE(kvt_ctx_use_blocks(context.ctx, 1) == 0);
  Buffer frame(kvt_encode_bound(raw.size())), back(raw.size());
  size_t size = 0, count = 0;
  REQUIRE(kvt_encode(context.ctx, &desc, raw.data(), raw.size(), frame.data(), frame.size(),
                     &size) == 0);
  kvt_info info = {};
  info.struct_size = sizeof info;
  REQUIRE(kvt_frame_info(frame.data(), size, &info) == 0);
  CHECK(info.version == 2);
  CHECK(info.codec == 31);
  REQUIRE(kvt_frame_blocks(frame.data(), size, nullptr, 0, &count) == 0);
  std::vector<kvt_block> blocks(count);
  blocks.front().struct_size = sizeof(kvt_block);
  CHECK(kvt_frame_blocks(frame.data(), size, blocks.data(), count - 1, &count) ==
        KVT_E_OUTPUT_TOO_SMALL);
  CHECK(count == blocks.size());
  CHECK(blocks.front().bytes == 0);  // untouched
  REQUIRE(kvt_frame_blocks(frame.data(), size, blocks.data(), count, &count) == 0);
  uint64_t end = 0;
  for (const kvt_block& block : blocks) {
    CHECK(block.offset % 16 == 0);
    CHECK(block.planes_offset == end);
    CHECK(block.planes == 2);
    CHECK(block.rotated == 1);
    end += block.raw_bytes;
  }
  CHECK(end == raw.size());
  REQUIRE(kvt_decode(context.ctx, frame.data(), size, nullptr, back.data(), back.size()) == 0);
  CHECK((back == raw));
  REQUIRE(kvt_ctx_use_blocks(context.ctx, 0) == 0);
  REQUIRE(kvt_encode(context.ctx, &desc, raw.data(), raw.size(), frame.data(), frame.size(),
                     &size) == 0);
  CHECK(kvt_frame_blocks(frame.data(), size, nullptr, 0, &count) == KVT_E_UNSUPPORTED_KIND);

  Buffer planes(raw.size());
  REQUIRE(kvt_planes_split(KVT_BF16, raw.data(), raw.size(), planes.data()) == 0);
  CHECK((planes != raw));
  REQUIRE(kvt_planes_join(KVT_BF16, planes.data(), planes.size(), back.data()) == 0);
  CHECK((back == raw));
  CHECK(kvt_planes_split(99, raw.data(), raw.size(), planes.data()) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_planes_split(KVT_BF16, planes.data(), 64, planes.data() + 32) == KVT_E_BAD_ARGUMENT);
}

TEST_CASE("Heads of a frame decode alone") {
  const Buffer raw = Values(16);
  const kvt_desc desc = Describe(16);
  const Context context(KVT_DEFAULT);
  Buffer frame(kvt_encode_bound(raw.size())), heads(raw.size() / 2);
  size_t size = 0, written = 0;
  REQUIRE(kvt_encode(context.ctx, &desc, raw.data(), raw.size(), frame.data(), frame.size(),
                     &size) == 0);
  REQUIRE(kvt_decode_heads(context.ctx, frame.data(), size, nullptr, 1, 2, heads.data(),
                           heads.size(), &written) == 0);
  CHECK(written == heads.size());
  for (size_t t = 0; t < 16; ++t)
    CHECK(std::memcmp(&heads[t * kRow / 2], &raw[t * kRow + kRow / 4], kRow / 2) == 0);
  CHECK(kvt_decode_heads(context.ctx, frame.data(), size, nullptr, 3, 2, heads.data(), heads.size(),
                         nullptr) == KVT_E_BAD_ARGUMENT);
}

TEST_CASE("Frames within rooms, heads and pages of tables are counted") {
  const Buffer raw = Values(16);
  const kvt_desc desc = Describe(16);
  const Context context(KVT_FAST);
  Buffer frame(kvt_encode_bound(raw.size())), pages = raw, heads(raw.size());
  size_t size = 0;
  REQUIRE(kvt_encode_within(context.ctx, &desc, raw.data(), raw.size(), frame.data(), frame.size(),
                            &size) == 0);
  CHECK(kvt_encode_within(context.ctx, &desc, raw.data(), raw.size(), frame.data(), 64, nullptr) ==
        KVT_E_OUTPUT_TOO_SMALL);  // a block without room is not counted
  REQUIRE(kvt_decode_heads(context.ctx, frame.data(), size, nullptr, 1, 2, heads.data(),
                           heads.size(), nullptr) == 0);
  kvt_entry entry = {};
  entry.struct_size = sizeof entry;
  const kvt_table table = {sizeof table, 0,       &desc, pages.data(), 1,          pages.size(),
                           raw.size(),   nullptr, 1,     heads.data(), raw.size(), &entry};
  REQUIRE(kvt_encode_table(context.ctx, &table) == 0);
  REQUIRE(kvt_decode_table(context.ctx, &table) == 0);
  ++entry.raw_hash;
  CHECK(kvt_decode_table(context.ctx, &table) == KVT_E_CHECKSUM);
  kvt_stats stats = {};
  stats.struct_size = sizeof stats;
  REQUIRE(kvt_ctx_stats(context.ctx, &stats) == 0);
  CHECK(stats.frames == 2);
  CHECK(stats.raw_bytes == 2 * raw.size());
  CHECK(stats.stored_bytes == size + entry.bytes);
  CHECK(stats.stored_raw == 0);
  CHECK(stats.decoded == 2);
  CHECK(stats.refused == 1);
}

TEST_CASE("Heads of a frame whose segments cut rows apart are refused") {
  // Bytes without a shape are split at 1 MiB; then the header is changed to claim rows of 384
  // bytes.
  const Buffer raw = Values(4500);
  const Context context(KVT_FAST);
  Buffer frame(kvt_encode_bound(raw.size())), heads(raw.size());
  size_t size = 0, written = 7;
  REQUIRE(kvt_encode(context.ctx, nullptr, raw.data(), raw.size(), frame.data(), frame.size(),
                     &size) == 0);
  constexpr uint32_t kClaimedHeads = 3, kClaimedDim = 128;
  const uint64_t tokens = raw.size() / (kClaimedHeads * kClaimedDim);
  frame[97] = KVT_TOKEN_HEAD_DIM;
  std::memcpy(&frame[100], &kClaimedHeads, 4);
  std::memcpy(&frame[104], &kClaimedDim, 4);
  std::memcpy(&frame[112], &tokens, 8);
  // The header's hash is XXH3-64, like that of a page.
  kvt_desc desc = Describe(0);
  desc.dtype = KVT_U8;
  kvt_entry entry = {};
  entry.struct_size = sizeof entry;
  Buffer room(120);
  const kvt_table table = {sizeof table, 0,       &desc, frame.data(), 1,           120,
                           120,          nullptr, 1,     room.data(),  room.size(), &entry};
  REQUIRE(kvt_encode_table(context.ctx, &table) == 0);
  std::memcpy(&frame[120], &entry.raw_hash, 8);
  REQUIRE(kvt_decode(context.ctx, frame.data(), size, nullptr, heads.data(), heads.size()) == 0);
  CHECK((heads == raw));
  CHECK(kvt_decode_heads(context.ctx, frame.data(), size, nullptr, 0, 2, heads.data(), heads.size(),
                         &written) == KVT_E_UNSUPPORTED_KIND);
  CHECK(written == 0);
}

TEST_CASE("Pages of a table are coded from where the engine has them, and come back there") {
  constexpr uint64_t kTokens = 16;
  constexpr size_t kPage = kTokens * kRow, kStride = kPage + 64, kPages = 9;
  kvt_pool* pool = nullptr;
  REQUIRE(kvt_pool_create(3, &pool) == 0);
  const kvt_desc desc = Describe(kTokens);
  for (kvt_pool* threads : {static_cast<kvt_pool*>(nullptr), pool}) {
    for (const uint32_t level : {KVT_FAST, KVT_DEFAULT}) {
      Buffer pages(kPages * kStride, 7), room(5 * kPage);
      for (size_t i = 0; i < kPages; ++i) {
        const Buffer values = Values(kTokens, static_cast<uint32_t>(i));
        std::copy(values.begin(), values.end(),
                  pages.begin() + static_cast<std::ptrdiff_t>(i * kStride));
      }
      const Buffer before = pages;
      const uint32_t index[] = {8, 2, 0, 5, 3};
      kvt_entry entries[5] = {};
      for (kvt_entry& entry : entries) entry.struct_size = sizeof entry;
      kvt_table table = {sizeof table, 0,     &desc, pages.data(), kPages, kStride,
                         kPage,        index, 5,     room.data(),  kPage,  entries};
      const Context context(level, threads);
      REQUIRE(kvt_encode_table(context.ctx, &table) == 0);
      for (const kvt_entry& entry : entries) {
        CHECK(entry.bytes < kPage);
        CHECK(entry.status == 0);
      }
      for (const uint32_t i : index)
        std::fill_n(pages.begin() + static_cast<std::ptrdiff_t>(i * kStride), kPage, uint8_t{0});
      REQUIRE(kvt_decode_table(context.ctx, &table) == 0);
      CHECK((pages == before));

      // An invalid entry does not affect the others.
      ++entries[1].raw_hash;
      CHECK(kvt_decode_table(context.ctx, &table) == KVT_E_CHECKSUM);
      CHECK(entries[1].status == KVT_E_CHECKSUM);
      CHECK(entries[2].status == 0);
      entries[1].codec = 250;
      CHECK(kvt_decode_table(context.ctx, &table) == KVT_E_UNSUPPORTED_KIND);
      table.room = entries[0].bytes - 1;
      CHECK(kvt_encode_table(context.ctx, &table) == KVT_E_OUTPUT_TOO_SMALL);
      CHECK(entries[0].status == KVT_E_OUTPUT_TOO_SMALL);
      CHECK(entries[0].bytes == table.room + 1);
      CHECK(kvt_decode_table(context.ctx, &table) == KVT_E_TRUNCATED);
    }
  }
  kvt_pool_free(pool);
}

TEST_CASE("Tables that contradict themselves or overlap are refused") {
  constexpr size_t kPage = 16 * kRow;
  const kvt_desc desc = Describe(16);
  Buffer pages(3 * kPage), room(3 * kPage);
  const uint32_t twice[] = {1, 1}, beyond[] = {0, 3};
  kvt_entry entries[2] = {};
  for (kvt_entry& entry : entries) entry.struct_size = sizeof entry;
  const kvt_table good = {sizeof good, 0,       &desc, pages.data(), 3,     kPage,
                          kPage,       nullptr, 2,     room.data(),  kPage, entries};
  const Context context(KVT_FAST);
  CHECK(kvt_encode_table(context.ctx, nullptr) == KVT_E_BAD_ARGUMENT);
  REQUIRE(kvt_encode_table(context.ctx, &good) == 0);
  REQUIRE(kvt_decode_table(context.ctx, &good) == 0);
  const auto both = [&](auto&& change) {
    kvt_table table = good;
    change(table);
    const kvt_status encoded = kvt_encode_table(context.ctx, &table);
    CHECK(kvt_decode_table(context.ctx, &table) == encoded);
    return encoded;
  };
  CHECK(both([](kvt_table& t) { t.struct_size = 8; }) == KVT_E_BAD_ARGUMENT);
  CHECK(both([](kvt_table& t) { t.reserved = 1; }) == KVT_E_BAD_ARGUMENT);
  CHECK(both([](kvt_table& t) { t.desc = nullptr; }) == KVT_E_BAD_ARGUMENT);
  CHECK(both([](kvt_table& t) { t.entries = nullptr; }) == KVT_E_BAD_ARGUMENT);
  CHECK(both([](kvt_table& t) { t.pages = nullptr; }) == KVT_E_BAD_ARGUMENT);
  CHECK(both([](kvt_table& t) { t.stride = kPage - 1; }) == KVT_E_BAD_ARGUMENT);
  CHECK(both([](kvt_table& t) { t.stride = SIZE_MAX; }) == KVT_E_BAD_ARGUMENT);
  CHECK(both([](kvt_table& t) { t.count = 4; }) == KVT_E_BAD_ARGUMENT);
  CHECK(both([&](kvt_table& t) { t.index = beyond; }) == KVT_E_BAD_ARGUMENT);
  CHECK(both([&](kvt_table& t) { t.data = pages.data() + kPage; }) == KVT_E_BAD_ARGUMENT);
  CHECK(both([&](kvt_table& t) { t.entries = reinterpret_cast<kvt_entry*>(room.data()); }) ==
        KVT_E_BAD_ARGUMENT);
  CHECK(both([](kvt_table& t) { t.count = 0; }) == 0);
  kvt_table table = good;
  table.index = twice;
  CHECK(kvt_encode_table(context.ctx, &table) == 0);
  CHECK(kvt_decode_table(context.ctx, &table) == KVT_E_BAD_ARGUMENT);
  Buffer large((4 << 20) + 2);
  table = good;
  table.pages = large.data();
  table.page_count = table.count = 1;
  table.page_bytes = table.stride = large.size();
  CHECK(kvt_encode_table(context.ctx, &table) == KVT_E_LIMIT);
}
