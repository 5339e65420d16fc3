// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/markdown.h"

#include <fmt/format.h>

#include <cmath>

namespace kv::gate {
namespace {

// The original's numbers have fixed decimals; what it would have made 0 says that nobody knows.
std::string Fixed(const Json& row, const char* key, int decimals = 4) {
  const auto found = row.find(key);
  if (found == row.end() || !found->is_number()) return "n/a";
  return fmt::format("{:.{}f}", found->get<double>(), decimals);
}

std::string Word(const Json& row, const char* key) {
  const auto found = row.find(key);
  if (found == row.end() || found->is_null()) return "n/a";
  if (found->is_string()) return found->get<std::string>();
  return found->dump();
}

std::string Count(const Json& row, const char* key) { return Fixed(row, key, 0); }

std::string Tail(const Json& row) {
  std::string tail = fmt::format("summary=`{}`", Word(row, "summary"));
  const std::string reason = Word(row, "failure_reason");
  return reason.empty() ? tail : tail + ", reason=" + reason;
}

std::string RuntimeLine(const Json& row) {
  return fmt::format(
      "case={}, mode={}, pass={}, rc={}, decode={}/{}({}), drop={}/{}, lossy={}, lossless={}, "
      "decomp_us={}, async_wait_us={}, async_wait_headroom={}, queue={}, fallback={}, "
      "cache_hit={}, cache_miss={}, kv_consistency={}, kv_invalid_logs={}, {}",
      Word(row, "case"), Word(row, "mode"), Word(row, "overall_pass"), Word(row, "return_code"),
      Fixed(row, "decode_gate_tps"), Fixed(row, "decode_baseline"), Word(row, "decode_aggregation"),
      Fixed(row, "decode_drop_ratio", 6), Fixed(row, "decode_drop_target", 6),
      Fixed(row, "lossy_best"), Fixed(row, "lossless_selected_value"),
      Fixed(row, "runtime_decomp_best_us"), Fixed(row, "runtime_async_wait_best_us"),
      Fixed(row, "runtime_async_wait_headroom_ratio"), Fixed(row, "runtime_queue_peak_best"),
      Fixed(row, "runtime_fallback_best"), Fixed(row, "runtime_decode_cache_hit_best"),
      Fixed(row, "runtime_decode_cache_miss_best"), Word(row, "kv_content_consistency_pass"),
      Count(row, "kv_invalid_log_count"), Tail(row));
}

std::string LlmDemoLine(const Json& row) {
  return fmt::format(
      "case={}, mode={}, pass={}, rc={}, decode={}->{}, drop={}/{}, lossy={}, lossless={}, "
      "total={}, decomp_us={}, cache_hit={}, run_order={}, {}",
      Word(row, "case"), Word(row, "mode"), Word(row, "overall_pass"), Word(row, "return_code"),
      Fixed(row, "baseline_decode_tps_avg"), Fixed(row, "candidate_decode_tps_avg"),
      Fixed(row, "decode_drop_ratio", 6), Fixed(row, "decode_drop_target", 6),
      Fixed(row, "candidate_lossy_ratio_avg"), Fixed(row, "candidate_lossless_ratio_avg"),
      Fixed(row, "candidate_runtime_total_ratio_avg"), Fixed(row, "runtime_decomp_best_us"),
      Fixed(row, "decode_cache_hit_best"), Word(row, "run_order"), Tail(row));
}

void Suites(const GateResult& result, const OutputNames& outputs, std::string& text) {
  for (const Suite suite : {Suite::kRuntime, Suite::kLlmDemo}) {
    std::string lines;
    size_t number = 0;
    for (const CaseResult& item : result.cases) {
      if (item.spec.suite != suite) continue;
      const Json row = OriginalRow(item, outputs);
      lines += fmt::format("{}. {}\n", ++number,
                           suite == Suite::kRuntime ? RuntimeLine(row) : LlmDemoLine(row));
    }
    if (!lines.empty())
      text +=
          fmt::format("## {}\n\n{}\n", Name(suite) == "runtime" ? "Runtime" : Name(suite), lines);
  }
}

// Characters that would end a table cell or start markup.
std::string Cell(std::string_view text) {
  std::string cell;
  for (const char c : text) {
    if (c == '|' || c == '<') cell += '\\';
    cell += c == '\n' ? ' ' : c;
  }
  return cell;
}

void Failures(const GateResult& result, std::string& text) {
  if (result.passed()) return;
  text += result.failed() ? "## Why it failed\n\n" : "## Why it is inconclusive\n\n";
  for (const std::string& reason : result.reasons) text += fmt::format("- {}\n", Cell(reason));
  for (const CaseResult& item : result.cases) {
    for (const RuleOutcome& rule : item.rules) {
      if (rule.status != Status::kFail && rule.status != Status::kInconclusive) continue;
      text += fmt::format("- **{}**: {}", Cell(item.spec.name), Cell(Text(rule)));
      if (rule.where.known()) text += ", at " + Text(rule.where);
      if (rule.baseline) text += fmt::format(", was {}", NumberText(*rule.baseline));
      if (!rule.reason.empty()) text += ": " + Cell(rule.reason);
      text += "\n";
      if (!rule.reproduce.empty()) text += fmt::format("  `{}`\n", rule.reproduce);
    }
  }
  text += "\n";
}

void Rules(const GateResult& result, std::string& text) {
  text +=
      "## Rules\n\n| case | rule | value | margin | status |\n| --- | --- | ---: | ---: | --- |\n";
  for (const CaseResult& item : result.cases) {
    for (const RuleOutcome& rule : item.rules) {
      const bool is_flag = IsFlag(rule.rule.metric);
      std::string status(Name(rule.status));
      if (rule.status == Status::kNotRun || rule.status == Status::kInconclusive) {
        status += ": " + rule.reason;
      }
      text += fmt::format("| {} | {} {} {}{} | {} | {} | {} |\n", Cell(item.spec.name),
                          rule.rule.metric, Cell(Name(rule.rule.op)),
                          NumberText(rule.rule.limit, is_flag), rule.baseline ? " (baseline)" : "",
                          rule.value ? NumberText(*rule.value, is_flag) : "-",
                          rule.margin ? NumberText(*rule.margin) : "-", Cell(status));
    }
  }
  text += "\n";
}

void TrueFigures(const GateResult& result, std::string& text) {
  constexpr const char* kColumns[] = {
      "whole_model_ratio",    "measured_ratio",          "lossy_worst",
      "lossy_mean",           "content.compared_ranges", "content.mismatches",
      "attention_error.mean", "attention_error.worst",   "resident_bytes.peak"};
  std::string rows;
  for (const CaseResult& item : result.cases) {
    if (item.origin != Origin::kReplay) continue;
    rows += fmt::format("| {} |", Cell(item.spec.name));
    for (const char* column : kColumns) {
      const std::optional<double> value = item.measured.Value(column);
      rows += fmt::format(" {} |", value ? NumberText(*value) : "-");
    }
    rows += "\n";
  }
  if (rows.empty()) return;
  text += "## True figures\n\n| case |";
  std::string line = "\n| --- |";
  for (const char* column : kColumns) {
    text += fmt::format(" {} |", column);
    line += " ---: |";
  }
  text += line + "\n" + rows + "\n";
}

}  // namespace

std::string SummaryMarkdown(const GateResult& result, const OutputNames& outputs) {
  const Json summary = SummaryJson(result, "", outputs);
  std::string text = "# H2O final Summary\n\n";
  for (const char* key : {"overall_pass", "total_cases", "runtime_cases", "llm_demo_cases"}) {
    text += fmt::format("- {}: {}\n", key, summary[key].dump());
  }
  text += fmt::format("- passed, failed, not run: {}, {}, {}\n\n", result.count(Status::kPass),
                      result.count(Status::kFail), result.count(Status::kNotRun));
  Failures(result, text);
  Suites(result, outputs, text);
  Rules(result, text);
  TrueFigures(result, text);
  text += fmt::format("- summary_json: `{}`\n- cases_jsonl: `{}`\n", outputs.summary_json,
                      outputs.cases_jsonl);
  return text;
}

}  // namespace kv::gate
