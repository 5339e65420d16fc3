// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "apps/kvtool/commands/gate/gate_cases.h"
#include "apps/kvtool/inputs/run_input.h"
#include "lib/core/base/hash.h"
#include "lib/engines/mnn/gate/engine.h"
#include "lib/engines/mnn/gate/replay_case.h"
#include "lib/study/gate/config.h"

namespace kv {
namespace {

namespace fs = std::filesystem;

// The ranges of the config are eighths of a cache, which shorter caches cannot supply.
constexpr uint64_t kFewestTokens = 32;
constexpr size_t kMostRuns = 100;

// Returns a path as a config reads it: relative to the config's folder.
std::string SeenFrom(const std::string& config, const std::string& path) {
  if (path.empty() || config.empty() || fs::path(path).is_absolute()) return path;
  const fs::path folder = fs::absolute(config).parent_path();
  const fs::path seen = fs::absolute(path).lexically_normal().lexically_relative(folder);
  return seen.empty() ? path : seen.string();
}

std::string FileName(const std::string& path) {
  const fs::path name = fs::path(path).lexically_normal();
  return (name.has_filename() ? name : name.parent_path()).filename().string();
}

uint64_t CountTokens(const Snapshot& snapshot) {
  uint64_t shortest = UINT64_MAX;
  for (const LayerKv& layer : snapshot.layers) {
    shortest = std::min(shortest, layer.k.tokens());
  }
  return shortest;
}

// Runs of the same text through the same layers count as recordings of one setting. Without
// recorded token ids, equal sizes decide.
std::string DescribeKind(const GateInputs::Pair& pair, const gate::DataSize& size) {
  const std::vector<int32_t>& tokens =
      pair.trace && !pair.trace->tokens.empty() ? pair.trace->tokens : pair.snapshot.tokens;
  const auto bytes = std::as_bytes(std::span(tokens));
  const KvTensor& k = pair.snapshot.layers.front().k;
  return fmt::format("{} {} {} {} {} {} {:016x}", size.layers, k.heads, k.head_dim, size.tokens,
                     size.prompt_tokens, size.has_attention, Hash64(bytes));
}

class Initialiser {
 public:
  Initialiser(const GateInit& init, GateInputs& inputs, Context& context)
      : init_(init),
        pool_(context.global.thread_count()),
        inputs_(inputs),
        progress_(context.console, context.global.progress_when(), "measure") {}

  gate::MeasuredRun Measure(const std::string& path, const std::string& name) {
    gate::CaseSpec base;
    base.snapshot = path;
    base.trace = init_.trace;
    base.mode = "store";
    GateInputs::Pair& pair = inputs_.Open(base, pool_);
    const gate::DataSize size = MeasureSize(path, pair);

    gate::MeasuredRun run;
    run.name = names_.Add(FileName(name));
    run.snapshot = SeenFrom(init_.output, path);
    run.trace = SeenFrom(init_.output, init_.trace);
    run.reading = {init_.reading.open.from, SeenFrom(init_.output, init_.reading.gguf),
                   init_.reading.kv_heads, init_.reading.head_dim};
    run.kind = DescribeKind(pair, size);
    run.has_attention = size.has_attention;
    for (gate::SizedCase& sized : mnn::SizedCases(size)) {
      sized.spec.name = run.name + "-" + sized.spec.name;
      run.cases.push_back(MeasureCase(std::move(sized), size, pair));
    }
    return run;
  }

 private:
  gate::DataSize MeasureSize(const std::string& path, const GateInputs::Pair& pair) const {
    gate::DataSize size;
    size.layers = pair.snapshot.layers.size();
    size.tokens = CountTokens(pair.snapshot);
    if (size.tokens < kFewestTokens) {
      throw Error(Finding::kUsage,
                  "a cache of {} tokens is too short to set thresholds: at least {} are needed",
                  size.tokens, kFewestTokens)
          .File(path)
          .Hint("to judge a short cache, write a config with your own rules");
    }
    std::optional<uint64_t> prompt = init_.prompt_tokens;
    if (const auto run = OpenRun(path); !prompt && run && run->prompt_tokens != 0) {
      prompt = run->prompt_tokens;
    }
    if (pair.trace) {
      if (!prompt) prompt = pair.trace->prompt_tokens;
      size.tokens = std::min(size.tokens, pair.trace->end_position());
      size.has_attention = !pair.trace->block_scores && !pair.trace->layers.empty();
    }
    // Without a stated end, the prompt is taken to be the larger part of the cache.
    size.prompt_tokens = prompt.value_or(size.tokens - size.tokens / 4);
    if (size.prompt_tokens == 0 || size.prompt_tokens >= size.tokens) {
      throw Error(Finding::kUsage,
                  "the prompt of {} tokens leaves nothing of the cache's {} to decode",
                  size.prompt_tokens, size.tokens)
          .File(path)
          .Hint("--prompt-tokens N says where the prompt ends");
    }
    return size;
  }

