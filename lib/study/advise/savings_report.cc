// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The part "savings" of kvtool.advise: table, chart, answer, and llama.cpp's flags for types.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/core/base/dtype.h"
#include "lib/report/svg.h"
#include "lib/study/advise/savings.h"

namespace kv::advise {
namespace {

constexpr double kSameBytes = 1e-9;

std::string OptionText(const Advice& advice, const Savings& savings, const Saving& saving) {
  std::string text;
  if (saving.candidate) text = advice.candidates[*saving.candidate].Text();
  if (saving.types) text += (text.empty() ? "" : "; ") + TypesText(savings, *saving.types);
  return text;
}

std::string_view NameKind(const Savings& savings, const Choice& choice) {
  bool evicts = false, stores = false;
  for (size_t u = 0; u < choice.size(); ++u) {
    const Saving* saving = savings.FindOption(choice, u);
    evicts |= saving != nullptr && saving->candidate;
    stores |= saving != nullptr && saving->types;
  }
  return evicts && stores ? "both" : evicts ? "eviction" : stores ? "types" : "none";
}

// Returns the types of K and V in short: "q8_0/f16".
std::string ShortTypes(const AdviseRun& run, const Savings& savings, uint32_t pair) {
  const quantisation::TypePair& types = savings.request.pairs[pair];
  const LayerKv& layer = run.snapshot().layers.front();
  const auto name = [](uint32_t at, const auto& all, DType own) {
    return at == quantisation::TypePair::kFull ? kv::Name(own) : all[at]->name;
  };
  return fmt::format("{}/{}", name(types.k, savings.request.store.k_types, layer.k.dtype),
                     name(types.v, savings.request.store.v_types, layer.v->dtype));
}

// Returns in short what each layer does.
std::string ChoiceText(const AdviseRun& run, const Advice& advice, const Savings& savings,
                       const Choice& choice) {
  std::vector<PartOfMixture> parts;
  for (size_t u = 0; u < choice.size(); ++u) {
    const Saving* saving = savings.FindOption(choice, u);
    std::string text;
    if (saving != nullptr && saving->candidate)
      text = advice.candidates[*saving->candidate].ShortText();
    if (saving != nullptr && saving->types)
      text += (text.empty() ? "" : " ") + ShortTypes(run, savings, *saving->types);
    parts.push_back({savings.measured.units[u].layer, std::move(text)});
  }
  return MixtureText(parts);
}

// Returns true if every layer of the model was measured. Flags apply to all layers, measured or
// not.
bool MeasuresEveryLayer(const AdviseRun& run, const Savings& savings) {
  std::set<size_t> measured;
  for (const Unit& unit : savings.measured.units) measured.insert(unit.layer);
  return measured.size() == run.snapshot().layers.size();
}

// Returns "" if llama.cpp has no such cache type, or if it would apply the type to layers that were
// not measured.
std::string Flags(const AdviseRun& run, const Savings& savings, uint32_t pair) {
  if (!MeasuresEveryLayer(run, savings)) return {};
  const quantisation::TypePair& types = savings.request.pairs[pair];
  const auto word = [&](uint32_t at, const auto& all, DType own) -> std::string {
    if (at == quantisation::TypePair::kFull) return std::string(kv::Name(own));
    const quant::CacheType& type = *all[at];
    const bool known =
        type.dtype && type.name == kv::Name(*type.dtype) &&
        run.snapshot().layers.front().k.head_dim % Info(*type.dtype).block_elements == 0;
    return known ? std::string(type.name) : std::string();
  };
  const LayerKv& layer = run.snapshot().layers.front();
  const std::string k = word(types.k, savings.request.store.k_types, layer.k.dtype);
  const std::string v = word(types.v, savings.request.store.v_types, layer.v->dtype);
  if (k.empty() || v.empty()) return {};
  const bool is_block = types.v != quantisation::TypePair::kFull &&
                        IsBlockQuantised(*savings.request.store.v_types[types.v]->dtype);
  return fmt::format("-ctk {} -ctv {}{}", k, v, is_block ? " -fa on" : "");
}

class Collector {
 public:
  Collector(const Runs& runs, const Advice& advice, const Savings& savings)
      : advice_(advice),
        savings_(savings),
        run_(*runs.front()),
        full_(static_cast<double>(runs.front()->bytes_per_token())) {}

