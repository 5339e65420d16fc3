// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The rules at the top of kvtool.h, over every function that they concern.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lib/api/kvtool.hpp"
#include "tests/api/sizes.h"

namespace {

using Buffer = std::vector<std::byte>;

Buffer Page(size_t bytes) {
  Buffer page(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    page[i] = i % 2 == 0 ? static_cast<std::byte>(i * 2654435761u >> 24) : std::byte{0x3f};
  }
  return page;
}

kvt_status Take(void*, const void*, size_t) { return KVT_OK; }

struct Memory {
  Buffer bytes;
  kvt_source Source() {
    return {sizeof(kvt_source), 0, bytes.size(), this,
            [](void* user, uint64_t offset, void* dst, size_t n) {
              std::memcpy(dst, static_cast<Memory*>(user)->bytes.data() + offset, n);
              return kvt_status{KVT_OK};
            }};
  }
};

TEST_CASE("Every struct has its size, and wrong ones are KV0010 from every function") {
  kvtool::Context context(KVT_FAST);
  kvt_ctx* const ctx = context.get();
  const Buffer page = Page(16 * 512);
  const kvt_desc desc = kvtool::Describe(KVT_BF16, 16, 4, 64);
  const Buffer frame = context.Encode(desc, page);
  Buffer room(kvt_encode_bound(page.size()));

  TrySizes<kvt_params>({sizeof(kvt_params), 0, 0, nullptr}, [](kvt_params* params) {
    kvt_ctx* made = nullptr;
    const kvt_status status = kvt_ctx_create(params, &made);
    CHECK((kvt_ctx_bytes(params) == 0));
    kvt_ctx_free(made);
    return status;
  });
  TrySizes<kvt_desc>(desc, [&](kvt_desc* given) {
    return kvt_encode(ctx, given, page.data(), page.size(), room.data(), room.size(), nullptr);
  });
  TrySizes<kvt_info>(
      {}, [&](kvt_info* info) { return kvt_frame_info(frame.data(), frame.size(), info); },
      {88, 96});  // 88: version 0.2.0
  TrySizes<kvt_stats>({}, [&](kvt_stats* stats) { return kvt_ctx_stats(ctx, stats); });
  TrySizes<kvt_error>({}, [&](kvt_error* error) { return kvt_ctx_error(ctx, error); });
  TrySizes<kvt_segment>({}, [&](kvt_segment* segment) {
    size_t count = 0;
    return kvt_frame_segments(frame.data(), frame.size(), segment, 1, &count);
  });
  TrySizes<kvt_rate>({sizeof(kvt_rate), KVT_FAST, 0, 0, 0}, [&](kvt_rate* rate) {
    return kvt_estimate(ctx, &desc, page.data(), page.size(), rate, 1);
  });
  const kvt_piece piece = {sizeof piece, 0, const_cast<std::byte*>(page.data()), page.size()};
  kvt_item item = {sizeof item, 0, &desc, &piece, 1, room.data(), room.size(), 0};
  TrySizes<kvt_item>(item, [&](kvt_item* items) { return kvt_encode_batch(ctx, items, 1); });
  TrySizes<kvt_piece>(piece, [&](kvt_piece* pieces) {
    item.pieces = pieces;
    return kvt_encode_batch(ctx, &item, 1);
  });

  kvt_queue* queue = nullptr;
  TrySizes<kvt_queue_params>({sizeof(kvt_queue_params), 1, 0, 0}, [&](kvt_queue_params* params) {
    kvt_queue_free(std::exchange(queue, nullptr));
    return kvt_queue_create(ctx, params, &queue);
  });
  const kvt_queue_params one_thread = {sizeof one_thread, 1, 0, 0};
  REQUIRE(kvt_queue_create(ctx, &one_thread, &queue) == KVT_OK);
  const kvt_batch nothing = {sizeof nothing, KVT_ENCODE_ITEMS, nullptr, 0, nullptr, nullptr};
  uint64_t ticket = 0;
  TrySizes<kvt_batch>(nothing,
                      [&](kvt_batch* batch) { return kvt_queue_submit(queue, batch, &ticket); });
  TrySizes<kvt_completion>({}, [&](kvt_completion* done) {
    const kvt_status status = kvt_queue_wait(queue, ticket, UINT64_MAX, done);
    if (status == KVT_OK) REQUIRE(kvt_queue_submit(queue, &nothing, &ticket) == KVT_OK);
    return status;
  });
  TrySizes<kvt_completion>({}, [&](kvt_completion* done) {
    size_t count = 0;
    return kvt_queue_poll(queue, done, 1, &count);
  });
  kvt_queue_free(queue);

  Memory memory{page};
  const kvt_source source = memory.Source();
  const kvt_sink sink = {sizeof sink, 0, nullptr, Take};
  const kvt_file file = {sizeof file, 0, "a", &source};
  TrySizes<kvt_source>(source, [&](kvt_source* given) {
    const kvt_file one = {sizeof one, 0, "a", given};
    return kvt_pack(ctx, &one, 1, &sink);
  });
  TrySizes<kvt_sink>(sink, [&](kvt_sink* given) { return kvt_pack(ctx, &file, 1, given); });
  TrySizes<kvt_file>(file, [&](kvt_file* given) { return kvt_pack(ctx, given, 1, &sink); });

  kvt_desc of_part = desc;
  of_part.role = KVT_K;
  TrySizes<kvt_part>(kvtool::Part(0, of_part), [&](kvt_part* part) {
    kvt_writer* writer = nullptr;
    const kvt_status status = kvt_writer_create(ctx, part, 1, &sink, &writer);
    kvt_writer_free(writer);
    return status;
  });
  Memory archive;
  kvtool::Writer writer(context, std::vector{kvtool::Part(0, of_part)}, [&](kvtool::Bytes bytes) {
    archive.bytes.insert(archive.bytes.end(), bytes.begin(), bytes.end());
  });
  writer.Add(0, page);
  writer.Finish();
  const kvt_source of_archive = archive.Source();
  kvt_reader* reader = nullptr;
  REQUIRE(kvt_reader_open(ctx, &of_archive, &reader, nullptr) == KVT_OK);
  TrySizes<kvt_part>({}, [&](kvt_part* part) { return kvt_reader_part(reader, 0, part, nullptr); });
  kvt_part part = {sizeof part, 0, nullptr, 0, 0, nullptr};
  TrySizes<kvt_desc>({}, [&](kvt_desc* out) { return kvt_reader_part(reader, 0, &part, out); });
  std::byte byte{};
  CHECK(kvt_reader_read(reader, 0, 0, 0, nullptr, 5, nullptr) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_reader_read(reader, 0, 0, 0, nullptr, 0, nullptr) == KVT_OK);
  CHECK(kvt_reader_read(reader, 0, 0, 1, &byte, 1, nullptr) == KVT_E_OUTPUT_TOO_SMALL);
  kvt_need need = {sizeof need, 0, 0, 0, nullptr, nullptr};
  // The archive's list of needs is empty.
  CHECK(kvt_reader_need(reader, 0, &need) == KVT_E_BAD_ARGUMENT);
  kvt_reader_free(reader);
}

TEST_CASE("The C++ header has the functions for engines that keep pages themselves") {
  kvtool::Context context(KVT_FAST);
  Buffer page = Page(16 * 512);
  const kvt_desc desc = kvtool::Describe(KVT_BF16, 16, 4, 64);
  context.UseBlocks(true);
  Buffer frame(kvt_encode_bound(page.size())), part(page.size() / 4);
  size_t written = 0;
  REQUIRE(context.TryEncodeWithin(desc, page, frame, written) == KVT_OK);
  frame.resize(written);
  CHECK(kvtool::Blocks(frame).size() == 2);
  CHECK(context.DecodeHeads(frame, {}, 3, 1, part) == part.size());
  CHECK(std::equal(part.begin(), part.begin() + 128, page.begin() + 3 * 128));
  kvt_entry entry = {};
  entry.struct_size = sizeof entry;
  Buffer room(page.size());
  const Buffer before = page;
  const kvt_table table = {sizeof table, 0,       &desc, page.data(), 1,           page.size(),
                           page.size(),  nullptr, 1,     room.data(), room.size(), &entry};
  REQUIRE(context.EncodeTable(table) == KVT_OK);
  std::fill(page.begin(), page.end(), std::byte{0});
  REQUIRE(context.DecodeTable(table) == KVT_OK);
  CHECK((page == before));
}

TEST_CASE("The C++ header has queues") {
  kvtool::Queue queue(kvtool::Context(KVT_FAST), 1, 1);
  const Buffer page = Page(4096);
  Buffer room(kvt_encode_bound(page.size()));
  const kvt_piece piece = {sizeof piece, 0, const_cast<std::byte*>(page.data()), page.size()};
  kvt_item item = {sizeof item, 0, nullptr, &piece, 1, room.data(), room.size(), 0};
  const kvt_batch batch = {0, KVT_ENCODE_ITEMS, &item, 1, nullptr, nullptr};
  uint64_t ticket = 0, other = 0;
  REQUIRE(queue.TrySubmit(batch, ticket) == KVT_OK);
  CHECK(queue.TrySubmit(batch, other) == KVT_E_BUSY);
  kvt_completion done = {};
  REQUIRE(queue.Wait(ticket, done));
  CHECK(done.status == KVT_OK);
  CHECK(item.written < page.size());
  CHECK_THROWS_AS(queue.Wait(ticket, done), kvtool::Error);
  CHECK_FALSE(queue.Cancel(ticket));
  CHECK(queue.descriptor() >= 0);
  CHECK(queue.Poll({&done, 1}) == 0);
}

TEST_CASE("Misuse of a queue is KV0010, and nothing else happens") {
  kvtool::Context context(KVT_FAST);
  kvt_queue* queue = nullptr;
  constexpr uint32_t kSize = sizeof(kvt_queue_params);
  for (const kvt_queue_params& wrong :
       {kvt_queue_params{kSize, 1025, 0, 0}, kvt_queue_params{kSize, 0, 1025, 0},
        kvt_queue_params{kSize, 1, 1, 1}}) {
    CHECK(kvt_queue_create(context.get(), &wrong, &queue) == KVT_E_BAD_ARGUMENT);
  }
  CHECK(kvt_queue_create(nullptr, nullptr, &queue) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_queue_create(context.get(), nullptr, nullptr) == KVT_E_BAD_ARGUMENT);
  REQUIRE(queue == nullptr);
  REQUIRE(kvt_queue_create(context.get(), nullptr, &queue) == KVT_OK);
  uint64_t ticket = 0;
  kvt_batch batch = {sizeof batch, KVT_ENCODE_ITEMS, nullptr, 0, nullptr, nullptr};
  CHECK(kvt_queue_submit(nullptr, &batch, &ticket) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_queue_submit(queue, nullptr, &ticket) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_queue_submit(queue, &batch, nullptr) == KVT_E_BAD_ARGUMENT);
  batch.count = 1;  // a count of 1 without items
  CHECK(kvt_queue_submit(queue, &batch, &ticket) == KVT_E_BAD_ARGUMENT);
  for (const uint32_t operation : {0, 3, 4, 5}) {  // 3 and 4 are not defined
    batch.operation = operation;
    CHECK(kvt_queue_submit(queue, &batch, &ticket) == KVT_E_BAD_ARGUMENT);
  }
  CHECK(ticket == 0);
  kvt_completion done = {};
  size_t count = 5;
  done.struct_size = sizeof done;
  CHECK(kvt_queue_poll(nullptr, &done, 1, &count) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_queue_poll(queue, &done, 1, nullptr) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_queue_poll(queue, nullptr, 1, &count) == KVT_E_BAD_ARGUMENT);
  CHECK(count == 0);
  CHECK(kvt_queue_wait(nullptr, 1, 0, &done) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_queue_wait(queue, 1, 0, nullptr) == KVT_E_BAD_ARGUMENT);
  CHECK(kvt_queue_cancel(nullptr, 1) == 0);
  CHECK(kvt_queue_fd(nullptr) == -1);
  kvt_stats stats = {};
  stats.struct_size = sizeof stats;
  CHECK(kvt_queue_stats(nullptr, &stats) == KVT_E_BAD_ARGUMENT);
  kvt_queue_free(nullptr);
  kvt_queue_free(queue);
}

TEST_CASE("A child after fork cannot use its parent's queue, and does not hang") {
  kvtool::Context context(KVT_FAST);
  kvt_queue* queue = nullptr;
  REQUIRE(kvt_queue_create(context.get(), nullptr, &queue) == KVT_OK);
  const kvt_batch batch = {sizeof batch, KVT_ENCODE_ITEMS, nullptr, 0, nullptr, nullptr};
  uint64_t ticket = 0;
  REQUIRE(kvt_queue_submit(queue, &batch, &ticket) == KVT_OK);
  const pid_t child = fork();
  kvt_completion done = {};
  done.struct_size = sizeof done;
  if (child == 0) {
    const bool refused = kvt_queue_submit(queue, &batch, &ticket) == KVT_E_BAD_ARGUMENT &&
                         kvt_queue_wait(queue, ticket, UINT64_MAX, &done) == KVT_E_BAD_ARGUMENT;
    kvt_queue_free(queue);
    _exit(refused ? 0 : 1);
  }
  int status = 1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(kvt_queue_wait(queue, ticket, UINT64_MAX, &done) == KVT_OK);
  kvt_queue_free(queue);
}

TEST_CASE("Elements of one array have one size") {
  kvtool::Context context(KVT_FAST);
  const Buffer page = Page(1024);
  std::vector<Buffer> rooms(2, Buffer(kvt_encode_bound(page.size())));
  const kvt_piece piece = {sizeof piece, 0, const_cast<std::byte*>(page.data()), page.size()};
  std::vector<kvt_item> items;
  for (Buffer& room : rooms)
    items.push_back({sizeof(kvt_item), 0, nullptr, &piece, 1, room.data(), room.size(), 0});
  CHECK(context.EncodeBatch(items) == KVT_OK);
  items[1].struct_size = 0;
  CHECK(context.EncodeBatch(items) == KVT_E_BAD_ARGUMENT);
  CHECK(context.EncodeBatch({}) == KVT_OK);
  std::vector<kvt_rate> rates(2, kvt_rate{sizeof(kvt_rate), KVT_FAST, 0, 0, 0});
  rates[1].struct_size = 8;
  CHECK(kvt_estimate(context.get(), nullptr, page.data(), page.size(), rates.data(), 2) ==
        KVT_E_BAD_ARGUMENT);
}

TEST_CASE("A batch writes neither its items nor their lists") {
  kvtool::Context context(KVT_FAST);
  const Buffer page = Page(4096);
  const Buffer frame = context.Encode(kvtool::Describe(KVT_U8, 4096, 1, 1), page);
  Buffer back(page.size()), other(page.size());
  std::vector<kvt_piece> pieces(2 * 200, kvt_piece{sizeof(kvt_piece), 0, nullptr, 0});
  std::vector<kvt_item> items(2);
  const auto decode = [&](std::byte* first) {
    pieces[0].data = first;
    pieces[200].data = other.data();
    pieces[0].bytes = pieces[200].bytes = page.size();
    for (size_t i = 0; i < 2; ++i) {
      items[i] = {sizeof(kvt_item), 0,   nullptr,
                  &pieces[200 * i], 200, const_cast<std::byte*>(frame.data()),
                  frame.size(),     0};
    }
    const kvt_status status = context.DecodeBatch(items);
    return std::pair(status, items[1].status);
  };
  CHECK(decode(back.data()) == std::pair(kvt_status{KVT_OK}, kvt_status{KVT_OK}));
  CHECK(back == page);
  // The first item's output overlaps the second item's list of pieces, and the items themselves.
  CHECK(decode(reinterpret_cast<std::byte*>(&pieces[201])) ==
        std::pair(kvt_status{KVT_E_BAD_ARGUMENT}, kvt_status{KVT_E_BAD_ARGUMENT}));
  CHECK(decode(reinterpret_cast<std::byte*>(items.data())).first == KVT_E_BAD_ARGUMENT);
  CHECK(items[1].status == KVT_OK);
}

TEST_CASE("An item whose frame needs more room says how much") {
  kvtool::Context context(KVT_FAST);
  const Buffer page = Page(8192);
  const Buffer frame = context.Encode(kvtool::Describe(KVT_U8, 8192, 1, 1), page);
  Buffer room(frame.size() - 1);
  const kvt_desc desc = kvtool::Describe(KVT_U8, 8192, 1, 1);
  const kvt_piece piece = {sizeof piece, 0, const_cast<std::byte*>(page.data()), page.size()};
  kvt_item item = {sizeof item, 0, &desc, &piece, 1, room.data(), room.size(), 0};
  CHECK(context.EncodeBatch({&item, 1}) == KVT_E_OUTPUT_TOO_SMALL);
  CHECK(item.written == frame.size());
}

TEST_CASE("The segments of a frame tile it and its raw bytes") {
  for (const uint64_t tokens : {1, 64, 5000}) {
    kvtool::Context context(KVT_FAST);
    const Buffer page = Page(tokens * 512);
    const Buffer frame = context.Encode(kvtool::Describe(KVT_BF16, tokens, 4, 64), page);
    const std::vector<kvt_segment> segments = kvtool::Segments(frame);
    const kvt_info info = kvtool::Info(frame);
    CHECK(info.segments == segments.size());
    CHECK((segments.size() > 1) == (info.codec == KVT_CODEC_SEVERAL));
    uint64_t raw = 0, at = segments[0].offset;
    CHECK(at == KVT_FRAME_HEADER_BYTES + (segments.size() > 1 ? 16 * segments.size() : 0));
    for (const kvt_segment& segment : segments) {
      CHECK(segment.struct_size == sizeof segment);
      CHECK(segment.offset == at);
      CHECK(segment.raw_offset == raw);
      CHECK((segment.kind == KVT_SEGMENT_RAW) == (segment.codec == KVT_CODEC_RAW));
      CHECK(segment.kind != KVT_SEGMENT_PROFILED);
      CHECK(std::string(kvt_codec_name(segment.codec)) != "unknown");
      if (segment.kind == KVT_SEGMENT_RAW) {
        CHECK(std::equal(page.begin() + static_cast<std::ptrdiff_t>(raw),
                         page.begin() + static_cast<std::ptrdiff_t>(raw + segment.raw_bytes),
                         frame.begin() + static_cast<std::ptrdiff_t>(at)));
      }
      at += segment.bytes;
      raw += segment.raw_bytes;
    }
    CHECK(at == frame.size());
    CHECK(raw == page.size());

    size_t count = 7;
    kvt_segment one = {};
    one.struct_size = sizeof one;
    CHECK(kvt_frame_segments(frame.data(), frame.size() - 1, nullptr, 0, &count) ==
          KVT_E_TRUNCATED);
    CHECK(count == 0);
    CHECK(kvt_frame_segments(frame.data(), frame.size(), nullptr, 0, nullptr) ==
          KVT_E_BAD_ARGUMENT);
    CHECK(kvt_frame_segments(frame.data(), frame.size(), nullptr, 1, &count) == KVT_E_BAD_ARGUMENT);
    CHECK(kvt_frame_segments(frame.data(), frame.size(), &one, 0, &count) ==
          KVT_E_OUTPUT_TOO_SMALL);
    CHECK(count == segments.size());
    CHECK(kvt_frame_segments(page.data(), page.size(), nullptr, 0, &count) ==
          (page.size() >= KVT_FRAME_HEADER_BYTES ? KVT_E_BAD_MAGIC : KVT_E_TRUNCATED));
  }
}

TEST_CASE("A frame that does not shrink has one segment of its raw bytes") {
  kvtool::Context context(KVT_DEFAULT);
  Buffer noise(300);
  for (size_t i = 0; i < noise.size(); ++i)
    noise[i] = static_cast<std::byte>((i + 1) * (i + 977) * 2654435761u >> 11);
  const Buffer frame = context.Encode(kvtool::Describe(KVT_U8, 300, 1, 1), noise);
  const std::vector<kvt_segment> segments = kvtool::Segments(frame);
  REQUIRE(segments.size() == 1);
  CHECK(segments[0].kind == KVT_SEGMENT_RAW);
  CHECK(segments[0].bytes == noise.size());
  CHECK(std::string(kvt_codec_name(KVT_CODEC_RAW)) == "raw");
  CHECK(std::string(kvt_codec_name(KVT_CODEC_SEVERAL)) == "several");
  for (const uint32_t codec : {200u, 256u, UINT32_MAX})
    CHECK(std::string(kvt_codec_name(codec)) == "unknown");
}

TEST_CASE("The macro of the bound is the function") {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{1} << 20, SIZE_MAX - 129, SIZE_MAX - 128,
                             SIZE_MAX - 127, SIZE_MAX}) {
    CHECK(KVT_ENCODE_BOUND(bytes) == kvt_encode_bound(bytes));
  }
}

