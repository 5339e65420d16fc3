// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/dtype.h"

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/utf8.h"

namespace kv {

namespace {

using enum DType;

constexpr DTypeInfo kTypes[] = {
    {kF32, "f32", 1, 4, true},          {kF16, "f16", 1, 2, true},
    {kBF16, "bf16", 1, 2, true},        {kF64, "f64", 1, 8, true},
    {kI8, "i8", 1, 1, false},           {kU8, "u8", 1, 1, false},
    {kI16, "i16", 1, 2, false},         {kU16, "u16", 1, 2, false},
    {kI32, "i32", 1, 4, false},         {kU32, "u32", 1, 4, false},
    {kI64, "i64", 1, 8, false},         {kU64, "u64", 1, 8, false},
    {kBool, "bool", 1, 1, false},       {kF8E4M3, "f8_e4m3", 1, 1, true},
    {kF8E5M2, "f8_e5m2", 1, 1, true},   {kQ8_0, "q8_0", 32, 34, false},
    {kQ4_0, "q4_0", 32, 18, false},     {kQ4_1, "q4_1", 32, 20, false},
    {kQ5_0, "q5_0", 32, 22, false},     {kQ5_1, "q5_1", 32, 24, false},
    {kIQ4_NL, "iq4_nl", 32, 18, false},
};

struct Synonym {
  std::string_view names;
  DType dtype;
};
constexpr Synonym kSynonyms[] = {
    {"fp32 float32 float", kF32},
    {"fp16 float16 half", kF16},
    {"bfloat16", kBF16},
    {"fp64 float64 double", kF64},
    {"int8", kI8},
    {"uint8 byte", kU8},
    {"int32", kI32},
    {"int64", kI64},
    {"fp8_e4m3 f8_e4m3fn fp8_e4m3fn float8_e4m3fn", kF8E4M3},
    {"fp8_e5m2 float8_e5m2", kF8E5M2},
};

}  // namespace

std::span<const DTypeInfo> AllDTypes() { return kTypes; }

const DTypeInfo& Info(DType dtype) { return kTypes[static_cast<size_t>(dtype)]; }

std::optional<DType> ParseDType(std::string_view name) {
  for (const DTypeInfo& info : kTypes) {
    if (info.name == name) return info.dtype;
  }
  for (const Synonym& synonym : kSynonyms) {
    if (HasWord(synonym.names, name)) return synonym.dtype;
  }
  return std::nullopt;
}

uint64_t BytesOf(DType dtype, uint64_t elements) {
  const DTypeInfo& info = Info(dtype);
  if (elements % info.block_elements != 0) {
    throw Error(Finding::kSizeMismatch, "{} {} values are not whole blocks of {}", elements,
                info.name, info.block_elements);
  }
  return CheckedMul(elements / info.block_elements, info.block_bytes, "tensor size");
}

std::string_view Name(Order order) {
  constexpr std::string_view kNames[] = {"token,head,dim", "head,token,dim", "head,dim,token",
                                         "storage"};
  return kNames[static_cast<size_t>(order)];
}

}  // namespace kv
