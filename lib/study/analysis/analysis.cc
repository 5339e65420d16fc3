// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Analyses a whole cache: spreads tensors over the pool, sums their figures, and writes findings
// about structure that a better codec could use.
#include "lib/study/analysis/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "lib/core/base/number.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/dense/gemm.h"

namespace kv::analysis {
namespace {

constexpr uint32_t kMaxDim = 512;      // wider heads are skipped, as the work grows with its square
constexpr uint64_t kTokensPerDim = 8;  // with fewer tokens independent channels look dependent
constexpr uint64_t kSliceTokens = 1024;

// Sums of one head over all tokens.
struct Sums {
  std::vector<double> first;   // of each channel
  std::vector<double> second;  // of each product of two channels
};

Sums ComputeSums(const KvTensor& tensor, uint32_t head) {
  const uint64_t dim = tensor.head_dim, tokens = tensor.tokens();
  Sums sums{std::vector<double>(dim), std::vector<double>(dim * dim)};
  Bytes raw;
  std::vector<float> columns, products(dim * dim);
  for (uint64_t begin = 0; begin < tokens; begin += kSliceTokens) {
    const uint64_t count = std::min(kSliceTokens, tokens - begin);
    raw.resize(count * dim * tensor.unit_bytes());
    Gather(tensor, begin, count, head, 1, Order::kHeadDimToken, raw);
    columns.resize(count * dim);
    ToFloats(tensor.dtype, raw, columns);
    GemmNT(columns.data(), count, columns.data(), count, products.data(), dim, dim, dim, count);
    for (uint64_t i = 0; i < dim * dim; ++i) sums.second[i] += products[i];
    for (uint64_t d = 0; d < dim; ++d) {
      double sum = 0;
      for (uint64_t t = 0; t < count; ++t) sum += columns[d * count + t];
      sums.first[d] += sum;
    }
  }
  return sums;
}

// Returns log2 of the determinant of a correlation matrix, by Cholesky. Channels without variance
// count as independent.
double Log2Determinant(const Sums& sums, uint64_t dim, double n) {
  const auto covariance = [&](uint64_t i, uint64_t j) {
    return sums.second[i * dim + j] / n - sums.first[i] / n * (sums.first[j] / n);
  };
  std::vector<double> deviation(dim), lower(dim * dim);
  for (uint64_t i = 0; i < dim; ++i) deviation[i] = std::sqrt(std::max(0.0, covariance(i, i)));
  double log2_determinant = 0;
  for (uint64_t i = 0; i < dim; ++i) {
    for (uint64_t j = 0; j <= i; ++j) {
      double value = i == j ? 1.0 : 0.0;
      if (i != j && deviation[i] > 0 && deviation[j] > 0) {
        value = covariance(i, j) / (deviation[i] * deviation[j]);
      }
      for (uint64_t k = 0; k < j; ++k) value -= lower[i * dim + k] * lower[j * dim + k];
      // A channel that the channels before it determine would save infinitely many bits; float sums
      // cannot tell how many, so it is capped.
      if (i == j) {
        constexpr double kLeast = 1e-4;
        value = std::max(value, kLeast);
        log2_determinant += std::log2(value);
        lower[i * dim + i] = std::sqrt(value);
      } else {
        lower[i * dim + j] = value / lower[j * dim + j];
      }
    }
  }
  return log2_determinant;
}

using Measure = std::function<uint64_t(const TensorAnalysis&)>;

// Returns "layers 0-3,7": the layers whose tensor shows the measure.
std::string LayersWhere(const Analysis& analysis, bool values, const Measure& measure) {
  std::vector<uint32_t> layers;
  for (const LayerAnalysis& layer : analysis.layers) {
    const auto& tensor = values ? layer.v : layer.k;
    if (tensor && measure(*tensor) > 0) layers.push_back(layer.layer);
  }
  if (layers.empty()) return {};
  std::sort(layers.begin(), layers.end());
  return fmt::format("{} of layer{} {}", values ? "V" : "K", layers.size() == 1 ? "" : "s",
                     RangesText(layers));
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
      analysis, [](const TensorAnalysis& t) { return uint64_t{!t.decodes()}; },
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
        return fmt::format("{}: {} row{} zero", where, rows, rows == 1 ? " is" : "s are");
      });
  // A few equal rows are chance or a repeated word; from a twentieth on they are structure.
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
        return fmt::format("{}: {} channel{} the same in every token", where, channels,
                           channels == 1 ? " is" : "s are");
      });
  Tell(
      analysis, [](const TensorAnalysis& t) { return t.stats.nan_count + t.stats.infinite_count; },
      [](const std::string& where, uint64_t values) {
        return fmt::format("{}: {} values are NaN or infinite", where, values);
      });
}

// Adds a finding if a predictor that knows positions would save bits in K.
void AddRotationFinding(Analysis& analysis) {
  constexpr double kWorthTelling = 0.1;  // bits per value
  double values = 0, bits[2] = {0, 0}, bound = 0;
  for (const LayerAnalysis& layer : analysis.layers) {
    if (!layer.k || layer.k->unrotated.size() != 2) continue;
    values += layer.k->values();
    bound += layer.k->values() * layer.k->bound().total_bits();
    for (size_t i = 0; i < 2; ++i) {
      bits[i] += layer.k->values() * Cheapest(layer.k->unrotated[i].models).total_bits();
    }
  }
  // the first of the two results of AnalyseTensor is for adjacent pairs
  const bool adjacent = bits[0] <= bits[1];
  const double gain = values == 0 ? 0 : (bound - std::min(bits[0], bits[1])) / values;
  if (gain < kWorthTelling) return;
  analysis.findings.push_back(fmt::format(
      "K has {1:.2f} bits per value less entropy with its rotation undone (dims {0} paired): a "
      "predictor that knows positions would gain",
      adjacent ? "2i and 2i+1" : "i and i+d/2", gain));
}

