// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/core/snapshot/rope.h"

namespace kv {
namespace {

using Kind = RopeScaling::Kind;

Error BadScaling(std::string_view text) {
  return std::move(
      Error(
          Finding::kUsage,
          fmt::format("--rope-scaling '{}': expected none, linear:FACTOR, llama3, "
                      "llama3:FACTOR,LOW,HIGH,ORIGINAL, yarn:FACTOR,ORIGINAL[,FAST,SLOW[,ATTENTION"
                      "]] or dynamic:FACTOR,ORIGINAL",
                      text))
          .Hint(
              "as in the model's config.json: rope_scaling; --model config.json reads all of it"));
}

// "8,1,4,8192" into as many numbers as there are, all positive.
std::vector<double> ParseNumbers(std::string_view list, std::string_view whole) {
  std::vector<double> numbers;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const auto value = ParseNumber<double>(list.substr(begin, end - begin));
    if (!value || !(*value > 0) || *value > 1e12) throw BadScaling(whole);
    numbers.push_back(*value);
    begin = end + 1;
  }
  return numbers;
}

bool Fill(std::string_view kind, const std::vector<double>& numbers, RopeScaling& scaling) {
  const size_t count = numbers.size();
  if (count > 0) scaling.factor = numbers[0];
  if (kind == "none") return count == 0;
  if (kind == "linear") {
    scaling.kind = Kind::kLinear;
    return count == 1;
  }
  if (kind == "llama3") {
    scaling.kind = Kind::kLlama3;
    if (count == 4) {
      scaling.low = numbers[1];
      scaling.high = numbers[2];
      scaling.original = numbers[3];
    }
    return (count == 0 || count == 4) && scaling.high > scaling.low;
  }
  if (count > 1) scaling.original = numbers[1];
  if (kind == "dynamic") {
    scaling.kind = Kind::kDynamic;
    return count == 2;
  }
  if (kind != "yarn") return false;
  scaling.kind = Kind::kYarn;
  if (count > 3) {
    scaling.beta_fast = numbers[2];
    scaling.beta_slow = numbers[3];
  }
  if (count > 4) scaling.attention = numbers[4];
  return count == 2 || count == 4 || count == 5;
}

// Long wavelengths are stretched by the factor, short ones kept, those between mixed.
double Llama3Frequency(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < scaling.original / scaling.high) return frequency;
  if (wavelength > scaling.original / scaling.low) return frequency / scaling.factor;
  const double t = (scaling.original / wavelength - scaling.low) / (scaling.high - scaling.low);
  return (1 - t) * frequency / scaling.factor + t * frequency;
}

