// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Searches logs and documents for evidence against a case: broken lines, words of dying programs,
// cells and numbers that are none.
#include "lib/engines/mnn/logs/evidence.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace kv::mnn::logs {
namespace {

constexpr size_t kMostExamples = 3;
constexpr size_t kMaxSeen = 4096;
constexpr size_t kComparedBytes = 512;  // bytes of a line that are compared to find repetitions
constexpr size_t kMaxWords = 120;

constexpr std::string_view kLogEndings[] = {".log", ".err", ".out", ".stderr", ".stdout"};
constexpr std::string_view kDeaths[] = {
    "FAIL:",      "error:",    "Error:",         "Traceback",    "No such file",
    "not found",  "Aborted",   "core dumped",    "Killed",       "Segmentation fault",
    "terminate ", "Bus error", "not executable", "out of memory"};

// The analyzer prints these, but they count for its verdict only if the report asks for
// consistency.
constexpr std::string_view kPartsOfConsistency[] = {
    "kv_restore_activity_pass", "kv_fallback_clean_pass", "kv_async_activity_pass",
    "kv_invalid_log_pass"};

bool HasFigures(std::string_view column) {
  return column == kSpeedColumn || column.starts_with("h2o_");
}

// Returns the part after `<br>` of a speed cell, and other cells unchanged.
std::string_view FigureText(std::string_view column, std::string_view cell) {
  constexpr std::string_view kBreak = "<br>";
  const size_t at = column == kSpeedColumn ? cell.find(kBreak) : std::string_view::npos;
  return at == std::string_view::npos ? cell : cell.substr(at + kBreak.size());
}

// Returns true for a number. A name with a digit in it is not one, as in the engine's tools.
bool BeginsWithNumber(std::string_view text) {
  text = Strip(text);
  return text.find_first_of("0123456789.+-") == 0 && FirstNumber(text).has_value();
}

}  // namespace

void Trouble::Add(std::string what) {
  ++count;
  if (examples.size() < kMostExamples) examples.push_back(std::move(what));
}

std::string Trouble::Text() const {
  std::string text = fmt::format("{}", fmt::join(examples, "; "));
  if (count > examples.size()) text += fmt::format("; and {} more", count - examples.size());
  return text;
}

void Damage::AddBench(std::string_view text, std::string_view shown) { Add(text, shown, true); }
void Damage::AddOther(std::string_view text, std::string_view shown) { Add(text, shown, false); }

void Damage::Add(std::string_view text, std::string_view shown, bool again) {
  if (!read_.insert(std::string(shown)).second) return;
  ForEachInvalidLine(text, [&](std::string_view line) {
    const bool is_new = seen_.size() >= kMaxSeen ||
                        seen_.insert(std::string(Strip(line.substr(0, kComparedBytes)))).second;
    if (is_new || again) AddInvalidLine(line, shown, lines_);
  });
}

void Damage::AddFolder(const LogFolder& folder, int depth) {
  for (const std::string& name : folder.Files(IsLog)) {
    const std::string shown = folder.Shown(name);
    if (read_.find(shown) == read_.end()) AddOther(*folder.Text(name), shown);
  }
  if (depth == 0) return;
  for (const std::string& name : folder.Folders()) AddFolder(folder.Sub(name), depth - 1);
}

bool IsLog(std::string_view name) {
  return std::any_of(std::begin(kLogEndings), std::end(kLogEndings),
                     [&](std::string_view ending) { return name.ends_with(ending); });
}

std::string LastWords(std::string_view log) {
  std::string words;
  const auto keep = [&](std::string_view line) {
    words = FirstCodePoints(OnlyUtf8(Strip(line.substr(0, 4 * kMaxWords))), kMaxWords);
  };
  ForEachInvalidLine(log, keep);
  const std::string clean = OnlyUtf8(log);
  ForEachLine(clean, [&](std::string_view line) {
    const bool dies =
        std::any_of(std::begin(kDeaths), std::end(kDeaths),
                    [&](std::string_view death) { return ContainsIgnoringCase(line, death); });
    if (dies) keep(line);
  });
  return words;
}

