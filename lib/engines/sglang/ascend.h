// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lib/core/kernels/rope.h"
#include "lib/core/transform/transform.h"
#include "lib/study/transform/form.h"

// KVTC in SGLang's backend for Ascend NPUs (pull request 30417): its quantisers, its schemas and
// the dynamic programme that allocates bits, its pages in host memory, and the inverse rotation of
// its calibrator.
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

// An artifact's description of a group; without a size if it is not an integer.
struct SchemaEntry {
  std::optional<int64_t> size;
  std::string type;
};
// Throws kBadField for schemas that SGLang refuses: no groups, sizes that are no positive integers,
// unknown types, int4 in other than multiples of 8, and more components than the rank.
CodeSchema ParseSchema(std::span<const SchemaEntry> entries, uint64_t rank);

// Returns the bits of a token at a compression ratio.
uint64_t AscendBudget(uint64_t features, uint64_t ratio);

struct Allocation {
  CodeSchema schema;
  uint64_t bits = 0;
  double error = 0;  // sum over tokens of squares, including dropped components
};
// Runs the calibrator's programme over measured errors, with its order of ties. It is slow, and
// meant for ranks of a few hundred. Throws kUnsupportedKind if nothing fits the budget.
Allocation Allocate(const transform::Rows& projected, uint64_t budget_bits);

// Offsets of a group in a page.
struct PageGroup {
  uint64_t feature_begin = 0, feature_end = 0;
  CodeType type = CodeType::kFloat32;
  uint64_t payload_begin = 0, payload_end = 0;  // in elements; for int4 in words of 8
  int64_t scale = -1;                           // index among the groups with a scale
};
std::vector<PageGroup> PageLayout(const CodeSchema& schema, uint64_t page_tokens);

struct Page {
  std::vector<float> float32;
  std::vector<uint16_t> bfloat16;
  std::vector<int8_t> int8;
  std::vector<int32_t> int4;              // 8 codes per word, lowest nibble first
  std::vector<uint16_t> scales, offsets;  // binary16, [token][group]; offsets are negated
};
Page WritePage(const CodeSchema& schema, const transform::Rows& rows);
// Returns [token][component]. The page must have the sizes of the schema.
std::vector<float> ReadPage(const CodeSchema& schema, const Page& page, uint64_t page_tokens);

// Undoes the rotation of keys [token][row of dim] by the calibrator's table [token][cosines,
// sines], rounding each operation to the type of its dumps.
void UnrotateKeys(std::span<float> keys, uint32_t dim, std::span<const float> table,
                  RopePairs pairs, bool is_bfloat);

}  // namespace kv::sglang