  gate::MeasuredCase MeasureCase(gate::SizedCase sized, const gate::DataSize& size,
                                 GateInputs::Pair& pair) {
    gate::MeasuredCase measured{std::move(sized), {}};
    // In samples the prompt ends elsewhere than in the trace, whose views are shared.
    std::optional<AttentionTrace> trace = pair.trace;
    const bool is_stream = trace && trace->block_scores;
    if (trace && !is_stream) trace->prompt_tokens.reset();
    const gate::Subject subject{pair.snapshot, trace ? &*trace : nullptr,
                                /*deterministic=*/true, pool_, &pair.of_snapshot};
    for (const uint64_t prompt : gate::SamplePrompts(size)) {
      gate::CaseSpec spec = measured.sized.spec;
      spec.prompt_tokens = {prompt};
      measured.samples.push_back(mnn::ReplayCase(spec, subject, &progress_));
      if (is_stream) break;
    }
    return measured;
  }

  const GateInit& init_;
  ThreadPool pool_;
  GateInputs& inputs_;
  ProgressLine progress_;
  gate::CaseNames names_;
};

// Returns the text of the config, with the runs' names.
std::string MeasureConfig(const GateInit& init, const std::vector<std::string>& names,
                          GateInputs& inputs, Context& context) {
  Initialiser initialiser(init, inputs, context);
  std::vector<gate::MeasuredRun> runs;
  for (size_t i = 0; i < init.runs.size(); ++i) {
    runs.push_back(initialiser.Measure(init.runs[i], names[i]));
  }
  const nlohmann::ordered_json tool = ReportHeader("gate-config")["tool"];
  std::string text = gate::FirstConfig(
      runs, mnn::Engine(),
      fmt::format("Written by kvtool {} gate --init for {}.", tool["version"].get<std::string>(),
                  Plural(runs.size(), "run")));
  if (!text.empty()) return text;
  const auto& samples = runs.front().cases.front().samples;
  const gate::Measurement* why = samples.front().measured.Find("measured_ratio");
  throw Error(
      Finding::kUnsupportedKind,
      "nothing could be measured: " + (why == nullptr ? std::string("no figure") : why->reason))
      .File(init.runs.front());
}

}  // namespace

ExitStatus RunGateInit(const GateInit& init, Context& context) {
  if (init.runs.empty() || init.runs.size() > kMostRuns) {
    throw Error(Finding::kUsage, "--init: expected 1 to {} recorded runs or snapshots", kMostRuns);
  }
  if (init.runs.size() > 1 && !init.trace.empty()) {
    throw Error(Finding::kUsage,
                "--init: --trace goes with a single snapshot; runs bring their own");
  }
  // An existing output is refused before the first run is measured.
  std::optional<AtomicFile> file;
  if (!init.output.empty()) file.emplace(init.output, RulesFor(init.force));
  GateInputs inputs(context.console, init.reading);
  const std::string text = MeasureConfig(init, init.runs, inputs, context);
  // A config that cannot be read again is never written.
  const size_t cases = gate::ParseConfig(text, "", mnn::Engine()).cases.size();
  if (!file) {
    context.console.Product(text);
    return kDone;
  }
  file->Write(AsBytes(text));
  file->Commit();
  context.console.Line(fmt::format("{}: {} from {}; next: kvtool gate {}", Printable(init.output),
                                   Plural(cases, "case"), Plural(init.runs.size(), "run"),
                                   Printable(init.output)));
  return kDone;
}

gate::Config FitConfig(const GateInit& init, const std::string& name, GateInputs& inputs,
                       Context& context) {
  gate::Config config =
      gate::ParseConfig(MeasureConfig(init, {name}, inputs, context), "", mnn::Engine());
  for (gate::CaseSpec& spec : config.cases) {
    // Sets the paths as given. Those of a config are relative to its folder, but `inputs` find
    // their files under the given paths.
    spec.snapshot = init.runs.front();
    spec.trace = init.trace;
    spec.reading = {};
    for (gate::Rule& rule : spec.rules) {
      if (rule.metric == "content.not_finite" || rule.metric == "runtime_failures") rule.limit = 0;
    }
  }
  return config;
}

}  // namespace kv
