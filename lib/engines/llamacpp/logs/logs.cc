// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/llamacpp/logs/logs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
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

// Reads the text logs of llama-server, llama-cli and llama-perplexity line by line, and makes one
// case of each log.

namespace {

constexpr double kMebibyte = 1 << 20;
constexpr size_t kLongestLabel = 40;
constexpr size_t kLongestType = 16;
constexpr size_t kShownLine = 200;
constexpr size_t kLongestSetting = 60;

// A statistic of llama-perplexity. Its label omits the Greek letter, which Windows' consoles
// garble.
struct Statistic {
  std::string_view label, metric;
  double unit = 1;
  bool more_is_better = false;
  bool only_old = false;  // only versions of early 2024 print it so, below its own heading
};

constexpr double kPercent = 0.01;
constexpr std::string_view kOldHeading = "===== KL-divergence statistics";
constexpr Statistic kStatistics[] = {
    {"Mean KLD", "loss.mean_kl"},
    {"Maximum KLD", "loss.max_kl"},
    {"99.9% KLD", "loss.p999_kl"},
    {"RMS p", "loss.rms_dp", kPercent},
    {"Same top p", "loss.same_top", kPercent, true},
    {"Mean PPL(Q)", "loss.perplexity"},
    {"Mean PPL(Q)/PPL(base)", "loss.perplexity_ratio"},
    {"Average", "loss.mean_kl", 1, false, true},
    {"Maximum", "loss.max_kl", 1, false, true},
};

// Lines that invalidate a run's figures. Failures that the engine retries, such as a batch without
// room in the cache, are not among them.
constexpr std::string_view kBroken[] = {"GGML_ASSERT(",
                                        "CUDA error",
                                        "failed to decode, ret",
                                        "failed to compute graph",
                                        "failed to initialize the context",
                                        "failed to load model",
                                        "unable to load model",
                                        "main: error:",
                                        "Segmentation fault",
                                        "(core dumped)",
                                        "terminate called",
                                        "double free",
                                        "corrupted size",
                                        "munmap_chunk"};

// Words that identify llama.cpp's log, if it broke before any figure.
constexpr std::string_view kOurs[] = {"ggml_", "GGML_", "llama_", "main: error:"};

void SkipSpaces(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
}

// Skips a time and a level at the front, such as "0.12.345.678 I ".
void SkipTime(std::string_view& line) {
  constexpr std::string_view kDigits = "0123456789", kInTimes = "0123456789.:-/+TZ[]";
  constexpr std::string_view kBetween = ".:-";
  constexpr std::ptrdiff_t kLeastDigits = 4;
  for (;;) {
    SkipSpaces(line);
    const std::string_view word = line.substr(0, line.find(' '));
    const auto digits = std::count_if(word.begin(), word.end(),
                                      [&](char c) { return kDigits.find(c) != kDigits.npos; });
    const bool is_time = digits >= kLeastDigits && word.find_first_of(kBetween) != word.npos &&
                         word.find_first_not_of(kInTimes) == word.npos;
    const bool is_level = word == "I" || word == "W" || word == "E" || word == "D";
    if (!is_time && !is_level) return;
    line.remove_prefix(word.size());
  }
}

// Returns true if the line has the name of a llama.cpp function: "llama_model_loader: loaded meta
// data".
bool IsReport(std::string_view line) {
  SkipTime(line);
  if (!line.starts_with("llama_") && !line.starts_with("ggml_")) return false;
  const size_t end = line.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789");
  return end != line.npos && line[end] == ':';
}

// Removes a word and the blanks before it from the front of the text.
bool Take(std::string_view word, std::string_view& text) {
  SkipSpaces(text);
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

std::optional<double> TakeFigure(std::string_view& text) {
  SkipSpaces(text);
  return TakeNumber<double>(text);
}

std::optional<std::string_view> After(std::string_view line, std::string_view words) {
  const size_t at = line.find(words);
  return at == line.npos ? std::nullopt : std::optional(line.substr(at + words.size()));
}

std::string_view Before(std::string_view text, std::string_view words) {
  return text.substr(0, text.find(words));
}

// Tokens and their time, summed over all lines of a log.
struct Speed {
  double ms = 0, tokens = 0;
  std::optional<double> slowest = {};  // slowest speed among lines that state only a speed
  bool has_line = false;               // true if a line of times was read, even one for no work

  // Adds a turn. A speed that is not a number stays, so that no later turn hides it.
  void AddTurn(double speed) {
    if (!slowest || std::isnan(speed) || speed < *slowest) slowest = speed;
  }
  std::optional<double> per_second() const {
    if (ms != 0) return 1e3 * tokens / ms;
    return slowest;
  }
};

struct Cache {
  double bytes = 0;
  std::string type_k = {}, type_v = {};
};

// Marks figures as missing: a log that was cut may have been about to print any of them.
void AddMissingFigures(const std::string& why, gate::Measurements& of) {
  for (const Statistic& one : kStatistics) of.Missing(one.metric, why);
  for (const char* metric : {"prompt_tokens_per_second", "decode_gate_tps", "resident_bytes.peak"})
    if (of.Find(metric) == nullptr) of.Missing(metric, why);
}

// Adds a rule on evidence, which rules of a config do not replace.
void Ask(std::string_view metric, gate::Op op, gate::CaseResult& result) {
  result.rules.push_back(
      gate::Evaluate({std::string(metric), op, 0, false, true}, result.measured));
}

class TextLog {
 public:
  void Add(std::string_view line) {
    if (AddTiming(line) || AddCache(line) || AddTurn(line)) return;
    AddStatistic(line);
    AddSettings(line);
    if (auto rest = After(line, "load time =")) load_ms_ = TakeFigure(*rest);
    if (line.find(" n_ctx ") != line.npos) EndContext();
    has_reports_ = has_reports_ || IsReport(line);
    names_us_ = names_us_ || std::any_of(std::begin(kOurs), std::end(kOurs),
                                         [&](auto words) { return line.find(words) != line.npos; });
    for (const std::string_view words : kBroken) {
      if (line.find(words) == line.npos) continue;
      if (broken_++ == 0) first_broken_ = Escaped(line, kShownLine);
      break;
    }
  }

  // Returns the case, or none if no line was one of llama.cpp's.
  std::vector<gate::CaseResult> Case(const std::string& name) {
    EndContext();
    gate::CaseResult result;
    gate::Measurements& of = result.measured;
    const gate::Where where{.log = name};
    const auto set = [&](std::string_view metric, std::optional<double> value) {
      if (value) of.Set(metric, *value, where);
      return value.has_value();
    };
    bool has_speed = set("prompt_tokens_per_second", prompt_.per_second());
    has_speed |= set("decode_gate_tps", generation_.per_second());
    const bool has_cache = !cache_.type_k.empty() && set("resident_bytes.peak", cache_.bytes);
    for (const auto& [metric, value] : statistics_) set(metric, value);
    const bool compares = !begun_.empty() || !statistics_.empty();
    const bool broke_early = broken_ > 0 && names_us_;
    if (!has_speed && !has_cache && !compares && !has_reports_ && !broke_early) return {};
    set("load_us", load_ms_ ? std::optional(1e3 * *load_ms_) : std::nullopt);
    of.Set("kv_invalid_log_count", static_cast<double>(broken_), where,
           broken_ > 1 ? fmt::format("the first of {} lines: {}", broken_, first_broken_)
                       : first_broken_);
    result.origin = gate::Origin::kLogs;
    result.spec.name = name;
    result.spec.mode = compares ? "perplexity" : "run";
    result.spec.params.assign(settings_.begin(), settings_.end());
    if (has_cache) {
      gate::Assign("type_k", cache_.type_k, result.spec.params);
      gate::Assign("type_v", cache_.type_v, result.spec.params);
    }
    // A log without its end leaves the rule open.
    Ask("kv_invalid_log_count", gate::Op::kAtMost, result);
    if (compares) {
      AddMissingLosses(result);
    } else if (!has_speed) {
      AddMissingFigures("the log ends before any speed or loss: the run was cut, or did nothing",
                        of);
      Ask("decode_gate_tps", gate::Op::kAtLeast, result);
    } else if (!generation_.has_line && !generation_.slowest) {
      of.Missing("decode_gate_tps", "the log ends before the speed of the generation");
    }
    std::vector<gate::CaseResult> cases;
    cases.push_back(std::move(result));
    return cases;
  }

 private:
  // Adds missing losses: a rule on a loss applies to such a log even if it lacks this loss.
  void AddMissingLosses(gate::CaseResult& result) const {
    gate::Measurements& of = result.measured;
    const auto lacks = [&](std::string_view metric) { return of.Find(metric) == nullptr; };
    const bool is_cut = std::any_of(begun_.begin(), begun_.end(), lacks);
    for (const Statistic& one : kStatistics) {
      if (!lacks(one.metric)) continue;
      of.Missing(one.metric, is_cut ? "the log has chunks without their statistics: the run was "
                                      "cut, or had fewer than 100 tokens"
                                    : "the log of llama-perplexity lacks it");
    }
    if (!is_cut) return;
    for (const std::string_view metric : begun_) Ask(metric, gate::Op::kAtLeast, result);
  }

  // Reads "prompt eval time =  789.03 ms /    27 tokens (...", of a run or of a request.
  bool AddTiming(std::string_view line) {
    const size_t at = line.find("eval time");
    if (at == line.npos) return false;
    std::string_view before = line.substr(0, at), rest = line.substr(at);
    while (before.ends_with(' ')) before.remove_suffix(1);
    Take("eval time", rest);
    if (!Take("=", rest)) return false;
    const auto ms = TakeFigure(rest);
    if (!ms || !Take("ms", rest) || !Take("/", rest)) return false;
    const auto tokens = TakeFigure(rest);
    if (!tokens) return false;
    Speed& of = before.ends_with("prompt") ? prompt_ : generation_;
    of.has_line = true;
    // Without a prompt or a generation the line says 0 ms for 1 token, which is not a speed.
    if (*ms == 0) return true;
    const bool is_time = std::isfinite(*ms) && *ms > 0 && *tokens >= 0;
    of.ms += is_time ? *ms : std::numeric_limits<double>::quiet_NaN();
    of.tokens += *tokens;
    return true;
  }

  // Reads "[ Prompt: 123.4 t/s | Generation: 45.6 t/s ]", which llama-cli prints after each turn
  // since December 2025.
  bool AddTurn(std::string_view line) {
    auto rest = After(line, "[ Prompt:");
    if (!rest) return false;
    const auto prompt = TakeFigure(*rest);
    if (!prompt || !Take("t/s", *rest) || !Take("|", *rest) || !Take("Generation:", *rest)) {
      return false;
    }
    const auto generation = TakeFigure(*rest);
    if (!generation) return false;
    prompt_.AddTurn(*prompt);
    generation_.AddTurn(*generation);
    return true;
  }

  // Reads "..., K (q8_0):  224.00 MiB, V (q5_1):  112.00 MiB". A context with windows has two such
  // lines.
  bool AddCache(std::string_view line) {
    auto rest = After(line, ", K (");
    if (!rest) return false;
    Cache one;
    const auto side = [&](std::string& type) {
      const size_t end = rest->find(')');
      if (end == rest->npos || end == 0 || end > kLongestType) return false;
      type = Escaped(rest->substr(0, end));
      rest->remove_prefix(end + 1);
      const auto size = Take(":", *rest) ? TakeFigure(*rest) : std::nullopt;
      if (!size || !Take("MiB", *rest)) return false;
      one.bytes += *size * kMebibyte;
      return true;
    };
    if (!side(one.type_k) || !Take(", V (", *rest) || !side(one.type_v)) return false;
    one.bytes = std::round(one.bytes) + context_.bytes;
    context_ = std::move(one);
    return true;
  }

  // Ends a context. The largest one counts, because a draft model has its own.
  void EndContext() {
    const bool is_larger = cache_.type_k.empty() || context_.bytes > cache_.bytes;
    if (!context_.type_k.empty() && is_larger) cache_ = context_;
    context_ = {};
  }

  // Takes the model, text and device of the run, whose figures are not comparable with those of
  // others. If there are two models, the first counts, because the second is a draft model.
  void AddSettings(std::string_view line) {
    if (const auto rest = After(line, " tensors from "))
      SetOnce("model", std::filesystem::path(Before(*rest, " (version")).filename().string());
    if (const auto rest = After(line, "using device ")) SetOnce("device", Before(*rest, " - "));
    if (const auto rest = After(line, "system_info: ")) SetOnce("system_info", Before(*rest, " |"));
    auto context = After(line, ": n_ctx ");
    if (context && Take("=", *context)) SetOnce("n_ctx", *context);
    const auto chunks = After(line, "calculating perplexity over ");
    if (!chunks) return;
    SetOnce("chunks", Before(*chunks, " "));
    if (const auto rest = After(*chunks, "n_ctx=")) SetOnce("chunk_tokens", Before(*rest, ","));
  }
  void SetOnce(const char* name, std::string_view value) {
    SkipSpaces(value);
    value = Before(value, "\r");
    if (!value.empty()) settings_.try_emplace(name, Escaped(value, kLongestSetting));
  }

  void AddStatistic(std::string_view line) {
    SkipTime(line);
    if (line.starts_with(kOldHeading)) is_old_ = true;
    if (line.starts_with("chunk") && line.find("PPL(base)") != line.npos)
      begun_.insert("loss.mean_kl");
    if (line.find("calculating perplexity over") != line.npos) begun_.insert("loss.perplexity");
    if (auto rest = After(line, "Final estimate: PPL =")) Keep("Mean PPL(Q)", *rest);
    const size_t colon = line.find(':');
    if (colon == line.npos || colon > kLongestLabel) return;
    std::string label;
    for (const char c : line.substr(0, colon)) {
      const bool is_letter = static_cast<unsigned char>(c) < 0x80 && c != '_' && c != '?';
      const bool is_blank = c == ' ' && (label.empty() || label.back() == ' ');
      if (is_letter && !is_blank) label += c;
    }
    while (label.ends_with(' ')) label.pop_back();
    Keep(label, line.substr(colon + 1));
  }

  // Keeps the worse of two runs in one log, whichever label each has.
  void Keep(std::string_view label, std::string_view text) {
    for (const Statistic& one : kStatistics) {
      if (one.label != label || (one.only_old && !is_old_)) continue;
      const std::optional<double> value = TakeFigure(text);
      if (!value) return;
      const double now = *value * one.unit;
      double& kept = statistics_.try_emplace(one.metric, now).first->second;
      if (std::isnan(now) || (one.more_is_better ? now < kept : now > kept)) kept = now;
    }
  }

  Speed prompt_, generation_;
  Cache cache_, context_;
  std::optional<double> load_ms_;
  std::map<std::string_view, double> statistics_;  // by metric
  std::map<std::string, gate::ParamValue> settings_;
  std::set<std::string_view> begun_;  // losses whose computation the log reported as begun
  bool is_old_ = false, names_us_ = false, has_reports_ = false;
  uint64_t broken_ = 0;
  std::string first_broken_;
};

}  // namespace

gate::CaseResult CutCase(const std::string& name, const std::string& why) {
  gate::CaseResult result;
  result.origin = gate::Origin::kLogs;
  result.spec.name = name;
  result.spec.mode = "run";
  AddMissingFigures(why, result.measured);
  Ask("decode_gate_tps", gate::Op::kAtLeast, result);
  return result;
}

gate::CaseResult BrokenCase(const std::string& name, const std::string& why) {
  gate::CaseResult result = CutCase(name, why);
  result.measured.Set("kv_invalid_log_count", 1, {.log = name}, why);
  Ask("kv_invalid_log_count", gate::Op::kAtMost, result);
  return result;
}

std::vector<gate::CaseResult> ReadTextLog(std::string_view text, const std::string& name) {
  TextLog log;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    log.Add(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return log.Case(name);
}

}  // namespace kv::llamacpp
