// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/line/eviction_targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "apps/kvtool/line/options.h"
#include "formats/words.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/study/eviction/policy.h"

namespace kv {

std::vector<double> ParseShares(std::string_view text, std::string_view flag, double least,
                                double most, std::string_view expected) {
  std::vector<double> shares;
  const auto refuse = [&](std::string_view part) {
    throw Error(Finding::kUsage,
                fmt::format("{} '{}': expected {}", flag, Escaped(part), expected));
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
  throw Error(Finding::kUsage,
              fmt::format("{} '{}': expected one share, such as 0.05 or 5%", flag, Escaped(text)));
}

std::vector<eviction::KeepBudget> ParseBudgets(std::string_view text, std::string_view flag) {
  constexpr std::string_view kExpected = "shares above 0 and up to 1, or tokens as 512t";
  std::vector<eviction::KeepBudget> budgets;
  const auto refuse = [&](std::string_view part) {
    throw Error(Finding::kUsage,
                fmt::format("{} '{}': expected {}", flag, Escaped(part), kExpected));
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
    throw Error(Finding::kUsage, fmt::format("{}: a ratio is at least 1, at most 1e9", flag));
  }
  return ratios;
}

std::vector<std::string> ParsePolicies(std::string_view text, std::string_view flag) {
  std::vector<std::string> names;
  std::string lower(text);
  for (char& c : lower) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  if (lower == "all") {
    names = PolicyWords();
    names.pop_back();
    return names;
  }
  for (const std::string_view name : Split(lower, ',')) {
    names.emplace_back(name);
    if (eviction::FindPolicy(names.back()) != nullptr) continue;
    std::string known = "all";
    for (const eviction::PolicyInfo& policy : eviction::Policies())
      known += fmt::format(", {}", policy.name);
    throw Error(Finding::kUsage,
                fmt::format("{} '{}': expected one of {}", flag, Escaped(names.back()), known));
  }
  return names;
}

std::vector<std::string> PolicyWords() {
  std::vector<std::string> words;
  for (const eviction::PolicyInfo& policy : eviction::Policies()) words.emplace_back(policy.name);
  words.emplace_back("all");
  return words;
}

}  // namespace kv
