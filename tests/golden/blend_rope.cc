// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// CacheBlend: keys rotated by the reference, forward, back and by a difference of positions.
#include <catch2/catch.hpp>
#include <cmath>

#include "lib/core/base/half.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/snapshot/rope.h"
#include "tests/golden/blend_tensors.h"
#include "tests/golden/checks.h"

namespace kv::golden {

void CheckBlendRope(Run& run);

namespace {

using nlohmann::json;
using Positions = std::vector<int64_t>;

Rope FindRope(const json& item) {
  Rope rope;
  rope.pairs = ParsePairs(item.at("style").get<std::string>());
  rope.theta = item.at("theta");
  rope.rotary_dim = item.at("rotary_dim");
  if (!item.contains("scaling") || item["scaling"].is_null()) return rope;
  const json& scaling = item["scaling"];
  if (scaling.at("type") == "linear") {
    rope.scaling = {RopeScaling::Kind::kLinear, scaling.at("factor")};
  } else {
    REQUIRE(scaling.at("type") == "llama3");
    rope.scaling = {RopeScaling::Kind::kLlama3, scaling.at("factor"), scaling.at("low_freq_factor"),
                    scaling.at("high_freq_factor"),
                    scaling.at("original_max_position").get<double>()};
  }
  return rope;
}

// Returns the loosest of a file's tolerances for results in `unit`, or for any.
double ToleranceOf(const json& item, const std::string& unit) {
  if (item.contains("abs_tol_vs_" + unit)) return item["abs_tol_vs_" + unit];
  double loosest = 0;
  for (const auto& [key, value] : item.items()) {
    if (key.starts_with("abs_tol_vs_")) loosest = std::max(loosest, value.get<double>());
  }
  REQUIRE(loosest > 0);
  return loosest;
}

class RopeFile {
 public:
  RopeFile(const json& item, const Tensors& tensors)
      : item_(item), tensors_(tensors), rope_(FindRope(item)), head_dim_(item.at("head_dim")) {
    REQUIRE(item.value("layout", "[T,H,D]") == "[T,H,D]");
    const std::vector<uint64_t>& shape = tensors.View("k_unrotated").shape;
    REQUIRE(shape.size() == 3);
    REQUIRE(shape[2] == head_dim_);
    heads_ = static_cast<uint32_t>(shape[1]);
    to_ = tensors.Integers("pos_new");
    REQUIRE(to_.size() == shape[0]);
  }

  void Check(Run& run) {
    CheckFrequencies(run);
    const Positions zero(to_.size(), 0);
    const std::vector<float> at_new = Rotated("k_unrotated", zero, to_);
    if (tensors_.Has("k_at_new_f64")) {
      const std::vector<double> expected = tensors_.Doubles("k_at_new_f64");
      CheckNear(at_new, expected, zero, ToleranceOf(item_, "f64"), run);
      if (tensors_.Has("k_at_old")) {
        const Positions from = tensors_.Integers("pos_old");
        CheckNear(Rotated("k_at_old", from, to_), expected, from, ToleranceOf(item_, "f64"), run);
      }
    }
    if (tensors_.Has("k_at_new")) {
      const double tolerance = ToleranceOf(item_, "f32");
      CheckWithin(at_new, tensors_.Floats("k_at_new"), tolerance, run);
      CheckWithin(Rotated("k_at_new", to_, zero), tensors_.Floats("k_unrotated"), tolerance, run);
    }
    if (tensors_.Has("k_at_new_rounded")) CheckRounded(at_new, run);
  }

 private:
  void CheckFrequencies(Run& run) const {
    if (!tensors_.Has("inv_freq")) return;
    const std::vector<double> got = InverseFrequencies(rope_, head_dim_);
    const std::vector<double> expected = tensors_.Doubles("inv_freq");
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1.3e-7));
    run.Checked();
  }

  std::vector<float> Rotated(const std::string& name, const Positions& from,
                             const Positions& to) const {
    REQUIRE(from.size() == to.size());
    Positions turns(to);
    for (size_t t = 0; t < turns.size(); ++t) turns[t] -= from[t];
    std::vector<float> values = tensors_.Floats(name);
    REQUIRE(values.size() == turns.size() * heads_ * head_dim_);
    const RopeTable table(rope_, head_dim_, turns);
    for (size_t t = 0; t < turns.size(); ++t) {
      table.Rotate(t, heads_, &values[t * heads_ * head_dim_]);
    }
    return values;
  }

