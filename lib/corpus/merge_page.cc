// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/corpus/merge_page.h"

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
  for (const auto& [key, extent] : merged.figures) {
    if (key.layer || extent.count < 2) continue;
    report::LineChart& chart = charts[key.figure];
    if (chart.series.size() == kMostSeries) continue;
    chart.title = "Distribution of " + key.figure;
    chart.x_label = "share of inputs";
    chart.y_label = key.figure;
    report::ChartSeries series;
    series.name = key.what + (key.part == "all" ? "" : " " + key.part);
    // A curve needs no more points than this, whatever the corpus.
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

void AddLayers(const PageJson& json, report::Page& page) {
  std::map<std::string, report::LineChart> charts;
  for (const PageJson& figure : json["figures"]) {
    if (figure["layer"].is_null()) continue;
    const std::string name = figure["figure"], what = figure["what"], part = figure["part"];
    report::LineChart& chart = charts[name + " " + what];
    chart.title = fmt::format("{} by layer, {}", name, what);
    chart.x_label = "layer";
    chart.y_label = name;
    chart.whole_x = true;
    if (chart.series.empty() || chart.series.back().name != part) {
      chart.series.emplace_back();
      chart.series.back().name = part;
      chart.series.back().joined = false;
    }
    const PageJson& value = figure[figure["weighted"].is_null() ? "median" : "weighted"];
    chart.series.back().points.push_back({figure["layer"].get<double>(), value.get<double>()});
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

// What a gate says: how often each case passed, and which rules failed.
void AddCases(const PageJson& cases, report::Page& page) {
  if (cases.empty()) return;
  page.Heading("The gate's cases");
  std::vector<std::vector<std::string>> rows = {
      {"case", "passed", "failed", "not run", "inconclusive", "failing rules"}};
  for (const PageJson& one : cases) {
    std::string failing;
    for (const PageJson& rule : one["failing"]) {
      failing += fmt::format("{}{}: {}", failing.empty() ? "" : "; ",
                             rule["rule"].get<std::string>(), rule["entries"].get<uint64_t>());
    }
    const auto count = [&](const char* key) { return std::to_string(one[key].get<uint64_t>()); };
    rows.push_back({one["name"], count("pass"), count("fail"), count("not_run"),
                    count("inconclusive"), failing});
  }
  page.Table(rows);
}

}  // namespace

report::Page MergedPage(const Merged& merged, const PageJson& json) {
  report::Page page(
      fmt::format("A corpus of {} caches", merged.entries),
      fmt::format("kvtool {}, corpus {}", merged.head.command, merged.head.corpus_xxh3));
  if (const auto verdict = VerdictOf(merged)) {
    page.Verdict(*verdict == "pass" ? report::Tone::kGood : report::Tone::kBad, *verdict,
                 fmt::format("{} of {} inputs", json["done"].get<size_t>(), merged.entries));
  }
  page.Facts({{"inputs", std::to_string(merged.entries)},
              {"done", std::to_string(json["done"].get<size_t>())},
              {"negative verdicts", std::to_string(json["negative"].get<size_t>())},
              {"failed", std::to_string(json["failed"].get<size_t>())}});
  AddCases(json["cases"], page);
  AddDistributions(merged, page);
  AddLayers(json, page);
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
  return page;
}

}  // namespace kv::corpus
