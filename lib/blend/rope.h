// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/kernels/rope.h"

namespace kv::blend {

struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3 };
  Kind kind = Kind::kNone;
  double factor = 8;
  double low = 1, high = 4, original = 8192;  // Llama 3 only
};

// Rotary embedding of a model's keys.
struct Rope {
  RopePairs pairs = RopePairs::kHalves;
  double theta = 10000;
  uint32_t rotary_dim = 0;  // 0: the whole head; else the first values of it
  RopeScaling scaling;

  uint32_t DimOf(uint32_t head_dim) const { return rotary_dim == 0 ? head_dim : rotary_dim; }
};

// "neox" or "gptj". Throws kUsage.
RopePairs ParsePairs(std::string_view text);
std::string_view Name(RopePairs pairs);
// "none", "linear:FACTOR", "llama3" or "llama3:FACTOR,LOW,HIGH,ORIGINAL". Throws kUsage, and
// kUnsupportedKind for scalings that are known by name only (YaRN also scales the cosines).
RopeScaling ParseScaling(std::string_view text);
std::string Name(const RopeScaling& scaling);
// Throws kUsage unless the rotation fits heads of this size.
void RequireFit(const Rope& rope, uint32_t head_dim);

// One per pair, scaling applied in double to the float that models compute.
std::vector<double> InverseFrequencies(const Rope& rope, uint32_t head_dim);

// Turns keys by a number of positions per token, which may be negative. Angles, cosines and sines
// in double; one table row per distinct number of positions.
class RopeTable {
 public:
  RopeTable(const Rope& rope, uint32_t head_dim, std::span<const int64_t> positions);

  bool turns_anything() const { return !cosines_.empty(); }
  // All heads of one token, one after another. Keys that turn by nothing keep their bits.
  void Rotate(size_t token, uint32_t heads, float* row) const;

 private:
  static constexpr uint32_t kStays = UINT32_MAX;

  RopePairs style_;
  uint32_t head_dim_, pairs_;
  std::vector<uint32_t> row_of_;  // of each token
  std::vector<double> cosines_, sines_;
};

}  // namespace kv::blend
