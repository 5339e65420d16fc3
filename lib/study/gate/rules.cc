// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace kv::gate {
namespace {

using enum Voice;
using enum Needs;
using enum Better;
using enum Kind;

constexpr MetricInfo kMetrics[] = {
    {"whole_model_ratio", kTrue, kReplay, kHigher, kNumber,
     "K and V of the whole sequence / the bytes resident at the end; worst row"},
    {"measured_ratio", kTrue, kReplay, kHigher, kNumber,
     "raw / compressed size of the bytes that were compressed and decoded; worst row"},
    {"measured_ratio_mean", kTrue, kReplay, kHigher, kNumber, "measured_ratio, mean over rows"},
    {"layer_ratio.least", kTrue, kReplay, kHigher, kNumber,
     "measured_ratio of the layer's K or V that compressed worst, in the worst row"},
    {"layer_ratio.most", kTrue, kReplay, kNeither, kNumber,
     "measured_ratio of the layer's K or V that compressed best: lost content compresses well"},
    {"lossy_worst", kTrue, kReplay, kHigher, kNumber,
     "tokens / tokens that eviction kept, of a row's last plan; worst row", "eviction_ratio"},
    {"lossy_mean", kTrue, kReplay, kHigher, kNumber,
     "tokens / tokens that eviction kept, of a row's last plan; mean over rows",
     "eviction_ratio_mean"},
    {"evictions", kTrue, kReplay, kNeither, kNumber, "plans that removed something; all rows"},
    {"runtime_failures", kTrue, kReplay, kLower, kNumber,
     "ranges that failed to encode, decode or verify, exported by the engine or not"},
    {"content.compared_ranges", kTrue, kReplay, kHigher, kCount,
     "ranges decoded and compared with their source by hash; all rows"},
    {"content.mismatches", kTrue, kReplay, kLower, kCount, "decoded ranges whose bytes differ"},
    {"content.not_finite", kTrue, kReplay, kLower, kCount,
     "NaN and infinite values of K and V that the reference does not have, all layers; fails "
     "above 0 unless a rule allows it"},
    {"reference.structure", kTrue, kReplay, kLower, kCount,
     "differences of geometry, layers, positions or token ids from the reference cache"},
    {"reference.mismatches", kTrue, kReplay, kLower, kCount,
     "values beyond the tolerance, or without one values whose stored bits differ"},
    {"reference.k_mismatches", kTrue, kReplay, kLower, kCount, "reference.mismatches in K"},
    {"reference.v_mismatches", kTrue, kReplay, kLower, kCount, "reference.mismatches in V"},
    {"reference.different", kTrue, kReplay, kLower, kCount,
     "values whose stored bits differ from the reference's, within the tolerance or not"},
    {"reference.max_abs", kTrue, kReplay, kLower, kNumber, "largest |value - reference's|"},
    {"reference.k_max_abs", kTrue, kReplay, kLower, kNumber, "largest |value - reference's| in K"},
    {"reference.v_max_abs", kTrue, kReplay, kLower, kNumber, "largest |value - reference's| in V"},
    {"reference.mean_abs", kTrue, kReplay, kLower, kNumber, "mean |value - reference's|"},
    {"reference.max_rel", kTrue, kReplay, kLower, kNumber, "largest difference over |reference's|"},
    {"attention_error.mean", kTrue, kReplay, kLower, kNumber,
     "|o - o'| / |o| of the attention output against the full cache; worst row"},
    {"attention_error.p95", kTrue, kReplay, kLower, kNumber,
     "95th percentile of the attention error over steps; worst row"},
    {"attention_error.worst", kTrue, kReplay, kLower, kNumber,
     "largest error of any layer and step"},
    {"attention_error.evicting_mean", kTrue, kReplay, kLower, kNumber,
     "mean attention error over the queries that lost a key; worst row"},
    {"attention_error.evicting_p95", kTrue, kReplay, kLower, kNumber,
     "95th percentile of the attention error over queries that lost a key; worst row"},
    {"quant.ratio", kTrue, kReplay, kHigher, kNumber,
     "K and V at 16 bits / their bytes in the types of 'quant', scales included"},
    {"quant.output_error", kTrue, kReplay, kLower, kNumber,
     "|O - O'| / |O| of attention outputs with the cache in these types; mean of layers"},
    {"quant.output_error.worst", kTrue, kReplay, kLower, kNumber, "output error, worst layer"},
    {"quant.one_minus_cosine", kTrue, kReplay, kLower, kNumber,
     "1 - cosine of attention outputs with the cache in these types; mean of rows and layers"},
    {"quant.attention_kl", kTrue, kReplay, kLower, kNumber, "KL(P || P'); mean of rows and layers"},
    {"quant.mass_moved", kTrue, kReplay, kLower, kNumber,
     "half of the sum of |P' - P|; mean of rows and layers"},
    {"quant.predicted_kl", kTrue, kReplay, kLower, kNumber,
     "loss in nats per next token, predicted from the trace's gradients"},
    {"resident_bytes.initial", kTrue, kReplay, kNeither, kCount,
     "K and V held after prefill: raw, blobs and caches"},
    {"resident_bytes.peak", kTrue, kReplay, kLower, kCount, "most K and V at any step; worst row"},
    {"resident_bytes.final", kTrue, kReplay, kLower, kCount, "K, V after the last step; worst row"},
    {"prompt_tokens_per_second", kTrue, kEngine, kHigher, kNumber,
     "tokens/s of reading prompts: all of a log's together, or the slowest test of a bench"},
    {"load_us", kTrue, kEngine, kLower, kNumber, "time that the engine took to load its model"},
    {"model_bytes", kTrue, kEngine, kNeither, kCount, "size of the model, as a bench reports it"},
    {"loss.mean_kl", kTrue, kEngine, kLower, kNumber,
     "loss in nats per next token against a base run of the engine, mean over tokens"},
    {"loss.p999_kl", kTrue, kEngine, kLower, kNumber, "nats lost, 99.9th percentile of tokens"},
    {"loss.max_kl", kTrue, kEngine, kLower, kNumber, "nats lost, worst token"},
    {"loss.same_top", kTrue, kEngine, kHigher, kNumber,
     "share of tokens whose likeliest successor is that of the base run"},
    {"loss.rms_dp", kTrue, kEngine, kLower, kNumber,
     "root mean square of the change in the text's own tokens' probabilities"},
    {"loss.perplexity", kTrue, kEngine, kLower, kNumber, "perplexity of the text"},
    {"loss.perplexity_ratio", kTrue, kEngine, kLower, kNumber,
     "perplexity of the text / that of the base run"},
    {"attention_tps", kTrue, kClock, kHigher, kNumber,
     "decode steps/s of attention alone, over the traced layers"},
    {"attention_drop_ratio", kTrue, kClock, kLower, kNumber,
     "(baseline - attention_tps) / baseline; judged only beyond the measured noise"},
};

struct OpInfo {
  std::string_view name;
  Op opposite;  // the relation that holds if the rule fails
};

constexpr OpInfo kOps[] = {
    // in the order of enum Op
    {">=", Op::kBelow},  {"<=", Op::kAbove},   {">", Op::kAtMost},
    {"<", Op::kAtLeast}, {"==", Op::kDiffers}, {"!=", Op::kEqual},
};

const OpInfo& FindInfo(Op op) { return kOps[static_cast<size_t>(op)]; }

double Margin(double value, Op op, double limit) {
  switch (op) {
    case Op::kAtLeast:
    case Op::kAbove:
      return value - limit;
    case Op::kAtMost:
    case Op::kBelow:
      return limit - value;
    case Op::kEqual:
      return -std::abs(value - limit);
    case Op::kDiffers:
      return std::abs(value - limit);
  }
  return 0;
}

// A difference in speed that equal runs also show is within the noise: it neither keeps a rule nor
// certainly breaks one that a config requested.
void JudgeSpeed(const Rule& rule, double value, const Noise* noise, RuleOutcome& outcome) {
  const std::optional<double> relative = noise == nullptr ? std::nullopt : noise->relative();
  outcome.status = Status::kNotRun;
  if (!relative) {
    outcome.reason = "the noise of repeated baselines was not measured";
  } else if (noise->seconds < kLeastSeconds) {
    outcome.reason =
        fmt::format("a replay shorter than {:.0f} ms is not timed", 1e3 * kLeastSeconds);
  } else if (std::abs(value) > *relative) {
    outcome.status = Holds(value, rule.op, rule.limit) ? Status::kPass : Status::kFail;
  } else {
    outcome.reason =
        fmt::format("a difference of {:.2f}% is within the noise of {} equal baselines, {:.2f}%",
                    100 * value, noise->baseline_tps.size(), 100 * *relative);
    if (rule.implied || Holds(value, rule.op, rule.limit)) return;
    outcome.status = Status::kInconclusive;
    outcome.reason += "; 'repeat' of the case asks for more of them";
  }
}

// Passes if every value of the range keeps the rule, and fails if none does.
Status JudgeRange(const Rule& rule, const FigureRange& range) {
  const bool is_exact = rule.op == Op::kEqual || rule.op == Op::kDiffers;
  const bool inside = range.least < rule.limit && rule.limit < range.most;
  const bool holds = Holds(range.least, rule.op, rule.limit);
  if (holds != Holds(range.most, rule.op, rule.limit) || (is_exact && inside)) {
    return Status::kInconclusive;
  }
  return holds ? Status::kPass : Status::kFail;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Spread(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return (*high - *low) / Median(values);
}

}  // namespace

std::span<const MetricInfo> OwnMetrics() { return kMetrics; }

Value FigureValue(double value, bool is_flag) {
  constexpr double kLargestExact = 9007199254740992.0;  // 2^53: smaller integers are exact
  if (std::isnan(value)) return nullptr;
  if (is_flag) return value != 0;
  const double clamped = std::clamp(value, -kLargestExact, kLargestExact);
  if (value == static_cast<double>(static_cast<int64_t>(clamped))) {
    return static_cast<int64_t>(value);
  }
  return value;
}

Value FigureSchema(const MetricInfo& info) {
  std::string text(info.summary);
  if (text[0] >= 'a' && text[0] <= 'z') text[0] = static_cast<char>(text[0] - 'a' + 'A');
  const char* type = info.kind == Kind::kFlag    ? "boolean"
                     : info.kind == Kind::kCount ? "integer"
                                                 : "number";
  return Value::Object{{"description", text}, {"type", Value::List{type, "null"}}};
}

std::string Text(const Where& where, bool always_range) {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (where.layer) add(fmt::format("layer {}", *where.layer));
  if (!where.kind.empty()) text += (text.empty() ? "" : " ") + where.kind;
  if (where.head) add(fmt::format("head {}", *where.head));
  if (where.token_begin && where.token_end) {
    add(!always_range && *where.token_end == *where.token_begin + 1
            ? fmt::format("token {}", *where.token_begin)
            : fmt::format("tokens {}:{}", *where.token_begin, *where.token_end));
  }
  if (where.dim) add(fmt::format("{} {}", where.head ? "dim" : "channel", *where.dim));
  if (!where.log.empty()) add(where.log);
  return text;
}

void Measurements::Set(std::string_view name, double value, Where where, std::string note) {
  if (!std::isfinite(value)) return Undefined(name, "not a finite number");
  by_name_.insert_or_assign(std::string(name),
                            Measurement{value, std::move(note), std::move(where)});
}

void Measurements::Missing(std::string_view name, std::string reason) {
  by_name_.insert_or_assign(std::string(name), Measurement{{}, std::move(reason)});
}

void Measurements::Undefined(std::string_view name, std::string reason) {
  Missing(name, std::move(reason));
  by_name_.find(name)->second.undefined = true;
}

void Measurements::SetRange(std::string_view name, const FigureRange& range) {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) found->second.range = range;
}

