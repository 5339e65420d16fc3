// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>
#include <fmt/ranges.h>

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
// Equal runs differ by this many standard deviations of a test's repetitions.
constexpr double kDeviations = 2;

// Fields that say what was measured, and on which machine and build: not how a test was set up.
constexpr std::string_view kNoSettings[] = {
    "build_commit", "build_number",   "cpu_info",   "gpu_info",  "model_type", "model_size",
    "test_time",    "model_n_params", "n_prompt",   "n_gen",     "avg_ns",     "stddev_ns",
    "avg_ts",       "stddev_ts",      "samples_ns", "samples_ts"};

using Settings = std::map<std::string, gate::ParamValue>;

// One combination of llama-bench's settings, and its speeds.
struct Group {
  Settings settings;
  std::set<double> prompts = {}, generations = {};  // tokens of the tests that are judged
  gate::CaseResult result = {};
};

Error Wrong(size_t row, const std::string& name, std::string_view why) {
  return Error(Finding::kBadField, "test {} of the bench: {}", row + 1, why).File(name);
}

// A number; C's "nan", which JSON has no word for, was made a text by then.
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

std::string TextOf(const gate::ParamValue& value) {
  const auto* number = std::get_if<double>(&value);
  return number != nullptr ? fmt::format("{}", *number) : std::get<std::string>(value);
}

// Sizes of tests are settings too: a longer prompt has another speed.
void AddSizes(const char* key, const std::set<double>& sizes, gate::Params& params) {
  if (sizes.empty()) return;
  params.emplace_back(key, sizes.size() == 1 ? gate::ParamValue(*sizes.begin())
                                             : fmt::format("{}", fmt::join(sizes, ",")));
}

// The slowest test of a kind decides, and its repetitions say how much equal runs differ.
void AddSpeed(std::string_view metric, double speed, const Json& row, gate::Where where,
              gate::Measurements& of) {
  const gate::Measurement* known = of.Find(metric);
  if (known != nullptr && (known->undefined || *known->value <= speed)) return;
  of.Set(metric, speed, std::move(where));
  const double deviation = gate::NumberIn(row, "stddev_ts").value_or(0);
  if (!(deviation > 0)) return;
  of.SetNoise(metric, kDeviations * deviation,
              fmt::format("its repetitions differ by {:.3g} tokens/s (two standard deviations): "
                          "llama-bench -r with more of them would decide",
                          kDeviations * deviation));
}

void AddTest(const Json& row, size_t at, const std::string& name, Group& group) {
  gate::CaseResult& result = group.result;
  const double prompt = ReadNumber(row, "n_prompt", at, name),
               gen = ReadNumber(row, "n_gen", at, name);
  const double speed = ReadNumber(row, "avg_ts", at, name);
  const gate::Where where{
      .log = fmt::format("{}, {}", name,
                         gen > 0 ? fmt::format("tg{}", gen) : fmt::format("pp{}", prompt))};
  if (prompt > 0 && gen > 0) {
    result.warnings.push_back(fmt::format(
        "test pp{}+tg{} has one speed for prompt and generation together: it is not judged", prompt,
        gen));
  } else if (prompt > 0 || gen > 0) {
    (gen > 0 ? group.generations : group.prompts).insert(gen > 0 ? gen : prompt);
    AddSpeed(gen > 0 ? "decode_gate_tps" : "prompt_tokens_per_second", speed, row, where,
             result.measured);
    if (gen > 0 && speed > result.measured.Value("decode_best").value_or(0)) {
      result.measured.Set("decode_best", speed, where);
    }
  }
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

// Finds the tests in a bench's output: objects in a list or in lines of their own, with other
// output before, between and behind them.
class BenchText {
 public:
  BenchText(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  std::vector<Json> Rows() {
    bool in_list = false, begins = true;  // nothing but brackets and commas before it in its line
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
    if (in_list) throw Cut();
    return std::move(rows_);
  }

 private:
  // Objects of other programs' output are no tests.
  size_t AddObject(size_t at) {
    const size_t end = ObjectEnd(text_.substr(at));
    if (end == text_.npos) throw Cut();
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
  Error Cut() const {
    return Error(Finding::kBadText, "the bench was cut: its list or a test has no end").File(name_);
  }

  std::string_view text_;
  const std::string& name_;
  std::vector<Json> rows_;
};

// "bench.json:q8_0/q5_1,n_depth=4096": the types, and what else the cases of a bench differ in.
void NameCases(const std::string& name, std::vector<Group>& groups) {
  std::set<std::string> differ;
  const Settings& first = groups.front().settings;
  for (const Group& group : groups) {
    for (const auto& [key, value] : group.settings) {
      const auto found = first.find(key);
      if (found == first.end() || found->second != value) differ.insert(key);
    }
    for (const auto& [key, value] : first) {
      if (!group.settings.contains(key)) differ.insert(key);
    }
  }
  gate::CaseNames names;
  for (Group& group : groups) {
    std::string types, others;
    for (const char* key : {"type_k", "type_v"}) {
      const auto found = group.settings.find(key);
      if (found == group.settings.end()) continue;
      types += (types.empty() ? ":" : "/") + TextOf(found->second);
      differ.erase(key);
    }
    for (const std::string& key : differ) {
      const auto found = group.settings.find(key);
      if (found != group.settings.end())
        others += fmt::format(",{}={}", key, TextOf(found->second));
    }
    group.result.spec.name = names.Add(name + types + others);
  }
}

}  // namespace

bool IsBench(std::string_view text) {
  const auto has = [&](std::string_view words) { return text.find(words) != text.npos; };
  const size_t begin = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  // The list was begun and no test of it is there: the bench died.
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
  const std::vector<Json> rows = BenchText(text, name).Rows();
  std::vector<Group> groups;
  std::map<Settings, size_t> places;
  for (size_t i = 0; i < rows.size(); ++i) {
    Settings settings = ReadSettings(rows[i], i, name);
    const auto [place, is_new] = places.emplace(settings, groups.size());
    if (is_new) {
      if (groups.size() == kMostCases) {
        throw Error(Finding::kLimit, "more than {} combinations of settings", kMostCases)
            .File(name);
      }
      Group& group = groups.emplace_back();
      group.settings = std::move(settings);
      group.result.origin = gate::Origin::kLogs;
      group.result.spec.mode = "bench";
      group.result.spec.params = {group.settings.begin(), group.settings.end()};
    }
    AddTest(rows[i], i, name, groups[place->second]);
  }
  if (groups.empty()) throw Error(Finding::kBadText, "the bench has no tests").File(name);
  NameCases(name, groups);
  std::vector<gate::CaseResult> cases;
  for (Group& group : groups) {
    AddSizes("n_prompt", group.prompts, group.result.spec.params);
    AddSizes("n_gen", group.generations, group.result.spec.params);
    cases.push_back(std::move(group.result));
  }
  return cases;
}

}  // namespace kv::llamacpp
