// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
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
constexpr size_t kLongestValue = 60, kLongestName = 150;
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
  gate::CaseResult result;
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

void AddTest(const Json& row, size_t at, const std::string& name, gate::CaseResult& result) {
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
    AddSpeed(gen > 0 ? "decode_gate_tps" : "prompt_tokens_per_second", speed, row, where,
             result.measured);
    if (gen > 0 && speed > result.measured.Value("decode_best").value_or(0)) {
      result.measured.Set("decode_best", speed, where);
    }
  }
}

// Every test of the document, wherever other output stands around it.
std::vector<Json> ReadRows(std::string_view text, const std::string& name) {
  const auto begins = [&](char bracket) {
    if (text.starts_with(bracket)) return size_t{0};
    const char words[] = {'\n', bracket};
    const size_t at = text.find(std::string_view(words, 2));
    return at == text.npos ? at : at + 1;
  };
  std::vector<Json> rows;
  const auto add = [&](Json row) {
    if (!row.is_object()) throw Wrong(rows.size(), name, "it is not an object");
    if (rows.size() == kMostRows) {
      throw Error(Finding::kLimit, "more than {} tests of a bench", kMostRows).File(name);
    }
    rows.push_back(std::move(row));
  };
  const size_t list = begins('['), lines = begins('{');
  if (list < lines) {
    const std::string_view whole = text.substr(list, text.rfind(']') - list + 1);
    Json all = gate::ParseJson(text.rfind(']') == text.npos ? text.substr(list) : whole, name);
    for (Json& row : all) add(std::move(row));
    return rows;
  }
  for (text.remove_prefix(std::min(lines, text.size())); !text.empty();) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (text.starts_with('{')) add(gate::ParseJson(text.substr(0, end), name));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return rows;
}

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
  std::set<std::string> taken;
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
    const std::string plain = (name + types + others).substr(0, kLongestName);
    std::string unique = plain;
    for (int i = 2; !taken.insert(unique).second; ++i) unique = fmt::format("{}-{}", plain, i);
    group.result.spec.name = unique;
  }
}

}  // namespace

bool IsBench(std::string_view text) {
  return text.find("\"avg_ts\":") != text.npos && text.find("\"n_prompt\":") != text.npos;
}

std::vector<gate::CaseResult> ReadBench(std::string_view text, const std::string& name) {
  if (text.size() > kMostBytes) {
    throw Error(Finding::kLimit, "the output of a bench has {} bytes; at most {} are read",
                text.size(), kMostBytes)
        .File(name);
  }
  const std::vector<Json> rows = ReadRows(text, name);
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
    AddTest(rows[i], i, name, groups[place->second].result);
  }
  if (groups.empty()) throw Error(Finding::kBadText, "the bench has no tests").File(name);
  NameCases(name, groups);
  std::vector<gate::CaseResult> cases;
  for (Group& group : groups) cases.push_back(std::move(group.result));
  return cases;
}

}  // namespace kv::llamacpp
