// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/inputs/run_input.h"
#include "formats/torch/torch.h"
#include "formats/trace/trace.h"
#include "lib/core/base/word.h"
#include "lib/study/attention/probabilities.h"

namespace kv {
namespace {

nlohmann::ordered_json LayerJson(const AttentionTrace& trace, const TraceLayer& layer) {
  const AttentionRule rule = RuleOf(trace, layer);
  return {{"layer", layer.layer},
          {"queries", layer.queries.has_value()},
          {"probabilities", !layer.probabilities.empty()},
          {"keys", layer.keys.has_value()},
          {"values", layer.values.has_value()},
          {"gradients", layer.gradients.has_value()},
          {"scale", rule.scale},
          {"softcap", rule.softcap},
          {"window", rule.window}};
}

nlohmann::ordered_json GradientsJson(const AttentionTrace& trace) {
  if (!trace.gradients) return nullptr;
  const GradientRows& rows = *trace.gradients;
  return {{"g_start", rows.begin}, {"rows", rows.rows}, {"samples", rows.samples}};
}

nlohmann::ordered_json DescribeTrace(const AttentionTrace& trace) {
  nlohmann::ordered_json json = ReportHeader("trace");
  json["inputs"] = {{{"file", trace.path}}};
  json["file"] = trace.path;
  json["format"] = WithUnderscores(trace.format);
  json["level"] = WithUnderscores(Name(trace.level));
  json["engine"] = trace.engine;
  json["model"] = trace.model;
  json["query_heads"] = trace.query_heads;
  json["kv_heads"] = trace.kv_heads;
  json["head_dim"] = trace.head_dim;
  json["q_start"] = trace.q_start;
  json["rows"] = trace.rows;
  json["prompt_tokens"] =
      trace.prompt_tokens ? nlohmann::ordered_json(*trace.prompt_tokens) : nullptr;
  json["scale"] = trace.scale;
  json["softcap"] = trace.softcap;
  json["window"] = trace.window;
  json["rope"] = trace.rope;
  json["tokens"] = trace.tokens.size();
  json["gradients"] = GradientsJson(trace);
  json["layers"] = nlohmann::ordered_json::array();
  for (const TraceLayer& layer : trace.layers) json["layers"].push_back(LayerJson(trace, layer));
  return json;
}

// What a layer does otherwise than the rest, as text to append.
std::string OwnRule(const LayerRule& rule) {
  std::string text;
  if (rule.scale) text += fmt::format(", scale {:g}", *rule.scale);
  if (rule.softcap) text += fmt::format(", softcap {:g}", *rule.softcap);
  if (rule.window) text += fmt::format(", window {}", *rule.window);
  return text;
}

std::string Arrays(const TraceLayer& layer) {
  std::vector<std::string_view> names;
  if (layer.queries) names.push_back("queries");
  if (!layer.probabilities.empty()) names.push_back("probabilities");
  if (layer.keys) names.push_back("keys");
  if (layer.values) names.push_back("values");
  if (layer.gradients) names.push_back("gradients");
  return fmt::format("{}", fmt::join(names, " "));
}

std::string OrUnknown(uint64_t value) {
  return value == 0 ? std::string("not recorded") : std::to_string(value);
}

class Trace : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.RequireVerb();
    CommandLine* inspect = &line.AddVerb("inspect", "Show what a trace holds");
    inspect->Add("FILE", file_, "Trace: file, folder, or DIR/STEM of an npy set").Required();
    inspect->Add("--batch", options_.batch, "Batch row of [B, ...] tensors");
    inspect->Add("--layout", options_.layout, "Order of the axes of k and v: thd or htd");
    limit_.Declare(*inspect, "Limit on inflated or derived data and on streams (default 64GiB)");
    report_.Declare(*inspect);
  }

  void TakeRuns() override {
    const auto run = OpenRun(file_);
    if (!run) return;
    if (run->trace.empty()) {
      throw Error(Finding::kMissingRecord, "the run was recorded without a trace").File(file_);
    }
    file_ = run->trace;
  }

  void Files(CommandFiles& files) const override {
    files.Reads(file_);
    report_.Files(files);
  }

  // Attentions of torch have batches, and named arrays K and V in one of two orders.
  void RequireUse(const AttentionTrace& trace) const {
    const auto refuse = [&](std::string_view flag, std::string_view what) {
      throw Error(Finding::kUsage, fmt::format("{}: {}", flag, what))
          .File(file_)
          .Hint(fmt::format("leave {} out", flag));
    };
    const bool is_torch = IsTorchForm(trace.format);
    if (options_.batch && !is_torch) refuse("--batch", "this trace holds no batch");
    if (!options_.layout.empty() && (is_torch || trace.block_scores))
      refuse("--layout", "this trace holds no K and V");
  }

  ExitStatus Run(Context& context) override {
    if (const auto most = limit_.most()) options_.max_bytes = *most;
    const Source files = SizeLimit::WithHint([&] { return OpenTraceFiles(file_, options_); });
    const AttentionTrace trace = OpenTrace(files, options_);
    RequireUse(trace);
    nlohmann::ordered_json document = DescribeTrace(trace);
    for (const Note& note : trace.notes) context.console.Warn(file_, note.text);
    if (trace.block_scores) CountCalls(trace, document);
    if (!report_.json) Print(context.console, trace, document);
    report_.Emit(context.console, document, RulesFor(false));
    return kDone;
  }

 private:
  // A stream does not say its length: it is read to the end.
  static void CountCalls(const AttentionTrace& trace, nlohmann::ordered_json& document) {
    const auto reader = trace.block_scores->open();
    uint64_t calls = 0, steps = 0;
    while (const auto call = reader->Next()) {
      ++calls;
      steps = call->step;
    }
    document["calls"] = calls;
    document["steps"] = steps;
  }

  void Print(Console& console, const AttentionTrace& trace,
             const nlohmann::ordered_json& document) const {
    console.Line(
        fmt::format("{}: {} trace, {}", Printable(file_), Name(trace.level), trace.format));
    if (!trace.engine.empty() || !trace.model.empty()) {
      console.Line(
          fmt::format("  recorded by   {} {}", Printable(trace.engine), Printable(trace.model)));
    }
    console.Line(fmt::format("  query heads   {}", trace.query_heads));
    console.Line(fmt::format("  kv heads      {}", OrUnknown(trace.kv_heads)));
    console.Line(fmt::format("  head dim      {}", OrUnknown(trace.head_dim)));
    if (trace.block_scores) {
      console.Line(fmt::format("  layers        {}", trace.block_scores->layers));
      console.Line(fmt::format("  calls         {} in {} steps", document["calls"].dump(),
                               document["steps"].dump()));
    } else {
      console.Line(
          fmt::format("  positions     {} to {}", trace.q_start, trace.end_position() - 1));
    }
    console.Line(fmt::format("  prompt        {}",
                             trace.prompt_tokens ? fmt::format("{} tokens", *trace.prompt_tokens)
                                                 : "not recorded: --prompt-tokens"));
    if (trace.gradients) {
      const GradientRows& rows = *trace.gradients;
      console.Line(fmt::format("  gradients     {} samples of positions {} to {}", rows.samples,
                               rows.begin, rows.end() - 1));
    }
    for (const TraceLayer& layer : trace.layers) {
      console.Line(
          fmt::format("  layer {:<4}    {}{}", layer.layer, Arrays(layer), OwnRule(layer.rule)));
    }
  }

  std::string file_;
  OpenOptions options_;
  SizeLimit limit_;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeTrace() { return std::make_unique<Trace>(); }

}  // namespace kv
