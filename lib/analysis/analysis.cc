// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/analysis/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace kv::analysis {
namespace {

using Measure = std::function<uint64_t(const TensorAnalysis&)>;

// "layers 0-3,7" of the layers whose tensor has something to tell.
std::string LayersWhere(const Analysis& analysis, bool values, const Measure& measure) {
  std::vector<uint32_t> layers;
  for (const LayerAnalysis& layer : analysis.layers) {
    const auto& tensor = values ? layer.v : layer.k;
    if (tensor && measure(*tensor) > 0) layers.push_back(layer.layer);
  }
  if (layers.empty()) return {};
  std::sort(layers.begin(), layers.end());
  std::string runs;
  for (size_t i = 0; i < layers.size();) {
    size_t j = i + 1;
    while (j < layers.size() && layers[j] <= layers[j - 1] + 1) ++j;
    if (!runs.empty()) runs += ",";
    runs +=
        j - i == 1 ? fmt::format("{}", layers[i]) : fmt::format("{}-{}", layers[i], layers[j - 1]);
    i = j;
  }
  return fmt::format("{} of layer{} {}", values ? "V" : "K", layers.size() == 1 ? "" : "s", runs);
}

uint64_t Sum(const Analysis& analysis, bool values, const Measure& measure) {
  uint64_t sum = 0;
  for (const LayerAnalysis& layer : analysis.layers) {
    const auto& tensor = values ? layer.v : layer.k;
    if (tensor) sum += measure(*tensor);
  }
  return sum;
}

void Tell(Analysis& analysis, const Measure& measure,
          const std::function<std::string(const std::string& where, uint64_t sum)>& sentence) {
  for (const bool values : {false, true}) {
    const std::string where = LayersWhere(analysis, values, measure);
    if (!where.empty()) {
      analysis.findings.push_back(sentence(where, Sum(analysis, values, measure)));
    }
  }
}

void AddFindings(Analysis& analysis) {
  Tell(
      analysis, [](const TensorAnalysis& t) { return uint64_t{!t.measured.decodes()}; },
      [](const std::string& where, uint64_t) {
        return fmt::format("{}: what was decoded is NOT what was encoded", where);
      });
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Tell(
        analysis, [&](const TensorAnalysis& t) { return uint64_t{t.narrow_dtype == dtype}; },
        [&](const std::string& where, uint64_t) {
          return fmt::format("{}: every f32 value is exact in {}: half of the bytes are free",
                             where, Name(dtype));
        });
  }
  Tell(
      analysis, [](const TensorAnalysis& t) { return t.structure.trailing_zero_rows; },
      [](const std::string& where, uint64_t rows) {
        return fmt::format("{}: {} rows at the end are zero: padding, or cells never used", where,
                           rows);
      });
  Tell(
      analysis,
      [](const TensorAnalysis& t) {
        return t.structure.zero_rows - t.structure.trailing_zero_rows;
      },
      [](const std::string& where, uint64_t rows) {
        return fmt::format("{}: {} rows are zero", where, rows);
      });
  // A few equal rows are chance or a repeated word; a twentieth of them is structure.
  Tell(
      analysis,
      [](const TensorAnalysis& t) {
        return t.structure.repeated_rows * 20 >= t.tokens ? t.structure.repeated_rows : 0;
      },
      [](const std::string& where, uint64_t rows) {
        return fmt::format("{}: {} rows repeat an earlier one", where, rows);
      });
  Tell(
      analysis, [](const TensorAnalysis& t) { return t.structure.constant_channels; },
      [](const std::string& where, uint64_t channels) {
        return fmt::format("{}: {} channels never change", where, channels);
      });
  Tell(
      analysis, [](const TensorAnalysis& t) { return t.stats.nan_count + t.stats.infinite_count; },
      [](const std::string& where, uint64_t values) {
        return fmt::format("{}: {} values are NaN or infinite", where, values);
      });
}

void FindExtremes(Analysis& analysis) {
  bool first = true;
  for (const LayerAnalysis& layer : analysis.layers) {
    for (const bool is_value : {false, true}) {
      const auto& tensor = is_value ? layer.v : layer.k;
      if (!tensor || tensor->measured.raw_bytes == 0) continue;
      const Extreme here = {layer.layer, is_value, tensor->measured.ratio()};
      if (first || here.ratio > analysis.best.ratio) analysis.best = here;
      if (first || here.ratio < analysis.worst.ratio) analysis.worst = here;
      first = false;
    }
  }
}

}  // namespace

void Totals::Add(const TensorAnalysis& tensor) {
  Coded::Add(tensor.measured);
  values += tensor.values();
  bound_bits += tensor.bound().total_bits() * tensor.values();
  decodes = decodes && tensor.measured.decodes();
}

Totals Analysis::total() const {
  Totals sum = k;
  sum.Coded::Add(v);
  sum.values += v.values;
  sum.bound_bits += v.bound_bits;
  sum.decodes = k.decodes && v.decodes;
  return sum;
}

Analysis Analyse(const Snapshot& snapshot, const TensorOptions& options, ThreadPool& pool,
                 Progress* progress) {
  Analysis analysis;
  std::vector<std::pair<const KvTensor*, std::optional<TensorAnalysis>*>> tensors;
  analysis.layers.resize(snapshot.layers.size());
  for (size_t i = 0; i < snapshot.layers.size(); ++i) {
    const LayerKv& layer = snapshot.layers[i];
    LayerAnalysis& to = analysis.layers[i];
    to.layer = layer.index;
    to.label = layer.label;
    to.group = layer.group;
    if (layer.has_k()) tensors.emplace_back(&layer.k, &to.k);
    if (layer.v && !layer.v->pieces.empty()) tensors.emplace_back(&*layer.v, &to.v);
  }
  if (progress != nullptr) {
    uint64_t bytes = 0;
    for (const auto& [tensor, to] : tensors) bytes += tensor->bytes();
    progress->Begin(bytes);
  }
  pool.ParallelFor(tensors.size(), [&](uint64_t i) {
    const auto& [tensor, to] = tensors[i];
    to->emplace(AnalyseTensor(snapshot, *tensor, options));
    if (progress != nullptr) progress->Advance(tensor->bytes());
  });
  for (const LayerAnalysis& layer : analysis.layers) {
    if (layer.k) analysis.k.Add(*layer.k);
    if (layer.v) analysis.v.Add(*layer.v);
  }
  FindExtremes(analysis);
  AddFindings(analysis);
  return analysis;
}

}  // namespace kv::analysis
