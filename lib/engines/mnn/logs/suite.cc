// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/logs/suite.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <functional>

#include "lib/core/base/error.h"

namespace kv::mnn::logs {
namespace {

constexpr size_t kConsoleTail = 240;  // lines that the suite reads
constexpr size_t kMaxLine = 4096;
constexpr std::array<std::string_view, 9> kFailureWords = {
    "FAIL:",        "error:",         "Error:",    "Traceback",
    "No such file", "not executable", "not found", "Segmentation fault",
    "Aborted"};

std::string Bullet(const GateBullets& bullets, std::string_view key, std::string otherwise = {}) {
  const auto found = bullets.find(key);
  return found == bullets.end() ? otherwise : found->second;
}

bool IsTrue(const GateBullets& bullets, std::string_view key) {
  std::string word = Bullet(bullets, key);
  std::transform(word.begin(), word.end(), word.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return word == "true";
}

// Visits the bullets below each "## Quality Gate". A report has one such section, and its readers
// look at the first.
void ForEachBullet(std::string_view markdown,
                   const std::function<void(bool in_first, const std::string& key,
                                            const std::string& value)>& use) {
  bool inside = false, is_first = true;
  const std::string clean = OnlyUtf8(markdown);
  ForEachLine(clean, [&](std::string_view raw) {
    const std::string_view line = Strip(raw);
    const bool begins = line == "## Quality Gate";
    if (inside && !begins && StartsWith(line, "## ")) is_first = false;
    inside = begins || (inside && !StartsWith(line, "## "));
    const size_t colon = line.find(':', 2);
    if (!inside || !StartsWith(line, "- ") || colon == std::string_view::npos) return;
    use(is_first, std::string(Strip(line.substr(2, colon - 2))),
        std::string(StripAll(Strip(line.substr(colon + 1)), '`')));
  });
}

std::string ReturnFailure(const SuiteCase& c) {
  return c.console_text ? ConsoleFailure(*c.console_text) : "console log missing";
}

// Figures that nobody measured are null in rows that kvtool makes.
constexpr std::string_view kUnknown = "n/a";

std::string ShownNumber(const Json& row, const char* key, int digits = 4) {
  const auto number = gate::NumberIn(row, key);
  return number ? Fixed(*number, digits) : std::string(kUnknown);
}

std::string ShownText(const Json& row, const char* key) {
  const Json* found = gate::Find(row, key);
  if (found == nullptr) return std::string(kUnknown);
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::string LineStart(const Json& row) {
  return fmt::format("case={}, mode={}, pass={}, rc={}, decode=", ShownText(row, "case"),
                     ShownText(row, "mode"), ShownText(row, "overall_pass"),
                     ShownText(row, "return_code"));
}

std::string LineEnd(const Json& row) {
  const std::string reason = ShownText(row, "failure_reason");
  return fmt::format("summary=`{}`{}", ShownText(row, "summary"),
                     reason.empty() ? reason : ", reason=" + reason);
}

std::string RuntimeLine(const Json& row) {
  const auto n = [&](const char* key) { return ShownNumber(row, key); };
  return LineStart(row) +
         fmt::format("{}/{}({}), drop={}/{}, lossy={}, lossless={}, decomp_us={}, ",
                     n("decode_gate_tps"), n("decode_baseline"),
                     ShownText(row, "decode_aggregation"), ShownNumber(row, "decode_drop_ratio", 6),
                     ShownNumber(row, "decode_drop_target", 6), n("lossy_best"),
                     n("lossless_selected_value"), n("runtime_decomp_best_us")) +
         fmt::format("async_wait_us={}, async_wait_headroom={}, queue={}, fallback={}, ",
                     n("runtime_async_wait_best_us"), n("runtime_async_wait_headroom_ratio"),
                     n("runtime_queue_peak_best"), n("runtime_fallback_best")) +
         fmt::format("cache_hit={}, cache_miss={}, kv_consistency={}, kv_invalid_logs={}, ",
                     n("runtime_decode_cache_hit_best"), n("runtime_decode_cache_miss_best"),
                     ShownText(row, "kv_content_consistency_pass"),
                     ShownNumber(row, "kv_invalid_log_count", 0)) +
         LineEnd(row);
}

std::string DemoLine(const Json& row) {
  const auto n = [&](const char* key) { return ShownNumber(row, key); };
  return LineStart(row) +
         fmt::format("{}->{}, drop={}/{}, lossy={}, lossless={}, total={}, ",
                     n("baseline_decode_tps_avg"), n("candidate_decode_tps_avg"),
                     ShownNumber(row, "decode_drop_ratio", 6),
                     ShownNumber(row, "decode_drop_target", 6), n("candidate_lossy_ratio_avg"),
                     n("candidate_lossless_ratio_avg"), n("candidate_runtime_total_ratio_avg")) +
         fmt::format("decomp_us={}, cache_hit={}, run_order={}, ", n("runtime_decomp_best_us"),
                     n("decode_cache_hit_best"), ShownText(row, "run_order")) +
         LineEnd(row);
}

}  // namespace

GateBullets ParseGateBullets(std::string_view markdown) {
  GateBullets bullets;
  ForEachBullet(markdown, [&](bool in_first, const std::string& key, const std::string& value) {
    if (in_first) bullets[key] = value;
  });
  return bullets;
}

std::vector<std::string> Contradictions(std::string_view markdown) {
  GateBullets seen;
  std::vector<std::string> found;
  ForEachBullet(markdown, [&](bool, const std::string& key, const std::string& value) {
    const auto [before, is_new] = seen.emplace(key, value);
    if (is_new || before->second == value) return;
    found.push_back(fmt::format("{} ({}, {})", key, FirstCodePoints(before->second, kShownCell),
                                FirstCodePoints(value, kShownCell)));
  });
  return found;
}

std::vector<std::string> MissingBullets(const GateBullets& bullets) {
  const auto limit = [&](std::string_view enabled) {
    return Bullet(bullets, enabled) == "true" ? 0.0 : -1.0;
  };
  GateFigures asked;
  AnalyzerOptions& options = asked.options;
  options.decode_baseline = limit("decode_gate_enabled") + 1;
  options.max_lossless_decomp_us = limit("runtime_decomp_gate_enabled");
  options.max_lossless_async_wait_us = limit("runtime_async_wait_gate_enabled");
  options.max_lossless_queue_peak = limit("runtime_queue_peak_gate_enabled");
  options.max_lossless_fallback = limit("runtime_fallback_gate_enabled");
  options.max_lossless_backpressure_skip = limit("runtime_backpressure_skip_gate_enabled");
  const std::string source = Bullet(bullets, "lossless_selected_source");
  if (source == "offline_online_sim") asked.online.emplace();
  if (source == "offline_upper_bound" || bullets.contains("upper_selected_entries")) {
    asked.upper.emplace();
  }
  std::vector<std::string> missing;
  for (const auto& [key, value] : GateBulletsOf(asked)) {
    if (!bullets.contains(key)) missing.push_back(key);
  }
  return missing;
}

std::string ConsoleFailure(std::string_view console_log) {
  std::deque<std::string> tail;
  ForEachLine(console_log, [&](std::string_view line) {
    tail.emplace_back(Strip(OnlyUtf8(line.substr(0, kMaxLine))));
    if (tail.size() > kConsoleTail) tail.pop_front();
  });
  const auto names_failure = [](const std::string& line) {
    return std::any_of(kFailureWords.begin(), kFailureWords.end(),
                       [&](std::string_view word) { return Contains(line, word); });
  };
  const auto named = std::find_if(tail.rbegin(), tail.rend(), names_failure);
  if (named != tail.rend()) return *named;
  const auto any = std::find_if(tail.rbegin(), tail.rend(),
                                [](const std::string& line) { return !line.empty(); });
  return any != tail.rend() ? *any : "unknown failure";
}

Json RuntimeRow(const SuiteCase& c) {
  const GateBullets& bullets = c.bullets;
  const bool exists = !bullets.empty() || !c.summary_text.value_or("").empty();
  const bool pass = c.return_code == 0 && IsTrue(bullets, "overall_pass");
  std::string reason;
  if (!pass) {
    reason = c.return_code != 0 ? ReturnFailure(c)
             : !exists          ? "summary missing"
             : bullets.empty()
                 ? "quality gate section missing"
                 : "quality gate failed: status=" + Bullet(bullets, "quality_status", "unknown");
  }
  const auto number = [&](std::string_view key) { return LooseNumber(Bullet(bullets, key)); };
  Json row = {{"suite", "runtime"},
              {"case", c.name},
              {"mode", c.mode},
              {"return_code", c.return_code},
              {"summary_exists", exists},
              {"quality_gate_found", !bullets.empty()},
              {"failure_reason", reason},
              {"overall_pass", pass},
              {"summary", c.folder + "/summary.md"},
              {"console_log", c.console_log},
              {"quality_status", Bullet(bullets, "quality_status")}};
  row["lossy_best"] = number("lossy_best");
  row["lossless_selected_value"] = number("lossless_selected_value");
  row["decode_aggregation"] = Bullet(bullets, "decode_aggregation", "best");
  row["decode_gate_tps"] =
      number(bullets.count("decode_gate_tps") != 0 ? "decode_gate_tps" : "decode_best");
  for (const char* key :
       {"decode_best", "decode_baseline", "decode_drop_ratio", "decode_drop_target",
        "runtime_decomp_best_us", "runtime_async_wait_best_us", "runtime_async_wait_headroom_us",
        "runtime_async_wait_headroom_ratio"}) {
    row[key] = number(key);
  }
  row["runtime_async_wait_headroom_warn"] = IsTrue(bullets, "runtime_async_wait_headroom_warn");
  for (const char* key :
       {"runtime_queue_peak_best", "runtime_fallback_best", "runtime_backpressure_skip_best",
        "runtime_decode_cache_hit_best", "runtime_decode_cache_miss_best"}) {
    row[key] = number(key);
  }
  row["kv_content_consistency_pass"] = IsTrue(bullets, "kv_content_consistency_pass");
  row["kv_invalid_log_count"] = number("kv_invalid_log_count");
  return row;
}

Json DemoRow(const SuiteCase& c) {
  Json report = Json::object();
  if (c.report_text) {
    try {
      report = ParseJson(OnlyUtf8(*c.report_text), "llm_demo_report.json");
    } catch (const Error&) {
      report = Json::object();  // as the suite does; the reader of the case says so in a note
    }
  }
  const bool pass = c.return_code == 0 && TruthAt(report, "overall_pass");
  std::string reason;
  if (!pass) {
    reason = c.return_code != 0 ? ReturnFailure(c)
             : !c.report_text   ? "report json missing"
                                : "llm_demo gate failed";
  }
  Json row = {{"suite", "llm_demo"},
              {"case", c.name},
              {"mode", c.mode},
              {"return_code", c.return_code},
              {"failure_reason", reason},
              {"overall_pass", pass},
              {"summary", c.folder + "/llm_demo_report.md"},
              {"report_json", c.folder + "/llm_demo_report.json"},
              {"console_log", c.console_log}};
  for (const char* key :
       {"baseline_decode_tps_avg", "candidate_decode_tps_avg", "decode_drop_ratio",
        "decode_drop_target", "candidate_lossy_ratio_avg", "candidate_lossless_ratio_avg",
        "candidate_runtime_total_ratio_avg", "runtime_decomp_best_us", "decode_cache_hit_best"}) {
    row[key] = NumberAt(report, key);
  }
  row["decode_pass"] = TruthAt(report, "decode_pass");
  row["run_order"] = TextAt(report, "run_order");
  return row;
}

std::string SuiteLine(const Json& row) {
  return TextAt(row, "suite") == "runtime" ? RuntimeLine(row) : DemoLine(row);
}

}  // namespace kv::mnn::logs
