// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/corpus/merge.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <set>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"

namespace kv::corpus {
namespace {

using MergeJson = nlohmann::ordered_json;
using Figures = std::vector<std::pair<FigureKey, FigureValue>>;
constexpr uint64_t kHighestStatus = 255;  // the highest exit status that a process can have

// Returns a number of bytes, which some documents write as 122880.0; 0 for anything else.
uint64_t BytesIn(const MergeJson& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  constexpr double kMost = 0x1p63;
  const double number = value.is_number_float() ? std::round(value.get<double>()) : 0;
  return number >= 0 && number < kMost ? static_cast<uint64_t>(number) : 0;
}

void AddRatio(FigureKey key, const MergeJson& original, const MergeJson& left, Figures& figures) {
  FigureValue value;
  value.original = BytesIn(original);
  value.left = BytesIn(left);
  if (value.original == 0 || value.left == 0) return;
  value.value = static_cast<double>(value.original) / static_cast<double>(value.left);
  figures.emplace_back(std::move(key), value);
}

void AddNumber(FigureKey key, const MergeJson& value, Figures& figures) {
  if (value.is_number()) figures.emplace_back(std::move(key), FigureValue{value.get<double>()});
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

// Adds the memory that is resident once all tokens are decoded.
void AddRuntime(const MergeJson& result, Figures& figures) {
  const std::string what =
      "mode " + result.at("params").at("h2o_lossless_runtime_mode").get<std::string>();
  const MergeJson& end = result.at("memory").at("end");
  AddRatio({"ratio", what, "all", {}}, end.at("full_bytes"), end.at("resident_bytes"), figures);
}

std::string GateLimit(const MergeJson& limit) {
  if (limit.is_boolean()) return limit.get<bool>() ? "true" : "false";
  return limit.is_number() ? fmt::format("{:.6g}", limit.get<double>()) : std::string("-");
}

std::string GateWord(const MergeJson& rule) {
  return rule.contains("word") ? rule["word"] : rule.at("metric");
}

std::string GateRule(const MergeJson& rule) {
  return fmt::format("{} {} {}", GateWord(rule), rule.at("op").get<std::string>(),
                     GateLimit(rule.at("limit")));
}

// Adds the judged metrics, and the ratios and errors that the gate's table always has.
void AddGate(const MergeJson& result, Figures& figures) {
  for (const MergeJson& item : result.at("cases")) {
    const std::string name = item.at("name");
    std::set<std::string> added;
    const auto add = [&](const std::string& metric, const MergeJson& value) {
      if (added.insert(metric).second) AddNumber({metric, name, "all", {}}, value, figures);
    };
    const MergeJson& known = item.at("true_figures");
    if (known.contains("whole_model_ratio")) add("whole_model_ratio", known["whole_model_ratio"]);
    if (known.contains("measured_ratio")) add("measured_ratio", known["measured_ratio"]);
    if (known.contains("attention_error") && known["attention_error"].is_object()) {
      add("attention_error.mean", known["attention_error"].at("mean"));
    }
    for (const MergeJson& rule : item.at("rules")) add(GateWord(rule), rule.at("value"));
  }
}

// Returns the figures of one result line. If a document violates its schema, exceptions of the JSON
// library report it.
Figures ReadFigures(const std::string& command, const MergeJson& result) {
  Figures figures;
  if (!result.is_object()) return figures;
  if (command == "compress") AddCompression(result, figures);
  if (command == "analyze") AddAnalysis(result, figures);
  if (command == "replay-h2o") AddEviction(result, figures);
  if (command == "replay-quant" && result.contains("runs")) AddQuantisation(result, figures);
  if (command == "replay-lossless") AddRuntime(result, figures);
  if (command == "gate") AddGate(result, figures);
  return figures;
}

std::vector<CaseVerdict> ReadCases(const MergeJson& result) {
  std::vector<CaseVerdict> cases;
  if (!result.is_object() || !result.contains("cases")) return cases;
  for (const MergeJson& item : result["cases"]) {
    CaseVerdict verdict{item.at("name"), item.at("status"), {}, {}};
    for (const MergeJson& rule : item.at("rules")) {
      if (verdict.status == "pass" || rule.at("status") != item.at("status")) continue;
      std::string text = rule.at("reason");
      if (rule.at("status") == "fail") {
        verdict.failing.push_back(GateRule(rule));
        text = fmt::format("{} is {}, not {} {}", GateWord(rule), GateLimit(rule.at("value")),
                           rule.at("op").get<std::string>(), GateLimit(rule.at("limit"))) +
               (text.empty() ? "" : ": " + text);
      }
      if (!text.empty() && verdict.text.find(text) == text.npos) {
        verdict.text += (verdict.text.empty() ? "" : "; ") + text;
      }
    }
    if (verdict.status != "pass" && verdict.text.empty()) verdict.text = item.at("reason");
    cases.push_back(std::move(verdict));
  }
  return cases;
}

std::string TextOr(const MergeJson& result, const char* key) {
  const bool is_text = result.is_object() && result.contains(key) && result[key].is_string();
  return is_text ? result[key].get<std::string>() : std::string();
}

// Packs the parts of a line that the second pass needs.
std::string PackedInput(const MergedInput& input, const MergeJson& figures) {
  MergeJson cases = MergeJson::array();
  for (const CaseVerdict& one : input.cases) {
    cases.push_back({one.name, one.status, one.text, one.failing});
  }
  const MergeJson packed = {input.model,      input.format, input.bytes,   input.exit_code,
                            input.finding,    input.text,   input.verdict, input.reason,
                            std::move(cases), figures};
  std::string bytes;
  MergeJson::to_cbor(packed, nlohmann::detail::output_adapter<char>(bytes));
  return bytes;
}

MergedInput UnpackedInput(std::string_view name, std::string_view bytes, MergeJson* figures) {
  MergeJson packed = MergeJson::from_cbor(bytes);
  MergedInput input{std::string(name), packed[0], packed[1], packed[2], packed[3],
                    packed[4],         packed[5], packed[6], packed[7], {}};
  for (const MergeJson& one : packed[8]) {
    input.cases.push_back({one[0], one[1], one[2], one[3].get<std::vector<std::string>>()});
  }
  if (figures != nullptr) *figures = std::move(packed[9]);
  return input;
}

// Appends a number in a form whose bytes sort like the numbers.
template <typename T>
void AppendSortable(T value, std::string& to) {
  for (int shift = static_cast<int>(sizeof(T)) * 8 - 8; shift >= 0; shift -= 8) {
    to += static_cast<char>(static_cast<uint8_t>(value >> shift));
  }
}

template <typename T>
T TakeSortable(std::string_view& from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value << 8 | static_cast<uint8_t>(from[i]));
  }
  from.remove_prefix(sizeof(T));
  return value;
}

uint64_t SortableBits(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  return (bits >> 63) != 0 ? ~bits : bits | uint64_t{1} << 63;
}

double ValueOfBits(uint64_t bits) {
  return std::bit_cast<double>((bits >> 63) != 0 ? bits & ~(uint64_t{1} << 63) : ~bits);
}

constexpr size_t kValueBytes = 8 + 8 + 4 + 8 + 8;

FigureValue ReadValue(std::string_view bytes) {
  FigureValue value;
  value.value = ValueOfBits(TakeSortable<uint64_t>(bytes));
  value.input = TakeSortable<uint64_t>(bytes);
  value.group = TakeSortable<uint32_t>(bytes);
  value.original = TakeSortable<uint64_t>(bytes);
  value.left = TakeSortable<uint64_t>(bytes);
  return value;
}

void AppendValue(const FigureValue& value, std::string& to) {
  AppendSortable(SortableBits(value.value), to);
  AppendSortable(value.input, to);
  AppendSortable(value.group, to);
  AppendSortable(value.original, to);
  AppendSortable(value.left, to);
}

}  // namespace

