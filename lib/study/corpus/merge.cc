// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/corpus/merge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/study/corpus/lines.h"

namespace kv::corpus {
namespace {

using Figures = std::vector<std::pair<FigureKey, FigureValue>>;
using MergeJson = nlohmann::ordered_json;
constexpr uint64_t kHighestStatus = 255;  // of a process

void AddRatio(FigureKey key, const MergeJson& original, const MergeJson& left, Figures& figures) {
  if (!original.is_number_unsigned() || !left.is_number_unsigned()) return;
  FigureValue value{0, 0, original.get<uint64_t>(), left.get<uint64_t>()};
  if (value.original == 0 || value.left == 0) return;
  value.value = static_cast<double>(value.original) / static_cast<double>(value.left);
  figures.emplace_back(std::move(key), value);
}

void AddNumber(FigureKey key, const MergeJson& value, Figures& figures) {
  if (value.is_number()) figures.emplace_back(std::move(key), FigureValue{0, value.get<double>()});
}

void AddCompression(const MergeJson& result, Figures& figures) {
  const std::string what = "level " + result.at("params").at("level").get<std::string>();
  AddRatio({"ratio", what, "all", {}}, result.at("inputs").at(0).at("bytes"),
           result.at("archive_bytes"), figures);
  for (const char* part : {"k", "v", "other"}) {
    AddRatio({"ratio", what, part, {}}, result.at(part).at("raw_bytes"),
             result.at(part).at("stored_bytes"), figures);
  }
}

void AddAnalysis(const MergeJson& result, Figures& figures) {
  if (!result.contains("summary")) return;
  const std::string what = "level " + result.at("level").get<std::string>();
  for (const auto& [key, part] : {std::pair{"total", "all"}, {"k", "k"}, {"v", "v"}}) {
    if (!result["summary"].contains(key) || !result["summary"][key].is_object()) continue;
    const MergeJson& of = result["summary"][key];
    AddRatio({"ratio", what, part, {}}, of.at("raw_bytes"),
             of.contains("own_bytes") ? of.at("own_bytes") : of.at("coded_bytes"), figures);
    AddRatio({"ratio", "the engine's codec", part, {}}, of.at("raw_bytes"), of.at("coded_bytes"),
             figures);
  }
  for (const MergeJson& layer : result.at("layers")) {
    for (const char* part : {"k", "v"}) {
      if (!layer.contains(part) || !layer[part].is_object()) continue;
      const MergeJson& of = layer[part];
      const MergeJson& best =
          of.contains("own") && of["own"].is_object() ? of["own"] : of.at("measured");
      const MergeJson& number = layer.at("layer");
      if (!number.is_number_unsigned()) continue;
      AddRatio({"ratio", what, part, number.get<uint64_t>()}, best.at("raw_bytes"),
               best.at("coded_bytes"), figures);
    }
  }
}

void AddEviction(const MergeJson& result, Figures& figures) {
  for (const MergeJson& run : result.at("runs")) {
    const bool has_budget = run.contains("budget") && run["budget"].is_object();
    const std::string target = has_budget
                                   ? run["budget"].at("text").get<std::string>()
                                   : fmt::format("{}x", run.at("target_ratio").get<double>());
    const std::string what = run.at("policy").get<std::string>() + " " + target;
    AddRatio({"ratio", what, "all", {}}, run.at("full_bytes"), run.at("kept_bytes"), figures);
    if (run.contains("attention") && run["attention"].is_object()) {
      AddNumber({"output_error", what, "all", {}},
                run["attention"].at("output_error").at("frobenius"), figures);
      AddNumber({"attention_mass", what, "all", {}}, run["attention"].at("mass").at("mean"),
                figures);
    }
    if (run.contains("predicted_kl") && run["predicted_kl"].is_object()) {
      AddNumber({"predicted_kl_nats", what, "all", {}}, run["predicted_kl"].at("expected_nats"),
                figures);
    }
  }
}

void AddQuantisation(const MergeJson& result, Figures& figures) {
  for (const MergeJson& run : result.at("runs")) {
    const std::string what =
        fmt::format("K {}, V {}", run.at("k").get<std::string>(), run.at("v").get<std::string>());
    AddRatio({"ratio", what, "all", {}}, run.at("full_bytes"), run.at("bytes"), figures);
    for (const char* figure : {"output_error", "one_minus_cosine", "attention_kl", "mass_moved"}) {
      AddNumber({figure, what, "all", {}}, run.at(figure), figures);
    }
    if (run.contains("predicted_kl") && run["predicted_kl"].is_object()) {
      AddNumber({"predicted_kl_nats", what, "all", {}}, run["predicted_kl"].at("nats"), figures);
    }
  }
}

Figures FiguresOf(const std::string& command, const MergeJson& result) {
  Figures figures;
  if (!result.is_object()) return figures;
  if (command == "compress") AddCompression(result, figures);
  if (command == "analyze") AddAnalysis(result, figures);
  if (command == "replay-h2o") AddEviction(result, figures);
  if (command == "replay-quant" && result.contains("runs")) AddQuantisation(result, figures);
  return figures;
}

const MergeJson& ErrorsIn(const MergeJson& line) {
  const MergeJson& errors = line.at("errors");
  for (const MergeJson& error : errors) {
    for (const char* key : {"finding", "message"}) error.at(key);
  }
  return errors;
}

std::string TextOr(const MergeJson& result, const char* key) {
  const bool is_text = result.is_object() && result.contains(key) && result[key].is_string();
  return is_text ? result[key].get<std::string>() : std::string();
}

// The value below which a share of the sorted values lies: one of them, never between two.
double NearestRank(const std::vector<double>& sorted, double share) {
  const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
  return sorted[std::max<size_t>(rank, 1) - 1];
}

std::vector<double> Sorted(const std::vector<FigureValue>& values) {
  std::vector<double> sorted;
  for (const FigureValue& value : values) sorted.push_back(value.value);
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

MergeJson FigureJson(const FigureKey& key, const Spread& spread) {
  return {{"figure", key.figure},
          {"what", key.what},
          {"part", key.part},
          {"layer", key.layer ? MergeJson(*key.layer) : MergeJson()},
          {"count", spread.count},
          {"weighted", spread.weighted ? MergeJson(*spread.weighted) : MergeJson()},
          {"mean", spread.mean},
          {"deviation", spread.deviation},
          {"min", spread.min},
          {"p5", spread.p5},
          {"median", spread.median},
          {"p95", spread.p95},
          {"max", spread.max}};
}

// A word of a command as a shell takes it.
std::string Quoted(const std::string& word) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_./+:@%,-=").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

MergeJson GroupsJson(const Merged& merged) {
  std::map<std::pair<std::string, std::string>, std::set<size_t>> groups;
  for (size_t i = 0; i < merged.inputs.size(); ++i) {
    groups[{merged.inputs[i].model, merged.inputs[i].format}].insert(i);
  }
  MergeJson json = MergeJson::array();
  for (const auto& [group, members] : groups) {
    MergeJson figures = MergeJson::array();
    for (const auto& [key, values] : merged.figures) {
      if (key.layer) continue;
      std::vector<FigureValue> of_group;
      for (const FigureValue& value : values) {
        if (members.count(value.input) != 0) of_group.push_back(value);
      }
      if (!of_group.empty()) figures.push_back(FigureJson(key, SpreadOf(of_group)));
    }
    const auto or_null = [](const std::string& text) {
      return text.empty() ? MergeJson() : MergeJson(text);
    };
    json.push_back({{"model", or_null(group.first)},
                    {"format", or_null(group.second)},
                    {"entries", members.size()},
                    {"figures", std::move(figures)}});
  }
  return json;
}

}  // namespace

void Merger::AddLine(const ResultsHead& head, const std::string& file, const MergeJson& line,
                     size_t number, std::map<std::string, Taken>& of_file) const {
  try {
    const std::string name = TextIn(line, "name", number);
    if (line.at("corpus_xxh3") != head.corpus_xxh3 ||
        line.at("shard").at("index") != head.shard.index ||
        line.at("shard").at("count") != head.shard.count) {
      throw Error(Finding::kInconsistent,
                  fmt::format("line {}: the result of {} is of another shard or corpus", number,
                              Escaped(name, 200)));
    }
    const MergeJson& result = line.at("result");
    Taken taken;
    taken.input = {name,
                   TextOr(result, "model"),
                   TextOr(result, "format"),
                   NumberIn(line, "bytes", number),
                   static_cast<int>(NumberIn(line, "exit_code", number, kHighestStatus)),
                   ErrorsIn(line),
                   result.is_object() && result.contains("verdict") ? result["verdict"] : nullptr};
    taken.figures = FiguresOf(head.command, result);
    taken.file = file;
    // A later line is of a later try.
    of_file[name] = std::move(taken);
  } catch (const nlohmann::json::exception& error) {
    throw Error(Finding::kBadField, fmt::format("line {}: {}", number, error.what()));
  }
}

void Merger::Add(const std::string& file, std::string_view text) {
  std::map<std::string, Taken> of_file;
  std::optional<ResultsHead> early;
  const size_t first = text.find('\n');
  try {
    if (first != text.npos)
      early = ReadResults(text.substr(0, first + 1), [](const auto&, size_t) {});
  } catch (Error& error) {
    throw error.File(file);
  }
  if (!early) throw Error(Finding::kTruncated, "has no results").File(file);
  const ResultsHead& head = *early;
  if (!shards_.empty()) {
    const ShardFile& other = shards_.begin()->second;
    const std::string difference = head.DifferenceTo(other.head);
    if (!difference.empty()) {
      throw Error(Finding::kInconsistent,
                  fmt::format("a foreign shard: {}, as {} is", difference, other.file))
          .File(file);
    }
  }
  const auto [before, is_new] = shards_.emplace(head.shard.index, ShardFile{file, head, 0});
  if (!is_new) {
    throw Error(Finding::kDuplicateName,
                fmt::format("shard {} of {} is here twice: {} has it, too", head.shard.index,
                            head.shard.count, before->second.file))
        .File(file);
  }
  try {
    ReadResults(text, [&](const MergeJson& line, size_t number) {
      AddLine(head, file, line, number, of_file);
    });
  } catch (Error& error) {
    throw error.File(file);
  }
  before->second.results = of_file.size();
  for (auto& [name, taken] : of_file) {
    const auto [other, added] = taken_.emplace(name, std::move(taken));
    if (added) continue;
    throw Error(Finding::kDuplicateName, fmt::format("the result of {} is in {}, too",
                                                     Escaped(name, 200), other->second.file))
        .File(file);
  }
}

Merged Merger::Finish() {
  if (shards_.empty()) throw Error(Finding::kUsage, "there are no results to merge");
  Merged merged;
  merged.head = shards_.begin()->second.head;
  // The first line of a file may say that there are billions.
  constexpr size_t kMostNamed = 100;
  std::vector<uint32_t> missing;
  for (uint32_t i = 0; i < merged.head.shard.count && missing.size() < kMostNamed; ++i) {
    const auto found = shards_.find(i);
    if (found == shards_.end() || found->second.results != found->second.head.entries) {
      missing.push_back(i);
    }
  }
  if (!missing.empty()) {
    std::string text = fmt::format("of {} shards these are missing or not complete: {}{}",
                                   merged.head.shard.count, fmt::join(missing, ","),
                                   missing.size() == kMostNamed ? " and perhaps more" : "");
    for (const uint32_t i : missing) {
      const auto found = shards_.find(i);
      if (found == shards_.end()) continue;
      text += fmt::format("; {} has {} of {} results", found->second.file, found->second.results,
                          found->second.head.entries);
    }
    throw Error(Finding::kMissingRecord, text)
        .Hint("run them again, with the same --results: they do only what is missing");
  }
  if (taken_.size() != merged.head.corpus_entries) {
    throw Error(Finding::kInconsistent, fmt::format("the corpus has {} inputs, the shards have {}",
                                                    merged.head.corpus_entries, taken_.size()));
  }
  merged.head.shard = {};
  merged.head.balance = "hash";
  for (auto& [name, taken] : taken_) {
    for (auto& [key, value] : taken.figures) {
      value.input = merged.inputs.size();
      merged.figures[std::move(key)].push_back(value);
    }
    merged.inputs.push_back(std::move(taken.input));
  }
  return merged;
}

Spread SpreadOf(const std::vector<FigureValue>& values) {
  Spread spread;
  spread.count = values.size();
  if (values.empty()) return spread;
  const std::vector<double> sorted = Sorted(values);
  const auto count = static_cast<double>(sorted.size());
  double sum = 0;
  for (const double value : sorted) sum += value;
  spread.mean = sum / count;
  double squares = 0;
  for (const double value : sorted) squares += (value - spread.mean) * (value - spread.mean);
  spread.deviation = sorted.size() < 2 ? 0 : std::sqrt(squares / (count - 1));
  spread.min = sorted.front();
  spread.p5 = NearestRank(sorted, 0.05);
  spread.median = NearestRank(sorted, 0.5);
  spread.p95 = NearestRank(sorted, 0.95);
  spread.max = sorted.back();
  uint64_t original = 0, left = 0;
  for (const FigureValue& value : values) {
    original += value.original;
    left += value.left;
  }
  if (left > 0) spread.weighted = static_cast<double>(original) / static_cast<double>(left);
  return spread;
}

std::vector<FigureValue> OutliersOf(const std::vector<FigureValue>& values) {
  constexpr size_t kFewest = 8, kMost = 5;
  if (values.size() < kFewest) return {};
  const std::vector<double> sorted = Sorted(values);
  const double low = NearestRank(sorted, 0.25), high = NearestRank(sorted, 0.75);
  const double reach = 1.5 * (high - low);
  const auto distance = [&](const FigureValue& value) {
    return std::max(low - value.value, value.value - high);
  };
  std::vector<FigureValue> far;
  for (const FigureValue& value : values) {
    if (distance(value) > reach) far.push_back(value);
  }
  std::stable_sort(far.begin(), far.end(), [&](const FigureValue& a, const FigureValue& b) {
    return distance(a) > distance(b);
  });
  if (far.size() > kMost) far.resize(kMost);
  return far;
}

std::string CommandFor(const Merged& merged, const std::string& name) {
  std::string text = "kvtool " + merged.head.command;
  for (const std::string& parameter : merged.head.parameters) {
    if (!parameter.starts_with("--")) {
      text += " " + Quoted(parameter);
      continue;
    }
    const size_t space = parameter.find(' ');
    text += " " + parameter.substr(0, space);
    if (space != parameter.npos) text += " " + Quoted(parameter.substr(space + 1));
  }
  return text + (name.starts_with('-') ? " -- " : " ") + Quoted(name);
}

std::optional<std::string> VerdictOf(const Merged& merged) {
  bool has_one = false, fails = false;
  for (const MergedInput& input : merged.inputs) {
    has_one |= input.verdict.is_string();
    fails |= input.exit_code != 0;
  }
  if (!has_one) return std::nullopt;
  return fails ? "fail" : "pass";
}

MergeJson MergedJson(const Merged& merged) {
  size_t done = 0, negative = 0;
  MergeJson failures = MergeJson::array();
  std::map<std::string, size_t> verdicts;
  for (const MergedInput& input : merged.inputs) {
    done += input.exit_code == 0;
    negative += input.exit_code == 1;
    if (input.verdict.is_string()) ++verdicts[input.verdict.get<std::string>()];
    if (input.exit_code == 0) continue;
    const bool has_error = !input.errors.empty();
    failures.push_back({{"name", input.name},
                        {"exit_code", input.exit_code},
                        {"finding", has_error ? input.errors[0].at("finding") : MergeJson()},
                        {"text", has_error ? input.errors[0].at("message") : MergeJson()},
                        {"command", CommandFor(merged, input.name)}});
  }
  MergeJson verdict_list = MergeJson::array();
  for (const auto& [word, count] : verdicts) {
    verdict_list.push_back({{"verdict", word}, {"entries", count}});
  }
  MergeJson figures = MergeJson::array(), outliers = MergeJson::array();
  for (const auto& [key, values] : merged.figures) {
    const Spread spread = SpreadOf(values);
    figures.push_back(FigureJson(key, spread));
    if (key.layer) continue;
    for (const FigureValue& value : OutliersOf(values)) {
      const std::string& name = merged.inputs[value.input].name;
      outliers.push_back({{"figure", key.figure},
                          {"what", key.what},
                          {"part", key.part},
                          {"name", name},
                          {"value", value.value},
                          {"median", spread.median},
                          {"command", CommandFor(merged, name)}});
    }
  }
  const std::optional<std::string> verdict = VerdictOf(merged);
  return {{"command", merged.head.command},
          {"parameters", merged.head.parameters},
          {"parameters_xxh3", merged.head.parameters_xxh3},
          {"version", merged.head.version},
          {"entries", merged.inputs.size()},
          {"done", done},
          {"negative", negative},
          {"failed", merged.inputs.size() - done - negative},
          {"verdict", verdict ? MergeJson(*verdict) : MergeJson()},
          {"verdicts", std::move(verdict_list)},
          {"figures", std::move(figures)},
          {"groups", GroupsJson(merged)},
          {"outliers", std::move(outliers)},
          {"failures", std::move(failures)}};
}

}  // namespace kv::corpus
