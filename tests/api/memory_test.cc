// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Checks what a context allocates, with a malloc that counts. A separate program, which links only
// the shared library.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <random>
#include <vector>

#include "lib/api/kvtool.h"

extern "C" {
void* __libc_malloc(size_t);            // NOLINT: the C library's own, under glibc's names
void* __libc_calloc(size_t, size_t);    // NOLINT
void* __libc_realloc(void*, size_t);    // NOLINT
void* __libc_memalign(size_t, size_t);  // NOLINT
void __libc_free(void*);                // NOLINT
}

namespace {

thread_local int64_t calls_of_thread = 0;

struct Counts {
  std::atomic<int64_t> calls{0}, live{0}, peak{0}, largest{0};

  void* Add(void* p) {
    const auto size = static_cast<int64_t>(malloc_usable_size(p));
    ++calls;
    ++calls_of_thread;
    const int64_t now = live += size;
    for (int64_t old = peak; old < now && !peak.compare_exchange_weak(old, now);) {
    }
    for (int64_t old = largest; old < size && !largest.compare_exchange_weak(old, size);) {
    }
    return p;
  }
  void Remove(void* p) {
    if (p != nullptr) live -= static_cast<int64_t>(malloc_usable_size(p));
  }
} counts;

}  // namespace

extern "C" {
void* malloc(size_t size) { return counts.Add(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) { return counts.Add(__libc_calloc(count, size)); }
void* realloc(void* p, size_t size) {
  counts.Remove(p);
  return counts.Add(__libc_realloc(p, size));
}
void* memalign(size_t align, size_t size) { return counts.Add(__libc_memalign(align, size)); }
void* aligned_alloc(size_t align, size_t size) { return memalign(align, size); }
int posix_memalign(void** out, size_t align, size_t size) {
  *out = memalign(align, size);
  return 0;
}
void free(void* p) {
  counts.Remove(p);
  __libc_free(p);
}
}

namespace {

using Buffer = std::vector<uint8_t>;

struct Content {
  kvt_desc desc = {};
  Buffer raw;
};

// Returns channels with similar neighbouring rows, so that codecs of every level have something to
// do.
Content Make(uint8_t dtype, uint64_t tokens, uint32_t heads, uint32_t dim) {
  Content content;
  content.desc.struct_size = sizeof content.desc;
  content.desc.dtype = dtype;
  content.desc.heads = heads;
  content.desc.head_dim = dim;
  content.desc.tokens = tokens;
  const size_t channels = size_t{heads} * dim, bytes = dtype == KVT_F32 ? 4 : 2;
  content.raw.resize(tokens * channels * bytes);
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> state(channels);
  for (size_t i = 0; i < tokens * channels; ++i) {
    float& x = state[i % channels];
    x = 0.9f * x + normal(random);
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits &= 0xffffe000;  // clears the low bits, as if widened from fewer bits
    std::memcpy(&content.raw[bytes * i], reinterpret_cast<const uint8_t*>(&bits) + 4 - bytes,
                bytes);
  }
  return content;
}

struct Context {
  Context(uint32_t level, uint64_t most, kvt_pool* pool = nullptr)
      : params{sizeof params, level, most, pool} {
    REQUIRE(kvt_ctx_create(&params, &ctx) == 0);
  }
  ~Context() { kvt_ctx_free(ctx); }
  kvt_params params;
  kvt_ctx* ctx = nullptr;
};

size_t Encode(kvt_ctx* ctx, const Content& content, Buffer& frame) {
  size_t written = 0;
  const kvt_status status = kvt_encode(ctx, &content.desc, content.raw.data(), content.raw.size(),
                                       frame.data(), frame.size(), &written);
  REQUIRE(status == 0);
  return written;
}

// The data also has repeated rows, repeated parts of rows, or cannot be compressed.
enum class Kind { kAlike, kRepeated, kShared, kNoise };
Content Vary(Content content, Kind kind) {
  std::mt19937 random(11);
  const size_t row = content.raw.size() / content.desc.tokens;
  const auto copy = [&](size_t to, size_t from, size_t count) {
    std::memcpy(&content.raw[to], &content.raw[from], count);
  };
  for (size_t t = 8; t < content.desc.tokens; t += 2) {
    if (kind == Kind::kRepeated) copy(row * t, row * (random() % t), row);
    if (kind == Kind::kShared) copy(row * t + 64, row * (t / 2) + 64, row / 2);
  }
  if (kind == Kind::kNoise) {
    for (uint8_t& byte : content.raw) byte = static_cast<uint8_t>(random());
  }
  return content;
}

// Encodes and decodes until the buffers stop growing, then checks that another call of each
// allocates little.
void CheckSteady(uint32_t level, const Content& content) {
  constexpr int64_t kSmall = 16 << 10, kZstdTables = 1 << 20;
  Buffer frame(kvt_encode_bound(content.raw.size())), back(content.raw.size());
  const Context context(level, 0);
  size_t size = 0;
  for (int call = 0; call < 2; ++call) {
    size = Encode(context.ctx, content, frame);
    REQUIRE(kvt_decode(context.ctx, frame.data(), size, nullptr, back.data(), back.size()) == 0);
  }
  const int64_t live = counts.live;
  counts.largest = counts.calls = 0;
  Encode(context.ctx, content, frame);
  // zstd replaces tables that were too large in many calls, and at KVT_MAX allocates them again.
  CHECK(counts.largest < (level == KVT_MAX ? kZstdTables : kSmall));
  const auto segments = static_cast<int64_t>(1 + content.raw.size() / (256 << 10));
  if (level == KVT_FAST && content.desc.role != KVT_KV) CHECK(counts.calls <= 4 * segments + 4);
  counts.largest = 0;
  REQUIRE(kvt_decode(context.ctx, frame.data(), size, nullptr, back.data(), back.size()) == 0);
  CHECK(counts.largest < kSmall);
  CHECK(back == content.raw);
  CHECK(counts.live <= live + live / 8);
}

TEST_CASE("Once buffers have grown, calls allocate little, as kvtool.h says") {
  for (const uint32_t level : {KVT_FAST, KVT_DEFAULT, KVT_HIGH, KVT_MAX}) {
    for (const uint8_t dtype : {KVT_BF16, KVT_F16, KVT_F32}) {
      for (const uint64_t tokens : {uint64_t{48}, uint64_t{800}}) {
        for (const Kind kind : {Kind::kAlike, Kind::kRepeated, Kind::kShared, Kind::kNoise}) {
          if (level == KVT_MAX && tokens > 48 && (kind != Kind::kRepeated || dtype == KVT_F32)) {
            continue;  // slow
          }
          INFO("level " << level << ", dtype " << int{dtype} << ", tokens " << tokens << ", kind "
                        << static_cast<int>(kind));
          Content content = Vary(Make(dtype, tokens, 8, 64), kind);
          CheckSteady(level, content);
          content.desc.role = KVT_KV;
          if (kind == Kind::kAlike) CheckSteady(level, content);
        }
      }
    }
  }
}

TEST_CASE("Decoding a page of bf16 in steady state allocates nothing") {
  for (const uint32_t level : {KVT_DEFAULT, KVT_HIGH}) {
    const Content content = Make(KVT_BF16, 48, 8, 64);
    const Context context(level, 0);
    Buffer frame(kvt_encode_bound(content.raw.size())), back(content.raw.size());
    const size_t size = Encode(context.ctx, content, frame);
    for (int call = 0; call < 3; ++call) {
      counts.calls = 0;
      REQUIRE(kvt_decode(context.ctx, frame.data(), size, nullptr, back.data(), back.size()) == 0);
    }
    CHECK(counts.calls == 0);
  }
}

// The pages of a batch, each with its frame.
struct Pages {
  explicit Pages(const Content& page) : content(page), frames(8 * kvt_encode_bound(kBytes)) {
    for (size_t i = 0; i < 8; ++i) {
      pieces.push_back({sizeof(kvt_piece), 0, content.raw.data(), kBytes});
      back.emplace_back(kBytes);
      back_pieces.push_back({sizeof(kvt_piece), 0, back[i].data(), kBytes});
    }
    for (size_t i = 0; i < 8; ++i) {
      const size_t room = kvt_encode_bound(kBytes);
      stores.push_back(
          {sizeof(kvt_item), 0, &content.desc, &pieces[i], 1, &frames[i * room], room, 0});
    }
  }
  kvt_batch Encoding() {
    return {sizeof(kvt_batch), KVT_ENCODE_ITEMS, stores.data(), stores.size(), nullptr, nullptr};
  }
  kvt_batch Decoding() {
    loads = stores;
    for (size_t i = 0; i < loads.size(); ++i) {
      loads[i].pieces = &back_pieces[i];
      loads[i].frame_bytes = stores[i].written;
    }
    return {sizeof(kvt_batch), KVT_DECODE_ITEMS, loads.data(), loads.size(), nullptr, nullptr};
  }
  static constexpr size_t kBytes = 16 << 10;
  Content content;
  Buffer frames;
  std::vector<Buffer> back;
  std::vector<kvt_piece> pieces, back_pieces;
  std::vector<kvt_item> stores, loads;
};

int64_t CountThreads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// Submits a batch and takes its completion, by its ticket or by polling. Returns how many
// allocations this thread made.
int64_t PassThrough(kvt_queue* queue, const kvt_batch& batch, bool polls) {
  kvt_completion done = {};
  done.struct_size = sizeof done;
  uint64_t ticket = 0;
  size_t count = 0;
  const int64_t before = calls_of_thread;
  kvt_status status = kvt_queue_submit(queue, &batch, &ticket);
  while (polls && status == 0 && count == 0) status = kvt_queue_poll(queue, &done, 1, &count);
  if (!polls && status == 0) status = kvt_queue_wait(queue, ticket, UINT64_MAX, &done);
  const int64_t calls = calls_of_thread - before;
  REQUIRE(status == 0);
  REQUIRE(done.status == 0);
  return calls;
}

TEST_CASE("Who submits to a queue allocates nothing and starts no thread, at every level") {
  constexpr int64_t kSmall = 16 << 10, kZstdTables = 1 << 20;
  for (const uint32_t level : {KVT_FAST, KVT_DEFAULT, KVT_HIGH, KVT_MAX}) {
    for (const uint8_t dtype : {KVT_BF16, KVT_F32}) {
      INFO("level " << level << ", dtype " << int{dtype});
      Pages pages(Make(dtype, dtype == KVT_F32 ? 8 : 16, 8, 64));
      const Context context(level, 0);
      const kvt_queue_params params = {sizeof params, 1, 4, 0};
      kvt_queue* queue = nullptr;
      REQUIRE(kvt_queue_create(context.ctx, &params, &queue) == 0);
      const int64_t threads = CountThreads();
      for (int round = 0; round < 8; ++round) {
        if (round == 6) counts.largest = 0;
        CHECK(PassThrough(queue, pages.Encoding(), round % 2 == 0) == 0);
        CHECK(PassThrough(queue, pages.Decoding(), round % 2 == 1) == 0);
      }
      // The queue's thread allocates as little as a context does.
      CHECK(counts.largest < (level == KVT_MAX ? kZstdTables : kSmall));
      CHECK(CountThreads() == threads);
      for (const Buffer& back : pages.back) CHECK(back == pages.content.raw);
      kvt_queue_free(queue);
    }
  }
}

TEST_CASE("A context never takes more memory than it says beforehand") {
  kvt_pool* pool = nullptr;
  REQUIRE(kvt_pool_create(3, &pool) == 0);
  for (const uint32_t level : {KVT_FAST, KVT_DEFAULT, KVT_HIGH, KVT_MAX}) {
    for (const uint8_t dtype : {KVT_BF16, KVT_F32}) {
      // Small pages, many segments, and rows of 2 MiB.
      for (const auto& [tokens, dim] : {std::pair{16u, 128u}, {1024u, 128u}, {3u, 131072u}}) {
        if (level == KVT_MAX && tokens > 16 && dtype == KVT_F32) continue;  // slow
        const Content content = Make(dtype, tokens, 8, dim);
        const uint64_t bytes = content.raw.size();
        Buffer frame(kvt_encode_bound(bytes)), second(frame.size()), back(bytes);
        for (kvt_pool* threads : {static_cast<kvt_pool*>(nullptr), pool}) {
          const int64_t before = counts.live;
          counts.peak = before;
          const Context context(level, bytes, threads);
          const size_t size = Encode(context.ctx, content, frame);
          CHECK(kvt_decode(context.ctx, frame.data(), size, nullptr, back.data(), bytes) == 0);
          CHECK(kvt_verify(context.ctx, frame.data(), size, nullptr) == 0);
          auto* data = const_cast<uint8_t*>(content.raw.data());
          constexpr uint32_t kPiece = sizeof(kvt_piece), kItem = sizeof(kvt_item);
          const kvt_piece pieces[] = {{kPiece, 0, data, 3}, {kPiece, 0, data + 3, bytes - 3}};
          kvt_item items[] = {{kItem, 0, &content.desc, pieces, 2, frame.data(), frame.size(), 0},
                              {kItem, 0, &content.desc, pieces, 2, second.data(), second.size(), 0},
                              {kItem, 0, &content.desc, pieces, 2, back.data(), back.size(), 0}};
          CHECK(kvt_encode_batch(context.ctx, items, 3) == 0);
          const auto taken = static_cast<uint64_t>(counts.peak - before);
          const uint64_t bound = kvt_ctx_bytes(&context.params);
          INFO("level " << level << ", " << bytes << " raw bytes, bound " << bound << ", taken "
                        << taken);
          CHECK(taken <= bound);
          // A bound of 40 times or more would be useless.
          if (bytes > 1 << 20) CHECK(bound < 40 * taken);
        }
      }
    }
  }
  kvt_pool_free(pool);
  const kvt_params unlimited = {sizeof unlimited, 0, 0, nullptr}, wrong = {4, 0, 9, nullptr},
                   huge = {sizeof huge, 0, UINT64_MAX, nullptr};
  CHECK(kvt_ctx_bytes(&unlimited) == 0);
  CHECK(kvt_ctx_bytes(&wrong) == 0);
  CHECK(kvt_ctx_bytes(&huge) == 0);
  CHECK(kvt_ctx_bytes(nullptr) == 0);
}

}  // namespace
