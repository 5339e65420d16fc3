// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/frame/frame.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <random>

#include "lib/core/base/file.h"
#include "lib/core/base/half.h"

namespace kv::frame_test {
namespace {

constexpr Effort kLevels[] = {Effort::kFast, Effort::kDefault, Effort::kHigh, Effort::kMax};

// Returns bf16 channels, each correlated with its previous token.
Bytes Channels(uint64_t rows, uint64_t columns, uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> state(columns);
  Bytes bytes(2 * rows * columns);
  for (size_t i = 0; i < rows * columns; ++i) {
    float& x = state[i % columns];
    x = 0.9f * x + normal(random);
    StoreLE(bytes.data() + 2 * i, F32ToBF16(x));
  }
  return bytes;
}

Bytes Noise(size_t size) {
  std::mt19937 random(7);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

FrameDescription Described(uint64_t tokens, uint32_t heads, uint32_t dim) {
  FrameDescription description;
  description.dtype = DType::kBF16;
  description.order = Order::kTokenHeadDim;
  description.role = FrameRole::kKey;
  description.tokens = tokens;
  description.heads = heads;
  description.head_dim = dim;
  description.tag = 42;
  description.context.fill(std::byte{9});
  return description;
}

Bytes Encode(const FrameDescription& description, ByteSpan raw, Effort level = Effort::kDefault,
             ThreadPool* pool = nullptr) {
  FrameCoder coder(level);
  coder.UsePool(pool);
  Bytes out(FrameBound(raw.size()));
  out.resize(coder.Encode(description, raw, out));
  return out;
}

Bytes Decode(ByteSpan frame) {
  FrameCoder coder(Effort::kDefault);
  Bytes raw(ReadFrameHeader(frame).raw_bytes);
  coder.Decode(frame, nullptr, raw);
  return raw;
}

Finding FindingOf(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding{};
}

TEST_CASE("Frames of every size, order and level come back") {
  struct Case {
    uint64_t tokens;
    uint32_t heads, dim;
  };
  for (const Case& c :
       {Case{1, 1, 1}, {16, 8, 128}, {300, 2, 64}, {1000, 8, 128}, {3, 1, 600'000}}) {
    const Bytes raw = Channels(c.tokens, uint64_t{c.heads} * c.dim);
    for (const Order order : {Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kStorage}) {
      for (const Effort level : kLevels) {
        if (level == Effort::kMax && raw.size() > (1 << 20))
          continue;  // larger sizes are slow and test nothing new
        INFO(c.tokens << " x " << c.heads << " x " << c.dim << ", " << Name(order) << ", "
                      << Name(level));
        FrameDescription description = Described(c.tokens, c.heads, c.dim);
        description.order = order;
        const Bytes frame = Encode(description, raw, level);
        CHECK(frame.size() <= FrameBound(raw.size()));
        const FrameHeader header = ReadFrameHeader(frame);
        CHECK(header.frame_bytes() == frame.size());
        CHECK(header.description.tag == 42);
        CHECK(Decode(frame) == raw);
        FrameCoder coder(Effort::kFast);
        CHECK(coder.Verify(frame, &description.context).raw_bytes == raw.size());
      }
    }
  }
}

TEST_CASE("A frame compresses, and needs 128 bytes more at most") {
  const Bytes channels = Channels(512, 256);
  CHECK(Encode(Described(512, 2, 128), channels).size() < channels.size() * 8 / 10);
  const Bytes noise = Noise(100'000);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{128}, size_t{99'999}, size_t{100'000}}) {
    const ByteSpan raw = ByteSpan(noise).first(size);
    const Bytes frame = Encode(Described(1, 1, static_cast<uint32_t>(size / 2)), raw);
    CHECK(frame.size() == size + 128);
    const Bytes back = Decode(frame);
    CHECK(std::ranges::equal(back, raw));
  }
  CHECK(FrameBound(UINT64_MAX - 100) == 0);
}

TEST_CASE("A shape that does not explain the bytes is dropped") {
  const Bytes raw = Channels(64, 64);
  const Bytes frame = Encode(Described(65, 1, 64), raw);
  const FrameHeader header = ReadFrameHeader(frame);
  CHECK(header.description.tokens == 0);
  CHECK(header.description.order == Order::kStorage);
  CHECK(header.segment_tokens() == 0);
  CHECK(Decode(frame) == raw);
}

TEST_CASE("What a frame holds does not depend on the threads") {
  const Bytes raw = Channels(2000, 1024);
  ThreadPool pool(4);
  const FrameDescription description = Described(2000, 8, 128);
  const Bytes alone = Encode(description, raw, Effort::kFast);
  CHECK(Encode(description, raw, Effort::kFast, &pool) == alone);
  FrameCoder coder(Effort::kFast);
  coder.UsePool(&pool);
  Bytes back(raw.size());
  coder.Decode(alone, &description.context, back);
  CHECK((back == raw));
  CHECK(coder.Verify(alone, nullptr).raw_bytes == raw.size());
}

TEST_CASE("Token ranges decode alone") {
  const uint64_t row = 2 * 1024;
  const Bytes raw = Channels(1500, 1024);
  const FrameDescription description = Described(1500, 8, 128);
  const Bytes frame = Encode(description, raw, Effort::kFast);
  CHECK(ReadFrameHeader(frame).segment_tokens() == 256);
  FrameCoder coder(Effort::kFast);
  for (const auto& [begin, count] : {std::pair<uint64_t, uint64_t>{0, 1},
                                     {255, 2},
                                     {256, 256},
                                     {0, 1500},
                                     {1499, 1},
                                     {1500, 0},
                                     {700, 500}}) {
    INFO(begin << " + " << count);
    Bytes out(count * row);
    CHECK(coder.DecodeTokens(frame, nullptr, begin, count, out) == out.size());
    CHECK(std::ranges::equal(out, ByteSpan(raw).subspan(begin * row, out.size())));
  }
  Bytes out(row);
  CHECK(FindingOf([&] { coder.DecodeTokens(frame, nullptr, 1500, 1, out); }) ==
        Finding::kBadArgument);
  CHECK(FindingOf([&] { coder.DecodeTokens(frame, nullptr, 0, UINT64_MAX, out); }) ==
        Finding::kBadArgument);
  CHECK(FindingOf([&] { coder.DecodeTokens(frame, nullptr, 0, 2, out); }) ==
        Finding::kOutputTooSmall);

  // A small incompressible page: it is decoded as a whole, and parts of it are copied.
  const Bytes noise = Noise(4096);
  const Bytes stored = Encode(Described(16, 1, 128), noise);
  Bytes part(512);
  CHECK(coder.DecodeTokens(stored, nullptr, 3, 2, part) == 512);
  CHECK(std::ranges::equal(part, ByteSpan(noise).subspan(768, 512)));
  FrameDescription by_head = Described(1500, 8, 128);
  by_head.order = Order::kHeadTokenDim;
  const Bytes heads = Encode(by_head, raw, Effort::kFast);
  CHECK(FindingOf([&] { coder.DecodeTokens(heads, nullptr, 0, 1, out); }) ==
        Finding::kUnsupportedKind);
}

TEST_CASE("Another context is refused, and too small a buffer told what it needs") {
  const Bytes raw = Channels(64, 64);
  const FrameDescription description = Described(64, 1, 64);
  const Bytes frame = Encode(description, raw);
  Hash128Bytes other = description.context;
  other[15] ^= std::byte{1};
  FrameCoder coder(Effort::kDefault);
  Bytes back(raw.size());
  CHECK(FindingOf([&] { coder.Decode(frame, &other, back); }) == Finding::kContextDiffers);
  Bytes shorter(raw.size() - 1);
  CHECK(FindingOf([&] { coder.Decode(frame, nullptr, shorter); }) == Finding::kSizeMismatch);
  uint64_t needed = 0;
  Bytes small(frame.size() - 1);
  CHECK(FindingOf([&] { coder.Encode(description, raw, small, &needed); }) ==
        Finding::kOutputTooSmall);
  CHECK(needed == frame.size());
}

TEST_CASE("Frames in blocks say so, come back, and list what a device reads") {
  CodecScratch scratch;
  for (const uint64_t tokens : {uint64_t{1}, uint64_t{40}, uint64_t{1500}}) {
    const Bytes raw = Channels(tokens, 1024);
    for (const Order order : {Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kStorage}) {
      for (const Effort level : kLevels) {
        INFO(tokens << " tokens, " << Name(order) << ", " << Name(level));
        FrameDescription description = Described(tokens, 8, 128);
        description.order = order;
        description.role = FrameRole::kKeyAndValue;
        FrameCoder coder(level);
        coder.UseBlocks(true);
        Bytes frame(FrameBound(raw.size()));
        frame.resize(coder.Encode(description, raw, frame));
        CHECK(frame.size() < raw.size() * 8 / 10);
        const FrameHeader header = ReadFrameHeader(frame);
        CHECK(header.version == 2);
        CHECK(header.codec == CodecId::kBlocks);
        CHECK(Decode(frame) == raw);
        // Decodes in the steps of a device: planes from blocks, then words from planes.
        Bytes back(raw.size());
        for (const BlockSegment& segment : ListBlocks(frame)) {
          Bytes planes;
          for (const PlaneBlock& block : segment.planes.blocks) {
            const size_t begin = segment.offset + block.offset;
            CHECK(begin % 16 == 0);
            const ByteSpan bytes = ByteSpan(frame).subspan(begin, block.bytes);
            planes.resize(planes.size() + block.raw_bytes);
            const auto to = std::span(planes).last(block.raw_bytes);
            if (block.stored()) std::ranges::copy(bytes, to.begin());
            if (!block.stored()) REQUIRE(scratch.zstd.Decompress(bytes, to));
          }
          JoinWords(segment.planes.split, planes,
                    std::span(back).subspan(segment.raw_offset, segment.raw_bytes));
        }
        CHECK((back == raw));
      }
    }
  }
  FrameCoder coder(Effort::kFast);
  coder.UseBlocks(true);
  const Bytes noise = Noise(4096);
  Bytes frame(FrameBound(noise.size()));
  CHECK(coder.Encode(Described(16, 1, 128), noise, frame) == frame.size());
  CHECK(ReadFrameHeader(frame).codec == CodecId::kRaw);
  CHECK(ListBlocks(frame).empty());
  const Bytes other = Encode(Described(64, 1, 64), Channels(64, 64));
  CHECK(FindingOf([&] { ListBlocks(other); }) == Finding::kUnsupportedKind);
}

TEST_CASE("A frame of version 2 has the codec of its header in all segments") {
  FrameCoder coder(Effort::kFast);
  coder.UseBlocks(true);
  const Bytes raw = Channels(30'000, 32);
  Bytes frame(FrameBound(raw.size()));
  frame.resize(coder.Encode(Described(30'000, 1, 32), raw, frame));
  REQUIRE(ReadFrameHeader(frame).segmentation == Segmentation::kRows);
  const auto finding_of = [&](size_t at, uint8_t value) {
    Bytes forged = frame;
    forged[at] = std::byte{value};
    StoreLE<uint64_t>(&forged[120], Hash64(ByteSpan(forged).first(120)));
    return FindingOf([&] { coder.Verify(forged, nullptr); });
  };
  CHECK(finding_of(99, 255) == Finding::kBadField);
  CHECK(finding_of(8, 1) == Finding::kBadField);
  CHECK(finding_of(99, 16) == Finding::kBadFrame);
  CHECK(finding_of(128 + 4, 16) == Finding::kBadFrame);
  CHECK(finding_of(8, 3) == Finding::kUnsupportedVersion);
}

TEST_CASE("A room that is too small is refused early, one that suffices is used") {
  for (const uint64_t tokens : {uint64_t{16}, uint64_t{64}, uint64_t{2000}}) {
    const Bytes raw = Channels(tokens, 1024);
    const FrameDescription description = Described(tokens, 8, 128);
    for (const bool blocks : {false, true}) {
      for (const Effort level : {Effort::kFast, Effort::kDefault, Effort::kHigh}) {
        INFO(tokens << " tokens at " << Name(level) << (blocks ? ", in blocks" : ""));
        FrameCoder coder(level);
        coder.UseBlocks(blocks);
        Bytes frame(FrameBound(raw.size()));
        frame.resize(coder.Encode(description, raw, frame));
        uint64_t needed = 0;
        Bytes room(frame.size());
        CHECK(coder.EncodeWithin(description, raw, room, &needed) == frame.size());
        CHECK((room == frame));
        room.resize(frame.size() - 1);
        needed = 0;
        CHECK(coder.EncodeWithin(description, raw, room, &needed) == 0);
        CHECK(needed > room.size());
        // Samples suffice to refuse the page: no worker ran, and the size is an estimate.
        FrameCoder fresh(level);
        fresh.UseBlocks(blocks);
        room.resize(raw.size() / 4);
        CHECK(fresh.EncodeWithin(description, raw, room, &needed) == 0);
        CHECK(needed > room.size());
        CHECK(needed < frame.size());
        CHECK(fresh.EncodeWithin(description, raw, {}, nullptr) == 0);
      }
    }
  }
  // Frames of zeros fit the buffer, frames of noise do not.
  const Bytes zeros(64 << 10), noise = Noise(64 << 10);
  FrameCoder coder(Effort::kDefault);
  Bytes room(8 << 10);
  CHECK(coder.EncodeWithin(Described(32, 8, 128), zeros, room) != 0);
  CHECK(coder.EncodeWithin(Described(32, 8, 128), noise, room) == 0);
}

TEST_CASE("A request to cancel ends the samples too") {
  CallState state;
  REQUIRE(state.Begin());
  REQUIRE(state.Cancel());
  FrameCoder coder(Effort::kFast);
  coder.UseState(&state);
  const Bytes noise = Noise(64 << 10);
  Bytes room(8 << 10);  // 8 KiB: samples already show that the noise does not fit
  CHECK(FindingOf([&] { coder.EncodeWithin(Described(32, 8, 128), noise, room); }) ==
        Finding::kCancelled);
}

TEST_CASE("A frame whose segments come out larger than expected is given up on the way") {
  ThreadPool pool(3);
  const Bytes raw = Channels(6000, 1024);
  const FrameDescription description = Described(6000, 8, 128);
  const Bytes frame = Encode(description, raw, Effort::kFast);
  for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
    FrameCoder coder(Effort::kFast);
    coder.UsePool(threads);
    Bytes room(frame.size() * 98 / 100);
    uint64_t needed = 0;
    CHECK(coder.EncodeWithin(description, raw, room, &needed) == 0);
    CHECK(needed > room.size());
    room.resize(frame.size());
    CHECK(coder.EncodeWithin(description, raw, room, &needed) == frame.size());
    CHECK((room == frame));
  }
}

TEST_CASE("Ranges of heads decode alone, in both orders, stored or coded") {
  struct Case {
    uint64_t tokens;
    bool noise;
  };
  for (const Case& c : {Case{16, false}, {16, true}, {1500, false}}) {
    const uint32_t heads = 8, dim = 128;
    const size_t head = 2 * dim;
    const Bytes raw = c.noise ? Noise(c.tokens * heads * head) : Channels(c.tokens, heads * dim);
    for (const Order order : {Order::kTokenHeadDim, Order::kHeadTokenDim}) {
      FrameDescription description = Described(c.tokens, heads, dim);
      description.order = order;
      const Bytes frame = Encode(description, raw, Effort::kFast);
      FrameCoder coder(Effort::kFast);
      for (const auto& [begin, count] :
           {std::pair<uint32_t, uint32_t>{0, 8}, {0, 1}, {3, 2}, {7, 1}, {8, 0}}) {
        INFO(c.tokens << " tokens, " << Name(order) << ", heads " << begin << " + " << count);
        Bytes expected;
        const bool by_token = order == Order::kTokenHeadDim;
        for (size_t i = 0; i < (by_token ? c.tokens : 1); ++i) {
          const size_t unit = by_token ? head : head * c.tokens;
          const ByteSpan part = ByteSpan(raw).subspan((i * heads + begin) * unit, count * unit);
          expected.insert(expected.end(), part.begin(), part.end());
        }
        Bytes out(expected.size());
        CHECK(coder.DecodeHeads(frame, &description.context, begin, count, out) == out.size());
        CHECK((out == expected));
      }
      Bytes out(c.tokens * head);
      const auto finding_of = [&](uint32_t begin, uint32_t count) {
        return FindingOf([&] { coder.DecodeHeads(frame, nullptr, begin, count, out); });
      };
      CHECK(finding_of(8, 1) == Finding::kBadArgument);
      CHECK(finding_of(1, UINT32_MAX) == Finding::kBadArgument);
      CHECK(finding_of(0, 2) == Finding::kOutputTooSmall);
    }
  }
  FrameCoder coder(Effort::kFast);
  FrameDescription shapeless = Described(64, 1, 64);
  shapeless.order = Order::kStorage;
  const Bytes frame = Encode(shapeless, Channels(64, 64));
  Bytes out(64);
  CHECK(FindingOf([&] { coder.DecodeHeads(frame, nullptr, 0, 0, out); }) ==
        Finding::kUnsupportedKind);
}

TEST_CASE("Pages of a table come back without a header, and damage is noticed") {
  for (const bool blocks : {false, true}) {
    for (const Effort level : kLevels) {
      FrameCoder coder(level);
      coder.UseBlocks(blocks);
      const FrameDescription description = Described(16, 8, 128);
      const Bytes raw = Channels(16, 1024), noise = Noise(raw.size());
      Bytes payload(raw.size()), back(raw.size());
      PageEntry entry;
      REQUIRE(coder.EncodePage(description, raw, payload, entry));
      CHECK(entry.bytes < raw.size());
      CHECK((entry.codec == CodecId::kBlocks) == blocks);
      coder.DecodePage(description, entry, payload, back);
      CHECK((back == raw));
      const auto finding_of = [&](const PageEntry& changed, ByteSpan bytes) {
        return FindingOf([&] { coder.DecodePage(description, changed, bytes, back); });
      };
      PageEntry other = entry;
      ++other.raw_hash;
      CHECK(finding_of(other, payload) == Finding::kChecksum);
      CHECK(finding_of(entry, ByteSpan(payload).first(entry.bytes - 1)) == Finding::kTruncated);
      other = entry;
      other.codec = static_cast<CodecId>(250);
      CHECK(finding_of(other, payload) == Finding::kUnsupportedKind);
      CHECK_FALSE(coder.EncodePage(description, raw, std::span(payload).first(64), other));
      CHECK(other.bytes == entry.bytes);
      REQUIRE(coder.EncodePage(description, noise, payload, entry));
      CHECK(entry.codec == CodecId::kRaw);
      CHECK(entry.bytes == noise.size());
      coder.DecodePage(description, entry, payload, back);
      CHECK((back == noise));
    }
  }
  FrameCoder coder(Effort::kFast);
  const Bytes large((4 << 20) + 1);
  PageEntry entry;
  CHECK(FindingOf([&] { coder.EncodePage({}, large, {}, entry); }) == Finding::kLimit);
}

TEST_CASE("A damaged frame is refused unless the damage changes no value") {
  for (const uint64_t tokens : {uint64_t{40}, uint64_t{30'000}}) {
    const Bytes raw = Channels(tokens, 32);
    const Bytes frame = Encode(Described(tokens, 1, 32), raw, Effort::kFast);
    FrameCoder coder(Effort::kFast);
    const size_t table_bytes = 4 * 16;  // 30,000 rows, 8,192 per segment
    Bytes back(raw.size());
    std::mt19937 random(3);
    for (size_t at = 0; at < frame.size();
         at += at < 256 ? 1 : 1 + random() % (frame.size() / 40)) {
      INFO("byte " << at);
      Bytes damaged = frame;
      damaged[at] ^= static_cast<std::byte>(1u << random() % 8);
      // Flipping a bit may go unnoticed in a codec's payload, but never in headers and tables.
      const auto decoded = [&] {
        std::ranges::fill(back, std::byte{0});
        return FindingOf([&] { coder.Decode(damaged, nullptr, back); });
      }();
      if (decoded == Finding{}) {
        CHECK(at >= kFrameHeaderBytes + (tokens > 40 ? table_bytes : 0));
        CHECK((back == raw));
      }
      CHECK(FindingOf([&] { coder.Verify(damaged, nullptr); }) == decoded);
    }
    for (size_t size = 0; size < frame.size(); size += 1 + size / 3) {
      CHECK_THROWS_AS(coder.Decode(ByteSpan(frame).first(size), nullptr, back), Error);
    }
    // A frame with padding after it, as stores add, decodes.
    Bytes padded = frame;
    padded.resize(frame.size() + 4096);
    coder.Decode(padded, nullptr, back);
    CHECK((back == raw));
  }
}

TEST_CASE("Headers that contradict themselves are refused, their hash right or not") {
  const Bytes raw = Channels(30'000, 32);
  const Bytes frame = Encode(Described(30'000, 1, 32), raw, Effort::kFast);
  struct Change {
    size_t at;
    uint64_t value;
    size_t bytes;
    Finding finding;
  };
  const Change changes[] = {
      {0, 0x88, 1, Finding::kBadMagic},         {8, 3, 2, Finding::kUnsupportedVersion},
      {10, 64, 2, Finding::kBadField},          {12, 5, 1, Finding::kBadField},
      {13, 3, 1, Finding::kBadField},           {13, 0, 1, Finding::kBadField},
      {14, 0, 2, Finding::kBadField},           {16, 1, 8, Finding::kBadField},
      {16, UINT64_MAX, 8, Finding::kBadField},  {24, UINT64_MAX, 8, Finding::kBadField},
      {80, 1, 1, Finding::kUnsupportedKind},    {96, 99, 1, Finding::kUnknownDtype},
      {97, 2, 1, Finding::kBadField},           {98, 4, 1, Finding::kBadField},
      {99, 0, 1, Finding::kBadField},           {100, 0, 4, Finding::kBadField},
      {104, 0xffffffff, 4, Finding::kBadField}, {112, uint64_t{1} << 60, 8, Finding::kBadField},
  };
  for (const Change& change : changes) {
    INFO("offset " << change.at << " = " << change.value);
    Bytes forged = frame;
    std::memcpy(&forged[change.at], &change.value, change.bytes);
    StoreLE<uint64_t>(&forged[120], Hash64(ByteSpan(forged).first(120)));
    CHECK(FindingOf([&] { ReadFrameHeader(forged); }) == change.finding);
  }
}

TEST_CASE("A frame of a newer version is told from a damaged one") {
  FrameCoder coder(Effort::kFast);
  const auto change = [](Bytes frame, size_t at, uint8_t value, bool right_hash) {
    frame[at] = std::byte{value};
    if (right_hash) StoreLE<uint64_t>(&frame[120], Hash64(ByteSpan(frame).first(120)));
    return frame;
  };
  const auto finding_of = [&](const Bytes& frame) {
    return FindingOf([&] { coder.Verify(frame, nullptr); });
  };
  constexpr uint8_t kNewCodec = 250;
  const Bytes one = Encode(Described(1'000, 1, 32), Channels(1'000, 32), Effort::kFast);
  CHECK(finding_of(change(one, 8, 3, true)) == Finding::kUnsupportedVersion);
  CHECK(finding_of(change(one, 8, 3, false)) == Finding::kChecksum);
  CHECK(finding_of(change(one, 99, kNewCodec, true)) == Finding::kUnsupportedKind);
  CHECK(finding_of(change(one, 99, kNewCodec, false)) == Finding::kChecksum);
  const Bytes several = Encode(Described(30'000, 1, 32), Channels(30'000, 32), Effort::kFast);
  CHECK(ReadFrameHeader(several).segmentation == Segmentation::kRows);
  CHECK(finding_of(change(several, 128 + 4, kNewCodec, false)) == Finding::kUnsupportedKind);
}

TEST_CASE("Frames that exist decode for ever") {
  FrameCoder coder(Effort::kDefault);
  size_t frames = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KVTOOL_TESTDATA "/fuzz/frame")) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("content", 0) != 0) continue;
    INFO(name);
    const auto file = FileSource::Open(entry.path());
    CHECK_NOTHROW(coder.Verify(file->bytes(), nullptr));
    ++frames;
  }
  CHECK(frames >= 32);
}

TEST_CASE("A cancelled call stops") {
  CallState state;
  REQUIRE(state.Begin());
  state.Cancel();
  FrameCoder coder(Effort::kFast);
  coder.UseState(&state);
  const Bytes raw = Channels(64, 64);
  Bytes out(FrameBound(raw.size()));
  CHECK(FindingOf([&] { coder.Encode(Described(64, 1, 64), raw, out); }) == Finding::kCancelled);
}

}  // namespace
}  // namespace kv::frame_test
