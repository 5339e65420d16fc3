// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// kvtool.h as an engine sees it: this program links the shared library and nothing else of kvtool.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lib/api/kvtool.h"
#include "tests/api/cases.h"

namespace {

using namespace api_cases;

kvt_piece Piece(void* data, size_t bytes) { return {sizeof(kvt_piece), 0, data, bytes}; }

kvt_item Item(const kvt_desc* desc, const kvt_piece* pieces, size_t count, void* frame,
              size_t bytes) {
  return {sizeof(kvt_item), 1, desc, pieces, count, frame, bytes, 0};
}

Buffer Encode(kvt_ctx* ctx, const kvt_desc& desc, const Buffer& raw) {
  Buffer frame(kvt_encode_bound(raw.size()));
  size_t written = 0;
  REQUIRE(kvt_encode(ctx, &desc, raw.data(), raw.size(), frame.data(), frame.size(), &written) ==
          0);
  frame.resize(written);
  return frame;
}

TEST_CASE("A page is stored and comes back, or is a miss") {
  const Context ctx;
  const Buffer page = Page(256, 1024);
  kvt_desc desc = Desc(256, 8, 128);
  const Buffer frame = Encode(ctx, desc, page);
  CHECK(frame.size() < page.size());

  kvt_info info = {};
  info.struct_size = sizeof info;
  REQUIRE(kvt_frame_info(frame.data(), frame.size(), &info) == 0);
  CHECK(info.raw_bytes == page.size());
  CHECK(info.frame_bytes == frame.size());
  CHECK(info.tokens == 256);
  CHECK(info.dtype == KVT_BF16);
  CHECK(info.level == KVT_DEFAULT);
  CHECK(info.segment_tokens == 256);
  CHECK(std::memcmp(info.context, desc.context, 16) == 0);

  Buffer back(page.size());
  CHECK(kvt_decode(ctx, frame.data(), frame.size(), desc.context, back.data(), back.size()) == 0);
  CHECK(back == page);
  CHECK(kvt_verify(ctx, frame.data(), frame.size(), nullptr) == 0);

  desc.context[0] ^= 1;
  const kvt_status foreign =
      kvt_decode(ctx, frame.data(), frame.size(), desc.context, back.data(), back.size());
  CHECK(foreign == KVT_E_CONTEXT_DIFFERS);
  CHECK(kvt_fault(foreign) == KVT_FAULT_DATA);
  kvt_error error = {};
  error.struct_size = sizeof error;
  kvt_ctx_error(ctx, &error);
  CHECK(error.status == KVT_E_CONTEXT_DIFFERS);
  CHECK(std::string(error.message).find("another context") != std::string::npos);

  Buffer damaged = frame;
  damaged[frame.size() / 2] ^= 4;
  CHECK(kvt_fault(kvt_decode(ctx, damaged.data(), damaged.size(), nullptr, back.data(),
                             back.size())) == KVT_FAULT_DATA);
  kvt_stats stats = {};
  stats.struct_size = sizeof stats;
  kvt_ctx_stats(ctx, &stats);
  CHECK(stats.frames == 1);
  CHECK(stats.decoded == 2);
  CHECK(stats.refused == 2);
  CHECK(stats.raw_bytes == page.size());
  CHECK(stats.stored_bytes == frame.size());
}

TEST_CASE("Some tokens decode without the others") {
  const Context ctx;
  const Buffer page = Page(1000, 1024);
  const kvt_desc desc = Desc(1000, 8, 128);
  const Buffer frame = Encode(ctx, desc, page);
  Buffer some(10 * 2048);
  size_t written = 0;
  REQUIRE(kvt_decode_tokens(ctx, frame.data(), frame.size(), desc.context, 250, 10, some.data(),
                            some.size(), &written) == 0);
  CHECK(written == some.size());
  CHECK(std::memcmp(some.data(), page.data() + 250 * 2048, some.size()) == 0);
  CHECK(kvt_decode_tokens(ctx, frame.data(), frame.size(), nullptr, 995, 10, some.data(),
                          some.size(), &written) == KVT_E_BAD_ARGUMENT);
  CHECK(written == 0);
}

TEST_CASE("Too little room says how much was needed") {
  const Context ctx;
  const Buffer page = Page(64, 64);
  const kvt_desc desc = Desc(64, 1, 64);
  const Buffer frame = Encode(ctx, desc, page);
  Buffer small(frame.size() - 1);
  size_t written = 0;
  const kvt_status status =
      kvt_encode(ctx, &desc, page.data(), page.size(), small.data(), small.size(), &written);
  CHECK(status == KVT_E_OUTPUT_TOO_SMALL);
  CHECK(kvt_fault(status) == KVT_FAULT_CALLER);
  CHECK(written == frame.size());
}

TEST_CASE("A sample tells what a level will make of a page") {
  const Context ctx;
  for (const size_t tokens : {size_t{3}, size_t{64}, size_t{4000}}) {
    const Buffer page = Page(tokens, 1024);
    const kvt_desc desc = Desc(tokens, 8, 128);
    std::vector<kvt_rate> rates;
    for (uint32_t level = KVT_FAST; level <= KVT_HIGH; ++level) {
      rates.push_back({sizeof(kvt_rate), level, 0, 0, 0});
    }
    REQUIRE(kvt_estimate(ctx, &desc, page.data(), page.size(), rates.data(), rates.size()) == 0);
    for (const kvt_rate& rate : rates) {
      const Context own(nullptr, rate.level);
      const double ratio =
          static_cast<double>(page.size()) / static_cast<double>(Encode(own, desc, page).size());
      INFO("level " << rate.level << ", " << tokens << " tokens");
      CHECK(rate.ratio == Approx(ratio).epsilon(tokens < 64 ? 0.01 : 0.05));
      CHECK(rate.encode_mb_s > 0);
      CHECK(rate.decode_mb_s > 0);
    }
    rates[0].level = 0;
    CHECK(kvt_estimate(ctx, &desc, page.data(), page.size(), rates.data(), 1) ==
          KVT_E_BAD_ARGUMENT);
    CHECK(kvt_estimate(ctx, &desc, page.data(), page.size(), nullptr, 1) == KVT_E_BAD_ARGUMENT);
    rates[0] = {8, KVT_FAST, 0, 0, 0};
    CHECK(kvt_estimate(ctx, &desc, page.data(), page.size(), rates.data(), 1) ==
          KVT_E_BAD_ARGUMENT);
  }
  // An empty page, and rows that are longer than a sample.
  kvt_rate rate = {sizeof rate, KVT_DEFAULT, 0, 0, 0};
  CHECK(kvt_estimate(ctx, nullptr, nullptr, 0, &rate, 1) == 0);
  CHECK(rate.ratio == 1);
  const Buffer page = Page(2, 1 << 20);
  const kvt_desc desc = Desc(2, 1 << 13, 128);
  CHECK(kvt_estimate(ctx, &desc, page.data(), page.size(), &rate, 1) == 0);
  CHECK(rate.ratio > 1.2);
}

TEST_CASE("Wrong arguments are KV0010, whatever they are") {
  const Context ctx;
  const Buffer page = Page(64, 64);
  Buffer frame(kvt_encode_bound(page.size()));
  size_t written;
  const auto encode = [&](const kvt_desc& desc) {
    return kvt_encode(ctx, &desc, page.data(), page.size(), frame.data(), frame.size(), &written);
  };
  kvt_desc desc = Desc(64, 1, 64);
  for (const auto& spoil : std::vector<std::function<void(kvt_desc&)>>{
           [](kvt_desc& d) { d.struct_size = 8; }, [](kvt_desc& d) { d.dtype = 77; },
           [](kvt_desc& d) { d.order = 2; }, [](kvt_desc& d) { d.role = 4; },
           [](kvt_desc& d) { d.reserved = 1; }, [](kvt_desc& d) { d.reserved2 = 1; }}) {
    kvt_desc wrong = desc;
    spoil(wrong);
    CHECK(encode(wrong) == KVT_E_BAD_ARGUMENT);
  }
  CHECK(kvt_encode(nullptr, &desc, page.data(), page.size(), frame.data(), frame.size(), nullptr) ==
        KVT_E_BAD_ARGUMENT);
  CHECK(kvt_encode(ctx, &desc, nullptr, 5, frame.data(), frame.size(), nullptr) ==
        KVT_E_BAD_ARGUMENT);
  CHECK(kvt_encode(ctx, &desc, frame.data(), 64, frame.data() + 32, 400, nullptr) ==
        KVT_E_BAD_ARGUMENT);
  CHECK(kvt_frame_info(frame.data(), 128, nullptr) == KVT_E_BAD_ARGUMENT);
  kvt_ctx* other = nullptr;
  const kvt_params level = {sizeof level, 9, 0, nullptr}, size = {4, 0, 0, nullptr};
  CHECK(kvt_ctx_create(&level, &other) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_ctx_create(&size, &other) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_ctx_create(nullptr, nullptr) == KVT_E_BAD_ARGUMENT);
  kvt_ctx_free(nullptr);
  kvt_pool_free(nullptr);
  const Context limited(nullptr, KVT_FAST, 100);
  CHECK(kvt_encode(limited, &desc, page.data(), page.size(), frame.data(), frame.size(), nullptr) ==
        KVT_E_LIMIT);
}

TEST_CASE("A batch's items fail alone") {
  kvt_pool* pool = nullptr;
  REQUIRE(kvt_pool_create(3, &pool) == 0);
  for (const size_t count : {size_t{1}, size_t{2}, size_t{9}}) {
    const Context ctx(pool, KVT_FAST);
    std::vector<Buffer> raw, frames, back;
    std::vector<kvt_desc> descs;
    for (size_t i = 0; i < count; ++i) {
      raw.push_back(Page(32, 512, static_cast<uint32_t>(i)));
      frames.emplace_back(kvt_encode_bound(raw[i].size()));
      back.emplace_back(raw[i].size());
      descs.push_back(Desc(32, 4, 128));
      descs.back().context[1] = static_cast<uint8_t>(i);
    }
    const size_t half = raw[0].size() / 2 - 7;  // an odd size: pieces have no shape
    std::vector<std::array<kvt_piece, 2>> from, to;
    std::vector<kvt_item> items;
    for (size_t i = 0; i < count; ++i) {
      from.push_back(
          {{Piece(raw[i].data(), half), Piece(raw[i].data() + half, raw[i].size() - half)}});
      to.push_back({{Piece(back[i].data(), 5), Piece(back[i].data() + 5, raw[i].size() - 5)}});
    }
    for (size_t i = 0; i < count; ++i) {
      items.push_back(Item(&descs[i], from[i].data(), 2, frames[i].data(), frames[i].size()));
    }
    REQUIRE(kvt_encode_batch(ctx, items.data(), count) == 0);
    for (size_t i = 0; i < count; ++i) {
      CHECK(items[i].status == 0);
      items[i].pieces = to[i].data();
      items[i].frame_bytes = items[i].written;
    }
    frames[count / 2][200] ^= 1;
    const kvt_status status = kvt_decode_batch(ctx, items.data(), count);
    CHECK(status == items[count / 2].status);
    CHECK(kvt_fault(status) == KVT_FAULT_DATA);
    kvt_error error = {};
    error.struct_size = sizeof error;
    kvt_ctx_error(ctx, &error);
    CHECK(error.status == status);
    for (size_t i = 0; i < count; ++i) {
      if (i == count / 2) continue;
      CHECK(items[i].status == 0);
      CHECK(items[i].written == raw[i].size());
      CHECK(back[i] == raw[i]);
    }
    items[count - 1].struct_size -= 8;
    CHECK(kvt_decode_batch(ctx, items.data(), count) == KVT_E_BAD_ARGUMENT);
  }
  kvt_pool_free(pool);
}

TEST_CASE("Items whose buffers overlap are refused, and the others are right") {
  const Context ctx(nullptr, KVT_FAST);
  const std::vector<Buffer> pages = {Page(16, 512, 1), Page(16, 512, 2), Page(16, 512, 3),
                                     Page(16, 512, 4)};
  const size_t bytes = pages[0].size(), room = kvt_encode_bound(bytes);
  Buffer raw, frames(4 * room), back(4 * bytes);
  for (const Buffer& page : pages) raw.insert(raw.end(), page.begin(), page.end());
  std::vector<kvt_piece> pieces;
  std::vector<kvt_item> items;
  const auto set_up = [&](Buffer& object) {
    pieces.clear();
    for (size_t i = 0; i < 8; ++i)  // pieces 2i and 2i + 1 are the outputs of item i
      pieces.push_back(Piece(&object[i * bytes / 2], bytes / 2));
    items.clear();
    for (size_t i = 0; i < 4; ++i)
      items.push_back(Item(nullptr, &pieces[2 * i], 2, &frames[i * room], room));
  };
  const auto statuses = [&](const auto& call) {
    const kvt_status status = call(ctx, items.data(), items.size());
    std::vector<kvt_status> found;
    for (const kvt_item& item : items) found.push_back(item.status);
    const auto first = std::find_if(found.begin(), found.end(), [](kvt_status s) { return s; });
    CHECK(status == (first == found.end() ? 0 : *first));
    return found;
  };
  using Statuses = std::vector<kvt_status>;
  constexpr kvt_status kBad = KVT_E_BAD_ARGUMENT;

  set_up(raw);
  items[2].frame = &frames[room - 1];  // item 2's frame overlaps those of items 0 and 1
  CHECK(statuses(kvt_encode_batch) == Statuses{kBad, kBad, kBad, 0});
  set_up(raw);
  pieces[3] = Piece(&frames[3 * room + 5], 1);  // item 1 reads what item 3 writes
  CHECK(statuses(kvt_encode_batch) == Statuses{0, kBad, 0, kBad});
  set_up(raw);
  pieces[0] = Piece(&frames[0], 64);  // item 0 reads what it writes itself
  CHECK(statuses(kvt_encode_batch) == Statuses{kBad, 0, 0, 0});
  set_up(raw);
  items[0].frame_bytes = SIZE_MAX;  // ends beyond memory
  CHECK(statuses(kvt_encode_batch) == Statuses{kBad, kBad, kBad, kBad});
  set_up(raw);
  pieces[1] = Piece(nullptr, 7);
  items[1].pieces = nullptr;
  items[2].frame = nullptr;
  CHECK(statuses(kvt_encode_batch) == Statuses{kBad, kBad, kBad, 0});

  set_up(raw);
  pieces[6] = pieces[0], pieces[7] = pieces[1];  // inputs may overlap
  REQUIRE(statuses(kvt_encode_batch) == Statuses{0, 0, 0, 0});
  const std::vector<kvt_item> encoded = items;
  const auto set_up_decoding = [&] {
    set_up(back);
    for (size_t i = 0; i < 4; ++i) items[i].frame_bytes = encoded[i].written;
  };
  set_up_decoding();
  items[3].frame = items[0].frame;
  REQUIRE(statuses(kvt_decode_batch) == Statuses{0, 0, 0, 0});
  CHECK(
      std::equal(back.begin(), back.begin() + static_cast<std::ptrdiff_t>(3 * bytes), raw.begin()));
  CHECK(std::equal(raw.begin(), raw.begin() + static_cast<std::ptrdiff_t>(bytes),
                   back.end() - static_cast<std::ptrdiff_t>(bytes)));
  set_up_decoding();
  pieces[2].data = pieces[1].data;  // items 0 and 1 write the same bytes
  CHECK(statuses(kvt_decode_batch) == Statuses{kBad, kBad, 0, 0});
  set_up_decoding();
  pieces[5].data = pieces[4].data;  // item 2 writes the same bytes twice
  CHECK(statuses(kvt_decode_batch) == Statuses{0, 0, kBad, 0});
  set_up_decoding();
  pieces[7].data = &frames[room + 200];  // item 3 writes into item 1's frame
  CHECK(statuses(kvt_decode_batch) == Statuses{0, kBad, 0, kBad});
}

TEST_CASE("A null buffer with a size is refused, whatever the function") {
  const Context ctx;
  const Buffer page = Page(16, 64);
  const kvt_desc desc = Desc(16, 1, 64);
  const Buffer frame = Encode(ctx, desc, page);
  Buffer room(page.size());
  size_t written = 0;
  uint8_t hash[16] = {1};
  CHECK(kvt_hash128(nullptr, 5, hash) == KVT_E_BAD_ARGUMENT);
  CHECK(std::count(hash, hash + 16, 0) == 16);
  CHECK(kvt_hash128(nullptr, 0, hash) == KVT_OK);
  CHECK(std::count(hash, hash + 16, 0) < 16);
  CHECK(kvt_hash128(page.data(), page.size(), nullptr) == KVT_E_BAD_ARGUMENT);

  CHECK(kvt_encode(ctx, &desc, page.data(), page.size(), nullptr, 500, &written) ==
        KVT_E_BAD_ARGUMENT);
  CHECK(kvt_decode(ctx, nullptr, 200, nullptr, room.data(), room.size()) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_decode(ctx, frame.data(), frame.size(), nullptr, nullptr, page.size()) ==
        KVT_E_BAD_ARGUMENT);
  CHECK(kvt_decode(ctx, frame.data(), SIZE_MAX, nullptr, room.data(), room.size()) ==
        KVT_E_BAD_ARGUMENT);
  CHECK(kvt_decode_tokens(ctx, nullptr, 9, nullptr, 0, 1, room.data(), 9, &written) ==
        KVT_E_BAD_ARGUMENT);
  CHECK(kvt_decode_tokens(ctx, frame.data(), frame.size(), nullptr, 0, 1, nullptr, 900, &written) ==
        KVT_E_BAD_ARGUMENT);
  CHECK(kvt_verify(ctx, nullptr, 9, nullptr) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_encode_batch(ctx, nullptr, 3) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_decode_batch(ctx, nullptr, 3) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_frame_profile(nullptr, 200, hash) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_frame_profile(frame.data(), frame.size(), nullptr) == KVT_E_BAD_ARGUMENT);
  kvt_rate rate = {sizeof rate, KVT_FAST, 0, 0, 0};
  CHECK(kvt_estimate(ctx, &desc, nullptr, page.size(), &rate, 1) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_estimate(ctx, &desc, page.data(), page.size(), nullptr, 1) == KVT_E_BAD_ARGUMENT);
  kvt_profile* profile = nullptr;
  CHECK(kvt_profile_open(nullptr, 9, &profile) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_profile_open(page.data(), 9, nullptr) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_profile_hash(nullptr, hash) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_ctx_stats(ctx, nullptr) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_ctx_error(ctx, nullptr) == KVT_E_BAD_ARGUMENT);
  kvt_stats stats = {};
  kvt_error error = {};
  stats.struct_size = error.struct_size = 8;
  CHECK(kvt_ctx_stats(ctx, &stats) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_ctx_error(ctx, &error) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_ctx_cancel(nullptr) == 0);
}

TEST_CASE("A busy context says so, and one that is cancelled stops") {
  const Context ctx(nullptr, KVT_MAX);
  const Buffer page = Page(8000, 1024);
  kvt_desc desc = Desc(8000, 8, 128);
  Buffer frame(kvt_encode_bound(page.size()));
  std::atomic<kvt_status> result{1};
  std::thread encoder([&] {
    result = kvt_encode(ctx, &desc, page.data(), page.size(), frame.data(), frame.size(), nullptr);
  });
  bool was_busy = false;
  while (result == 1 && !was_busy) {
    was_busy = kvt_verify(ctx, frame.data(), 0, nullptr) == KVT_E_BUSY;
    // One request is enough: it either stops the running call or is reported as too late.
    if (was_busy) was_busy = kvt_ctx_cancel(ctx) == 1;
    std::this_thread::yield();
  }
  encoder.join();
  if (was_busy) CHECK(result == KVT_E_CANCELLED);

  // Training on one part reads to the end of the part, and no further.
  const kvt_part part = {sizeof part, 0, &desc, 0, 0, nullptr};
  const void* const values = page.data();
  const size_t size = page.size();
  const kvt_sink sink = {sizeof sink, 0, nullptr,
                         [](void*, const void*, size_t) { return kvt_status{0}; }};
  result = 1;
  std::thread trainer([&] { result = kvt_train(ctx, &part, &values, &size, 1, "model", &sink); });
  was_busy = false;
  while (result == 1 && !was_busy) {
    was_busy = kvt_verify(ctx, frame.data(), 0, nullptr) == KVT_E_BUSY;
    if (was_busy) was_busy = kvt_ctx_cancel(ctx) == 1;
    std::this_thread::yield();
  }
  trainer.join();
  if (was_busy) CHECK(result == KVT_E_CANCELLED);
  CHECK(kvt_ctx_cancel(ctx) == 0);  // no call runs, so the next call is not stopped either
  CHECK(Encode(ctx, Desc(8, 8, 128), Page(8, 1024)).size() > 128);
  CHECK(kvt_fault(KVT_E_CANCELLED) == KVT_FAULT_STOPPED);
}

TEST_CASE("A child after fork has threads of its own") {
  kvt_pool* pool = nullptr;
  REQUIRE(kvt_pool_create(2, &pool) == 0);
  const Context ctx(pool, KVT_FAST);
  const Buffer page = Page(2000, 1024);
  const kvt_desc desc = Desc(2000, 8, 128);
  const Buffer frame = Encode(ctx, desc, page);
  const pid_t child = fork();
  if (child == 0) {
    Buffer back(page.size());
    const kvt_status status =
        kvt_decode(ctx, frame.data(), frame.size(), desc.context, back.data(), back.size());
    _exit(status == 0 && back == page ? 0 : 1);
  }
  int status = 1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(kvt_verify(ctx, frame.data(), frame.size(), nullptr) == 0);
  kvt_pool_free(pool);
}

TEST_CASE("Every status has its texts and its fault") {
  CHECK(std::string(kvt_explain(KVT_E_CHECKSUM, KVT_EXPLAIN_ID)) == "KV1103");
  CHECK(std::string(kvt_explain(KVT_E_CHECKSUM, KVT_EXPLAIN_SENTENCE)) ==
        "a checksum does not match");
  CHECK(std::string(kvt_explain(-1999, 0)) == "KV1999");
  for (int number = -12000; number < 100; ++number) {
    for (int part = 0; part < 3; ++part) CHECK(std::strlen(kvt_explain(number, part)) > 0);
    CHECK((number == 0) == (kvt_fault(number) == KVT_FAULT_NONE));
  }
  CHECK(kvt_fault(KVT_E_UNSUPPORTED_VERSION) == KVT_FAULT_UNSUPPORTED);
  CHECK(kvt_fault(KVT_E_INTERNAL) == KVT_FAULT_INTERNAL);
  // Retrying cannot help: the caller must pass the missing file.
  CHECK(kvt_fault(KVT_E_PROFILE_MISSING) == KVT_FAULT_CALLER);
  CHECK(kvt_fault(KVT_E_REFERENCE_MISSING) == KVT_FAULT_CALLER);
  CHECK(kvt_version() == KVT_VERSION);
  CHECK(std::strstr(kvt_build(), "kvtool 0.2.0, SIMD ") == kvt_build());
}

// Returns the contents of a test data file.
Buffer FindFile(const std::string& name) {
  std::ifstream in(std::string(KVTOOL_TESTDATA) + "/" + name, std::ios::binary);
  return Buffer(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

TEST_CASE("a context codes pages with a profile, and decodes them with it alone", "[api]") {
  const Buffer file = FindFile("profiles/s260k.kvp");
  kvt_profile* profile = nullptr;
  REQUIRE(kvt_profile_open(file.data(), file.size(), &profile) == 0);
  uint8_t hash[16] = {}, named[16] = {};
  kvt_profile_hash(profile, hash);
  CHECK(std::equal(hash, hash + 16, file.end() - 16));

  // Returns a page of layer 1's K with the distribution that the profile learnt.
  const Buffer page = FindFile("profiles/page.f16");
  kvt_desc desc = Desc(page.size() / 64, 4, 8);
  desc.dtype = KVT_F16;
  Context plain, with;
  REQUIRE(kvt_ctx_use_profile(with, profile) == 0);
  kvt_profile_free(profile);  // the context keeps its own copy
  Buffer frame(kvt_encode_bound(page.size())), other(frame.size()), back(page.size());
  size_t written = 0, without = 0;
  REQUIRE(kvt_encode(with, &desc, page.data(), page.size(), frame.data(), frame.size(), &written) ==
          0);
  REQUIRE(kvt_encode(plain, &desc, page.data(), page.size(), other.data(), other.size(),
                     &without) == 0);
  CHECK(written < without);
  REQUIRE(kvt_frame_profile(frame.data(), written, named) == 0);
  CHECK(std::equal(named, named + 16, hash));
  REQUIRE(kvt_frame_profile(other.data(), without, named) == 0);
  CHECK(std::count(named, named + 16, 0) == 16);

  CHECK(kvt_decode(plain, frame.data(), written, nullptr, back.data(), back.size()) ==
        KVT_E_PROFILE_MISSING);
  CHECK(kvt_verify(plain, frame.data(), written, nullptr) == KVT_E_PROFILE_MISSING);
  kvt_error error = {};
  error.struct_size = sizeof error;
  REQUIRE(kvt_ctx_error(plain, &error) == 0);
  CHECK(std::string(error.hint).find("kvt_ctx_use_profile") != std::string::npos);

  // Estimates predict what the context would encode.
  const auto ratio = [&](kvt_ctx* ctx) {
    kvt_rate rate = {sizeof rate, KVT_DEFAULT, 0, 0, 0};
    CHECK(kvt_estimate(ctx, &desc, page.data(), page.size(), &rate, 1) == 0);
    return rate.ratio;
  };
  const auto raw = static_cast<double>(page.size());
  CHECK(ratio(plain) == Approx(raw / static_cast<double>(without)).epsilon(0.01));
  CHECK(ratio(with) == Approx(raw / static_cast<double>(written)).epsilon(0.01));
  REQUIRE(kvt_ctx_use_blocks(with, 1) == 0);
  CHECK(ratio(with) < ratio(plain));
  REQUIRE(kvt_ctx_use_blocks(with, 0) == 0);
  REQUIRE(kvt_decode(with, frame.data(), written, nullptr, back.data(), back.size()) == 0);
  CHECK(back == page);
  REQUIRE(kvt_decode(with, other.data(), without, nullptr, back.data(), back.size()) == 0);
  CHECK(back == page);
  const kvt_piece piece = Piece(back.data(), back.size());
  kvt_item item = {};
  item.struct_size = sizeof item;
  item.pieces = &piece;
  item.piece_count = 1;
  item.frame = frame.data();
  item.frame_bytes = written;
  REQUIRE(kvt_decode_batch(with, &item, 1) == 0);
  CHECK(back == page);
  REQUIRE(kvt_ctx_use_profile(with, nullptr) == 0);
  CHECK(kvt_decode_batch(with, &item, 1) == KVT_E_PROFILE_MISSING);
}

TEST_CASE("a profile is learnt from values in memory, as the program learns it", "[api]") {
  // The page and its copy, as another cache of the model.
  const Buffer page = FindFile("profiles/page.f16");
  kvt_desc desc = Desc(page.size() / 64, 4, 8);
  desc.dtype = KVT_F16;
  desc.role = KVT_K;
  kvt_desc other = desc;
  other.order = KVT_HEAD_TOKEN_DIM;
  const kvt_part parts[2] = {{sizeof(kvt_part), 1, &desc, 0, 0, nullptr},
                             {sizeof(kvt_part), 1, &other, 0, 0, nullptr}};
  const void* values[2] = {page.data(), page.data()};
  size_t sizes[2] = {page.size(), page.size()};
  Buffer file;
  const kvt_sink sink = {sizeof sink, 0, &file, [](void* user, const void* src, size_t n) {
                           const auto* bytes = static_cast<const char*>(src);
                           auto& to = *static_cast<Buffer*>(user);
                           to.insert(to.end(), bytes, bytes + n);
                           return kvt_status{0};
                         }};
  Context ctx;
  REQUIRE(kvt_train(ctx, parts, values, sizes, 2, "page", &sink) == 0);
  kvt_profile* profile = nullptr;
  REQUIRE(kvt_profile_open(file.data(), file.size(), &profile) == 0);
  REQUIRE(kvt_ctx_use_profile(ctx, profile) == 0);
  kvt_profile_free(profile);
  Buffer frame(kvt_encode_bound(page.size()));
  size_t written = 0;
  REQUIRE(kvt_encode(ctx, &desc, page.data(), page.size(), frame.data(), frame.size(), &written) ==
          0);
  CHECK(written < page.size() * 9 / 10);

  sizes[1] -= 2;
  CHECK(kvt_train(ctx, parts, values, sizes, 2, "page", &sink) == KVT_E_BAD_ARGUMENT);
  sizes[1] += 2;
  other.heads = 2;
  other.tokens *= 2;
  CHECK(kvt_train(ctx, parts, values, sizes, 2, "page", &sink) == KVT_E_INCONSISTENT);
  desc.dtype = other.dtype = KVT_BF16;
  other.tokens /= 2;
  other.heads = 4;
  CHECK(kvt_train(ctx, parts, values, sizes, 2, std::string(256, 'x').c_str(), &sink) ==
        KVT_E_BAD_ARGUMENT);
  desc.dtype = KVT_F32;
  desc.tokens /= 2;
  CHECK(kvt_train(ctx, parts, values, sizes, 1, nullptr, &sink) == KVT_E_UNSUPPORTED_DTYPE);
  desc.role = KVT_KV;
  CHECK(kvt_train(ctx, parts, values, sizes, 1, nullptr, &sink) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_train(ctx, nullptr, values, sizes, 1, nullptr, &sink) == KVT_E_BAD_ARGUMENT);
}

TEST_CASE("what is no profile is refused", "[api][reject]") {
  Buffer file = FindFile("profiles/s260k.kvp");
  kvt_profile* profile = nullptr;
  CHECK(kvt_profile_open(file.data(), file.size(), nullptr) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_profile_open(file.data(), file.size() - 1, &profile) == KVT_E_TRUNCATED);
  CHECK(kvt_profile_open(file.data() + 1, file.size() - 1, &profile) == KVT_E_BAD_MAGIC);
  file[200] ^= 1;
  CHECK(kvt_profile_open(file.data(), file.size(), &profile) == KVT_E_CHECKSUM);
  CHECK(profile == nullptr);
  CHECK(kvt_frame_profile(file.data(), file.size(), nullptr) == KVT_E_BAD_ARGUMENT);
}

}  // namespace