// The pair, not always a whole one, that turns so many times over the original length.
double PairOfTurns(double turns, const Rope& rope, uint32_t dim) {
  return dim * std::log(rope.scaling.original / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

// Pairs that turn often keep their frequency, those that turn seldom are stretched, with a ramp
// between.
void Yarn(const Rope& rope, uint32_t dim, std::vector<double>& frequencies) {
  double low = PairOfTurns(rope.scaling.beta_fast, rope, dim);
  double high = PairOfTurns(rope.scaling.beta_slow, rope, dim);
  if (rope.scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / rope.scaling.factor * ramp + frequencies[i] * (1 - ramp);
  }
}

// The base grows with the run beyond the original length.
double DynamicBase(const Rope& rope, uint32_t dim, uint64_t length) {
  const RopeScaling& scaling = rope.scaling;
  const double tokens = static_cast<double>(length);
  if (tokens <= scaling.original || dim <= 2) return rope.theta;
  const double stretch = scaling.factor * tokens / scaling.original - (scaling.factor - 1);
  return rope.theta * std::pow(stretch, dim / (dim - 2.0));
}

// `list` has an entry for each pair, or something is wrong with it.
void RequirePairs(std::string_view what, const std::vector<double>& list, uint32_t dim) {
  if (list.size() == dim / 2) return;
  throw std::move(Error(Finding::kInconsistent,
                        fmt::format("{} has {} numbers, but RoPE rotates {} pairs of a head", what,
                                    list.size(), dim / 2))
                      .Hint("--rope-dims, --head-dim"));
}

}  // namespace

RopeScaling ParseScaling(std::string_view text) {
  RopeScaling scaling;
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view kind = text.substr(0, colon);
  if (kind == "mrope") {
    throw std::move(Error(Finding::kUnsupportedKind,
                          "--rope-scaling mrope: tokens of these models have three positions, and "
                          "no flag says where images lie")
                        .Hint("for a prompt of text alone all three are equal: give --rope-scaling "
                              "none (or what config.json says beside mrope_section)"));
  }
  if (kind == "longrope" || kind == "su" || kind == "proportional") {
    throw std::move(
        Error(Finding::kUsage,
              fmt::format("--rope-scaling '{}': this scaling needs a number for each pair", text))
            .Hint("--model config.json supplies them; --rope-freqs FILE supplies frequencies"));
  }
  std::vector<double> numbers;
  if (colon < text.size()) numbers = ParseNumbers(text.substr(colon + 1), text);
  if (!Fill(kind, numbers, scaling)) throw BadScaling(text);
  return scaling;
}

std::string Name(const RopeScaling& scaling) {
  const auto attention = [&] {
    return scaling.attention == 0 ? std::string() : fmt::format(",{}", scaling.attention);
  };
  switch (scaling.kind) {
    case Kind::kNone:
      return "none";
    case Kind::kLinear:
      return fmt::format("linear:{}", scaling.factor);
    case Kind::kLlama3:
      return fmt::format("llama3:{},{},{},{}", scaling.factor, scaling.low, scaling.high,
                         scaling.original);
    case Kind::kYarn:
      return fmt::format("yarn:{},{},{},{}{}", scaling.factor, scaling.original, scaling.beta_fast,
                         scaling.beta_slow, attention());
    case Kind::kDynamic:
      return fmt::format("dynamic:{},{}", scaling.factor, scaling.original);
    case Kind::kLongRope:
      return fmt::format("longrope:{},{}{}", scaling.factor, scaling.original, attention());
    case Kind::kGiven:
      return std::all_of(scaling.frequencies.begin(), scaling.frequencies.end(),
                         [](double frequency) { return frequency == 0; })
                 ? "no rotation"
                 : "given frequencies";
  }
  return "?";
}

Rope WithoutRotation(uint32_t head_dim) {
  Rope rope;
  rope.scaling.kind = Kind::kGiven;
  rope.scaling.frequencies.assign(head_dim / 2, 0.0);
  rope.rotary_dim = head_dim / 2 * 2;
  return rope;
}

double AttentionFactor(const RopeScaling& scaling) {
  if (scaling.attention > 0) return scaling.attention;
  if (scaling.factor <= 1) return 1;
  if (scaling.kind == Kind::kYarn) return 0.1 * std::log(scaling.factor) + 1;
  if (scaling.kind == Kind::kLongRope)
    return std::sqrt(1 + std::log(scaling.factor) / std::log(scaling.original));
  return 1;
}

std::vector<double> InverseFrequencies(const Rope& rope, uint32_t head_dim, uint64_t length) {
  const uint32_t dim = rope.DimOf(head_dim);
  const RopeScaling& scaling = rope.scaling;
  if (scaling.kind == Kind::kGiven) {
    RequirePairs("the list of frequencies", scaling.frequencies, dim);
    return scaling.frequencies;
  }
  const double base = scaling.kind == Kind::kDynamic ? DynamicBase(rope, dim, length) : rope.theta;
  const bool is_long = static_cast<double>(length) > scaling.original;
  const std::vector<double>& divisors = is_long ? scaling.long_factors : scaling.short_factors;
  if (scaling.kind == Kind::kLongRope) RequirePairs("a list of LongRoPE", divisors, dim);
  std::vector<double> frequencies(dim / 2);
  for (uint32_t i = 0; i < dim / 2; ++i) {
    // Models compute 1 / theta^(2i / dim) in float; a better value would turn keys by angles that
    // theirs were not turned by (5e-5 of a value at position 8191).
    const double exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    double frequency = 1.0f / static_cast<float>(std::pow(base, exponent));
    if (scaling.kind == Kind::kLinear) frequency /= scaling.factor;
    if (scaling.kind == Kind::kLlama3) frequency = Llama3Frequency(frequency, scaling);
    if (scaling.kind == Kind::kLongRope) frequency /= divisors[i];
    frequencies[i] = frequency;
  }
  if (scaling.kind == Kind::kYarn) Yarn(rope, dim, frequencies);
  return frequencies;
}

}  // namespace kv
