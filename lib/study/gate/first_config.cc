// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/number.h"
#include "lib/study/gate/config.h"

namespace kv::gate {
namespace {

// A margin is this many standard deviations of the noise; normal noise exceeds it once in 740
// times.
constexpr double kDeviations = 3;

// A figure with a limit on its worse side. Margins are shares of the measured value: at least
// `least`, to allow for rounding and small changes of kvtool itself, and at most `most` if there is
// only one recording. Then the noise is estimated from other tokens of that recording, and an
// estimate must not make a gate that cannot fail.
struct Watched {
  std::string_view metric, word;
  Op op;
  double least, most;
  std::string_view why = {};
};

constexpr Watched kWatched[] = {
    {"measured_ratio", {}, Op::kAtLeast, 0.01, 0.10},
    {"layer_ratio.least", {}, Op::kAtLeast, 0.02, 0.10},
    {"layer_ratio.most",
     {},
     Op::kAtMost,
     0.10,
     0.25,
     "a layer that suddenly compresses much better has lost its content"},
    {"whole_model_ratio", {}, Op::kAtLeast, 0.01, 0.10},
    {"lossy_worst", "eviction_ratio", Op::kAtLeast, 0.01, 0.10},
    {"attention_error.evicting_mean", {}, Op::kAtMost, 0.05, 0.25},
    {"attention_error.evicting_p95", {}, Op::kAtMost, 0.05, 0.25},
};

struct Scatter {
  double least = 0, most = 0, deviation = 0;
};

Scatter MeasureScatter(const std::vector<double>& values) {
  Scatter spread;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  spread.least = *low;
  spread.most = *high;
  if (values.size() < 2) return spread;
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  for (const double value : values) squares += (value - mean) * (value - mean);
  spread.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
  return spread;
}

// Rounds to four digits away from the measured value: the limit is readable and never too strict.
double Outward(double limit, Op op) {
  if (limit == 0) return 0;
  const double unit = std::pow(10.0, std::floor(std::log10(std::abs(limit))) - 3);
  const double steps = op == Op::kAtLeast ? std::floor(limit / unit) : std::ceil(limit / unit);
  // Reads the decimal text again, because powers of ten below 1 would leave rounding errors.
  return ParseNumber<double>(fmt::format("{:.4g}", steps * unit)).value();
}

std::vector<double> Known(std::string_view metric, std::span<const CaseResult* const> results) {
  std::vector<double> values;
  for (const CaseResult* result : results) {
    if (const auto value = result->measured.Value(metric)) values.push_back(*value);
  }
  return values;
}

std::string Percent(double share) { return fmt::format("{:.2g}%", 100 * share); }

// Returns true if a figure is meaningful in this case: a ratio of 1 without evictions is not.
bool Says(const Watched& watched, const CaseResult& result) {
  if (!result.measured.Value(watched.metric)) return false;
  const bool of_eviction = watched.metric == "lossy_worst" || watched.metric == "whole_model_ratio";
  return !of_eviction || result.measured.Value("evictions").value_or(0) > 0;
}

std::optional<SizedRule> Size(const Watched& watched,
                              std::span<const MeasuredCase* const> recordings) {
  const CaseResult& own = recordings.front()->samples.front();
  if (!Says(watched, own)) return std::nullopt;
  const double measured = *own.measured.Value(watched.metric);
  std::vector<const CaseResult*> firsts, samples;
  for (const MeasuredCase* one : recordings) firsts.push_back(&one->samples.front());
  for (const CaseResult& sample : recordings.front()->samples) samples.push_back(&sample);
  const std::vector<double> across = Known(watched.metric, firsts),
                            within = Known(watched.metric, samples);
  const Scatter repeats = MeasureScatter(across), tokens = MeasureScatter(within);
  const bool repeated = across.size() > 1;
  // Recordings of the same setting show its noise itself; other tokens only approximate it.
  const Scatter& noise = repeated ? repeats : tokens;
  const double worst = watched.op == Op::kAtLeast ? repeats.least : repeats.most;
  if (!(worst > 0)) return std::nullopt;
  const double wanted = kDeviations * noise.deviation / worst;
  const double share = std::max(watched.least, repeated ? wanted : std::min(wanted, watched.most));

  SizedRule sized;
  const double limit = worst * (watched.op == Op::kAtLeast ? 1 - share : 1 + share);
  sized.rule = {std::string(watched.metric), watched.op, Outward(limit, watched.op), true};
  sized.rule.word = watched.word;
  const Measurement& place = *own.measured.Find(watched.metric);
  std::string& text = sized.remark;
  text = fmt::format("measured {:.4g}", measured);
  if (place.where.known()) text += ", decided by " + Text(place.where);
  if (repeated) {
    text += fmt::format("; {} recordings: {:.4g} to {:.4g}, noise {}", across.size(), repeats.least,
                        repeats.most, Percent(noise.deviation / worst));
  } else if (within.size() > 1) {
    text += fmt::format("; over {} samples of its tokens: {:.4g} to {:.4g}, noise {}",
                        within.size(), tokens.least, tokens.most, Percent(noise.deviation / worst));
  }
  text += "; margin " + Percent(share);
  if (share > wanted) text += " (the smallest allowed)";
  if (share < wanted) text += " (the largest allowed without a second recording)";
  if (!watched.why.empty()) text += "; " + std::string(watched.why);
  return sized;
}

// Exact figures have no margin.
void AddExact(const CaseResult& own, std::vector<SizedRule>& rules) {
  const auto add = [&](const char* metric, Op op, double limit, std::string remark) {
    rules.push_back({{metric, op, limit, true}, std::move(remark)});
  };
  const auto value = [&](const char* metric) { return own.measured.Value(metric).value_or(0); };
  if (const double ranges = value("content.compared_ranges"); ranges > 0) {
    add("content.mismatches", Op::kAtMost, 0,
        fmt::format("exact: {:.0f} ranges were decoded and compared with their source", ranges));
    add("content.compared_ranges", Op::kAtLeast, 1, "so that comparing nothing fails");
  }
  if (value("evictions") > 0) {
    add("evictions", Op::kAtLeast, 1,
        fmt::format("measured {:.0f}; so that evicting nothing fails", value("evictions")));
  }
  add("runtime_failures", Op::kAtMost, value("runtime_failures"), "exact");
  const double broken = value("content.not_finite");
  add("content.not_finite", Op::kAtMost, broken,
      broken == 0 ? "exact: no NaN and no infinite value"
                  : fmt::format("this run already has {:.0f} NaN or infinite values", broken));
}

constexpr std::string_view kHead =
    R"(// Every limit below is what this data measured, less a margin: three standard deviations of the noise,
// which several recordings of the same thing show best ('kvtool gate --init RUN1 RUN2 ...'). With one
// recording, other tokens of it stand in for that. Edit what you like; comments are allowed.
// Engine "design" replays a runtime without the peculiarities of any engine; "mnn" is MNN's code as it is.
//   kvtool gate THIS              judges; exit status 0 passes, 1 fails, others are no verdict
//   kvtool gate --list-metrics    what rules can name, MNN's words too
//   kvtool schema gate-config     what else it can contain
)";

std::string Quoted(const std::string& text) { return Json(text).dump(-1, ' ', true); }

std::string Word(const ParamInfo& info) {
  return std::string(info.word.empty() ? info.name : info.word);
}

std::string ParamsText(const Engine& engine, const CaseSpec& spec) {
  std::string text;
  for (const auto& [name, value] : spec.params) {
    const ParamInfo* info = FindParam(engine.params, name);
    KV_ASSERT(info != nullptr);
    const auto* number = std::get_if<double>(&value);
    text +=
        fmt::format("{}\n        {}: {}", text.empty() ? "" : ",", Quoted(Word(*info)),
                    number != nullptr ? fmt::format("{}", *number) : Quoted(std::get<1>(value)));
  }
  return text;
}

std::string RulesText(const std::vector<SizedRule>& rules) {
  std::string text;
  for (size_t i = 0; i < rules.size(); ++i) {
    const Rule& rule = rules[i].rule;
    text += fmt::format(
        "        // {}\n        {{\"metric\": {}, \"op\": \"{}\", \"limit\": {}, \"required\": "
        "true}}{}\n",
        rules[i].remark, Quoted(rule.shown()), Name(rule.op),
        ToJson(FigureValue(rule.limit, false)).dump(), i + 1 < rules.size() ? "," : "");
  }
  return text;
}

std::string CaseText(const Engine& engine, const MeasuredRun& run, const MeasuredCase& measured,
                     const std::vector<SizedRule>& rules) {
  const CaseSpec& spec = measured.sized.spec;
  std::string text = fmt::format("    {{\n      // {}\n      \"name\": {},\n",
                                 measured.sized.question, Quoted(spec.name));
  const auto member = [&](const char* key, const std::string& value) {
    if (!value.empty()) text += fmt::format("      \"{}\": {},\n", key, Quoted(value));
  };
  const auto count = [&](const char* key, uint64_t value) {
    if (value != 0) text += fmt::format("      \"{}\": {},\n", key, value);
  };
  member("snapshot", run.snapshot);
  member("trace", run.trace);
  member("from", run.reading.from);
  member("gguf", run.reading.gguf);
  count("kv_heads", run.reading.kv_heads);
  count("head_dim", run.reading.head_dim);
  count("prompt_tokens", spec.prompt_tokens.front());
  member("engine", spec.runtime);
  member("mode", spec.mode);
  text += fmt::format("      \"params\": {{{}\n      }},\n      \"rules\": [\n{}      ]\n    }}",
                      ParamsText(engine, spec), RulesText(rules));
  return text;
}

// Returns this case in all runs of the same kind, this run's first.
std::vector<const MeasuredCase*> Recordings(std::span<const MeasuredRun> runs,
                                            const MeasuredRun& own, size_t at) {
  std::vector<const MeasuredCase*> all = {&own.cases[at]};
  for (const MeasuredRun& run : runs) {
    if (&run != &own && run.kind == own.kind) all.push_back(&run.cases[at]);
  }
  return all;
}

}  // namespace

