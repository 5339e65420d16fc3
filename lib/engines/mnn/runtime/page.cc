// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "lib/engines/mnn/runtime/report.h"
#include "lib/report/html.h"
#include "lib/report/svg.h"

namespace kv::mnn::runtime {
namespace {

constexpr size_t kMaxPoints = 400;  // of one line: more than a screen shows

using report::ChartSeries;
using report::LineChart;
using report::ShortBytes;

std::string Times(double ratio) { return fmt::format("{:.3g}x", ratio); }
std::string ShortText(uint64_t bytes) { return ShortBytes(static_cast<double>(bytes)); }

std::string RatioText(uint64_t raw, uint64_t blob) {
  return blob == 0 ? "-" : Times(static_cast<double>(raw) / static_cast<double>(blob));
}

void AddMemory(const ReplayResult& result, report::Page& page) {
  LineChart chart;
  chart.title = "Resident bytes at each decode step";
  chart.x_label = "position";
  chart.y_label = "bytes of K and V, all layers";
  chart.bytes = true;
  chart.y_min = 0;
  ChartSeries full{"full", {}, false, true}, resident{"resident", {}, true, false};
  ChartSeries raw{"raw rows", {}, false, false}, blobs{"blobs", {}, false, false};
  ChartSeries caches{"copies", {}, false, false};
  const size_t stride = std::max<size_t>(1, result.steps.size() / kMaxPoints);
  for (size_t i = 0; i < result.steps.size(); ++i) {
    if (i % stride != 0 && i + 1 != result.steps.size()) continue;
    const Resident& step = result.steps[i];
    const auto x = static_cast<double>(step.token);
    full.points.push_back({x, static_cast<double>(step.full)});
    resident.points.push_back({x, static_cast<double>(step.total())});
    raw.points.push_back({x, static_cast<double>(step.raw)});
    blobs.points.push_back({x, static_cast<double>(step.blobs)});
    caches.points.push_back({x, static_cast<double>(step.caches + step.in_flight)});
  }
  chart.series = {resident, full, raw, blobs, caches};
  page.Heading("Memory and ratio");
  page.Figure(Render(chart),
              result.engine == Engine::kDesign
                  ? "Raw rows give way to blobs once a blob was decoded again and found equal; "
                    "copies are bounded by the cache's capacity."
                  : "The engine's buffers never shrink: blobs and decoded copies come on top of "
                    "the raw rows they stand for.");
}

// Beside the memory: figures that follow each other share a row.
void AddRatios(const ReplayResult& result, report::Page& page) {
  LineChart chart;
  chart.title = "Ratio of verified blobs by layer";
  chart.x_label = "layer";
  chart.y_label = "raw / compressed, decoded again and equal";
  chart.whole_x = true;
  for (const bool is_value : {false, true}) {
    ChartSeries series{is_value ? "V" : "K", {}, false, false, false};
    for (const LayerResult& layer : result.layers) {
      const Measured& m = layer.measured;
      if (m.verified_blob_of[is_value] == 0) continue;
      series.points.push_back({static_cast<double>(layer.layer),
                               static_cast<double>(m.verified_raw_of[is_value]) /
                                   static_cast<double>(m.verified_blob_of[is_value])});
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  if (!chart.series.empty()) {
    page.Figure(Render(chart), "Layers without a point had nothing encoded.");
  }
}

void AddLayers(const ReplayResult& result, report::Page& page) {
  page.Heading("Layers");
  std::vector<std::vector<std::string>> rows = {{"layer", "held", "cold", "encoded", "K ratio",
                                                 "V ratio", "decoded", "copied", "resident",
                                                 "content"}};
  for (const LayerResult& layer : result.layers) {
    const Measured& m = layer.measured;
    rows.push_back({std::to_string(layer.layer), std::to_string(layer.length),
                    std::to_string(layer.cold_tokens), std::to_string(m.encoded_tokens),
                    RatioText(m.verified_raw_of[0], m.verified_blob_of[0]),
                    RatioText(m.verified_raw_of[1], m.verified_blob_of[1]),
                    std::to_string(m.decode_calls), std::to_string(m.cache_copies),
                    ShortText(layer.end.total()), layer.content.equal() ? "equal" : "differs"});
  }
  page.Table(rows);
}

void AddEngineTerms(const ReplayResult& result, report::Page& page) {
  page.Heading("In the engine's terms");
  const Value document = ReportFields().Object({result});
  std::vector<std::vector<std::string>> rows = {{"figure", "value"}};
  for (const auto& [name, value] : *document.Find("engine_terms")->get_if<Value::Object>()) {
    const auto* real = value.get_if<double>();
    rows.push_back({name, real != nullptr ? report::ShortNumber(*real) : format::Plain(value)});
  }
  page.Table(rows);
}

}  // namespace

report::Page ReportPage(const std::string& name, const ReplayResult& result) {
  report::Page page(
      "Lossless runtime replay",
      fmt::format("{}: engine {}, mode {}, scope {}; prompt {}, {} decoded", name,
                  Name(result.engine), Name(result.lossless.mode), Name(result.lossless.scope),
                  result.prompt, result.end - result.prompt));
  page.Facts({{"ratio, whole model", Times(result.whole_model_ratio())},
              {"ratio, encoded ranges", Times(result.metrics.ratio)},
              {"content", result.content.equal() ? "equal" : "differs"},
              {"before", ShortText(result.steps.front().total())},
              {"peak", ShortText(result.peak_bytes)},
              {"end", ShortText(result.steps.back().total())}});
  page.Paragraph(
      "The ratio of the whole model is the K and V of the whole sequence over what is resident at "
      "the end: raw rows, blobs, decoded copies and what is in flight. The ratio of encoded "
      "ranges, which the engine reports, knows nothing of all the others.");
  AddMemory(result, page);
  AddRatios(result, page);
  AddLayers(result, page);
  AddEngineTerms(result, page);
  std::vector<std::string> notes = result.warnings;
  if (const std::string why = WhyNothing(result); !why.empty()) {
    notes.push_back("nothing was encoded: " + why);
  }
  page.Notes("Remarks", notes);
  return page;
}

}  // namespace kv::mnn::runtime
