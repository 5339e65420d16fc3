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

// KVTC as SGLang's backend for Ascend NPUs has it (pull request 30417): its quantisers, schemas,
// the programme that splits its bits, pages in host memory, and how its calibrator turns keys back.
namespace kv::sglang {

// float32, bfloat16, int8 and int4. Integers of a token's group have a binary16 scale and offset; a
// group that is constant comes back as its bfloat16 value.
extern const transform::Form kAscendForm;

// A group of integers of one token.
struct AscendCodes {
  std::vector<int8_t> codes;
  float scale = 0, offset = 0;  // before they are rounded to binary16
  std::vector<float> values;    // what comes back

  uint16_t stored_scale() const;
  uint16_t stored_offset() const;  // of the negative, as pages keep it
};
AscendCodes StoreAscend(CodeType type, std::span<const float> values);

// What an artifact says of a group; no size where it is not an integer.
struct SchemaEntry {
  std::optional<int64_t> size;
  std::string type;
};
// Throws kBadField for what SGLang refuses: no groups, sizes that are no positive integers, unknown
// types, int4 in other than multiples of 8, and more components than the rank.
CodeSchema ParseSchema(std::span<const SchemaEntry> entries, uint64_t rank);

// The bits of a token that a ratio leaves.
uint64_t AscendBudget(uint64_t features, uint64_t ratio);

struct Allocation {
  CodeSchema schema;
  uint64_t bits = 0;
  double error = 0;  // sum over tokens of squares, what is dropped included
};
// The calibrator's programme over measured errors, ties and all. It is slow: for ranks of some
// hundreds. Throws kUnsupportedKind where nothing fits the budget.
Allocation Allocate(const transform::Rows& projected, uint64_t budget_bits);

// Where a group lies in a page.
struct PageGroup {
  uint64_t feature_begin = 0, feature_end = 0;
  CodeType type = CodeType::kFloat32;
  uint64_t payload_begin = 0, payload_end = 0;  // in elements; of int4: words of 8
  int64_t scale = -1;                           // place among groups with a scale
};
std::vector<PageGroup> PageLayout(const CodeSchema& schema, uint64_t page_tokens);

struct Page {
  std::vector<float> float32;
  std::vector<uint16_t> bfloat16;
  std::vector<int8_t> int8;
  std::vector<int32_t> int4;              // 8 codes a word, lowest nibble first
  std::vector<uint16_t> scales, offsets;  // binary16, [token][group]; offsets are negated
};
Page WritePage(const CodeSchema& schema, const transform::Rows& rows);
// [token][component]. The page must have the sizes that the schema says.
std::vector<float> ReadPage(const CodeSchema& schema, const Page& page, uint64_t page_tokens);

// Turns keys [token][row of dim] back by the calibrator's table [token][cosines, sines], rounding
// each operation to the type of its dumps.
void TurnBack(std::span<float> keys, uint32_t dim, std::span<const float> table, RopePairs pairs,
              bool is_bfloat);

}  // namespace kv::sglang
