// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/blend/rope.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <numbers>
#include <unordered_map>

#include "lib/base/error.h"

namespace kv::blend {
namespace {

Error BadScaling(std::string_view text) {
  return std::move(Error(Finding::kUsage,
                         fmt::format("--rope-scaling '{}': expected none, linear:FACTOR, llama3 "
                                     "or llama3:FACTOR,LOW,HIGH,ORIGINAL",
                                     text))
                       .Hint("as in the model's config.json: rope_scaling"));
}

// "8,1,4,8192" into as many numbers as there are, all positive.
std::vector<double> ParseNumbers(std::string_view list, std::string_view whole) {
  std::vector<double> numbers;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    double value = 0;
    const auto [last, error] = std::from_chars(list.data() + begin, list.data() + end, value);
    if (error != std::errc() || last != list.data() + end || !(value > 0) || value > 1e12) {
      throw BadScaling(whole);
    }
    numbers.push_back(value);
    begin = end + 1;
  }
  return numbers;
}

// Long wavelengths are stretched by the factor, short ones kept, those between mixed.
double Llama3Frequency(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < scaling.original / scaling.high) return frequency;
  if (wavelength > scaling.original / scaling.low) return frequency / scaling.factor;
  const double t = (scaling.original / wavelength - scaling.low) / (scaling.high - scaling.low);
  return (1 - t) * frequency / scaling.factor + t * frequency;
}

}  // namespace

RopePairs ParsePairs(std::string_view text) {
  if (text == "neox") return RopePairs::kHalves;
  if (text == "gptj") return RopePairs::kNeighbours;
  throw Error(Finding::kUsage, fmt::format("--rope-style '{}': expected neox or gptj", text));
}

std::string_view Name(RopePairs pairs) { return pairs == RopePairs::kHalves ? "neox" : "gptj"; }

RopeScaling ParseScaling(std::string_view text) {
  RopeScaling scaling;
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view kind = text.substr(0, colon);
  std::vector<double> numbers;
  if (colon < text.size()) numbers = ParseNumbers(text.substr(colon + 1), text);
  if (kind == "none" && numbers.empty()) return scaling;
  if (kind == "linear" && numbers.size() == 1) {
    scaling.kind = RopeScaling::Kind::kLinear;
    scaling.factor = numbers[0];
    return scaling;
  }
  if (kind == "llama3" && (numbers.empty() || numbers.size() == 4)) {
    scaling.kind = RopeScaling::Kind::kLlama3;
    if (!numbers.empty()) {
      scaling.factor = numbers[0];
      scaling.low = numbers[1];
      scaling.high = numbers[2];
      scaling.original = numbers[3];
    }
    if (scaling.high <= scaling.low) throw BadScaling(text);
    return scaling;
  }
  for (const std::string_view known :
       {"yarn", "dynamic", "longrope", "su", "mrope", "proportional"}) {
    if (kind != known) continue;
    throw Error(
        Finding::kUnsupportedKind,
        fmt::format("--rope-scaling '{}': this scaling is not implemented; none, linear and "
                    "llama3 are",
                    text));
  }
  throw BadScaling(text);
}

std::string Name(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone:
      return "none";
    case RopeScaling::Kind::kLinear:
      return fmt::format("linear:{}", scaling.factor);
    case RopeScaling::Kind::kLlama3:
      return fmt::format("llama3:{},{},{},{}", scaling.factor, scaling.low, scaling.high,
                         scaling.original);
  }
  return "?";
}

void RequireFit(const Rope& rope, uint32_t head_dim) {
  if (!(rope.theta > 0) || !std::isfinite(rope.theta)) {
    throw Error(Finding::kUsage,
                fmt::format("--rope-base {}: expected a positive number", rope.theta));
  }
  const uint32_t dim = rope.DimOf(head_dim);
  if (dim > head_dim || dim % 2 != 0) {
    throw Error(Finding::kUsage,
                fmt::format("RoPE turns {} values of a head, which has {}: expected an even number "
                            "up to that",
                            dim, head_dim))
        .Hint("--rope-dims, --head-dim");
  }
}

std::vector<double> InverseFrequencies(const Rope& rope, uint32_t head_dim) {
  const uint32_t dim = rope.DimOf(head_dim);
  std::vector<double> frequencies(dim / 2);
  for (uint32_t i = 0; i < dim / 2; ++i) {
    // Models compute 1 / theta^(2i / dim) in float; a better value would turn keys by angles that
    // theirs were not turned by (5e-5 of a value at position 8191).
    const double exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    double frequency = 1.0f / static_cast<float>(std::pow(rope.theta, exponent));
    if (rope.scaling.kind == RopeScaling::Kind::kLinear) frequency /= rope.scaling.factor;
    if (rope.scaling.kind == RopeScaling::Kind::kLlama3) {
      frequency = Llama3Frequency(frequency, rope.scaling);
    }
    frequencies[i] = frequency;
  }
  return frequencies;
}

RopeTable::RopeTable(const Rope& rope, uint32_t head_dim, std::span<const int64_t> positions)
    : style_(rope.pairs), head_dim_(head_dim), pairs_(rope.DimOf(head_dim) / 2) {
  const std::vector<double> frequencies = InverseFrequencies(rope, head_dim);
  std::unordered_map<int64_t, uint32_t> rows;
  row_of_.reserve(positions.size());
  for (const int64_t position : positions) {
    if (position == 0) {
      row_of_.push_back(kStays);
      continue;
    }
    const auto [row, is_new] = rows.emplace(position, static_cast<uint32_t>(rows.size()));
    row_of_.push_back(row->second);
    if (!is_new) continue;
    for (const double frequency : frequencies) {
      const double angle = static_cast<double>(position) * frequency;
      cosines_.push_back(std::cos(angle));
      sines_.push_back(std::sin(angle));
    }
  }
}

void RopeTable::Rotate(size_t token, uint32_t heads, float* row) const {
  if (row_of_[token] == kStays) return;
  const size_t at = size_t{row_of_[token]} * pairs_;
  for (uint32_t h = 0; h < heads; ++h) {
    RotatePairs(row + size_t{h} * head_dim_, pairs_, style_, &cosines_[at], &sines_[at]);
  }
}

}  // namespace kv::blend
