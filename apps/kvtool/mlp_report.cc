// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/mlp_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kv {
namespace {

using nlohmann::ordered_json;

std::string_view Word(RawReason reason) {
  switch (reason) {
    case RawReason::kNone:
      return "";
    case RawReason::kFewGroups:
      return "too few groups";
    case RawReason::kNoImageWeights:
      return "no image MLPs in the weights";
  }
  return "";
}

ordered_json SegmentJson(const Segment& segment, uint32_t factor) {
  ordered_json json = {{"begin_token", segment.begin},
                       {"tokens", segment.tokens},
                       {"groups", segment.groups},
                       {"raw_tail_tokens", segment.tail(factor)},
                       {"new_tokens", segment.new_length(factor)}};
  json["raw_reason"] = segment.raw_reason == RawReason::kNone
                           ? ordered_json()
                           : ordered_json(std::string(Word(segment.raw_reason)));
  return json;
}

ordered_json DistributionJson(const Distribution& d) {
  if (d.count == 0) return {{"mean", nullptr}, {"count", 0}, {"nan_count", d.nans}};
  return {{"mean", d.mean}, {"min", d.min},     {"p1", d.p1},
          {"p5", d.p5},     {"p50", d.p50},     {"p95", d.p95},
          {"max", d.max},   {"count", d.count}, {"nan_count", d.nans}};
}

ordered_json SummaryJson(const AttentionSummary& summary) {
  ordered_json json = {{"rows", summary.rows},
                       {"output_error", DistributionJson(summary.output_error)},
                       {"output_error_frobenius", summary.output_error_frobenius},
                       {"output_cosine", DistributionJson(summary.output_cosine)},
                       {"raw_mass", DistributionJson(summary.mass)},
                       {"raw_mass_after", DistributionJson(summary.changed_mass)},
                       {"kl", DistributionJson(summary.kl)},
                       {"js", DistributionJson(summary.js)}};
  for (size_t i = 0; i < kTopK.size(); ++i) {
    json["top_k_raw"][fmt::to_string(kTopK[i])] = summary.top_k[i].mean;
  }
  return json;
}

ordered_json MethodJson(const MethodQuality& method, uint64_t bytes_full) {
  ordered_json json = {{"name", method.name},
                       {"description", method.description},
                       {"tokens", method.tokens},
                       {"bytes", method.bytes},
                       {"positions", method.moved ? "new-len" : "original"}};
  PutRatio(json, bytes_full, method.bytes);
  json["all"] = SummaryJson(method.all);
  json["layers"] = ordered_json::array();
  for (const MethodQuality::Layer& layer : method.layers) {
    ordered_json item = {{"layer", layer.layer}, {"all", SummaryJson(layer.all)}};
    item["heads"] = ordered_json::array();
    for (size_t h = 0; h < layer.heads.size(); ++h) {
      const AttentionSummary& head = layer.heads[h];
      item["heads"].push_back({{"head", h},
                               {"output_error_mean", head.output_error.mean},
                               {"output_error_p95", head.output_error.p95},
                               {"output_cosine_p5", head.output_cosine.p5},
                               {"raw_mass_mean", head.mass.mean},
                               {"raw_mass_after_mean", head.changed_mass.mean},
                               {"kl_mean", head.kl.mean}});
    }
    json["layers"].push_back(std::move(item));
  }
  return json;
}

// A figure of nothing is no 0.
std::string Four(double value) { return std::isnan(value) ? "-" : fmt::format("{:.4f}", value); }

size_t WorstHead(const MethodQuality::Layer& layer) {
  size_t worst = 0;
  for (size_t h = 1; h < layer.heads.size(); ++h) {
    if (layer.heads[h].output_error.mean > layer.heads[worst].output_error.mean) worst = h;
  }
  return worst;
}

}  // namespace

ordered_json PlanJson(const StepPlan& plan) {
  ordered_json json = {{"layers", plan.layers},
                       {"tokens", plan.tokens},
                       {"image_tokens", plan.image_len},
                       {"factor", plan.factor},
                       {"factor_from", plan.factor_from_weights ? "weights" : "flag"},
                       {"min_groups", plan.min_seq_len},
                       {"min_groups_from", plan.min_seq_len_from_weights ? "weights" : "flag"},
                       {"image", SegmentJson(plan.image, plan.factor)},
                       {"text", SegmentJson(plan.text, plan.factor)},
                       {"new_tokens", plan.new_length},
                       {"bytes_before", plan.bytes_before},
                       {"bytes_after", plan.bytes_after}};
  PutRatio(json, plan.bytes_before, plan.bytes_after);
  json["flop"] = plan.flop;
  return json;
}

