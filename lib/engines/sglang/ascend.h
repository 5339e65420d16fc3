// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/core/transform/transform.h"
#include "lib/study/transform/form.h"

// KVTC in SGLang's backend for Ascend NPUs (pull request 30417): its quantisers and its schemas.
namespace kv::sglang {

// Types float32, bfloat16, int8 and int4. Integers of a token's group have a binary16 scale and
// offset; a constant group comes back as its bfloat16 value.
extern const transform::Form kAscendForm;

// A group of integers of one token.
struct AscendCodes {
  std::vector<int8_t> codes;
  float scale = 0, offset = 0;  // before they are rounded to binary16
  std::vector<float> values;    // decoded values

  uint16_t stored_scale() const;
  uint16_t stored_offset() const;  // the negated offset, as pages store it
};
AscendCodes StoreAscend(CodeType type, std::span<const float> values);
// Returns a value from its code and the scale and offset that pages store.
float DecodeAscend(float code, uint16_t scale, uint16_t negative_offset);

inline constexpr uint32_t kNibbles = 8;  // number of int4 codes in a word of a page

// An artifact's description of a group; without a size if it is not an integer.
struct SchemaEntry {
  std::optional<int64_t> size;
  std::string type;
};
// Throws kBadField for schemas that SGLang refuses: no groups, sizes that are not positive
// integers, unknown types, int4 in other than multiples of 8, and more components than the rank.
CodeSchema ParseSchema(std::span<const SchemaEntry> entries, uint64_t rank);

}  // namespace kv::sglang
