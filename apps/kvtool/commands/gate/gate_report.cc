// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "apps/kvtool/commands/gate/gate_cases.h"
#include "lib/engines/mnn/gate/engine.h"
#include "lib/study/gate/summary.h"

namespace kv {
namespace {

using gate::CaseResult;
using gate::RuleOutcome;
using gate::Status;

// The table has no colours, because they would upset its padding.
std::string Words(Status status) {
  return status == Status::kFail ? "FAIL" : std::string(Text(status));
}

std::string RuleCounts(const CaseResult& item) {
  const auto count = [&](Status status) {
    return std::count_if(item.rules.begin(), item.rules.end(),
                         [&](const RuleOutcome& rule) { return rule.status == status; });
  };
  return fmt::format("{}/{}/{}", count(Status::kPass), count(Status::kFail),
                     count(Status::kNotRun) + count(Status::kInconclusive));
}

// The offline estimate decides as it does in the engine's suite; the ratio of the runtime's codec
// is shown beside it.
std::string DescribeRule(const RuleOutcome& rule, const CaseResult& item) {
  const auto figure = [&](std::string_view name) { return item.measured.Value(name); };
  return Text(rule) + gate::Beside(mnn::Engine().report, rule.rule.metric, figure);
}

std::string DecidedBy(const CaseResult& item) {
  const RuleOutcome* rule = gate::DecidingRule(item);
  if (rule == nullptr) return item.status == Status::kNotRun ? "-" : "flags only";
  return std::isnan(rule->rule.limit) ? rule->reason : DescribeRule(*rule, item);
}

void PrintFailures(Console& console, const CaseResult& item) {
  for (const RuleOutcome& rule : item.rules) {
    if (rule.status != Status::kFail && rule.status != Status::kInconclusive) continue;
    console.Line(item.spec.name +
                 (rule.status == Status::kInconclusive ? ": inconclusive: " : ": ") +
                 DescribeRule(rule, item) + gate::OlderAndPlace(rule));
    if (!rule.reason.empty()) console.Line("  " + rule.reason);
  }
  const bool engine_denies =
      std::any_of(item.rules.begin(), item.rules.end(), [](const RuleOutcome& rule) {
        return rule.status == Status::kFail && rule.rule.implied && rule.engine_pass == false;
      });
  if (item.logs && item.logs->row.value("overall_pass", false) && item.status == Status::kFail &&
      !engine_denies) {
    console.Line("  the engine's own verdict on this case: pass");
  }
  const RuleOutcome* failure = item.first_failure();
  if (failure == nullptr) failure = item.first(Status::kInconclusive);
  if (failure != nullptr && !failure->reproduce.empty()) {
    console.Line("  again: " + failure->reproduce);
  }
}

// A figure of the table. Figures of replays are always shown, unless every case is an engine's log
// without a verdict of its own; the others are shown if such a log, or that of a suite, has them.
struct FigureColumn {
  std::string_view title, metric, unit;
  double scale = 1;
  bool of_replays = false, of_suites = false;
  std::string_view otherwise = {};  // a figure to show if this one is unknown
};

constexpr double kMebibytes = 1.0 / (1 << 20);
constexpr FigureColumn kColumns[] = {
    {"memory ratio", "whole_model_ratio", "x", 1, true},
    // Engine reports may give only the mean.
    {"lossless ratio", "measured_ratio", "x", 1, true, false, "measured_ratio_mean"},
    {"attention error", "attention_error.mean", "%", 100, true},
    {"prompt", "prompt_tokens_per_second", " tokens/s"},
    {"generation", "decode_gate_tps", " tokens/s", 1, false, true},
    {"K and V", "resident_bytes.peak", " MiB", kMebibytes},
    {"mean KL", "loss.mean_kl", ""},
    {"same top", "loss.same_top", "%", 100},
    {"perplexity", "loss.perplexity", ""},
};

bool IsPlainLog(const CaseResult& item) { return item.origin == gate::Origin::kLogs && !item.logs; }

bool IsShown(const FigureColumn& column, const std::vector<CaseResult>& cases) {
  if (column.of_replays)
    return cases.empty() || !std::all_of(cases.begin(), cases.end(), IsPlainLog);
  return std::any_of(cases.begin(), cases.end(), [&](const CaseResult& item) {
    const bool has_it = IsPlainLog(item) || (column.of_suites && item.logs);
    return has_it && item.measured.Value(column.metric);
  });
}

std::string FigureCell(const FigureColumn& column, const CaseResult& item) {
  const auto text = [&](std::string_view metric, std::string_view unit) {
    const std::optional<double> value = item.measured.Value(metric);
    return value ? fmt::format("{:.4g}{}", *value * column.scale, unit) : std::string();
  };
  std::string cell = text(column.metric, column.unit);
  if (cell.empty()) cell = text(column.otherwise, fmt::format("{} mean", column.unit));
  return cell.empty() ? "-" : cell;
}

// Explains a ratio that looks like a failure and is none.
void ExplainMemory(Console& console, const gate::GateResult& result) {
  const bool grows = std::any_of(result.cases.begin(), result.cases.end(), [](const auto& item) {
    const std::optional<double> ratio = item.measured.Value("whole_model_ratio");
    return !IsPlainLog(item) && ratio && *ratio < 1;
  });
  if (!grows) return;
  console.Line(
      "memory ratio: all K and V / bytes that the replayed runtime holds at the end; below 1x, "
      "decoded copies take more than compression saves");
}

// Prints the rules that could not be decided, one line per reason.
void PrintNotRun(Console& console, const gate::GateResult& result) {
  std::map<std::string, std::vector<std::string>> metrics_by_reason;
  for (const CaseResult& item : result.cases) {
    for (const RuleOutcome& rule : item.rules) {
      if (rule.status != Status::kNotRun) continue;
      std::vector<std::string>& metrics = metrics_by_reason[rule.reason];
      if (std::count(metrics.begin(), metrics.end(), rule.rule.shown()) == 0) {
        metrics.push_back(rule.rule.shown());
      }
    }
  }
  for (const auto& [reason, metrics] : metrics_by_reason) {
    console.Line(fmt::format("not run: {}: {}", fmt::join(metrics, ", "), reason));
  }
}

}  // namespace

void PrintGate(Console& console, const gate::GateResult& result, const std::string& input) {
  const auto counted = [](uint64_t count, std::string_view what) {
    return count > 0 ? fmt::format(", {} {}", count, what) : std::string();
  };
  const auto missing = [](const std::optional<gate::Baseline>& older) {
    return older ? older->missing_cases.size() : 0;
  };
  console.Line(fmt::format(
      "{}{}: {} passed, {} failed, {} not run{}{}", input.empty() ? "" : Printable(input) + ": ",
      console.Verdict(result.passed(), result.passed()   ? "gate passed"
                                       : result.failed() ? "gate FAILED"
                                                         : "gate inconclusive"),
      result.count(Status::kPass), result.count(Status::kFail), result.count(Status::kNotRun),
      counted(result.count(Status::kInconclusive), "inconclusive"),
      counted(std::max(missing(result.baseline), missing(result.pinned)), "missing")));
  std::vector<std::string> titles = {"case", "mode", "verdict", "rules", "decided by"};
  for (const FigureColumn& column : kColumns) {
    if (IsShown(column, result.cases)) titles.emplace_back(column.title);
  }
  Table table(titles);
  for (const CaseResult& item : result.cases) {
    std::vector<std::string> row = {item.spec.name, item.spec.mode, Words(item.status),
                                    RuleCounts(item), DecidedBy(item)};
    for (const FigureColumn& column : kColumns) {
      if (IsShown(column, result.cases)) row.push_back(FigureCell(column, item));
    }
    table.Row(row);
  }
  console.Data(table.Text());
  ExplainMemory(console, result);
  for (const std::string& reason : result.reasons) console.Line(reason);
  for (const CaseResult& item : result.cases) PrintFailures(console, item);
  PrintNotRun(console, result);
}

void PrintMetrics(Console& console) {
  Table table({"metric", "also called", "whose", "known from", "better", "what it is"});
  for (const gate::MetricInfo* metric : mnn::Engine().Metrics()) {
    const gate::MetricInfo& info = *metric;
    const char* known = info.needs == gate::Needs::kReplay   ? "replay"
                        : info.needs == gate::Needs::kEngine ? "engine logs"
                                                             : "clock";
    const char* better = info.is_flag()                         ? "true"
                         : info.better == gate::Better::kHigher ? "higher"
                         : info.better == gate::Better::kLower  ? "lower"
                                                                : "-";
    // An engine-neutral word comes first if there is one.
    table.Row({std::string(info.word.empty() ? info.name : info.word),
               info.word.empty() ? "-" : std::string(info.name),
               info.voice == gate::Voice::kOriginal ? "original" : "true figure", known, better,
               std::string(info.summary)});
  }
  console.Data(table.Text());
}

void PrintAnnotations(Console& console, const gate::GateResult& result, const std::string& config,
                      std::string_view config_text) {
  const auto lines = gate::LinesOfCases(config_text, result);
  for (const gate::Annotation& one : gate::MakeAnnotations(result, config, lines)) {
    console.Say(gate::WorkflowCommand(one), -1);
  }
}

void PrintAnnotation(Console& console, const Error& error) {
  std::string text = error.what();
  if (!error.hint().empty()) text += "\nhint: " + error.hint();
  console.Say(gate::WorkflowCommand({true, error.file(), 0, "kvtool gate: no verdict", text}), -1);
}

}  // namespace kv
