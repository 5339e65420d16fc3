// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Analyses a whole cache: spreads tensors over the pool, sums their figures, and writes findings
// about structure that a better codec could use.
#include "lib/study/analysis/analysis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "lib/core/base/number.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/layout.h"
#include "lib/study/analysis/tensor_analysis.h"
#include "lib/study/dense/gemm.h"
#include "lib/study/statistics/tensor_stats.h"

namespace kv::analysis {
namespace {

constexpr uint32_t kMaxDim = 512;      // wider heads are skipped, as the work grows with its square
constexpr uint64_t kTokensPerDim = 8;  // with fewer tokens independent channels look dependent
constexpr uint64_t kSliceTokens = 1024;

// Sums of one head over all tokens.
struct Sums {
  std::vector<double> first;   // sum of each channel
  std::vector<double> second;  // sum of each product of two channels
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
      // cannot tell how many, so the saving is capped.
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
        return fmt::format("{}: the decoded bytes are NOT those that were encoded", where);
      });
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    Tell(
        analysis, [&](const TensorAnalysis& t) { return uint64_t{t.narrow_dtype == dtype}; },
        [&](const std::string& where, uint64_t) {
          return fmt::format("{}: every f32 value is exact in {}: half of the bytes can be saved",
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

// Tables and charts of the analysis of a cache.

namespace {

const Fields<Totals>& TotalsFields() {
  static const Fields<Totals> fields = {
      Fields<Totals>::Inline([](const Totals& of) -> const Coded& { return of; }, CodedFields()),
      {"own_bytes", "Bytes after coding at the level asked for; at compat the same as coded_bytes",
       &Totals::own_bytes},
      {"own_ratio",
       "raw_bytes / own_bytes; 1 where nothing was coded",
       &Totals::own_ratio,
       {.above = 0}},
      {"bits_per_value", "Bits per value of the better of both codecs", &Totals::reached,
       AtLeast(0)},
      {"bound_bits_per_value",
       "Bits per value under the cheapest entropy model of each tensor; of order 0 or 1, so a "
       "codec that draws on more may need less",
       &Totals::bound, AtLeast(0)},
      {"bound_ratio", "Bytes of the tensors / bytes under the cheapest entropy models",
       &Totals::bound_ratio, AtLeast(0)},
      {"decodes", "Whether all decoded bytes equal the original bytes", &Totals::decodes}};
  return fields;
}

const Fields<Extreme>& ExtremeFields() {
  static const Fields<Extreme> fields = {
      {"layer", "Number of the layer", &Extreme::layer},
      {"tensor", "Which tensor: K or V", [](const Extreme& of) { return of.is_value ? "v" : "k"; },
       OneOf("k", "v")},
      {"ratio", "Original / coded bytes with the better of the two codecs; null: no tensors",
       [](const Extreme& of) { return of.ratio == 0 ? std::nullopt : std::optional(of.ratio); },
       AtLeast(0)}};
  return fields;
}

std::optional<Totals> OrNone(const Totals& totals) {
  return totals.raw_bytes == 0 ? std::nullopt : std::optional(totals);
}

const Fields<LayerAnalysis>& LayerAnalysisFields() {
  static const Fields<LayerAnalysis> fields = {
      {"layer", "Number of the layer", &LayerAnalysis::layer},
      {"label", "Name of the layer, where its number does not say what it is",
       IfAny(&LayerAnalysis::label), Absent()},
      {"group", "Name of the group of layers that it belongs to, where the model has groups",
       IfAny(&LayerAnalysis::group), Absent()},
      {"k", "Results for K; null: the layer has no K", &LayerAnalysis::k, TensorAnalysisFields()},
      {"v", "Results for V; null: the layer has no V", &LayerAnalysis::v, TensorAnalysisFields()}};
  return fields;
}

using report::ChartSeries;
using report::LineChart;

void AddCharts(const Analysis& analysis, const std::string& level, report::Page& page) {
  const auto add = [&](const std::string& suffix, bool emphasised, const auto& figure,
                       LineChart& chart) {
    for (ChartSeries& series :
         report::SeriesOfTensors(analysis.layers, figure, suffix, emphasised)) {
      if (!series.points.empty()) chart.series.push_back(std::move(series));
    }
  };
  LineChart ratios = report::ChartByLayer("Ratio by layer", "original / compressed");
  ratios.y_unit = report::Unit::kFactor;
  const bool with_own = level != "compat";
  const auto own_ratio = [](const TensorAnalysis& tensor) {
    return tensor.own ? tensor.own->ratio() : NAN;
  };
  if (with_own) add(" " + level, true, own_ratio, ratios);
  add(
      " mnn", !with_own, [](const TensorAnalysis& tensor) { return tensor.measured.ratio(); },
      ratios);
  page.Figure(Render(ratios),
              "Measured: coded, decoded again and compared. Higher is better; 1 saves nothing.");
  LineChart bits = report::ChartByLayer("Bits per value by layer", "bits per value");
  add(
      "", true, [](const TensorAnalysis& tensor) { return tensor.reached_bits(); }, bits);
  add(
      " entropy", false, [](const TensorAnalysis& tensor) { return tensor.bound().total_bits(); },
      bits);
  page.Figure(Render(bits),
              "What the better codec needs, and the best entropy model of order 0 or 1. A codec "
              "that draws on earlier rows, which such models do not see, goes below it.");
  std::vector<LayerStats> stats;
  for (const LayerAnalysis& layer : analysis.layers) {
    LayerStats& of = stats.emplace_back(LayerStats{layer.layer});
    if (layer.k) of.k = layer.k->stats;
    if (layer.v) of.v = layer.v->stats;
  }
  AddPlaneEntropies(stats, page);
}

std::string Percent(uint64_t part, uint64_t whole) {
  if (part == 0 || whole == 0) return "0";
  const double share = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return share < 0.1 ? "<0.1%" : fmt::format("{:.1f}%", share);
}

std::string FormatPlanes(const TensorAnalysis& tensor) {
  std::string text;
  if (tensor.measured.planes.size() > 4) return "-";
  for (auto plane = tensor.measured.planes.rbegin(); plane != tensor.measured.planes.rend();
       ++plane) {
    text += fmt::format("{}{:.2f}", text.empty() ? "" : " ", plane->ratio());
  }
  return text.empty() ? "-" : text;
}

std::string WorstAndBestHead(const TensorAnalysis& tensor) {
  if (tensor.heads_coded.empty()) return "-";
  const auto [least, most] =
      std::minmax_element(tensor.heads_coded.begin(), tensor.heads_coded.end(),
                          [](const auto& a, const auto& b) { return a.ratio() < b.ratio(); });
  return fmt::format("{:.2f} ({}) .. {:.2f} ({})", least->ratio(),
                     least - tensor.heads_coded.begin(), most->ratio(),
                     most - tensor.heads_coded.begin());
}

std::string TwoPlaces(const Value& number) { return fmt::format("{:.2f}", number.number()); }

}  // namespace

const Fields<Analysis>& AnalysisFields() {
  static const Fields<Analysis> summary = {
      {"total", "Sums over K and V; null: the snapshot has neither",
       [](const Analysis& of) { return OrNone(of.total()); }, TotalsFields()},
      {"k", "Sums over K; null: the snapshot has no K",
       [](const Analysis& of) { return OrNone(of.k); }, TotalsFields()},
      {"v", "Sums over V; null: the snapshot has no V",
       [](const Analysis& of) { return OrNone(of.v); }, TotalsFields()},
      {"best", "The tensor that compresses best", &Analysis::best, ExtremeFields()},
      {"worst", "The tensor that compresses worst", &Analysis::worst, ExtremeFields()}};
  static const Fields<Analysis> fields = {
      {"summary", "Sums over all layers", std::identity(), summary},
      {"layers",
       "Results for each layer",
       &Analysis::layers,
       LayerAnalysisFields(),
       {.rows = true}},
      {"findings", "Observations, in sentences", &Analysis::findings}};
  return fields;
}

TextTable LayersTable(const Analysis& analysis, const std::string& level) {
  using Tensor = TensorAnalysis;
  using Columns = Fields<Tensor>;
  Columns columns = {Columns::Column(
      "mnn", [](const Tensor& of) { return of.measured.ratio(); }, format::AsFactor)};
  if (level != "compat") {
    const auto own = [](const Tensor& of) {
      return of.own ? std::optional(of.own->ratio()) : std::nullopt;
    };
    columns.Add(Columns::Column(level, own, format::AsFactor));
  }
  columns.Add(Columns::Column("bits", &Tensor::reached_bits, TwoPlaces));
  columns.Add(Columns::Column(
      "entropy", [](const Tensor& of) { return of.bound().total_bits(); }, TwoPlaces));
  columns.Add(
      Columns::Column("best model", [](const Tensor& of) { return std::string(of.bound().name); }));
  columns.Add(Columns::Column("high to low plane", FormatPlanes));
  columns.Add(Columns::Column(
      "zero rows", [](const Tensor& of) { return Percent(of.structure.zero_rows, of.tokens); }));
  columns.Add(Columns::Column(
      "repeated", [](const Tensor& of) { return Percent(of.structure.repeated_rows, of.tokens); }));
  const auto has_heads = [](const std::optional<Tensor>& of) {
    return of && !of->heads_coded.empty();
  };
  if (std::any_of(analysis.layers.begin(), analysis.layers.end(), [&](const LayerAnalysis& layer) {
        return has_heads(layer.k) || has_heads(layer.v);
      })) {
    columns.Add(Columns::Column("heads, worst .. best", WorstAndBestHead));
  }
  return TableByTensor(columns, analysis.layers, {"K", "V"});
}

void AddAnalysis(const Analysis& analysis, const std::string& level, report::Page& page) {
  const Totals total = analysis.total();
  if (total.raw_bytes == 0) return page.Paragraph("There are no keys and values.");
  std::vector<std::pair<std::string, std::string>> facts = {
      {"K and V", report::ShortBytes(static_cast<double>(total.raw_bytes))},
      {"by MNN's codec", format::Factor(total.ratio())}};
  if (level != "compat") facts.push_back({"at level " + level, format::Factor(total.own_ratio())});
  facts.push_back({"order-0/1 entropy", format::Factor(total.bound_ratio())});
  facts.push_back({"decoded again", total.decodes ? "equal by hash" : "DIFFERENT"});
  page.Facts(facts);
  AddCharts(analysis, level, page);
  page.Table(LayersTable(analysis, level));
  page.Notes("Remarks", analysis.findings);
}

}  // namespace kv::analysis
