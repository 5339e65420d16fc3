// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Planes, predictors and RLE against their scalar specifications on every SIMD target.
#include <catch2/catch.hpp>
#include <random>
#include <vector>

#include "lib/core/kernels/planes.h"
#include "lib/core/kernels/predict.h"
#include "lib/core/kernels/reference.h"
#include "lib/core/kernels/rle.h"
#include "tests/support/targets.h"

namespace kv::byte_kernels_test {
namespace {

// Returns lengths of 0 to 4 vectors of 64 bytes, each plus a few, then some arbitrary ones.
std::vector<size_t> Lengths() {
  std::vector<size_t> lengths(4 * 64 + 4);
  for (size_t i = 0; i < lengths.size(); ++i) lengths[i] = i;
  for (const size_t length : {511, 1000, 4096, 4097, 65537}) lengths.push_back(length);
  return lengths;
}

// Returns bytes with runs of equal values, of any length.
Bytes RunnyBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes;
  while (bytes.size() < size) {
    const size_t run = random() % 4 != 0 ? 1 + random() % 5 : 1 + random() % 300;
    bytes.insert(bytes.end(), run, static_cast<std::byte>(random() % 7));
  }
  bytes.resize(size);
  return bytes;
}

Bytes NoisyBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

constexpr std::byte kGuard{0xa5};

// A buffer at a chosen misalignment that detects writes outside its bounds.
struct Guarded {
  Guarded(size_t size, size_t offset) : size_(size), offset_(offset), bytes_(size + 160, kGuard) {}
  std::byte* data() { return bytes_.data() + 64 + offset_; }
  Bytes value() { return {data(), data() + size_}; }
  bool intact() const {
    const auto is_guard = [](std::byte b) { return b == kGuard; };
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(64 + offset_);
    return std::all_of(bytes_.begin(), begin, is_guard) &&
           std::all_of(begin + static_cast<std::ptrdiff_t>(size_), bytes_.end(), is_guard);
  }

