// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Inside formats/safetensors: the JSON header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/tensors/metadata.h"
#include "lib/core/base/bytes.h"

namespace kv::safetensors {

inline constexpr uint64_t kHeaderCap = 100'000'000;
inline constexpr uint64_t kLengthBytes = 8;

struct HeaderTensor {
  std::string name, dtype;
  std::vector<uint64_t> shape;
  uint64_t begin = 0, end = 0;                 // in the data
  std::optional<uint64_t> memory_format = {};  // LMCache's extra field "fmt"
};

struct Header {
  std::vector<HeaderTensor> tensors;  // as written
  TensorMetadata metadata;
  uint64_t data_offset = 0;  // in the file
};

// Checks the length field and the JSON; the reader checks the offsets. Throws kTruncated, kLimit,
// kBadHeader, kBadText, kDuplicateName.
Header ParseHeader(ByteSpan file);

}  // namespace kv::safetensors
