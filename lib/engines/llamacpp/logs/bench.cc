// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads the JSON of llama-bench: finds its tests among other output, names them as cases, and adds
// their speeds.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/json.h"
#include "lib/engines/llamacpp/logs/logs.h"

namespace kv::llamacpp {
namespace {

using gate::Json;

constexpr uint64_t kMostBytes = uint64_t{16} << 20;
constexpr size_t kMostRows = 10000, kMostSettings = 100;
constexpr size_t kLongestValue = 60;
// Two runs count as equal within this many standard deviations of a test's repetitions.
constexpr double kDeviations = 2;

// Fields that are neither settings of a test nor describe the machine or the model.
constexpr std::string_view kNoSettings[] = {"build_commit", "build_number", "test_time", "n_prompt",
                                            "n_gen",        "avg_ns",       "stddev_ns", "avg_ts",
                                            "stddev_ts",    "samples_ns",   "samples_ts"};
// Settings that are not part of a case's name. Types and sizes are named in their own way. A test
// on another machine or of another model is compared with the older one, with a warning.
constexpr std::string_view kNotInNames[] = {"type_k",     "type_v",     "n_prompt",
                                            "n_gen",      "cpu_info",   "gpu_info",
                                            "model_type", "model_size", "model_n_params"};

using Settings = std::map<std::string, gate::ParamValue>;

// A test of llama-bench: its settings, including its numbers of tokens, and its speed.
struct Test {
  Settings settings;
  gate::CaseResult result = {};

