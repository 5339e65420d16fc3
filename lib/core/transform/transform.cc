// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/transform/transform.h"

#include <fmt/format.h>

#include <iterator>

namespace kv {
namespace {

constexpr uint32_t kHalf = 16;

constexpr CodeTypeInfo kCodeTypes[] = {
    {CodeType::kNone, "none", 0, 0},         {CodeType::kInt2, "int2", 2, 2 * kHalf},
    {CodeType::kInt4, "int4", 4, 2 * kHalf}, {CodeType::kInt8, "int8", 8, 2 * kHalf},
    {CodeType::kFp8, "fp8", 8, kHalf},       {CodeType::kBFloat16, "bfloat16", 16, 0},
    {CodeType::kFloat32, "float32", 32, 0},
};

}  // namespace

std::span<const CodeTypeInfo> CodeTypes() { return kCodeTypes; }

const CodeTypeInfo& Info(CodeType type) { return kCodeTypes[static_cast<size_t>(type)]; }

std::optional<CodeType> ParseCodeType(std::string_view name) {
  for (const CodeTypeInfo& info : kCodeTypes) {
    if (info.name == name) return info.type;
  }
  return std::nullopt;
}

uint64_t BitsOf(const CodeSchema& schema) {
  uint64_t bits = 0;
  for (const CodeGroup& group : schema) bits += group.bits();
  return bits;
}

uint64_t ComponentsOf(const CodeSchema& schema) {
  uint64_t components = 0;
  for (const CodeGroup& group : schema) components += group.size;
  return components;
}

std::string Name(const CodeSchema& schema) {
  std::string name;
  for (size_t i = 0; i < schema.size();) {
    const CodeType type = schema[i].type;
    uint64_t size = 0;
    for (; i < schema.size() && schema[i].type == type; ++i) size += schema[i].size;
    name += fmt::format("{}{}*{}", name.empty() ? "" : "+", Info(type).name, size);
  }
  return name;
}

}  // namespace kv
