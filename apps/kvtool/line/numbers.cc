// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

constexpr double kMostTokens = 1099511627776.0;  // 2^40: far beyond any cache
constexpr double kMost = std::numeric_limits<float>::max();

std::optional<double> FiniteNumber(std::string_view text) {
  const auto value = ParseNumber<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

// Of what 64 bits hold: the parser behind would silently take the largest value for any larger one.
bool IsWhole(std::string_view text) {
  return ParseNumber<int64_t>(text) || ParseNumber<uint64_t>(text);
}

struct ParameterRange {
  std::string_view name;
  double least, most;
  bool is_whole = true;
};

constexpr ParameterRange kRanges[] = {
    {"h2o_layer_start", 0, 65535},
    {"h2o_layer_end", -1, 65535},
    {"h2o_block_tokens", 1, kMostTokens},
    {"h2o_sink_tokens", 0, kMostTokens},
    {"h2o_recent_tokens", 0, kMostTokens},
    {"h2o_target_keep_ratio", 0, 1, false},
    {"h2o_target_lossy_ratio", 1, kMost, false},
    {"h2o_ema_alpha", 0, 1, false},
    {"h2o_update_interval", 1, kMostTokens},
    {"h2o_trigger_min_tokens", 0, kMostTokens},
    {"h2o_lossless_enable", 0, 1},
    {"h2o_lossless_front_n", 0, kMostTokens},
    {"h2o_lossless_runtime_enable", 0, 1},
    {"h2o_lossless_block_tokens", 1, kMostTokens},
    {"h2o_lossless_hot_recent_tokens", 0, kMostTokens},
    {"h2o_lossless_hot_sink_tokens", 0, kMostTokens},
    {"h2o_lossless_kept_sample_layers", 0, kMostTokens},
    {"h2o_lossless_kept_sample_token_interval", 0, kMostTokens},
    {"h2o_lossless_front_sample_token_interval", 0, kMostTokens},
    {"h2o_lossless_store_disable_front", 0, 1},
    {"h2o_lossless_store_bootstrap_tokens", 0, kMostTokens},
    {"h2o_lossless_store_grouped_step_tokens", 0, kMostTokens},
    {"h2o_lossless_async_threads", 0, 256},
    {"h2o_lossless_max_queue", 1, kMostTokens},
    {"h2o_lossless_decode_cache_blocks", 0, kMostTokens},
    {"h2o_lossless_strict_roundtrip_check", 0, 1},
};

}  // namespace

std::string WrongWhole(std::string_view text, bool is_signed) {
  if (IsWhole(text) && (is_signed || text.front() != '-')) return {};
  return fmt::format("'{}' is not a whole number{}", Escaped(text, 40), is_signed ? "" : " from 0");
}

std::string WithoutLeadingZeros(std::string text) {
  const size_t sign = text.front() == '-' ? 1 : 0;
  const size_t first = std::min(text.find_first_not_of('0', sign), text.size() - 1);
  return text.erase(sign, first - sign);
}

std::string WrongReal(std::string_view text) {
  if (FiniteNumber(text)) return {};
  return fmt::format("'{}' is not a finite number", Escaped(text, 40));
}

std::string WrongParameter(std::string_view meta_name, std::string_view text) {
  const auto* range = std::find_if(std::begin(kRanges), std::end(kRanges),
                                   [&](const ParameterRange& r) { return r.name == meta_name; });
  if (range == std::end(kRanges)) return {};
  const std::optional<double> value = FiniteNumber(text);
  const bool is_good = value && *value >= range->least && *value <= range->most &&
                       (!range->is_whole || IsWhole(text));
  if (is_good) return {};
  const std::string_view kind = range->is_whole ? "a whole number" : "a number";
  if (range->most == kMost || range->most == kMostTokens) {
    return fmt::format("'{}': expected {} from {}", Escaped(text, 40), kind, range->least);
  }
  return fmt::format("'{}': expected {} from {} to {}", Escaped(text, 40), kind, range->least,
                     range->most);
}

ValueCheck ParameterCheck(std::string meta_name) {
  return
      [name = std::move(meta_name)](const std::string& text) { return WrongParameter(name, text); };
}

ValueCheck CheckedBy(std::function<void(const std::string& text)> parse) {
  return [parse = std::move(parse)](const std::string& text) {
    try {
      parse(text);
    } catch (const Error& error) {
      const std::string text_of = error.what();
      // The parser behind puts the flag before what a check says.
      return text_of.starts_with("--") ? text_of.substr(text_of.find(' ') + 1) : text_of;
    }
    return std::string();
  };
}

}  // namespace kv
