// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/gguf/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace kv::gguf {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint64_t kMaxKeys = 1 << 16, kMaxKeyBytes = 1 << 16;
constexpr uint64_t kMaxArrayRead = 1 << 16;  // of arrays that are decoded; others are passed over

// Bytes of one value, 0 for those without a fixed size.
uint64_t SizeOf(Type type) {
  constexpr uint8_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kBytes[static_cast<size_t>(type)];
}

Type ReadType(ByteReader& in) {
  const uint64_t at = in.offset();
  const uint32_t number = in.U32("value type");
  if (number <= 12) return static_cast<Type>(number);
  throw Error(Finding::kBadField, fmt::format("value type {}, expected 0 to 12", number)).At(at);
}

// The integer at `from`, if the type is one and the value fits.
std::optional<uint32_t> IntegerAt(Type type, const std::byte* from) {
  const bool is_signed =
      type == Type::kI8 || type == Type::kI16 || type == Type::kI32 || type == Type::kI64;
  const uint64_t size = SizeOf(type);
  if (size == 0 || type == Type::kF32 || type == Type::kF64) return std::nullopt;
  uint64_t value = 0;
  std::memcpy(&value, from, size);  // little-endian, as hosts are
  const bool is_negative = is_signed && value >> (8 * size - 1) != 0;
  if (is_negative || value > UINT32_MAX) return std::nullopt;
  return static_cast<uint32_t>(value);
}

void CheckVersion(uint32_t version) {
  if (version == 2 || version == 3) return;
  const bool swapped = version != 0 && (version & 0xffff) == 0;
  if (version == 0) throw Error(Finding::kBadVersion, "GGUF version 0 never existed").At(4);
  throw Error(Finding::kUnsupportedVersion,
              swapped ? "a big-endian GGUF file; only little-endian ones are supported"
                      : fmt::format("GGUF version {}; supported: 2 and 3", version))
      .At(4);
}

}  // namespace

Metadata::Metadata(ByteSpan file) {
  ByteReader in(file);
  const uint32_t magic = in.U32("magic");
  if (magic != kMagic) {
    throw Error(Finding::kBadMagic,
                fmt::format("magic {:#010x}, expected {:#x} (GGUF)", magic, kMagic))
        .At(0);
  }
  CheckVersion(in.U32("version"));
  tensors_ = in.U64("tensor count");
  const uint64_t count_at = in.offset();
  const uint64_t count = in.U64("key count");
  if (count > kMaxKeys) {
    throw Error(Finding::kLimit, fmt::format("{} keys, at most {} are read", count, kMaxKeys))
        .At(count_at);
  }
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = in.offset();
    const uint64_t length = in.U64("key length");
    if (length == 0 || length > kMaxKeyBytes) {
      throw Error(Finding::kBadName,
                  fmt::format("key of {} bytes, expected 1 to {}", length, kMaxKeyBytes))
          .At(at);
    }
    const std::string_view key = in.Text(length, "key");
    try {
      const Type type = ReadType(in);
      if (!values_.emplace(key, ReadValue(in, type)).second)
        throw Error(Finding::kDuplicateName, "the key occurs twice").At(at);
    } catch (Error& error) {
      throw error.In(Escaped(key, 64));
    }
  }
  tensors_offset_ = in.offset();
}

