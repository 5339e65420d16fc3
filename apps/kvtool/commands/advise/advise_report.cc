// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/advise/advise_report.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "apps/kvtool/documents/plan_output.h"
#include "apps/kvtool/line/options.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/engines/mnn/h2o/mnn_engine.h"
#include "lib/engines/mnn/h2o/mnn_replay.h"
#include "lib/study/advise/report.h"
#include "lib/study/statistics/checkup.h"

namespace kv {
namespace {

using advise::SavingRow;

// Types that engines support for heads of this size.
std::vector<std::string> UsualTypes(uint32_t head_dim) {
  if (head_dim % 32 == 0) return {"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"};
  return {"fp8_amax", "int8_per_token_head"};
}

// Returns the rows on the front, by descending bytes; if there are many, an even selection. The
// answer is always among them, replacing a row with as many bytes.
std::vector<SavingRow> RowsToPrint(const std::vector<SavingRow>& rows,
                                   const std::optional<advise::Answer>& answer) {
  constexpr size_t kMost = 16;
  std::vector<SavingRow> front, some;
  std::ranges::copy_if(rows, std::back_inserter(front), &SavingRow::on_front);
  const auto by_bytes = [](const SavingRow& a, const SavingRow& b) {
    return a.bytes_per_token > b.bytes_per_token;
  };
  std::ranges::stable_sort(front, by_bytes);
  for (size_t i = 0; i < std::min(kMost, front.size()); ++i)
    some.push_back(front[front.size() <= kMost ? i : i * (front.size() - 1) / (kMost - 1)]);
  if (!answer) return some;
  std::erase_if(some, [&](const SavingRow& row) {
    return std::abs(row.bytes_per_token - answer->bytes_per_token) < 0.5;
  });
  SavingRow row;
  row.kind = answer->kind;
  row.plan = "(answer) " + answer->plan;  // first, because narrow terminals cut the end
  row.bytes_per_token = answer->bytes_per_token;
  row.worst_loss = answer->worst_loss;
  some.insert(std::ranges::upper_bound(some, row, by_bytes), row);
  return some;
}

// The names are those of MNN's configuration file.
Value MnnParameters(const eviction::BlockConfig& config) {
  Value parameters = Value::Object{{"kv_h2o_enable", true}};
  mnn::h2o::ForEachParameter(config, [&](std::string_view name, double value) {
    if (name == "h2o_target_keep_ratio") return;  // read only in static mode
    const std::string key = fmt::format("kv_{}", name);
    if (name == "h2o_target_mode") {
      parameters.Put(key, value == 0 ? "static" : "adaptive");
    } else if (value == std::floor(value)) {
      parameters.Put(key, static_cast<int64_t>(value));
    } else {
      parameters.Put(key, ShortestDouble(static_cast<float>(value)));
    }
  });
  return parameters;
}

void AddMnn(const advise::Runs& runs, const advise::AdviceRequest& request,
            const advise::Advice& advice, ThreadPool& pool, std::vector<EngineSettings>& out) {
  // A replay of the engine's code takes the square of the tokens; the advice has a note.
  if (std::ranges::any_of(runs, [](const auto& run) { return run->stride() > 1; })) return;
  const auto settings = mnn::h2o::AdviseSettings(runs, request, advice, pool);
  if (!settings) return;
  EngineSettings mnn;
  mnn.engine = "MNN";
  mnn.candidate = settings->candidate;
  mnn.parameters = MnnParameters(settings->config);
  mnn.ratio = 1 / settings->outcome.worst_share();
  mnn.loss = advise::Shown(request.measure.kind, settings->outcome.worst_loss());
  mnn.note = "the tokens are those that its code keeps";
  if (settings->compounds) mnn.note += "; " + *settings->compounds;
  out.push_back(mnn);
}

// Engines whose own window has sinks keep the same tokens as policy streaming; their window has a
// fixed number of `tokens`.
void AddStreaming(const advise::AdviceRequest& request, const advise::Advice& advice,
                  uint64_t shortest, std::vector<EngineSettings>& out) {
  const advise::Point* best = nullptr;
  for (const advise::Point& point : advice.found.uniform) {  // by descending share
    const advise::Candidate& candidate = advice.candidates[*point.uniform];
    if (eviction::FindPolicy(candidate.policy)->tuned_by != eviction::Tuning::kSinks ||
        !advise::Meets(point.outcome, request.limits))
      continue;
    const bool loses_less =
        best == nullptr || point.outcome.mean_loss() < best->outcome.mean_loss();
    if (request.limits.loss || loses_less) best = &point;
  }
  if (best == nullptr) return;
  EngineSettings settings;
  settings.candidate = &advice.candidates[*best->uniform];
  settings.ratio = 1 / best->outcome.worst_share();
  settings.loss = advise::Shown(request.measure.kind, best->outcome.worst_loss());
  const uint64_t tokens = settings.candidate->budget.At(shortest);
  settings.note = fmt::format(
      "a window of {} tokens with sinks equals the budget at a length of {} tokens; an engine that "
      "counts positions within its window may lose more or less",
      tokens, shortest);
  settings.engine = "TensorRT-LLM";
  settings.configuration = "KvCacheConfig";
  settings.parameters = Value::Object{{"max_attention_window", Value::List{tokens}},
                                      {"sink_token_length", settings.candidate->paper.sinks}};
  out.push_back(settings);
  settings.engine = "MLC LLM";
  settings.configuration = "mlc-chat-config.json";
  settings.parameters = Value::Object{{"sliding_window_size", tokens},
                                      {"attention_sink_size", settings.candidate->paper.sinks}};
  out.push_back(settings);
}

using advise::Advice;
using advise::LossKind;

// Says that a table of `all` plans is not complete.
std::string DescribePrinted(size_t printed, size_t all) {
  return all <= printed ? "" : fmt::format(", {} shown (--json and --html-out have all)", printed);
}

void PrintBest(Console& console, const advise::AdviceRequest& request, const Advice& advice) {
  const LossKind kind = request.measure.kind;
  if (!advice.found.best) {
    console.Line(fmt::format(
        "eviction alone: no plan is within the limits{}",
        request.limits.loss
            ? fmt::format(": {} at {:.4g}x", advise::LossText(kind, *request.limits.loss),
                          1 / request.limits.share)
            : std::string()));
    return;
  }
  const advise::Point& best = *advice.found.best;
  const auto worst =
      static_cast<size_t>(std::max_element(best.outcome.loss.begin(), best.outcome.loss.end()) -
                          best.outcome.loss.begin());
  console.Line(fmt::format(
      "eviction alone: {:.3f}x at the end, mean of the steps {:.3f}x, expected loss {}{}",
      best.outcome.ratio(), best.outcome.mean_ratio(),
      advise::LossTextWithError(kind, advice.expected_loss(),
                                advice.optimism * best.outcome.standard_error[worst]),
      best.outcome.loss.size() == 1 ? "" : " on the worst prompt"));
  const auto shown = [&](double times) {
    return advise::Shown(kind, times) / advise::Shown(kind, 1);
  };
  const std::string loss = advise::LossText(kind, best.outcome.loss[worst]);
  console.Line(advice.optimism > 1 || !best.uniform
                   ? fmt::format("  measured {}; plans chosen without {} lost {:.3g} times as much "
                                 "on what was left out",
                                 loss, advice.check.halves ? "half of the rows" : "a prompt",
                                 shown(advice.optimism))
                   : fmt::format("  measured {}; the loss of a mixed plan, chosen among thousands, "
                                 "would be multiplied by {:.3g}",
                                 loss, shown(advice.check.optimism())));
  if (advice.found.best_uniform) {
    const advise::Point& uniform = *advice.found.best_uniform;
    console.Line(fmt::format("one plan for all layers: {:.3f}x, {}, {}", uniform.outcome.ratio(),
                             advise::LossText(kind, uniform.outcome.worst_loss()),
                             advise::PlanText(advice, uniform)));
  }
  if (advice.at_context) {
    const advise::AtContext& at = *advice.at_context;
    console.Line(fmt::format("at {} tokens: {} instead of {}", at.tokens,
                             HumanBytes(static_cast<uint64_t>(at.kept_bytes)),
                             HumanBytes(static_cast<uint64_t>(at.full_bytes))));
  }
  console.Data(Table(advise::PartsTable(advice, best.choice)).Text());
}

}  // namespace

void SavingsOptions::Declare(CommandLine& line) {
  line.Add("--types", types,
           "Types to store K and V in, a comma list; none: eviction alone (default: llama.cpp's "
           "types that fit the heads)")
      .Suggest(TypeWords())
      .Separator(',');
}

advise::SavingsRequest SavingsOptions::RequestFor(const Snapshot& snapshot) const {
  advise::SavingsRequest request;
  const std::vector<std::string> names =
      types.empty() ? UsualTypes(snapshot.layers.front().k.head_dim) : types;
  request.store.k_types = request.store.v_types = ParseTypes(names, "--types");
  const auto count = static_cast<uint32_t>(request.store.k_types.size());
  constexpr uint32_t kFull = quantisation::TypePair::kFull;
  for (uint32_t i = 0; i < count; ++i) request.pairs.push_back({i, kFull});
  for (uint32_t i = 0; i < count; ++i) request.pairs.push_back({kFull, i});
  for (uint32_t k = 0; k < count; ++k) {
    for (uint32_t v = 0; v < count; ++v) request.pairs.push_back({k, v});
  }
  return request;
}

FoundSavings SavingsOptions::Find(const advise::Runs& runs, const advise::AdviceRequest& request,
                                  const advise::Advice& advice, const ModelRope* rope,
                                  ThreadPool& pool, Progress* progress) const {
  FoundSavings found;
  if (types == std::vector<std::string>{"none"}) {
    found.why_not = "--types none";
    return found;
  }
  advise::SavingsRequest wanted = RequestFor(runs.front()->snapshot());
  wanted.store.rope = rope;
  found.why_not = advise::WhyNoTypes(runs);
  if (!found.why_not.empty()) {
    if (types.empty()) return found;
    throw Error(Finding::kUsage, "--types: {}", found.why_not).File(runs.front()->name());
  }
  try {
    found.savings = advise::FindSavings(runs, request, wanted, advice, pool, progress);
  } catch (const Error& error) {
    if (!types.empty()) throw;
    found.why_not = error.what();  // says so only for types that were not requested
    return found;
  }
  for (const Effort level : {Effort::kFast, Effort::kDefault}) {
    const Checkup checkup = CheckUp(runs.front()->snapshot(), level, pool);
    found.levels.push_back({std::string(Name(level)), checkup.ratio()});
  }
  found.rows = advise::SavingRows(runs, advice, *found.savings, found.levels);
  return found;
}

void FoundSavings::Print(Console& console, const advise::Runs& runs,
                         const advise::AdviceRequest& request, const Advice& advice,
                         const std::optional<advise::Answer>& answer) const {
  if (!savings) {
    console.Line("note: only eviction was tried: " + why_not);
    return;
  }
  const advise::LossKind kind = request.measure.kind;
  TextTable table = {{"what", "plan", "bytes/token", "ratio", "measured loss"}, {}};
  if (advice.scale) table.head.emplace_back("corrected loss");
  const auto corrected = [&](double loss) {
    if (advice.scale) table.rows.back().push_back(advise::LossText(kind, loss * *advice.scale));
  };
  const auto full = static_cast<double>(runs.front()->bytes_per_token());
  const std::vector<SavingRow> printed = RowsToPrint(rows, answer);
  for (const SavingRow& row : printed) {
    table.rows.push_back({std::string(row.kind), row.plan,
                          fmt::format("{:.0f}", row.bytes_per_token),
                          fmt::format("{:.3f}x", full / row.bytes_per_token),
                          advise::LossTextWithError(kind, row.worst_loss, row.standard_error)});
    corrected(row.worst_loss);
  }
  for (const SavingRow& row : rows) {
    if (row.kind != "offload") continue;
    table.rows.push_back({"offload",
                          fmt::format("{}: {:.0f} bytes/token a step", row.plan, row.link_bytes),
                          "0", "-", advise::LossText(kind, 0)});
    corrected(0);
  }
  const auto front = static_cast<size_t>(std::ranges::count_if(rows, &SavingRow::on_front));
  console.Line(fmt::format("everything that saves memory: {} plans, {} on the frontier{}:",
                           rows.size(), front, DescribePrinted(printed.size(), front)));
  console.Data(Table(table).Text());
}

void WriteEvictions(const std::string& path, const OutputRules& rules, const advise::AdviseRun& run,
                    const std::string& policy, const std::vector<advise::UnitChoice>& choices,
                    const std::vector<advise::PlanOfLayer>& plans) {
  nlohmann::ordered_json plan = ReportHeader("h2o-plan");
  plan["source"] = InputRecord(run.snapshot().source);
  plan["engine"] = "exact";
  plan["schedule"] = "paper";
  plan["policy"] = policy;
  plan["choices"] = ToJson(ChoicesValue(choices));
  WritePlanDocument(path, rules, std::move(plan),
                    [&](const EmitPlanEvent& emit) { advise::ForEachEvent(plans, emit); });
}

void WriteTypes(const std::string& path, const OutputRules& rules, const advise::Runs& runs,
                const advise::Savings& savings, const std::vector<std::optional<uint32_t>>& pairs) {
  QuantPlan types;
  for (size_t l = 0; l < pairs.size(); ++l) {
    types.layers.push_back({runs.front()->layers()[l].layer(),
                            advise::TypeOfLayer(runs, savings, pairs[l], l, true),
                            advise::TypeOfLayer(runs, savings, pairs[l], l, false)});
  }
  nlohmann::ordered_json plan = ReportHeader("quant-plan");
  plan["source"] = InputRecord(runs.front()->snapshot().source);
  plan.update(ToJson(QuantPlanFields().Object(types)));
  WriteText(path, JsonText(plan) + "\n", rules);
}

std::vector<EngineSettings> SuggestEngineSettings(const advise::Runs& runs,
                                                  const advise::AdviceRequest& request,
                                                  const advise::Advice& advice, ThreadPool& pool) {
  uint64_t shortest = UINT64_MAX;
  for (const auto& run : runs) shortest = std::min(shortest, run->end());
  std::vector<EngineSettings> settings;
  AddMnn(runs, request, advice, pool, settings);
  AddStreaming(request, advice, shortest, settings);
  return settings;
}

const Fields<EngineSettings>& EngineSettingsFields() {
  using S = EngineSettings;
  static const Fields<S> fields = {
      {"engine", "The engine", &S::engine},
      {"policy", "Name of the policy that the engine follows",
       [](const S& of) { return of.candidate->policy; }},
      {"budget", "What may be kept: a share of the tokens, or a number of tokens as \"512t\"",
       [](const S& of) { return of.candidate->budget.Text(); }},
      {"parameters",
       "The engine's own parameters under its own names",
       &S::parameters,
       {.schema = Value::Object{{"type", "object"}}}},
      {"ratio", "Whole cache / bytes kept at the end, in the run that keeps most", &S::ratio,
       AtLeast(advise::kLeastRatio)},
      {"loss", "Largest loss of a run, in the unit that loss.unit names", &S::loss, AtLeast(0)},
      {"note", "Facts to know before the settings are used", &S::note},
      {"configuration", "Configuration file that takes the parameters; null: options take them",
       IfAny(&S::configuration)}};
  return fields;
}

void PrintAdvice(Console& console, const advise::Runs& runs, const advise::AdviceRequest& request,
                 const Advice& advice) {
  const LossKind kind = request.measure.kind;
  const advise::Effects& effects = advice.effects;
  console.Line(fmt::format(
      "{}; {} candidates (a policy and its budget) for each of {} {}\nloss: {}, in {} of {} decode "
      "rows{}",
      Plural(runs.size(), "prompt"), advice.candidates.size(), effects.measured.units.size(),
      request.measure.units == eviction::Granularity::kLayer ? "layers" : "kv heads",
      advise::LossName(kind),
      effects.rows.front().positions.size() - effects.undefined_rows.front(),
      effects.rows.front().population, runs.size() == 1 ? "" : " of the first prompt"));
  PrintBest(console, request, advice);
  constexpr size_t kMostLines = 12;
  const TextTable plans = advise::PlansTable(advice, advice.found.frontier, kMostLines);
  const size_t all = advice.found.frontier.size();
  console.Line(fmt::format("frontier, largest first: {} plans that no other plan beats{}:", all,
                           DescribePrinted(plans.rows.size(), all)));
  console.Data(Table(plans).Text());
  console.Line("check: " + advise::CheckText(advice));
  for (const std::string& note : advice.notes) console.Line("note: " + note);
}

std::string CommandFor(const std::optional<advise::Answer>& answer, size_t runs,
                       const std::string& command_line) {
  if (!answer || answer->kind == "none") return {};
  if (!answer->flags.empty() && answer->kind == "types")
    return "llama-server " + answer->flags + " ...";
  const bool evicts = answer->kind != "types", stores = answer->kind != "eviction";
  if (evicts && runs > 1) return {};  // a plan names the tokens of one prompt
  if (command_line.find("plan-out") != command_line.npos) return {};  // already written
  std::string plans;
  if (evicts) plans += answer->is_chosen ? " --chosen-plan-out plan.json" : " --plan-out plan.json";
  if (stores) plans += " --quant-plan-out types.json";
  // The outputs of this run exist now, and -f would also overwrite files of others.
  const bool writes = command_line.find("-out") != command_line.npos ||
                      command_line.find(" --csv") != command_line.npos;
  return writes ? "to write it, run this again with" + plans + " in place of its outputs"
                : command_line + plans;
}

void PrintAnswer(Console& console, const std::optional<advise::Answer>& answer,
                 const std::string& command) {
  console.Line("answer: " + advise::AnswerText(answer));
  if (command.empty() || console.verbosity < 0 || console.only_products) return;
  const size_t columns = TerminalColumns(STDOUT_FILENO) - 2;
  const bool is_advice = command.starts_with("to ");
  console.Product("  " + (is_advice ? Wrapped(command, columns) : BrokenCommand(command, columns)) +
                  "\n");
}

void PrintSettings(Console& console, LossKind kind, const std::vector<EngineSettings>& settings) {
  for (const EngineSettings& each : settings) {
    std::string parameters = JsonText(ToJson(each.parameters), -1);
    // Adds spaces, at which a terminal can break the line.
    for (size_t at = 0; (at = parameters.find(",\"", at)) != parameters.npos; at += 2)
      parameters.insert(at + 1, " ");
    console.Line(
        fmt::format("{}{}: {}\n  {}: {:.3f}x, loss {}\n  {}", each.engine,
                    each.configuration.empty() ? "" : fmt::format(" ({})", each.configuration),
                    parameters, each.candidate->Text(), each.ratio,
                    advise::LossText(kind, advise::LossShownAs(kind, each.loss)), each.note));
  }
}

}  // namespace kv
