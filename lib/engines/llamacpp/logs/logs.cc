// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/llamacpp/logs/logs.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/study/gate/log_files.h"

namespace kv::llamacpp {
namespace {

// Limits against a baseline. Speeds on one machine differ by a few percent from run to run, and the
// deviation that a bench reports is added. The other figures are equal for equal build, model and
// text.
constexpr gate::DeltaRule kBaselineRules[] = {{"prompt_tokens_per_second", 0.05, {}},
                                              {"loss.mean_kl", {}, 0.05},
                                              {"loss.perplexity", {}, 0.01}};

bool IsLogName(std::string_view name) {
  constexpr std::string_view kEnds[] = {".log", ".txt", ".out", ".err", ".json", ".jsonl"};
  return std::any_of(std::begin(kEnds), std::end(kEnds),
                     [&](std::string_view end) { return name.ends_with(end); });
}

// Returns true for the log of a run that died at once: nothing, or only the opening bracket of a
// list. A file of messages may be empty in a good run and does not count.
bool IsEmptyLog(std::string_view name, std::string_view text) {
  return !name.ends_with(".err") && text.find_first_not_of(" \t\r\n[]") == text.npos;
}

// Returns true if the text has the head of llama-bench's own table, which leaves out settings that
// have their default. MNN's is like it, without "params".
bool HasTable(std::string_view text) {
  const size_t at = std::min(text.find("| model "), text.size());
  const std::string_view head = text.substr(at, text.find('\n', at) - at);
  constexpr std::string_view kTitles[] = {" size |", " params |", " test |", " t/s |"};
  return std::all_of(std::begin(kTitles), std::end(kTitles),
                     [&](auto title) { return head.find(title) != head.npos; });
}

}  // namespace

bool IsCut(const gate::CaseResult& item) { return item.first(gate::Status::kNotRun) != nullptr; }

std::span<const gate::DeltaRule> BaselineRules() { return kBaselineRules; }

std::vector<gate::CaseResult> ReadLog(std::string_view text, const std::string& name) {
  if (IsBench(text)) return ReadBench(text, name);
  if (!HasTable(text)) return ReadTextLog(text, name);
  return {CutCase(name,
                  "llama-bench's table lacks settings of its tests: 'llama-bench -o json' has "
                  "them")};
}

LogsRead ReadLogs(const std::filesystem::path& path) {
  const std::string shown = Escaped(path.generic_string());
  const gate::LogFolder folder(path, shown);
  if (!folder.exists()) {
    return {ReadLog(gate::ReadLog(path, shown), Escaped(path.filename().generic_string())), {}};
  }
  LogsRead all;
  std::set<std::filesystem::path> judged;  // names of logs with figures, without extensions
  std::vector<std::string> empty;
  for (const std::string& name : folder.Files(IsLogName)) {
    const std::string text = *folder.Text(name);
    const bool is_empty = IsEmptyLog(name, text);
    std::vector<gate::CaseResult> cases;
    if (!is_empty) cases = ReadLog(text, Escaped(name));
    if (cases.empty()) (is_empty ? empty : all.left_out).push_back(Escaped(name));
    if (!std::all_of(cases.begin(), cases.end(), IsCut))
      judged.insert(std::filesystem::path(Escaped(name)).stem());
    if (all.cases.size() + cases.size() > kMostCases) {
      throw Error(Finding::kLimit, "the logs of the folder have more than {} cases", kMostCases)
          .File(shown);
    }
    std::move(cases.begin(), cases.end(), std::back_inserter(all.cases));
  }
  // An empty log beside llama.cpp's logs is taken for one of llama.cpp.
  const bool is_ours = !all.cases.empty();
  for (const std::string& name : empty) {
    if (is_ours) {
      all.cases.push_back(CutCase(name, "the log is empty: the run died, or did nothing"));
    } else {
      all.left_out.push_back(name);
    }
  }
  // bench.err, if it has only messages, belongs to the run that wrote bench.json.
  std::erase_if(all.cases, [&](const gate::CaseResult& item) {
    const std::string& name = item.spec.name;
    const bool is_other = IsCut(item) && item.first_failure() == nullptr &&
                          judged.contains(std::filesystem::path(name).stem());
    if (is_other) all.left_out.push_back(name);
    return is_other;
  });
  for (const std::string& name : folder.Folders()) all.left_out.push_back(Escaped(name) + "/");
  return all;
}

}  // namespace kv::llamacpp
