// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool trace`: what a recorded trace of queries, attention or block scores contains.
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "formats/torch/torch.h"
#include "formats/trace/trace.h"
#include "lib/core/base/utf8.h"
#include "lib/study/attention/probabilities.h"

namespace kv {
namespace {

// The result of inspecting a trace; its document has these fields.
struct InspectedTrace {
  const AttentionTrace& trace;
  std::optional<uint64_t> calls = {}, steps = {};  // for a stream of block scores
};

struct TracedLayer {
  const TraceLayer& layer;
  AttentionRule rule;
};

const Fields<TracedLayer>& TracedLayerFields() {
  static const Fields<TracedLayer> fields = {
      {"layer", "Number of the layer", [](const TracedLayer& of) { return of.layer.layer; }},
      {"queries", "Whether the layer has queries",
       [](const TracedLayer& of) { return of.layer.queries.has_value(); }},
      {"probabilities", "Whether the layer has attention probabilities",
       [](const TracedLayer& of) { return !of.layer.probabilities.empty(); }},
      {"keys", "Whether the layer has keys",
       [](const TracedLayer& of) { return of.layer.keys.has_value(); }},
      {"values", "Whether the layer has values",
       [](const TracedLayer& of) { return of.layer.values.has_value(); }},
      {"gradients", "Whether the layer has gradients",
       [](const TracedLayer& of) { return of.layer.gradients.has_value(); }},
      {"scale", "Factor of the layer's attention scores; 0: 1 / sqrt(head_dim)",
       [](const TracedLayer& of) { return of.rule.scale; }, AtLeast(0)},
      {"softcap", "Softcap of the layer's attention scores; 0: none",
       [](const TracedLayer& of) { return of.rule.softcap; }, AtLeast(0)},
      {"window", "Tokens of the layer's sliding attention window; 0: none",
       [](const TracedLayer& of) { return of.rule.window; }}};
  return fields;
}

std::vector<TracedLayer> TracedLayers(const AttentionTrace& trace) {
  std::vector<TracedLayer> layers;
  for (const TraceLayer& layer : trace.layers) layers.push_back({layer, MakeRule(trace, layer)});
  return layers;
}

const Fields<AttentionTrace>& AttentionTraceFields() {
  using Trace = AttentionTrace;
  static const Fields<Trace> input = {{"file", "Name of the file as it was given", &Trace::path}};
  static const Fields<GradientRows> gradients = {
      {"g_start", "Position of the first row with gradients", &GradientRows::begin},
      {"rows", "Rows with gradients", &GradientRows::rows, AtLeast(1)},
      {"samples", "Next tokens that were drawn for each row with gradients", &GradientRows::samples,
       AtLeast(1)},
      {"evicted_samples", "Number of the last samples that are of states with evicted keys",
       &GradientRows::evicted}};
  static const Fields<Trace> fields = {
      {"inputs", "What was read", [](const Trace& of) { return std::span(&of, 1); }, input},
      {"file", "Name of the trace as it was given", &Trace::path},
      {"format", "Format of the trace, e.g. npy_set",
       [](const Trace& of) { return WithUnderscores(of.format); }},
      {"level", "Recorded data of each query row",
       [](const Trace& of) { return WithUnderscores(Name(of.level)); },
       OneOf("queries", "probabilities", "block_scores")},
      {"engine", "The engine that recorded it; empty: not recorded", &Trace::engine},
      {"model", "The model; empty: not recorded", &Trace::model},
      {"query_heads", "Query heads of a layer", &Trace::query_heads},
      {"kv_heads", "KV heads of a layer; 0: not recorded", &Trace::kv_heads},
      {"head_dim", "Values per query head; 0: not recorded", &Trace::head_dim},
      {"q_start", "Position of the first row", &Trace::q_start},
      {"rows", "Query rows, the same for every layer", &Trace::rows},
      {"prompt_tokens", "Tokens of the prompt; null: not recorded", &Trace::prompt_tokens},
      {"scale", "Factor of the attention scores; 0: 1 / sqrt(head_dim)", &Trace::scale},
      {"softcap", "Softcap of the attention scores; 0: none", &Trace::softcap},
      {"window", "Tokens of the sliding attention window; 0: none", &Trace::window},
      {"rope", "The RoPE as the recorder names it; empty: not recorded", &Trace::rope},
      {"tokens", "Token ids that were recorded", [](const Trace& of) { return of.tokens.size(); }},
      {"gradients", "Rows with gradients of the next token; null: no gradients", &Trace::gradients,
       gradients},
      {"layers", "Recorded data of each layer", TracedLayers, TracedLayerFields(), {.rows = true}}};
  return fields;
}

const Fields<InspectedTrace>& InspectedTraceFields() {
  static const Fields<InspectedTrace> fields = {
      Fields<InspectedTrace>::Inline(
          [](const InspectedTrace& of) -> const AttentionTrace& { return of.trace; },
          AttentionTraceFields()),
      {"calls", "Layer calls in a stream of block scores; absent for other traces",
       &InspectedTrace::calls, Absent()},
      {"steps", "Steps in a stream of block scores; absent for other traces",
       &InspectedTrace::steps, Absent()}};
  return fields;
}

// Returns the rules of a layer that differ from the common ones, as text to append.
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
    inspect->Add("FILE", input_, "Trace: file, folder, or DIR/STEM of an npy set").Required();
    inspect->Add("--batch", options_.batch, "Batch row of [B, ...] tensors");
    inspect->Add("--layout", options_.layout, "Order of the axes of k and v: thd or htd");
    limit_.Declare(*inspect, "Limit on inflated or derived data and on streams (default: 64GiB)");
    report_.Declare(*inspect);
  }

