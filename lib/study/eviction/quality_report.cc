// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <cmath>

#include "lib/study/eviction/report.h"

namespace kv::eviction {
namespace {

// A figure of attention over rows, and the standard error of its mean.
struct Figure {
  const Distribution& of;
  double standard_error;
  double frobenius = Distribution::kNone, frobenius_error = Distribution::kNone;
};

Fields<Figure>::Field Statistic(std::string_view name, std::string_view text,
                                double Distribution::*member) {
  return {name, text, [member](const Figure& figure) { return figure.of.*member; }, Nullable()};
}

Fields<Figure>::Field Mean() {
  return Statistic("mean", "Mean; null if no row is defined", &Distribution::mean);
}
Fields<Figure>::Field P5() {
  return Statistic("p5", "5th percentile; null if no row is defined", &Distribution::p5);
}
Fields<Figure>::Field P95() {
  return Statistic("p95", "95th percentile; null if no row is defined", &Distribution::p95);
}
Fields<Figure>::Field Least() {
  return Statistic("min", "Smallest; null if no row is defined", &Distribution::min);
}
Fields<Figure>::Field Most() {
  return Statistic("max", "Largest; null if no row is defined", &Distribution::max);
}
Fields<Figure>::Field StandardError() {
  return {"standard_error",
          "Standard error of the mean where rows were drawn, 0 where all were measured; null if "
          "unknown",
          &Figure::standard_error, Nullable(AtLeast(0))};
}

const Fields<Figure>& MassFields() {
  static const Fields<Figure> fields = {
      Mean(), P5(), Statistic("p1", "1st percentile; null if no row is defined", &Distribution::p1),
      Least(), StandardError()};
  return fields;
}

const Fields<Figure>& ErrorFields() {
  static const Fields<Figure> fields = {
      Mean(),
      P95(),
      Most(),
      StandardError(),
      {"frobenius", "|O - O'| / |O| over all rows together; null if no row is defined",
       &Figure::frobenius, Nullable()},
      {"frobenius_standard_error",
       "Its standard error where rows were drawn, 0 where all were measured; null if unknown",
       &Figure::frobenius_error, Nullable(AtLeast(0))}};
  return fields;
}

const Fields<Figure>& CosineFields() {
  static const Fields<Figure> fields = {Mean(), P5(), Least(), StandardError()};
  return fields;
}

const Fields<Figure>& KlFields() {
  static const Fields<Figure> fields = {Mean(), P95(), Most(), StandardError()};
  return fields;
}

const Fields<Figure>& JsFields() {
  static const Fields<Figure> fields = {Mean(), P95(), StandardError()};
  return fields;
}

std::optional<Figure> OutputErrorOf(const AttentionSummary& rows) {
  if (!rows.has_output) return std::nullopt;
  return Figure{rows.output_error, rows.standard_error.output_error, rows.output_error_frobenius,
                rows.standard_error.output_error_frobenius};
}

std::optional<Figure> OutputCosineOf(const AttentionSummary& rows) {
  if (!rows.has_output) return std::nullopt;
  return Figure{rows.output_cosine, rows.standard_error.output_cosine};
}

std::map<std::string, std::optional<double>> OverlapsOf(const AttentionSummary& rows) {
  std::map<std::string, std::optional<double>> overlaps;
  for (size_t i = 0; i < kTopK.size(); ++i) {
    overlaps[std::to_string(kTopK[i])] = rows.top_k[i].mean;
  }
  return overlaps;
}

const Fields<AttentionSummary>& HeadFigureFields() {
  using Rows = AttentionSummary;
  static const Fields<Rows> fields = {
      {"mass_mean", "Mean attention mass that is kept",
       [](const Rows& rows) { return rows.mass.mean; }, Nullable()},
      {"mass_p5", "5th percentile of the mass that is kept",
       [](const Rows& rows) { return rows.mass.p5; }, Nullable()},
      {"kl_mean", "Mean KL(P' || P) in nats of attention over what is kept and the full cache",
       [](const Rows& rows) { return rows.kl.mean; }, Nullable()},
      {"top_k_overlap_16", "Mean share of a row's 16 heaviest keys that is kept",
       [](const Rows& rows) { return rows.top_k[1].mean; }, Nullable()},
      {"output_error_mean", "Mean relative error of the head's output; absent without V",
       [](const Rows& rows) {
         return rows.has_output ? std::optional(rows.output_error.mean) : std::nullopt;
       },
       Absent(Nullable())},
      {"output_cosine_p5", "5th percentile of the cosine of the head's output; absent without V",
       [](const Rows& rows) {
         return rows.has_output ? std::optional(rows.output_cosine.p5) : std::nullopt;
       },
       Absent(Nullable())}};
  return fields;
}

const Fields<AttentionSummary>& EvictingHeadFields() {
  static const Fields<AttentionSummary> fields = {
      {"rows", "Such rows", &AttentionSummary::rows},
      Fields<AttentionSummary>::Inline(HeadFigureFields())};
  return fields;
}

// Mean without the NaNs of undefined rows; NaN if no value is left.
class DefinedMean {
 public:
  void Add(double value) {
    if (std::isnan(value)) return;
    sum_ += value;
    ++count_;
  }
  double Get() const {
    return count_ == 0 ? Distribution::kNone : sum_ / static_cast<double>(count_);
  }

