// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/capture-llama/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "apps/capture-llama/failure.h"
#include "apps/capture-llama/json.h"

namespace kv::capture {

void ToLogProbabilities(std::span<float> logits) {
  const float most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float value : logits) sum += std::exp(double{value} - double{most});
  const double normaliser = double{most} + std::log(sum);
  if (!std::isfinite(normaliser)) throw Failure(kInvalid, "the model's logits are not finite");
  for (float& value : logits) value = static_cast<float>(double{value} - normaliser);
}

std::vector<int32_t> Largest(std::span<const float> values, size_t k) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  k = std::min(k, order.size());
  const auto before = [&](int32_t a, int32_t b) {
    const float x = values[size_t(a)], y = values[size_t(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(k), order.end(), before);
  order.resize(k);
  return order;
}

void Comparison::Add(std::span<const float> full, std::span<const float> changed, int32_t next) {
  double divergence = 0;
  for (size_t i = 0; i < full.size(); ++i) {
    const double p = std::exp(double{full[i]});
    if (p > 0) divergence += p * (double{full[i]} - double{changed[i]});
  }
  divergences_.push_back(divergence);
  const auto likeliest = [](std::span<const float> row) {
    return std::max_element(row.begin(), row.end()) - row.begin();
  };
  agreeing_ += likeliest(full) == likeliest(changed);
  if (next < 0) return;
  delta_nll_ += double{full[size_t(next)]} - double{changed[size_t(next)]};
  ++followed_;
}

double Comparison::kl() const {
  return std::accumulate(divergences_.begin(), divergences_.end(), 0.0) / double(rows());
}

double Comparison::kl_standard_error() const {
  const double mean = kl();
  double squares = 0;
  for (const double value : divergences_) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / double(rows() - 1) / double(rows()));  // NaN if there is only one row
}

double Comparison::delta_nll() const {
  return followed_ == 0 ? std::numeric_limits<double>::quiet_NaN() : delta_nll_ / double(followed_);
}

double Comparison::agreement() const { return double(agreeing_) / double(rows()); }

std::string Comparison::Line(const std::string& what, const std::string& by) const {
  JsonObject line;
  line.Add("plan", what).Add("by", by).Add("rows", static_cast<int64_t>(rows()));
  line.Add("kl", kl()).Add("kl_standard_error", kl_standard_error());
  line.Add("delta_nll", delta_nll()).Add("agreement", agreement());
  return line.Line();
}

void Distributions::Add(std::span<const float> logits) {
  values_.insert(values_.end(), logits.begin(), logits.end());
  ToLogProbabilities(std::span(values_).last(logits.size()));
}

std::span<const float> Distributions::Row(int32_t position) const {
  return std::span(values_).subspan(static_cast<size_t>(position - first_) * words_, words_);
}

}  // namespace kv::capture
