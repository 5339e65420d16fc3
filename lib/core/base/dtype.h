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
// The values are stored in .kvz archives: never changed, never reused.
enum class DType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kF64 = 3,
  kI8 = 4,
  kU8 = 5,
  kI16 = 6,
  kU16 = 7,
  kI32 = 8,
  kU32 = 9,
  kI64 = 10,
  kU64 = 11,
  kBool = 12,
  kF8E4M3 = 13,
  kF8E5M2 = 14,
  kQ8_0 = 15,
  kQ4_0 = 16,
  kQ4_1 = 17,
  kQ5_0 = 18,
  kQ5_1 = 19,
  kIQ4_NL = 20,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;  // "f16", "q8_0": kvtool's own spelling
  uint32_t block_elements;
  uint32_t block_bytes;
  bool is_float;  // a scalar IEEE-like type, whose byte planes are meaningful
};

std::span<const DTypeInfo> AllDTypes();
const DTypeInfo& Info(DType dtype);
inline std::string_view Name(DType dtype) { return Info(dtype).name; }
inline bool IsBlockQuantised(DType dtype) { return Info(dtype).block_elements > 1; }
constexpr bool IsHalfFloat(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }
// Accepts kvtool's names and common synonyms (fp16, half, float16, bfloat16, float ...).
std::optional<DType> ParseDType(std::string_view name);
// Returns the bytes of `elements` values, which must form whole blocks. Throws kOverflow,
// kSizeMismatch.
uint64_t BytesOf(DType dtype, uint64_t elements);

// The order of a tensor's units in memory; names read from the outermost axis inwards. The values
// are stored in .kvz archives: never changed, never reused.
enum class Order : uint8_t {
  kTokenHeadDim = 0,  // [token][kv head][dim]: rows, as in dumps of llama.cpp, vLLM and MNN
  kHeadTokenDim = 1,  // [kv head][token][dim]: MNN's codec input, Hugging Face caches
  kHeadDimToken = 2,  // [kv head][dim][token]: llama.cpp's transposed V
  kStorage = 3,       // as stored; too irregular to name (packed tiles)
};
std::string_view Name(Order order);

}  // namespace kv
