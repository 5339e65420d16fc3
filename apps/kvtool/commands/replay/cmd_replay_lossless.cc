// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool replay lossless`: MNN's lossless runtime on a cache.
#include <fmt/format.h>

#include <algorithm>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/inputs/each_command.h"
#include "apps/kvtool/inputs/run_input.h"
#include "apps/kvtool/line/numbers.h"
#include "apps/kvtool/line/options.h"
#include "formats/trace/trace.h"
#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"
#include "lib/core/snapshot/attention_trace.h"
#include "lib/engines/mnn/runtime/replay.h"

namespace kv {
namespace {

constexpr std::string_view kLosslessPrefix = "h2o_lossless_";

// The engine's parameters as flags: h2o_lossless_front_n is --front-n, h2o_layer_start is
// --h2o-layer-start. What replay-h2o calls --NAME is --h2o-NAME here.
class ParameterFlags {
 public:
  void Declare(CommandLine& line) {
    mnn::runtime::Config defaults;
    SwitchOn(defaults);
    mnn::runtime::ForEachParameter(defaults, [&](std::string_view name, const auto& value) {
      Add(line, name, WriteValue(value),
          "The engine's lossless parameters (defaults as in the engine, but switched on)");
    });
    mnn::h2o::ForEachParameter({}, [&](std::string_view name, double value) {
      const bool is_word = name == "h2o_target_mode";
      Add(line, name, is_word ? "adaptive" : WriteValue(value),
          "The engine's H2O parameters (defaults as in the engine)");
    });
    line.Add("--h2o-enable", h2o_enable_,
             "1: H2O evicts (default: 0; 1 with --preset gate or block scores)")
        .Between(0, 1)
        .Group("The engine's H2O parameters (defaults as in the engine)");
  }

  // Sets the parameters. A recorded stream of block scores keeps those that it was recorded with.
  void Apply(bool gate, const AttentionTrace* trace, mnn::runtime::ReplayRequest& request) const {
    SwitchOn(request.lossless);
    if (gate) {
      request.lossless = mnn::runtime::GateConfig(request.lossless.mode);
      request.h2o = mnn::runtime::GateH2oConfig();
    }
    const bool is_stream = trace != nullptr && trace->block_scores.has_value();
    if (is_stream) {
      for (const auto& [name, value] : trace->block_scores->parameters) {
        mnn::h2o::SetParameter(name, value, request.h2o);
      }
    }
    request.h2o_enable = h2o_enable_ < 0 ? gate || is_stream : h2o_enable_ == 1;
    for (const auto& [name, text] : given_) Set(name, text, request);
  }

 private:
  // Turns on the engine's switches, which are off by default, because this command is about the
  // path.
  static void SwitchOn(mnn::runtime::Config& config) {
    config.enable = config.gear_delta = config.runtime_enable = true;
  }

  static std::string WriteValue(const mnn::runtime::ParameterValue& value) {
    if (const auto* number = std::get_if<double>(&value)) {
      return fmt::format("{}", static_cast<float>(*number));
    }
    return std::string(std::get<std::string_view>(value));
  }

  void Add(CommandLine& line, std::string_view name, const std::string& fallback,
           const std::string& group) {
    if (name == "h2o_lossless_runtime_mode") return;  // --mode
    const std::string meta(name);
    const ParameterText& told = RuntimeParameterText(name);
    Option option = line.OnText(
        FlagNames(told, kLosslessPrefix),
        [this, meta](const std::string& text) { given_.emplace_back(meta, text); },
        fmt::format("{} ({}; {})", told.text, fallback, name));
    option.Group(group);
    if (name == "h2o_lossless_scope") {
      option.OneOf({"none", "front_n", "h2o_kept", "front_n_and_h2o_kept", "front_n+h2o_kept", "0",
                    "1", "2", "3"});
    } else if (name == "h2o_lossless_codec") {
      option.OneOf({"none", "gear_delta"});
    } else if (name == "h2o_target_mode") {
      option.OneOf({"adaptive", "static"});
    } else {
      option.ValueName(std::string(told.value));
    }
    option.Check(ParameterCheck(meta));
  }

