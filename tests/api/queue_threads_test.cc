// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Queues through kvtool.h: with the shared library as engines have it, and once more under TSan.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lib/api/kvtool.h"

namespace {

using Bytes8 = std::vector<uint8_t>;
constexpr uint64_t kForEver = UINT64_MAX;

Bytes8 MakePage(size_t bytes, uint32_t seed) {
  Bytes8 page(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    seed = seed * 1664525 + 1013904223;
    page[i] = i % 2 == 0 ? static_cast<uint8_t>(seed >> 24) : uint8_t{0x3f};
  }
  return page;
}

struct Queue {
  explicit Queue(uint32_t threads, uint32_t depth = 0, uint32_t level = KVT_FAST,
                 uint64_t limit = 0) {
    const kvt_params of_context = {sizeof of_context, level, limit, nullptr};
    const kvt_queue_params params = {sizeof params, threads, depth, 0};
    kvt_ctx* ctx = nullptr;
    REQUIRE(kvt_ctx_create(&of_context, &ctx) == KVT_OK);
    REQUIRE(kvt_queue_create(ctx, &params, &queue) == KVT_OK);
    kvt_ctx_free(ctx);  // the queue no longer needs the context
  }
  ~Queue() { kvt_queue_free(queue); }
  operator kvt_queue*() const { return queue; }
  kvt_queue* queue = nullptr;
};

// Pages of one size, their frames and their decoded bytes, as items of two batches.
struct Pages {
  Pages(size_t count, size_t bytes, uint32_t seed = 1)
      : raw(MakePage(count * bytes, seed)),
        back(raw.size()),
        frames(count * kvt_encode_bound(bytes)) {
    for (Bytes8* object : {&raw, &back})
      for (size_t i = 0; i < count; ++i)
        pieces.push_back({sizeof(kvt_piece), 0, object->data() + i * bytes, bytes});
    const size_t room = kvt_encode_bound(bytes);
    for (size_t i = 0; i < count; ++i) {
      stores.push_back({sizeof(kvt_item), 1, nullptr, &pieces[i], 1, &frames[i * room], room, 0});
      loads.push_back(stores.back());
      loads.back().pieces = &pieces[count + i];
    }
  }
  Pages(const Pages&) = delete;
  kvt_batch Encoding(void* user = nullptr) {
    return {sizeof(kvt_batch), KVT_ENCODE_ITEMS, stores.data(), stores.size(), nullptr, user};
  }
  kvt_batch Decoding() {
    for (size_t i = 0; i < loads.size(); ++i) loads[i].frame_bytes = stores[i].written;
    return {sizeof(kvt_batch), KVT_DECODE_ITEMS, loads.data(), loads.size(), nullptr, nullptr};
  }
  Bytes8 raw, back, frames;
  std::vector<kvt_piece> pieces;
  std::vector<kvt_item> stores, loads;
};

uint64_t Submit(kvt_queue* queue, const kvt_batch& batch) {
  uint64_t ticket = 0;
  REQUIRE(kvt_queue_submit(queue, &batch, &ticket) == KVT_OK);
  REQUIRE(ticket != 0);
  return ticket;
}

kvt_completion Await(kvt_queue* queue, uint64_t ticket) {
  kvt_completion done = {};
  done.struct_size = sizeof done;
  REQUIRE(kvt_queue_wait(queue, ticket, kForEver, &done) == KVT_OK);
  CHECK(done.ticket == ticket);
  return done;
}

bool IsReadable(int descriptor, int milliseconds) {
  pollfd one = {descriptor, POLLIN, 0};
  return ::poll(&one, 1, milliseconds) == 1;
}

// Collects finished tickets, at most `cap` at a time.
std::vector<kvt_completion> Poll(kvt_queue* queue, size_t cap = 16) {
  std::vector<kvt_completion> done(cap);
  size_t count = 0;
  if (cap > 0) done[0].struct_size = sizeof(kvt_completion);
  REQUIRE(kvt_queue_poll(queue, done.data(), cap, &count) == KVT_OK);
  done.resize(count);
  return done;
}

}  // namespace

TEST_CASE("A queue codes what a context codes, for every number of threads") {
  for (const uint32_t threads : {1u, 3u}) {
    const Queue queue(threads);
    Pages pages(17, 8192);
    int user = 0;
    const kvt_completion stored = Await(queue, Submit(queue, pages.Encoding(&user)));
    CHECK(stored.status == KVT_OK);
    CHECK(stored.user == &user);
    CHECK(stored.failed == UINT64_MAX);
    CHECK(std::string(stored.message).empty());
    kvt_ctx* ctx = nullptr;
    const kvt_params params = {sizeof params, KVT_FAST, 0, nullptr};
    REQUIRE(kvt_ctx_create(&params, &ctx) == KVT_OK);
    Pages same(17, 8192);
    CHECK(kvt_encode_batch(ctx, same.stores.data(), same.stores.size()) == KVT_OK);
    CHECK((same.frames == pages.frames));
    kvt_ctx_free(ctx);
    CHECK(Await(queue, Submit(queue, pages.Decoding())).status == KVT_OK);
    CHECK((pages.back == pages.raw));
    kvt_stats stats = {};
    stats.struct_size = sizeof stats;
    REQUIRE(kvt_queue_stats(queue, &stats) == KVT_OK);
    CHECK(stats.frames == 17);
    CHECK(stats.decoded == 17);
  }
}

