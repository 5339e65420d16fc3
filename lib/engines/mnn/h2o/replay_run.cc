// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// What a request says and a run adds up to.
#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/engines/mnn/h2o/replay.h"

namespace kv::mnn::h2o {

std::string_view Name(Engine engine) {
  switch (engine) {
    case Engine::kExact:
      return "exact";
    case Engine::kDesign:
      return "design";
    case Engine::kMnn:
      return "mnn";
    case Engine::kMnnR6:
      return "mnn-r6";
  }
  return "?";
}

std::optional<Engine> ParseEngine(std::string_view name) {
  for (const Engine engine : {Engine::kExact, Engine::kDesign, Engine::kMnn, Engine::kMnnR6}) {
    if (name == Name(engine)) return engine;
  }
  return std::nullopt;
}

eviction::BlockConfig DefaultsOf(Engine engine) {
  eviction::BlockConfig config;
  if (engine == Engine::kDesign) config.target_lossy_ratio = 3.5f;
  return config;
}

uint64_t ReplayRun::triggers() const {
  uint64_t sum = 0;
  for (const eviction::LayerSchedule& schedule : schedules) sum += schedule.triggers;
  return sum;
}

uint64_t ReplayRun::evictions() const {
  uint64_t sum = 0;
  for (const eviction::LayerSchedule& schedule : schedules)
    sum += schedule.evictions_in_effect(end);
  return sum;
}

uint64_t ReplayRun::floor_dominated() const {
  uint64_t sum = 0;
  for (const eviction::LayerSchedule& schedule : schedules) sum += schedule.floor_dominated;
  return sum;
}

double ReplayRun::target_ratio() const {
  if (budget) return budget->tokens ? NAN : 1 / budget->share;
  return config.target_mode == eviction::TargetMode::kStatic
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

std::string_view Name(Clock clock) { return clock == Clock::kPaper ? "paper" : "mnn"; }

std::string EngineText(const ReplayResult& result) {
  const bool is_mnn = result.engine == Engine::kExact && result.clock == Clock::kMnn;
  return fmt::format("{}{}", Name(result.engine),
                     is_mnn ? " on the schedule of mnn's final revision" : "");
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

}  // namespace kv::mnn::h2o
