// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/api/structs.h"

#include <catch2/catch.hpp>
#include <vector>

// A struct with three versions: 16, 24 and 32 bytes.
struct Grown {
  uint32_t struct_size, number;
  uint64_t first;
  uint64_t second;
  uint64_t third;
};

namespace kv::api {

template <>
inline constexpr size_t kFirstSize<Grown> = offsetof(Grown, second);

TEST_CASE("Structs of every version are accepted, and of no other size") {
  for (uint32_t size = 0; size <= 40; ++size) {
    const bool known = size == 16 || size == 24 || size == 32;
    CHECK(IsKnownSize<Grown>(size) == known);
    const Grown given = {size, 7, 1, 2, 3};
    if (!known) {
      CHECK_THROWS_AS(Whole(&given, "given"), Error);
      continue;
    }
    const Grown whole = Whole(&given, "given");
    CHECK(whole.struct_size == sizeof(Grown));
    CHECK(whole.number == 7);
    CHECK(whole.first == 1);
    CHECK(whole.second == (size >= 24 ? 2 : 0));  // fields that an older struct lacks read as zero
    CHECK(whole.third == (size >= 32 ? 3 : 0));
  }
  CHECK_THROWS_AS(Whole<Grown>(nullptr, "given"), Error);
}

TEST_CASE("Nothing beyond the caller's struct is written") {
  for (const uint32_t size : {16u, 24u, 32u}) {
    Grown to = {size, 9, 9, 9, 9};
    Fill(&to, Grown{0, 1, 1, 1, 1});
    CHECK(to.struct_size == size);
    CHECK(to.first == 1);
    CHECK(to.second == (size >= 24 ? 1 : 9));
    CHECK(to.third == (size >= 32 ? 1 : 9));
  }
}

TEST_CASE("The elements of an older caller's array lie as far apart as it says") {
  std::vector<uint64_t> memory = {
      16, 10, 16, 11, 16, 12};  // struct_size 16 with number 0 in its upper half, then a value
  auto* first = reinterpret_cast<Grown*>(memory.data());
  const Elements<Grown> all(first, 3, "array");
  all.RequireEqualSizes("array");
  CHECK(all.bytes() == 48);
  for (size_t i = 0; i < 3; ++i) {
    Grown element = all[i];
    CHECK(element.first == 10 + i);
    CHECK(element.second == 0);
    element.first = 20 + i;
    all.Put(i, element);
    CHECK(memory[2 * i] == 16);
    CHECK(memory[2 * i + 1] == 20 + i);
  }
  memory[4] = 24;
  CHECK_THROWS_AS(GivenElements(first, 3, "array"), Error);
  CHECK_THROWS_AS(Elements<Grown>(first, SIZE_MAX / 16, "array"), Error);
  CHECK_THROWS_AS(Elements<Grown>(nullptr, 1, "array"), Error);
  CHECK(Elements<Grown>(nullptr, 0, "array").size() == 0);
}

}  // namespace kv::api
