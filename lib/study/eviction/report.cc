// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/report.h"

namespace kv::eviction {
namespace {

std::optional<uint64_t> SamplesIfAny(const PredictedKl& kl) {
  return kl.samples == 0 ? std::nullopt : std::optional(kl.samples);
}

// The documents of both causes differ in what they say without samples.
Fields<PredictedKl> MakeKlFields(Fields<PredictedKl>::Field samples) {
  return {
      {"method",
       "gradients: 1/2 of the squared sum over layers of g . (o' - o), with the trace's gradients; "
       "sensitivity: sum over layers of weight times 2 (1 - cosine)",
       [](const PredictedKl& kl) { return Name(kl.method); },
       {.choices = {"gradients", "sensitivity"}}},
      {"nats", "As the method computes it, not calibrated", &PredictedKl::nats, {.least = 0}},
      {"standard_error",
       "Of nats, from drawn rows and drawn next tokens; null: unknown",
       &PredictedKl::standard_error,
       {.least = 0, .nullable = true}},
      {"expected_nats", "nats over the calibration's median", &PredictedKl::expected, {.least = 0}},
      {"low_nats",
       "nats over p90: four fifths of the study's runs lie between low and high",
       &PredictedKl::low,
       {.least = 0}},
      {"high_nats", "nats over p10", &PredictedKl::high, {.least = 0}},
      {"rows", "Rows measured", &PredictedKl::rows, {.least = 1}},
      {"of_rows", "Rows that there are", &PredictedKl::population, {.least = 1}},
      std::move(samples),
      {"calibration", "Quantiles of predicted over real KL in the study (docs/closed-loop.md)",
       &PredictedKl::calibration, CalibrationFields()}};
}

}  // namespace

std::vector<std::array<uint64_t, 2>> RangesOf(const KeepPlan& plan) {
  std::vector<std::array<uint64_t, 2>> ranges;
  for (const KeepRange& range : plan) ranges.push_back({range.begin, range.count});
  return ranges;
}

const Fields<PlanEvent>& PlanEventPartFields() {
  static const Fields<PlanEvent> fields = {
      {"layer", "Number of the layer", &PlanEvent::layer},
      {"kv_head", "KV head that the event is of; null: the whole layer", &PlanEvent::kv_head},
      {"kept", "[first, count] of each run of positions that stays, ascending",
       [](const PlanEvent& event) { return RangesOf(event.kept); }},
      {"length_before", "Tokens in the layer's cache before",
       [](const PlanEvent& event) { return event.eviction.length_before; }}};
  return fields;
}

const Fields<PlanEvent>& PlanEventFields() {
  static const Fields<PlanEvent> fields = {
      {"token", "Position of the token decoded",
       [](const PlanEvent& event) { return event.eviction.token; }},
      Fields<PlanEvent>::Inline(PlanEventPartFields())};
  return fields;
}

const Fields<Calibration>& CalibrationFields() {
  static const Fields<Calibration> fields = {
      {"p10", "10th percentile", &Calibration::p10, {.least = 0}},
      {"median", "Median", &Calibration::median, {.least = 0}},
      {"p90", "90th percentile", &Calibration::p90, {.least = 0}}};
  return fields;
}

const Fields<PredictedKl>& PredictedKlFields(Cause cause) {
  static const Fields<PredictedKl> evicted =
      MakeKlFields({"samples",
                    "Next tokens drawn for a row; null without gradients",
                    SamplesIfAny,
                    {.least = 1}});
  static const Fields<PredictedKl> quantised = MakeKlFields(
      {"samples", "Next tokens drawn for each row; 0 without gradients", &PredictedKl::samples});
  return cause == Cause::kEviction ? evicted : quantised;
}

}  // namespace kv::eviction
