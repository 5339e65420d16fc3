// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/advise/savings_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lib/core/base/dtype.h"
#include "lib/report/svg.h"

namespace kv::advise {
namespace {

constexpr double kSameBytes = 1e-9;

std::string OptionText(const Advice& advice, const Savings& savings, const Saving& saving) {
  std::string text;
  if (saving.candidate) text = advice.candidates[*saving.candidate].Text();
  if (saving.types) text += (text.empty() ? "" : "; ") + TypesText(savings, *saving.types);
  return text;
}

std::string_view KindOf(const Savings& savings, const Choice& choice) {
  bool evicts = false, stores = false;
  for (size_t u = 0; u < choice.size(); ++u) {
    const Saving* saving = savings.OptionOf(choice, u);
    evicts |= saving != nullptr && saving->candidate;
    stores |= saving != nullptr && saving->types;
  }
  return evicts && stores ? "both" : evicts ? "eviction" : stores ? "types" : "none";
}

size_t DistinctChoices(const Measured& measured, const Choice& choice) {
  std::set<uint32_t> distinct;
  for (size_t u = 0; u < choice.size(); ++u)
    distinct.insert(measured.units[u].options[choice[u]].candidate);
  return distinct.size();
}

// Whether all layers of the model were measured: flags change those that were not, too.
bool MeasuresEveryLayer(const RunOf& run, const Savings& savings) {
  std::set<size_t> measured;
  for (const Unit& unit : savings.measured.units) measured.insert(unit.layer);
  return measured.size() == run.snapshot().layers.size();
}

// Empty where llama.cpp has no such cache, or would store layers so that were not measured.
std::string Flags(const RunOf& run, const Savings& savings, uint32_t pair) {
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
    none.plan = "everything as it came";
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
        Add("types", "by layer, " + Pairs(DistinctTypes(point.choice)), point.outcome);
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
      const std::string_view kind = KindOf(savings_, point.choice);
      if (point.uniform || kind == "none") continue;
      Add(kind, fmt::format("mixed, {} choices", DistinctChoices(savings_.measured, point.choice)),
          point.outcome);
    }
  }

  // What is compressed has to be decoded before attention reads it; what lies elsewhere has to
  // come.
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

  size_t DistinctTypes(const Choice& choice) const {
    return std::set<uint32_t>(choice.begin(), choice.end()).size();
  }
  static std::string Pairs(size_t count) { return fmt::format("{} pairs of types", count); }

  const Advice& advice_;
  const Savings& savings_;
  const RunOf& run_;
  double full_;
  std::vector<SavingRow> rows_;
};

Json RowJson(LossKind kind, double full, const SavingRow& row) {
  return {{"kind", row.kind},
          {"plan", row.plan},
          {"bytes_per_token", row.bytes_per_token},
          {"link_bytes_per_token", row.link_bytes},
          {"ratio", row.bytes_per_token > 0 ? Json(full / row.bytes_per_token) : Json(nullptr)},
          {"mean_loss", Shown(kind, row.mean_loss)},
          {"worst_loss", Shown(kind, row.worst_loss)},
          {"standard_error", ShownError(kind, row.worst_loss, row.standard_error)},
          {"added_loss",
           std::isfinite(row.added_loss) ? Json(Shown(kind, row.added_loss)) : Json(nullptr)},
          {"on_front", row.on_front},
          {"flags", row.flags.empty() ? Json(nullptr) : Json(row.flags)}};
}

Json ChosenJson(const Runs& runs, LossKind kind, const Savings& savings) {
  const Searched& searched = savings.searched;
  if (!searched.found.best) return nullptr;
  const Point& best = *searched.found.best;
  Json json = {{"kind", KindOf(savings, best.choice)},
               {"bytes_per_token",
                static_cast<double>(runs.front()->bytes_per_token()) * best.outcome.mean_share()},
               {"ratio", best.outcome.ratio()},
               {"worst_loss", Shown(kind, best.outcome.worst_loss())},
               {"expected_loss", Shown(kind, searched.expected_loss())},
               {"measured_again", Json::array()},
               {"flags", nullptr},
               {"layers", Json::array()}};
  for (const Outcome& outcome : savings.measured_again)
    json["measured_again"].push_back(Shown(kind, outcome.loss.front()));
  const std::string flags = FlagsOf(runs, savings);
  if (!flags.empty()) json["flags"] = flags;
  for (size_t u = 0; u < best.choice.size(); ++u) {
    const Saving* saving = savings.OptionOf(best.choice, u);
    const bool evicts = saving != nullptr && saving->candidate;
    json["layers"].push_back({{"layer", savings.measured.units[u].layer},
                              {"candidate", evicts ? Json(*saving->candidate) : Json(nullptr)},
                              {"k", TypeOfLayer(runs, savings, u, true)},
                              {"v", TypeOfLayer(runs, savings, u, false)}});
  }
  return json;
}

}  // namespace

std::string TypesText(const Savings& savings, uint32_t pair) {
  const quantisation::TypePair& types = savings.request.pairs[pair];
  const auto name = [](uint32_t at, const auto& all) {
    return at == quantisation::TypePair::kFull ? std::string_view("as it came") : all[at]->name;
  };
  return fmt::format("K {}, V {}", name(types.k, savings.request.store.k_types),
                     name(types.v, savings.request.store.v_types));
}

