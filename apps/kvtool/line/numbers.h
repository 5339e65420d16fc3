// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/kvtool/line/command_line.h"
#include "lib/core/snapshot/select.h"
#include "lib/study/eviction/budget.h"

// Numbers, lists and names on the command line. All that parse throw kUsage naming the flag.
namespace kv {

// Refuses every text for which `parse` throws, so that a list or a size is refused before a file is
// opened.
ValueCheck CheckedBy(std::function<void(const std::string& text)> parse);

// Parses ranges separated by commas, which include both ends: "0-3,27", "512-" (to the end). The
// older forms "0:4", "4:" and ":4" exclude the end. Returns them sorted, with adjacent ones joined.
std::vector<TokenRange> ParseRanges(std::string_view text, std::string_view flag);
// Parses ranges as ParseRanges does, into a short list without repeats; each range needs an end.
std::vector<uint32_t> ParseIndexList(std::string_view text, std::string_view flag);
// Turns "2,3,3.5", "2-4+0.5" (steps), "2-16*2" (factors) into a list in the order given.
std::vector<double> ParseSweep(std::string_view text, std::string_view flag);
// Parses "64KiB", "64K", "1.5GiB", "1000"; refuses 64kB and other decimal units as ambiguous.
uint64_t ParseSize(std::string_view text, std::string_view flag);

// Parses "0.5", "5%", "0.1-0.5+0.2" or "10-50+20%", separated by commas; both bounds belong.
std::vector<double> ParseShares(std::string_view text, std::string_view flag, double least,
                                double most,
                                std::string_view expected = "a share such as 0.05 or 5%");
// Parses one share.
double ParseShare(std::string_view text, std::string_view flag, double least, double most);
// Parses --budget: "0.5", "0.1-0.5+0.2", "50%" or "512t", separated by commas.
std::vector<eviction::KeepBudget> ParseBudgets(std::string_view text,
                                               std::string_view flag = "--budget");
// Parses --target-ratio: a sweep of ratios from 1 on.
std::vector<double> ParseRatios(const std::string& text, std::string_view flag = "--target-ratio");
// Parses --policy: names in upper or lower case, separated by commas, or "all".
std::vector<std::string> ParsePolicies(std::string_view text, std::string_view flag = "--policy");
// Returns the names of policies, and "all" as the last word.
std::vector<std::string> PolicyWords();

// Description and permitted values of a parameter that an engine defines.
struct ParameterText {
  struct Range {
    double least = 0, most = -1;  // no limits if `most` is the smaller
  };
  std::string_view name;   // the engine's name for it
  std::string_view value;  // INT, NUMBER, TEXT; empty: a switch
  std::string_view text;
  Range range = {};
  // The flag with its dashes, if it is not the engine's name with dashes; aliases follow a '|'.
  std::string_view flag = {};
};

// Returns the text of a parameter of the engine's lossless runtime or H2O, by its own name.
const ParameterText& RuntimeParameterText(std::string_view name);
// Returns the text of an option of the analyzer that judges the engine's logs.
const ParameterText& AnalyzerOptionText(std::string_view name);
// Returns the names to declare a parameter by, "--hot-sink|--hot-sink-tokens,...". `prefix`
// precedes only the engine's names, which work as well.
std::string FlagNames(const ParameterText& parameter, std::string_view prefix);
// Refuses values that the engine itself would clamp, because it would then run with other settings.
ValueCheck ParameterCheck(std::string_view name);

}  // namespace kv