// Returns the positions that the file records, one for each row of the layer; empty if it has none.
std::vector<int64_t> ListPositions(const Snapshot& snapshot, const LayerKv& layer) {
  for (const CellGroup& group : snapshot.cell_groups) {
    if (group.group != layer.group || group.cells.size() != layer.k.tokens()) continue;
    std::vector<int64_t> positions;
    for (const Cell& cell : group.cells) positions.push_back(cell.position);
    return positions;
  }
  return {};
}

void FindExtremes(Analysis& analysis) {
  bool first = true;
  for (const LayerAnalysis& layer : analysis.layers) {
    for (const bool is_value : {false, true}) {
      const auto& tensor = is_value ? layer.v : layer.k;
      if (!tensor || tensor->measured.raw_bytes == 0) continue;
      const Extreme here = {layer.layer, is_value, tensor->better().ratio()};
      if (first || here.ratio > analysis.best.ratio) analysis.best = here;
      if (first || here.ratio < analysis.worst.ratio) analysis.worst = here;
      first = false;
    }
  }
}

}  // namespace

std::optional<double> CrossChannelGain(const KvTensor& tensor) {
  const uint64_t dim = tensor.head_dim, tokens = tensor.tokens();
  if (!tensor.heads_known || dim > kMaxDim || tokens < kTokensPerDim * dim) return std::nullopt;
  double bits = 0;
  for (uint32_t head = 0; head < tensor.heads; ++head) {
    const Sums sums = ComputeSums(tensor, head);
    bits -= Log2Determinant(sums, dim, static_cast<double>(tokens)) / 2;
  }
  return bits / static_cast<double>(dim * tensor.heads);
}

void Totals::Add(const TensorAnalysis& tensor) {
  Coded::Add(tensor.measured);
  values += tensor.values();
  bound_bits += tensor.bound().total_bits() * tensor.values();
  own_bytes += (tensor.own ? *tensor.own : tensor.measured).coded_bytes;
  decodes = decodes && tensor.decodes();
}

Totals Analysis::total() const {
  Totals sum = k;
  sum.Coded::Add(v);
  sum.own_bytes += v.own_bytes;
  sum.values += v.values;
  sum.bound_bits += v.bound_bits;
  sum.decodes = k.decodes && v.decodes;
  return sum;
}

Analysis Analyse(const Snapshot& snapshot, const TensorOptions& options, ThreadPool& pool,
                 Progress* progress) {
  Analysis analysis;
  struct Task {
    const KvTensor* tensor;
    bool is_value;
    std::optional<TensorAnalysis>* to;
    const TensorOptions* options;
    uint32_t layer, model_layer;
    std::vector<int64_t> positions;
  };
  std::vector<Task> tasks;
  const RowOrders orders(snapshot);
  TensorOptions key_options = options;
  key_options.orders = orders.empty() ? nullptr : &orders;
  TensorOptions value_options = key_options;
  value_options.rope = {};
  analysis.layers.resize(snapshot.layers.size());
  for (size_t i = 0; i < snapshot.layers.size(); ++i) {
    const LayerKv& layer = snapshot.layers[i];
    LayerAnalysis& to = analysis.layers[i];
    to.layer = layer.index;
    to.label = layer.label;
    to.group = layer.group;
    if (layer.has_k())
      tasks.push_back({&layer.k, false, &to.k, &key_options, layer.index, ModelNumber(layer),
                       ListPositions(snapshot, layer)});
    if (layer.v && !layer.v->pieces.empty())
      tasks.push_back({&*layer.v, true, &to.v, &value_options, layer.index, 0, {}});
  }
  if (progress != nullptr) {
    uint64_t bytes = 0;
    for (const Task& task : tasks) bytes += task.tensor->bytes();
    progress->Begin(bytes);
  }
  pool.ParallelFor(tasks.size(), [&](uint64_t i) {
    const Task& task = tasks[i];
    TensorAnalysis& tensor =
        task.to->emplace(AnalyseTensor(snapshot, *task.tensor, task.is_value, *task.options,
                                       {task.layer, task.model_layer, task.positions}));
    const bool finite = tensor.stats.nan_count + tensor.stats.infinite_count == 0;
    if (finite && Info(tensor.dtype).is_float) {
      tensor.cross_channel_gain_bits = CrossChannelGain(*task.tensor);
      DropTensor(snapshot, *task.tensor);
    }
    if (progress != nullptr) progress->Advance(task.tensor->bytes());
  });
  for (const LayerAnalysis& layer : analysis.layers) {
    if (layer.k) analysis.k.Add(*layer.k);
    if (layer.v) analysis.v.Add(*layer.v);
  }
  FindExtremes(analysis);
  AddFindings(analysis);
  AddRotationFinding(analysis);
  return analysis;
}

}  // namespace kv::analysis