  std::vector<SavingRow> Run(const std::vector<LosslessLevel>& levels) {
    SavingRow none;
    none.kind = "none";
    none.plan = "everything unchanged";
    none.bytes_per_token = full_;
    rows_.push_back(none);
    for (const Point& point : advice_.found.uniform)
      Add("eviction", advice_.candidates[*point.uniform].Text(), point.outcome);
    for (const Point& point : advice_.found.frontier) {
      if (!point.uniform && point.outcome.mean_loss() > 0)
        Add("eviction", PlanText(advice_, point), point.outcome);
    }
    for (const Point& point : savings_.types.uniform) {
      Add("types", TypesText(savings_, *point.uniform), point.outcome);
      rows_.back().flags = Flags(run_, savings_, *point.uniform);
    }
    for (const Point& point : savings_.types.frontier) {
      if (!point.uniform && point.outcome.mean_loss() > 0)
        Add("types", TypesByLayer(point.choice), point.outcome);
    }
    AddBoth();
    AddLossless(levels);
    MarkFront();
    return std::move(rows_);
  }

 private:
  void Add(std::string_view kind, std::string plan, const Outcome& outcome) {
    const auto worst = static_cast<size_t>(
        std::max_element(outcome.loss.begin(), outcome.loss.end()) - outcome.loss.begin());
    SavingRow row;
    row.kind = kind;
    row.plan = std::move(plan);
    row.bytes_per_token = full_ * outcome.mean_share();
    row.mean_loss = outcome.mean_loss();
    row.worst_loss = outcome.worst_loss();
    row.standard_error = outcome.standard_error[worst];
    rows_.push_back(std::move(row));
  }

  void AddBoth() {
    const Found& found = savings_.searched.found;
    for (const Point& point : found.uniform) {
      const Saving& saving = savings_.options[*point.uniform];
      if (!saving.candidate || !saving.types) continue;
      Add("both", OptionText(advice_, savings_, saving), point.outcome);
      rows_.back().added_loss = savings_.added_loss[*point.uniform];
      rows_.back().flags = Flags(run_, savings_, *saving.types);
    }
    for (const Point& point : found.frontier) {
      const std::string_view kind = NameKind(savings_, point.choice);
      if (point.uniform || kind == "none") continue;
      Add(kind, ChoiceText(run_, advice_, savings_, point.choice), point.outcome);
    }
  }

  // Compressed rows have to be decoded before attention reads them, and rows held elsewhere have to
  // be fetched; both cost bytes over the link.
  void AddLossless(const std::vector<LosslessLevel>& levels) {
    double least = full_;
    for (const LosslessLevel& level : levels) {
      SavingRow row;
      row.kind = "lossless";
      row.plan = fmt::format("kvtool {}, decoded before use", level.name);
      row.bytes_per_token = full_ / level.ratio;
      least = std::min(least, row.bytes_per_token);
      rows_.push_back(std::move(row));
    }
    for (const bool is_coded : {false, true}) {
      SavingRow row;
      row.kind = "offload";
      row.plan = is_coded ? "elsewhere, compressed" : "elsewhere";
      row.link_bytes = is_coded ? least : full_;
      rows_.push_back(std::move(row));
    }
  }

  void MarkFront() {
    for (SavingRow& row : rows_) {
      row.on_front = row.kind != "offload" &&
                     std::none_of(rows_.begin(), rows_.end(), [&](const SavingRow& other) {
                       if (other.kind == "offload") return false;
                       const double bytes = row.bytes_per_token * (1 - kSameBytes);
                       const bool fewer = other.bytes_per_token < bytes;
                       const bool as_few = other.bytes_per_token <= row.bytes_per_token;
                       return (fewer && other.mean_loss <= row.mean_loss) ||
                              (as_few && other.mean_loss < row.mean_loss);
                     });
    }
  }

  // Describes a choice among the pairs of types; option 0 changes nothing.
  std::string TypesByLayer(const Choice& choice) const {
    std::vector<PartOfMixture> parts;
    for (size_t u = 0; u < choice.size(); ++u) {
      parts.push_back({savings_.measured.units[u].layer,
                       choice[u] == 0 ? "" : ShortTypes(run_, savings_, choice[u] - 1)});
    }
    return MixtureText(parts);
  }

