// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace kv {

// Element types of caches, weights and traces. Block types (q8_0 ...) follow ggml: 32 values of one
// row share a scale, so sizes are kept per block and a single element has no size of its own.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kF64,
  kI8,
  kU8,
  kI16,
  kU16,
  kI32,
  kU32,
  kI64,
  kU64,
  kBool,
  kF8E4M3,
  kF8E5M2,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kIQ4_NL,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // "f16", "q8_0": kvtool's spelling everywhere
  uint32_t block_elements;
  uint32_t block_bytes;
  bool is_float;  // an IEEE-like scalar type whose byte planes mean something
};

std::span<const DTypeInfo> AllDTypes();
const DTypeInfo& Info(DType dtype);
inline std::string_view Name(DType dtype) { return Info(dtype).name; }
inline bool IsBlockQuantised(DType dtype) { return Info(dtype).block_elements > 1; }
// Accepts kvtool's names and the common synonyms (fp16, half, float16, bfloat16, float ...).
std::optional<DType> ParseDType(std::string_view name);
// Bytes of `elements` values that form whole blocks. Throws kOverflow, kSizeMismatch.
uint64_t BytesOf(DType dtype, uint64_t elements);

}  // namespace kv
