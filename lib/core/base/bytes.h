// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/error.h"
#include "lib/core/base/utf8.h"

namespace kv {

using ByteSpan = std::span<const std::byte>;
using Bytes = std::vector<std::byte>;

inline ByteSpan AsBytes(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view AsText(ByteSpan bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Reads one little-endian value at any alignment; the caller has checked the range.
template <typename T>
T LoadLE(const void* from) {
  static_assert(std::is_arithmetic_v<T>);
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;  // hosts are little-endian, which bytes.cc checks
}

template <typename T>
void StoreLE(void* to, T value) {
  static_assert(std::is_arithmetic_v<T>);
  std::memcpy(to, &value, sizeof(T));
}

// A bounded little-endian cursor over untrusted bytes. Every read names its field; running past the
// end throws kTruncated with field, offset, bytes needed and bytes left. Offsets in messages are
// relative to the start of the file; `base` is the offset of the span in it.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes, uint64_t base = 0) : bytes_(bytes), base_(base) {}

  template <typename T>
  T Read(std::string_view field) {
    const T value = LoadLE<T>(Need(sizeof(T), field));
    position_ += sizeof(T);
    return value;
  }
  uint8_t U8(std::string_view field) { return Read<uint8_t>(field); }
  uint16_t U16(std::string_view field) { return Read<uint16_t>(field); }
  uint32_t U32(std::string_view field) { return Read<uint32_t>(field); }
  uint64_t U64(std::string_view field) { return Read<uint64_t>(field); }
  int32_t I32(std::string_view field) { return Read<int32_t>(field); }
  int64_t I64(std::string_view field) { return Read<int64_t>(field); }
  float F32(std::string_view field) { return Read<float>(field); }

  // Returns the next `count` bytes without copying them.
  ByteSpan Take(uint64_t count, std::string_view field) {
    const std::byte* begin = Need(count, field);
    position_ += count;
    return {begin, static_cast<size_t>(count)};
  }
  // Returns `count` items of `item_bytes` each; the product is checked for overflow.
  ByteSpan TakeArray(uint64_t count, uint64_t item_bytes, std::string_view field);
  std::string_view Text(uint64_t count, std::string_view field) {
    return AsText(Take(count, field));
  }
  void Skip(uint64_t count, std::string_view field) { Take(count, field); }
  // Throws kTrailingBytes unless everything was read.
  void ExpectEnd(std::string_view what) const;

  ByteSpan rest() const { return bytes_.subspan(position_); }
  uint64_t remaining() const { return bytes_.size() - position_; }
  uint64_t offset() const { return base_ + position_; }  // in the file
  bool at_end() const { return remaining() == 0; }

 private:
  const std::byte* Need(uint64_t count, std::string_view field) const {
    if (count > remaining()) FailShort(count, field);
    return bytes_.data() + position_;
  }
  [[noreturn]] void FailShort(uint64_t count, std::string_view field) const;

  ByteSpan bytes_;
  uint64_t base_;
  uint64_t position_ = 0;
};

// Appends little-endian values to a growing buffer.
class ByteWriter {
 public:
  ByteWriter() = default;
  // Appends to existing bytes.
  explicit ByteWriter(Bytes&& begun) : bytes_(std::move(begun)) {}

  template <typename T>
  void Write(T value) {
    std::byte raw[sizeof(T)];
    StoreLE(raw, value);
    Append(ByteSpan(raw));
  }
  void U8(uint8_t value) { Write(value); }
  void U16(uint16_t value) { Write(value); }
  void U32(uint32_t value) { Write(value); }
  void U64(uint64_t value) { Write(value); }
  void I32(int32_t value) { Write(value); }
  void Append(ByteSpan bytes);
  void Append(std::string_view text) { Append(AsBytes(text)); }
  void Pad(uint64_t count, std::byte value = std::byte{0});

  uint64_t size() const { return bytes_.size(); }
  std::byte* data() { return bytes_.data(); }
  ByteSpan bytes() const { return bytes_; }
  Bytes Release() { return std::move(bytes_); }

 private:
  Bytes bytes_;
};

std::string Hex(ByteSpan bytes);  // "00ff"

// Checked sums and products for sizes that come from a file. They throw kOverflow, naming `what`.
inline uint64_t CheckedAdd(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) {
    throw Error(Finding::kOverflow, std::string(what) + " overflows 64 bits");
  }
  return sum;
}

inline uint64_t CheckedMul(uint64_t a, uint64_t b, std::string_view what) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) {
    throw Error(Finding::kOverflow, std::string(what) + " overflows 64 bits");
  }
  return product;
}

inline uint64_t CheckedProduct(std::initializer_list<uint64_t> factors, std::string_view what) {
  uint64_t product = 1;
  for (uint64_t factor : factors) product = CheckedMul(product, factor, what);
  return product;
}

inline uint64_t CeilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
inline uint64_t RoundUp(uint64_t a, uint64_t b) { return CeilDiv(a, b) * b; }

}  // namespace kv
