// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/gate/gate_log_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/kvtool/engines.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

std::string FlagOf(std::string_view name) {
  std::string flag = "--" + std::string(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// "runtime_full=1" to its place in the codes.
void AddReturnCode(const std::string& item, std::map<std::string, int64_t>& codes) {
  const size_t equals = item.find('=');
  const bool has_both = equals != item.npos && equals != 0;
  const auto code =
      has_both ? ParseNumber<int64_t>(std::string_view(item).substr(equals + 1)) : std::nullopt;
  if (!code) {
    throw Error(Finding::kUsage,
                fmt::format("--return-codes '{}': expected CASE=N,CASE=N", Escaped(item)));
  }
  if (!codes.emplace(item.substr(0, equals), *code).second) {
    throw Error(Finding::kUsage, fmt::format("--return-codes: two codes for case '{}'",
                                             Escaped(item.substr(0, equals))));
  }
}

}  // namespace

void EngineLogOptions::Declare(CommandLine& line) {
  const char* group = "Engine logs (rules of its analyzer, off unless given or part of the suite)";
  line.Add("--engine-logs", path,
           "Judge the real engine's own output: a suite's, a folder of bench logs, or one log or "
           "report")
      .Group(group);
  line.Add("--return-codes", return_codes,
           "Return codes of its cases: runtime_full=1,... (those of the suite's summary)")
      .Group(group);
  line.Add("--offline-lossless-json", offline, "Offline report with the upper bound").Group(group);
  line.Add("--offline-lossless-online-json", online, "Offline report of the simulated online mode")
      .Group(group);
  line.Add("--bench-stdout-log", bench_log, "Console output of the bench").Group(group);
  for (const std::string_view name : engine().log_options()) {
    const std::string key(name);
    const ParameterText& told = AnalyzerOptionText(name);
    const std::string text(told.text);
    if (told.value.empty()) {
      line.OnFlag(
              FlagOf(name), [this, key] { analyzer.emplace_back(key, ""); }, text)
          .Group(group);
    } else {
      line.OnText(
              FlagOf(name),
              [this, key](const std::string& value) { analyzer.emplace_back(key, value); }, text)
          .ValueName(std::string(told.value))
          .Group(group);
    }
  }
}

void EngineLogOptions::RequireLogs() const {
  if (given() || (analyzer.empty() && return_codes.empty() && offline.empty() && online.empty() &&
                  bench_log.empty())) {
    return;
  }
  throw Error(Finding::kUsage, "options of the original analyzer go with --engine-logs");
}

const gate::Engine& EngineLogOptions::engine() const { return *Engines().front(); }

gate::LogsInput EngineLogOptions::Resolve() const {
  gate::LogsInput input{.path = path, .options = analyzer};
  input.files = {{"offline_lossless_json", offline},
                 {"offline_lossless_online_json", online},
                 {"bench_stdout_log", bench_log}};
  for (size_t begin = 0; begin < return_codes.size();) {
    const size_t end = std::min(return_codes.find(',', begin), return_codes.size());
    AddReturnCode(return_codes.substr(begin, end - begin), input.return_codes);
    begin = end + 1;
  }
  return input;
}

void EngineLogOptions::AddWords(std::vector<std::string>& words) const {
  for (const auto& [flag, value] : {std::pair{"--engine-logs", &path},
                                    {"--return-codes", &return_codes},
                                    {"--offline-lossless-json", &offline},
                                    {"--offline-lossless-online-json", &online},
                                    {"--bench-stdout-log", &bench_log}}) {
    if (value->empty()) continue;
    words.emplace_back(flag);
    words.push_back(*value);
  }
  for (const auto& [name, value] : analyzer) {
    words.push_back(FlagOf(name));
    if (!value.empty()) words.push_back(value);
  }
}

}  // namespace kv
