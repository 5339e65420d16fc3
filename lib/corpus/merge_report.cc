// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/corpus/merge.h"
#include "lib/report/junit.h"

namespace kv::corpus {
namespace {

// Returns the index, among sorted values, of the quantile `share`: always a value, never between
// two.
uint64_t PlaceOfShare(double share, uint64_t count) {
  const auto rank = static_cast<uint64_t>(std::ceil(share * static_cast<double>(count)));
  return std::max<uint64_t>(rank, 1) - 1;
}

// Computes a spread from values in ascending order, which are passed twice: first to count and sum,
// then to pick quantiles.
class SpreadBuilder {
 public:
  void Count(const FigureValue& value) {
    if (spread_.count++ == 0) spread_.min = value.value;
    spread_.max = value.value;
    sum_ += value.value;
    original_ += value.original;
    left_ += value.left;
  }

  void Choose(const FigureValue& value) {
    if (at_ == 0) spread_.mean = sum_ / static_cast<double>(spread_.count);
    const double from_mean = value.value - spread_.mean;
    squares_ += from_mean * from_mean;
    for (const auto& [share, chosen] :
         {std::pair{0.05, &spread_.p5}, {0.5, &spread_.median}, {0.95, &spread_.p95}}) {
      if (PlaceOfShare(share, spread_.count) == at_) *chosen = value.value;
    }
    ++at_;
  }

  Spread Finish(const FigureKey& key) {
    spread_.key = key;
    const auto count = static_cast<double>(spread_.count);
    spread_.deviation = spread_.count < 2 ? 0 : std::sqrt(squares_ / (count - 1));
    if (left_ > 0) spread_.weighted = static_cast<double>(original_) / static_cast<double>(left_);
    return spread_;
  }

 private:
  Spread spread_;
  double sum_ = 0, squares_ = 0;
  uint64_t at_ = 0, original_ = 0, left_ = 0;
};

// Keeps the few values that lie farthest outside the middle half, by at least 1.5 times its width.
class OutlierList {
 public:
  OutlierList(const Merged& merged, const FigureExtent& figure) {
    constexpr uint64_t kFewest = 8;
    if (figure.count < kFewest) return;
    low_ = merged.ValueAt(figure, PlaceOfShare(0.25, figure.count));
    high_ = merged.ValueAt(figure, PlaceOfShare(0.75, figure.count));
    looks_ = true;
  }

  void Look(const FigureValue& value) {
    constexpr size_t kMost = 5;
    if (!looks_ || Distance(value) <= 1.5 * (high_ - low_)) return;
    const auto place = std::upper_bound(far_.begin(), far_.end(), value,
                                        [&](const FigureValue& a, const FigureValue& b) {
                                          if (Distance(a) != Distance(b))
                                            return Distance(a) > Distance(b);
                                          return a.input < b.input;
                                        });
    far_.insert(place, value);
    if (far_.size() > kMost) far_.pop_back();
  }

  std::vector<FigureValue>& far() { return far_; }

 private:
  double Distance(const FigureValue& value) const {
    return std::max(low_ - value.value, value.value - high_);
  }

