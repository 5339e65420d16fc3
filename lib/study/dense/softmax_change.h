// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

// Computes what a small change of scores does to one query's probabilities. Differences are
// computed directly, never as a difference of two softmaxes, so that they are as exact as the
// change itself.
namespace kv {

// Turns scores into probabilities in place. Returns false, and leaves the row unspecified, if a
// score is NaN or infinite.
bool SoftmaxRow(float* scores, size_t count) noexcept;

struct SoftmaxChange {
  double kl = 0;     // KL(P || P')
  double moved = 0;  // half of the sum of |P' - P|
};
// Replaces `change` by P' - P, where P' is proportional to p[i] * exp(change[i]). Changes that are
// NaN make both figures NaN.
SoftmaxChange ChangeSoftmax(const float* p, float* change, size_t count) noexcept;

// Writes the indices of the `most` largest values, largest first; of equal ones the lower index
// comes first. Writes all if there are fewer. `known` (distinct indices; may be empty) is a guess:
// many of them are among the largest.
void ListLargest(const float* values, size_t count, size_t most, const std::vector<uint32_t>& known,
                 std::vector<uint32_t>& out);

namespace ref {
SoftmaxChange ChangeSoftmax(const float* p, float* change, size_t count) noexcept;
}  // namespace ref

}  // namespace kv