  template <typename T>
  static void CheckWithin(const std::vector<float>& got, const std::vector<T>& expected,
                          double tolerance, Run& run) {
    REQUIRE(got.size() == expected.size());
    double worst = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      const double error = std::abs(double{got[i]} - double{expected[i]});
      worst = std::isnan(error) ? INFINITY : std::max(worst, error);
    }
    CHECK(worst <= tolerance);
    run.Checked();
  }

  // A value may differ from a reference in double by its own rounding and by two steps of a float
  // in its frequency (another pow() rounds differently), but by nothing else.
  void CheckNear(const std::vector<float>& got, const std::vector<double>& expected,
                 const Positions& from, double tolerance, Run& run) const {
    CheckWithin(got, expected, tolerance, run);
    const std::vector<double> frequencies = InverseFrequencies(rope_, head_dim_);
    const size_t pairs = frequencies.size();
    size_t beyond = 0;
    for (size_t at = 0; at < got.size(); ++at) {
      const size_t token = at / (heads_ * head_dim_), dim = at % head_dim_;
      const bool halves = rope_.pairs == RopePairs::kHalves;
      const double error = std::abs(double{got[at]} - expected[at]);
      if (dim >= 2 * pairs) {
        beyond += error != 0;
        continue;
      }
      const size_t pair = halves ? dim % pairs : dim / 2;
      const size_t first = at - dim + (halves ? pair : 2 * pair);
      const double length = std::hypot(expected[first], expected[first + (halves ? pairs : 1)]);
      const double rotated = static_cast<double>(std::abs(to_[token]) + std::abs(from[token]));
      beyond += !(error <= length * (1e-6 + 2.4e-7 * rotated * frequencies[pair]));
    }
    CHECK(beyond == 0);
  }

  // Checks keys of a 16-bit model: rotated in double and rounded to its type.
  void CheckRounded(const std::vector<float>& got, Run& run) const {
    const TensorView& view = tensors_.View("k_at_new_rounded");
    const std::vector<float> expected = tensors_.Floats("k_at_new_rounded");
    CheckWithin(got, expected, ToleranceOf(item_, "rounded"), run);
    const auto rounded = [&](const std::vector<float>& values) {
      Bytes bytes(2 * values.size());
      REQUIRE((view.dtype == DType::kF16 || view.dtype == DType::kBF16));
      const auto round = view.dtype == DType::kF16 ? FloatToHalf : FloatToBFloat;
      round(values.data(), bytes.data(), values.size());
      std::vector<float> back(values.size());
      ToFloats(view.dtype, bytes, back);
      return back;
    };
    // Only a frequency with a different last bit can move a value across the midpoint of two.
    const std::vector<float> ours = rounded(got);
    size_t unequal = 0;
    for (size_t i = 0; i < ours.size(); ++i) unequal += ours[i] != expected[i];
    CHECK(unequal <= ours.size() / 50);
    if (!tensors_.Has("k_at_new_f64")) return;
    // The values must equal the double-precision reference, unless that is near a midpoint.
    const std::vector<double> doubles = tensors_.Doubles("k_at_new_f64");
    REQUIRE(doubles.size() == expected.size());
    const std::vector<float> once = rounded({doubles.begin(), doubles.end()});
    for (size_t i = 0; i < once.size(); ++i) {
      const double middle = (double{once[i]} + double{expected[i]}) / 2;
      const bool tied = std::abs(doubles[i] - middle) <= 1e-7 * std::abs(doubles[i]);
      CHECK((once[i] == expected[i] || tied));
    }
    run.Checked();
  }

  const json& item_;
  const Tensors& tensors_;
  Rope rope_;
  uint32_t head_dim_, heads_ = 0;
  Positions to_;
};

}  // namespace

void CheckBlendRope(Run& run) {
  const json manifest = run.Json("blend/manifest.json");
  for (const json& item : manifest.value("rope", json::array())) {
    INFO(item.at("file"));
    const auto path = run.File("blend/" + item.at("file").get<std::string>());
    if (!path) continue;
    const Tensors tensors(*path);
    RopeFile(item, tensors).Check(run);
  }
}

}  // namespace kv::golden
