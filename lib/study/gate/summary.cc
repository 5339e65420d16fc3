// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/summary.h"

#include <algorithm>

#include "lib/report/diff_report.h"

namespace kv::gate {
namespace {

constexpr const char* kHashPattern = "^[0-9a-f]{16}$";

std::optional<std::string> TextOrNull(const std::string& text) {
  return text.empty() ? std::nullopt : std::optional(text);
}

Value Described(std::string_view text, Value type) {
  return Value::Object{{"description", text}, {"type", std::move(type)}};
}

// Figures with a dot in their names are members of an object. A group is that object: its name is
// the part before the dot.
struct FigureGroup {
  std::string_view name, text;
  bool nullable = true;
};

constexpr FigureGroup kGroups[] = {
    {"layer_ratio", "measured_ratio of single layers' K or V"},
    {"content", "Comparison of decoded ranges with their source; null where logs hold no K or V"},
    {"reference", "How far the cache is from its reference; null if not compared"},
    {"attention_error",
     "Relative error |o - o'| / |o| of attention outputs against the full cache"},
    {"quant", "What keeping the cache in the types of 'quant' would do", false},
    {"loss", "What a run of the engine lost against a base run of its own", false},
    {"resident_bytes", "Bytes of K and V held: raw, compressed and caches of decoded ranges"},
};

// Writes the figures that one party (Voice) defines. A dot in a figure's name makes an object.
// `value` returns nothing for figures to be left out.
template <typename ValueOf>
Value::Object Figures(const Engine& engine, Voice voice, ValueOf value) {
  Value::Object figures;
  for (const MetricInfo* info : engine.Metrics()) {
    std::optional<Value> figure = info->voice == voice ? value(*info) : std::nullopt;
    if (!figure) continue;
    const size_t dot = info->name.find('.');
    if (dot == info->name.npos) {
      figures.emplace_back(info->name, std::move(*figure));
      continue;
    }
    const std::string_view group = info->name.substr(0, dot);
    auto found = std::find_if(figures.begin(), figures.end(),
                              [&](const Value::Member& one) { return one.first == group; });
    if (found == figures.end()) {
      found = figures.insert(figures.end(), {std::string(group), Value::Object()});
    }
    found->second.Put(info->name.substr(dot + 1), std::move(*figure));
  }
  return figures;
}

Value MakeFigures(const Engine& engine, const CaseResult& result, Voice voice) {
  if (result.logs) {
    return FromJson(voice == Voice::kOriginal ? result.logs->row : result.logs->true_figures);
  }
  return Figures(engine, voice, [&](const MetricInfo& info) -> std::optional<Value> {
    const Measurement* found = result.measured.Find(info.name);
    if (found == nullptr) return std::nullopt;
    return found->value ? FigureValue(*found->value, info.is_flag()) : Value();
  });
}

Value TrueFiguresSchema(const Engine& engine) {
  Value::Object properties = Figures(engine, Voice::kTrue, [](const MetricInfo& info) {
    return std::optional(FigureSchema(info));
  });
  for (const FigureGroup& group : kGroups) {
    for (auto& [name, schema] : properties) {
      if (name != group.name) continue;
      Value members = std::move(schema);
      schema = Described(group.text,
                         group.nullable ? Value(Value::List{"object", "null"}) : Value("object"));
      schema.Put("properties", std::move(members));
    }
  }
  for (auto& figure : engine.report.log_figures()) properties.push_back(std::move(figure));
  return Value::Object{{"type", "object"}, {"properties", std::move(properties)}};
}

// Returns the schema of the figures as the engine defines them: the fields of its rows, all
// optional.
Value EngineFiguresSchema(const Engine& engine) {
  return Value::Object{{"type", "object"},
                       {"properties", *engine.report.row_schema().Find("properties")}};
}

Value ParamsSchema(const Engine& engine, std::string_view (*text)(std::string_view)) {
  Value::Object properties;
  for (const ParamInfo& info : engine.params) {
    properties.emplace_back(info.name,
                            Described(text(info.name), info.words.empty() ? "number" : "string"));
  }
  return Value::Object{{"type", "object"}, {"properties", std::move(properties)}};
}

const Fields<Where>& WhereFields() {
  static const Fields<Where> fields = {
      {"layer", "Layer; null if the figure covers several", &Where::layer},
      {"kind", "K or V; null if the figure covers both",
       [](const Where& where) { return TextOrNull(where.kind); }, OneOf("K", "V")},
      {"head", "KV head; null if the figure covers several", &Where::head},
      {"token_begin", "First token; null if the figure covers all", &Where::token_begin},
      {"token_end", "Token after the last; null if the figure covers all", &Where::token_end},
      {"dim", "Place within the head; if the heads are not known, within all channels", &Where::dim,
       Absent()},
      {"log", "Log, or part of it, that the figure was found in",
       [](const Where& where) { return TextOrNull(where.log); }, Absent()}};
  return fields;
}

const Fields<RuleOutcome>& RuleFields() {
  using Outcome = RuleOutcome;
  // A figure of the rule's metric, a flag or a number.
  const auto figure = [](auto get) {
    return [=](const Outcome& of) {
      const std::optional<double> value = get(of);
      return value ? FigureValue(*value, of.rule.is_flag) : Value();
    };
  };
  const auto schema = [](Value::List types, bool absent) {
    return FieldOptions{.absent = absent, .schema = Value::Object{{"type", std::move(types)}}};
  };
  // A figure from logs may be NaN, which becomes null.
  static const Fields<Outcome> engine_value = {
      {"engine_value", "The engine's own figure, where its logs have one",
       figure(std::mem_fn(&Outcome::engine_value)), schema({"number", "boolean", "null"}, false)}};
  static const Fields<Outcome> fields = {
      {"metric", "Figure that the rule is on, as kvtool gate --list-metrics names it",
       [](const Outcome& of) { return of.rule.metric; }},
      {"op", "Comparison that must hold between value and limit",
       [](const Outcome& of) { return Name(of.rule.op); }, OneOf(">=", "<=", ">", "<", "==", "!=")},
      {"limit", "Limit of the figure; null for a rule in words",
       figure([](const Outcome& of) { return std::optional(of.rule.limit); }),
       schema({"number", "boolean", "null"}, false)},
      {"value", "The figure; null if not known", figure(std::mem_fn(&Outcome::value)),
       schema({"number", "boolean", "null"}, false)},
      {"margin",
       "Distance to the limit in the figure's unit, negative where the rule is broken; null for "
       "flags and figures that are not known",
       &Outcome::margin},
      {"status", "Outcome of the rule", [](const Outcome& of) { return Name(of.status); },
       OneOf("pass", "fail", "not_run", "inconclusive")},
      {"reason", "Reason, or a remark on the figure; empty if the numbers need none",
       &Outcome::reason},
      {"required", "Whether a figure that is not known fails the rule",
       [](const Outcome& of) { return of.rule.required; }},
      {"where", "Where the figure was found", &Outcome::where, WhereFields()},
      {"reproduce", "Command that shows the figure again; null if there is no such command",
       [](const Outcome& of) { return TextOrNull(of.reproduce); }},
      {"word", "Name of the metric in the config, if it differs",
       [](const Outcome& of) { return TextOrNull(of.rule.word); }, Absent()},
      {"baseline", "The figure in the baseline", figure(std::mem_fn(&Outcome::baseline)),
       schema({"number", "boolean"}, true)},
      {"against", "The rule is on the pinned baseline, not on the last one",
       [](const Outcome& of) { return of.pinned ? std::optional("pinned") : std::nullopt; },
       Absent(OneOf("pinned"))},
      Fields<Outcome>::Inline([](const Outcome& of) { return of.engine_value ? &of : nullptr; },
                              engine_value),
      {"engine_pass", "The engine's own verdict on the rule, where its logs have one",
       &Outcome::engine_pass, Absent()}};
  return fields;
}

const Fields<Noise>& NoiseFields() {
  const auto median = [](double (Noise::*of)() const) {
    return [=](const Noise& noise) {
      return noise.baseline_tps.empty() ? std::nullopt : std::optional((noise.*of)());
    };
  };
  static const Fields<Noise> fields = {
      {"runs", "Equal baselines that were timed; 0 if none was",
       [](const Noise& noise) { return noise.baseline_tps.size(); }},
      {"attention_tps", "Speed of attention in each baseline, in decode steps/s",
       &Noise::baseline_tps},
      {"median_tps", "Median of the speeds; null if nothing was timed", median(&Noise::baseline)},
      {"candidate_attention_tps",
       "Speed of attention in each run with eviction and compression, in decode steps/s",
       &Noise::candidate_tps},
      {"candidate_median_tps", "Median of the speeds; null if nothing was timed",
       median(&Noise::candidate)},
      {"relative",
       "Larger of the two spreads, each (largest - smallest) / median; null with fewer than two "
       "baselines",
       &Noise::relative}};
  return fields;
}

const Fields<RowFigures>& RowFiguresFields() {
  static const Fields<RowFigures> fields = {
      {"prompt_tokens", "Tokens of the prompt", &RowFigures::prompt_tokens},
      {"decode_tokens", "Tokens decoded after the prompt", &RowFigures::decode_tokens},
      {"h2o_lossy_ratio", "Ratio of the last eviction plan, of one layer, as the engine reports it",
       &RowFigures::lossy_ratio},
      {"h2o_lossless_ratio", "Lossless ratio as the engine reports it",
       &RowFigures::lossless_ratio},
      {"whole_model_ratio",
       "Bytes of K and V of the whole sequence / those resident at the end, all layers",
       &RowFigures::whole_model_ratio},
      {"measured_ratio",
       "Raw / compressed bytes of the ranges that were compressed and decoded; null if nothing "
       "was",
       &RowFigures::measured_ratio},
      {"attention_error_mean", "Mean of |o - o'| / |o| of attention outputs; null if not measured",
       &RowFigures::attention_error_mean}};
  return fields;
}

const Fields<LayerFigures>& LayerFiguresFields() {
  static const Fields<LayerFigures> fields = {
      {"layer", "Number of the layer", &LayerFigures::layer},
      {"k_ratio", "Raw / compressed bytes of verified K; null if none was compressed",
       &LayerFigures::k_ratio},
      {"v_ratio", "Raw / compressed bytes of verified V; null if none was compressed",
       &LayerFigures::v_ratio},
      {"attention_error", "Mean over steps of |o - o'| / |o|; null if not measured",
       &LayerFigures::attention_error}};
  return fields;
}

const Fields<ResidentSample>& ResidentSampleFields() {
  static const Fields<ResidentSample> fields = {
      {"token", "Position of the token decoded", &ResidentSample::token},
      {"bytes", "Bytes held after the token, all layers", &ResidentSample::bytes}};
  return fields;
}

const Fields<Tolerance>& ToleranceFields() {
  constexpr const char* kOfK = "Tolerance of K, absolute; null: stored bits decide";
  constexpr const char* kOfV = "Tolerance of V, absolute; null: stored bits decide";
  using OfLayer = std::pair<uint32_t, Tolerance::OfBoth>;
  static const Fields<OfLayer> layer = {
      {"layer", "Number of the layer", &OfLayer::first},
      {"k", kOfK, [](const OfLayer& of) { return of.second[0]; }},
      {"v", kOfV, [](const OfLayer& of) { return of.second[1]; }}};
  static const Fields<Tolerance> fields = {
      {"k", kOfK, [](const Tolerance& of) { return of.all[0]; }},
      {"v", kOfV, [](const Tolerance& of) { return of.all[1]; }},
      {"layers", "Layers with tolerances of their own",
       [](const Tolerance& of) {
         return of.layers.empty() ? std::nullopt : std::optional(of.layers);
       },
       layer, Absent()}};
  return fields;
}

const Fields<CaseResult>& ReferenceFields() {
  using Result = CaseResult;
  static const Fields<Result> fields = {
      {"file", "Path of the reference (B) as given; A is the cache",
       [](const Result& of) { return of.spec.reference; }},
      {"tolerance", "How far a value may lie from the reference's; null: stored bits decide",
       [](const Result& of) { return of.spec.tolerance; }, ToleranceFields()},
      Fields<Result>::Inline([](const Result& of) -> const SnapshotDiff& { return *of.reference; },
                             DifferenceFields())};
  return fields;
}

// A case of a summary.
struct CaseEntry {
  const GateResult& gate;
  const CaseResult& result;
};

auto ResultGetter(auto member) {
  return [=](const CaseEntry& of) { return of.result.*member; };
}

const Fields<CaseEntry>& CaseInputFields() {
  const auto text = [](const std::string& (*get)(const CaseResult&)) {
    return [=](const CaseEntry& of) { return TextOrNull(get(of.result)); };
  };
  static const Fields<CaseEntry> fields = {
      {"snapshot", "Path of the case's snapshot as given; null without a snapshot",
       text([](const CaseResult& of) -> const std::string& { return of.spec.snapshot; })},
      {"snapshot_xxh3",
       "XXH3 hash of the snapshot's files, 16 hexadecimal digits; null without a snapshot",
       text([](const CaseResult& of) -> const std::string& { return of.snapshot_hash; }),
       {.pattern = kHashPattern}},
      {"trace", "Path of the case's attention trace as given; null without a trace",
       text([](const CaseResult& of) -> const std::string& { return of.spec.trace; })},
      {"trace_xxh3",
       "XXH3 hash of the trace's files, 16 hexadecimal digits; null without a trace",
       text([](const CaseResult& of) -> const std::string& { return of.trace_hash; }),
       {.pattern = kHashPattern}}};
  return fields;
}

const Fields<CaseEntry>& CaseFigureFields() {
  static const Fields<CaseEntry> fields = {
      {"rows", "Figures of each prompt length", ResultGetter(&CaseResult::rows),
       RowFiguresFields()},
      {"layers", "Figures of each layer, in the row with the least whole_model_ratio",
       ResultGetter(&CaseResult::layers), LayerFiguresFields()},
      {"resident_over_time", "Bytes of K and V held during decoding, in about 512 samples at most",
       ResultGetter(&CaseResult::resident_over_time), ResidentSampleFields()},
      {"baseline_noise", "Noise of speeds over the case's snapshot",
       ResultGetter(&CaseResult::noise), NoiseFields()}};
  return fields;
}

// Returns the parameters of the replay by their names.
Value ListParams(const CaseEntry& of) {
  Value params = Value::Object();
  for (const auto& [name, value] : of.result.spec.params) {
    const auto* number = std::get_if<double>(&value);
    params.Put(name, number != nullptr ? FigureValue(*number, false)
                                       : Value(std::get<std::string>(value)));
  }
  return params;
}

// Returns why figures are unknown, by their names.
Value ListReasons(const CaseEntry& of) {
  Value reasons = Value::Object();
  for (const MetricInfo* info : of.gate.engine->Metrics()) {
    const Measurement* found = of.result.measured.Find(info->name);
    if (found != nullptr && !found->value) reasons.Put(info->name, found->reason);
  }
  return reasons;
}

Fields<CaseEntry> CaseFields(const Engine& engine,
                             std::string_view (*param_text)(std::string_view)) {
  const auto spec = [](std::string CaseSpec::*member) {
    return [=](const CaseEntry& of) { return of.result.spec.*member; };
  };
  const auto figures = [](Voice voice) {
    return [=](const CaseEntry& of) { return MakeFigures(*of.gate.engine, of.result, voice); };
  };
  Value::List suites;
  for (const SuiteInfo& suite : engine.suites) suites.emplace_back(suite.name);
  return {
      {"name", "Name of the case", spec(&CaseSpec::name)},
      {"suite",
       "Suite of the engine that the case belongs to",
       spec(&CaseSpec::suite),
       {.choices = std::move(suites)}},
      {"mode", "Mode of the case: a mode of the engine, compare or quant", spec(&CaseSpec::mode)},
      {"status", "Outcome of the case", [](const CaseEntry& of) { return Name(of.result.status); },
       OneOf("pass", "fail", "not_run", "inconclusive")},
      {"reason", "Why it failed, was not run or is inconclusive; empty if it passed",
       ResultGetter(&CaseResult::reason)},
      {"origin",
       "Source of the figures: replay, engine_logs, compare (a cache against its reference); none "
       "if the case was not run",
       [](const CaseEntry& of) { return Name(of.result.origin); },
       OneOf("replay", "engine_logs", "compare", "none")},
      Fields<CaseEntry>::Inline(CaseInputFields()),
      {"params",
       "Parameters of the replay under the engine's names",
       ListParams,
       {.schema = ParamsSchema(engine, param_text)}},
      {"rules", "Outcome of each rule", ResultGetter(&CaseResult::rules), RuleFields()},
      {"engine",
       "Figures by the engine's definitions: those of a replay, or the whole row of the engine's "
       "logs",
       figures(Voice::kOriginal),
       {.schema = EngineFiguresSchema(engine)}},
      {"true_figures",
       "The run in kvtool's own figures",
       figures(Voice::kTrue),
       {.schema = TrueFiguresSchema(engine)}},
      {"reference", "How the cache differs from its reference, by layer, K and V",
       [](const CaseEntry& of) { return of.result.reference ? &of.result : nullptr; },
       ReferenceFields(), Absent()},
      {"not_measured",
       "Reason for each figure that is not known, by the figure's name",
       ListReasons,
       {.schema = Value::Object{{"type", "object"},
                                {"additionalProperties", Value::Object{{"type", "string"}}}}}},
      Fields<CaseEntry>::Inline(CaseFigureFields()),
      {"warnings", "Warnings on the case", ResultGetter(&CaseResult::warnings)}};
}

const Fields<Baseline>& BaselineFields() {
  const auto text = [](std::string Baseline::*member) {
    return [=](const Baseline& of) { return TextOrNull(of.*member); };
  };
  static const Fields<Baseline> fields = {
      {"file", "Path of the older summary as given", &Baseline::file},
      {"generated_at", "End of the older run; null if not stated", text(&Baseline::generated_at)},
      {"commit", "Commit of the older run; null if not stated", text(&Baseline::commit)},
      {"verdict", "Verdict of the older run; null if not stated", text(&Baseline::verdict)},
      {"missing_cases", "Cases of the older run that this run lacks", &Baseline::missing_cases},
      {"problems", "Why the older run says little or nothing about this run", &Baseline::problems}};
  return fields;
}

// Adds the first fields of a summary, before those of its rows.
void AddVerdict(const Engine& engine, Fields<GateSummary>& fields) {
  using Summary = GateSummary;
  fields.Add({"generated_at",
              "When the run ended, in UTC as 2026-02-21T15:29:22Z; null with --deterministic",
              [](const Summary& of) { return TextOrNull(of.generated_at); }});
  fields.Add({"commit", "Value of --commit; null if not given",
              [](const Summary& of) { return TextOrNull(of.result.commit); }});
  fields.Add({"overall_pass", "Whether the gate passed",
              [](const Summary& of) { return of.result.passed(); }});
  fields.Add({"verdict",
              "pass, fail, or inconclusive where no rule was broken and some case is too noisy to "
              "judge",
              [](const Summary& of) { return of.result.verdict(); },
              OneOf("pass", "fail", "inconclusive")});
  fields.Add({"reason", "Why the gate did not pass, all reasons on one line; empty if it passed",
              [](const Summary& of) { return of.result.reason(); }});
  fields.Add(
      {"total_cases", "Number of cases", [](const Summary& of) { return of.result.cases.size(); }});
  for (const SuiteInfo& suite : engine.suites) {
    fields.Add({suite.count_key, "Number of cases that belong to this suite",
                [suite](const Summary& of) { return of.result.count(suite); }});
  }
  const auto count = [&](std::string_view name, std::string_view text, Status status) {
    fields.Add({name, text, [=](const Summary& of) { return of.result.count(status); }});
  };
  count("passed_cases", "Cases that passed", Status::kPass);
  count("failed_cases", "Cases that failed", Status::kFail);
  count("not_run_cases", "Cases that were not decided", Status::kNotRun);
  count("inconclusive_cases", "Cases whose figures are within the noise of speeds",
        Status::kInconclusive);
}

Fields<GateSummary> MakeSummaryFields(const Engine& engine, const Fields<CaseEntry>& cases) {
  using Summary = GateSummary;
  const auto baseline = [](std::optional<Baseline> GateResult::*member) {
    return [=](const Summary& of) {
      const std::optional<Baseline>& older = of.result.*member;
      return older ? &*older : nullptr;
    };
  };
  Fields<Summary> fields = {};
  AddVerdict(engine, fields);
  fields.Add({"rows",
              "One row per case in the words of the engine's own suite",
              [](const Summary& of) {
                Value rows = Value::List();
                for (const CaseResult& item : of.result.cases) {
                  rows.Push(MakeRow(of.result, item, of.outputs));
                }
                return rows;
              },
              {.schema = Value::Object{{"type", "array"}, {"items", engine.report.row_schema()}}}});
  fields.Add({"cases", "One entry per case: its rules, and the figures behind them",
              [](const Summary& of) {
                std::vector<CaseEntry> entries;
                for (const CaseResult& item : of.result.cases) entries.push_back({of.result, item});
                return entries;
              },
              cases});
  fields.Add({"baseline_noise", "Noise of speeds in the case whose equal baselines differ most",
              [](const Summary& of) {
                const Noise* noise = of.result.worst_noise();
                return noise == nullptr ? Noise() : *noise;
              },
              NoiseFields()});
  fields.Add({"baseline", "The last run that this one is compared with; null without --baseline",
              baseline(&GateResult::baseline), BaselineFields()});
  fields.Add({"pinned", "The baseline that stays the same from run to run; null without --pinned",
              baseline(&GateResult::pinned), BaselineFields()});
  fields.Add({"engine_logs",
              "Verdict and remarks of the logs on the whole suite; only with --engine-logs",
              [](const Summary& of) { return of.result.engine_logs.value_or(Value()); },
              {.absent = true, .schema = engine.report.logs_schema()}});
  return fields;
}

}  // namespace

Value MakeRow(const GateResult& gate, const CaseResult& result, const OutputNames& outputs) {
  return result.logs ? FromJson(result.logs->row) : gate.engine->report.row(result, outputs);
}

const Fields<GateSummary>& SummaryFields(const Engine& engine,
                                         std::string_view (*param_text)(std::string_view name)) {
  static const Fields<CaseEntry> cases = CaseFields(engine, param_text);
  static const Fields<GateSummary> fields = MakeSummaryFields(engine, cases);
  return fields;
}

}  // namespace kv::gate
