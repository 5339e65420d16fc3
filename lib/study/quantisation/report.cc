// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The document, tables and page of kvtool.quant.
#include "lib/study/quantisation/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/report/html.h"
#include "lib/report/svg.h"
#include "lib/study/eviction/report.h"

namespace kv::quantisation {
namespace {

std::string FigureText(const Value& value) {
  return std::isnan(value.number()) ? "-" : format::AsNats(value);
}
std::string ErrorText(const Value& value) {
  return std::isnan(value.number()) ? "-" : ShareText(value.number());
}
std::string FourPlaces(const Value& value) { return fmt::format("{:.4f}", value.number()); }

const Fields<PairFigures>& FiguresFields() {
  using F = PairFigures;
  static const Fields<F> fields = {
      {"output_error",
       "|O - O'| / |O| of attention outputs over rows and heads, mean over layers; null if no "
       "row has it",
       &F::output_error, Nullable(Heading("mean layer error", ErrorText))},
      {"one_minus_cosine",
       "1 - cosine between the attention outputs of both caches, mean over rows, then over layers; "
       "null if no row has it",
       &F::one_minus_cosine, Nullable(Heading("1 - cosine", FigureText))},
      {"attention_kl",
       "KL(P || P') of attention in nats, mean over rows and heads, then over layers; null if no "
       "row has it",
       &F::attention_kl, Nullable(Heading("attention KL", FigureText))},
      {"mass_moved",
       "Half of the sum of |P' - P|, the probability that attention moves to other keys, mean over "
       "rows and heads, then over layers; null if no row has it",
       &F::mass_moved, Nullable(Heading("attention moved", FigureText))},
      {"top_8",
       "Share of the 8 largest probabilities that are also among the 8 largest of the other cache, "
       "mean over layers; null if no row sees more than 8 keys",
       &F::top8, Nullable(Heading("top-8", FigureText))},
      {"top_64",
       "Share of the 64 largest probabilities that are also among the 64 largest of the other "
       "cache, mean over layers; null if no row sees more than 64 keys",
       &F::top64, Nullable()}};
  return fields;
}

// A pair of types in all layers, or in one.
struct Pair {
  const Report& report;
  size_t index;
  OutcomeOf outcome;

  const TypePair& types() const { return report.result.pairs[index]; }
};

struct Layer {
  const Pair& pair;
  const LayerFigures& figures;

