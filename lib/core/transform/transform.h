// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kv {

// How one coefficient of a transform is stored. The values are stored in .kvx files: never changed,
// never reused.
enum class CodeType : uint8_t {
  kNone = 0,  // dropped: it decodes to 0
  kInt2 = 1,
  kInt4 = 2,
  kInt8 = 3,
  kFp8 = 4,  // E4M3
  kBFloat16 = 5,
  kFloat32 = 6,
};

struct CodeTypeInfo {
  CodeType type;
  std::string_view name;
  uint32_t bits;        // of a coefficient
  uint32_t scale_bits;  // of a group and token: two binary16, one or none
};

std::span<const CodeTypeInfo> CodeTypes();
const CodeTypeInfo& Info(CodeType type);
std::optional<CodeType> ParseCodeType(std::string_view name);

// Neighbouring components of one type; scales are of a group and token.
struct CodeGroup {
  uint32_t size = 0;
  CodeType type = CodeType::kNone;

  uint64_t bits() const { return uint64_t{size} * Info(type).bits + Info(type).scale_bits; }
  bool operator==(const CodeGroup&) const = default;
};

// Groups one after another, from component 0 on. What follows the last one is dropped.
using CodeSchema = std::vector<CodeGroup>;

// Of one token, scales included.
uint64_t BitsOf(const CodeSchema& schema);
uint64_t ComponentsOf(const CodeSchema& schema);
// "int8*16+int4*128": neighbours of one type are one term.
std::string Name(const CodeSchema& schema);

// One component in the form kvtc_rans: frequencies of the symbols -reach to reach, then of the
// escape, which sum to 2048.
struct StepTable {
  uint32_t reach = 0;
  std::vector<uint16_t> frequencies;

  uint32_t symbols() const { return 2 * reach + 2; }
};

// One step for all components of a matrix, and their tables; what follows the last is dropped.
struct StepCode {
  float step = 1;
  std::vector<StepTable> tables;
};

}  // namespace kv