 private:
  double sum_ = 0;
  uint64_t count_ = 0;
};

}  // namespace

const Fields<AttentionSummary>& AttentionFields() {
  using Rows = AttentionSummary;
  static const Fields<Rows> fields = {
      {"rows", "Query rows described; a row is one query of one layer with all its heads",
       &Rows::rows},
      {"evicting_rows", "Of these, rows that lose a key to which some head gave weight",
       &Rows::evicting_rows},
      {"undefined_rows", "Of these, rows with a NaN figure, left out", &Rows::undefined_rows},
      {"mass", "Share of the full attention's mass that falls on kept keys, heads pooled",
       [](const Rows& rows) {
         return Figure{rows.mass, rows.standard_error.mass};
       },
       MassFields()},
      {"output_error",
       "|o - o'| / |o| of a layer's attention outputs, heads concatenated; null without V",
       OutputErrorOf, ErrorFields()},
      {"output_cosine", "Cosine of a layer's attention outputs, heads concatenated; null without V",
       OutputCosineOf, CosineFields()},
      {"kl",
       "KL(P' || P) in nats of attention over what is kept (P') and the full cache (P), heads "
       "pooled",
       [](const Rows& rows) {
         return Figure{rows.kl, rows.standard_error.kl};
       },
       KlFields()},
      {"js", "Jensen-Shannon divergence of the same two, heads pooled",
       [](const Rows& rows) {
         return Figure{rows.js, rows.standard_error.js};
       },
       JsFields()},
      {"top_k_overlap", "Mean share of a row's k heaviest keys that is kept, by k", OverlapsOf},
      {"nan_count", "Values of mass that are NaN, left out",
       [](const Rows& rows) { return rows.mass.nans; }}};
  return fields;
}

const Fields<EvictingRows>& EvictingFields() {
  static const Fields<EvictingRows> fields = {
      Fields<EvictingRows>::Inline(
          [](const EvictingRows& rows) -> const AttentionSummary& { return rows.summary; },
          AttentionFields()),
      {"layers", "Layers with such rows", &EvictingRows::layers}};
  return fields;
}

std::optional<EvictingRows> EvictingOf(const ReplayRun& run) {
  if (!run.evicting) return std::nullopt;
  EvictingRows rows{*run.evicting, {}};
  for (const LayerQuality& layer : run.layers) {
    if (layer.evicting.rows > 0) rows.layers.push_back(layer.layer);
  }
  return rows;
}

const Fields<Head>& HeadFields() {
  static const Fields<Head> fields = {
      {"head", "Number of the query head", &Head::head},
      Fields<Head>::Inline([](const Head& head) -> const AttentionSummary& { return head.all; },
                           HeadFigureFields()),
      {"evicting", "The same over the rows that lose something",
       [](const Head& head) -> const AttentionSummary& { return head.evicting; },
       EvictingHeadFields()}};
  return fields;
}

const Fields<Decile>& DecileFields() {
  static const Fields<Decile> fields = {
      {"first_step", "First decode step of the tenth, from 0", &Decile::first_step},
      {"steps", "Decode steps of the tenth", &Decile::steps},
      {"mass_mean", "Mean attention mass that is kept; null if no row is defined", &Decile::mass,
       Nullable()},
      {"output_error_mean",
       "Mean relative error of attention outputs; null if no row is defined, absent without V",
       &Decile::output_error, Absent(Nullable())}};
  return fields;
}

std::vector<Decile> DecilesOf(const std::vector<LayerQuality>& layers,
                              const MeasuredRows& measured) {
  std::vector<Decile> deciles;
  if (layers.empty()) return deciles;
  const bool has_output = !layers.front().step_output_error.empty();
  size_t row = 0;
  constexpr uint64_t kTenths = 10;
  for (uint64_t d = 0; d < kTenths; ++d) {
    const uint64_t begin = measured.population * d / kTenths,
                   end = measured.population * (d + 1) / kTenths;
    DefinedMean mass, error;
    const size_t first = row;
    for (; row < measured.positions.size() && measured.positions[row] < measured.first + end;
         ++row) {
      for (const LayerQuality& layer : layers) {
        mass.Add(layer.step_mass[row]);
        if (!layer.step_output_error.empty()) error.Add(layer.step_output_error[row]);
      }
    }
    if (row == first) continue;
    deciles.push_back(
        {begin, end - begin, mass.Get(), has_output ? std::optional(error.Get()) : std::nullopt});
  }
  return deciles;
}

}  // namespace kv::eviction
