// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by report.cc, gates.cc, page.cc

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/cacheblend/replay.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"

namespace kv::blend {

// A limit on a figure of the curve, such as "dev_v_remaining_frac@0.16.mean<=0.2". The figure has
// its name in the report; the ratio is followed by mean, min or max (over the blended layers) or by
// layerN.
struct Gate {
  std::string figure, over;  // "dev_v_remaining_frac" and "mean" above
  double ratio = 0, limit = 0;
  bool at_most = true;

  std::string Name() const;  // "dev_v_remaining_frac@0.16.mean"
};
// Throws kUsage.
Gate ParseGate(std::string_view text);

struct GateResult {
  Gate gate;
  // Empty if the figure was not measured because there were no queries; the gate fails then.
  std::optional<double> value;
  bool pass = false;
};
// The ratio must be on the curve. Throws kUsage for a layer that is not blended.
GateResult Judge(const Gate& gate, const Result& result);

// The paper's choice of the ratio: recomputing that share of one layer takes no longer than loading
// the chunks of the next one.
struct Controller {
  double prefill_seconds = 0, bytes_per_second = 0;  // as given by the user
  double load_seconds_per_layer = 0, prefill_seconds_per_layer = 0;
  double ratio_hide = 0;  // recomputing this share takes as long as loading
  double ratio = 0;       // max(ratio_hide, 0.15), at most 1
};
Controller PlanRatio(const CachePair& caches, double prefill_seconds, double bytes_per_second);

// Data that a report states in addition to the result.
struct ReportExtras {
  const AttentionTrace* trace = nullptr;
  std::optional<Controller> controller;
  std::vector<GateResult> gates;
  std::string indices_file;  // the file that indices were written to instead of the document
  bool detail = false;       // true: list the deviation of every token

  bool pass() const;
};

// Data of kvtool.blend apart from its inputs and warnings.
struct Report {
  const CachePair& caches;
  const Result& result;
  const ReportExtras& extras;
};
const Fields<Report>& ReportFields();

// A chunk, and how many of its tokens were chosen.
struct ChunkOf {
  const Report& report;
  size_t index;

  const Chunk& chunk() const { return report.caches.old().chunks[index]; }
  uint64_t selected() const { return report.result.chunk_selected[index]; }
  double share() const {
    const uint64_t topk = report.result.selection.topk;
    return topk == 0 ? 0.0 : static_cast<double>(selected()) / static_cast<double>(topk);
  }
};

// Returns a member of an optional struct, or nothing.
template <typename T, typename M>
std::optional<M> IfThere(const std::optional<T>& of, M T::*member) {
  return of ? std::optional((*of).*member) : std::nullopt;
}

// Return tables for the console and the page: a row for each ratio, and for each chunk.
TextTable CurveTable(const Result& result);
TextTable ChunkTable(const CachePair& caches, const Result& result);

// Returns the self-contained HTML page.
report::Page ReportPage(const CachePair& caches, const Result& result, const ReportExtras& extras);

}  // namespace kv::blend