  bool generates() const { return settings.contains("n_gen"); }
};

Error Wrong(size_t row, const std::string& name, std::string_view why) {
  return Error(Finding::kBadField, "test {} of the bench: {}", row + 1, why).File(name);
}

// Returns a number; NaN for a string, because ParseJson turns C's bare nan into a string.
double ReadNumber(const Json& row, const char* key, size_t at, const std::string& name) {
  const Json* found = gate::Find(row, key);
  if (found != nullptr && found->is_number()) return found->get<double>();
  if (found != nullptr && found->is_string()) return std::numeric_limits<double>::quiet_NaN();
  throw Wrong(at, name, fmt::format("it has no number '{}'", key));
}

Settings ReadSettings(const Json& row, size_t at, const std::string& name) {
  Settings settings;
  for (const auto& item : row.items()) {
    const bool is_result = std::find(std::begin(kNoSettings), std::end(kNoSettings), item.key()) !=
                           std::end(kNoSettings);
    const Json& value = item.value();
    if (is_result || value.is_structured() || value.is_null()) continue;
    const std::string key = Escaped(item.key(), kLongestValue);
    if (value.is_string()) {
      settings[key] = Escaped(value.get_ref<const std::string&>(), kLongestValue);
    } else {
      settings[key] = value.is_boolean() ? (value.get<bool>() ? 1.0 : 0.0) : value.get<double>();
    }
    if (settings.size() > kMostSettings) {
      throw Wrong(at, name, fmt::format("it has more than {} settings", kMostSettings));
    }
  }
  return settings;
}

std::string FormatValue(const gate::ParamValue& value) {
  const auto* number = std::get_if<double>(&value);
  return number != nullptr ? fmt::format("{}", *number) : std::get<std::string>(value);
}

// Names a test as llama-bench's table does: "pp512", "tg128".
std::string NameTest(const Test& test) {
  const bool generates = test.generates();
  return (generates ? "tg" : "pp") +
         FormatValue(test.settings.at(generates ? "n_gen" : "n_prompt"));
}

// Adds a speed. Of two equal tests the slower one counts, and its repetitions tell how much equal
// runs differ.
void AddSpeed(std::string_view metric, double speed, const Json& row, gate::Where where,
              gate::Measurements& of) {
  const gate::Measurement* known = of.Find(metric);
  if (known != nullptr && (known->undefined || *known->value <= speed)) return;
  of.Set(metric, speed, std::move(where));
  const double deviation = gate::NumberIn(row, "stddev_ts").value_or(0);
  if (!(deviation > 0)) return;
  of.SetNoise(metric, kDeviations * deviation,
              fmt::format("its repetitions differ by {:.3g} tokens/s (two standard deviations): "
                          "more of them (llama-bench -r) would decide",
                          kDeviations * deviation));
}

void AddTest(const Json& row, size_t at, const std::string& name, Test& test) {
  const double speed = ReadNumber(row, "avg_ts", at, name);
  const gate::Where where{.log = fmt::format("{}, {}", name, NameTest(test))};
  gate::Measurements& of = test.result.measured;
  if (const auto size = gate::NumberIn(row, "model_size")) of.Set("model_bytes", *size, where);
  AddSpeed(test.generates() ? "decode_gate_tps" : "prompt_tokens_per_second", speed, row, where,
           of);
  if (test.generates() && speed > of.Value("decode_best").value_or(0))
    of.Set("decode_best", speed, where);
}

// Returns where the JSON object at the front of the text ends; npos if it was cut.
size_t ObjectEnd(std::string_view text) {
  size_t depth = 0;
  bool is_quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') is_quoted = !is_quoted;
    if (is_quoted && c == '\\') ++i;
    if (is_quoted) continue;
    if (c == '{') ++depth;
    if (c == '}' && --depth == 0) return i + 1;
  }
  return text.npos;
}

// Finds the tests in a bench's output: objects in a list or one per line, with other output before,
// between and after them.
class BenchText {
 public:
  BenchText(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  std::vector<Json> Rows() {
    // `begins` is true while the line has nothing but brackets and commas
    bool in_list = false, begins = true;
    for (size_t at = 0; at < text_.size(); ++at) {
      const std::string_view rest = text_.substr(at);
      if (rest[0] == '\n') begins = true;
      if (!begins || std::string_view(" \t\r\n,").find(rest[0]) != rest.npos) continue;
      const size_t next = std::min(rest.find_first_not_of(" \t\r\n", 1), rest.size());
      const bool ends_line = next == rest.size() || rest.substr(0, next).find('\n') != rest.npos;
      const std::string_view after = rest.substr(next);
      if (rest[0] == '{' && after.starts_with('"')) {
        at += AddObject(at) - 1;
      } else if (rest[0] == '[' && (ends_line || after.starts_with('{'))) {
        in_list = true;
      } else if (rest[0] == ']') {
        in_list = false;
      } else {
        begins = false;
      }
    }
    is_cut_ = is_cut_ || in_list;
    return std::move(rows_);
  }
  // Returns true if Rows() found a list or a test without its end.
  bool is_cut() const { return is_cut_; }

 private:
  // Adds the object at `at`, unless another program wrote it.
  size_t AddObject(size_t at) {
    const size_t end = ObjectEnd(text_.substr(at));
    if (end == text_.npos) {
      is_cut_ = true;
      return text_.size() - at;
    }
    try {
      Json row = gate::ParseJson(text_.substr(at, end), name_);
      if (!row.contains("n_prompt") && !row.contains("avg_ts")) return end;
      if (rows_.size() == kMostRows) {
        throw Error(Finding::kLimit, "more than {} tests of a bench", kMostRows).File(name_);
      }
      rows_.push_back(std::move(row));
    } catch (Error& error) {
      if (error.offset()) error.At(at + *error.offset());
      throw;
    }
    return end;
  }

  std::string_view text_;
  const std::string& name_;
  std::vector<Json> rows_;
  bool is_cut_ = false;
};

// Names cases as "bench.json:q8_0/q5_1,n_depth=4096,tg128": the types, the other settings in which
// tests of a bench differ, and the test.
void NameCases(const std::string& name, std::vector<Test>& tests) {
  std::set<std::string> differ;
  const Settings& first = tests.front().settings;
  for (const Test& test : tests) {
    for (const auto& [key, value] : test.settings) {
      const auto found = first.find(key);
      if (found == first.end() || found->second != value) differ.insert(key);
    }
    for (const auto& [key, value] : first) {
      if (!test.settings.contains(key)) differ.insert(key);
    }
  }
  for (const std::string_view key : kNotInNames) differ.erase(std::string(key));
  gate::CaseNames names;
  for (Test& test : tests) {
    std::string types, others;
    for (const char* key : {"type_k", "type_v"}) {
      const auto found = test.settings.find(key);
      if (found != test.settings.end())
        types += (types.empty() ? "" : "/") + FormatValue(found->second);
    }
    for (const std::string& key : differ) {
      const auto found = test.settings.find(key);
      if (found != test.settings.end())
        others += fmt::format("{}={},", key, FormatValue(found->second));
    }
    test.result.spec.name = names.Add(
        fmt::format("{}:{}{}{}{}", name, types, types.empty() ? "" : ",", others, NameTest(test)));
  }
}

// Collects the tests of a bench as cases without names, each only once.
class Tests {
 public:
  explicit Tests(const std::string& name) : name_(name) {}