TEST_CASE("Every element type of the header encodes, and no other number") {
  kvtool::Context context(KVT_FAST);
  Buffer room(kvt_encode_bound(64));
  const Buffer page = Page(64);
  for (unsigned dtype = 0; dtype < 256; ++dtype) {
    kvt_desc desc = kvtool::Describe(static_cast<uint8_t>(dtype), 1, 1, 1);
    CHECK(kvt_encode(context.get(), &desc, page.data(), page.size(), room.data(), room.size(),
                     nullptr) == (dtype <= KVT_IQ4_NL ? KVT_OK : KVT_E_BAD_ARGUMENT));
  }
  CHECK(*kvt_explain(KVT_E_CHECKSUM, KVT_EXPLAIN_PAGE + 1) == '\0');
  CHECK(*kvt_explain(KVT_E_CHECKSUM, -1) == '\0');
}

TEST_CASE("A request that was accepted ends the call, and one that was not says so") {
  const Buffer page = Page(6 << 20);
  kvtool::Context context(KVT_FAST);
  const kvt_desc desc = kvtool::Describe(KVT_BF16, page.size() / 512, 4, 64);
  Buffer room(kvt_encode_bound(page.size()));
  CHECK_FALSE(context.Cancel());  // no call runs
  std::atomic<bool> done = false, start = false;
  std::atomic<int> accepted = 0;
  constexpr int kCalls = 40;
  int stopped = 0, wrong = 0;
  std::thread asks([&] {
    while (!done) {
      if (start.exchange(false)) accepted += context.Cancel();
      std::this_thread::yield();
    }
  });
  for (int i = 0; i < kCalls; ++i) {
    const int before = accepted;
    start = true;
    const kvt_status status = kvt_encode(context.get(), &desc, page.data(), page.size(),
                                         room.data(), room.size(), nullptr);
    while (start) std::this_thread::yield();
    // The request may arrive after the call has ended: then it is refused.
    if (status == KVT_E_CANCELLED) ++stopped;
    if (status != KVT_E_CANCELLED && status != KVT_OK) ++wrong;
    if (status == KVT_E_CANCELLED && accepted == before) std::this_thread::yield();
  }
  done = true;
  asks.join();
  CHECK(wrong == 0);
  CHECK(accepted == stopped);  // each accepted cancel request stopped one call
}

}  // namespace
