// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// What a small change of scores does to one query's probabilities. Differences are computed as
// such, never as a difference of two softmaxes, so that they are as exact as the change itself.
namespace kv {

// Turns scores into probabilities in place. Returns false, and leaves the row unspecified, if a
// score is NaN or infinite.
bool SoftmaxRow(float* scores, size_t count) noexcept;

struct SoftmaxChange {
  double kl = 0;     // KL(P || P')
  double moved = 0;  // half of the sum of |P' - P|
};
// P' is proportional to p[i] * exp(change[i]). Replaces `change` by P' - P. Changes that are NaN
// make both figures NaN.
SoftmaxChange ChangeSoftmax(const float* p, float* change, size_t count) noexcept;

// Writes the indices of the `most` largest values, largest first, of equal ones the lower index
// first; of all if there are fewer. Values at `known` (distinct indices; may be empty) are a hint:
// many of them are among the largest.
void LargestOf(const float* values, size_t count, size_t most, const std::vector<uint32_t>& known,
               std::vector<uint32_t>& out);

namespace ref {
SoftmaxChange ChangeSoftmax(const float* p, float* change, size_t count) noexcept;
}  // namespace ref

}  // namespace kv
