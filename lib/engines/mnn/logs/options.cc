// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <variant>

#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/engines/mnn/logs/analyzer.h"
#include "lib/engines/mnn/logs/text.h"

namespace kv::mnn::logs {
namespace {

using Member = std::variant<double AnalyzerOptions::*, int64_t AnalyzerOptions::*,
                            bool AnalyzerOptions::*, std::string AnalyzerOptions::*>;

struct OptionEntry {
  std::string_view name;
  Member member;
  std::string_view choices = {};  // of a text: words between bars; empty: any text
};

using O = AnalyzerOptions;
constexpr OptionEntry kOptions[] = {
    {"lossy_target", &O::lossy_target},
    {"lossless_target", &O::lossless_target},
    {"decode_baseline", &O::decode_baseline},
    {"decode_gate_aggregation", &O::decode_gate_aggregation, "|avg|median|p90|best|"},
    {"decode_baseline_source", &O::decode_baseline_source},
    {"decode_baseline_samples", &O::decode_baseline_samples},
    {"decode_drop_target", &O::decode_drop_target},
    {"runtime_mode", &O::runtime_mode, "||probe|full|store|"},
    {"async_threads", &O::async_threads},
    {"require_kv_content_consistency", &O::require_kv_content_consistency},
    {"max_kv_invalid_log_lines", &O::max_kv_invalid_log_lines},
    {"max_lossless_queue_peak", &O::max_lossless_queue_peak},
    {"max_lossless_fallback", &O::max_lossless_fallback},
    {"max_lossless_backpressure_skip", &O::max_lossless_backpressure_skip},
    {"max_lossless_decomp_us", &O::max_lossless_decomp_us},
    {"max_lossless_async_wait_us", &O::max_lossless_async_wait_us},
    {"async_wait_headroom_warn_ratio", &O::async_wait_headroom_warn_ratio},
    {"require_runtime_decomp", &O::require_runtime_decomp},
    {"require_decode_cache_hit", &O::require_decode_cache_hit},
    {"require_async_queue_activity", &O::require_async_queue_activity},
    {"require_decode_cache_activity", &O::require_decode_cache_activity},
    {"strict_runtime_metric_columns", &O::strict_runtime_metric_columns},
};

[[noreturn]] void Refuse(std::string_view name, std::string_view expected, std::string_view found) {
  throw Error(Finding::kUsage, fmt::format("{}: expected {}, found '{}'", name, expected, found));
}

void Set(const OptionEntry& entry, std::string_view value, AnalyzerOptions& options) {
  if (const auto* number = std::get_if<double O::*>(&entry.member)) {
    const auto parsed = WholeNumber(value);
    if (!parsed || !std::isfinite(*parsed)) Refuse(entry.name, "a number", value);
    options.*(*number) = *parsed;
  } else if (const auto* whole = std::get_if<int64_t O::*>(&entry.member)) {
    const auto parsed = ParseNumber<int64_t>(value);
    if (!parsed) Refuse(entry.name, "a whole number", value);
    options.*(*whole) = *parsed;
  } else if (const auto* flag = std::get_if<bool O::*>(&entry.member)) {
    const bool on = value.empty() || value == "1" || value == "true";
    if (!on && value != "0" && value != "false") Refuse(entry.name, "true or false", value);
    options.*(*flag) = on;
  } else {
    if (!entry.choices.empty() && !Contains(entry.choices, fmt::format("|{}|", value))) {
      std::string words(StripAll(entry.choices, '|'));
      std::replace(words.begin(), words.end(), '|', ' ');
      Refuse(entry.name, "one of " + words, value);
    }
    options.*std::get<std::string O::*>(entry.member) = value;
  }
}

}  // namespace

void SetAnalyzerOption(std::string_view name, std::string_view value, AnalyzerOptions& options) {
  std::string key(name.substr(StartsWith(name, "--") ? 2 : 0));
  std::replace(key.begin(), key.end(), '-', '_');
  const auto* found = std::find_if(std::begin(kOptions), std::end(kOptions),
                                   [&](const OptionEntry& entry) { return entry.name == key; });
  if (found == std::end(kOptions)) {
    throw Error(Finding::kUsage, fmt::format("'{}' is no option of the analyzer", name))
        .Hint("the names are those of analyze_h2o_final.py, such as lossy_target");
  }
  Set(*found, value, options);
}

std::vector<std::string_view> AnalyzerOptionNames() {
  std::vector<std::string_view> names;
  for (const OptionEntry& entry : kOptions) names.push_back(entry.name);
  return names;
}

AnalyzerOptions SuiteOptions(std::string_view case_name) {
  AnalyzerOptions options;
  if (!StartsWith(case_name, "runtime_")) return options;
  options.decode_baseline_source = "same_batch";
  options.decode_baseline_samples = 1;
  options.async_threads = 2;
  options.max_lossless_queue_peak = 8;
  options.max_lossless_fallback = 0;
  options.strict_runtime_metric_columns = true;
  options.runtime_mode = "full";
  if (case_name == "runtime_baseline") {
    options.lossy_target = 1;
    options.lossless_target = 1;
    options.decode_drop_target = 1;
    options.strict_runtime_metric_columns = false;
  } else if (case_name == "runtime_probe") {
    options.runtime_mode = "probe";
    options.max_lossless_async_wait_us = 20000;
  } else {
    const bool store = case_name == "runtime_store";
    options.runtime_mode = store ? "store" : "full";
    options.require_runtime_decomp = true;
    options.require_kv_content_consistency = true;
    options.max_lossless_decomp_us = store ? 70000 : 30000;
    options.max_lossless_async_wait_us = store ? 40000 : 20000;
  }
  return options;
}

}  // namespace kv::mnn::logs