  double low_ = 0, high_ = 0;
  bool looks_ = false;
  std::vector<FigureValue> far_;
};

// Quotes a word of a command for a shell.
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

// Returns the command that reproduces one input as in the run.
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

// Adds one figure to the report. Reads its values twice and keeps none of them.
void AddFigure(const FigureKey& key, const FigureExtent& extent, MergeReport& report) {
  const Merged& merged = *report.merged;
  SpreadBuilder all;
  std::map<uint32_t, SpreadBuilder> groups;
  OutlierList outliers(merged, extent);
  merged.ForEachValue(extent, [&](const FigureValue& value) {
    all.Count(value);
    groups[value.group].Count(value);
  });
  merged.ForEachValue(extent, [&](const FigureValue& value) {
    all.Choose(value);
    groups[value.group].Choose(value);
    outliers.Look(value);
  });
  report.figures.push_back(all.Finish(key));
  if (key.layer) return;
  for (auto& [group, builder] : groups) {
    report.groups[group].figures.push_back(builder.Finish(key));
  }
  const double median = report.figures.back().median;
  for (const FigureValue& value : outliers.far()) {
    const std::string name = merged.Input(value.input).name;
    report.outliers.push_back({key, name, value.value, median, CommandFor(merged, name)});
  }
}

// Returns in one line why an input failed; empty for a verdict without text.
std::string FailureText(const MergedInput& input) {
  if (!input.text.empty()) return input.text;
  std::string text;
  for (const CaseVerdict& one : input.cases) {
    if (one.status == "fail") text += (text.empty() ? "" : "; ") + one.name + ": " + one.text;
  }
  return text.empty() ? input.reason : text;
}

// Returns "pass", "fail" or "inconclusive" over all verdicts; nullopt if there are none.
std::optional<std::string> CombineVerdicts(const Merged& merged) {
  if (merged.verdicts.empty()) return std::nullopt;
  if (merged.done != merged.entries) return "fail";
  return merged.verdicts.count("inconclusive") != 0 ? "inconclusive" : "pass";
}

// A word and its number of occurrences.
using Count = std::pair<std::string, uint64_t>;
Fields<Count> CountFields(std::string_view name, std::string_view text) {
  return {{name, text, &Count::first}, {"entries", "Number of inputs", &Count::second}};
}

std::vector<Count> ListCounts(const std::map<std::string, uint64_t>& counts) {
  return {counts.begin(), counts.end()};
}

std::string FailingText(const Value& value) {
  std::string text;
  for (const Value& rule : *value.get_if<Value::List>()) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", format::Plain(*rule.Find("rule")),
                        format::Plain(*rule.Find("entries")));
  }
  return text;
}

const Fields<MergedCase>& CaseFields() {
  static const Fields<Count> rules = CountFields("rule", "Metric, comparison and limit");
  const auto count = [](const char* status) {
    return [=](const MergedCase& of) {
      const auto found = of.statuses.find(status);
      return found == of.statuses.end() ? uint64_t{0} : found->second;
    };
  };
  static const Fields<MergedCase> fields = {
      {"name", "Name of the case", &MergedCase::name, Heading("case")},
      {"pass", "Number of inputs that passed", count("pass"), Heading("passed")},
      {"fail", "Number of inputs that failed", count("fail"), Heading("failed")},
      {"not_run", "Number of inputs without a decision", count("not_run"), Heading("not run")},
      {"inconclusive", "Number of inputs whose difference is within the noise",
       count("inconclusive"), Heading("inconclusive")},
      {"failing", "Rules that failed, and how often",
       [](const MergedCase& of) { return ListCounts(of.failing); }, rules,
       Heading("failing rules", FailingText)}};
  return fields;
}

const Fields<GroupReport>& GroupFields() {
  static const Fields<GroupReport> fields = {
      {"model", "Model; null: not known",
       [](const GroupReport& of) { return IfAny(of.group.model); }},
      {"format", "Format; null: not known",
       [](const GroupReport& of) { return IfAny(of.group.format); }},
      {"entries", "Number of inputs", [](const GroupReport& of) { return of.group.entries; }},
      {"figures", "Figures of whole caches", &GroupReport::figures, SpreadFields()}};
  return fields;
}

const Fields<Outlier>& OutlierFields() {
  static const Fields<Outlier> fields = {
      {"figure", "Name of the figure", [](const Outlier& of) { return of.key.figure; }},
      {"what", "Case or setting of the figure", [](const Outlier& of) { return of.key.what; }},
      {"part", "Part of the cache", [](const Outlier& of) { return of.key.part; }},
      {"name", "Name of the input in the corpus", &Outlier::name},
      {"value", "Value of the input", &Outlier::value},
      {"median", "Median of all inputs", &Outlier::median},
      {"command", "Command that shows the input, run in the corpus folder", &Outlier::command}};
  return fields;
}

const Fields<MergeFailure>& FailureTable() {
  static const Fields<MergeFailure> fields = {
      {"name", "Name of the input in the corpus", &MergeFailure::name},
      {"exit_code", "Exit status of the input", &MergeFailure::exit_code},
      {"finding", "Number of the first failure; null: a verdict",
       [](const MergeFailure& of) { return IfAny(of.finding); }},
      {"text", "Message of the first failure; null: a verdict",
       [](const MergeFailure& of) { return IfAny(of.text); }},
      {"command", "Command that shows the input, run in the corpus folder",
       &MergeFailure::command}};
  return fields;
}