TEST_CASE("A queue codes the pages of a table") {
  const Queue queue(2);
  constexpr size_t kPages = 6, kBytes = 4096;
  const Bytes8 before = MakePage(kPages * kBytes, 5);
  Bytes8 pages = before, data(pages.size());
  kvt_desc desc = {};
  desc.struct_size = sizeof desc;
  desc.dtype = KVT_U8;
  std::vector<kvt_entry> entries(kPages);
  for (kvt_entry& entry : entries) entry.struct_size = sizeof entry;
  const kvt_table table = {sizeof table, 0,       &desc,  pages.data(), kPages, kBytes,
                           kBytes,       nullptr, kPages, data.data(),  kBytes, entries.data()};
  kvt_batch batch = {sizeof batch, KVT_ENCODE_TABLE, nullptr, 0, &table, nullptr};
  REQUIRE(Await(queue, Submit(queue, batch)).status == KVT_OK);
  std::fill(pages.begin(), pages.end(), uint8_t{0});
  batch.operation = KVT_DECODE_TABLE;
  REQUIRE(Await(queue, Submit(queue, batch)).status == KVT_OK);
  CHECK((pages == before));
  ++entries[4].raw_hash;
  const kvt_completion done = Await(queue, Submit(queue, batch));
  CHECK(done.status == KVT_E_CHECKSUM);
  CHECK(done.failed == 4);
  CHECK(entries[4].status == KVT_E_CHECKSUM);
  CHECK(entries[5].status == KVT_OK);
}

TEST_CASE("Completions say which item failed first, and why") {
  const Queue queue(3);
  Pages pages(9, 2048);
  REQUIRE(Await(queue, Submit(queue, pages.Encoding())).status == KVT_OK);
  for (const size_t item : {6, 3}) *static_cast<uint8_t*>(pages.stores[item].frame) ^= 1;
  const kvt_completion done = Await(queue, Submit(queue, pages.Decoding()));
  CHECK(done.status == KVT_E_BAD_MAGIC);
  CHECK(done.failed == 3);
  CHECK(std::string(done.message).size() > 5);
  for (size_t i = 0; i < 9; ++i)
    CHECK(pages.loads[i].status == (i == 3 || i == 6 ? KVT_E_BAD_MAGIC : KVT_OK));
  // If a batch is refused as a whole, no item is named.
  pages.loads[5].struct_size = 8;
  const kvt_completion refused = Await(queue, Submit(queue, pages.Decoding()));
  CHECK(refused.status == KVT_E_BAD_ARGUMENT);
  CHECK(refused.failed == UINT64_MAX);
  const kvt_batch empty = {sizeof empty, KVT_DECODE_ITEMS, nullptr, 0, nullptr, nullptr};
  CHECK(Await(queue, Submit(queue, empty)).status == KVT_OK);
  const Queue limited(1, 1, KVT_FAST, 1024);
  CHECK(Await(limited, Submit(limited, pages.Encoding())).status == KVT_E_LIMIT);
}

TEST_CASE("A queue takes as many tickets as it is deep, until completions are taken") {
  const Queue queue(2, 3);
  Pages pages(1, 512);
  std::vector<std::unique_ptr<Pages>> own;
  std::set<uint64_t> tickets;
  for (int i = 0; i < 3; ++i) {
    own.push_back(std::make_unique<Pages>(2, 512));
    tickets.insert(Submit(queue, own.back()->Encoding()));
  }
  uint64_t ticket = 0;
  const kvt_batch more = pages.Encoding();
  CHECK(kvt_queue_submit(queue, &more, &ticket) == KVT_E_BUSY);
  const int descriptor = kvt_queue_fd(queue);
  CHECK(kvt_queue_fd(queue) == descriptor);
  while (!tickets.empty()) {
    REQUIRE(IsReadable(descriptor, -1));
    for (const kvt_completion& done : Poll(queue, 1)) {
      CHECK(done.struct_size == sizeof done);
      CHECK(tickets.erase(done.ticket) == 1);
    }
  }
  CHECK(Poll(queue).empty());
  CHECK_FALSE(IsReadable(descriptor, 0));
  ticket = Submit(queue, more);
  CHECK(IsReadable(descriptor, -1));
  CHECK(Poll(queue, 0).empty());  // Poll(0) takes no ticket, so the descriptor stays readable
  CHECK(IsReadable(descriptor, -1));
  CHECK(Await(queue, ticket).status == KVT_OK);
}