void Measurements::SetNoise(std::string_view name, double noise, std::string why) {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return;
  found->second.noise = noise;
  found->second.noise_why = std::move(why);
}

void Measurements::Copy(std::string_view name, const Measurements& from) {
  by_name_.insert_or_assign(std::string(name), *from.Find(name));
}

const Measurement* Measurements::Find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &found->second;
}

std::optional<double> Measurements::Value(std::string_view name) const {
  const Measurement* found = Find(name);
  return found == nullptr ? std::nullopt : found->value;
}

std::string_view Name(Op op) { return FindInfo(op).name; }

std::optional<Op> ParseOp(std::string_view text) {
  for (size_t i = 0; i < std::size(kOps); ++i) {
    if (kOps[i].name == text) return static_cast<Op>(i);
  }
  return std::nullopt;
}

bool Holds(double value, Op op, double limit) {
  switch (op) {
    case Op::kAtLeast:
      return value >= limit;
    case Op::kAtMost:
      return value <= limit;
    case Op::kAbove:
      return value > limit;
    case Op::kBelow:
      return value < limit;
    case Op::kEqual:
      return value == limit;
    case Op::kDiffers:
      return value != limit;
  }
  return false;
}

std::string_view Name(Status status) {
  constexpr std::string_view kNames[] = {"pass", "fail", "not_run", "inconclusive"};
  return kNames[static_cast<size_t>(status)];
}

