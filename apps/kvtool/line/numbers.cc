// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <span>

#include "formats/format.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"
#include "lib/core/codec/planes/gear.h"
#include "lib/study/eviction/policy.h"

namespace kv {
namespace {

Error BadValue(std::string_view flag, std::string_view text, std::string_view expected) {
  return Error(Finding::kUsage, "{} '{}': expected {}", flag, text, expected);
}

uint64_t ParseWhole(std::string_view text, std::string_view flag, std::string_view whole) {
  const auto value = ParseNumber<uint64_t>(text);
  if (!value) throw BadValue(flag, whole, "whole numbers");
  return *value;
}

constexpr double kMostTokens = 1099511627776.0;  // 2^40: far beyond any cache
constexpr double kMost = std::numeric_limits<float>::max();
constexpr ParameterText::Range kCount = {0, kMostTokens}, kFromOne = {1, kMostTokens},
                               kUpToOne = {0, 1};

constexpr ParameterText kRuntime[] = {
    {"h2o_lossless_enable", "INT", "1: the lossless path is on", kUpToOne},
    {"h2o_lossless_scope", "TEXT",
     "Layers that are compressed: a scope's name or the engine's number for it"},
    {"h2o_lossless_front_n", "INT", "First layers that are compressed whole", kCount},
    {"h2o_lossless_codec", "TEXT", "Codec of what is compressed"},
    {"h2o_lossless_runtime_enable", "INT", "1: compress while decoding", kUpToOne},
    {"h2o_lossless_block_tokens", "INT", "Tokens that are compressed together", kFromOne,
     "--group-tokens|--block-tokens"},
    {"h2o_lossless_hot_recent_tokens", "INT", "Last tokens that stay uncompressed", kCount,
     "--hot-recent|--hot-recent-tokens"},
    {"h2o_lossless_hot_sink_tokens", "INT", "First tokens that stay uncompressed", kCount,
     "--hot-sink|--hot-sink-tokens"},
    {"h2o_lossless_kept_sample_layers", "INT",
     "Number of evicting layers whose kept tokens are compressed; 0: all", kCount},
    {"h2o_lossless_kept_sample_token_interval", "INT",
     "Decoded tokens between two compressions of kept tokens", kCount},
    {"h2o_lossless_front_sample_token_interval", "INT",
     "Decoded tokens between two compressions of the first layers", kCount},
    {"h2o_lossless_store_disable_front", "INT", "1: mode store leaves the first layers alone",
     kUpToOne},
    {"h2o_lossless_store_bootstrap_tokens", "INT",
     "Tokens of the first range that mode store compresses; 0: half a group, but at least 16",
     kCount},
    {"h2o_lossless_store_grouped_step_tokens", "INT",
     "Tokens of each later range of mode store; 0: three groups", kCount},
    {"h2o_lossless_codec_runtime", "TEXT", "Name of the codec; the engine ignores it"},
    {"h2o_lossless_predictors_k",
     "TEXT",
     "Predictors to try for K",
     {},
     "--k-predictors|--predictors-k"},
    {"h2o_lossless_predictors_v",
     "TEXT",
     "Predictors to try for V",
     {},
     "--v-predictors|--predictors-v"},
    {"h2o_lossless_async_threads",
     "INT",
     "Threads that compress beside decoding; 0: none",
     {0, 256}},
    {"h2o_lossless_max_queue", "INT", "Ranges that may wait for these threads", kFromOne},
    {"h2o_lossless_decode_cache_blocks", "INT", "Decoded ranges that are kept for reuse", kCount},
    {"h2o_lossless_strict_roundtrip_check", "INT", "1: decode each range again and compare",
     kUpToOne},
    {"h2o_layer_start", "INT", "First layer that evicts", {0, 65535}},
    {"h2o_layer_end", "INT", "Last layer that evicts; -1: the model's last layer", {-1, 65535}},
    {"h2o_block_tokens", "INT", "Tokens per block, which is kept or evicted as a whole", kFromOne},
    {"h2o_sink_tokens", "INT", "First tokens that stay", kCount, "--h2o-sink|--h2o-sink-tokens"},
    {"h2o_recent_tokens", "INT", "Last tokens that stay", kCount,
     "--h2o-recent|--h2o-recent-tokens"},
    {"h2o_target_mode", "TEXT", "How the engine reads its target"},
    {"h2o_target_keep_ratio", "NUMBER", "static: share of the tokens that stays", kUpToOne,
     "--h2o-keep-share|--h2o-target-keep-ratio"},
    {"h2o_target_lossy_ratio",
     "NUMBER",
     "adaptive: ratio to reach by evicting",
     {1, kMost},
     "--h2o-target-ratio|--h2o-target-lossy-ratio"},
    {"h2o_ema_alpha", "NUMBER", "Weight of the old score", kUpToOne},
    {"h2o_update_interval", "INT", "Tokens between two decisions", kFromOne},
    {"h2o_trigger_min_tokens", "INT", "Shortest cache in which tokens are evicted", kCount,
     "--h2o-trigger-min|--h2o-trigger-min-tokens"},
};

constexpr ParameterText kAnalyzer[] = {
    {"lossy_target", "NUMBER", "Least ratio that eviction must reach"},
    {"lossless_target", "NUMBER", "Least ratio that lossless compression must reach"},
    {"decode_baseline", "NUMBER",
     "Baseline decoding speed in tokens/s, without eviction and compression"},
    {"decode_gate_aggregation", "TEXT",
     "How the speeds of rounds become one figure: avg, median, p90 or best"},
    {"decode_baseline_source", "TEXT", "Source of the baseline speed, for the report"},
    {"decode_baseline_samples", "INT", "Rounds of the baseline speed, for the report"},
    {"decode_drop_target", "NUMBER", "Share of the baseline speed that may be lost, e.g. 0.05"},
    {"runtime_mode", "TEXT", "Mode that the engine must have run in: probe, full or store"},
    {"async_threads", "INT", "Compression threads that the run was started with"},
    {"require_kv_content_consistency", "", "Fail if restored values differ from the cache"},
    {"max_kv_invalid_log_lines", "INT", "Limit on log lines that mention an invalid cache"},
    {"max_lossless_queue_peak", "NUMBER", "Limit on ranges that wait for compression"},
    {"max_lossless_fallback", "NUMBER", "Limit on ranges that are left uncompressed"},
    {"max_lossless_backpressure_skip", "NUMBER", "Limit on ranges that a full queue skips"},
    {"max_lossless_decomp_us", "NUMBER", "Limit on the time of decompression, in microseconds"},
    {"max_lossless_async_wait_us", "NUMBER", "Limit on the wait of decoding, in microseconds"},
    {"async_wait_headroom_warn_ratio", "NUMBER",
     "Warn if less than this share of the limit on waiting is left"},
    {"require_runtime_decomp", "", "Fail unless something was decompressed"},
    {"require_decode_cache_hit", "", "Fail unless a decoded range was used again"},
    {"require_async_queue_activity", "", "Fail unless the queue was used"},
    {"require_decode_cache_activity", "", "Fail unless decoded ranges were looked for"},
    {"strict_runtime_metric_columns", "", "Fail if a column of the metrics is missing"},
};

const ParameterText& FindText(std::span<const ParameterText> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const ParameterText& one) { return one.name == name; });
  KV_ASSERT(found != table.end());
  return *found;
}

}  // namespace

