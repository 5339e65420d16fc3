// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/first_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/bytes.h"
#include "lib/study/gate/thresholds.h"

namespace kv::gate {
namespace {

constexpr std::string_view kHead =
    R"(// Every limit below is what this data measured, less a margin: three standard deviations of the noise,
// which several recordings of the same thing show best ('kvtool gate --init RUN1 RUN2 ...'). With one
// recording, other tokens of it stand in for that. Edit what you like; comments are allowed.
// Engine "design" replays a runtime without the peculiarities of any engine; "mnn" is MNN's code as it is.
//   kvtool gate THIS              judges; exit status 0 passes, 1 fails, others are no verdict
//   kvtool gate --list-metrics    what rules can name, MNN's words too
//   kvtool schema gate-config     what else can stand here
)";

std::string Quoted(const std::string& text) { return Json(text).dump(-1, ' ', true); }

std::string Word(const ParamInfo& info) {
  return std::string(info.word.empty() ? info.name : info.word);
}

std::string ParamsText(const CaseSpec& spec) {
  std::string text;
  for (const auto& [name, value] : spec.params) {
    const ParamInfo* info = FindParam(spec.engine->params, name);
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
        rules[i].remark, Quoted(rule.shown()), Name(rule.op), FigureJson(rule.limit, false).dump(),
        i + 1 < rules.size() ? "," : "");
  }
  return text;
}

std::string CaseText(const MeasuredRun& run, const MeasuredCase& measured,
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
                      ParamsText(spec), RulesText(rules));
  return text;
}

// This case in all runs of the same kind, this run's first.
std::vector<const MeasuredCase*> Recordings(std::span<const MeasuredRun> runs,
                                            const MeasuredRun& own, size_t at) {
  std::vector<const MeasuredCase*> all = {&own.cases[at]};
  for (const MeasuredRun& run : runs) {
    if (&run != &own && run.kind == own.kind) all.push_back(&run.cases[at]);
  }
  return all;
}

}  // namespace

std::vector<uint64_t> SamplePrompts(const DataSize& size) {
  const uint64_t step = (size.tokens - size.prompt_tokens) / 8;
  if (step == 0) return {size.prompt_tokens};
  return {size.prompt_tokens, size.prompt_tokens + step, size.prompt_tokens + 2 * step};
}

std::string FirstConfig(std::span<const MeasuredRun> runs, Engines engines,
                        std::string_view made_by) {
  KV_ASSERT(!runs.empty() && !engines.empty());
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
      cases += (cases.empty() ? "" : ",\n") + CaseText(run, run.cases[i], rules);
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