void Merged::ForEachInput(const std::function<void(const MergedInput&)>& call) const {
  for (uint64_t i = 0; i < entries; ++i) call(Input(i));
}

MergedInput Merged::Input(uint64_t place) const {
  std::array<uint64_t, 2> ends = {};
  if (place == 0) {
    places_->Read(0, reinterpret_cast<char*>(&ends[1]), sizeof(uint64_t));
  } else {
    places_->Read((place - 1) * sizeof(uint64_t), reinterpret_cast<char*>(ends.data()),
                  sizeof(ends));
  }
  std::string bytes(ends[1] - ends[0], '\0');
  inputs_->Read(ends[0], bytes.data(), bytes.size());
  const size_t end = bytes.find('\0');
  return UnpackedInput(std::string_view(bytes).substr(0, end),
                       std::string_view(bytes).substr(end + 1), nullptr);
}

void Merged::Take(const MergedInput& input) {
  inputs_->Append(input.name + '\0' + PackedInput(input, MergeJson::array()));
  const uint64_t end = inputs_->size();
  places_->Append({reinterpret_cast<const char*>(&end), sizeof(end)});
  ++entries;
  ++(input.exit_code == 0 ? done : input.exit_code == 1 ? negative : failed);
  worst_exit_code = std::max(worst_exit_code, input.exit_code);
  if (!input.verdict.empty()) ++verdicts[input.verdict];
  for (const CaseVerdict& one : input.cases) {
    auto found = std::find_if(cases.begin(), cases.end(),
                              [&](const MergedCase& known) { return known.name == one.name; });
    if (found == cases.end()) found = cases.insert(cases.end(), {one.name, {}, {}});
    ++found->statuses[one.status];
    for (const std::string& rule : one.failing) ++found->failing[rule];
  }
}

