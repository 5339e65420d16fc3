// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/thresholds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/number.h"

namespace kv::gate {
namespace {

// A margin is this many standard deviations of the noise: of normal noise one in 740 lies beyond.
constexpr double kDeviations = 3;

// A figure with a limit on the side where worse lies. Margins are shares of what was measured: at
// least `least`, so that rounding and small changes of kvtool itself stay inside, and at most
// `most` where only one recording is there. Then the noise is guessed from other tokens of the same
// recording, and a guess must not make a gate that nothing can fail.
struct Watched {
  std::string_view metric, word;
  Op op;
  double least, most;
  std::string_view why = {};
};

constexpr Watched kWatched[] = {
    {"measured_ratio", {}, Op::kAtLeast, 0.01, 0.10},
    {"layer_ratio.least", {}, Op::kAtLeast, 0.02, 0.10},
    {"layer_ratio.most",
     {},
     Op::kAtMost,
     0.10,
     0.25,
     "a layer that suddenly compresses much better has lost its content"},
    {"whole_model_ratio", {}, Op::kAtLeast, 0.01, 0.10},
    {"lossy_worst", "eviction_ratio", Op::kAtLeast, 0.01, 0.10},
    {"attention_error.evicting_mean", {}, Op::kAtMost, 0.05, 0.25},
    {"attention_error.evicting_p95", {}, Op::kAtMost, 0.05, 0.25},
};

struct Scatter {
  double least = 0, most = 0, deviation = 0;
};

Scatter ScatterOf(const std::vector<double>& values) {
  Scatter spread;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  spread.least = *low;
  spread.most = *high;
  if (values.size() < 2) return spread;
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  spread.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
  return spread;
}

// To four digits, away from what was measured: a limit that is pleasant to read and never inside.
double Outward(double limit, Op op) {
  if (limit == 0) return 0;
  const double unit = std::pow(10.0, std::floor(std::log10(std::abs(limit))) - 3);
  const double steps = op == Op::kAtLeast ? std::floor(limit / unit) : std::ceil(limit / unit);
  // Read back from its decimal text, or a unit below 1 would leave digits behind it.
  return ParseNumber<double>(fmt::format("{:.4g}", steps * unit)).value();
}

std::vector<double> Known(std::string_view metric, std::span<const CaseResult* const> results) {
  std::vector<double> values;
  for (const CaseResult* result : results) {
    if (const auto value = result->measured.Value(metric)) values.push_back(*value);
  }
  return values;
}

std::string Percent(double share) { return fmt::format("{:.2g}%", 100 * share); }

// Whether a figure says anything in this case: a ratio of 1 where nothing was evicted does not.
bool Says(const Watched& watched, const CaseResult& result) {
  if (!result.measured.Value(watched.metric)) return false;
  const bool of_eviction = watched.metric == "lossy_worst" || watched.metric == "whole_model_ratio";
  return !of_eviction || result.measured.Value("evictions").value_or(0) > 0;
}

std::optional<SizedRule> Size(const Watched& watched,
                              std::span<const MeasuredCase* const> recordings) {
  const CaseResult& own = recordings.front()->samples.front();
  if (!Says(watched, own)) return std::nullopt;
  const double measured = *own.measured.Value(watched.metric);
  std::vector<const CaseResult*> firsts, samples;
  for (const MeasuredCase* one : recordings) firsts.push_back(&one->samples.front());
  for (const CaseResult& sample : recordings.front()->samples) samples.push_back(&sample);
  const std::vector<double> across = Known(watched.metric, firsts),
                            within = Known(watched.metric, samples);
  const Scatter repeats = ScatterOf(across), tokens = ScatterOf(within);
  const bool repeated = across.size() > 1;
  // Recordings of the same thing show its noise itself; other tokens only stand in for that.
  const Scatter& noise = repeated ? repeats : tokens;
  const double worst = watched.op == Op::kAtLeast ? repeats.least : repeats.most;
  if (!(worst > 0)) return std::nullopt;
  const double wanted = kDeviations * noise.deviation / worst;
  const double share = std::max(watched.least, repeated ? wanted : std::min(wanted, watched.most));

  SizedRule sized;
  const double limit = worst * (watched.op == Op::kAtLeast ? 1 - share : 1 + share);
  sized.rule = {std::string(watched.metric), watched.op, Outward(limit, watched.op), true};
  sized.rule.word = watched.word;
  const Measurement& place = *own.measured.Find(watched.metric);
  std::string& text = sized.remark;
  text = fmt::format("measured {:.4g}", measured);
  if (place.where.known()) text += ", decided by " + Text(place.where);
  if (repeated) {
    text += fmt::format("; {} recordings: {:.4g} to {:.4g}, noise {}", across.size(), repeats.least,
                        repeats.most, Percent(noise.deviation / worst));
  } else if (within.size() > 1) {
    text += fmt::format("; over {} samples of its tokens: {:.4g} to {:.4g}, noise {}",
                        within.size(), tokens.least, tokens.most, Percent(noise.deviation / worst));
  }
  text += "; margin " + Percent(share);
  if (share > wanted) text += " (the least that is taken)";
  if (share < wanted) text += " (the most without a second recording)";
  if (!watched.why.empty()) text += "; " + std::string(watched.why);
  return sized;
}

// What is exact has no margin.
void AddExact(const CaseResult& own, std::vector<SizedRule>& rules) {
  const auto add = [&](const char* metric, Op op, double limit, std::string remark) {
    rules.push_back({{metric, op, limit, true}, std::move(remark)});
  };
  const auto value = [&](const char* metric) { return own.measured.Value(metric).value_or(0); };
  if (const double ranges = value("content.compared_ranges"); ranges > 0) {
    add("content.mismatches", Op::kAtMost, 0,
        fmt::format("exact: {:.0f} ranges were decoded and compared with their source", ranges));
    add("content.compared_ranges", Op::kAtLeast, 1, "so that nothing compared is no pass");
  }
  if (value("evictions") > 0) {
    add("evictions", Op::kAtLeast, 1,
        fmt::format("measured {:.0f}; so that nothing evicted is no pass", value("evictions")));
  }
  add("runtime_failures", Op::kAtMost, value("runtime_failures"), "exact");
  const double broken = value("content.not_finite");
  add("content.not_finite", Op::kAtMost, broken,
      broken == 0 ? "exact: no NaN and no infinite value"
                  : fmt::format("this run already has {:.0f} NaN or infinite values", broken));
}

}  // namespace

std::vector<SizedRule> SizeRules(std::span<const MeasuredCase* const> recordings) {
  std::vector<SizedRule> rules;
  for (const Watched& watched : kWatched) {
    if (auto rule = Size(watched, recordings)) rules.push_back(std::move(*rule));
  }
  if (!rules.empty()) AddExact(recordings.front()->samples.front(), rules);
  return rules;
}

}  // namespace kv::gate
