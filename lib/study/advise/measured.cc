// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/advise/measured.h"

#include <algorithm>

namespace kv::advise {
namespace {

struct RowSpan {
  uint64_t begin = 0, end = 0;
  uint64_t count() const { return end - begin; }
};

std::vector<float> Cut(const std::vector<float>& values, uint64_t rows, const RowSpan& span) {
  std::vector<float> out;
  for (uint64_t from = 0; from < values.size(); from += rows) {
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(from);
    out.insert(out.end(), at + static_cast<std::ptrdiff_t>(span.begin),
               at + static_cast<std::ptrdiff_t>(span.end));
  }
  return out;
}

RunRows Cut(const RunRows& run, const RowSpan& span) {
  RunRows part = run;
  part.rows = span.count();
  part.population = run.population * span.count() / std::max<uint64_t>(1, run.rows);
  for (auto& of_group : part.norm2) of_group = Cut(of_group, run.rows, span);
  part.norm2_sum = SumOfNorm2(part);
  return part;
}

}  // namespace

std::string_view Name(LossKind kind) {
  switch (kind) {
    case LossKind::kFisher:
      return "gradients";
    case LossKind::kSensitivity:
      return "sensitivity";
    case LossKind::kOutput:
      return "output-error";
  }
  return "?";
}

double SumOfNorm2(const RunRows& run) {
  double sum = 0;
  for (const auto& of_group : run.norm2) {
    for (const float norm2 : of_group) sum += static_cast<double>(norm2);
  }
  return sum;
}

Measured OfRuns(const Measured& measured, const std::vector<size_t>& runs) {
  Measured part{measured.kind, measured.groups, {}, {}, measured.independent};
  for (const size_t run : runs) part.runs.push_back(measured.runs[run]);
  for (const Unit& unit : measured.units) {
    part.units.push_back({unit.layer, unit.kv_head, unit.group, {}});
    for (const Option& option : unit.options) {
      Option& some = part.units.back().options.emplace_back();
      some.candidate = option.candidate;
      for (const size_t run : runs) {
        some.kept.push_back(option.kept[run]);
        some.held.push_back(option.held[run]);
        some.effect.push_back(option.effect[run]);
        if (!option.error2.empty()) some.error2.push_back(option.error2[run]);
      }
    }
  }
  return part;
}

Measured InHalves(const Measured& measured) {
  Measured halves{measured.kind, measured.groups, {}, {}, measured.independent};
  std::vector<std::pair<size_t, RowSpan>> parts;  // run, rows
  for (size_t run = 0; run < measured.runs.size(); ++run) {
    const uint64_t rows = measured.runs[run].rows;
    parts.push_back({run, {0, rows / 2}});
    parts.push_back({run, {rows / 2, rows}});
  }
  for (const auto& [run, span] : parts) halves.runs.push_back(Cut(measured.runs[run], span));
  for (const Unit& unit : measured.units) {
    halves.units.push_back({unit.layer, unit.kv_head, unit.group, {}});
    for (const Option& option : unit.options) {
      Option& cut = halves.units.back().options.emplace_back();
      cut.candidate = option.candidate;
      for (const auto& [run, span] : parts) {
        cut.kept.push_back(option.kept[run]);
        cut.held.push_back(option.held[run]);
        cut.effect.push_back(Cut(option.effect[run], measured.runs[run].rows, span));
        if (option.error2.empty()) continue;
        cut.error2.push_back(Cut(option.error2[run], measured.runs[run].rows, span));
      }
    }
  }
  return halves;
}

}  // namespace kv::advise