void CheckCells(const BenchTable& table, Evidence& evidence) {
  // The parser writes this column last, so a row without it was cut.
  for (size_t row = 0; table.HasColumn("log_file") && row < table.size(); ++row) {
    if (!table.Cell(row, "log_file").empty()) continue;
    evidence.gaps.Add(fmt::format("row {} of the table is cut", row + 1));
  }
  for (const std::string& column : table.Columns()) {
    if (!HasFigures(column)) continue;
    for (size_t row = 0; row < table.size(); ++row) {
      const std::string_view cell = table.Cell(row, column);
      if (table.IsHeaderAgain(row)) continue;
      const std::string_view log = table.Cell(row, "log_file");
      const auto place = [&] {
        return fmt::format("{} row {}: {}", log.empty() ? "the table" : OnlyUtf8(log), row + 1,
                           OnlyUtf8(column));
      };
      if (HasNonFinite(cell)) {
        evidence.non_finite.Add(
            fmt::format("{} is '{}'", place(), FirstCodePoints(cell, kShownCell)));
      } else if (!BeginsWithNumber(FigureText(column, cell))) {
        evidence.gaps.Add(Strip(cell).empty()
                              ? place() + " is empty"
                              : fmt::format("{} is '{}', which is not a number", place(),
                                            FirstCodePoints(cell, kShownCell)));
      }
    }
  }
}

void CheckFigures(const GateBullets& bullets, const std::string& shown, Evidence& evidence) {
  for (const auto& [key, value] : bullets) {
    if (!HasNonFinite(value) || value.find_first_of(" ,[") != std::string::npos) continue;
    evidence.non_finite.Add(
        fmt::format("{}: {} is {}", shown, key, FirstCodePoints(value, kShownCell)));
  }
}

void CheckFigures(const Json& value, const std::string& shown, Evidence& evidence,
                  const std::string& name) {
  if (value.is_structured()) {
    for (const auto& item : value.items()) CheckFigures(item.value(), shown, evidence, item.key());
    return;
  }
  // ParseJson returns such numbers as texts.
  const auto quoted = value.is_string() ? WholeNumber(value.get_ref<const std::string&>())
                                        : std::optional<double>();
  const bool is_number = value.is_number_float() || quoted;
  if (!is_number || std::isfinite(quoted ? *quoted : value.get<double>())) return;
  evidence.non_finite.Add(fmt::format("{}: {} is {}", shown, OnlyUtf8(name),
                                      value.is_string() ? value.get<std::string>() : "no number"));
}

std::vector<std::string> DeniedBy(const GateBullets& bullets) {
  std::vector<std::string> keys;
  if (bullets.empty()) return keys;
  if (Lower(TextAt(bullets, "overall_pass")) != "true") keys.emplace_back("overall_pass");
  const bool asks = Lower(TextAt(bullets, "require_kv_content_consistency")) == "true";
  for (const auto& [key, value] : bullets) {
    if (key == "overall_pass" || key == "lossless_selected_pass") continue;
    const bool is_part = std::find(std::begin(kPartsOfConsistency), std::end(kPartsOfConsistency),
                                   key) != std::end(kPartsOfConsistency);
    if (is_part && !asks) continue;
    if (key.ends_with("_pass") && Lower(value) != "true") keys.push_back(key);
    if (key == "quality_status" && Lower(value) != "pass") keys.push_back(key);
  }
  return keys;
}

std::vector<std::string> DeniedBy(const Json& report) {
  std::vector<std::string> keys;
  if (!report.is_object() || report.empty()) return keys;
  const auto is_true = [](const Json& value) { return value.is_boolean() && value.get<bool>(); };
  if (!report.contains("overall_pass") || !is_true(report["overall_pass"])) {
    keys.emplace_back("overall_pass");
  }
  for (const auto& item : report.items()) {
    const bool is_verdict = item.key().ends_with("_pass") && !item.key().starts_with("require_");
    const bool is_list = item.key().ends_with("_failures") && item.value().is_array();
    if (item.key() == "overall_pass" || (!is_verdict && !is_list)) continue;
    if (is_list ? !item.value().empty() : !is_true(item.value())) keys.push_back(item.key());
  }
  return keys;
}

void AddDenial(const std::vector<std::string>& keys, const std::string& who, Evidence& evidence,
               std::string_view why) {
  if (keys.empty()) return;
  constexpr size_t kMost = 6;
  std::vector<std::string> named(keys.begin(), keys.begin() + std::min(keys.size(), kMost));
  std::string text = OnlyUtf8(fmt::format("{} says no: {}", who, fmt::join(named, ", ")));
  if (keys.size() > kMost) text += fmt::format(" and {} more", keys.size() - kMost);
  if (!why.empty()) text += fmt::format(", '{}'", FirstCodePoints(why, kMaxWords));
  evidence.denials.push_back({OnlyUtf8(keys.front()), std::move(text)});
}

}  // namespace kv::mnn::logs