std::string PlanText(const StepPlan& plan) {
  Table table({"segment", "tokens", "groups", "raw tail", "new", ""});
  const auto row = [&](const char* name, const Segment& segment) {
    if (segment.tokens == 0) return;
    table.Row({name, fmt::format("{}:{}", segment.begin, segment.begin + segment.tokens),
               fmt::to_string(segment.groups), fmt::to_string(segment.tail(plan.factor)),
               fmt::to_string(segment.new_length(plan.factor)),
               std::string(Word(segment.raw_reason))});
  };
  row("image", plan.image);
  row("text", plan.text);
  // A segment that stays raw has a reason, unless the whole step was left out.
  const bool left_out = plan.image.groups + plan.text.groups == 0 &&
                        plan.image.raw_reason == RawReason::kNone &&
                        plan.text.raw_reason == RawReason::kNone;
  if (left_out) return fmt::format("nothing is compressed: {} tokens\n", plan.tokens);
  return fmt::format(
      "groups of {} tokens{}, at least {} per segment{}\n{}{} tokens -> {} in {} layers, {} -> {}, "
      "{}\n",
      plan.factor, plan.factor_from_weights ? " (from the weights)" : "", plan.min_seq_len,
      plan.min_seq_len_from_weights ? " (from the weights)" : "", table.Text("  "), plan.tokens,
      plan.new_length, plan.layers, HumanBytes(plan.bytes_before), HumanBytes(plan.bytes_after),
      HumanRatio(plan.bytes_before, plan.bytes_after));
}

ordered_json CsrcJson(const CsrcOutcome& outcome) {
  return {{"effect", std::string(Name(outcome.effect))},
          {"returned_tokens", outcome.returned_length},
          {"layers_overwritten", outcome.layers_overwritten},
          {"corrupts", outcome.corrupts()},
          {"reason", outcome.reason}};
}

std::string CsrcText(const CsrcOutcome& outcome) {
  const auto& written = outcome.layers_overwritten;
  const auto count = std::count(written.begin(), written.end(), true);
  switch (outcome.effect) {
    case CsrcEffect::kCompresses:
      return fmt::format("compresses to {} tokens", outcome.returned_length);
    case CsrcEffect::kNothing:
      return fmt::format("changes nothing, returns {} and reports nothing: {}",
                         outcome.returned_length, outcome.reason);
    case CsrcEffect::kWrongMlp:
      return fmt::format("applies the wrong MLPs: {}", outcome.reason);
    case CsrcEffect::kLosesTokens:
      return fmt::format("returns {} and loses tokens: {}", outcome.returned_length,
                         outcome.reason);
    case CsrcEffect::kHalfWritten:
      return fmt::format(
          "overwrites {} of {} layers, then returns {} as if nothing had been done: {}", count,
          written.size(), outcome.returned_length, outcome.reason);
    case CsrcEffect::kThrows:
      return fmt::format("overwrites {} of {} layers, then throws: {}", count, written.size(),
                         outcome.reason);
  }
  return "";
}

ordered_json QualityJson(const StepQuality& quality) {
  ordered_json json = {{"open_loop", true},
                       {"queries", quality.queries},
                       {"query_rows", quality.query_rows},
                       {"query_heads", quality.query_heads},
                       {"positions", quality.positions_moved ? "new-len" : "original"},
                       {"bytes_full", quality.bytes_full}};
  json["relative_norms"] = ordered_json::array();
  for (const NormRatio& ratio : quality.norm_ratios) {
    json["relative_norms"].push_back({{"layer", ratio.layer}, {"k", ratio.k}, {"v", ratio.v}});
  }
  json["methods"] = ordered_json::array();
  for (const MethodQuality& method : quality.methods) {
    json["methods"].push_back(MethodJson(method, quality.bytes_full));
  }
  return json;
}

std::string QualityText(const StepQuality& quality) {
  Table methods({"method", "tokens", "bytes", "output error", "1 - cosine", "error p95",
                 "attention KL", "raw mass", "after"});
  for (const MethodQuality& method : quality.methods) {
    const AttentionSummary& all = method.all;
    methods.Row({method.name, fmt::to_string(method.tokens), HumanBytes(method.bytes),
                 Four(all.output_error_frobenius), Four(1 - all.output_cosine.mean),
                 Four(all.output_error.p95), Four(all.kl.mean), Four(all.mass.mean),
                 Four(all.changed_mass.mean)});
  }
  Table layers({"layer", "output error", "error p95", "worst head", "its error", "raw mass",
                "after", "|K'|/|K|", "|V'|/|V|"});
  const MethodQuality& step = quality.methods.front();
  for (size_t i = 0; i < step.layers.size(); ++i) {
    const MethodQuality::Layer& layer = step.layers[i];
    const size_t worst = WorstHead(layer);
    layers.Row({fmt::to_string(layer.layer), Four(layer.all.output_error_frobenius),
                Four(layer.all.output_error.p95), fmt::to_string(worst),
                Four(layer.heads[worst].output_error.mean), Four(layer.all.mass.mean),
                Four(layer.all.changed_mass.mean), fmt::format("{:.3f}", quality.norm_ratios[i].k),
                fmt::format("{:.3f}", quality.norm_ratios[i].v)});
  }
  return fmt::format(
      "attention against the full cache: {} query rows x {} heads ({}), positions {}, open loop\n"
      "{}\nthe step, layer by layer\n{}",
      quality.query_rows, quality.query_heads, quality.queries,
      quality.positions_moved ? "new-len" : "original", methods.Text("  "), layers.Text("  "));
}

}  // namespace kv
