// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/eviction_targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "apps/kvtool/options.h"
#include "lib/core/base/error.h"
#include "lib/study/eviction/policy.h"

namespace kv {

std::vector<eviction::KeepBudget> ParseBudgets(std::string_view text, std::string_view flag) {
  std::vector<eviction::KeepBudget> budgets;
  const auto refuse = [&](std::string_view part) {
    throw Error(Finding::kUsage,
                fmt::format("{} '{}': expected shares above 0 and up to 1, or tokens as 512t", flag,
                            Escaped(part)));
  };
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    begin = end + 1;
    if (part.ends_with('t')) {
      uint64_t tokens = 0;
      const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), tokens);
      if (error != std::errc() || rest + 1 != part.data() + part.size() || tokens == 0 ||
          tokens > UINT32_MAX) {
        refuse(part);
      }
      budgets.push_back({tokens, 1, false});
      continue;
    }
    const bool percent = part.ends_with('%');
    const std::string_view number = percent ? part.substr(0, part.size() - 1) : part;
    for (const double value : ParseSweep(number, flag)) {
      const double share = percent ? value / 100 : value;
      if (!(share > 0 && share <= 1)) refuse(part);
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
  if (text == "all") {
    names = PolicyWords();
    names.pop_back();
    return names;
  }
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    names.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
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
