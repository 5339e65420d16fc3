// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string_view>
#include <vector>

#include "lib/core/base/bytes.h"

namespace kv::test {

// Writes the key-value section of a GGUF file, entry by entry.
class GgufBuilder {
 public:
  GgufBuilder& Text(std::string_view key, std::string_view value) {
    Key(key, 8);
    String(value);
    return *this;
  }
  GgufBuilder& U32(std::string_view key, uint32_t value) {
    Key(key, 4);
    entries_.U32(value);
    return *this;
  }
  GgufBuilder& F32(std::string_view key, float value) {
    Key(key, 6);
    entries_.Write(value);
    return *this;
  }
  // Adds an array of i32.
  GgufBuilder& I32s(std::string_view key, const std::vector<int32_t>& values) {
    Key(key, 9);
    entries_.U32(5);
    entries_.U64(values.size());
    for (int32_t value : values) entries_.I32(value);
    return *this;
  }
  GgufBuilder& Bools(std::string_view key, const std::vector<bool>& values) {
    Key(key, 9);
    entries_.U32(7);
    entries_.U64(values.size());
    for (bool value : values) entries_.U8(value);
    return *this;
  }
  GgufBuilder& Strings(std::string_view key, const std::vector<std::string_view>& values) {
    Key(key, 9);
    entries_.U32(8);
    entries_.U64(values.size());
    for (std::string_view value : values) String(value);
    return *this;
  }
  // An entry of any type number, its value given as bytes.
  GgufBuilder& Raw(std::string_view key, uint32_t type, ByteSpan value) {
    Key(key, type);
    entries_.Append(value);
    return *this;
  }

  Bytes Write(uint32_t version = 3) const {
    ByteWriter out;
    out.Append("GGUF");
    out.U32(version);
    out.U64(0);
    out.U64(count_);
    out.Append(entries_.bytes());
    return out.Release();
  }

 private:
  void String(std::string_view text) {
    entries_.U64(text.size());
    entries_.Append(text);
  }
  void Key(std::string_view key, uint32_t type) {
    String(key);
    entries_.U32(type);
    ++count_;
  }

  ByteWriter entries_;
  uint64_t count_ = 0;
};

}  // namespace kv::test