ValueCheck CheckedBy(std::function<void(const std::string& text)> parse) {
  return [parse = std::move(parse)](const std::string& text) {
    try {
      parse(text);
    } catch (const Error& error) {
      const std::string text_of = error.what();
      // The parser puts the flag before the text of a check.
      return text_of.starts_with("--") ? text_of.substr(text_of.find(' ') + 1) : text_of;
    }
    return std::string();
  };
}

std::vector<TokenRange> ParseRanges(std::string_view text, std::string_view flag) {
  constexpr const char* kExpected = "ranges like 0-3,27";
  std::vector<TokenRange> ranges;
  for (const std::string_view item : Split(text, ',')) {
    const size_t sign = item.find_first_of("-:");
    const bool is_old = sign != item.npos && item[sign] == ':';
    const std::string_view first = item.substr(0, sign);
    if (first.empty() && !is_old) throw BadValue(flag, text, kExpected);
    TokenRange range;
    range.begin = first.empty() ? 0 : ParseWhole(first, flag, text);
    const std::string_view last = sign == item.npos ? first : item.substr(sign + 1);
    range.end = UINT64_MAX;
    if (!last.empty()) {
      const uint64_t number = ParseWhole(last, flag, text);
      range.end = is_old || number == UINT64_MAX ? number : number + 1;
    }
    if (range.begin >= range.end) {
      throw BadValue(flag, text, is_old ? "BEGIN before END, or ranges like 0-3,27" : kExpected);
    }
    ranges.push_back(range);
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const TokenRange& a, const TokenRange& b) { return a.begin < b.begin; });
  std::vector<TokenRange> joined;
  for (const TokenRange& range : ranges) {
    if (joined.empty() || joined.back().end < range.begin) {
      joined.push_back(range);
    } else {
      joined.back().end = std::max(joined.back().end, range.end);
    }
  }
  return joined;
}

