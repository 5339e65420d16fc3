// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// What a request says and a run adds up to.
#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/study/eviction/replay.h"

namespace kv::eviction {

uint64_t ReplayRun::triggers() const {
  uint64_t sum = 0;
  for (const LayerSchedule& schedule : schedules) sum += schedule.triggers;
  return sum;
}

uint64_t ReplayRun::evictions() const {
  uint64_t sum = 0;
  for (const LayerSchedule& schedule : schedules) sum += schedule.evictions_in_effect(end);
  return sum;
}

uint64_t ReplayRun::floor_dominated() const {
  uint64_t sum = 0;
  for (const LayerSchedule& schedule : schedules) sum += schedule.floor_dominated;
  return sum;
}

double ReplayRun::target_ratio() const {
  if (budget) return budget->tokens ? NAN : 1 / budget->share;
  return config.target_mode == TargetMode::kStatic
             ? 1 / static_cast<double>(config.target_keep_ratio)
             : static_cast<double>(config.target_lossy_ratio);
}

std::string ReplayRun::target_text() const {
  return budget ? budget->Text() : fmt::format("{:.4g}x", target_ratio());
}

std::string ReplayRun::policy_text() const {
  return same_as.empty() ? policy : fmt::format("{} (= {} here)", policy, same_as);
}

double ReplayRun::ratio() const {
  if (steps.empty() || steps.back().kept == 0) return 1;
  return static_cast<double>(steps.back().full) / static_cast<double>(steps.back().kept);
}

double ReplayRun::mean_ratio() const {
  double full = 0, kept = 0;
  for (const StepBytes& step : steps) {
    full += static_cast<double>(step.full);
    kept += static_cast<double>(step.kept);
  }
  return kept == 0 ? 1 : full / kept;
}

std::string_view EngineText(const ReplayResult& result) {
  return result.engine == nullptr ? "exact" : result.engine->text;
}

uint64_t PromptTokens(const AttentionTrace& trace, const ReplayRequest& request) {
  if (trace.prompt_tokens && request.prompt_tokens &&
      *trace.prompt_tokens != *request.prompt_tokens) {
    throw std::move(Error(Finding::kUsage,
                          fmt::format("--prompt-tokens {}: the trace says that its prompt ends at "
                                      "{}",
                                      *request.prompt_tokens, *trace.prompt_tokens))
                        .File(trace.path));
  }
  const std::optional<uint64_t> prompt =
      trace.prompt_tokens ? trace.prompt_tokens : request.prompt_tokens;
  if (!prompt) {
    throw std::move(Error(Finding::kUsage, "the trace does not say where its prompt ends")
                        .File(trace.path)
                        .Hint("give --prompt-tokens N: rows from position N on are decode steps"));
  }
  if (trace.block_scores) return *prompt;
  if (*prompt < trace.q_start || *prompt >= trace.end_position()) {
    throw std::move(Error(Finding::kUsage,
                          fmt::format("--prompt-tokens {}: the trace's rows are positions {} to {}",
                                      *prompt, trace.q_start, trace.end_position() - 1))
                        .File(trace.path));
  }
  return *prompt;
}

}  // namespace kv::eviction
