// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/nearest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace kv {
namespace {

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string Nearest(std::string_view word, std::span<const std::string> words) {
  // Words come from files: a long one is no typo, and its distance would cost its square.
  if (word.size() > 100) return {};
  std::string best;
  size_t best_distance = word.size() / 3 + 2;
  for (const std::string& candidate : words) {
    // A word cut short is nearer than one with letters changed.
    const bool begins = word.size() >= 4 && candidate.substr(0, word.size()) == word;
    const size_t distance = begins ? 1 : EditDistance(word, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace kv