// Draws one curve for each part or choice of a figure: the share of inputs below each value.
void AddDistributions(const Merged& merged, report::Page& page) {
  constexpr size_t kMostSeries = 8;
  std::map<std::string, report::LineChart> charts;
  for (const auto& [key, extent] : merged.figures) {
    if (key.layer || extent.count < 2) continue;
    report::LineChart& chart = charts[key.figure];
    if (chart.series.size() == kMostSeries) continue;
    chart.title = "Distribution of " + key.figure;
    chart.x_label = "share of inputs";
    chart.y_label = key.figure;
    report::ChartSeries series;
    series.name = key.what + (key.part == "all" ? "" : " " + key.part);
    // A curve needs no more points than this, whatever the size of the corpus.
    const uint64_t points = std::min<uint64_t>(extent.count, 200);
    for (uint64_t i = 0; i < points; ++i) {
      const uint64_t at = i * (extent.count - 1) / (points - 1);
      series.points.push_back({static_cast<double>(at + 1) / static_cast<double>(extent.count),
                               merged.ValueAt(extent, at)});
    }
    chart.series.push_back(std::move(series));
  }
  for (const auto& [figure, chart] : charts) {
    page.Figure(Render(chart), "Inputs sorted by their value, from the least to the largest.");
  }
}

void AddLayers(std::span<const Spread> figures, report::Page& page) {
  std::map<std::string, report::LineChart> charts;
  for (const Spread& figure : figures) {
    const FigureKey& key = figure.key;
    if (!key.layer) continue;
    report::LineChart& chart = charts[key.figure + " " + key.what];
    chart.title = fmt::format("By layer: {}, {}", key.figure, key.what);
    chart.x_label = "layer";
    chart.y_label = key.figure;
    chart.whole_x = true;
    if (chart.series.empty() || chart.series.back().name != key.part) {
      chart.series.emplace_back();
      chart.series.back().name = key.part;
      chart.series.back().joined = false;
    }
    chart.series.back().points.push_back(
        {static_cast<double>(*key.layer), figure.weighted.value_or(figure.median)});
  }
  for (const auto& [name, chart] : charts) {
    page.Figure(Render(chart), "All inputs together.");
  }
}

void AddTable(const TextTable& table, report::Page& page) {
  std::vector<std::vector<std::string>> rows = {table.head};
  rows.insert(rows.end(), table.rows.begin(), table.rows.end());
  page.Table(rows);
}

void AddGroups(std::span<const GroupReport> groups, report::Page& page) {
  if (groups.size() < 2) return;
  page.Heading("By model");
  const auto known = [](const std::string& text) { return text.empty() ? "unknown" : text; };
  TextTable all = {{"model", "format"}, {}};
  for (const std::string& name : TextHead(SpreadFields())) all.head.push_back(name);
  for (const GroupReport& one : groups) {
    for (const Spread& figure : one.figures) {
      std::vector<std::string> row = {known(one.group.model), known(one.group.format)};
      for (std::string& cell : TextRow(SpreadFields(), figure)) row.push_back(std::move(cell));
      all.rows.push_back(std::move(row));
    }
  }
  AddTable(all, page);
}

using report::JunitSuite;
using report::JunitTest;

JunitTest CaseTest(const CaseVerdict& one, const std::string& command) {
  JunitTest test{one.name};
  if (one.status == "pass") return test;
  test.outcome = one.status == "fail" ? JunitTest::Outcome::kFailed : JunitTest::Outcome::kSkipped;
  test.message = one.text;
  if (one.status == "fail") {
    test.details = one.text + "\nreproduce: " + command + " --case " + one.name + "\n";
  }
  return test;
}

