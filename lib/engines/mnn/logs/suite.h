// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "lib/engines/mnn/logs/analyzer.h"
#include "lib/engines/mnn/logs/text.h"

namespace kv::mnn::logs {

// What the engine's suite writes about its cases: the rows of summary.json and cases.jsonl, and the
// lines of summary.md. Implemented by suite.cc and bullets.cc.

// The bullets below "## Quality Gate" in a report: keys to values without back-quotes.
using GateBullets = std::map<std::string, std::string, std::less<>>;
GateBullets ParseGateBullets(std::string_view markdown);
// The keys to which a report gives two values, such as "overall_pass (true, false)".
std::vector<std::string> Contradictions(std::string_view markdown);
// The keys that the analyzer always writes, given what these bullets say, and that they lack.
std::vector<std::string> MissingBullets(const GateBullets& bullets);
// The bullets that the analyzer would write of these figures, with its decimals.
GateBullets GateBulletsOf(const GateFigures& figures);

// The suite's cases in its order, with the mode that each runs in. Those of the runtime suite come
// first; the others are whole runs of llm_demo.
struct SuiteCaseName {
  std::string_view name, mode;
};
inline constexpr SuiteCaseName kSuiteCases[] = {
    {"runtime_baseline", "full"}, {"runtime_probe", "probe"}, {"runtime_full", "full"},
    {"runtime_store", "store"},   {"llm_demo_full", "full"},  {"llm_demo_store", "store"}};
inline constexpr std::string_view kBaselineCase = kSuiteCases[0].name;  // compresses nothing

// Says why a case failed as the suite does: by the last lines of its console log.
std::string ConsoleFailure(std::string_view console_log);

// One case as the suite sees it.
struct SuiteCase {
  std::string name, mode;
  int64_t return_code = 0;
  std::string folder;       // as reports print it: "OUT/runtime_store"
  std::string console_log;  // as reports print it: "OUT/runtime_store.console.log"
  std::optional<std::string> console_text = {};
  std::optional<std::string> summary_text = {};  // summary.md of a runtime case, if there is one
  GateBullets bullets = {};  // those of summary.md, or those that the analyzer would write
  std::optional<std::string> report_text = {};  // llm_demo_report.json
};
Json RuntimeRow(const SuiteCase& suite_case);
Json DemoRow(const SuiteCase& suite_case);

// A row as the suite's summary.md shows it, without its number.
std::string SuiteLine(const Json& row);

}  // namespace kv::mnn::logs
