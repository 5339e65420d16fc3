// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"
#include "lib/study/quantisation/types/cache_type.h"

namespace kv::gate {
namespace {

// Returns "; did you mean 'x'?" with the nearest known word, or nothing if none is near.
std::string Suggest(std::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(word, known);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

// One value of a config, with its path, such as "cases[2].rules[0]". Each accessor throws kConfig
// with the path if the value has another type than requested.
struct Node {
  const Json& json;
  std::string path;

  Error Wrong(const std::string& message) const {
    return Error(Finding::kConfig, path.empty() ? message : path + ": " + message);
  }
  void Require(bool is_kind, const char* kind) const {
    if (!is_kind) throw Wrong(fmt::format("expected {}, found {}", kind, json.type_name()));
  }
  bool Has(const std::string& key) const { return json.contains(key); }
  Node At(const std::string& key) const {
    return {json.at(key), path.empty() ? key : path + "." + key};
  }
  void ForEach(const std::function<void(const Node&)>& visit) const {
    Require(json.is_array(), "an array");
    for (size_t i = 0; i < json.size(); ++i) visit({json.at(i), fmt::format("{}[{}]", path, i)});
  }

  void RequireKeys(const std::vector<std::string>& known) const {
    Require(json.is_object(), "an object");
    for (const auto& item : json.items()) {
      if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
      throw Wrong(
          fmt::format("unknown key '{}'{}", Escaped(item.key()), Suggest(item.key(), known)));
    }
  }
  std::string Text() const {
    Require(json.is_string(), "a string");
    return json.get<std::string>();
  }
  std::string OneOf(const std::vector<std::string>& words) const {
    const std::string word = Text();
    if (std::find(words.begin(), words.end(), word) != words.end()) return word;
    throw Wrong(fmt::format("'{}' is not one of {}{}", Escaped(word), fmt::join(words, ", "),
                            Suggest(word, words)));
  }
  double Number() const {
    Require(json.is_number(), "a number");
    const auto value = json.get<double>();
    if (!std::isfinite(value)) throw Wrong("expected a finite number");
    return value;
  }
  uint64_t Whole(double least, double most) const {
    const double value = Number();
    if (value >= least && value <= most && value == std::floor(value)) {
      return static_cast<uint64_t>(value);
    }
    throw Wrong(fmt::format("expected a whole number from {:.0f} to {:.0f}, found {}", least, most,
                            ShowJson(json)));
  }
  bool Flag() const {
    Require(json.is_boolean(), "true or false");
    return json.get<bool>();
  }
};

// Parses JSON with // comments, in which no key may be given twice. Throws kConfig with line and
// offset.
Json ParseConfigText(std::string_view text) {
  constexpr size_t kMostKeys = 256;  // more than the largest object has, which is below 100
  // nlohmann keeps the last of equal keys; a threshold given twice is a mistake.
  constexpr JsonLimits kLimits{.keys = kMostKeys, .comments = true, .unique_keys = true};
  JsonMistake mistake;
  Json json;
  try {
    json = ReadOrderedJson(text, kLimits, &mistake);
  } catch (const Error& error) {
    throw Error(Finding::kConfig, error.message());
  }
  if (!json.is_discarded()) return json;
  if (mistake.kind == JsonMistake::Kind::kTwice) {
    throw Error(Finding::kConfig, "key '{}' is given twice", Escaped(mistake.text));
  }
  const std::string what = mistake.text.substr(mistake.text.find("] ") + 2);
  if (mistake.kind == JsonMistake::Kind::kRange) {
    throw Error(Finding::kConfig, "not valid JSON: {}", what);
  }
  const size_t at = std::min<size_t>(mistake.at, text.size());
  const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n') + 1;
  throw Error(Finding::kConfig, "line {}: not valid JSON: {}", line, what).At(at);
}

constexpr size_t kMostCases = 1000;
constexpr double kMostTokens = 1e9;
constexpr double kMostDim = 1 << 20;  // number of heads, or of values of one
constexpr double kMostRepeats = 1000;
constexpr size_t kLongestName = 200;  // messages cut longer names
constexpr size_t kShortestCommit = 7;

const MetricInfo& Metric(const Node& node, const Engine& engine) {
  const std::string name = node.Text();
  const MetricInfo* info = engine.FindMetric(name);
  if (info != nullptr) return *info;
  std::vector<std::string> known;
  for (const MetricInfo* one : engine.Metrics()) {
    known.emplace_back(one->name);
    if (!one->word.empty()) known.emplace_back(one->word);
  }
  // Suggests "loss.perplexity" for "perplexity".
  const auto part = std::find_if(known.begin(), known.end(), [&](const std::string& one) {
    return !name.empty() && one.ends_with("." + name);
  });
  throw node
      .Wrong(fmt::format("unknown metric '{}'{}", Escaped(name),
                         Suggest(part != known.end() ? *part : name, known)))
      .Hint("'kvtool gate --list-metrics' lists them");
}

Rule ReadRule(const Node& node, const Engine& engine) {
  node.RequireKeys({"metric", "op", "limit", "required"});
  for (const char* key : {"metric", "op", "limit"}) {
    if (!node.Has(key)) throw node.Wrong(fmt::format("a rule needs '{}'", key));
  }
  const MetricInfo& metric = Metric(node.At("metric"), engine);
  Rule rule{std::string(metric.name)};
  if (node.At("metric").Text() == metric.word) rule.word = metric.word;
  const std::optional<Op> op = ParseOp(node.At("op").Text());
  if (!op) throw node.At("op").Wrong("expected one of >=, <=, >, <, ==, !=");
  rule.op = *op;
  rule.is_flag = metric.is_flag();
  if (metric.is_flag()) {
    if (*op != Op::kEqual && *op != Op::kDiffers) {
      throw node.At("op").Wrong(fmt::format("{} is true or false: expected == or !=", metric.name));
    }
    rule.limit = node.At("limit").Flag() ? 1 : 0;
  } else {
    rule.limit = node.At("limit").Number();
  }
  if (node.Has("required")) rule.required = node.At("required").Flag();
  return rule;
}

DeltaRule ReadDelta(const Node& node, const Engine& engine) {
  node.RequireKeys({"metric", "max_drop", "max_rise"});
  if (!node.Has("metric")) throw node.Wrong("a rule needs 'metric'");
  const MetricInfo& metric = Metric(node.At("metric"), engine);
  DeltaRule rule{metric.name, {}, {}, metric.is_flag(), true};
  for (auto [key, member] : {std::pair{"max_drop", &rule.max_drop}, {"max_rise", &rule.max_rise}}) {
    if (!node.Has(key)) continue;
    *member = node.At(key).Number();
    if (**member < 0) throw node.At(key).Wrong("expected a share of the older value, at least 0");
  }
  if (!rule.max_drop && !rule.max_rise) throw node.Wrong("expected 'max_drop' or 'max_rise'");
  return rule;
}

std::vector<DeltaRule> ReadDeltas(const Node& node, const Engine& engine) {
  std::vector<DeltaRule> rules;
  node.ForEach([&](const Node& rule) { rules.push_back(ReadDelta(rule, engine)); });
  return rules;
}

// Reads a commit's name, or a prefix that is long enough to be unambiguous.
std::string ReadCommit(const Node& node) {
  std::string commit = node.Text();
  if (commit.size() < kShortestCommit || commit.size() > kLongestName) {
    throw node.Wrong("expected a commit, 7 to 200 bytes of its name");
  }
  return commit;
}

ParamValue ReadParam(const ParamInfo& info, const Node& node) {
  if (info.words.empty()) {
    if (node.json.is_boolean()) return node.json.get<bool>() ? 1.0 : 0.0;
    if (info.most) return static_cast<double>(node.Whole(0, static_cast<double>(*info.most)));
    return node.Number();
  }
  if (info.words == "*") return node.Text();
  const std::vector<std::string_view> parts = Split(info.words, '|');
  std::vector<std::string> words(parts.begin(), parts.end());
  // A word's index is the engine's number for it.
  if (info.most && node.json.is_number())
    return words[node.Whole(0, static_cast<double>(*info.most))];
  return node.OneOf(words);
}

void AddParams(const Node& node, const Engine& engine, Params& params) {
  if (!node.json.is_object()) throw node.Wrong("expected an object");
  for (const auto& item : node.json.items()) {
    const ParamInfo* info = FindParam(engine.params, item.key());
    if (info == nullptr) {
      std::vector<std::string> known;
      for (const ParamInfo& param : engine.params) {
        known.emplace_back(param.name);
        if (!param.word.empty()) known.emplace_back(param.word);
      }
      throw node.Wrong(
          fmt::format("unknown parameter '{}'{}", Escaped(item.key()), Suggest(item.key(), known)));
    }
    const bool twice = item.key() != info->name && node.Has(std::string(info->name));
    if (twice) throw node.Wrong(fmt::format("{} is {} by another name", item.key(), info->name));
    Assign(info->name, ReadParam(*info, node.At(item.key())), params);
  }
}

std::string Resolved(const std::string& path, const std::filesystem::path& folder) {
  const std::filesystem::path given(path);
  return given.is_absolute() ? path : (folder / given).lexically_normal().string();
}

OnNotRun ReadOnNotRun(const Node& node) {
  return node.OneOf({"fail", "warn"}) == "fail" ? OnNotRun::kFail : OnNotRun::kWarn;
}

// Reads a list of names, or a minimum number.
ExpectedCases ReadExpected(const Node& node) {
  ExpectedCases expected;
  if (node.json.is_number()) {
    expected.count = node.Whole(1, kMostCases);
    return expected;
  }
  node.ForEach([&](const Node& name) { expected.names.push_back(name.Text()); });
  if (expected.names.empty()) throw node.Wrong("expected at least one name");
  if (expected.names.size() > kMostCases) throw node.Wrong("more than 1000 names");
  return expected;
}

std::optional<double> ReadAtol(const Node& node) {
  if (node.json.is_string()) {
    node.OneOf({"bit_equal", "bit-equal"});
    return std::nullopt;
  }
  const double atol = node.Number();
  if (atol < 0) throw node.Wrong("expected 0 or more");
  return atol;
}

// Reads one value for both, or {"k": 0.001, "v": "bit_equal"}.
Tolerance::OfBoth ReadAtols(const Node& node, const Tolerance::OfBoth& otherwise) {
  if (!node.json.is_object()) return {ReadAtol(node), ReadAtol(node)};
  Tolerance::OfBoth of = otherwise;
  for (const bool is_value : {false, true}) {
    const char* key = is_value ? "v" : "k";
    if (node.Has(key)) of[is_value] = ReadAtol(node.At(key));
  }
  return of;
}

Tolerance ReadTolerance(const Node& node) {
  Tolerance tolerance;
  if (node.json.is_object()) node.RequireKeys({"k", "v", "layers"});
  tolerance.all = ReadAtols(node, {});
  if (!node.json.is_object() || !node.Has("layers")) return tolerance;
  const Node layers = node.At("layers");
  if (!layers.json.is_object()) throw layers.Wrong("expected an object: layers by their number");
  for (const auto& item : layers.json.items()) {
    const Node of = layers.At(item.key());
    const std::string& name = item.key();
    const auto layer = ParseNumber<uint32_t>(name);
    if (!layer) throw of.Wrong("expected the number of a layer");
    if (of.json.is_object()) of.RequireKeys({"k", "v"});
    tolerance.layers.emplace_back(*layer, ReadAtols(of, tolerance.all));
  }
  return tolerance;
}

// Reads {"k": "q8_0", "v": "q5_1"}; a side that is missing is unchanged.
QuantTypes ReadQuant(const Node& node) {
  if (!node.json.is_object()) throw node.Wrong("expected an object with 'k' and 'v'");
  node.RequireKeys({"k", "v"});
  QuantTypes types{"f16", "f16"};
  for (auto [key, type] : {std::pair{"k", &types.k}, {"v", &types.v}}) {
    if (!node.Has(key)) continue;
    *type = node.At(key).Text();
    if (quant::FindCacheType(*type) != nullptr) continue;
    std::vector<std::string> known;
    for (const quant::CacheType& one : quant::CacheTypes()) known.emplace_back(one.name);
    throw node.At(key).Wrong(
        fmt::format("unknown cache type '{}'{}", Escaped(*type), Suggest(*type, known)));
  }
  return types;
}

// Applies the keys that "defaults" and a case share, except rules, which the caller handles.
void ApplyShared(const Node& node, const std::filesystem::path& folder, const Engine& engine,
                 CaseSpec& spec) {
  for (const auto& [key, path] : {std::pair{"snapshot", &spec.snapshot},
                                  {"trace", &spec.trace},
                                  {"gguf", &spec.reading.gguf},
                                  {"reference", &spec.reference}}) {
    if (node.Has(key)) *path = Resolved(node.At(key).Text(), folder);
  }
  for (const auto& [key, format] :
       {std::pair{"from", &spec.reading.from}, {"reference_from", &spec.reference_from}}) {
    if (node.Has(key)) *format = node.At(key).Text();
  }
  for (const auto& [key, count] :
       {std::pair{"kv_heads", &spec.reading.kv_heads}, {"head_dim", &spec.reading.head_dim}}) {
    if (node.Has(key)) *count = static_cast<uint32_t>(node.At(key).Whole(1, kMostDim));
  }
  if (node.Has("engine")) {
    spec.runtime = node.At("engine").OneOf({engine.runtimes.begin(), engine.runtimes.end()});
  }
  if (node.Has("repeat")) spec.repeat = node.At("repeat").Whole(1, kMostRepeats);
  if (node.Has("prompt_tokens")) {
    const Node prompts = node.At("prompt_tokens");
    spec.prompt_tokens.clear();
    if (prompts.json.is_array()) {
      prompts.ForEach(
          [&](const Node& n) { spec.prompt_tokens.push_back(n.Whole(1, kMostTokens)); });
    } else {
      spec.prompt_tokens.push_back(prompts.Whole(1, kMostTokens));
    }
    if (spec.prompt_tokens.empty()) throw prompts.Wrong("expected at least one length");
  }
  if (node.Has("decode_tokens"))
    spec.decode_tokens = node.At("decode_tokens").Whole(1, kMostTokens);
  if (node.Has("tolerance")) spec.tolerance = ReadTolerance(node.At("tolerance"));
  if (node.Has("quant")) spec.quant = ReadQuant(node.At("quant"));
  if (node.Has("on_not_run")) spec.on_not_run = ReadOnNotRun(node.At("on_not_run"));
  if (node.Has("params")) AddParams(node.At("params"), engine, spec.params);
}

const std::vector<std::string>& SharedKeys() {
  static const std::vector<std::string> keys = {
      "mode",     "snapshot",   "trace",     "from",           "gguf",          "kv_heads",
      "head_dim", "engine",     "repeat",    "params",         "prompt_tokens", "decode_tokens",
      "rules",    "on_not_run", "reference", "reference_from", "tolerance",     "quant"};
  return keys;
}

std::vector<Rule> ReadRules(const Node& node, const Engine& engine) {
  std::vector<Rule> rules;
  node.ForEach([&](const Node& rule) { rules.push_back(ReadRule(rule, engine)); });
  return rules;
}

// Applies settings of the whole config to each of its cases.
struct CommonSettings {
  const Json& defaults;
  const std::filesystem::path& folder;
  const Engine& engine;
  OnNotRun on_not_run = OnNotRun::kFail;
};

// Returns "a, b or c".
std::string Alternatives(std::span<const std::string_view> words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + std::string(words[i]);
  }
  return text;
}

// Returns the mode that a node of the config gives.
std::string ReadMode(const Node& node, const Engine& engine) {
  if (node.json == kCompare) return std::string(kCompare);
  if (node.json == kQuant) return std::string(kQuant);
  return node.OneOf({engine.modes.begin(), engine.modes.end()});
}

// Completes the mode, which a parameter, a reference or types may also determine.
void CompleteMode(const Node& node, const Engine& engine, CaseSpec& spec) {
  if (const ParamValue* mode = Find(spec.params, engine.mode_param)) {
    const auto& word = std::get<std::string>(*mode);
    if (!spec.mode.empty() && word != spec.mode) {
      throw node.Wrong(fmt::format("mode is {}, but {} is {}", spec.mode, engine.mode_param, word));
    }
    spec.mode = word;
  }
  if (spec.mode.empty() && !spec.reference.empty()) spec.mode = kCompare;
  if (spec.mode.empty() && spec.quant) spec.mode = kQuant;
  if (spec.mode == kQuant && !spec.quant) throw node.Wrong("mode quant needs 'quant'");
  if (spec.mode.empty()) {
    throw node.Wrong("a case needs 'mode': " + Alternatives(engine.modes));
  }
}

CaseSpec ReadCase(const Node& node, const CommonSettings& common) {
  std::vector<std::string> keys = SharedKeys();
  keys.insert(keys.begin(), "name");
  node.RequireKeys(keys);
  if (!node.Has("name")) throw node.Wrong("a case needs 'name'");
  const std::string name = node.At("name").Text();
  if (name.empty() || name.size() > kLongestName)
    throw node.At("name").Wrong("expected 1 to 200 bytes");
  const std::optional<CaseSpec> known = common.engine.FindSuiteCase(name);
  CaseSpec spec = known.value_or(common.engine.NewCase());
  spec.name = name;
  spec.on_not_run = common.on_not_run;

  const Node base{common.defaults, "defaults"};
  const Params preset = spec.params;
  for (const Node* from : {&base, &node}) {
    if (!from->Has("mode") || (known && from == &base)) continue;
    const std::string mode = ReadMode(from->At("mode"), common.engine);
    if (known && mode != known->mode) {
      throw from->At("mode").Wrong(
          fmt::format("{} is of mode {}; choose another name", name, known->mode));
    }
    spec.mode = mode;
  }
  ApplyShared(base, common.folder, common.engine, spec);
  Merge(preset, spec.params);
  ApplyShared(node, common.folder, common.engine, spec);
  CompleteMode(node, common.engine, spec);
  const bool has_default_rules = base.Has("rules") && !spec.only_engine;
  spec.own_rules = node.Has("rules") || has_default_rules;
  if (spec.own_rules) {
    spec.rules = ReadRules((node.Has("rules") ? node : base).At("rules"), common.engine);
  } else if (!known && !OnlyCompares(spec) && spec.mode != kQuant) {
    spec.rules = common.engine.rules_of(spec.mode);
  }
  RequireContent(common.engine, spec);
  RequireReference(spec);
  return spec;
}

}  // namespace

Config ParseConfig(std::string_view text, const std::filesystem::path& folder,
                   const Engine& engine) {
  const Json json = ParseConfigText(text);
  const Node root{json, ""};
  root.RequireKeys({"$schema", "schema", "defaults", "cases", "baseline_rules", "pinned_rules",
                    "pinned_commit", "on_not_run", "expected_cases"});
  if (!root.Has("schema")) throw root.Wrong("expected \"schema\": \"kvtool.gate-config/1\"");
  if (root.At("schema").Text() != "kvtool.gate-config/1") {
    throw root.At("schema").Wrong("expected \"kvtool.gate-config/1\"");
  }
  const Json defaults = root.Has("defaults") ? json.at("defaults") : Json::object();
  Node{defaults, "defaults"}.RequireKeys(SharedKeys());
  // The defaults are checked even if no case uses them.
  CaseSpec unused = engine.NewCase();
  ApplyShared({defaults, "defaults"}, folder, engine, unused);
  if (defaults.contains("rules")) ReadRules({defaults["rules"], "defaults.rules"}, engine);

  Config config;
  CommonSettings common{defaults, folder, engine};
  if (root.Has("on_not_run")) common.on_not_run = ReadOnNotRun(root.At("on_not_run"));
  config.on_not_run = common.on_not_run;
  if (root.Has("expected_cases")) config.expected = ReadExpected(root.At("expected_cases"));
  const bool of_logs = !root.Has("cases") && config.expected.any();
  if (!root.Has("cases") && !of_logs) throw root.Wrong("expected 'cases'");
  const Json none = Json::array();
  const Node cases = of_logs ? Node{none, "cases"} : root.At("cases");
  std::set<std::string> names;
  cases.ForEach([&](const Node& node) {
    if (config.cases.size() == kMostCases) throw root.Wrong("more than 1000 cases");
    config.cases.push_back(ReadCase(node, common));
    if (!names.insert(config.cases.back().name).second) {
      throw node.Wrong(fmt::format("two cases are named '{}'", Escaped(config.cases.back().name)));
    }
  });
  if (config.cases.empty() && !of_logs)
    throw root.Wrong("'cases' is empty: a gate without cases decides nothing");
  config.baseline_rules = root.Has("baseline_rules") ? ReadDeltas(root.At("baseline_rules"), engine)
                                                     : DefaultBaselineRules(engine);
  if (root.Has("pinned_rules")) config.pinned_rules = ReadDeltas(root.At("pinned_rules"), engine);
  if (root.Has("pinned_commit")) config.pinned_commit = ReadCommit(root.At("pinned_commit"));
  return config;
}

Config CompareConfig(const std::string& snapshot, const std::string& reference,
                     const Engine& engine) {
  CaseSpec spec = engine.NewCase();
  spec.name = "reference";
  spec.mode = kCompare;
  spec.snapshot = snapshot;
  spec.reference = reference;
  RequireReference(spec);
  return {.cases = {std::move(spec)}, .baseline_rules = DefaultBaselineRules(engine)};
}

Config SuiteConfig(const std::string& snapshot, const std::string& trace, const Engine& engine) {
  Config config{.baseline_rules = DefaultBaselineRules(engine)};
  for (const std::string_view name : engine.case_names) {
    CaseSpec spec = engine.suite_case(name);
    spec.snapshot = snapshot;
    spec.trace = trace;
    RequireContent(engine, spec);
    // Only the engine can run some cases of its suite, so these may stay undecided.
    if (spec.only_engine) spec.on_not_run = OnNotRun::kWarn;
    config.cases.push_back(std::move(spec));
  }
  return config;
}

std::vector<DeltaRule> DefaultBaselineRules(const Engine& engine) {
  const auto rules = engine.baseline_rules;
  return {rules.begin(), rules.end()};
}

Rule ParseRule(std::string_view text, const Engine& engine) {
  constexpr std::string_view kOps = "<>=!";
  const size_t begin = std::min(text.find_first_of(kOps), text.size());
  const size_t end = std::min(text.find_first_not_of(kOps, begin), text.size());
  const auto trimmed = [](std::string_view word) {
    while (word.starts_with(' ')) word.remove_prefix(1);
    while (word.ends_with(' ')) word.remove_suffix(1);
    return word;
  };
  const std::string_view limit = trimmed(text.substr(end));
  const auto number = ParseNumber<double>(limit);
  const std::string name = fmt::format("--require '{}'", Escaped(text));
  const bool is_flag = limit == "true" || limit == "false";
  if (begin != end && !limit.empty() && !number && !is_flag) {
    throw Error(Finding::kConfig, "{}: the limit '{}' is not a number", name, Escaped(limit))
        .Hint(
            "limits have no unit: sizes are in bytes, times as the figure's name says, shares of "
            "1");
  }
  if (begin == end || limit.empty()) {
    throw Error(Finding::kConfig, "{}: expected a figure, one of >=, <=, >, <, ==, != and a limit",
                name)
        .Hint("kvtool gate --list-metrics lists the figures");
  }
  const Json json = {{"metric", trimmed(text.substr(0, begin))},
                     {"op", text.substr(begin, end - begin)},
                     {"limit", number ? Json(*number) : Json(limit == "true")},
                     {"required", true}};
  return ReadRule({json, name}, engine);
}

void KeepCases(const std::vector<std::string>& names, Config& config) {
  if (names.empty()) return;
  std::vector<std::string> known;
  for (const CaseSpec& spec : config.cases) known.push_back(spec.name);
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    Error error(Finding::kUsage, "--case '{}': no such case{}", Escaped(name),
                Suggest(name, known));
    constexpr size_t kMostShown = 20;
    if (known.size() > kMostShown) throw error;
    throw error.Hint("the cases are " + Escaped(fmt::format("{}", fmt::join(known, "  "))));
  }
  std::erase_if(config.cases, [&](const CaseSpec& spec) {
    return std::find(names.begin(), names.end(), spec.name) == names.end();
  });
}

}  // namespace kv::gate
