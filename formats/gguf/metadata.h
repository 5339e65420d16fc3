// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/bytes.h"

namespace kv::gguf {

enum class Type : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// The key-value section of one file: views of the values, checked for shape, decoded when asked.
class Metadata {
 public:
  explicit Metadata(ByteSpan file);

  bool IsArray(std::string_view key) const {
    const Value* value = Find(key);
    return value != nullptr && value->is_array;
  }
  // Each throws kBadField if the key exists with a type that cannot express this.
  std::optional<std::string> Text(std::string_view key) const;
  std::optional<uint32_t> Count(std::string_view key) const;  // any integer type, 0 to 2^32-1
  std::optional<double> Real(std::string_view key) const;
  // One number for all, or an array of them; booleans count as 0 and 1.
  std::optional<std::vector<uint32_t>> Counts(std::string_view key) const;
  // The values of a small f32 tensor behind the keys; empty if there is none, as in files cut after
  // their keys. Throws kBadField or kTruncated if the tensor exists but is broken.
  std::vector<double> Floats(std::string_view tensor, ByteSpan file) const;

 private:
  struct Value {
    Type type;
    bool is_array = false;
    uint64_t count = 1;
    ByteSpan bytes;  // of strings: the text of a single one
    uint64_t offset = 0;
  };

  const Value* Find(std::string_view key) const;
  Value ReadValue(ByteReader& in, Type type) const;

  std::map<std::string_view, Value, std::less<>> values_;
  uint64_t tensors_ = 0, tensors_offset_ = 0;  // how many follow, and where
};

}  // namespace kv::gguf
