// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/gate/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "lib/base/bytes.h"
#include "lib/base/error.h"
#include "lib/base/nearest.h"

namespace kv::gate {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostCases = 1000;
constexpr double kMostTokens = 1e9;

// One object or value of the config and the words that lead to it: "cases[2].rules[0]".
struct Node {
  const Json& json;
  std::string path;

  Error Wrong(const std::string& message) const {
    return Error(Finding::kConfig, path.empty() ? message : path + ": " + message);
  }
  Node At(const std::string& key) const {
    return {json.at(key), path.empty() ? key : path + "." + key};
  }
  Node At(size_t i) const { return {json.at(i), fmt::format("{}[{}]", path, i)}; }
  bool Has(const std::string& key) const { return json.contains(key); }
};

std::string Suggest(std::string_view word, const std::vector<std::string>& known) {
  const std::string nearest = Nearest(word, known);
  return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest);
}

void RequireKeys(const Node& node, const std::vector<std::string>& known) {
  if (!node.json.is_object()) {
    throw node.Wrong(fmt::format("expected an object, found {}", node.json.type_name()));
  }
  for (const auto& item : node.json.items()) {
    if (std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
    throw node.Wrong(
        fmt::format("unknown key '{}'{}", Escaped(item.key()), Suggest(item.key(), known)));
  }
}

std::string Word(const Node& node) {
  if (!node.json.is_string()) {
    throw node.Wrong(fmt::format("expected a string, found {}", node.json.type_name()));
  }
  return node.json.get<std::string>();
}

std::string OneOf(const Node& node, const std::vector<std::string>& words) {
  const std::string word = Word(node);
  if (std::find(words.begin(), words.end(), word) == words.end()) {
    throw node.Wrong(fmt::format("'{}' is none of {}{}", Escaped(word), fmt::join(words, ", "),
                                 Suggest(word, words)));
  }
  return word;
}

double Number(const Node& node) {
  if (!node.json.is_number()) {
    throw node.Wrong(fmt::format("expected a number, found {}", node.json.type_name()));
  }
  const auto value = node.json.get<double>();
  if (!std::isfinite(value)) throw node.Wrong("expected a finite number");
  return value;
}

uint64_t Whole(const Node& node, double least, double most) {
  const double value = Number(node);
  if (!(value >= least && value <= most) || value != std::floor(value)) {
    throw node.Wrong(fmt::format("expected a whole number from {:.0f} to {:.0f}, found {}", least,
                                 most, node.json.dump()));
  }
  return static_cast<uint64_t>(value);
}

bool Flag(const Node& node) {
  if (!node.json.is_boolean()) {
    throw node.Wrong(fmt::format("expected true or false, found {}", node.json.type_name()));
  }
  return node.json.get<bool>();
}

template <typename Visit>
void ForEach(const Node& node, Visit visit) {
  if (!node.json.is_array()) {
    throw node.Wrong(fmt::format("expected an array, found {}", node.json.type_name()));
  }
  for (size_t i = 0; i < node.json.size(); ++i) visit(node.At(i));
}

const MetricInfo& Metric(const Node& node) {
  const std::string name = Word(node);
  const MetricInfo* info = FindMetric(name);
  if (info != nullptr) return *info;
  throw node
      .Wrong(fmt::format("unknown metric '{}'{}", Escaped(name), Suggest(name, MetricNames())))
      .Hint("'kvtool gate --list-metrics' tells them");
}

Rule RuleOf(const Node& node) {
  RequireKeys(node, {"metric", "op", "limit", "required"});
  for (const char* key : {"metric", "op", "limit"}) {
    if (!node.Has(key)) throw node.Wrong(fmt::format("a rule needs '{}'", key));
  }
  const MetricInfo& metric = Metric(node.At("metric"));
  Rule rule{std::string(metric.name)};
  const std::optional<Op> op = ParseOp(Word(node.At("op")));
  if (!op) throw node.At("op").Wrong("expected one of >=, <=, >, <, ==, !=");
  rule.op = *op;
  if (metric.is_flag) {
    if (*op != Op::kEqual && *op != Op::kDiffers) {
      throw node.At("op").Wrong(fmt::format("{} is true or false: expected == or !=", metric.name));
    }
    rule.limit = Flag(node.At("limit")) ? 1 : 0;
  } else {
    rule.limit = Number(node.At("limit"));
  }
  if (node.Has("required")) rule.required = Flag(node.At("required"));
  return rule;
}

DeltaRule DeltaOf(const Node& node) {
  RequireKeys(node, {"metric", "max_drop", "max_rise"});
  if (!node.Has("metric")) throw node.Wrong("a rule needs 'metric'");
  const MetricInfo& metric = Metric(node.At("metric"));
  DeltaRule rule{std::string(metric.name), {}, {}};
  for (auto [key, member] : {std::pair{"max_drop", &rule.max_drop}, {"max_rise", &rule.max_rise}}) {
    if (!node.Has(key)) continue;
    *member = Number(node.At(key));
    if (**member < 0) throw node.At(key).Wrong("expected a share of the older value, at least 0");
  }
  if (!rule.max_drop && !rule.max_rise) throw node.Wrong("expected 'max_drop' or 'max_rise'");
  return rule;
}

std::vector<std::string> Split(std::string_view words, char by) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= words.size();) {
    const size_t end = std::min(words.find(by, begin), words.size());
    parts.emplace_back(words.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

ParamValue ParamOf(const ParamInfo& info, const Node& node) {
  if (info.words.empty()) {
    if (node.json.is_boolean()) return node.json.get<bool>() ? 1.0 : 0.0;
    // The engine clamps the rest; threads would really be started.
    constexpr double kMostThreads = 256;
    if (info.name == "h2o_lossless_async_threads") {
      return static_cast<double>(Whole(node, 0, kMostThreads));
    }
    return Number(node);
  }
  if (info.words == "*") return Word(node);
  return OneOf(node, Split(info.words, '|'));
}

void AddParams(const Node& node, Params& params) {
  if (!node.json.is_object()) throw node.Wrong("expected an object");
  for (const auto& item : node.json.items()) {
    const ParamInfo* info = FindParam(item.key());
    if (info == nullptr) {
      std::vector<std::string> known;
      for (const ParamInfo& param : KnownParams()) known.emplace_back(param.name);
      throw node.Wrong(
          fmt::format("unknown parameter '{}'{}", Escaped(item.key()), Suggest(item.key(), known)));
    }
    Assign(info->name, ParamOf(*info, node.At(item.key())), params);
  }
}

std::string Resolved(const std::string& path, const std::filesystem::path& folder) {
  const std::filesystem::path given(path);
  return given.is_absolute() ? path : (folder / given).lexically_normal().string();
}

// The keys that "defaults" and a case share. Rules are the caller's.
void ApplyShared(const Node& node, const std::filesystem::path& folder, CaseSpec& spec) {
  if (node.Has("snapshot")) spec.snapshot = Resolved(Word(node.At("snapshot")), folder);
  if (node.Has("trace")) spec.trace = Resolved(Word(node.At("trace")), folder);
  if (node.Has("from")) spec.reading.from = Word(node.At("from"));
  if (node.Has("gguf")) spec.reading.gguf = Resolved(Word(node.At("gguf")), folder);
  if (node.Has("kv_heads")) {
    spec.reading.kv_heads = static_cast<uint32_t>(Whole(node.At("kv_heads"), 1, 1 << 20));
  }
  if (node.Has("head_dim")) {
    spec.reading.head_dim = static_cast<uint32_t>(Whole(node.At("head_dim"), 1, 1 << 20));
  }
  if (node.Has("engine")) spec.engine = OneOf(node.At("engine"), {"mnn", "design"});
  if (node.Has("repeat")) spec.repeat = Whole(node.At("repeat"), 1, 1000);
  if (node.Has("prompt_tokens")) {
    const Node prompts = node.At("prompt_tokens");
    spec.prompt_tokens.clear();
    if (prompts.json.is_array()) {
      ForEach(prompts,
              [&](const Node& n) { spec.prompt_tokens.push_back(Whole(n, 1, kMostTokens)); });
    } else {
      spec.prompt_tokens.push_back(Whole(prompts, 1, kMostTokens));
    }
    if (spec.prompt_tokens.empty()) throw prompts.Wrong("expected at least one length");
  }
  if (node.Has("params")) AddParams(node.At("params"), spec.params);
}

const std::vector<std::string>& SharedKeys() {
  static const std::vector<std::string> keys = {"mode",   "snapshot", "trace",         "from",
                                                "gguf",   "kv_heads", "head_dim",      "engine",
                                                "repeat", "params",   "prompt_tokens", "rules"};
  return keys;
}

std::vector<Rule> RulesOf(const Node& node) {
  std::vector<Rule> rules;
  ForEach(node, [&](const Node& rule) { rules.push_back(RuleOf(rule)); });
  return rules;
}

CaseSpec CaseOf(const Node& node, const Json& defaults, const std::filesystem::path& folder) {
  std::vector<std::string> keys = SharedKeys();
  keys.insert(keys.begin(), "name");
  RequireKeys(node, keys);
  if (!node.Has("name")) throw node.Wrong("a case needs 'name'");
  const std::string name = Word(node.At("name"));
  if (name.empty() || name.size() > 200) throw node.At("name").Wrong("expected 1 to 200 bytes");
  const std::optional<CaseSpec> known = FindSuiteCase(name);
  CaseSpec spec = known.value_or(CaseSpec{});
  spec.name = name;

  const Node base{defaults, "defaults"};
  const Params preset = spec.params;
  for (const Node* from : {&base, &node}) {
    if (!from->Has("mode") || (known && from == &base)) continue;
    const std::string mode = OneOf(from->At("mode"), {"probe", "full", "store"});
    if (known && mode != known->mode) {
      throw from->At("mode").Wrong(
          fmt::format("{} is of mode {}; choose another name", name, known->mode));
    }
    spec.mode = mode;
  }
  ApplyShared(base, folder, spec);
  Merge(preset, spec.params);
  ApplyShared(node, folder, spec);
  const ParamValue* mode = Find(spec.params, "h2o_lossless_runtime_mode");
  if (mode != nullptr) {
    const auto& word = std::get<std::string>(*mode);
    if (!spec.mode.empty() && word != spec.mode) {
      throw node.Wrong(
          fmt::format("mode is {}, but h2o_lossless_runtime_mode is {}", spec.mode, word));
    }
    spec.mode = word;
  }
  if (spec.mode.empty()) throw node.Wrong("a case needs 'mode': probe, full or store");

  spec.own_rules = node.Has("rules") || (base.Has("rules") && !NeedsEngine(spec));
  if (node.Has("rules")) {
    spec.rules = RulesOf(node.At("rules"));
  } else if (base.Has("rules") && !NeedsEngine(spec)) {
    spec.rules = RulesOf(base.At("rules"));
  } else if (!known) {
    spec.rules = SuiteRules(spec.mode);
  }
  RequireContent(spec);
  return spec;
}

// nlohmann keeps the last of equal keys; a threshold given twice is a mistake.
class DuplicateKeys {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& value) {
    const auto level = static_cast<size_t>(depth);
    if (event == Json::parse_event_t::object_start) {
      if (seen_.size() <= level + 1) seen_.resize(level + 2);
      seen_[level + 1].clear();
    } else if (event == Json::parse_event_t::key) {
      const auto key = value.get<std::string>();
      if (!seen_[level].insert(key).second) {
        throw Error(Finding::kConfig, fmt::format("key '{}' is given twice", Escaped(key)));
      }
    }
    return true;
  }

 private:
  std::vector<std::set<std::string>> seen_;
};

Json ParseText(std::string_view text) {
  DuplicateKeys duplicates;
  try {
    return Json::parse(
        text.begin(), text.end(),
        [&](int depth, Json::parse_event_t event, Json& value) {
          return duplicates(depth, event, value);
        },
        true, true);
  } catch (const nlohmann::json::parse_error& error) {
    const size_t at = std::min(error.byte, text.size());
    const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n') + 1;
    const std::string what = error.what();
    throw Error(Finding::kConfig,
                fmt::format("line {}: no JSON: {}", line, what.substr(what.find("] ") + 2)))
        .At(at);
  } catch (const nlohmann::json::exception& error) {
    throw Error(Finding::kConfig, fmt::format("no JSON: {}", error.what()));
  }
}

}  // namespace