JunitSuite MakeSuite(const Merged& merged, const MergedInput& input) {
  JunitSuite suite{input.name};
  const std::string command = CommandFor(merged, input.name);
  for (const CaseVerdict& one : input.cases) suite.tests.push_back(CaseTest(one, command));
  const bool is_told = std::any_of(suite.tests.begin(), suite.tests.end(), [](const auto& test) {
    return test.outcome == JunitTest::Outcome::kFailed;
  });
  if (!input.cases.empty() && (input.exit_code == 0 || is_told)) return suite;
  // A test for a failure that no case explains.
  JunitTest test{merged.head.command};
  if (input.exit_code != 0) {
    test.outcome = JunitTest::Outcome::kFailed;
    test.message = !input.text.empty()     ? input.text
                   : !input.reason.empty() ? input.reason
                                           : "verdict: " + input.verdict;
    test.details = test.message + "\nreproduce: " + command + "\n";
  }
  suite.tests.push_back(std::move(test));
  return suite;
}

}  // namespace

const Fields<Spread>& SpreadFields() {
  const auto key = [](auto member) { return [=](const Spread& of) { return of.key.*member; }; };
  const auto shown = [](std::string_view column) {
    return FieldOptions{.column = column, .format = format::AsReal};
  };
  static const Fields<Spread> fields = {
      {"what", "Level, policy and budget, or types that the figure belongs to",
       key(&FigureKey::what), Heading("what")},
      {"figure", "Measured figure: ratio, output_error, predicted_kl_nats ...",
       key(&FigureKey::figure), Heading("figure")},
      {"part", "Part of the cache: all, k, v or other", key(&FigureKey::part), Heading("part")},
      {"layer", "Number of the layer; null: the whole cache", key(&FigureKey::layer)},
      {"count", "Number of inputs that have the figure", &Spread::count, Heading("inputs")},
      {"weighted", "For a ratio: sum of original bytes / sum of remaining bytes; null: not a ratio",
       &Spread::weighted, shown("all together")},
      {"mean", "Mean over inputs, each with the same weight", &Spread::mean, shown("mean")},
      {"deviation", "Standard deviation over inputs", &Spread::deviation, shown("deviation")},
      {"min", "Least value", &Spread::min, shown("min")},
      {"p5", "5th percentile, by nearest rank", &Spread::p5, shown("p5")},
      {"median", "Median, by nearest rank", &Spread::median, shown("median")},
      {"p95", "95th percentile, by nearest rank", &Spread::p95, shown("p95")},
      {"max", "Largest value", &Spread::max, shown("max")}};
  return fields;
}

MergeReport MakeMergeReport(const Merged& merged) {
  MergeReport report;
  report.merged = &merged;
  report.verdict = CombineVerdicts(merged);
  merged.ForEachInput([&](const MergedInput& input) {
    if (input.exit_code == 0) return;
    report.failures.push_back({input.name, input.exit_code, input.finding, FailureText(input),
                               CommandFor(merged, input.name)});
  });
  for (const MergedGroup& group : merged.groups) report.groups.push_back({group, {}});
  for (const auto& [key, extent] : merged.figures) AddFigure(key, extent, report);
  std::sort(
      report.groups.begin(), report.groups.end(), [](const GroupReport& a, const GroupReport& b) {
        return std::tie(a.group.model, a.group.format) < std::tie(b.group.model, b.group.format);
      });
  return report;
}

const Fields<MergeReport>& MergeReportFields() {
  using Report = MergeReport;
  const auto head = [](auto member) {
    return [=](const Report& of) { return of.merged->head.*member; };
  };
  const auto of = [](auto member) { return [=](const Report& of) { return of.merged->*member; }; };
  static const Fields<Count> verdicts = CountFields("verdict", "The word");
  static const Fields<Report> fields = {
      {"command", "Command that made the results", head(&ResultsHead::command)},
      {"parameters", "Options of the command", head(&ResultsHead::parameters)},
      {"parameters_xxh3", "Hash of the parameters, and of the content of files that they name",
       head(&ResultsHead::parameters_xxh3)},
      {"version", "Version of the tool that made the results", head(&ResultsHead::version)},
      {"entries", "Number of inputs", of(&Merged::entries)},
      {"done", "Number of inputs with exit status 0", of(&Merged::done)},
      {"negative", "Number of inputs with exit status 1, a negative verdict",
       of(&Merged::negative)},
      {"failed", "Number of inputs with a higher exit status", of(&Merged::failed)},
      {"verdict", "Verdict over all inputs: fail if any input is not done; null: no verdict",
       &Report::verdict, OneOf("pass", "fail", "inconclusive")},
      {"verdicts", "Number of inputs with each verdict",
       [](const Report& of) { return ListCounts(of.merged->verdicts); }, verdicts},
      {"cases", "Cases of a gate; empty for other commands", of(&Merged::cases), CaseFields()},
      {"figures", "Distribution of each figure over the inputs", &Report::figures, SpreadFields(),
       CsvRows()},
      {"groups", "Distribution of each figure, by model", &Report::groups, GroupFields()},
      {"outliers", "Values far from the others", &Report::outliers, OutlierFields()},
      {"failures", "Inputs that are not done", &Report::failures, FailureTable()}};
  return fields;
}