void Merged::ForEachValue(const FigureExtent& figure,
                          const std::function<void(const FigureValue&)>& call) const {
  SpillReader reader(*values_, figure.begin, figure.begin + figure.count * kValueBytes);
  while (reader.more()) call(ReadValue(reader.Take(kValueBytes)));
}

double Merged::ValueAt(const FigureExtent& figure, uint64_t place) const {
  std::array<char, kValueBytes> bytes;
  values_->Read(figure.begin + place * kValueBytes, bytes.data(), bytes.size());
  return ReadValue({bytes.data(), bytes.size()}).value;
}

uint32_t Merger::AssignId(const FigureKey& key) {
  return ids_.emplace(key, static_cast<uint32_t>(ids_.size())).first->second;
}

void Merger::AddLine(const ResultsHead& head, uint32_t file, const MergeJson& line, size_t number) {
  try {
    const std::string name = TextIn(line, "name", number);
    if (name.find('\0') != name.npos) {
      throw Error(Finding::kBadField, "line {}: the name holds a NUL", number);
    }
    if (line.at("corpus_xxh3") != head.corpus_xxh3 ||
        line.at("shard").at("index") != head.shard.index ||
        line.at("shard").at("count") != head.shard.count) {
      throw Error(Finding::kInconsistent, "line {}: the result of {} is of another shard or corpus",
                  number, Escaped(name, 200));
    }
    const MergeJson& result = line.at("result");
    const MergeJson& errors = line.at("errors");
    for (const MergeJson& error : errors) {
      for (const char* key : {"finding", "message"}) error.at(key);
    }
    MergedInput input{name,
                      TextOr(line, "model"),
                      TextOr(line, "format"),
                      NumberIn(line, "bytes", number),
                      static_cast<int>(NumberIn(line, "exit_code", number, kHighestStatus)),
                      {},
                      {},
                      TextOr(result, "verdict"),
                      TextOr(result, "reason"),
                      {}};
    if (!errors.empty()) {
      input.finding = errors.at(0).at("finding");
      input.text = errors.at(0).at("message");
    }
    if (head.command == "gate") input.cases = ReadCases(result);
    MergeJson figures = MergeJson::array();
    for (const auto& [key, value] : ReadFigures(head.command, result)) {
      figures.push_back({AssignId(key), value.value, value.original, value.left});
    }
    // Sorts lines of the same input by age: a later line is from a later attempt.
    std::string record = name + '\0';
    AppendSortable(file, record);
    AppendSortable(static_cast<uint64_t>(number), record);
    lines_.Add(record + PackedInput(input, figures));
  } catch (const nlohmann::json::exception& error) {
    throw Error(Finding::kBadField, "line {}: {}", number, error.what());
  }
}

void Merger::Add(const std::string& file, std::string_view text,
                 const std::function<void(size_t)>& passed) {
  try {
    const size_t first = text.find('\n');
    const std::optional<ResultsHead> head =
        ReadResults(text.substr(0, first == text.npos ? 0 : first + 1), {});
    if (!head) throw Error(Finding::kTruncated, "has no results");
    if (!shards_.empty()) {
      const ShardFile& other = shards_.begin()->second;
      const std::string difference = head->DifferenceTo(other.head);
      if (!difference.empty()) {
        throw Error(Finding::kInconsistent, "a shard of another run: {}, as in {}", difference,
                    other.file);
      }
    }
    const auto [before, is_new] = shards_.emplace(head->shard.index, ShardFile{file, *head, 0});
    if (!is_new) {
      throw Error(Finding::kDuplicateName, "shard {} of {} is given twice, the other time by {}",
                  head->shard.index, head->shard.count, before->second.file);
    }
    const auto number_of_file = static_cast<uint32_t>(shard_of_file_.size());
    shard_of_file_.push_back(head->shard.index);
    ReadResults(
        text,
        [&](const MergeJson& line, size_t number) { AddLine(*head, number_of_file, line, number); },
        passed);
  } catch (Error& error) {
    throw error.File(file);
  }
}