  static void Set(const std::string& name, const std::string& text,
                  mnn::runtime::ReplayRequest& request) {
    if (name == "h2o_target_mode") {
      mnn::h2o::SetParameter(name, text == "static" ? 0 : 1, request.h2o);
      return;
    }
    const auto number = ParseNumber<double>(text);
    if (name.starts_with(kLosslessPrefix)) {
      mnn::runtime::ParameterValue value = std::string_view(text);
      if (number) value = *number;
      if (mnn::runtime::SetParameter(name, value, request.lossless) ==
          mnn::runtime::SetResult::kSet)
        return;
    } else if (number && mnn::h2o::SetParameter(name, *number, request.h2o)) {
      return;
    }
    throw Error(Finding::kUsage, "{} is a number, not '{}'", name, Escaped(text));
  }

  std::vector<std::pair<std::string, std::string>> given_;  // meta name, text
  int h2o_enable_ = -1;
};

struct RecordedAttention {
  std::string file, level;
};

struct LosslessResult {
  std::vector<HashedFile> inputs;
  std::optional<RecordedAttention> trace;
  std::optional<bool> limited;
  mnn::runtime::Report report;
};

const Fields<LosslessResult>& LosslessResultFields() {
  static const Fields<RecordedAttention> trace = {
      {"file", "Name of the file as it was given", &RecordedAttention::file},
      {"level", "Recorded data of each query row", &RecordedAttention::level,
       OneOf("queries", "probabilities", "block_scores")}};
  static const Fields<LosslessResult> fields = {
      {"inputs", "What was read", &LosslessResult::inputs, HashedFileFields()},
      {"trace", "The recorded attention; null without --trace", &LosslessResult::trace, trace},
      {"limited", "The replay ended after the tokens of --limit", &LosslessResult::limited,
       Absent(OneOf(true))},
      Fields<LosslessResult>::Inline(&LosslessResult::report, mnn::runtime::ReportFields())};
  return fields;
}

class ReplayLossless : public ForEachInput<ReplayLossless> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "SNAPSHOT", "Snapshots, or recorded runs: files, folders, '-' for stdin");
    line.Add("--mode|--h2o-lossless-runtime-mode", mode_,
             "The engine's lossless mode: probe, full or store")
        .Required()
        .OneOf({"probe", "full", "store"});
    line.Add("--engine", engine_,
             "mnn (its code), mnn-r6 (with its old eviction) or design (what its documentation "
             "promises)")
        .OneOf({"mnn", "mnn-r6", "design"});
    line.Add("--trace", trace_, "Trace: file, folder, or DIR/STEM of an npy set").Once();
    line.Add("--preset", preset_, "Parameters to start from: the engine's or its gate's")
        .OneOf({"engine", "gate"});
    line.Add("--prompt-tokens", prompt_, "Where prefill ends, if the trace does not say")
        .Between(int64_t{0}, int64_t{UINT32_MAX});
    line.Add("--limit", limit_, "Decode at most this many tokens")
        .Between(int64_t{0}, int64_t{UINT32_MAX});
    line.Add("--scores", scores_, "flash or exact: how attention becomes H2O's scores")
        .OneOf({"exact", "flash"});
    line.Add("--cache-bytes|--cache-size", cache_size_,
             "design: bytes for decoded ranges (default: 1/16 of K and V)");
    line.AddFlag("--detail", detail_, "Add the bytes of every step to the JSON document");
    line.Add("--jsonl-out|--jsonl", jsonl_, "Write one JSON record per event");
    page_.Declare(line);
    line.AddFlag("-f,--force", force_, "Overwrite outputs");
    parameters_.Declare(line);
    snapshot_.Declare(line);
    report_.Declare(line);
  }

  OpenOptions Reading() const override { return snapshot_.WithLimit(); }

  void TakeRuns() override { TakeTrace(TakeRun(input_, snapshot_), trace_); }

  void Files(CommandFiles& files) const override {
    files.Reads({input_, trace_});
    snapshot_.Files(files);
    files.Writes(jsonl_, "--jsonl-out");
    page_.Files(files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    const OpenOptions options = snapshot_.Resolve(flags_for());
    std::optional<AttentionTrace> trace;
    if (!trace_.empty()) trace = OpenTrace(trace_, options);
    Snapshot snapshot =
        OpenSnapshot(snapshot_.Open(input_), options, trace ? FindGeometry(*trace) : std::nullopt);
    WarnAboutNotes(snapshot.notes, input_, context.console);
    if (trace) {
      for (const Note& note : trace->notes) context.console.Warn(trace_, note.text);
    }
    const AttentionTrace* const rows = trace ? &*trace : nullptr;
    const mnn::runtime::ReplayRequest request = RequestFor(rows);
    ThreadPool pool(context.global.thread_count());
    mnn::runtime::ReplayResult result;
    try {
      if (trace) {
        const std::string undefined = Remark(CheckTraceRows(*trace, pool));
        if (!undefined.empty()) context.console.Warn(trace_, undefined);
      }
      ProgressLine progress(context.console, context.global.progress_when(), "replay");
      result = mnn::runtime::Replay(snapshot, rows, request, pool, &progress);
    } catch (Error& error) {
      throw error.File(input_);
    }
    if (const std::string why = mnn::runtime::WhyNothing(result); !why.empty()) {
      result.warnings.push_back("nothing was encoded: " + why);
    }
    for (const std::string& warning : result.warnings) context.console.Warn(input_, warning);
    WriteOutputs(context, snapshot, trace, result);
    if (!report_.json) Print(context, result);
    return result.content.equal() ? kDone : kVerdict;
  }

 private:
  mnn::runtime::ReplayRequest RequestFor(const AttentionTrace* trace) const {
    mnn::runtime::ReplayRequest request;
    request.engine = *mnn::runtime::ParseEngine(engine_);
    request.lossless.mode = *mnn::runtime::ParseMode(mode_);
    parameters_.Apply(preset_ == "gate", trace, request);
    if (scores_ == "exact") request.weights = WeightRule::kSoftmax;
    if (prompt_ >= 0) request.prompt_tokens = static_cast<uint64_t>(prompt_);
    if (limit_ >= 0) request.decode_tokens = static_cast<uint64_t>(limit_);
    if (!cache_size_.empty()) request.cache_bytes = ParseSize(cache_size_, "--cache-bytes");
    request.keep_events = !jsonl_.empty();
    return request;
  }

  void WriteOutputs(Context& context, const Snapshot& snapshot,
                    const std::optional<AttentionTrace>& trace,
                    const mnn::runtime::ReplayResult& result) const {
    const bool timing = !context.global.deterministic;
    LosslessResult document = {
        {HashedFile::Of(snapshot.source)}, {}, {}, {result, detail_, timing}};
    if (trace) document.trace = {trace_, WithUnderscores(Name(trace->level))};
    if (limit_ >= 0) document.limited = true;
    if (!jsonl_.empty()) {
      AtomicFile file(jsonl_, RulesFor(force_));
      for (const mnn::runtime::Event& event : result.events) {
        Value line = mnn::runtime::EventFields().Object(event);
        if (!timing) mnn::runtime::RemoveTimes(line);
        file.Write(AsBytes(JsonText(ToJson(line), -1) + "\n"));
      }
      file.Commit();
    }
    if (page_.wanted()) {
      const std::string model = snapshot_.ModelName(trace ? trace->model : "");
      const std::string name = fmt::format("{} ({})", input_, ShapeText(snapshot, model));
      page_.Write(mnn::runtime::ReportPage(name, result), *this, context.console, RulesFor(force_));
    }
    Value value = LosslessResultFields().Object(document);
    if (!timing) mnn::runtime::RemoveTimes(value);
    report_.Emit(context.console, "replay-lossless", value, RulesFor(force_));
  }

  void Print(Context& context, const mnn::runtime::ReplayResult& r) const {
    Console& console = context.console;
    const mnn::runtime::Totals totals = mnn::runtime::SumTotals(r);
    const mnn::runtime::Measured& m = r.measured;
    const mnn::runtime::Resident &first = r.steps.front(), &last = r.steps.back();
    console.Line(fmt::format("{}: {}, prompt {}, {} decoded; engine {}, mode {}, scope {}",
                             Printable(input_), Plural(r.layers.size(), "layer"), r.prompt,
                             r.end - r.prompt, engine_, mode_,
                             mnn::runtime::Name(r.lossless.scope)));
    const auto fact = [&](std::string_view name, const std::string& text) {
      console.Line(fmt::format("  {:<12} {}", name, text));
    };
    fact("cold zone", fmt::format("{} of {} held rows (tokens x layers), {} encoded",
                                  totals.cold_tokens, totals.held_tokens, m.encoded_tokens));
    fact("whole model",
         fmt::format("{:.3f}x: {} full, {} resident at the end", r.whole_model_ratio(),
                     HumanBytes(last.full), HumanBytes(last.total())));
    fact("resident", fmt::format("{} after prefill, peak {}, end {} (raw {}, blobs {}, copies {})",
                                 HumanBytes(first.total()), HumanBytes(r.peak_bytes),
                                 HumanBytes(last.total()), HumanBytes(last.raw),
                                 HumanBytes(last.blobs), HumanBytes(last.caches + last.in_flight)));
    fact("content", ContentText(console, r.content));
    fact("verified", m.verified_blob_bytes == 0
                         ? "no range was encoded and decoded back"
                         : fmt::format("{:.3f}x on {} encoded and decoded back", m.verified_ratio(),
                                       HumanBytes(m.verified_raw_bytes)));
    fact("reads", fmt::format("{} decoded, {} copied from a cache ({} of them never decoded)",
                              m.decode_calls, m.cache_copies, m.seeded_hits));
    fact("trouble", fmt::format("{} failures, {} blobs unverified, {} full queues, {} without gain",
                                m.failures, m.verify_failures, m.backpressure, m.no_gain));
    if (r.speed && !context.global.deterministic) {
      fact("speed", fmt::format("{:.1f} t/s, attention only", r.speed->tokens_per_second()));
    }
    PrintEngineTerms(console, r);
  }

  static std::string ContentText(const Console& console,
                                 const mnn::runtime::ContentCheck& content) {
    if (content.equal()) {
      return fmt::format("{}: {} ranges, {} compared by hash", console.Verdict(true, "equal"),
                         content.ranges, HumanBytes(content.bytes));
    }
    const mnn::runtime::Difference& at = *content.first;
    return fmt::format("{}: {} of {} ranges, first at layer {} {} head {} position {}",
                       console.Verdict(false, "differs"), content.mismatches, content.ranges,
                       at.layer, at.is_value ? "V" : "K", at.head, at.position);
  }

  void PrintEngineTerms(Console& console, const mnn::runtime::ReplayResult& r) const {
    const mnn::runtime::EngineMetrics& m = r.metrics;
    const auto fact = [&](std::string_view name, const std::string& text) {
      console.Line(fmt::format("  {:<18} {}", name, text));
    };
    console.Line("in the engine's terms");
    fact("h2o_lossless_ratio", fmt::format("{:.4f}, {} in {} updates", m.ratio,
                                           HumanBytes(m.sums.raw_bytes), m.sums.update_count));
    fact("decompressed",
         fmt::format("{}, cache {} hits, {} misses", HumanBytes(m.sums.decompressed_bytes),
                     m.decode_cache_hit, m.decode_cache_miss));
    fact("queue peak", fmt::format("{}, fallback {}, skipped {}", m.queue_depth_peak,
                                   m.sums.fallback_count, m.sums.backpressure_skip_count));
    if (!r.h2o_enabled) return;
    fact("h2o_lossy_ratio",
         fmt::format("{:.4f}, keep {:.4f}, {} tokens evicted, {} plans discarded",
                     r.h2o_metrics.lossy_ratio, r.h2o_metrics.keep_ratio,
                     r.h2o_metrics.total_evict_tokens, r.h2o_plans_cleared));
  }

  std::string trace_, mode_, engine_ = "mnn", preset_ = "engine", scores_ = "flash";
  std::string cache_size_, jsonl_;
  int64_t prompt_ = -1, limit_ = -1;
  bool detail_ = false, force_ = false;
  ParameterFlags parameters_;
};

}  // namespace

const FieldTable& ReplayLosslessFields() { return LosslessResultFields(); }
const FieldTable& ReplayLosslessEventFields() { return mnn::runtime::EventFields(); }

std::unique_ptr<Command> MakeReplayLossless() { return std::make_unique<ReplayLossless>(); }

}  // namespace kv
