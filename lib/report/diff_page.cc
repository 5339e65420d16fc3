// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "lib/report/diff_report.h"

namespace kv {
namespace {

using report::ChartSeries;
using report::LineChart;
using report::StripMap;
using report::StripRow;

double ShareOf(uint64_t part, uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

std::string PercentText(double share) { return fmt::format("{:.3g}%", 100 * share); }

// One difference is as easy to see as many are: the root of the share, and never quite pale.
double StrengthOf(double share) { return share == 0 ? 0 : 0.3 + 0.7 * std::sqrt(share); }

// "3.12% of the values differ, at most 0.5 apart"
std::string BinText(const TensorDiff& bin, bool by_value) {
  if (bin.different == 0) return "equal";
  const bool counts = bin.beyond > 0;
  std::string text = fmt::format(
      "{} of the values {}", PercentText(ShareOf(counts ? bin.beyond : bin.different, bin.values)),
      !counts    ? "differ within the tolerance"
      : by_value ? "are beyond the tolerance"
                 : "differ");
  if (bin.max_abs > 0) text += fmt::format(", at most {:.3g} apart", bin.max_abs);
  if (bin.not_finite > 0) text += fmt::format(", {} by NaN or infinity", bin.not_finite);
  return text;
}

// Where the bins of one layer differ. Equal neighbours share a span.
StripRow MapRow(uint32_t number, const std::vector<TensorDiff>& bins, const SnapshotDiff& diff,
                bool with_tips) {
  StripRow row{fmt::format("L{}", number), {}};
  const auto end = static_cast<double>(diff.tokens);
  if (bins.empty()) {
    row.spans.push_back({0, end, 0, 0, with_tips ? fmt::format("layer {}: equal", number) : ""});
    return row;
  }
  for (size_t i = 0; i < bins.size(); ++i) {
    const TensorDiff& bin = bins[i];
    const bool counts = bin.beyond > 0;
    const double share = ShareOf(counts ? bin.beyond : bin.different, bin.values);
    const auto begin = static_cast<double>(i * diff.bin_tokens);
    const double next = std::min(end, begin + static_cast<double>(diff.bin_tokens));
    std::string tip;
    if (with_tips) {
      tip = fmt::format("layer {}, token{}: ", number,
                        next - begin > 1 ? fmt::format("s {} to {}", begin, next - 1)
                                         : fmt::format(" {}", begin)) +
            BinText(bin, diff.by_value);
    }
    row.spans.push_back({begin, next, StrengthOf(share), counts ? 1 : 0, std::move(tip)});
  }
  return row;
}

void AddMap(const SnapshotDiff& diff, bool is_value, report::Page& page) {
  StripMap map;
  const char* name = is_value ? "V" : "K";
  map.title = fmt::format("Where {} differs by layer and token", name);
  map.x_label = diff.bin_tokens > 1 ? fmt::format("token, {} to a column", diff.bin_tokens)
                                    : std::string("token");
  map.x_end = static_cast<double>(diff.tokens);
  map.high_label = diff.by_value ? "within the tolerance" : "";
  map.second_label = diff.by_value ? "beyond it" : "different";
  const uint64_t columns = diff.tokens / std::max<uint64_t>(1, diff.bin_tokens) + 1;
  const bool with_tips = report::HasRoomForTips(columns, diff.layers.size());
  for (const LayerDiff& layer : diff.layers) {
    if (!(is_value ? layer.v : layer.k)) continue;
    map.rows.push_back(
        MapRow(layer.layer, is_value ? layer.v_bins : layer.k_bins, diff, with_tips));
  }
  if (map.rows.empty()) return;
  page.Figure(Render(map), fmt::format("{}, layers down, tokens across. The stronger the colour, "
                                       "the more of the values differ; pale: equal.",
                                       name));
}

LineChart DiffByLayer(const SnapshotDiff& diff, std::string title, std::string y_label,
                      const std::function<double(const TensorDiff&)>& figure) {
  LineChart chart;
  chart.title = std::move(title);
  chart.x_label = "layer";
  chart.y_label = std::move(y_label);
  chart.whole_x = true;
  chart.y_min = 0;
  ChartSeries k{"K", {}, false, false, false}, v{"V", {}, false, false, false};
  for (const LayerDiff& layer : diff.layers) {
    const auto x = static_cast<double>(layer.layer);
    if (layer.k) k.points.push_back({x, figure(*layer.k)});
    if (layer.v) v.points.push_back({x, figure(*layer.v)});
  }
  chart.series = {k, v};
  return chart;
}

std::string Distance(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.3g}", value);
}

std::vector<std::vector<std::string>> DiffRows(const SnapshotDiff& diff) {
  std::vector<std::vector<std::string>> rows = {{"layer", "part", "values", "differ", "beyond",
                                                 "max abs", "mean abs", "max rel", "max ulp",
                                                 "first at token"}};
  for (const LayerDiff& layer : diff.layers) {
    for (const auto& [part, name] : {std::pair{&layer.k, "K"}, {&layer.v, "V"}}) {
      if (!*part || (*part)->different == 0) continue;
      const TensorDiff& of = **part;
      const std::optional<uint64_t> ulp = of.largest_ulp();
      rows.push_back({std::to_string(layer.layer), name, std::to_string(of.values),
                      std::to_string(of.different), std::to_string(of.beyond),
                      Distance(of.largest_abs()), Distance(of.mean_abs()),
                      Distance(of.largest_rel()), ulp ? std::to_string(*ulp) : "-",
                      of.first ? std::to_string(of.first->token) : "-"});
    }
  }
  return rows;
}

std::string_view WordOf(DiffVerdict verdict) {
  switch (verdict) {
    case DiffVerdict::kIdentical:
      return "Identical";
    case DiffVerdict::kEqualValues:
      return "Equal in value";
    case DiffVerdict::kWithinTolerance:
      return "Within the tolerance";
    case DiffVerdict::kDifferent:
      return "Different";
  }
  return "?";
}

}  // namespace

report::Page DiffPage(const std::string& a, const std::string& b, const SnapshotDiff& diff,
                      const std::string& footer) {
  report::Page page("Two caches compared", fmt::format("{} and {}", a, b));
  const TensorDiff total = diff.Total();
  std::string text = fmt::format("{} of {} values differ", total.different, total.values);
  if (diff.by_value) text += fmt::format(", {} beyond the tolerance", total.beyond);
  page.Verdict(diff.equal() ? report::Tone::kGood : report::Tone::kBad, WordOf(diff.verdict()),
               text + ".");
  if (diff.tokens > 0 && !diff.layers.empty()) {
    page.Heading("Where");
    AddMap(diff, false, page);
    AddMap(diff, true, page);
  }
  if (total.different > 0) {
    page.Heading("How much");
    page.Figure(Render(DiffByLayer(
                    diff, "Values that differ by layer", "% of the values",
                    [](const TensorDiff& of) { return 100 * ShareOf(of.different, of.values); })),
                "How many values differ at all.");
    page.Figure(Render(DiffByLayer(diff, "Largest difference by layer", "largest |a - b|",
                                   [](const TensorDiff& of) { return of.max_abs; })),
                "Of the finite values.");
    page.Table(DiffRows(diff));
  }
  page.Notes("Other differences", diff.structure);
  page.Notes("What does not count", diff.notes);
  page.Footer(footer);
  return page;
}

}  // namespace kv