  const PairFigures& all() const { return figures.all[pair.index]; }
};

// An infinite ratio of signal to noise becomes null: nothing changed.
std::optional<double> SelectSnr(const std::vector<double>& of_types, uint32_t at) {
  if (at == TypePair::kFull || at >= of_types.size()) return std::nullopt;
  return of_types[at];
}

const Fields<Layer>& LayerFields() {
  static const Fields<Layer> fields = {
      {"layer", "Number of the layer", [](const Layer& of) { return of.figures.layer; }},
      {"bytes", "Bytes of K and V of the layer as they are stored",
       [](const Layer& of) { return of.figures.BytesOf(of.pair.types()); }, AtLeast(0)},
      {"k_snr_db", "Signal-to-noise ratio of the stored K in dB; null if nothing changed",
       [](const Layer& of) { return SelectSnr(of.figures.k_snr, of.pair.types().k); }},
      {"v_snr_db",
       "Signal-to-noise ratio of the stored V in dB; null if nothing changed or there is no V",
       [](const Layer& of) { return SelectSnr(of.figures.v_snr, of.pair.types().v); }},
      Fields<Layer>::Inline(&Layer::all, FiguresFields()),
      {"undefined_rows", "Rows without figures, because queries, keys or values are not finite",
       [](const Layer& of) { return of.all().undefined_rows; }},
      {"heads", "Figures of each query head; with --detail",
       [](const Layer& of) {
         return of.pair.report.detail ? &of.figures.heads[of.pair.index] : nullptr;
       },
       FiguresFields(), Absent()}};
  return fields;
}

std::vector<Layer> ListLayers(const Pair& pair) {
  std::vector<Layer> layers;
  for (const LayerFigures& figures : pair.report.result.layers) layers.push_back({pair, figures});
  return layers;
}

std::string FormatFlags(const Pair& pair) { return EngineFlags(pair.report.request, pair.types()); }

Fields<Pair>::Field TypeField(std::string_view name, std::string_view text,
                              std::string_view heading, bool is_key) {
  const auto type = [=](const Pair& pair) {
    return TypeName(pair.report.request, pair.types(), is_key);
  };
  return {name, text, type, Heading(heading)};
}

const Fields<Pair>& PairFields() {
  static const Fields<Pair> fields = {
      TypeField("k", "Type of K", "K", true),
      TypeField("v", "Type of V", "V", false),
      {"flags",
       "Flags of llama.cpp for these types; null if it has no such cache",
       [](const Pair& pair) {
         std::optional<std::string> flags = FormatFlags(pair);
         return flags->empty() ? std::nullopt : flags;
       },
       {.own_text = true}},
      Fields<Pair>::Inline(&Pair::outcome, OutcomeFields()),
      {"layers", "The figures of each layer that was measured", ListLayers, LayerFields()}};
  return fields;
}

std::vector<Pair> ListPairs(const Report& of) {
  std::vector<Pair> pairs;
  for (size_t pair = 0; pair < of.result.pairs.size(); ++pair)
    pairs.push_back({of, pair, {EvaluatePair(of.result, pair), of.result.tokens}});
  return pairs;
}

const KvTensor& FirstKeys(const Report& of) { return of.snapshot.layers.front().k; }

const Fields<Report>& TraceFields() {
  static const Fields<Report> fields = {
      {"layers", "Layers that have rows in the trace",
       [](const Report& of) { return of.result.layers.size(); }},
      {"query_heads", "Query heads of a layer",
       [](const Report& of) { return of.trace.query_heads; }},
      {"kv_heads", "KV heads of a layer", [](const Report& of) { return FirstKeys(of).heads; }},
      {"head_dim", "Values per head of K", [](const Report& of) { return FirstKeys(of).head_dim; }},
      {"tokens", "Tokens of the cache", [](const Report& of) { return of.result.tokens; }},
      {"first_row", "Position of the first query row that may be measured",
       [](const Report& of) { return of.request.prompt_tokens; }},
      {"rows", "Query rows of a layer that were measured",
       [](const Report& of) { return of.result.measured.positions.size(); }},
      {"of_rows", "Query rows of a layer that the measured rows were drawn from",
       [](const Report& of) { return of.result.measured.population; }},
      {"open_loop", "True: each layer gets the recorded queries, whatever earlier layers lost",
       [](const Report&) { return true; }, OneOf(true)}};
  return fields;
}

const Fields<Report>& SettingsFields() {
  static const Fields<Report> fields = {
      {"input_type", "Type of K in the snapshot",
       [](const Report& of) { return kv::Name(FirstKeys(of).dtype); }},
      {"rounding", "How q8_0 rounds: avx (x86), ref (plain C) or arm",
       [](const Report& of) { return RoundingName(of.request.store.rounding); },
       OneOf("avx", "ref", "arm")},
      {"hadamard",
       "Whether values are rotated by a Hadamard transform before they are quantised, as llama.cpp "
       "has done since 2026-04",
       [](const Report& of) { return of.request.store.rotate; }},
      {"engine_q",
       "How queries meet quantised keys: cpu (rounded, as in llama.cpp's CPU code) or exact",
       [](const Report& of) {
         return of.request.store.engine_q == EngineQ::kCpu ? "cpu" : "exact";
       },
       OneOf("cpu", "exact")},
      {"keep_first", "First tokens that stay unquantised",
       [](const Report& of) { return of.request.store.keep_first; }},
      {"keep_last", "Last tokens that each query sees unquantised",
       [](const Report& of) { return of.request.store.keep_last; }},
      {"seed", "Seed of the sampled rows", [](const Report& of) { return of.request.seed; }}};
  return fields;
}

const Report& Whole(const Report& of) { return of; }

const quant::CacheType* FindType(const ReplayRequest& request, const TypePair& pair, bool is_key) {
  const uint32_t at = is_key ? pair.k : pair.v;
  if (at == TypePair::kFull) return nullptr;
  return (is_key ? request.store.k_types : request.store.v_types)[at];
}

}  // namespace

std::string_view RoundingName(Q8Rounding rounding) {
  if (rounding == Q8Rounding::kAvx) return "avx";
  return rounding == Q8Rounding::kReference ? "ref" : "arm";
}

std::string_view TypeName(const ReplayRequest& request, const TypePair& pair, bool is_key) {
  const quant::CacheType* type = FindType(request, pair, is_key);
  return type != nullptr ? type->name : FindType(request, request.pairs.front(), is_key)->name;
}

std::string EngineFlags(const ReplayRequest& request, const TypePair& pair) {
  const auto type_of = [&](bool is_key) {
    const quant::CacheType* type = FindType(request, pair, is_key);
    return type != nullptr ? type : FindType(request, request.pairs.front(), is_key);
  };
  const quant::CacheType *k = type_of(true), *v = type_of(false);
  const auto is_flag = [&](const quant::CacheType& type) {
    return type.dtype && type.name == kv::Name(*type.dtype) &&
           request.head_dim % Info(*type.dtype).block_elements == 0;
  };
  if (!is_flag(*k) || !is_flag(*v)) return {};
  return fmt::format("-ctk {} -ctv {}{}", k->name, v->name,
                     IsBlockQuantised(*v->dtype) ? " -fa on" : "");
}

const Fields<OutcomeOf>& OutcomeFields() {
  static const Fields<OutcomeOf> fields = {
      {"bytes",
       "Bytes of K and V as they are stored, scales of blocks included; layers that were not "
       "measured count in full",
       [](const OutcomeOf& of) { return of.outcome.bytes; }, AtLeast(0)},
      {"full_bytes", "Bytes of K and V at 16 bits a value",
       [](const OutcomeOf& of) { return of.outcome.full_bytes; }},
      {"bytes_per_token", "Bytes per token, over all layers",
       [](const OutcomeOf& of) { return of.outcome.bytes / static_cast<double>(of.tokens); },
       AtLeast(0)},
      {"bytes_per_value", "Mean bytes per value of K and V: 2 / ratio",
       [](const OutcomeOf& of) { return 2 / of.outcome.ratio(); },
       AtLeast(0, Heading("bytes/value", FourPlaces))},
      {"ratio", "full_bytes / bytes", [](const OutcomeOf& of) { return of.outcome.ratio(); },
       AtLeast(0, Heading("ratio", format::AsFactor))},
      Fields<OutcomeOf>::Inline(
          [](const OutcomeOf& of) -> const PairFigures& { return of.outcome.mean; },
          FiguresFields()),
      {"worst_output_error", "The largest output_error of a layer; null if no layer has one",
       [](const OutcomeOf& of) { return of.outcome.worst_output_error; }, Nullable()},
      {"predicted_kl",
       "Predicted loss in nats per next token: KL of the full model to the one with this cache; "
       "null where no loss in nats is known",
       [](const OutcomeOf& of) { return of.outcome.kl; },
       PredictedKlFields(eviction::Cause::kQuantisation)}};
  return fields;
}

const Fields<Report>& ReportFields() {
  static const Fields<Report> fields = {
      {"trace", "Shape of the measured data", Whole, TraceFields()},
      {"settings", "Settings by which types were applied", Whole, SettingsFields()},
      {"missing_layers", "Layers of the snapshot without rows in the trace; they count in full",
       [](const Report& of) { return of.result.missing_layers; }},
      {"runs", "The unchanged cache, then each type of K alone, of V alone, and both", ListPairs,
       PairFields(), CsvRows(Items(1))}};
  return fields;
}

namespace {

// Returns the mean over the layers that changed.
std::optional<std::string> Decibels(const ReplayResult& result, uint32_t type,
                                    std::vector<double> LayerFigures::*of_layer) {
  double sum = 0;
  uint64_t changed = 0;
  for (const LayerFigures& layer : result.layers) {
    if (type >= (layer.*of_layer).size() || !std::isfinite((layer.*of_layer)[type])) continue;
    sum += (layer.*of_layer)[type];
    ++changed;
  }
  if (changed == 0) return std::nullopt;
  return fmt::format("{:.1f}", sum / static_cast<double>(changed));
}

// Returns the prediction with its standard error.
std::optional<std::string> KlText(const Pair& pair) {
  const std::optional<eviction::PredictedKl>& kl = pair.outcome.outcome.kl;
  if (!kl) return std::nullopt;
  const double error = kl->standard_error;
  const std::string nats = format::Nats(kl->nats);
  return error > 0 ? fmt::format("{} +-{:.2g}", nats, error) : nats;
}

const Fields<Pair>& Columns() {
  static const Fields<Pair> columns = {
      Fields<Pair>::Inline(PairFields()),
      {"decibels", "",
       [](const Pair& of) {
         return Decibels(of.report.result, of.types().k, &LayerFigures::k_snr);
       },
       Heading("K dB")},
      {"decibels", "",
       [](const Pair& of) {
         return Decibels(of.report.result, of.types().v, &LayerFigures::v_snr);
       },
       Heading("V dB")},
      {"expected", "", [](const Pair& of) { return ExpectedText(of.outcome.outcome); },
       Heading("expected KL")},
      {"predicted", "", KlText, Heading("predicted KL")}};
  return columns;
}

}  // namespace

std::string ExpectedText(const Outcome& outcome) {
  if (!outcome.kl) return "-";
  const std::string nats = format::Nats(outcome.kl->expected());
  if (!(outcome.kl->nats > 0)) return nats;
  return fmt::format("{} ({:.2g}-{:.2g})", nats, outcome.kl->low(), outcome.kl->high());
}

TextTable PairTable(const Report& report) {
  TextTable table{TextHead(Columns()), {}};
  for (const Pair& pair : ListPairs(report)) table.rows.push_back(TextRow(Columns(), pair));
  return WithoutEmptyColumns(std::move(table));
}

std::vector<std::string> WriteNotes(const ReplayResult& result) {
  if (!result.kl_method) {
    return {
        std::string(result.lacks_recorded_state ? eviction::kNoRecordedState : eviction::kNoNats)};
  }
  std::vector<std::string> notes;
  double largest = 0;
  for (size_t pair = 0; pair < result.pairs.size(); ++pair) {
    const std::optional<eviction::PredictedKl> kl = EvaluatePair(result, pair).kl;
    if (!kl) continue;
    largest = std::max(largest, kl->expected());
    if (notes.empty())
      notes.push_back(
          fmt::format("expected KL is {}; brackets show this range; predicted KL is the figure "
                      "before calibration",
                      ExpectedKlText(*kl)));
  }
  std::string large = eviction::RemarkOnLargeKl(largest);
  if (!large.empty()) notes.push_back(std::move(large));
  return notes;
}

std::string ShareText(double share) { return fmt::format("{:.3g}%", 100 * share); }

namespace {

std::string PairText(const ReplayRequest& request, const TypePair& pair) {
  return fmt::format("{} / {}", TypeName(request, pair, true), TypeName(request, pair, false));
}

double OutcomeLoss(const Outcome& outcome) {
  return outcome.kl ? outcome.kl->expected() : outcome.mean.output_error;
}

void AddChart(const ReplayRequest& request, const ReplayResult& result, report::Page& page) {
  report::LineChart chart;
  chart.title = "Loss against the ratio of the whole cache";
  chart.x_label = "16-bit bytes / stored bytes";
  chart.log_y = result.kl_method.has_value();  // nats span powers of ten
  chart.y_label = chart.log_y ? "expected KL, nats" : "error of attention outputs, mean of layers";
  if (!chart.log_y) chart.y_min = 0;
  chart.log_x = true;
  chart.x_unit = report::Unit::kFactor;
  chart.y_unit = chart.log_y ? report::Unit::kMeasured : report::Unit::kPercent;
  report::ChartSeries pairs{"pairs of types, K / V", {}, false, false, false};
  for (size_t pair = 1; pair < result.pairs.size(); ++pair) {
    if (IsUnchanged(request, result, result.pairs[pair])) continue;
    const Outcome outcome = EvaluatePair(result, pair);
    pairs.points.push_back(
        {outcome.ratio(), OutcomeLoss(outcome), PairText(request, result.pairs[pair])});
  }
  // Labels of the best points are placed first.
  report::ChartSeries best{"the best", report::Frontier(pairs.points, true), true};
  for (report::ChartPoint& point : best.points) {
    const auto pair = std::find_if(pairs.points.begin(), pairs.points.end(), [&](const auto& of) {
      return of.x == point.x && of.y == point.y;
    });
    if (pair != pairs.points.end()) point.name = std::exchange(pair->name, {});
  }
  chart.series = {best, pairs};
  const std::optional<eviction::PredictedKl> kl = EvaluatePair(result, 0).kl;
  page.Figure(Render(chart),
              "Each point is a type of K and a type of V for all layers. The line joins the pairs "
              "that no other pair beats. Pairs that store nothing of this cache are left out." +
                  (kl ? fmt::format(" Expected KL is {}.", ExpectedKlText(*kl)) : ""));
  page.Feature();
}

void AddLayers(const ReplayRequest& request, const ReplayResult& result, report::Page& page) {
  report::LineChart chart;
  chart.title = "Relative error of attention outputs by layer";
  chart.x_label = "layer";
  chart.y_label = "output error";
  chart.whole_x = chart.markers = true;
  chart.y_unit = report::Unit::kMeasured;
  constexpr size_t kMostLines = 8;
  for (size_t pair = 1; pair < std::min(result.pairs.size(), kMostLines + 1); ++pair) {
    if (IsUnchanged(request, result, result.pairs[pair])) continue;
    report::ChartSeries series{PairText(request, result.pairs[pair]), {}, false, false, false};
    for (const LayerFigures& layer : result.layers) {
      series.points.push_back({static_cast<double>(layer.layer), layer.all[pair].output_error});
    }
    chart.series.push_back(std::move(series));
  }
  page.Figure(Render(chart),
              "Layers in which types do harm. If there are many pairs, only the first are drawn.");
}

}  // namespace

report::Page ReportPage(const Report& report, const std::vector<std::string>& notes) {
  const ReplayRequest& request = report.request;
  const ReplayResult& result = report.result;
  report::Page page(
      "Quantised caches",
      fmt::format("{} ({}) with {}: {} query heads in {} layers; {} of {} query rows a layer",
                  report.snapshot.source.path, ShapeText(report.snapshot, report.model),
                  report.trace.path, report.trace.query_heads, result.layers.size(),
                  result.measured.positions.size(), result.measured.population));
  page.Heading("Loss against ratio");
  AddChart(request, result, page);
  AddLayers(request, result, page);
  page.Heading("Pairs of types");
  TextTable table = PairTable(report);
  table.head.push_back("flags");
  for (size_t pair = 0; pair < result.pairs.size(); ++pair)
    table.rows[pair].push_back(EngineFlags(request, result.pairs[pair]));
  page.LongTable(std::move(table), "pairs");
  page.Notes("Remarks", notes);
  return page;
}

}  // namespace kv::quantisation
