// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/capture-llama/logits.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "apps/capture-llama/failure.h"

namespace kv::capture_logits_test {
namespace {

using capture::Comparison;

std::vector<float> LogOf(const std::vector<double>& probabilities) {
  std::vector<float> out;
  for (const double p : probabilities) out.push_back(static_cast<float>(std::log(p) + 3));
  capture::ToLogProbabilities(out);
  return out;
}

TEST_CASE("logits become log probabilities") {
  const std::vector<float> row = LogOf({0.5, 0.25, 0.125, 0.125});
  CHECK(row[0] == Approx(std::log(0.5)));
  CHECK(row[3] == Approx(std::log(0.125)));
  std::vector<float> far = {1e30f, 0, -INFINITY};
  capture::ToLogProbabilities(far);
  CHECK(far[0] == 0);
  for (const float bad : {INFINITY, NAN}) {
    std::vector<float> broken = {bad, 0};
    CHECK_THROWS_AS(capture::ToLogProbabilities(broken), capture::Failure);
  }
}

TEST_CASE("the largest values come first, and the lowest index of equal ones") {
  const std::vector<float> row = {1, 3, 2, 3, -1};
  CHECK(capture::Largest(row, 3) == std::vector<int32_t>{1, 3, 2});
  CHECK(capture::Largest(row, 9) == std::vector<int32_t>{1, 3, 2, 0, 4});
}

TEST_CASE("a run compared with itself has no divergence at all") {
  Comparison same;
  const std::vector<float> row = LogOf({0.9, 0.05, 0.05});
  for (int i = 0; i < 3; ++i) same.Add(row, row, i);
  CHECK(same.kl() == 0);
  CHECK(same.kl_standard_error() == 0);
  CHECK(same.delta_nll() == 0);
  CHECK(same.agreement() == 1);
}

TEST_CASE("divergence, delta nll and agreement are what their definitions say") {
  const std::vector<double> p = {0.7, 0.2, 0.1}, q = {0.3, 0.6, 0.1};
  Comparison comparison;
  comparison.Add(LogOf(p), LogOf(q), 0);
  comparison.Add(LogOf(p), LogOf(p), -1);  // -1: no token follows the last row
  const double kl = 0.7 * std::log(0.7 / 0.3) + 0.2 * std::log(0.2 / 0.6);
  CHECK(comparison.rows() == 2);
  CHECK(comparison.kl() == Approx(kl / 2));
  CHECK(comparison.kl_standard_error() == Approx(kl / 2));
  CHECK(comparison.delta_nll() == Approx(std::log(0.7 / 0.3)));
  CHECK(comparison.agreement() == 0.5);
  const nlohmann::json line = nlohmann::json::parse(comparison.Line("p.json", "mask"));
  CHECK(line.at("plan") == "p.json");
  CHECK(line.at("by") == "mask");
  CHECK(line.at("rows") == 2);
  CHECK(line.at("kl") == comparison.kl());
  Comparison one;
  one.Add(LogOf(p), LogOf(q), -1);
  CHECK(nlohmann::json::parse(one.Line("", "")).at("delta_nll").is_null());
  CHECK(nlohmann::json::parse(one.Line("", "")).at("kl_standard_error").is_null());
}

}  // namespace
}  // namespace kv::capture_logits_test