std::vector<uint32_t> ParseIndexList(std::string_view text, std::string_view flag) {
  constexpr uint64_t kMost = 1'000'001;
  std::vector<uint32_t> list;
  for (const TokenRange& range : ParseRanges(text, flag)) {
    if (range.end > kMost) throw BadValue(flag, text, "ranges like 0-3,27");
    for (uint64_t i = range.begin; i < range.end; ++i) list.push_back(static_cast<uint32_t>(i));
  }
  return list;
}

namespace {

double ParseReal(std::string_view text, std::string_view flag, std::string_view whole) {
  const auto value = ParseNumber<double>(text);
  if (!value || !std::isfinite(*value)) {
    throw BadValue(flag, whole, "numbers like 2,3,3.5 or ranges like 2-4+0.5 and 2-16*2");
  }
  return *value;
}

// Appends FIRST-LAST+STEP or FIRST-LAST*FACTOR; the end is included, up to rounding.
void AppendRange(std::string_view item, size_t dash, std::string_view flag, std::string_view whole,
                 std::vector<double>& list) {
  constexpr size_t kMost = 1000;
  const size_t sign = item.find_first_of("+*", dash + 1);
  const double first = ParseReal(item.substr(0, dash), flag, whole);
  const double last = ParseReal(item.substr(dash + 1, sign - dash - 1), flag, whole);
  const bool factor = sign != item.npos && item[sign] == '*';
  const double step = sign == item.npos ? 1 : ParseReal(item.substr(sign + 1), flag, whole);
  if (first > last || (factor ? step <= 1 || first <= 0 : step <= 0)) {
    throw BadValue(flag, whole, "ranges that rise: FIRST-LAST+STEP or FIRST-LAST*FACTOR");
  }
  for (size_t i = 0;; ++i) {
    const double value = factor ? first * std::pow(step, static_cast<double>(i))
                                : first + step * static_cast<double>(i);
    if (value > last * (1 + 1e-9)) return;
    if (list.size() == kMost) throw BadValue(flag, whole, "at most 1000 values");
    list.push_back(value);
  }
}

}  // namespace

std::vector<double> ParseSweep(std::string_view text, std::string_view flag) {
  std::vector<double> list;
  for (const std::string_view item : Split(text, ',')) {
    const size_t dash = item.find('-', 1);
    if (dash == item.npos) {
      list.push_back(ParseReal(item, flag, text));
    } else {
      AppendRange(item, dash, flag, text, list);
    }
  }
  return list;
}

uint64_t ParseSize(std::string_view text, std::string_view flag) {
  size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) != 0 || text[digits] == '.')) {
    ++digits;
  }
  const std::string_view unit = text.substr(digits);
  constexpr std::string_view kPrefixes = "KMGT";
  uint64_t scale = 1;
  if (!unit.empty()) {
    const size_t power = kPrefixes.find(unit[0]);
    if (power == kPrefixes.npos || (unit.size() > 1 && unit.substr(1) != "iB")) {
      throw BadValue(flag, text,
                     "a size such as 64KiB or 64K (= KiB); decimal units are ambiguous here");
    }
    scale = uint64_t{1} << (10 * (power + 1));
  }
  const auto number = ParseNumber<double>(text.substr(0, digits));
  const double value = number.value_or(0);
  const bool is_whole = scale > 1 || value == std::floor(value);
  if (!number || !is_whole || value * static_cast<double>(scale) >= 0x1p63) {
    throw BadValue(flag, text, "a size such as 64KiB");
  }
  return static_cast<uint64_t>(std::llround(value * static_cast<double>(scale)));
}

std::vector<double> ParseShares(std::string_view text, std::string_view flag, double least,
                                double most, std::string_view expected) {
  std::vector<double> shares;
  const auto refuse = [&](std::string_view part) {
    throw Error(Finding::kUsage, "{} '{}': expected {}", flag, Escaped(part), expected);
  };
  for (const std::string_view part : Split(text, ',')) {
    const bool percent = part.ends_with('%');
    std::vector<double> values;
    try {
      values = ParseSweep(percent ? part.substr(0, part.size() - 1) : part, flag);
    } catch (const Error&) {
      refuse(part);
    }
    for (const double value : values) {
      const double share = percent ? value / 100 : value;
      if (!(share >= least && share <= most)) refuse(part);
      shares.push_back(share);
    }
  }
  return shares;
}

double ParseShare(std::string_view text, std::string_view flag, double least, double most) {
  const std::vector<double> shares = ParseShares(text, flag, least, most);
  if (shares.size() == 1) return shares.front();
  throw Error(Finding::kUsage, "{} '{}': expected one share, such as 0.05 or 5%", flag,
              Escaped(text));
}