  const Advice& advice_;
  const Savings& savings_;
  const AdviseRun& run_;
  double full_;
  std::vector<SavingRow> rows_;
};

LossKind NameKind(const SavingsReport& of) { return of.request.measure.kind; }

double FullBytes(const SavingsReport& of) {
  return static_cast<double>(of.runs.front()->bytes_per_token());
}

Value::List Kinds() { return {"none", "eviction", "types", "both", "lossless", "offload"}; }

struct SavingRowOf {
  const SavingsReport& report;
  const SavingRow& row;

  double Loss(double loss) const { return Shown(NameKind(report), loss); }
};

const Fields<SavingRowOf>& SavingRowFields() {
  static const Fields<SavingRowOf> fields = {
      {"kind",
       "Kind of saving: none, eviction, types, both, lossless or offload",
       [](const SavingRowOf& of) { return of.row.kind; },
       {.choices = Kinds()}},
      {"plan", "The plan in words: a candidate, types of K and V, or the choice of most layers",
       [](const SavingRowOf& of) { return of.row.plan; }},
      {"bytes_per_token",
       "Bytes in the engine's memory at the end, all layers and scales included, per token seen",
       [](const SavingRowOf& of) { return of.row.bytes_per_token; }, AtLeast(0)},
      {"link_bytes_per_token", "Bytes per token that each decode step fetches from elsewhere",
       [](const SavingRowOf& of) { return of.row.link_bytes; }, AtLeast(0)},
      {"ratio", "Bytes of the whole cache / bytes of the row; null if nothing stays in memory",
       [](const SavingRowOf& of) {
         return of.row.bytes_per_token > 0
                    ? std::optional(FullBytes(of.report) / of.row.bytes_per_token)
                    : std::nullopt;
       }},
      {"mean_loss", "Mean loss of the runs, in the unit that loss.unit names",
       [](const SavingRowOf& of) { return of.Loss(of.row.mean_loss); }, AtLeast(0)},
      {"worst_loss", "Largest loss of a run",
       [](const SavingRowOf& of) { return of.Loss(of.row.worst_loss); }, AtLeast(0)},
      {"standard_error",
       "Standard error of the largest loss, from the rows that were drawn; null: unknown",
       [](const SavingRowOf& of) {
         return ShownError(NameKind(of.report), of.row.worst_loss, of.row.standard_error);
       },
       Nullable()},
      {"added_loss", "If eviction and types are combined: the sum of the losses of each alone",
       [](const SavingRowOf& of) {
         return std::isfinite(of.row.added_loss) ? std::optional(of.Loss(of.row.added_loss))
                                                 : std::nullopt;
       }},
      {"on_front", "Whether no other row in memory has fewer bytes and no more loss",
       [](const SavingRowOf& of) { return of.row.on_front; }},
      {"flags",
       "The flags of llama.cpp for the types, if it supports them",
       [](const SavingRowOf& of) { return IfAny(of.row.flags); },
       {.own_text = true}},
      {"corrected_loss",
       "Largest loss of a run, times the factor that --confirm found; absent without it",
       [](const SavingRowOf& of) {
         const std::optional<double>& scale = of.report.scale;
         return scale ? std::optional(of.Loss(of.row.worst_loss) * *scale) : std::nullopt;
       },
       AtLeast(0, Absent())}};
  return fields;
}

// The choice of a measured layer at the chosen point.
struct ChosenLayer {
  uint32_t layer = 0;
  std::optional<uint32_t> candidate;
  std::string k, v;
};

const Fields<ChosenLayer>& ChosenLayerFields() {
  static const Fields<ChosenLayer> fields = {
      {"layer", "Number of the layer", &ChosenLayer::layer},
      {"candidate", "index into candidates; null: all tokens stay", &ChosenLayer::candidate},
      {"k", "Type that K is stored in", &ChosenLayer::k},
      {"v", "Type that V is stored in", &ChosenLayer::v}};
  return fields;
}

// The point that was chosen among all kinds of savings.
struct Chosen {
  const SavingsReport& report;
  const Point& best;

