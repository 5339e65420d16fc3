// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/h2o/quality_report.h"

#include <cmath>
#include <optional>

namespace kv::mnn::h2o {
namespace {

using Json = nlohmann::ordered_json;

Json Figure(const Distribution& of, double Distribution::*figure) {
  return of.count == 0 ? Json(nullptr) : Json(of.*figure);
}

Json HeadJson(const AttentionSummary& head) {
  Json json = {{"mass_mean", Figure(head.mass, &Distribution::mean)},
               {"mass_p5", Figure(head.mass, &Distribution::p5)},
               {"kl_mean", Figure(head.kl, &Distribution::mean)},
               {"top_k_overlap_16", Figure(head.top_k[1], &Distribution::mean)}};
  if (head.has_output) {
    json["output_error_mean"] = Figure(head.output_error, &Distribution::mean);
    json["output_cosine_p5"] = Figure(head.output_cosine, &Distribution::p5);
  }
  return json;
}

// Mean without the NaNs of undefined rows; nothing if no value is left.
class Mean {
 public:
  void Add(double value) {
    if (std::isnan(value)) return;
    sum_ += value;
    ++count_;
  }
  Json Get() const {
    return count_ == 0 ? Json(nullptr) : Json(sum_ / static_cast<double>(count_));
  }

 private:
  double sum_ = 0;
  uint64_t count_ = 0;
};

}  // namespace

Json QualityJson(const AttentionSummary& s) {
  using D = Distribution;
  Json json = {
      {"rows", s.rows}, {"evicting_rows", s.evicting_rows}, {"undefined_rows", s.undefined_rows}};
  json["mass"] = {{"mean", Figure(s.mass, &D::mean)},
                  {"p5", Figure(s.mass, &D::p5)},
                  {"p1", Figure(s.mass, &D::p1)},
                  {"min", Figure(s.mass, &D::min)},
                  {"standard_error", s.standard_error.mass}};
  if (s.has_output) {
    json["output_error"] = {{"mean", Figure(s.output_error, &D::mean)},
                            {"p95", Figure(s.output_error, &D::p95)},
                            {"max", Figure(s.output_error, &D::max)},
                            {"standard_error", s.standard_error.output_error},
                            {"frobenius", s.output_error_frobenius},
                            {"frobenius_standard_error", s.standard_error.output_error_frobenius}};
    json["output_cosine"] = {{"mean", Figure(s.output_cosine, &D::mean)},
                             {"p5", Figure(s.output_cosine, &D::p5)},
                             {"min", Figure(s.output_cosine, &D::min)},
                             {"standard_error", s.standard_error.output_cosine}};
  } else {
    json["output_error"] = json["output_cosine"] = nullptr;
  }
  json["kl"] = {{"mean", Figure(s.kl, &D::mean)},
                {"p95", Figure(s.kl, &D::p95)},
                {"max", Figure(s.kl, &D::max)},
                {"standard_error", s.standard_error.kl}};
  json["js"] = {{"mean", Figure(s.js, &D::mean)},
                {"p95", Figure(s.js, &D::p95)},
                {"standard_error", s.standard_error.js}};
  for (size_t i = 0; i < kTopK.size(); ++i) {
    json["top_k_overlap"][std::to_string(kTopK[i])] = Figure(s.top_k[i], &D::mean);
  }
  json["nan_count"] = s.mass.nans;
  return json;
}

Json PredictedKlJson(const ReplayRun& run) {
  if (!run.predicted_kl) return nullptr;
  const eviction::PredictedKl& kl = *run.predicted_kl;
  const eviction::Calibration& calibration = kl.calibration();
  return {{"method", Name(kl.method)},
          {"nats", kl.nats},
          {"standard_error", kl.standard_error},
          {"expected_nats", kl.expected()},
          {"low_nats", kl.low()},
          {"high_nats", kl.high()},
          {"rows", kl.rows},
          {"of_rows", kl.population},
          {"samples", kl.samples == 0 ? Json(nullptr) : Json(kl.samples)},
          {"calibration",
           {{"p10", calibration.p10}, {"median", calibration.median}, {"p90", calibration.p90}}}};
}

Json EvictingJson(const ReplayRun& run) {
  if (!run.evicting) return nullptr;
  Json json = QualityJson(*run.evicting);
  json["layers"] = Json::array();
  for (const eviction::LayerQuality& layer : run.layers) {
    if (layer.evicting.rows > 0) json["layers"].push_back(layer.layer);
  }
  return json;
}

Json HeadsJson(const eviction::LayerQuality& quality) {
  Json json = Json::array();
  for (size_t h = 0; h < quality.heads.size(); ++h) {
    Json head = {{"head", h}};
    head.update(HeadJson(quality.heads[h]));
    head["evicting"] = {{"rows", quality.evicting_heads[h].rows}};
    head["evicting"].update(HeadJson(quality.evicting_heads[h]));
    json.push_back(std::move(head));
  }
  return json;
}

Json DecilesJson(std::span<const eviction::LayerQuality> layers,
                 const eviction::MeasuredRows& measured) {
  Json deciles = Json::array();
  if (layers.empty()) return deciles;
  size_t row = 0;
  constexpr uint64_t kTenths = 10;
  for (uint64_t d = 0; d < kTenths; ++d) {
    const uint64_t begin = measured.population * d / kTenths,
                   end = measured.population * (d + 1) / kTenths;
    Mean mass, error;
    const size_t first = row;
    for (; row < measured.positions.size() && measured.positions[row] < measured.first + end;
         ++row) {
      for (const eviction::LayerQuality& layer : layers) {
        mass.Add(layer.step_mass[row]);
        if (!layer.step_output_error.empty()) error.Add(layer.step_output_error[row]);
      }
    }
    if (row == first) continue;
    Json decile = {{"first_step", begin}, {"steps", end - begin}, {"mass_mean", mass.Get()}};
    if (!layers.front().step_output_error.empty()) decile["output_error_mean"] = error.Get();
    deciles.push_back(std::move(decile));
  }
  return deciles;
}

}  // namespace kv::mnn::h2o
