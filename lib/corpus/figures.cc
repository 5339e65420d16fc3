// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/corpus/figures.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

namespace kv::corpus {
namespace {

using Figures = std::vector<std::pair<FigureKey, FigureValue>>;
using ResultJson = nlohmann::ordered_json;

// A number of bytes, which some documents write as 122880.0; 0 for anything else.
uint64_t BytesIn(const ResultJson& value) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  constexpr double kMost = 0x1p63;
  const double number = value.is_number_float() ? std::round(value.get<double>()) : 0;
  return number >= 0 && number < kMost ? static_cast<uint64_t>(number) : 0;
}

void AddRatio(FigureKey key, const ResultJson& original, const ResultJson& left, Figures& figures) {
  FigureValue value;
  value.original = BytesIn(original);
  value.left = BytesIn(left);
  if (value.original == 0 || value.left == 0) return;
  value.value = static_cast<double>(value.original) / static_cast<double>(value.left);
  figures.emplace_back(std::move(key), value);
}

void AddNumber(FigureKey key, const ResultJson& value, Figures& figures) {
  if (value.is_number()) figures.emplace_back(std::move(key), FigureValue{value.get<double>()});
}

void AddCompression(const ResultJson& result, Figures& figures) {
  const std::string what = "level " + result.at("params").at("level").get<std::string>();
  AddRatio({"ratio", what, "all", {}}, result.at("inputs").at(0).at("bytes"),
           result.at("archive_bytes"), figures);
  for (const char* part : {"k", "v", "other"}) {
    AddRatio({"ratio", what, part, {}}, result.at(part).at("raw_bytes"),
             result.at(part).at("stored_bytes"), figures);
  }
}

void AddAnalysis(const ResultJson& result, Figures& figures) {
  if (!result.contains("summary")) return;
  const std::string what = "level " + result.at("level").get<std::string>();
  for (const auto& [key, part] : {std::pair{"total", "all"}, {"k", "k"}, {"v", "v"}}) {
    if (!result["summary"].contains(key) || !result["summary"][key].is_object()) continue;
    const ResultJson& of = result["summary"][key];
    AddRatio({"ratio", what, part, {}}, of.at("raw_bytes"),
             of.contains("own_bytes") ? of.at("own_bytes") : of.at("coded_bytes"), figures);
    AddRatio({"ratio", "the engine's codec", part, {}}, of.at("raw_bytes"), of.at("coded_bytes"),
             figures);
  }
  for (const ResultJson& layer : result.at("layers")) {
    for (const char* part : {"k", "v"}) {
      if (!layer.contains(part) || !layer[part].is_object()) continue;
      const ResultJson& of = layer[part];
      const ResultJson& best =
          of.contains("own") && of["own"].is_object() ? of["own"] : of.at("measured");
      const ResultJson& number = layer.at("layer");
      if (!number.is_number_unsigned()) continue;
      AddRatio({"ratio", what, part, number.get<uint64_t>()}, best.at("raw_bytes"),
               best.at("coded_bytes"), figures);
    }
  }
}

void AddEviction(const ResultJson& result, Figures& figures) {
  for (const ResultJson& run : result.at("runs")) {
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

void AddQuantisation(const ResultJson& result, Figures& figures) {
  for (const ResultJson& run : result.at("runs")) {
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

// What is resident once all tokens are decoded.
void AddRuntime(const ResultJson& result, Figures& figures) {
  const std::string what =
      "mode " + result.at("params").at("h2o_lossless_runtime_mode").get<std::string>();
  const ResultJson& end = result.at("memory").at("end");
  AddRatio({"ratio", what, "all", {}}, end.at("full_bytes"), end.at("resident_bytes"), figures);
}

std::string GateLimit(const ResultJson& limit) {
  if (limit.is_boolean()) return limit.get<bool>() ? "true" : "false";
  return limit.is_number() ? fmt::format("{:.6g}", limit.get<double>()) : std::string("-");
}

std::string GateWord(const ResultJson& rule) {
  return rule.contains("word") ? rule["word"] : rule.at("metric");
}

std::string GateRule(const ResultJson& rule) {
  return fmt::format("{} {} {}", GateWord(rule), rule.at("op").get<std::string>(),
                     GateLimit(rule.at("limit")));
}

// What is judged, and the ratios and errors that the gate's table always has.
void AddGate(const ResultJson& result, Figures& figures) {
  for (const ResultJson& item : result.at("cases")) {
    const std::string name = item.at("name");
    std::set<std::string> added;
    const auto add = [&](const std::string& metric, const ResultJson& value) {
      if (added.insert(metric).second) AddNumber({metric, name, "all", {}}, value, figures);
    };
    const ResultJson& known = item.at("true_figures");
    if (known.contains("whole_model_ratio")) add("whole_model_ratio", known["whole_model_ratio"]);
    if (known.contains("measured_ratio")) add("measured_ratio", known["measured_ratio"]);
    if (known.contains("attention_error") && known["attention_error"].is_object()) {
      add("attention_error.mean", known["attention_error"].at("mean"));
    }
    for (const ResultJson& rule : item.at("rules")) add(GateWord(rule), rule.at("value"));
  }
}

}  // namespace

Figures FiguresOf(const std::string& command, const ResultJson& result) {
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

std::vector<CaseVerdict> CasesOf(const ResultJson& result) {
  std::vector<CaseVerdict> cases;
  if (!result.is_object() || !result.contains("cases")) return cases;
  for (const ResultJson& item : result["cases"]) {
    CaseVerdict verdict{item.at("name"), item.at("status"), {}, {}};
    for (const ResultJson& rule : item.at("rules")) {
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

}  // namespace kv::corpus
