// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/study/eviction/replay.h"

// Notes on a replay: what was requested, the sums of a run, and how to read its figures.
namespace kv::eviction {
namespace {

// Notes of equal text, merged with the targets that they apply to.
class Notes {
 public:
  void Add(const ReplayRun& run, std::string text) {
    const auto found = std::find_if(notes_.begin(), notes_.end(), [&](const Note& note) {
      return note.policy == run.policy && note.text == text;
    });
    if (found != notes_.end()) {
      found->targets.push_back(run.target_text());
    } else {
      notes_.push_back({run.policy, std::move(text), {run.target_text()}});
    }
  }
  std::vector<std::string> Texts() const {
    std::vector<std::string> texts;
    for (const Note& note : notes_) {
      texts.push_back(
          fmt::format("{} at {}: {}", note.policy, fmt::join(note.targets, ", "), note.text));
    }
    return texts;
  }

 private:
  struct Note {
    std::string policy, text;
    std::vector<std::string> targets;
  };
  std::vector<Note> notes_;
};

const LayerSchedule* FirstEvicting(const ReplayRun& run) {
  const auto found = std::find_if(run.schedules.begin(), run.schedules.end(),
                                  [](const LayerSchedule& s) { return !s.evictions.empty(); });
  return found == run.schedules.end() ? nullptr : &*found;
}

const LayerSchedule* LastEvicting(const ReplayRun& run) {
  const auto found = std::find_if(run.schedules.rbegin(), run.schedules.rend(),
                                  [](const LayerSchedule& s) { return !s.evictions.empty(); });
  return found == run.schedules.rend() ? nullptr : &*found;
}

// Returns true if every kv head evicts its oldest tokens first.
bool KeepsRecent(const LayerPlan& plan) {
  for (uint32_t unit = 0; unit < plan.units; ++unit) {
    uint32_t previous = 0;
    for (uint64_t position = 0; position <= plan.events.back().token; ++position) {
      const uint32_t last = plan.last_seen(unit, position);
      if (last < previous) return false;
      previous = last;
    }
  }
  return true;
}

// Returns true if pyramid gives all layers the same budget.
bool SpreadsEvenly(const ReplayRun& run) {
  return FirstEvicting(run)->evictions == LastEvicting(run)->evictions;
}

void NoteSnapKv(const ReplayRun& run, const ReplayResult& result, const AttentionTrace& trace,
                Notes& notes) {
  const Eviction first = FirstEvicting(run)->evictions.front();
  const uint64_t rows = first.token + 1 - trace.q_start;
  const uint64_t window = std::min(result.paper.window, rows);
  if (rows < result.paper.window && first.token + 1 > rows) {
    notes.Add(run, fmt::format("scores with {} query rows, not {}: the trace lacks earlier ones",
                               rows, result.paper.window));
  }
  // If layers differ, the last one has the least.
  const std::vector<Eviction>& least = LastEvicting(run)->evictions;
  const bool even = SpreadsEvenly(run);
  const std::string_view where = even ? "" : "in its last layer ";
  if (least.front().kept <= window) {
    notes.Add(run, fmt::format("{}keeps the most recent tokens, as window does: the budget is not "
                               "above its window of {} rows (--snapkv-window)",
                               where, window));
  } else if (!result.paper.grow) {
    const auto full = std::find_if(least.begin(), least.end(), [&](const Eviction& e) {
      return e.kept <= e.token - first.token + window;
    });
    if (full != least.end() && full->token + 1 < result.end) {
      notes.Add(run, fmt::format("{}keeps the most recent tokens from position {} on: its window "
                                 "and the tokens after the prompt fill the budget",
                                 where, full->token + 1));
    }
  }
  if (!run.info().evenly.empty() && even) {
    notes.Add(run, fmt::format("spreads the budget evenly, as {} does: {}", run.info().evenly,
                               FirstEvicting(run) == LastEvicting(run)
                                   ? std::string("one layer evicts")
                                   : fmt::format("--pyramid-beta {} would leave the last layer "
                                                 "less than the window of {} rows",
                                                 result.paper.pyramid_beta, result.paper.window)));
  }
}

void NoteBlock(const ReplayRun& run, const ReplayResult& result, Notes& notes) {
  const LayerSchedule& schedule = *FirstEvicting(run);
  const uint64_t start = schedule.evictions.front().token;
  LengthWalk walk(schedule);
  uint64_t most = 0, floor_end = 0;
  for (uint64_t token = start; token < result.end; ++token) {
    const uint64_t budget = run.budget->At(token + 1), held = walk.At(token);
    const uint64_t more = held - std::min(held, budget);
    if (budget < BlockFloor(run.config)) {
      floor_end = token + 1;
    } else {
      most = std::max(most, more);
    }
  }
  if (most > 0) {
    notes.Add(run, fmt::format("keeps whole blocks of {} tokens, up to {} above the budget",
                               run.config.block_tokens, most));
  }
  if (floor_end > 0) {
    notes.Add(run, fmt::format("keeps its floor of sink and recent blocks, which is above the "
                               "budget up to position {}",
                               floor_end - 1));
  }
}

// Returns why the ratio of the whole model is less than the requested one.
std::optional<std::string> WhichEvict(const ReplayResult& result) {
  const size_t evicting = EvictingLayers(result).size();
  const size_t all = result.runs.front().schedules.size();
  if (result.engine != nullptr || evicting == 0 || evicting == all) return std::nullopt;
  return fmt::format("budgets apply to the {} layers that evict; true and mean ratio count all {}",
                     evicting, all);
}

// Notes how to read figures in nats, or why there are none.
void NoteNats(const ReplayResult& result, std::vector<std::string>& texts) {
  const ReplayRun* predicted = FirstPredicted(result);
  if (predicted != nullptr) {
    texts.push_back(fmt::format("expected KL is {}; brackets show this range",
                                ExpectedKlText(*predicted->predicted_kl)));
    const std::string top = RemarkOnTopRows(*predicted->predicted_kl);
    if (!top.empty()) texts.push_back(fmt::format("expected KL of {}: {}", predicted->policy, top));
  }
  double largest = 0;
  for (const ReplayRun& run : result.runs) {
    if (run.predicted_kl) largest = std::max(largest, run.predicted_kl->expected());
  }
  std::string large =
      predicted == nullptr ? "" : RemarkOnLargeKl(largest, predicted->predicted_kl->basis);
  if (!large.empty()) texts.push_back(std::move(large));
  if (!result.kl_method && result.runs.front().quality) texts.emplace_back(kNoNats);
}

std::string RatioText(double ratio) { return fmt::format("{:.4g}x", ratio); }

}  // namespace

std::string_view SamePolicy(const ReplayRun& run) {
  bool evicts = false, recent = true;
  for (const LayerPlan& plan : run.plans) {
    if (plan.events.empty()) continue;
    evicts = true;
    recent = recent && KeepsRecent(plan);
  }
  if (!evicts) return {};
  if (recent && !run.info().keeps_recent) {
    return std::ranges::find_if(Policies(), &PolicyInfo::keeps_recent)->name;
  }
  return !recent && !run.info().evenly.empty() && SpreadsEvenly(run) ? run.info().evenly : "";
}

std::vector<std::string> WriteNotes(const ReplayResult& result, const AttentionTrace& trace) {
  Notes notes;
  bool late = false, grows = false;
  for (const ReplayRun& run : result.runs) {
    if (!run.budget || FirstEvicting(run) == nullptr) continue;
    const Tuning tuning = run.info().tuned_by;
    grows |= run.info().at_prompt_end && result.paper.grow;
    late |= trace.q_start >= result.prompt && result.prompt > 0;
    if (tuning == Tuning::kBlocks) NoteBlock(run, result, notes);
    if (tuning == Tuning::kWindow) NoteSnapKv(run, result, trace, notes);
    if (tuning == Tuning::kHeavyShare && trace.q_start > 0) {
      notes.Add(
          run, fmt::format("attention is summed from position {} on: the trace has no earlier rows",
                           trace.q_start));
    }
  }
  std::vector<std::string> texts = notes.Texts();
  if (grows) {
    texts.push_back(
        "snapkv and pyramid compress the prompt once, as published, and keep every later token; "
        "--after-prompt hold holds the budget at every step");
  }
  if (auto diluted = WhichEvict(result)) texts.push_back(std::move(*diluted));
  std::string windows = RemarkOnWindows(trace, result.end);
  if (!windows.empty()) texts.push_back(std::move(windows));
  NoteNats(result, texts);
  if (late) {
    texts.push_back(
        fmt::format("the trace has no row of the prompt: the first eviction comes after position "
                    "{}, not at the prompt's end",
                    trace.q_start));
  }
  return texts;
}

std::optional<std::string> WhereTargetsEnd(const ReplayResult& result) {
  if (result.engine == nullptr) return std::nullopt;
  std::vector<std::string> ends, told;
  for (const ReplayRun& run : result.runs) {
    const std::string target = run.target_text();
    if (run.evictions() == 0 || std::count(told.begin(), told.end(), target) != 0) continue;
    told.push_back(target);
    uint64_t most = 0;
    for (const LayerSchedule& schedule : run.schedules) {
      most = std::max<uint64_t>(most, schedule.evictions.size());
    }
    std::vector<std::string> why;
    if (most > 1) why.push_back(fmt::format("applied up to {} times to a layer", most));
    const uint64_t floor = run.engine ? run.engine->floor_decisions : run.floor_dominated();
    if (floor > 0) {
      why.push_back(fmt::format("the floor of sink and recent blocks decides {} of {} triggers",
                                floor, run.triggers()));
    }
    if (why.empty()) continue;
    ends.push_back(
        fmt::format("{} ends at {} ({})", target, RatioText(run.ratio()), fmt::join(why, ", ")));
  }
  if (ends.empty()) return std::nullopt;
  return fmt::format("a target applies to what the cache holds at each trigger: {}",
                     fmt::join(ends, "; "));
}

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

std::string_view Name(WeightRule rule) { return rule == WeightRule::kSoftmax ? "exact" : "flash"; }

uint64_t PlanCursor::NextToken(size_t plan) const {
  const std::vector<Eviction>& events = run_.plans[plan].events;
  return next_[plan] < events.size() ? events[next_[plan]].token : UINT64_MAX;
}

void PlanCursor::EmitUpTo(uint64_t end, const Emit& emit) {
  for (;;) {
    uint64_t token = end;
    for (size_t i = 0; i < next_.size(); ++i) token = std::min(token, NextToken(i));
    if (token == end) return;
    for (size_t i = 0; i < next_.size(); ++i) {
      if (NextToken(i) != token) continue;
      const LayerPlan& plan = run_.plans[i];
      const Eviction& event = plan.events[next_[i]++];
      for (uint32_t unit = 0; unit < plan.units; ++unit) {
        emit({plan.layer, plan.units == 1 ? std::nullopt : std::optional(unit), event,
              plan.HeldBefore(unit, event.token + 1)});
      }
    }
  }
}

void ForEachPlanEvent(const ReplayRun& run, const PlanCursor::Emit& emit) {
  PlanCursor(run).EmitUpTo(UINT64_MAX, emit);
}

std::string_view EngineText(const ReplayResult& result) {
  return result.engine == nullptr ? "exact" : result.engine->text;
}

uint64_t PromptTokens(const AttentionTrace& trace, const ReplayRequest& request) {
  if (trace.prompt_tokens && request.prompt_tokens &&
      *trace.prompt_tokens != *request.prompt_tokens) {
    throw std::move(Error(Finding::kUsage,
                          "--prompt-tokens {}: the trace says that its prompt ends at {}",
                          *request.prompt_tokens, *trace.prompt_tokens)
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
                          "--prompt-tokens {}: the trace's rows are positions {} to {}", *prompt,
                          trace.q_start, trace.end_position() - 1)
                        .File(trace.path));
  }
  return *prompt;
}

std::vector<uint32_t> EvictingLayers(const ReplayResult& result) {
  std::vector<uint32_t> layers;
  const auto run = std::ranges::find_if(
      result.runs, [](const ReplayRun& of) { return of.info().spending != Spending::kNone; });
  if (run == result.runs.end()) return layers;
  for (const LayerSchedule& schedule : run->schedules) {
    const bool is_traced = std::ranges::count(result.traced_layers, schedule.layer) != 0;
    if (schedule.in_range && is_traced) layers.push_back(schedule.layer);
  }
  return layers;
}

const ReplayRun* FirstPredicted(const ReplayResult& result) {
  const auto found = std::ranges::find_if(
      result.runs, [](const ReplayRun& run) { return run.predicted_kl.has_value(); });
  return found == result.runs.end() ? nullptr : &*found;
}

}  // namespace kv::eviction
