// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lib/core/transform/transform.h"

// Forms in which the coefficients of a transform are stored, and the search for the groups that
// lose least in a budget of bits. The form of an engine is a row that its folder hands in.
namespace kv::transform {

// Counts values that a form cannot store within its usual error.
struct Faults {
  uint64_t clipped = 0;      // fp8 codes beyond the largest value
  uint64_t soft_damage = 0;  // fp8 codes that GPUs before sm_89 decode to wrong values
  uint64_t far_offsets = 0;  // groups that lose resolution, because they are far from 0
};

struct Form {
  std::string_view name;
  std::span<const CodeType> types;  // types that a search may choose; of equals the first one wins
  // Writes the decoded values of a group of one token.
  void (*store)(CodeType type, std::span<const float> values, std::span<float> out, Faults& faults);
};

// kvtool's own: int2, int4 and int8 with a minimum and a step, fp8 with a scale, all in binary16.
// Codes are chosen with the stored pair, so that no value is off by more than half of a step. A
// constant group becomes its minimum.
extern const Form kKvtcForm;

// Writes the codes of a group in kvtool's own form, one byte each.
void EncodeGroup(CodeType type, std::span<const float> values, std::span<uint8_t> codes,
                 std::span<float> out);

// Writes to `out` the decoded row of coefficients, 0 for those in no group.
void StoreRow(const Form& form, const CodeSchema& schema, std::span<const float> row,
              std::span<float> out, Faults& faults);

// Coefficients, [token][component].
struct Rows {
  std::span<const float> values;
  uint64_t tokens = 0, components = 0;

  std::span<const float> Row(uint64_t token) const {
    return values.subspan(token * components, components);
  }
};

// Splits the components into groups of 16, 64, 256 and 1024, of the form's types or none, by a
// Lagrangian search: least error + lambda * bits, bisected to the most bits within the budget.
// Errors are measured on these rows. Components must be a multiple of 16.
CodeSchema FitSchema(const Form& form, const Rows& rows, double budget_bits);

}  // namespace kv::transform
