// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lib/engines/cacheblend/gates.h"
#include "lib/engines/cacheblend/replay.h"
#include "lib/fields/fields.h"
#include "lib/report/html.h"

namespace kv::blend {

// Data that a report states in addition to the result.
struct ReportExtras {
  const AttentionTrace* trace = nullptr;
  std::optional<Controller> controller;
  std::vector<GateResult> gates;
  std::string indices_file;  // the file that indices were written to instead of the document
  bool detail = false;       // true: list the deviation of every token

  bool pass() const;
};

// Data of kvtool.blend beside its inputs and warnings.
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

// Returns the self-contained HTML page. page.cc implements it and the tables.
report::Page ReportPage(const CachePair& caches, const Result& result, const ReportExtras& extras);

}  // namespace kv::blend