std::string_view Text(Status status) {
  return status == Status::kNotRun ? "not run" : Name(status);
}

double RuleOutcome::slack() const {
  const bool says_something = margin && !rule.is_flag && !std::isnan(rule.limit) && rule.limit != 0;
  return says_something ? *margin / std::abs(rule.limit) : HUGE_VAL;
}

double Noise::baseline() const { return Median(baseline_tps); }
double Noise::candidate() const { return Median(candidate_tps); }

std::optional<double> Noise::relative() const {
  if (baseline_tps.size() < 2 || !(baseline() > 0)) return std::nullopt;
  if (candidate_tps.size() < 2 || !(candidate() > 0)) return Spread(baseline_tps);
  return std::max(Spread(baseline_tps), Spread(candidate_tps));
}

RuleOutcome Evaluate(const Rule& rule, const Measurements& measured, const Noise* noise) {
  RuleOutcome outcome;
  outcome.rule = rule;
  const Measurement* measurement = measured.Find(rule.metric);
  if (measurement == nullptr || !measurement->value) {
    outcome.reason = measurement == nullptr ? "not measured in this case" : measurement->reason;
    const bool is_undefined = measurement != nullptr && measurement->undefined;
    outcome.status = rule.required || is_undefined ? Status::kFail : Status::kNotRun;
    if (rule.required && !is_undefined)
      outcome.reason = "required, but not known: " + outcome.reason;
    return outcome;
  }
  const double value = *measurement->value;
  outcome.value = value;
  outcome.where = measurement->where;
  if (!rule.is_flag) outcome.margin = Margin(value, rule.op, rule.limit);
  if (rule.metric == "attention_drop_ratio") {
    JudgeSpeed(rule, value, noise, outcome);
    if (!outcome.reason.empty()) return outcome;
  } else if (measurement->range) {
    outcome.status = JudgeRange(rule, *measurement->range);
    if (outcome.status != Status::kPass) outcome.reason = measurement->range->why;
    return outcome;
  } else {
    outcome.status = Holds(value, rule.op, rule.limit) ? Status::kPass : Status::kFail;
  }
  if (outcome.status == Status::kFail) outcome.reason = measurement->reason;
  return outcome;
}