TextTable Without(std::string_view column, TextTable table) {
  const auto at = std::find(table.head.begin(), table.head.end(), column) - table.head.begin();
  table.head.erase(table.head.begin() + at);
  for (auto& row : table.rows) row.erase(row.begin() + at);
  return table;
}

TextTable CaseTable(const MergeReport& report) {
  TextTable table = {TextHead(CaseFields()), {}};
  for (const MergedCase& one : report.merged->cases) {
    table.rows.push_back(TextRow(CaseFields(), one));
  }
  return table;
}

TextTable FigureTable(std::span<const Spread> figures) {
  TextTable table = {TextHead(SpreadFields()), {}};
  for (const Spread& figure : figures) {
    if (!figure.key.layer) table.rows.push_back(TextRow(SpreadFields(), figure));
  }
  return table;
}

report::Page MergedPage(const MergeReport& report) {
  const Merged& merged = *report.merged;
  report::Page page(
      fmt::format("A corpus of {} caches", merged.entries),
      fmt::format("kvtool {}, corpus {}", merged.head.command, merged.head.corpus_xxh3));
  if (report.verdict) {
    page.Verdict(*report.verdict == "pass" ? report::Tone::kGood : report::Tone::kBad,
                 *report.verdict, fmt::format("{} of {} inputs", merged.done, merged.entries));
  }
  page.Facts({{"inputs", std::to_string(merged.entries)},
              {"done", std::to_string(merged.done)},
              {"negative verdicts", std::to_string(merged.negative)},
              {"failed", std::to_string(merged.failed)}});
  if (!merged.cases.empty()) {
    page.Heading("The gate's cases");
    AddTable(CaseTable(report), page);
  }
  AddDistributions(merged, page);
  AddLayers(report.figures, page);
  const TextTable figures = FigureTable(report.figures);
  if (!figures.rows.empty()) AddTable(figures, page);
  AddGroups(report.groups, page);
  if (!report.outliers.empty()) page.Heading("Far from the others");
  for (const Outlier& outlier : report.outliers) {
    page.Paragraph(fmt::format("{}: {} of {} {}: {}, the median is {}", outlier.name,
                               outlier.key.figure, outlier.key.what, outlier.key.part,
                               format::Real(outlier.value), format::Real(outlier.median)));
    page.Command(outlier.command);
  }
  if (!report.failures.empty()) {
    page.Heading("What failed");
    std::vector<std::vector<std::string>> rows = {{"input", "status", "why", "command"}};
    for (const MergeFailure& failure : report.failures) {
      rows.push_back({failure.name, std::to_string(failure.exit_code),
                      failure.text.empty() ? "a negative verdict" : failure.text, failure.command});
    }
    page.Table(rows);
  }
  return page;
}

void WriteMergedJunit(const Merged& merged, const std::function<void(std::string_view)>& write) {
  report::JunitCounts counts;
  merged.ForEachInput([&](const MergedInput& input) { counts.Add(MakeSuite(merged, input)); });
  write(report::JunitBegin("kvtool merge", counts));
  merged.ForEachInput(
      [&](const MergedInput& input) { write(report::JunitSuiteText(MakeSuite(merged, input))); });
  write(report::JunitEnd());
}

}  // namespace kv::corpus
