// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/eviction/replay_prediction.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"

namespace kv::eviction {

Prediction::Prediction(const Snapshot& snapshot, const AttentionTrace& trace,
                       const ReplayRequest& request)
    : trace_(trace), request_(request) {
  if (!request.sensitivity) {
    if (trace.gradients) method_ = KlMethod::kGradients;
    return;
  }
  method_ = KlMethod::kSensitivity;
  for (const auto& [layer, weight] : *request.sensitivity) {
    if (snapshot.Find(layer) != nullptr) continue;
    throw std::move(
        Error(Finding::kTraceMismatch,
              fmt::format("the sensitivity of layer {} is given, but the snapshot has no such "
                          "layer: it is another model's",
                          layer))
            .File(trace.path));
  }
}

bool Prediction::Begin(const LayerAttention& attention) {
  if (!method_) return false;
  const bool has_changes = method_ == KlMethod::kGradients && HasChanges(attention);
  const bool has_weight = method_ == KlMethod::kSensitivity &&
                          request_.sensitivity->count(attention.layer()) != 0 && attention.kv().v;
  if (has_changes || has_weight) counted_.insert(attention.layer());
  return has_changes;
}

void Prediction::Take(size_t run, LayerQuality& quality) {
  if (changes_.size() <= run) changes_.resize(run + 1);
  for (const LogPChange& of_head : quality.log_p_changes) changes_[run].Add(of_head);
  quality.log_p_changes.clear();
}

std::optional<std::string> Prediction::Finish(size_t index, const MeasuredRows& measured,
                                              ReplayRun& run) const {
  if (!method_) return std::nullopt;
  if (auto why = WhyNot(run)) return why;
  if (method_ == KlMethod::kSensitivity) {
    run.predicted_kl = PredictKl(run.layers, *request_.sensitivity, measured.population);
  } else {
    const GradientRows& rows = *trace_.gradients;
    const uint64_t begin = std::max(measured.first, rows.begin);
    const uint64_t end = std::min(measured.first + measured.population, rows.end());
    run.predicted_kl = PredictKl(changes_.at(index), end - std::min(begin, end));
  }
  if (run.predicted_kl) return std::nullopt;
  return method_ == KlMethod::kGradients
             ? "no predicted KL: no measured row has gradients in all layers"
             : "no predicted KL: no row is measured in all layers";
}

std::string PredictionText(const ReplayResult& result) {
  const auto found = std::find_if(result.runs.begin(), result.runs.end(),
                                  [](const ReplayRun& run) { return run.predicted_kl; });
  if (found == result.runs.end()) return {};
  const PredictedKl& kl = *found->predicted_kl;
  return fmt::format(
      "predicted KL is in nats of the next token, mean of the decode rows, from {}: what the model "
      "is expected to lose and, in brackets, where four fifths of one study's runs lie",
      kl.method == KlMethod::kGradients
          ? fmt::format("gradients of {} next tokens for each of {} rows", kl.samples, kl.rows)
          : fmt::format("the sensitivity of layers over {} rows", kl.rows));
}

std::optional<std::string> Prediction::WhyNot(const ReplayRun& run) const {
  std::vector<uint32_t> missing;
  for (const LayerSchedule& schedule : run.schedules) {
    const bool loses = schedule.evictions_in_effect(run.end) > 0;
    if (loses && counted_.count(schedule.layer) == 0) missing.push_back(schedule.layer);
  }
  if (missing.empty()) return std::nullopt;
  constexpr size_t kMostNamed = 8;
  const size_t all = missing.size();
  missing.resize(std::min(all, kMostNamed));
  return fmt::format("no predicted KL: {} {} without {}: {}{}", all,
                     all == 1 ? "layer evicts" : "layers evict",
                     method_ == KlMethod::kGradients ? "gradients in the trace, or without V"
                                                     : "a sensitivity, rows in the trace, or V",
                     fmt::join(missing, ", "), all > kMostNamed ? " ..." : "");
}

}  // namespace kv::eviction
