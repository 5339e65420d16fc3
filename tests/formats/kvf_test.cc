// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/kvf/kvf.h"

#include <catch2/catch.hpp>

#include "formats/kvz/kvz.h"
#include "formats/registry.h"
#include "lib/core/frame/frame.h"
#include "lib/core/snapshot/layout.h"

namespace kv::kvf_test {
namespace {

constexpr uint64_t kTokens = 40;
constexpr uint32_t kHeads = 2, kDim = 8;

Bytes Values() {
  Bytes raw(kTokens * kHeads * kDim * 2);
  for (size_t i = 0; i < raw.size() / 2; ++i) {
    StoreLE(raw.data() + 2 * i, static_cast<uint16_t>(0x3c00 + i % 97));
  }
  return raw;
}

FrameDescription Page(FrameRole role, Order order = Order::kTokenHeadDim) {
  FrameDescription page;
  page.dtype = DType::kF16;
  page.order = order;
  page.role = role;
  page.heads = order == Order::kStorage ? 0 : kHeads;
  page.head_dim = order == Order::kStorage ? 0 : kDim;
  page.tokens = order == Order::kStorage ? 0 : kTokens;
  return page;
}

Bytes Encoded(const FrameDescription& page, const Bytes& raw) {
  Bytes frame(FrameBound(raw.size()));
  frame.resize(FrameCoder(Effort::kDefault).Encode(page, raw, frame));
  return frame;
}

Source InMemory(Bytes bytes) {
  return {.path = "a",
          .is_folder = false,
          .files = {{"a", FileSource::FromBytes(std::move(bytes), "a")}}};
}

Snapshot Read(Bytes frame, const OpenOptions& options = {}) {
  return OpenSnapshot(InMemory(std::move(frame)), options);
}

Finding Refusal(Bytes frame, const OpenOptions& options = {}) {
  try {
    Read(std::move(frame), options);
  } catch (const Error& error) {
    return error.finding();
  }
  return Finding{0};
}

}  // namespace

TEST_CASE("a frame reads as what its role says", "[kvf]") {
  const Bytes raw = Values();
  const Snapshot k = Read(Encoded(Page(FrameRole::kKey), raw));
  CHECK(k.format == "kvf");
  REQUIRE(k.layers.size() == 1);
  CHECK(Gather(k.layers[0].k, 0, kTokens, Order::kTokenHeadDim) == raw);
  CHECK_FALSE(k.layers[0].v);
  CHECK(k.notes.empty());

  const Snapshot v = Read(Encoded(Page(FrameRole::kValue), raw));
  CHECK_FALSE(v.layers[0].has_k());
  REQUIRE(v.layers[0].v);
  CHECK(Gather(*v.layers[0].v, 0, kTokens, Order::kTokenHeadDim) == raw);

  CHECK(Read(Encoded(Page(FrameRole::kUnknown), raw)).notes.size() == 1);
}

TEST_CASE("K and V side by side are taken apart", "[kvf]") {
  const Bytes raw = Values();
  for (const Order order : {Order::kTokenHeadDim, Order::kHeadTokenDim}) {
    const Snapshot both = Read(Encoded(Page(FrameRole::kKeyAndValue, order), raw));
    REQUIRE(both.layers[0].v);
    const Bytes k = Gather(both.layers[0].k, 0, kTokens, order);
    const Bytes v = Gather(*both.layers[0].v, 0, kTokens, order);
    REQUIRE(k.size() + v.size() == raw.size());
    constexpr size_t kHalf = kDim;  // half of a head's dims, in bytes
    bool alike = true;
    for (size_t head = 0; head < raw.size() / (2 * kHalf); ++head) {
      alike &= std::equal(&k[head * kHalf], &k[head * kHalf] + kHalf, &raw[2 * head * kHalf]);
      alike &=
          std::equal(&v[head * kHalf], &v[head * kHalf] + kHalf, &raw[2 * head * kHalf] + kHalf);
    }
    CHECK(alike);
  }
}

TEST_CASE("frames that do not read as a cache are refused by name", "[kvf]") {
  const Bytes raw = Values(), frame = Encoded(Page(FrameRole::kKey), raw);
  CHECK(Refusal(Encoded(Page(FrameRole::kKey, Order::kStorage), raw)) == Finding::kGeometryMissing);
  Bytes longer = frame;
  longer.push_back(std::byte{0});
  CHECK(Refusal(longer) == Finding::kTrailingBytes);
  CHECK(Refusal(Bytes(frame.begin(), frame.end() - 1)) == Finding::kTruncated);
  OpenOptions small;
  small.max_bytes = raw.size() - 1;
  CHECK(Refusal(frame, small) == Finding::kLimit);
  for (size_t at = 8; at < frame.size(); at += 7) {
    Bytes damaged = frame;
    damaged[at] ^= std::byte{0x10};
    INFO("at " << at);
    CHECK(Refusal(damaged) != Finding{0});
  }
}

TEST_CASE("a frame that needs a profile reads with it alone", "[kvf]") {
  Source source = Source::Open(KVTOOL_TESTDATA "/profiles/page.kvf");
  OpenOptions options;
  options.in_memory = true;  // the frame's header names the profile
  const Bytes frame(source.files[0].data->bytes().begin(), source.files[0].data->bytes().end());
  CHECK(Refusal(frame, options) == Finding::kProfileMissing);
  options.profiles = {{"s260k.kvp", OpenProfile(KVTOOL_TESTDATA "/profiles/s260k.kvp")}};
  const Snapshot page = Read(frame, options);
  const auto raw = FileSource::Open(KVTOOL_TESTDATA "/profiles/page.f16");
  CHECK(std::ranges::equal(page.spools[0]->bytes(), raw->bytes()));
  CHECK(OpenSnapshot(std::move(source), {}).layers.size() == 1);
}

TEST_CASE("a header's word alone takes no memory", "[kvf]") {
  const Bytes frame = Encoded(Page(FrameRole::kKey), Values());
  // The forged header claims 2^40 more tokens and has a valid hash.
  Bytes forged(frame.begin(), frame.begin() + kFrameHeaderBytes);
  StoreLE(&forged[16], uint64_t{kHeads * kDim * 2} << 31);  // raw bytes
  StoreLE(&forged[24], uint64_t{0});
  StoreLE(&forged[112], uint64_t{1} << 31);
  StoreLE(&forged[120], Hash64(ByteSpan(forged).first(120)));
  CHECK(Refusal(forged) != Finding{0});
}

}  // namespace kv::kvf_test
