// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Eviction plans, as the last row that sees each position.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kv::capture {

struct Geometry {
  int32_t layers = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
};

// The evictions of a plan: for each layer, kv head and position the last row that sees it.
class Evictions {
 public:
  static constexpr int32_t kNever = std::numeric_limits<int32_t>::max();
  using Run = std::pair<int32_t, int32_t>;  // positions [begin, end)

  Evictions(const Geometry& geometry, int32_t tokens);

  int32_t tokens() const { return tokens_; }
  int32_t kv_heads() const { return kv_heads_; }
  std::span<const int32_t> LastRows(int32_t layer, int32_t head) const;
  // From row token + 1 on, only these positions up to `token` are seen; kept runs ascend. Returns
  // false, and changes nothing, if one of them was evicted before.
  bool Keep(int32_t layer, int32_t head, int32_t token, const std::vector<Run>& kept);

  // Returns true if all layers and heads lose the same positions at the same time.
  bool common() const;
  // Returns the first row after which anything is evicted, or kNever.
  int32_t First() const;
  // Requires common(). Returns each row after which positions are evicted, ascending, with these
  // positions.
  std::vector<std::pair<int32_t, std::vector<Run>>> Steps() const;

 private:
  int32_t layers_, kv_heads_, tokens_;
  std::vector<int32_t> last_rows_;  // [layer][head][position]
};

// Returns the runs of positions that a row does not see.
std::vector<Evictions::Run> GoneAt(std::span<const int32_t> last_rows, int32_t row);

// Reads kvtool.h2o-plan/1. Throws Failure(kInvalid) if it is damaged or does not fit the run.
Evictions ReadPlan(const std::string& path, const Geometry& geometry, int32_t tokens);

}  // namespace kv::capture