  void Add(const Json& row, size_t at) {
    const double prompt = ReadNumber(row, "n_prompt", at, name_),
                 gen = ReadNumber(row, "n_gen", at, name_);
    Settings settings = ReadSettings(row, at, name_);
    if (prompt > 0 && gen > 0) {
      warnings_.push_back(fmt::format(
          "test pp{}+tg{} has one speed for prompt and generation together: it is not judged",
          prompt, gen));
    }
    if ((prompt > 0) == (gen > 0)) return;
    settings[gen > 0 ? "n_gen" : "n_prompt"] = gen > 0 ? gen : prompt;
    const auto [place, is_new] = places_.emplace(settings, tests_.size());
    if (is_new) AddCase(std::move(settings));
    AddTest(row, at, name_, tests_[place->second]);
  }

  // Returns the cases after `read` tests were added; a bench that was cut would have had more.
  std::vector<gate::CaseResult> Cases(size_t read, bool is_cut) {
    std::vector<gate::CaseResult> cases;
    if (!tests_.empty()) NameCases(name_, tests_);
    for (Test& test : tests_) cases.push_back(std::move(test.result));
    if (is_cut) {
      cases.push_back(
          BrokenCase(name_, fmt::format("the bench was cut: its list ends after {} tests", read)));
    } else if (cases.empty()) {
      cases.push_back(CutCase(name_, "the bench has no test of a prompt or of a generation"));
    }
    cases.front().warnings = std::move(warnings_);
    return cases;
  }

 private:
  void AddCase(Settings settings) {
    if (tests_.size() == kMostCases) {
      throw Error(Finding::kLimit, "more than {} different tests", kMostCases).File(name_);
    }
    Test& test = tests_.emplace_back();
    test.settings = std::move(settings);
    test.result.origin = gate::Origin::kLogs;
    test.result.spec.mode = "bench";
    test.result.spec.params = {test.settings.begin(), test.settings.end()};
  }

  const std::string& name_;
  std::vector<Test> tests_;
  std::map<Settings, size_t> places_;
  std::vector<std::string> warnings_;
};

}  // namespace

bool IsBench(std::string_view text) {
  const auto has = [&](std::string_view words) { return text.find(words) != text.npos; };
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  // If a list was begun without any test, the bench died.
  const bool is_begun =
      text.substr(begin, 1) == "[" && text.find_first_not_of(" \t\r\n", begin + 1) == text.npos;
  return is_begun || has("\"build_commit\":") || (has("\"avg_ts\":") && has("\"n_prompt\":"));
}

std::vector<gate::CaseResult> ReadBench(std::string_view text, const std::string& name) {
  if (text.size() > kMostBytes) {
    throw Error(Finding::kLimit, "the output of a bench has {} bytes; at most {} are read",
                text.size(), kMostBytes)
        .File(name);
  }
  BenchText bench(text, name);
  const std::vector<Json> rows = bench.Rows();
  Tests tests(name);
  for (size_t i = 0; i < rows.size(); ++i) tests.Add(rows[i], i);
  return tests.Cases(rows.size(), bench.is_cut());
}

}  // namespace kv::llamacpp