 private:
  size_t size_, offset_;
  Bytes bytes_;
};

Guarded Copy(const Bytes& bytes, size_t offset) {
  Guarded copy(bytes.size(), offset);
  std::copy(bytes.begin(), bytes.end(), copy.data());
  return copy;
}

template <size_t kPlanes>
void CheckPlanes(size_t words, size_t offset) {
  const Bytes raw = NoisyBytes(words * kPlanes, static_cast<uint32_t>(words));
  std::vector<Bytes> expected(kPlanes, Bytes(words));
  std::byte* expected_planes[4] = {};
  for (size_t b = 0; b < kPlanes; ++b) expected_planes[b] = expected[b].data();
  ref::SplitPlanes<kPlanes>(raw.data(), words, expected_planes);

  Guarded from = Copy(raw, offset), joined(raw.size(), 3 - offset);
  std::vector<Guarded> planes;
  for (size_t b = 0; b < kPlanes; ++b) planes.emplace_back(words, (offset + b) % 4);
  if constexpr (kPlanes == 2) {
    SplitPlanes2(from.data(), words, planes[0].data(), planes[1].data());
    JoinPlanes2(planes[0].data(), planes[1].data(), words, joined.data());
  } else {
    std::byte* const to[] = {planes[0].data(), planes[1].data(), planes[2].data(),
                             planes[3].data()};
    const std::byte* const back[] = {to[0], to[1], to[2], to[3]};
    SplitPlanes4(from.data(), words, to);
    JoinPlanes4(back, words, joined.data());
  }
  for (size_t b = 0; b < kPlanes; ++b) {
    CHECK(planes[b].value() == expected[b]);
    CHECK(planes[b].intact());
  }
  CHECK(joined.value() == raw);
  CHECK(joined.intact());
}

TEST_CASE("planes are split and joined alike on every target", "[kernels]") {
  test::ForEachTarget([](const std::string& target) {
    for (const size_t words : Lengths()) {
      for (size_t offset = 0; offset < 4; ++offset) {
        INFO(target << ", " << words << " words, offset " << offset);
        CheckPlanes<2>(words, offset);
        CheckPlanes<4>(words, offset);
      }
    }
  });
}

using Transform = void (*)(const std::byte*, size_t, std::byte*) noexcept;
using Reference = void (*)(const std::byte*, size_t, std::byte*, std::byte) noexcept;

void CheckPredictor(Transform encode, Transform decode, Reference reference, const Bytes& bytes,
                    size_t offset) {
  Bytes expected(bytes.size());
  reference(bytes.data(), bytes.size(), expected.data(), std::byte{0});
  Guarded from = Copy(bytes, offset), encoded(bytes.size(), 3 - offset);
  encode(from.data(), bytes.size(), encoded.data());
  CHECK(encoded.value() == expected);
  CHECK(encoded.intact());
  Guarded decoded(bytes.size(), offset);
  decode(encoded.data(), bytes.size(), decoded.data());
  CHECK(decoded.value() == bytes);
  CHECK(decoded.intact());
  decode(encoded.data(), bytes.size(), encoded.data());  // in place
  CHECK(encoded.value() == bytes);
}

TEST_CASE("predictors and their inverses are alike on every target", "[kernels]") {
  test::ForEachTarget([](const std::string& target) {
    for (const size_t size : Lengths()) {
      const Bytes bytes = NoisyBytes(size, static_cast<uint32_t>(size) + 1);
      for (size_t offset = 0; offset < 4; ++offset) {
        INFO(target << ", " << size << " bytes, offset " << offset);
        CheckPredictor(DeltaEncode, DeltaDecode, ref::DeltaEncode, bytes, offset);
        CheckPredictor(XorEncode, XorDecode, ref::XorEncode, bytes, offset);
      }
    }
  });
}

void CheckRle(const Bytes& bytes, size_t offset) {
  Bytes expected(RleBound(bytes.size()));
  expected.resize(ref::RleEncode(bytes.data(), bytes.size(), expected.data()));
  Guarded from = Copy(bytes, offset);
  CHECK(RleEncodedSize(from.data(), bytes.size()) == expected.size());
  Guarded encoded(expected.size(), 3 - offset), decoded(bytes.size(), offset);
  CHECK(RleEncode(from.data(), bytes.size(), encoded.data()) == expected.size());
  CHECK(encoded.value() == expected);
  CHECK(encoded.intact());
  CHECK(RleDecode(encoded.data(), expected.size(), decoded.data(), bytes.size()) == !bytes.empty());
  CHECK((bytes.empty() || decoded.value() == bytes));
  CHECK(decoded.intact());
}

TEST_CASE("RLE streams are alike on every target", "[kernels]") {
  test::ForEachTarget([](const std::string& target) {
    for (const size_t size : Lengths()) {
      for (size_t offset = 0; offset < 4; ++offset) {
        INFO(target << ", " << size << " bytes, offset " << offset);
        CheckRle(RunnyBytes(size, static_cast<uint32_t>(size * 4 + offset)), offset);
        CheckRle(NoisyBytes(size, static_cast<uint32_t>(size)), offset);
        CheckRle(Bytes(size, std::byte{9}), offset);
      }
    }
    for (uint32_t seed = 0; seed < 300; ++seed) CheckRle(RunnyBytes(seed * 7 % 2000, seed), 1);
  });
}

TEST_CASE("the sized and the written RLE stream agree in the specification", "[kernels]") {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Bytes bytes = RunnyBytes(seed * 13 % 3000, seed);
    Bytes out(RleBound(bytes.size()));
    CHECK(ref::RleEncode(bytes.data(), bytes.size(), out.data()) ==
          ref::RleEncodedSize(bytes.data(), bytes.size()));
  }
}

TEST_CASE("RLE payloads that say too much or too little are refused", "[kernels][reject]") {
  Bytes out(300);
  const auto decodes = [&](std::initializer_list<int> payload, size_t size) {
    Bytes bytes;
    for (const int b : payload) bytes.push_back(static_cast<std::byte>(b));
    return RleDecode(bytes.data(), bytes.size(), out.data(), size);
  };
  CHECK(decodes({0x80, 7}, 4));
  CHECK(decodes({0xff, 7, 0, 1}, 132));
  CHECK(decodes({3, 9, 9, 9, 9}, 4));
  CHECK_FALSE(decodes({}, 4));
  CHECK_FALSE(decodes({0, 1}, 0));
  CHECK_FALSE(decodes({0x80}, 4));
  CHECK_FALSE(decodes({4, 1, 2}, 5));
  CHECK_FALSE(decodes({0x80, 7}, 3));
  CHECK_FALSE(decodes({0x80, 7}, 5));
  CHECK_FALSE(decodes({0x80, 7, 0, 1}, 4));
}

}  // namespace
}  // namespace kv::byte_kernels_test