std::vector<double> Metadata::Floats(std::string_view tensor, ByteSpan file) const {
  constexpr uint32_t kMostDims = 4, kFloat = 0;
  constexpr uint64_t kMostValues = 1 << 16;
  ByteReader in(file.subspan(tensors_offset_), tensors_offset_);
  uint64_t count = 0, offset = 0;
  uint32_t type = 0;
  bool found = false;
  for (uint64_t i = 0; i < tensors_; ++i) {
    if (in.at_end()) return {};
    const std::string_view name = in.Text(in.U64("name length"), "name");
    const uint64_t at = in.offset();
    const uint32_t dims = in.U32("dims");
    if (dims > kMostDims)
      throw Error(Finding::kBadField, fmt::format("{} dims of a tensor", dims)).At(at);
    uint64_t values = 1;
    for (uint32_t d = 0; d < dims; ++d) {
      if (__builtin_mul_overflow(values, in.U64("extent"), &values))
        throw Error(Finding::kOverflow, "extents of a tensor overflow 64 bits").At(at);
    }
    const uint32_t its_type = in.U32("type");
    const uint64_t its_offset = in.U64("offset");
    if (name != tensor) continue;
    found = true;
    count = values;
    type = its_type;
    offset = its_offset;
  }
  if (!found) return {};
  const uint64_t align = std::max(Count("general.alignment").value_or(32), 1u);
  const uint64_t base = (in.offset() + align - 1) / align * align;
  if (type != kFloat || count == 0 || count > kMostValues)
    throw Error(Finding::kBadField, "is not a short list of f32 values").In(tensor);
  if (base > file.size() || offset > file.size() - base)
    throw Error(Finding::kTruncated, "ends before it").In(tensor);
  ByteReader data(file.subspan(base + offset), base + offset);
  std::vector<double> numbers;
  for (uint64_t i = 0; i < count; ++i) numbers.push_back(data.F32("value"));
  return numbers;
}

Metadata::Value Metadata::ReadValue(ByteReader& in, Type type) const {
  Value value{.type = type, .bytes = {}, .offset = in.offset()};
  if (type == Type::kArray) {
    value.is_array = true;
    value.type = ReadType(in);
    value.count = in.U64("array length");
    if (value.type == Type::kArray) {
      throw Error(Finding::kBadField, "an array of arrays").At(value.offset);
    }
  }
  if (const uint64_t size = SizeOf(value.type); size != 0) {
    value.bytes = in.TakeArray(value.count, size, "value");
    return value;
  }
  if (value.count > in.remaining() / 8) {  // each string has a length: fail before walking
    throw Error(Finding::kTruncated, fmt::format("{} strings need more than the {} bytes left",
                                                 value.count, in.remaining()))
        .At(value.offset);
  }
  for (uint64_t i = 0; i < value.count; ++i)
    value.bytes = in.Take(in.U64("string length"), "string");
  return value;
}

const Metadata::Value* Metadata::Find(std::string_view key) const {
  const auto at = values_.find(key);
  return at == values_.end() ? nullptr : &at->second;
}

std::optional<std::string> Metadata::Text(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_array || value->type != Type::kString)
    throw Error(Finding::kBadField, "expected a string").At(value->offset).In(key);
  return std::string(AsText(value->bytes));
}

std::optional<uint32_t> Metadata::Count(std::string_view key) const {
  const std::optional<std::vector<uint32_t>> counts = Counts(key);
  if (!counts) return std::nullopt;
  if (Find(key)->is_array)
    throw Error(Finding::kBadField, "expected one number").At(Find(key)->offset).In(key);
  return counts->front();
}

std::optional<double> Metadata::Real(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  std::optional<double> real;
  if (!value->is_array && value->type == Type::kF32) real = LoadLE<float>(value->bytes.data());
  if (!value->is_array && value->type == Type::kF64) real = LoadLE<double>(value->bytes.data());
  if (!real || !std::isfinite(*real))
    throw Error(Finding::kBadField, "expected a number").At(value->offset).In(key);
  return real;
}

std::optional<std::vector<uint32_t>> Metadata::Counts(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->count > kMaxArrayRead) {
    throw Error(Finding::kLimit,
                fmt::format("{} entries, at most {} are read", value->count, kMaxArrayRead))
        .At(value->offset)
        .In(key);
  }
  std::vector<uint32_t> counts;
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = SizeOf(value->type) == 0
                            ? std::nullopt
                            : IntegerAt(value->type, value->bytes.data() + i * SizeOf(value->type));
    if (!number) {
      throw Error(Finding::kBadField, "expected whole numbers that fit 32 bits")
          .At(value->offset)
          .In(key);
    }
    counts.push_back(*number);
  }
  return counts;
}

}  // namespace kv::gguf
