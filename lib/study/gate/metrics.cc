// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kv::gate {
namespace {

constexpr auto kTrue = Voice::kTrue;
constexpr auto kReplay = Needs::kReplay;
constexpr auto kClock = Needs::kClock;
constexpr auto kHigher = Better::kHigher;
constexpr auto kLower = Better::kLower;
constexpr auto kNeither = Better::kNeither;

constexpr MetricInfo kMetrics[] = {
    {"whole_model_ratio", kTrue, kReplay, kHigher, false,
     "K and V of the whole sequence over the bytes resident at the end; worst row"},
    {"measured_ratio", kTrue, kReplay, kHigher, false,
     "raw over compressed of the very bytes that were compressed and decoded; worst row"},
    {"measured_ratio_mean", kTrue, kReplay, kHigher, false, "the same, mean over rows"},
    {"layer_ratio.least", kTrue, kReplay, kHigher, false,
     "measured_ratio of the K or V that compressed worst, in the worst row"},
    {"layer_ratio.most", kTrue, kReplay, kNeither, false,
     "of the K or V that compressed best, in the worst row: what lost its content does"},
    {"lossy_worst", kTrue, kReplay, kHigher, false,
     "tokens over those that eviction kept, of a row's last plan; worst row", "eviction_ratio"},
    {"lossy_mean", kTrue, kReplay, kHigher, false, "the same, mean over rows",
     "eviction_ratio_mean"},
    {"evictions", kTrue, kReplay, kNeither, false, "plans that removed something; all rows"},
    {"runtime_failures", kTrue, kReplay, kLower, false,
     "ranges that failed to encode, decode or verify, exported by the engine or not"},
    {"content.compared_ranges", kTrue, kReplay, kHigher, false,
     "ranges decoded and compared with their source by hash; all rows"},
    {"content.mismatches", kTrue, kReplay, kLower, false, "of these: not the same bytes"},
    {"content.not_finite", kTrue, kReplay, kLower, false,
     "NaN and infinite values of K and V that the reference does not have, all layers; fails "
     "above 0 unless a rule allows it"},
    {"reference.structure", kTrue, kReplay, kLower, false,
     "differences of geometry, layers, positions or token ids from the reference cache"},
    {"reference.mismatches", kTrue, kReplay, kLower, false,
     "values beyond the tolerance, or without one values whose stored bits differ"},
    {"reference.k_mismatches", kTrue, kReplay, kLower, false, "of these: K"},
    {"reference.v_mismatches", kTrue, kReplay, kLower, false, "of these: V"},
    {"reference.different", kTrue, kReplay, kLower, false,
     "values whose stored bits differ from the reference's, within the tolerance or not"},
    {"reference.max_abs", kTrue, kReplay, kLower, false, "largest |value - reference's|"},
    {"reference.k_max_abs", kTrue, kReplay, kLower, false, "the same of K"},
    {"reference.v_max_abs", kTrue, kReplay, kLower, false, "the same of V"},
    {"reference.mean_abs", kTrue, kReplay, kLower, false, "mean |value - reference's|"},
    {"reference.max_rel", kTrue, kReplay, kLower, false, "largest difference over |reference's|"},
    {"attention_error.mean", kTrue, kReplay, kLower, false,
     "|o - o'| / |o| of the attention output against the full cache; worst row"},
    {"attention_error.p95", kTrue, kReplay, kLower, false, "95th percentile over steps; worst row"},
    {"attention_error.worst", kTrue, kReplay, kLower, false, "largest of any layer and step"},
    {"attention_error.evicting_mean", kTrue, kReplay, kLower, false,
     "mean over queries that lost a key: those that lost none do not thin it out; worst row"},
    {"attention_error.evicting_p95", kTrue, kReplay, kLower, false,
     "95th percentile over queries that lost a key; worst row"},
    {"quant.ratio", kTrue, kReplay, kHigher, false,
     "K and V at 16 bits over their bytes in the types of 'quant', scales and all"},
    {"quant.output_error", kTrue, kReplay, kLower, false,
     "|O - O'| / |O| of attention outputs with the cache in these types; mean of layers"},
    {"quant.output_error.worst", kTrue, kReplay, kLower, false, "the same of the worst layer"},
    {"quant.one_minus_cosine", kTrue, kReplay, kLower, false,
     "1 - cosine of the same outputs; mean of rows and layers"},
    {"quant.attention_kl", kTrue, kReplay, kLower, false, "KL(P || P'); mean of rows and layers"},
    {"quant.mass_moved", kTrue, kReplay, kLower, false,
     "half of the sum of |P' - P|; mean of rows and layers"},
    {"quant.predicted_kl", kTrue, kReplay, kLower, false,
     "nats of the next token that the trace's gradients predict to be lost"},
    {"resident_bytes.initial", kTrue, kReplay, kNeither, false,
     "K and V held after prefill: raw, blobs and caches"},
    {"resident_bytes.peak", kTrue, kReplay, kLower, false, "most held at any step; worst row"},
    {"resident_bytes.final", kTrue, kReplay, kLower, false, "held after the last step; worst row"},
    {"attention_tps", kTrue, kClock, kHigher, false,
     "decode steps/s of attention alone, over the traced layers"},
    {"attention_drop_ratio", kTrue, kClock, kLower, false,
     "(baseline - attention_tps) / baseline; judged only beyond the measured noise"},
};

}  // namespace

std::span<const MetricInfo> OwnMetrics() { return kMetrics; }

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

void Measurements::SetNoise(std::string_view name, double noise) {
  const auto found = by_name_.find(name);
  if (found != by_name_.end()) found->second.noise = noise;
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

}  // namespace kv::gate