std::vector<SizedRule> SizeRules(std::span<const MeasuredCase* const> recordings) {
  std::vector<SizedRule> rules;
  for (const Watched& watched : kWatched) {
    if (auto rule = Size(watched, recordings)) rules.push_back(std::move(*rule));
  }
  if (!rules.empty()) AddExact(recordings.front()->samples.front(), rules);
  return rules;
}

std::vector<uint64_t> SamplePrompts(const DataSize& size) {
  const uint64_t step = (size.tokens - size.prompt_tokens) / 8;
  if (step == 0) return {size.prompt_tokens};
  return {size.prompt_tokens, size.prompt_tokens + step, size.prompt_tokens + 2 * step};
}

std::string FirstConfig(std::span<const MeasuredRun> runs, const Engine& engine,
                        std::string_view made_by) {
  KV_ASSERT(!runs.empty());
  std::string cases, names, remarks;
  for (const MeasuredRun& run : runs) {
    for (size_t i = 0; i < run.cases.size(); ++i) {
      const CaseResult& own = run.cases[i].samples.front();
      const std::vector<SizedRule> rules = SizeRules(Recordings(runs, run, i));
      if (rules.empty()) {
        const Measurement* ratio = own.measured.Find("measured_ratio");
        remarks += fmt::format("  // No case {}: {}\n", Escaped(run.cases[i].sized.spec.name),
                               ratio == nullptr ? "nothing was measured" : Escaped(ratio->reason));
        continue;
      }
      cases += (cases.empty() ? "" : ",\n") + CaseText(engine, run, run.cases[i], rules);
      names += (names.empty() ? "" : ", ") + Quoted(run.cases[i].sized.spec.name);
    }
    if (run.has_attention) continue;
    remarks += fmt::format(
        "  // {}: no attention was recorded, so nothing here says what eviction would cost.\n",
        Escaped(run.name));
  }
  if (cases.empty()) return {};
  return fmt::format(
      "// {}\n{}{{\n  \"schema\": \"kvtool.gate-config/1\",\n"
      "  // Each must be decided: a run that is missing, or that nothing can be measured on, "
      "fails.\n"
      "  \"expected_cases\": [{}],\n{}  \"cases\": [\n{}\n  ]\n}}\n",
      made_by, kHead, names, remarks, cases);
}

}  // namespace kv::gate