Config ParseConfig(std::string_view text, const std::filesystem::path& folder) {
  const Json json = ParseText(text);
  const Node root{json, ""};
  RequireKeys(root, {"$schema", "schema", "defaults", "cases", "baseline_rules"});
  if (!root.Has("schema")) throw root.Wrong("expected \"schema\": \"kvtool.gate-config/1\"");
  if (Word(root.At("schema")) != "kvtool.gate-config/1") {
    throw root.At("schema").Wrong("expected \"kvtool.gate-config/1\"");
  }
  const Json defaults = root.Has("defaults") ? json.at("defaults") : Json::object();
  RequireKeys({defaults, "defaults"}, SharedKeys());
  // Checked even where no case uses it.
  CaseSpec unused;
  ApplyShared({defaults, "defaults"}, folder, unused);
  if (defaults.contains("rules")) RulesOf({defaults["rules"], "defaults.rules"});

  Config config;
  if (!root.Has("cases")) throw root.Wrong("expected 'cases'");
  std::set<std::string> names;
  ForEach(root.At("cases"), [&](const Node& node) {
    if (config.cases.size() == kMostCases) throw root.Wrong("more than 1000 cases");
    config.cases.push_back(CaseOf(node, defaults, folder));
    if (!names.insert(config.cases.back().name).second) {
      throw node.Wrong(fmt::format("a second case '{}'", Escaped(config.cases.back().name)));
    }
  });
  if (config.cases.empty())
    throw root.Wrong("'cases' is empty: a gate without cases decides nothing");
  if (root.Has("baseline_rules")) {
    ForEach(root.At("baseline_rules"),
            [&](const Node& node) { config.baseline_rules.push_back(DeltaOf(node)); });
  } else {
    config.baseline_rules = DefaultDeltaRules();
  }
  return config;
}

Config SuiteConfig(const std::string& snapshot, const std::string& trace) {
  Config config;
  for (const std::string& name : SuiteCaseNames()) {
    CaseSpec spec = FindSuiteCase(name).value();
    spec.snapshot = snapshot;
    spec.trace = trace;
    RequireContent(spec);
    config.cases.push_back(std::move(spec));
  }
  config.baseline_rules = DefaultDeltaRules();
  return config;
}

void KeepCases(const std::vector<std::string>& names, Config& config) {
  if (names.empty()) return;
  std::vector<std::string> known;
  for (const CaseSpec& spec : config.cases) known.push_back(spec.name);
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Error(Finding::kUsage,
                fmt::format("--case '{}': no such case{}", Escaped(name), Suggest(name, known)));
  }
  std::erase_if(config.cases, [&](const CaseSpec& spec) {
    return std::find(names.begin(), names.end(), spec.name) == names.end();
  });
}

}  // namespace kv::gate
