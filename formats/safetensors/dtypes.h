// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Inside formats/safetensors: names of element types.
#pragma once

#include <string_view>

#include "lib/core/base/dtype.h"

namespace kv::safetensors {

enum class Standing {
  kOfficial,
  kAlias,   // written by others for an official one
  kOpaque,  // official, but kept as bytes: nothing here computes with it
};

// In the order of the official enumeration: alignment grows.
struct TypeWord {
  std::string_view name;
  DType dtype;
  uint32_t bits;
  Standing standing = Standing::kOfficial;
};
inline constexpr TypeWord kTypeWords[] = {
    {"BOOL", DType::kBool, 8},
    {"F4", DType::kU8, 4, Standing::kOpaque},
    {"F6_E2M3", DType::kU8, 6, Standing::kOpaque},
    {"F6_E3M2", DType::kU8, 6, Standing::kOpaque},
    {"U8", DType::kU8, 8},
    {"I8", DType::kI8, 8},
    {"F8_E5M2", DType::kF8E5M2, 8},
    {"F8_E4M3", DType::kF8E4M3, 8},
    {"F8E5M2", DType::kF8E5M2, 8, Standing::kAlias},
    {"F8E4M3FN", DType::kF8E4M3, 8, Standing::kAlias},
    {"F8_E8M0", DType::kU8, 8, Standing::kOpaque},
    {"F8_E4M3FNUZ", DType::kU8, 8, Standing::kOpaque},
    {"F8_E5M2FNUZ", DType::kU8, 8, Standing::kOpaque},
    {"I16", DType::kI16, 16},
    {"U16", DType::kU16, 16},
    {"F16", DType::kF16, 16},
    {"BF16", DType::kBF16, 16},
    {"I32", DType::kI32, 32},
    {"U32", DType::kU32, 32},
    {"F32", DType::kF32, 32},
    {"C64", DType::kU8, 64, Standing::kOpaque},
    {"F64", DType::kF64, 64},
    {"I64", DType::kI64, 64},
    {"U64", DType::kU64, 64},
};

}  // namespace kv::safetensors
