// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/corpus/merge_page.h"

#include <fmt/format.h>

#include <algorithm>

namespace kv::corpus {
namespace {

using PageJson = nlohmann::ordered_json;

std::string FigureText(const PageJson& value) {
  return value.is_number() ? fmt::format("{:.4g}", value.get<double>()) : std::string("-");
}

std::vector<std::string> FigureRow(const PageJson& figure) {
  return {figure["what"],
          figure["figure"],
          figure["part"],
          std::to_string(figure["count"].get<size_t>()),
          FigureText(figure["weighted"]),
          FigureText(figure["mean"]),
          FigureText(figure["deviation"]),
          FigureText(figure["min"]),
          FigureText(figure["p5"]),
          FigureText(figure["median"]),
          FigureText(figure["p95"]),
          FigureText(figure["max"])};
}

const std::vector<std::string> kFigureHead = {"what",         "figure", "part",      "inputs",
                                              "all together", "mean",   "deviation", "min",
                                              "p5",           "median", "p95",       "max"};

// Of one figure all its parts or choices: how many inputs have less.
void AddDistributions(const Merged& merged, report::Page& page) {
  constexpr size_t kMostSeries = 8;
  std::map<std::string, report::LineChart> charts;
  for (const auto& [key, values] : merged.figures) {
    if (key.layer || values.size() < 2) continue;
    report::LineChart& chart = charts[key.figure];
    if (chart.series.size() == kMostSeries) continue;
    chart.title = "Distribution of " + key.figure;
    chart.x_label = "share of inputs";
    chart.y_label = key.figure;
    std::vector<double> sorted;
    for (const FigureValue& value : values) sorted.push_back(value.value);
    std::sort(sorted.begin(), sorted.end());
    report::ChartSeries series;
    series.name = key.what + (key.part == "all" ? "" : " " + key.part);
    // A curve needs no more points than this, whatever the corpus.
    const size_t points = std::min<size_t>(sorted.size(), 200);
    for (size_t i = 0; i < points; ++i) {
      const size_t at = points == 1 ? 0 : i * (sorted.size() - 1) / (points - 1);
      series.points.push_back(
          {static_cast<double>(at + 1) / static_cast<double>(sorted.size()), sorted[at]});
    }
    chart.series.push_back(std::move(series));
  }
  for (const auto& [figure, chart] : charts) {
    page.Figure(Render(chart), "Inputs sorted by their value, from the least to the largest.");
  }
}

void AddLayers(const Merged& merged, report::Page& page) {
  std::map<std::string, report::LineChart> charts;
  for (const auto& [key, values] : merged.figures) {
    if (!key.layer) continue;
    report::LineChart& chart = charts[key.figure + " " + key.what];
    chart.title = fmt::format("{} by layer, {}", key.figure, key.what);
    chart.x_label = "layer";
    chart.y_label = key.figure;
    chart.whole_x = true;
    if (chart.series.empty() || chart.series.back().name != key.part) {
      chart.series.emplace_back();
      chart.series.back().name = key.part;
      chart.series.back().joined = false;
    }
    const Spread spread = SpreadOf(values);
    chart.series.back().points.push_back(
        {static_cast<double>(*key.layer), spread.weighted.value_or(spread.median)});
  }
  for (const auto& [name, chart] : charts) {
    page.Figure(Render(chart), "Of all inputs together.");
  }
}

void AddGroups(const PageJson& groups, report::Page& page) {
  if (groups.size() < 2) return;
  page.Heading("By model");
  std::vector<std::vector<std::string>> rows = {{"model", "format"}};
  rows[0].insert(rows[0].end(), kFigureHead.begin(), kFigureHead.end());
  for (const PageJson& group : groups) {
    const auto or_unknown = [](const PageJson& text) {
      return text.is_string() ? text.get<std::string>() : std::string("unknown");
    };
    for (const PageJson& figure : group["figures"]) {
      std::vector<std::string> row = {or_unknown(group["model"]), or_unknown(group["format"])};
      for (std::string& cell : FigureRow(figure)) row.push_back(std::move(cell));
      rows.push_back(std::move(row));
    }
  }
  page.Table(rows);
}

}  // namespace

report::Page MergedPage(const Merged& merged, const std::string& footer) {
  const PageJson json = MergedJson(merged);
  report::Page page(
      fmt::format("A corpus of {} caches", merged.inputs.size()),
      fmt::format("kvtool {}, corpus {}", merged.head.command, merged.head.corpus_xxh3));
  if (const auto verdict = VerdictOf(merged)) {
    page.Verdict(*verdict == "pass" ? report::Tone::kGood : report::Tone::kBad, *verdict,
                 fmt::format("{} of {} inputs", json["done"].get<size_t>(), merged.inputs.size()));
  }
  page.Facts({{"inputs", std::to_string(merged.inputs.size())},
              {"done", std::to_string(json["done"].get<size_t>())},
              {"negative verdicts", std::to_string(json["negative"].get<size_t>())},
              {"failed", std::to_string(json["failed"].get<size_t>())}});
  AddDistributions(merged, page);
  AddLayers(merged, page);
  std::vector<std::vector<std::string>> rows = {kFigureHead};
  for (const PageJson& figure : json["figures"]) {
    if (figure["layer"].is_null()) rows.push_back(FigureRow(figure));
  }
  if (rows.size() > 1) page.Table(rows);
  AddGroups(json["groups"], page);
  if (!json["outliers"].empty()) page.Heading("Far from the others");
  for (const PageJson& outlier : json["outliers"]) {
    page.Paragraph(
        fmt::format("{}: {} of {} {}: {}, the median is {}", outlier["name"].get<std::string>(),
                    outlier["figure"].get<std::string>(), outlier["what"].get<std::string>(),
                    outlier["part"].get<std::string>(), FigureText(outlier["value"]),
                    FigureText(outlier["median"])));
    page.Command(outlier["command"].get<std::string>());
  }
  if (!json["failures"].empty()) {
    page.Heading("What failed");
    std::vector<std::vector<std::string>> failures = {{"input", "status", "why", "command"}};
    for (const PageJson& failure : json["failures"]) {
      failures.push_back({failure["name"], std::to_string(failure["exit_code"].get<int>()),
                          failure["text"].is_string() ? failure["text"].get<std::string>()
                                                      : std::string("a negative verdict"),
                          failure["command"]});
    }
    page.Table(failures);
  }
  page.Footer(footer);
  return page;
}

}  // namespace kv::corpus