std::vector<eviction::KeepBudget> ParseBudgets(std::string_view text, std::string_view flag) {
  constexpr std::string_view kExpected = "shares above 0 and up to 1, or tokens as 512t";
  std::vector<eviction::KeepBudget> budgets;
  const auto refuse = [&](std::string_view part) {
    throw Error(Finding::kUsage, "{} '{}': expected {}", flag, Escaped(part), kExpected);
  };
  for (const std::string_view part : Split(text, ',')) {
    if (part.ends_with('t')) {
      const auto tokens = ParseNumber<uint64_t>(part.substr(0, part.size() - 1)).value_or(0);
      if (tokens == 0 || tokens > UINT32_MAX) refuse(part);
      budgets.push_back({tokens, 1, false});
      continue;
    }
    for (const double share : ParseShares(part, flag, 0, 1, kExpected)) {
      if (share == 0) refuse(part);
      budgets.push_back({std::nullopt, share, false});
    }
  }
  return budgets;
}

std::vector<double> ParseRatios(const std::string& text, std::string_view flag) {
  constexpr double kMost = 1e9;
  std::vector<double> ratios = ParseSweep(text, flag);
  for (const double ratio : ratios) {
    if (ratio >= 1 && ratio <= kMost) continue;
    throw Error(Finding::kUsage, "{}: a ratio is at least 1, at most 1e9", flag);
  }
  return ratios;
}

std::vector<std::string> ParsePolicies(std::string_view text, std::string_view flag) {
  std::vector<std::string> names;
  const std::string lower = Lower(text);
  if (lower == "all") {
    names = PolicyWords();
    names.pop_back();
    return names;
  }
  for (const std::string_view name : Split(lower, ',')) {
    names.emplace_back(name);
    if (eviction::FindPolicy(names.back()) != nullptr) continue;
    throw Error(Finding::kUsage, "{} '{}': expected one of {}", flag, Escaped(names.back()),
                fmt::join(PolicyWords(), ", "));
  }
  return names;
}

std::vector<std::string> PolicyWords() {
  std::vector<std::string> words;
  for (const eviction::PolicyInfo& policy : eviction::Policies()) words.emplace_back(policy.name);
  words.emplace_back("all");
  return words;
}

const ParameterText& RuntimeParameterText(std::string_view name) {
  return FindText(kRuntime, name);
}

const ParameterText& AnalyzerOptionText(std::string_view name) { return FindText(kAnalyzer, name); }

std::string FlagNames(const ParameterText& parameter, std::string_view prefix) {
  const auto with_dashes = [](std::string_view name) {
    std::string flag = fmt::format("--{}", name);
    std::replace(flag.begin(), flag.end(), '_', '-');
    return flag;
  };
  const std::string_view name = parameter.name;
  const bool is_short = name.starts_with(prefix);
  std::string flags(parameter.flag);
  if (flags.empty()) flags = with_dashes(is_short ? name.substr(prefix.size()) : name);
  if (!prefix.empty() && is_short) {  // accepts the engine's own name of the parameter, too
    flags += (flags.find('|') == flags.npos ? '|' : ',') + with_dashes(name);
  }
  return flags;
}

namespace {

// The engine's own default names pair_delta, which its parser leaves out as any unknown name.
std::string WrongPredictors(const std::string& text) {
  std::vector<std::string> unknown;
  ParsePredictors(text, &unknown);
  std::erase(unknown, "pair_delta");
  if (unknown.empty()) return {};
  return fmt::format("'{}': expected raw, delta_seq or xor_seq, separated by commas",
                     Escaped(unknown.front(), 40));
}

}  // namespace

ValueCheck ParameterCheck(std::string_view name) {
  if (name.find("predictors") != name.npos) return WrongPredictors;
  return [told = RuntimeParameterText(name)](const std::string& text) -> std::string {
    const auto [least, most] = told.range;
    if (most < least) return {};
    const bool is_whole = told.value == "INT";
    const auto value = ParseNumber<double>(text);
    const bool is_number = is_whole ? ParseNumber<int64_t>(text) || ParseNumber<uint64_t>(text)
                                    : value && std::isfinite(*value);
    if (is_number && *value >= least && *value <= most) return {};
    const std::string_view kind = is_whole ? "a whole number" : "a number";
    if (most == kMost || most == kMostTokens) {
      return fmt::format("'{}': expected {} from {}", Escaped(text, 40), kind, least);
    }
    return fmt::format("'{}': expected {} from {} to {}", Escaped(text, 40), kind, least, most);
  };
}

}  // namespace kv
