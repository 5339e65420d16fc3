// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/arena.h"

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <numeric>

namespace kv::arena_test {
namespace {

bool IsAligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

ArenaVector<uint32_t> Numbers(Arena* arena, size_t count) {
  ArenaVector<uint32_t> numbers(count, arena);
  std::iota(numbers.begin(), numbers.end(), 0u);
  return numbers;
}

}  // namespace

TEST_CASE("an arena hands out the same memory to every piece of work", "[arena]") {
  Arena arena;
  const void* first = nullptr;
  for (int piece = 0; piece < 3; ++piece) {
    const Arena::Scope scope(&arena);
    // Uses several blocks at first, and a single one after that.
    const auto small = Numbers(&arena, 100), large = Numbers(&arena, 1 << 20);
    CHECK(IsAligned(small.data()));
    CHECK(IsAligned(large.data()));
    CHECK(small == Numbers(nullptr, 100));
    CHECK(large == Numbers(nullptr, 1 << 20));
    if (piece == 1) first = small.data();
    if (piece == 2) CHECK(small.data() == first);
  }
}

TEST_CASE("memory of an inner scope is taken back, that of the outer one stays", "[arena]") {
  Arena arena;
  const Arena::Scope outer(&arena);
  const auto kept = Numbers(&arena, 1000);
  const uint32_t* inside = nullptr;
  for (int turn = 0; turn < 2; ++turn) {
    const Arena::Scope inner(&arena);
    const auto numbers = Numbers(&arena, 5000);
    if (inside != nullptr) CHECK(numbers.data() == inside);
    inside = numbers.data();
  }
  CHECK(kept == Numbers(nullptr, 1000));
}

TEST_CASE("what was taken last is taken back at once", "[arena]") {
  Arena arena;
  const Arena::Scope scope(&arena);
  const uint32_t* first = nullptr;
  {
    const auto numbers = Numbers(&arena, 10);
    first = numbers.data();
  }
  const auto again = Numbers(&arena, 12);
  CHECK(again.data() == first);
  CHECK(Numbers(&arena, 12) == again);
}

TEST_CASE("without a scope or an arena, memory is the heap's", "[arena]") {
  Arena arena;
  ArenaVector<uint32_t> outside = Numbers(&arena, 3000);
  {
    const Arena::Scope scope(&arena);
    const auto inside = Numbers(&arena, 3000);
    CHECK(inside == outside);
    outside.assign(1, 7);  // memory returns to its own arena, whichever is in scope
  }
  outside.push_back(8);
  CHECK(outside == ArenaVector<uint32_t>({7, 8}));
  ArenaVector<uint32_t> copy = Numbers(nullptr, 2);
  copy = outside;
  CHECK(copy.get_allocator().arena() == &arena);
}

}  // namespace kv::arena_test