std::string TypeOfLayer(const Runs& runs, const Savings& savings, size_t layer, bool is_key) {
  const std::optional<uint32_t> pair = savings.types_of_layers[layer];
  const LayerKv& own = runs.front()->layers()[layer].kv();
  const DType dtype = is_key ? own.k.dtype : own.v->dtype;
  if (!pair) return std::string(kv::Name(dtype));
  const quantisation::TypePair& types = savings.request.pairs[*pair];
  const uint32_t at = is_key ? types.k : types.v;
  if (at == quantisation::TypePair::kFull) return std::string(kv::Name(dtype));
  return std::string(
      (is_key ? savings.request.store.k_types : savings.request.store.v_types)[at]->name);
}

std::string FlagsOf(const Runs& runs, const Savings& savings) {
  const auto& types = savings.types_of_layers;
  if (types.empty() || !types.front()) return {};
  if (std::any_of(types.begin(), types.end(), [&](const auto& t) { return t != types.front(); }))
    return {};
  return Flags(*runs.front(), savings, *types.front());
}

Json ChosenChoicesJson(const Advice& advice, const Savings& savings) {
  Json json = Json::array();
  const Choice& choice = savings.searched.found.best->choice;
  for (size_t u = 0; u < choice.size(); ++u) {
    const Saving* saving = savings.OptionOf(choice, u);
    const Candidate* candidate =
        saving != nullptr && saving->candidate ? &advice.candidates[*saving->candidate] : nullptr;
    json.push_back({{"layer", savings.measured.units[u].layer},
                    {"kv_head", nullptr},
                    {"policy", candidate == nullptr ? "full" : candidate->policy},
                    {"budget", candidate == nullptr ? "1" : candidate->budget.Text()},
                    {"parameters", candidate == nullptr ? "" : candidate->parameters}});
  }
  return json;
}

std::vector<SavingRow> SavingRows(const Runs& runs, const Advice& advice, const Savings& savings,
                                  const std::vector<LosslessLevel>& levels) {
  return Collector(runs, advice, savings).Run(levels);
}

Json SavingsJson(const Runs& runs, const AdviceRequest& request, const Savings& savings,
                 const std::vector<SavingRow>& rows) {
  const LossKind kind = request.measure.kind;
  const auto full = static_cast<double>(runs.front()->bytes_per_token());
  const auto names = [](const auto& types) {
    Json json = Json::array();
    for (const quant::CacheType* type : types) json.push_back(type->name);
    return json;
  };
  Json json = {{"k_types", names(savings.request.store.k_types)},
               {"v_types", names(savings.request.store.v_types)},
               {"max_bytes_per_token",
                request.limits.share < 1 ? Json(full * request.limits.share) : Json(nullptr)},
               {"rows", Json::array()},
               {"chosen", ChosenJson(runs, kind, savings)},
               {"optimism", Shown(kind, savings.searched.optimism) / Shown(kind, 1)}};
  for (const SavingRow& row : rows) json["rows"].push_back(RowJson(kind, full, row));
  return json;
}

void AddSavings(const AdviceRequest& request, const Savings& savings,
                const std::vector<SavingRow>& rows, report::Page& page) {
  const LossKind kind = request.measure.kind;
  report::LineChart chart;
  chart.title = "Loss against bytes, of everything that saves memory";
  chart.x_label = "bytes of a token in memory, all layers";
  chart.y_label = kind == LossKind::kOutput ? "output error" : "KL to be expected, nats";
  chart.x_bytes = true;
  chart.y_min = 0;
  double most = request.limits.loss ? 3 * *request.limits.loss : INFINITY;
  const auto in_sight = [&](const SavingRow& row) { return row.mean_loss <= most; };
  report::ChartSeries front{"front", {}};
  for (const std::string_view each : {"eviction", "types", "both", "lossless"}) {
    report::ChartSeries series{std::string(each), {}, false, false, false};
    for (const SavingRow& row : rows) {
      if (row.kind == each && in_sight(row))
        series.points.push_back({row.bytes_per_token, Shown(kind, row.mean_loss), row.plan});
    }
    if (!series.points.empty()) chart.series.push_back(std::move(series));
  }
  for (const SavingRow& row : rows) {
    if (row.on_front && in_sight(row))
      front.points.push_back({row.bytes_per_token, Shown(kind, row.mean_loss), ""});
  }
  std::stable_sort(front.points.begin(), front.points.end(),
                   [](const auto& a, const auto& b) { return a.x < b.x; });
  chart.series.push_back(std::move(front));
  page.Heading("Everything that saves memory");
  page.Figure(
      Render(chart),
      "Each point is a plan: low and left is better. The line joins those that no other one "
      "beats.");
  std::vector<std::vector<std::string>> table = {
      {"what", "plan", "bytes a token", "over the link", "worst prompt", "on the front", "flags"}};
  for (const SavingRow& row : rows) {
    table.push_back({std::string(row.kind), row.plan, fmt::format("{:.0f}", row.bytes_per_token),
                     fmt::format("{:.0f}", row.link_bytes), LossText(kind, row.worst_loss),
                     row.on_front ? "yes" : "no", row.flags.empty() ? "-" : row.flags});
  }
  page.Table(table);
  if (!savings.warnings.empty()) page.Notes("Types", savings.warnings);
}

}  // namespace kv::advise