  std::vector<ChosenLayer> Layers() const {
    std::vector<ChosenLayer> layers;
    const auto& pairs = report.savings.types_of_layers;
    for (size_t u = 0; u < best.choice.size(); ++u) {
      const Saving* saving = report.savings.FindOption(best.choice, u);
      layers.push_back({report.savings.measured.units[u].layer,
                        saving == nullptr ? std::nullopt : saving->candidate,
                        TypeOfLayer(report.runs, report.savings, pairs[u], u, true),
                        TypeOfLayer(report.runs, report.savings, pairs[u], u, false)});
    }
    return layers;
  }
  std::vector<double> MeasuredAgain() const {
    std::vector<double> losses;
    for (const Outcome& outcome : report.savings.measured_again)
      losses.push_back(Shown(NameKind(report), outcome.loss.front()));
    return losses;
  }
};

const Fields<Chosen>& ChosenFields() {
  static const Fields<Chosen> fields = {
      {"kind",
       "Kind of saving: none, eviction, types, both, lossless or offload",
       [](const Chosen& of) { return NameKind(of.report.savings, of.best.choice); },
       {.choices = Kinds()}},
      {"bytes_per_token", "Bytes at the end, in all layers, per token seen",
       [](const Chosen& of) { return FullBytes(of.report) * of.best.outcome.mean_share(); },
       AtLeast(0)},
      {"ratio", "Bytes of the whole cache / bytes of the point",
       [](const Chosen& of) { return of.best.outcome.ratio(); }, AtLeast(kLeastRatio)},
      {"worst_loss", "Largest loss of a run, in the rows it was chosen on",
       [](const Chosen& of) { return Shown(NameKind(of.report), of.best.outcome.worst_loss()); },
       AtLeast(0)},
      {"expected_loss", "Largest loss times the check's optimism: max_loss limits this product",
       [](const Chosen& of) {
         return Shown(NameKind(of.report), of.report.savings.searched.expected_loss());
       },
       AtLeast(0)},
      {"measured_again", "Loss of each run, replayed from the plan and the types alone",
       &Chosen::MeasuredAgain, AtLeast(0)},
      {"flags", "Flags of llama.cpp, if it has any and all layers have the same types",
       [](const Chosen& of) {
         const Savings& savings = of.report.savings;
         return IfAny(WriteFlags(of.report.runs, savings, savings.types_of_layers));
       }},
      {"layers", "Choice of each measured layer", &Chosen::Layers, ChosenLayerFields()}};
  return fields;
}

std::vector<std::string_view> ListTypeNames(const std::vector<const quant::CacheType*>& types) {
  std::vector<std::string_view> names;
  for (const quant::CacheType* type : types) names.push_back(type->name);
  return names;
}

}  // namespace

std::string TypesText(const Savings& savings, uint32_t pair) {
  const quantisation::TypePair& types = savings.request.pairs[pair];
  const auto name = [](uint32_t at, const auto& all) {
    return at == quantisation::TypePair::kFull ? std::string_view("unchanged") : all[at]->name;
  };
  return fmt::format("K {}, V {}", name(types.k, savings.request.store.k_types),
                     name(types.v, savings.request.store.v_types));
}

std::string TypeOfLayer(const Runs& runs, const Savings& savings, std::optional<uint32_t> pair,
                        size_t layer, bool is_key) {
  const LayerKv& own = runs.front()->layers()[layer].kv();
  const DType dtype = is_key ? own.k.dtype : own.v->dtype;
  if (!pair) return std::string(kv::Name(dtype));
  const quantisation::TypePair& types = savings.request.pairs[*pair];
  const uint32_t at = is_key ? types.k : types.v;
  if (at == quantisation::TypePair::kFull) return std::string(kv::Name(dtype));
  return std::string(
      (is_key ? savings.request.store.k_types : savings.request.store.v_types)[at]->name);
}

std::string WriteFlags(const Runs& runs, const Savings& savings,
                       const std::vector<std::optional<uint32_t>>& pairs) {
  if (pairs.empty() || !pairs.front()) return {};
  if (std::any_of(pairs.begin(), pairs.end(), [&](const auto& p) { return p != pairs.front(); }))
    return {};
  return Flags(*runs.front(), savings, *pairs.front());
}

std::vector<UnitChoice> ChosenChoices(const Advice& advice, const Savings& savings) {
  std::vector<UnitChoice> choices;
  const Choice& choice = savings.searched.found.best->choice;
  for (size_t u = 0; u < choice.size(); ++u) {
    const Saving* saving = savings.FindOption(choice, u);
    const bool evicts = saving != nullptr && saving->candidate;
    choices.push_back({savings.measured.units[u].layer, std::nullopt,
                       evicts ? &advice.candidates[*saving->candidate] : nullptr});
  }
  return choices;
}

std::vector<SavingRow> SavingRows(const Runs& runs, const Advice& advice, const Savings& savings,
                                  const std::vector<LosslessLevel>& levels) {
  return Collector(runs, advice, savings).Run(levels);
}

Answer DescribePoint(const Runs& runs, const Advice& advice, const Savings* savings,
                     const Point& point, double expected_loss) {
  Answer answer;
  answer.loss_kind = advice.measured().kind;
  answer.is_chosen = savings != nullptr;
  answer.bytes_per_token =
      static_cast<double>(runs.front()->bytes_per_token()) * point.outcome.mean_share();
  answer.ratio = point.outcome.ratio();
  answer.worst_loss = point.outcome.worst_loss();
  answer.expected_loss = expected_loss;
  if (savings == nullptr) {
    answer.kind = point.outcome.mean_share() < 1 ? "eviction" : "none";
    answer.plan = PlanText(advice, point);
    return answer;
  }
  const Saving* saving = savings->FindOption(point.choice, 0);
  answer.kind = NameKind(*savings, point.choice);
  answer.plan = answer.kind == "none" ? "everything unchanged"
                : point.uniform       ? OptionText(advice, *savings, *saving)
                                      : ChoiceText(*runs.front(), advice, *savings, point.choice);
  answer.flags = WriteFlags(runs, *savings, savings->ListPairs(point.choice));
  return answer;
}

std::optional<Answer> FindAnswer(const Runs& runs, const AdviceRequest& request,
                                 const Advice& advice, const Savings* savings) {
  std::optional<Answer> answer;
  if (const auto& best = advice.found.best)
    answer = DescribePoint(runs, advice, nullptr, *best, advice.expected_loss());
  if (savings == nullptr || !savings->searched.found.best) return answer;
  const Point& chosen = *savings->searched.found.best;
  const bool is_better =
      !answer || (request.limits.loss ? chosen.outcome.ratio() >= answer->ratio
                                      : savings->expected_loss() <= answer->expected_loss);
  return is_better ? DescribePoint(runs, advice, savings, chosen, savings->expected_loss())
                   : answer;
}

std::string AnswerText(const std::optional<Answer>& answer) {
  if (!answer) return "no plan of any kind is within the limits";
  return fmt::format("{}: {}: {:.0f} bytes a token, {} smaller, expected loss {}", answer->kind,
                     answer->plan, answer->bytes_per_token, format::Factor(answer->ratio),
                     LossText(answer->loss_kind, answer->expected_loss));
}

const Fields<Answer>& AnswerFields() {
  using A = Answer;
  static const Fields<A> fields = {
      {"from", "Source of the plan: best, by eviction alone, or chosen, among everything",
       [](const A& of) { return of.is_chosen ? "savings.chosen" : "best"; },
       OneOf("best", "savings.chosen")},
      {"kind", "Kind of saving: none, eviction, types or both", &A::kind,
       OneOf("none", "eviction", "types", "both")},
      {"plan", "The plan in words", &A::plan},
      {"bytes_per_token", "Bytes at the end, in all layers, per token seen", &A::bytes_per_token,
       AtLeast(0)},
      {"ratio", "Bytes of the whole cache / bytes of the plan", &A::ratio, AtLeast(kLeastRatio)},
      {"expected_loss", "Expected loss of the worst run, in the unit that loss.unit names",
       [](const A& of) { return Shown(of.loss_kind, of.expected_loss); }, AtLeast(0)},
      {"flags", "Flags of llama.cpp for the plan; null: it has none", IfAny(&A::flags)}};
  return fields;
}

const Fields<SavingsReport>& SavingsFields() {
  static const Fields<SavingsReport> fields = {
      {"k_types", "Types of K that were tried",
       [](const SavingsReport& of) { return ListTypeNames(of.savings.request.store.k_types); }},
      {"v_types", "Types of V that were tried",
       [](const SavingsReport& of) { return ListTypeNames(of.savings.request.store.v_types); }},
      {"max_bytes_per_token", "Limit on the bytes per token; null: no limit",
       [](const SavingsReport& of) {
         const double share = of.request.limits.share;
         return share < 1 ? std::optional(FullBytes(of) * share) : std::nullopt;
       }},
      {"rows", "Every plan that was measured alone or combined, and the frontiers of mixed plans",
       [](const SavingsReport& of) {
         std::vector<SavingRowOf> rows;
         for (const SavingRow& row : of.rows) rows.push_back({of, row});
         return rows;
       },
       SavingRowFields(), CsvRows()},
      {"chosen", "The point chosen among all points within the limits; null: there is none",
       [](const SavingsReport& of) {
         const std::optional<Point>& best = of.savings.searched.found.best;
         return best ? std::optional(Chosen{of, *best}) : std::nullopt;
       },
       ChosenFields()},
      {"optimism", "Loss of plans on rows they were not chosen on / predicted loss",
       [](const SavingsReport& of) {
         return Shown(NameKind(of), of.savings.searched.optimism) / Shown(NameKind(of), 1);
       },
       AtLeast(0)}};
  return fields;
}

namespace {

// Returns the plans of one kind that no other plan of it beats, ordered by bytes; plans with fewer
// bytes lose more.
report::ChartSeries BuildKindFront(const std::vector<SavingRow>& rows, std::string_view kind,
                                   LossKind loss, double most) {
  report::ChartSeries series{std::string(kind), {}, kind == "both", false, true, false};
  std::vector<const SavingRow*> order;
  for (const SavingRow& row : rows) {
    if (row.kind == kind && row.mean_loss <= most) order.push_back(&row);
  }
  std::stable_sort(order.begin(), order.end(), [](const SavingRow* a, const SavingRow* b) {
    return a->bytes_per_token != b->bytes_per_token ? a->bytes_per_token < b->bytes_per_token
                                                    : a->mean_loss < b->mean_loss;
  });
  double least = INFINITY;
  for (const SavingRow* row : order) {
    if (row->mean_loss >= least) continue;
    least = row->mean_loss;
    series.points.push_back({row->bytes_per_token, Shown(loss, row->mean_loss), row->plan});
  }
  return series;
}

TextTable RowsTable(const SavingsReport& report, bool front_alone) {
  const LossKind kind = NameKind(report);
  TextTable table{
      {"what", "plan", "bytes a token", "over the link", "mean loss", "worst prompt", "flags"}, {}};
  if (report.scale) table.head.emplace_back("corrected loss");
  for (const SavingRow& row : report.rows) {
    if (front_alone && !row.on_front) continue;
    table.rows.push_back({std::string(row.kind), row.plan,
                          fmt::format("{:.0f}", row.bytes_per_token),
                          fmt::format("{:.0f}", row.link_bytes), LossText(kind, row.mean_loss),
                          LossText(kind, row.worst_loss), row.flags.empty() ? "-" : row.flags});
    if (report.scale) table.rows.back().push_back(LossText(kind, row.worst_loss * *report.scale));
  }
  return table;
}

}  // namespace

void AddSavings(const SavingsReport& report, report::Page& page) {
  const AdviceRequest& request = report.request;
  const LossKind kind = request.measure.kind;
  report::LineChart chart;
  chart.title = "Loss against bytes, of everything that saves memory";
  chart.x_label = "bytes of a token in memory, all layers";
  chart.y_label = LossLabel(kind);
  chart.x_unit = report::Unit::kBytes;
  chart.y_unit = kind == LossKind::kOutput ? report::Unit::kPercent : report::Unit::kMeasured;
  chart.y_min = 0;
  chart.markers = true;
  double most = INFINITY;  // points far beyond the limit would squeeze the others
  if (request.limits.loss) {
    most = 3 * *request.limits.loss;
    // Losses of outputs are squares of the values shown.
    if (kind == LossKind::kOutput) most *= 3;
    chart.targets.push_back({Shown(kind, *request.limits.loss),
                             "at most " + LossText(kind, *request.limits.loss), true});
  }
  for (const std::string_view each : {"none", "lossless", "types", "eviction", "both"}) {
    report::ChartSeries series = BuildKindFront(report.rows, each, kind, most);
    if (each == "none") series.name = "unchanged";
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  page.Heading("Everything that saves memory");
  page.Figure(Render(chart),
              "Each point is a plan: low and left is better. A line joins the plans of a kind that "
              "no other plan of that kind beats.");
  page.Feature(LossRemark(kind));
  page.LongTable(RowsTable(report, true), "plans that no other plan beats");
  page.LongTable(RowsTable(report, false), "plans in all");
  if (!report.savings.warnings.empty()) page.Notes("Types", report.savings.warnings);
}

}  // namespace kv::advise
