// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/advise/measured.h"

#include <algorithm>
#include <numeric>

namespace kv::advise {
namespace {

// The values of some rows, [channel][row].
std::vector<float> Select(const std::vector<float>& values, uint64_t rows,
                          const std::vector<uint64_t>& some) {
  std::vector<float> out;
  for (uint64_t from = 0; from < values.size(); from += rows) {
    for (const uint64_t row : some) out.push_back(values[from + row]);
  }
  return out;
}

RunRows Select(const RunRows& run, const std::vector<uint64_t>& some) {
  RunRows part = run;
  part.rows = some.size();
  part.population = run.population * some.size() / std::max<uint64_t>(1, run.rows);
  for (auto& of_group : part.norm2) of_group = Select(of_group, run.rows, some);
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

void KeepRows(const std::vector<uint64_t>& some, size_t run, Measured& measured) {
  const uint64_t rows = measured.runs[run].rows;
  for (Unit& unit : measured.units) {
    for (Option& option : unit.options) {
      option.effect[run] = Select(option.effect[run], rows, some);
      if (!option.error2.empty()) option.error2[run] = Select(option.error2[run], rows, some);
    }
  }
  measured.runs[run] = Select(measured.runs[run], some);
}

Measured InHalves(const Measured& measured) {
  Measured halves{measured.kind, measured.groups, {}, {}, measured.independent};
  std::vector<std::pair<size_t, std::vector<uint64_t>>> parts;  // run, rows
  for (size_t run = 0; run < measured.runs.size(); ++run) {
    const uint64_t rows = measured.runs[run].rows;
    for (const bool second : {false, true}) {
      std::vector<uint64_t> half(second ? rows - rows / 2 : rows / 2);
      std::iota(half.begin(), half.end(), second ? rows / 2 : 0);
      parts.emplace_back(run, std::move(half));
    }
  }
  for (const auto& [run, half] : parts) halves.runs.push_back(Select(measured.runs[run], half));
  for (const Unit& unit : measured.units) {
    halves.units.push_back({unit.layer, unit.kv_head, unit.group, {}});
    for (const Option& option : unit.options) {
      Option& cut = halves.units.back().options.emplace_back();
      cut.candidate = option.candidate;
      for (const auto& [run, half] : parts) {
        cut.kept.push_back(option.kept[run]);
        cut.held.push_back(option.held[run]);
        cut.effect.push_back(Select(option.effect[run], measured.runs[run].rows, half));
        if (option.error2.empty()) continue;
        cut.error2.push_back(Select(option.error2[run], measured.runs[run].rows, half));
      }
    }
  }
  return halves;
}

}  // namespace kv::advise