  void TakeRuns() override {
    const auto run = OpenRun(input_);
    if (!run) return;
    if (run->trace.empty()) {
      throw Error(Finding::kMissingRecord, "the run was recorded without a trace").File(input_);
    }
    input_ = run->trace;
  }

  // Throws if flags do not apply: attentions of torch have batches, and named arrays have K and V
  // in one of two orders.
  void RequireUse(const AttentionTrace& trace) const {
    const auto refuse = [&](std::string_view flag, std::string_view what) {
      throw Error(Finding::kUsage, "{}: {}", flag, what).File(input_).Hint("leave {} out", flag);
    };
    const bool is_torch = IsTorchForm(trace.format);
    if (options_.batch && !is_torch) refuse("--batch", "this trace holds no batch");
    if (!options_.layout.empty() && (is_torch || trace.block_scores))
      refuse("--layout", "this trace holds no K and V");
  }

  ExitStatus Run(Context& context) override {
    if (const auto most = limit_.most()) options_.max_bytes = *most;
    const Source files = SizeLimit::WithHint([&] { return OpenTraceFiles(input_, options_); });
    const AttentionTrace trace = OpenTrace(files, options_);
    RequireUse(trace);
    InspectedTrace result = {trace};
    for (const Note& note : trace.notes) context.console.Warn(input_, note.text);
    if (trace.block_scores) CountCalls(result);
    if (!report_.json) Print(context.console, result);
    report_.Emit(context.console, "trace", InspectedTraceFields, result);
    return kDone;
  }

 private:
  // A stream does not record its length, so it is read to the end.
  static void CountCalls(InspectedTrace& result) {
    const auto reader = result.trace.block_scores->open();
    uint64_t calls = 0, steps = 0;
    while (const auto call = reader->Next()) {
      ++calls;
      steps = call->step;
    }
    result.calls = calls;
    result.steps = steps;
  }

  void Print(Console& console, const InspectedTrace& result) const {
    const AttentionTrace& trace = result.trace;
    console.Line(
        fmt::format("{}: {} trace, {}", Printable(input_), Name(trace.level), trace.format));
    if (!trace.engine.empty() || !trace.model.empty()) {
      console.Line(
          fmt::format("  recorded by   {} {}", Printable(trace.engine), Printable(trace.model)));
    }
    console.Line(fmt::format("  query heads   {}", trace.query_heads));
    console.Line(fmt::format("  kv heads      {}", OrUnknown(trace.kv_heads)));
    console.Line(fmt::format("  head dim      {}", OrUnknown(trace.head_dim)));
    if (trace.block_scores) {
      console.Line(fmt::format("  layers        {}", trace.block_scores->layers));
      console.Line(fmt::format("  calls         {} in {} steps", *result.calls, *result.steps));
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

  OpenOptions options_;
  SizeLimit limit_;
};

}  // namespace

const FieldTable& TraceFields() { return InspectedTraceFields(); }

std::unique_ptr<Command> MakeTrace() { return std::make_unique<Trace>(); }

}  // namespace kv