TEST_CASE("Tickets that are not outstanding are refused") {
  const Queue queue(1, 2);
  Pages pages(1, 512);
  kvt_completion done = {};
  done.struct_size = sizeof done;
  const uint64_t ticket = Submit(queue, pages.Encoding());
  kvt_status status = KVT_E_BUSY;
  while (status == KVT_E_BUSY) status = kvt_queue_wait(queue, ticket, 0, &done);
  CHECK(status == KVT_OK);
  for (const uint64_t other :
       {ticket, ticket + 1, ticket + 2, uint64_t{0}, uint64_t{1}, kForEver}) {
    CHECK(kvt_queue_wait(queue, other, kForEver, &done) == KVT_E_BAD_ARGUMENT);
    CHECK(kvt_queue_cancel(queue, other) == 0);
  }
}

TEST_CASE("A ticket is cancelled or done, and says which") {
  const Queue queue(2);
  Pages large(8, 1 << 20);
  int accepted = 0;
  for (int i = 0; i < 20; ++i) {
    const uint64_t ticket = Submit(queue, large.Encoding());
    if (i % 3 == 0) std::this_thread::yield();
    const int answer = kvt_queue_cancel(queue, ticket);
    const kvt_completion done = Await(queue, ticket);
    CHECK(done.status == (answer == 1 ? KVT_E_CANCELLED : KVT_OK));
    for (const kvt_item& item : large.stores) {
      CHECK((item.status == KVT_OK || item.status == KVT_E_CANCELLED));
    }
    accepted += answer;
  }
  CHECK(accepted > 0);
  Pages small(1, 512);  // shows that the queue still works
  CHECK(Await(queue, Submit(queue, small.Encoding())).status == KVT_OK);
}

TEST_CASE("A queue that is freed touches no batch afterwards") {
  std::vector<std::unique_ptr<Pages>> own;
  {
    const Queue queue(2, 16);
    for (uint32_t i = 0; i < 16; ++i) {
      own.push_back(std::make_unique<Pages>(4, 256 << 10, i));
      Submit(queue, own.back()->Encoding());
    }
  }
  for (const auto& pages : own) {
    // Status 1: the batch was cancelled before it began.
    for (const kvt_item& item : pages->stores) {
      CHECK((item.status == KVT_OK || item.status == KVT_E_CANCELLED || item.status == 1));
    }
  }
}

TEST_CASE("Many threads share a queue, by tickets of their own and by polling") {
  const Queue queue(3, 8);
  constexpr int kThreads = 6, kTurns = 40;
  std::atomic<int> wrong{0}, polled{0};
  const auto submits = [&](int number) {
    Pages pages(1 + static_cast<size_t>(number) % 3, 4096, static_cast<uint32_t>(number));
    for (int turn = 0; turn < kTurns; ++turn) {
      for (const bool decodes : {false, true}) {
        const kvt_batch batch = decodes ? pages.Decoding() : pages.Encoding();
        uint64_t ticket = 0;
        kvt_status status;
        while ((status = kvt_queue_submit(queue, &batch, &ticket)) == KVT_E_BUSY)
          std::this_thread::yield();
        kvt_completion done = {};
        done.struct_size = sizeof done;
        if (status == KVT_OK) status = kvt_queue_wait(queue, ticket, kForEver, &done);
        if (status != KVT_OK || done.status != KVT_OK || done.ticket != ticket) ++wrong;
      }
      if (pages.back != pages.raw) ++wrong;
      std::fill(pages.back.begin(), pages.back.end(), uint8_t{0});
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(submits, i);
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  CHECK(wrong == 0);

  // Now no thread waits: two poll for the batches that four submit.
  const auto hands_over = [&](int number) {
    std::vector<std::unique_ptr<Pages>> all;
    for (int turn = 0; turn < kTurns; ++turn) {
      all.push_back(std::make_unique<Pages>(2, 1024, static_cast<uint32_t>(number + turn)));
      const kvt_batch batch = all.back()->Encoding();
      uint64_t ticket = 0;
      while (kvt_queue_submit(queue, &batch, &ticket) == KVT_E_BUSY) std::this_thread::yield();
    }
    while (polled < 4 * kTurns) std::this_thread::yield();  // until then the batches must live
  };
  const auto polls = [&] {
    const int descriptor = kvt_queue_fd(queue);
    while (polled < 4 * kTurns) {
      if (!IsReadable(descriptor, 10)) continue;
      kvt_completion done[3] = {};
      done[0].struct_size = sizeof done[0];
      size_t count = 0;
      if (kvt_queue_poll(queue, done, 3, &count) != KVT_OK) ++wrong;
      for (size_t i = 0; i < count; ++i)
        if (done[i].status != KVT_OK) ++wrong;
      polled += static_cast<int>(count);
    }
  };
  for (int i = 0; i < 4; ++i) threads.emplace_back(hands_over, i);
  for (int i = 0; i < 2; ++i) threads.emplace_back(polls);
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(polled == 4 * kTurns);
}