std::string OlderAndPlace(const RuleOutcome& outcome) {
  std::string text;
  if (outcome.baseline) {
    text = fmt::format(" (was {}{})", NumberText(*outcome.baseline),
                       outcome.pinned ? " in the pinned baseline" : "");
  }
  return outcome.where.known() ? text + ", at " + Text(outcome.where) : text;
}

std::string NumberText(double value, bool is_flag) {
  if (std::isnan(value)) return "no limit";
  if (is_flag) return value != 0 ? "true" : "false";
  if (value == std::floor(value) && std::abs(value) < 1e15) return fmt::format("{:.0f}", value);
  return fmt::format("{:.4g}", value);
}

std::string Text(const RuleOutcome& outcome) {
  const Rule& rule = outcome.rule;
  if (std::isnan(rule.limit)) return rule.shown();  // the reason of such a rule states everything
  const std::string limit = NumberText(rule.limit, rule.is_flag);
  if (!outcome.value)
    return fmt::format("{} unknown, {} {} asked", rule.shown(), Name(rule.op), limit);
  const bool holds = Holds(*outcome.value, rule.op, rule.limit);
  const Op op = holds ? rule.op : FindInfo(rule.op).opposite;
  return fmt::format("{} {} {} {}", rule.shown(), NumberText(*outcome.value, rule.is_flag),
                     Name(op), limit);
}

}  // namespace kv::gate