void Merger::TakeInputs(Merged& merged, ExternalSorter& values) {
  std::map<std::pair<std::string, std::string>, uint32_t> groups;
  std::string last;  // a record that a later attempt may replace
  const auto file_of = [](std::string_view record) {
    std::string_view rest = record.substr(record.find('\0') + 1);
    return TakeSortable<uint32_t>(rest);
  };
  const auto take = [&] {
    if (last.empty()) return;
    const std::string_view record = last;
    const size_t end = record.find('\0');
    MergeJson figures;
    const MergedInput input =
        UnpackedInput(record.substr(0, end), record.substr(end + 1 + 4 + 8), &figures);
    ++shards_.at(shard_of_file_[file_of(record)]).results;
    const auto [group, is_new] = groups.emplace(std::pair(input.model, input.format),
                                                static_cast<uint32_t>(merged.groups.size()));
    if (is_new) merged.groups.push_back({input.model, input.format, 0});
    ++merged.groups[group->second].entries;
    for (const MergeJson& figure : figures) {
      std::string packed;
      AppendSortable(figure[0].get<uint32_t>(), packed);
      AppendValue({figure[1], merged.entries, group->second, figure[2], figure[3]}, packed);
      values.Add(packed);
    }
    merged.Take(input);
  };
  lines_.ForEach([&](std::string_view record) {
    const size_t end = record.find('\0');
    const bool is_same = !last.empty() && last.compare(0, end + 1, record, 0, end + 1) == 0;
    if (!is_same) {
      take();
    } else if (file_of(last) != file_of(record)) {
      throw Error(Finding::kDuplicateName, "the result of {} is also in {}",
                  Escaped(std::string(record.substr(0, end)), 200),
                  shards_.at(shard_of_file_[file_of(last)]).file)
          .File(shards_.at(shard_of_file_[file_of(record)]).file);
    }
    last = record;
  });
  take();
}

void Merger::RequireAll(const Merged& merged) const {
  // A forged first line may claim billions of shards.
  constexpr size_t kMostNamed = 100;
  std::vector<uint32_t> missing;
  for (uint32_t i = 0; i < merged.head.shard.count && missing.size() < kMostNamed; ++i) {
    const auto found = shards_.find(i);
    if (found == shards_.end() || found->second.results != found->second.head.entries) {
      missing.push_back(i);
    }
  }
  if (!missing.empty()) {
    std::string text = fmt::format("of {} shards, these are missing or incomplete: {}{}",
                                   merged.head.shard.count, fmt::join(missing, ","),
                                   missing.size() == kMostNamed ? " and perhaps more" : "");
    for (const uint32_t i : missing) {
      const auto found = shards_.find(i);
      if (found == shards_.end()) continue;
      text += fmt::format("; {} has {} of {} results", found->second.file, found->second.results,
                          found->second.head.entries);
    }
    throw Error(Finding::kMissingRecord, text)
        .Hint("run them again with the same --results: only the missing inputs are processed");
  }
  if (merged.entries != merged.head.corpus_entries) {
    throw Error(Finding::kInconsistent, "the corpus has {} inputs, the shards have {}",
                merged.head.corpus_entries, merged.entries);
  }
}

Merged Merger::Finish() {
  if (shards_.empty()) throw Error(Finding::kUsage, "there are no results to merge");
  Merged merged;
  merged.head = shards_.begin()->second.head;
  ExternalSorter values;
  TakeInputs(merged, values);
  RequireAll(merged);
  merged.head.shard = {};
  merged.head.balance = "hash";
  std::vector<FigureExtent> extents(ids_.size());
  values.ForEach([&](std::string_view record) {
    FigureExtent& extent = extents[TakeSortable<uint32_t>(record)];
    if (extent.count++ == 0) extent.begin = merged.values_->size();
    merged.values_->Append(record);
  });
  for (const auto& [key, id] : ids_) {
    // A line that was replaced by a later one may leave a figure without values.
    if (extents[id].count > 0) merged.figures[key] = extents[id];
  }
  return merged;
}

}  // namespace kv::corpus
