// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/replay/blend_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/npy/npy.h"

namespace kv {
namespace {

using blend::CurveLayer;
using blend::Result;

std::string Percent(double share) { return fmt::format("{:.2f}%", 100 * share); }

std::string Optional(const std::optional<double>& value, const char* format = "{:.3f}") {
  return value ? fmt::format(fmt::runtime(format), *value) : std::string(1, '-');
}

std::string LayerTable(const Result& result) {
  Table table({"layer", "V p50", "V p90", "V p99", "V max", "K p50", "K max", "overlap", "jaccard",
               "spearman", "V left"});
  const std::vector<CurveLayer>& blended = result.main().layers;
  for (size_t i = 0; i < result.layers.size(); ++i) {
    const blend::LayerDeviation& layer = result.layers[i];
    const auto& overlap = result.ranks[i].with_check;
    std::string left = "exact";
    for (const CurveLayer& of_curve : blended) {
      if (of_curve.layer == layer.layer) left = Percent(of_curve.selected.v);
    }
    table.Row({std::to_string(layer.layer) + (i == result.check_place ? "*" : ""),
               fmt::format("{:.3f}", layer.v.rel_p50), fmt::format("{:.3f}", layer.v.rel_p90),
               fmt::format("{:.3f}", layer.v.rel_p99), fmt::format("{:.3f}", layer.v.rel_max),
               fmt::format("{:.3f}", layer.k.rel_p50), fmt::format("{:.3f}", layer.k.rel_max),
               Optional(overlap ? std::optional(overlap->share) : std::nullopt),
               Optional(overlap ? std::optional(overlap->jaccard) : std::nullopt),
               Optional(result.ranks[i].spearman_prev), left});
  }
  return table.Text();
}

// The deviation along the prompt, in as many columns as a line has.
std::string DeviationLine(const Result& result, bool utf8) {
  const std::vector<double>& tokens = result.layers[result.check_place].v.tokens;
  const size_t columns = std::min<size_t>(72, tokens.size());
  std::vector<double> heights(columns);
  for (size_t t = 0; t < tokens.size(); ++t) {
    double& height = heights[t * columns / tokens.size()];
    if (std::isfinite(tokens[t])) height = std::max(height, std::sqrt(tokens[t]));
  }
  const double most = *std::max_element(heights.begin(), heights.end());
  if (most == 0) return {};
  for (double& height : heights) height /= most;
  return Sparkline(heights, utf8);
}

std::string Summary(const std::string& path, const blend::CachePair& caches, const Result& result) {
  const blend::KvRows::Layer& layer = caches.layers().front();
  return fmt::format(
      "{}: {} tokens, {} layers, {} kv heads x {}, {}; {} chunk{}, keys {}; suffix {}",
      Printable(path), result.tokens, caches.layers().size(), layer.heads, layer.k_dim,
      Name(caches.dtype()), caches.old().chunks.size(), caches.old().chunks.size() == 1 ? "" : "s",
      Name(caches.old().state), result.request.suffix);
}

std::string Choice(const Result& result) {
  const blend::Selection& selection = result.selection;
  std::string text = fmt::format(
      "{} at layer {}, ratio {}: {} tokens chosen, {} recomputed ({} of "
      "the prefill)",
      VariantName(result.request), result.request.check_layer, result.request.ratio, selection.topk,
      selection.indices.size(), Percent(result.main().compute_share));
  if (selection.margin) {
    text += selection.ties > 0 ? fmt::format("; {} tokens tie at the cut", selection.ties)
                               : fmt::format("; margin {:.3g}", *selection.margin);
  }
  for (const blend::Filtered& later : result.filtered) {
    text += fmt::format("\nlayer {}, ratio {}: {} of these stay", later.filter.layer,
                        later.filter.ratio, later.topk);
  }
  if (!result.filtered.empty()) {
    text += fmt::format("; so filtered {} of V and {} of K is left, for {} of the prefill",
                        Percent(result.filtered_left.v), Percent(result.filtered_left.k),
                        Percent(result.filtered_compute_share));
  }
  return text;
}

}  // namespace

void PrintBlend(Console& console, const std::string& path, const blend::CachePair& caches,
                const Result& result, const blend::ReportExtras& extras) {
  console.Line(Summary(path, caches, result));
  console.Line(Choice(result));
  const std::string deviation = DeviationLine(result, console.utf8());
  if (!deviation.empty()) console.Line("V deviation along the prompt: " + deviation);
  console.Line("Recomputed rows are taken from the full run, so what is left is a lower bound.");
  console.Line("");
  console.Data(Table(blend::CurveTable(result)).Text());
  console.Line("");
  console.Data(LayerTable(result));
  console.Line("");
  console.Data(Table(blend::ChunkTable(caches, result)).Text());
  if (!result.leaks.empty()) {
    const blend::LayerLeak& first = result.leaks.front();
    console.Line(
        fmt::format("\nmask: bottom-right shows {:.1f} keys of the future to a recomputed query; "
                    "in layer {} they "
                    "take {} of the attention and move the output by {}",
                    result.extra_keys_mean, first.layer, Percent(first.error.leaked_mass_mean),
                    Percent(first.error.leak_out_rel_l2)));
  }
  if (extras.controller) {
    console.Line(fmt::format(
        "controller: loading a layer takes {}, its prefill {}: recompute {} (loading hides {})",
        HumanSeconds(extras.controller->load_seconds_per_layer),
        HumanSeconds(extras.controller->prefill_seconds_per_layer),
        Percent(extras.controller->ratio), Percent(extras.controller->ratio_hide)));
  }
  for (const blend::Fault& fault : result.faults) {
    console.Line(fmt::format("the original: {}", fault.text));
  }
  for (const blend::GateResult& gate : extras.gates) {
    console.Line(fmt::format(
        "{} {} = {} {} {}", console.Verdict(gate.pass, gate.pass ? "PASS" : "FAIL"),
        gate.gate.Name(), gate.value ? fmt::format("{:.6g}", *gate.value) : "not measured",
        gate.gate.at_most ? "<=" : ">=", gate.gate.limit));
  }
}

void WriteIndices(const std::vector<uint64_t>& indices, Sink& sink) {
  sink.Write(MakeNpyHeader(DType::kI64, {indices.size()}));
  Bytes bytes(8 * indices.size());
  for (size_t i = 0; i < indices.size(); ++i) {
    StoreLE(&bytes[8 * i], static_cast<int64_t>(indices[i]));
  }
  sink.Write(bytes);
}

}  // namespace kv
