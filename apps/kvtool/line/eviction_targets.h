// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lib/study/eviction/budget.h"

namespace kv {

// What eviction is asked for on the command line; all throw kUsage naming the flag.
// "0.5", "5%", "0.1-0.5+0.2" or "10-50+20%", separated by commas; both bounds belong.
std::vector<double> ParseShares(std::string_view text, std::string_view flag, double least,
                                double most,
                                std::string_view expected = "a share such as 0.05 or 5%");
// One of them.
double ParseShare(std::string_view text, std::string_view flag, double least, double most);
// --budget: "0.5", "0.1-0.5+0.2", "50%" or "512t", separated by commas.
std::vector<eviction::KeepBudget> ParseBudgets(std::string_view text,
                                               std::string_view flag = "--budget");
// --target-ratio: a sweep of ratios from 1 on.
std::vector<double> ParseRatios(const std::string& text, std::string_view flag = "--target-ratio");
// --policy: names in upper or lower case, separated by commas, or "all".
std::vector<std::string> ParsePolicies(std::string_view text, std::string_view flag = "--policy");
// The names, and "all" as the last.
std::vector<std::string> PolicyWords();

}  // namespace kv
