// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/summary_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/core/base/error.h"
#include "lib/report/junit.h"
#include "lib/report/svg.h"

namespace kv::gate {
namespace {

// Limit on cases, because a longer page would be unreadable; larger documents are refused.
constexpr size_t kMaxCases = 512;
constexpr size_t kMaxEntries = 1u << 16;

Status FindStatus(std::string_view word) {
  if (word == Name(Status::kPass)) return Status::kPass;
  if (word == Name(Status::kInconclusive)) return Status::kInconclusive;
  return word == Name(Status::kFail) ? Status::kFail : Status::kNotRun;
}

template <typename F>
void ForEachIn(const Json& object, const char* key, F&& use) {
  const Json* list = Find(object, key);
  if (list == nullptr || !list->is_array()) return;
  for (const Json& entry : *list) {
    if (entry.is_object()) use(entry);
  }
}

// Returns a position or a count; nothing for other values.
template <typename T>
std::optional<T> WholeIn(const Json& object, const char* key) {
  const auto number = NumberIn(object, key);
  constexpr auto kMost = static_cast<double>(std::numeric_limits<T>::max());
  if (!number || !(*number >= 0 && *number < kMost)) return std::nullopt;
  return static_cast<T>(*number);
}

Where ReadWhere(const Json& json) {
  Where where;
  where.layer = WholeIn<uint32_t>(json, "layer");
  where.kind = TextAt(json, "kind");
  where.head = WholeIn<uint32_t>(json, "head");
  where.token_begin = WholeIn<uint64_t>(json, "token_begin");
  where.token_end = WholeIn<uint64_t>(json, "token_end");
  where.dim = WholeIn<uint32_t>(json, "dim");
  where.log = TextAt(json, "log");
  return where;
}

// Returns a number, or a flag as 1 or 0.
std::optional<double> FigureIn(const Json& entry, const char* key) {
  if (const auto flag = FlagIn(entry, key)) return *flag ? 1 : 0;
  return NumberIn(entry, key);
}

RuleOutcome ReadOutcome(const Json& entry) {
  RuleOutcome outcome;
  Rule& rule = outcome.rule;
  rule.metric = TextAt(entry, "metric");
  rule.word = TextAt(entry, "word");
  rule.op = ParseOp(TextAt(entry, "op")).value_or(Op::kEqual);
  rule.limit = FigureIn(entry, "limit").value_or(std::numeric_limits<double>::quiet_NaN());
  rule.is_flag = FlagIn(entry, "limit") || FlagIn(entry, "value");
  outcome.value = FigureIn(entry, "value");
  outcome.margin = NumberIn(entry, "margin");
  outcome.baseline = NumberIn(entry, "baseline");
  outcome.status = FindStatus(TextAt(entry, "status"));
  outcome.reason = TextAt(entry, "reason");
  outcome.reproduce = TextAt(entry, "reproduce");
  outcome.engine_value = NumberIn(entry, "engine_value");
  outcome.engine_pass = FlagIn(entry, "engine_pass");
  if (const Json* where = Find(entry, "where")) outcome.where = ReadWhere(*where);
  return outcome;
}

// Lists numbers, flags and texts of an object, with dots for the objects in it.
void Flatten(const Json& object, const std::string& prefix,
             std::vector<std::pair<std::string, Json>>& figures) {
  if (!object.is_object()) return;
  for (const auto& item : object.items()) {
    if (item.value().is_object()) {
      Flatten(item.value(), prefix + item.key() + ".", figures);
    } else if (item.value().is_primitive() && !item.value().is_null()) {
      figures.emplace_back(prefix + item.key(), item.value());
    }
  }
}

void ReadSeries(const Json& object, CaseView& c) {
  ForEachIn(object, "layers", [&](const Json& entry) {
    LayerFigures layer;
    layer.layer =
        WholeIn<uint32_t>(entry, "layer").value_or(static_cast<uint32_t>(c.layers.size()));
    layer.k_ratio = NumberIn(entry, "k_ratio");
    layer.v_ratio = NumberIn(entry, "v_ratio");
    layer.ratio = NumberIn(entry, "ratio");
    layer.attention_error = NumberIn(entry, "attention_error");
    c.layers.push_back(layer);
  });
  ForEachIn(object, "resident_over_time", [&](const Json& entry) {
    const auto token = WholeIn<uint64_t>(entry, "token"), bytes = WholeIn<uint64_t>(entry, "bytes");
    if (token && bytes) c.resident.push_back({*token, *bytes});
  });
}

void AddTexts(const Json& object, const char* key, std::vector<std::string>& texts) {
  const Json* list = Find(object, key);
  if (list == nullptr || !list->is_array()) return;
  for (const Json& text : *list) {
    if (text.is_string()) texts.push_back(text.get<std::string>());
  }
}

CaseView ReadCaseView(const Json& entry) {
  CaseView c;
  c.name = TextAt(entry, "name", "unnamed");
  c.suite = TextAt(entry, "suite");
  c.mode = TextAt(entry, "mode");
  c.origin = TextAt(entry, "origin");
  c.reason = TextAt(entry, "reason");
  c.status = FindStatus(TextAt(entry, "status"));
  ForEachIn(entry, "rules", [&](const Json& rule) { c.rules.push_back(ReadOutcome(rule)); });
  for (const RuleOutcome& rule : c.rules) {
    if (rule.status == Status::kFail) c.status = Status::kFail;
  }
  if (const Json* engine = Find(entry, "engine")) Flatten(*engine, "", c.engine);
  if (const Json* truth = Find(entry, "true_figures")) {
    Flatten(*truth, "", c.truth);
    ReadSeries(*truth, c);
  }
  ReadSeries(entry, c);
  ForEachIn(entry, "rows", [&](const Json& row) { c.rows.push_back(row); });
  std::vector<std::pair<std::string, Json>> missing;
  if (const Json* reasons = Find(entry, "not_measured")) Flatten(*reasons, "", missing);
  for (const auto& [name, reason] : missing) {
    if (reason.is_string()) c.missing.emplace_back(name, reason.get<std::string>());
  }
  AddTexts(entry, "warnings", c.notes);
  AddTexts(entry, "notes", c.notes);
  return c;
}

std::string TimeText(double us) {
  if (std::abs(us) < 1000) return report::ShortNumber(us) + " µs";
  if (std::abs(us) < 1e6) return report::ShortNumber(us / 1000) + " ms";
  return report::ShortNumber(us / 1e6) + " s";
}

bool Has(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

using report::JunitSuite;
using report::JunitTest;

JunitTest::Outcome ReadOutcome(Status status) {
  if (status == Status::kPass) return JunitTest::Outcome::kPassed;
  return status == Status::kFail ? JunitTest::Outcome::kFailed : JunitTest::Outcome::kSkipped;
}

std::string LimitText(const Rule& rule) {
  if (std::isnan(rule.limit)) return {};
  if (rule.is_flag) return fmt::format(" {} {}", Name(rule.op), rule.limit != 0);
  return fmt::format(" {} {:.6g}", Name(rule.op), rule.limit);
}

JunitTest MakeTest(const RuleOutcome& rule) {
  JunitTest test;
  test.name = rule.rule.shown() + LimitText(rule.rule);
  test.outcome = ReadOutcome(rule.status);
  test.message = Sentence(rule);
  if (!rule.reason.empty() && rule.reason != test.message) test.message += ": " + rule.reason;
  if (rule.status != Status::kFail) return test;
  const bool is_number = !rule.rule.is_flag;
  if (rule.value && is_number) test.details += fmt::format("value: {:.9g}\n", *rule.value);
  if (!std::isnan(rule.rule.limit) && is_number) {
    test.details += fmt::format("limit: {} {:.9g}\n", Name(rule.rule.op), rule.rule.limit);
  }
  if (rule.baseline) test.details += fmt::format("baseline: {:.9g}\n", *rule.baseline);
  if (rule.where.known()) test.details += "where: " + Text(rule.where, true) + "\n";
  if (rule.engine_value) {
    test.details += fmt::format("the engine says: {:.9g}\n", *rule.engine_value);
  }
  if (!rule.reproduce.empty()) test.details += "reproduce: " + rule.reproduce + "\n";
  return test;
}

}  // namespace

std::string FigureText(std::string_view name, double value) {
  if (Has(name, "bytes")) return report::ShortBytes(value);
  if (name.ends_with("_us")) return TimeText(value);
  const bool share = Has(name, "drop") || Has(name, "error") || Has(name, "headroom_ratio") ||
                     Has(name, "fraction") || Has(name, "noise") || Has(name, "deviation") ||
                     Has(name, "same_top") || Has(name, "rms_dp");
  if (share) return report::ShortNumber(100 * value) + "%";
  const bool ratio =
      Has(name, "ratio") || Has(name, "lossy") || (Has(name, "lossless") && !Has(name, "lines"));
  return report::ShortNumber(value) + (ratio ? "x" : "");
}

std::string Sentence(const RuleOutcome& outcome) {
  const Rule& rule = outcome.rule;
  const auto text = [&](double value) {
    if (rule.is_flag) return std::string(value != 0 ? "yes" : "no");
    return FigureText(rule.metric, value);
  };
  const bool has_limit = !std::isnan(rule.limit);
  const bool has_number = outcome.value || (has_limit && !rule.is_flag);
  if (!has_number && !outcome.reason.empty()) return outcome.reason;
  const std::string is = outcome.value ? text(*outcome.value) : "not measured";
  if (!has_limit) return is;
  if (rule.is_flag) return fmt::format("{}, needs {}", is, text(rule.limit));
  return fmt::format("{}, needs {} {}", is, Name(rule.op), text(rule.limit));
}

std::optional<double> Gauge(const RuleOutcome& outcome) {
  const Rule& rule = outcome.rule;
  if (!outcome.value || rule.is_flag || !(rule.limit > 0) || *outcome.value < 0) {
    return std::nullopt;
  }
  return *outcome.value / rule.limit;
}

const RuleOutcome* CaseView::Deciding() const {
  const auto failed = std::find_if(rules.begin(), rules.end(), [](const RuleOutcome& rule) {
    return rule.status == Status::kFail;
  });
  if (failed != rules.end()) return &*failed;
  const RuleOutcome* tightest = nullptr;
  for (const RuleOutcome& rule : rules) {
    if (rule.status != status) continue;
    if (tightest == nullptr || rule.slack() < tightest->slack()) tightest = &rule;
  }
  return tightest;
}

std::optional<double> CaseView::Figure(std::string_view name) const {
  for (const auto* figures : {&truth, &engine}) {
    for (const auto& [key, value] : *figures) {
      if (key == name && value.is_number()) return value.get<double>();
    }
  }
  return std::nullopt;
}

size_t SummaryView::Count(Status status) const {
  return static_cast<size_t>(std::count_if(cases.begin(), cases.end(),
                                           [&](const CaseView& c) { return c.status == status; }));
}

Summary ParseSummary(std::string_view text, std::string_view file) {
  Summary summary{std::string(file), ParseJson(text, file)};
  const Json& document = summary.document;
  const Json *cases = Find(document, "cases"), *rows = Find(document, "rows");
  const bool has_cases = cases != nullptr && cases->is_array();
  if (!has_cases && (rows == nullptr || !rows->is_array())) {
    throw Error(Finding::kBadField,
                "expected the summary of a gate, found no list of cases or rows")
        .File(file)
        .Hint("'kvtool gate' and the engine's suite write one as summary.json");
  }
  const Json& entries = has_cases ? *cases : *rows;
  if (entries.size() > kMaxCases) {
    throw Error(Finding::kLimit, "{} cases; at most {} are shown", entries.size(), kMaxCases)
        .File(file);
  }
  for (const Json& entry : entries) {
    for (const char* key : {"rules", "rows", "layers", "resident_over_time", "notes", "warnings"}) {
      const Json* list = Find(entry, key);
      if (list == nullptr || list->size() <= kMaxEntries) continue;
      throw Error(Finding::kLimit, "{} entries in '{}'; at most {} are shown", list->size(), key,
                  kMaxEntries)
          .File(file);
    }
  }
  return summary;
}

SummaryView MakeView(const Summary& summary, const Engine& engine) {
  const Json& document = summary.document;
  SummaryView view;
  view.file = summary.file;
  view.generated_at = TextAt(document, "generated_at");
  view.commit = TextAt(document, "commit");
  view.reason = TextAt(document, "reason");
  if (const Json* tool = Find(document, "tool")) {
    const std::string name = TextAt(*tool, "name", "kvtool"), version = TextAt(*tool, "version");
    view.tool = version.empty() ? name : name + " " + version;
  }
  if (const Json* baseline = Find(document, "baseline")) {
    view.baseline_file = TextAt(*baseline, "file");
  }
  for (const char* key : {"baseline", "pinned"}) {
    const Json* older = Find(document, key);
    if (older == nullptr) continue;
    std::vector<std::string> names;
    AddTexts(*older, "missing_cases", names);
    for (std::string& name : names) {
      if (std::count(view.absent.begin(), view.absent.end(), name) != 0) continue;
      view.absent.push_back(std::move(name));
    }
  }
  if (const Json* noise = Find(document, "baseline_noise"))
    view.noise = NumberIn(*noise, "relative");
  AddTexts(document, "warnings", view.notes);
  if (const Json* logs = Find(document, "engine_logs")) {
    std::vector<std::string> absent;
    AddTexts(*logs, "notes", view.notes);
    AddTexts(*logs, "absent_cases", absent);
    for (const std::string& name : absent) view.notes.push_back("The logs have no case " + name);
  }
  const Json* cases = Find(document, "cases");
  view.is_original = cases == nullptr || !cases->is_array();
  if (view.is_original) {
    ForEachIn(document, "rows",
              [&](const Json& row) { view.cases.push_back(engine.report.read_row(row)); });
  } else {
    ForEachIn(document, "cases", [&](const Json& c) { view.cases.push_back(ReadCaseView(c)); });
  }
  const std::string verdict = TextAt(document, "verdict");
  view.pass = (verdict.empty() ? TruthAt(document, "overall_pass") : verdict == "pass") &&
              view.Count(Status::kFail) == 0;
  return view;
}

std::string SummaryJunit(const Summary& summary, const Engine& engine) {
  const SummaryView view = MakeView(summary, engine);
  std::vector<JunitSuite> suites;
  for (const CaseView& c : view.cases) {
    JunitSuite suite{c.name};
    bool shown = false;
    for (const RuleOutcome& rule : c.rules) {
      suite.tests.push_back(MakeTest(rule));
      shown |= rule.status == c.status;
    }
    // A case without rules, or one that failed on its own, has a failure that no rule explains.
    if (!shown) {
      suite.tests.push_back({std::string("case"), ReadOutcome(c.status), c.reason, c.reason});
      if (c.status == Status::kPass) suite.tests.back().details.clear();
    }
    suites.push_back(std::move(suite));
  }
  if (!view.pass && view.Count(Status::kFail) == 0) {
    const std::string reason = view.reason.empty() ? "no case passed" : view.reason;
    suites.push_back({"gate", {{"verdict", JunitTest::Outcome::kFailed, reason, reason}}});
  }
  return report::JunitXml("kvtool gate", suites);
}

}  // namespace kv::gate
