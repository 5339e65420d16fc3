// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/replay/h2o_flags.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/plan_output.h"
#include "apps/kvtool/documents/result_fields.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/inputs/each_command.h"
#include "apps/kvtool/inputs/run_input.h"
#include "apps/kvtool/line/eviction_targets.h"
#include "apps/kvtool/line/numbers.h"
#include "apps/kvtool/line/page_options.h"
#include "apps/kvtool/line/rope_options.h"
#include "formats/key_pairs.h"
#include "formats/run/run.h"
#include "formats/trace/trace.h"
#include "lib/engines/mnn/h2o/compact.h"
#include "lib/engines/mnn/h2o/report.h"

namespace kv {
namespace {

// The result of a run; its document has these fields.
struct H2oReplayed {
  struct Written {
    std::string file, format;
    uint64_t rows_checked = 0;
  };
  std::vector<HashedFile> inputs;
  mnn::h2o::Report report;
  std::optional<Written> snapshot_out;
};

const Fields<H2oReplayed::Written>& H2oWrittenFields() {
  using Written = H2oReplayed::Written;
  static const Fields<Written> fields = {
      {"file", "Path as given", &Written::file},
      {"format", "Format, as --to names it", &Written::format},
      {"rows_checked", "Rows of K and V read back and found equal to their source rows by hash",
       &Written::rows_checked}};
  return fields;
}

const Fields<H2oReplayed>& H2oReplayedFields() {
  static const Fields<H2oReplayed> fields = {
      {"inputs", "What was read", &H2oReplayed::inputs, HashedFileFields()},
      Fields<H2oReplayed>::Inline(&H2oReplayed::report, mnn::h2o::ReportFields()),
      {"snapshot_out",
       "What --snapshot-out wrote",
       &H2oReplayed::snapshot_out,
       H2oWrittenFields(),
       {.absent = true}}};
  return fields;
}

// The paper's schedule: the parameters that nobody chose, with what the trace's length made of
// them.
std::string ScheduleText(const mnn::h2o::ReplayResult& result) {
  std::string text = "budgets hold at every step from the prompt's end on";
  std::vector<std::string> followed;
  eviction::ForEachParameter(result.config, [&](std::string_view name, double value) {
    if (std::count(result.followed.begin(), result.followed.end(), name) != 0) {
      followed.push_back(fmt::format("{} {}", name, value));
    }
  });
  if (followed.empty()) return text;
  return text + fmt::format("; chosen by the trace's length: {}", fmt::join(followed, ", "));
}

class ReplayH2o : public EachOf<ReplayH2o> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "SNAPSHOT", "Snapshots, or recorded runs: files, folders, '-' for stdin");
    line.Add("--trace", trace_, "Trace: file, folder, or DIR/STEM of an npy set (a run's own)");
    line.Add("--engine", engine_,
             "exact (policies as their papers have them), design (MNN's published text), mnn (its "
             "code) "
             "or mnn-r6 (its old code)")
        .OneOf({"exact", "design", "mnn", "mnn-r6"});
    line.Add("--policy", policies_, "What to keep: block (the engine's rule), a comma list, or all")
        .Suggest(PolicyWords());
    line.Add("--target-ratio|--h2o-target-ratio,--h2o-target-lossy-ratio", targets_,
             "Ratios: 2,3,3.5 or 2-4+0.5 or 2-16*2 (3; design: 3.5)")
        .Check(CheckedBy([](const std::string& text) { ParseRatios(text); }));
    line.Add("--budget", budgets_,
             "Budgets of what may stay: shares 0.5,0.25 or tokens 512t (exact)");
    line.Add("--schedule", schedule_,
             "With --engine exact: paper (a budget at every step) or mnn (a ratio at intervals, by "
             "the "
             "floor rule of engine mnn) (paper)")
        .OneOf({"paper", "mnn"});
    line.Add("--scores", scores_, "exact or flash: how attention becomes scores")
        .OneOf({"exact", "flash"});
    line.Add("--granularity", granularity_, "One plan per layer or per kv-head")
        .OneOf({"layer", "kv-head"});
    line.Add("--prompt-tokens", prompt_, "Where prefill ends, if the trace does not say")
        .Between(int64_t{0}, int64_t{UINT32_MAX});
    line.AddFlag(
        "--re-rotate", re_rotate_,
        "streaming: count positions within the cache, as published (needs queries and RoPE)");
    line.Add("--seed", seed_, "Seed of policy random and of the sampled rows (0)");
    line.Add("--sample-rows|--quality-rows", quality_rows_,
             "Query rows of a layer to measure, drawn by --seed; 0: all (512)");
    line.Add("--sensitivity", sensitivity_,
             "Predict nats by these layer weights (kvtool.sensitivity/1), not by the trace's "
             "gradients");
    line.AddFlag("--no-quality", no_quality_, "Plans and bytes only: no attention figures");
    line.AddFlag("--detail", detail_, "Bytes of every step in the JSON document");
    line.Add("--jsonl-out|--jsonl", jsonl_, "Write one JSON record per event");
    page_.Declare(line);
    line.Add("--plan-out", plan_, "Write what to keep (one policy, one ratio)");
    line.Add("--snapshot-out", snapshot_out_, "Write the compacted snapshot, rows checked");
    line.Add("--to", to_, "Format of --snapshot-out (safetensors)").Suggest(WritableFormats());
    line.AddFlag("-f,--force", force_, "Overwrite outputs");
    config_.Declare(line);
    papers_.Declare(line);
    rope_.Declare(line, "RoPE of the model, for --re-rotate");
    snapshot_.Declare(line);
    report_.Declare(line);
  }

  // In a folder: what brings a trace, unless all share one.
  bool Takes(std::string_view format, bool is_run) const override {
    return is_run || (!trace_.empty() && !format.empty());
  }
  OpenOptions Reading() const override { return snapshot_.WithLimit(); }

  void TakeRuns() override {
    run_ = TakeRun(input_, snapshot_);
    TakeTrace(run_, trace_);
    TakeRope(run_, snapshot_, rope_);
  }

  void Files(CommandFiles& files) const override {
    files.Reads({input_, trace_, sensitivity_, rope_.freqs});
    snapshot_.Files(files);
    files.Writes({{jsonl_, "--jsonl-out"}, {plan_, "--plan-out"}});
    files.Writes(snapshot_out_, "--snapshot-out");
    page_.Files(files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    RequireTrace(trace_, input_);
    const OpenOptions options = snapshot_.Resolve(flags_for());
    const AttentionTrace trace = OpenTrace(trace_, options);
    const Snapshot snapshot = OpenSnapshot(snapshot_.Open(input_), options, GeometryOf(trace));
    if (snapshot.layers.empty()) {
      throw Error(Finding::kUnsupportedKind, "the snapshot has no attention layers").File(input_);
    }
    RequireHeads(snapshot, "a replay");
    RequireMatch(trace, snapshot);
    WarnOf(snapshot.notes, input_, context.console);
    for (const Note& note : trace.notes) context.console.Warn(trace_, note.text);

    const mnn::h2o::ReplayRequest request = RequestFor(trace, options, snapshot);
    const bool single =
        request.targets.size() + request.budgets.size() <= 1 && request.policies.size() == 1;
    if (!single && (!plan_.empty() || !snapshot_out_.empty())) {
      throw Error(Finding::kUsage, fmt::format("{}: choose one --policy and one target",
                                               plan_.empty() ? "--snapshot-out" : "--plan-out"));
    }
    ThreadPool pool(context.global.thread_count());
    mnn::h2o::ReplayResult result;
    {
      ProgressLine progress(context.console, context.global.progress_when(), "replay");
      result = mnn::h2o::Replay(snapshot, trace, request, pool, &progress);
    }
    AddWarnings(context.console, result);
    WriteOutputs(context, snapshot, trace, request, result);
    if (!report_.json) {
      PrintHead(context.console, trace, result);
      context.console.Data(Table(mnn::h2o::RunTable(result)).Text());
      for (const std::string& note : result.notes) context.console.Line("note: " + note);
    }
    return kDone;
  }

 private:
  mnn::h2o::ReplayRequest RequestFor(const AttentionTrace& trace, const OpenOptions& options,
                                     const Snapshot& snapshot) const {
    mnn::h2o::ReplayRequest request;
    request.engine = mnn::h2o::ParseEngine(engine_).value_or(mnn::h2o::Engine::kExact);
    request.config = config_.Resolve(trace, mnn::h2o::DefaultsOf(request.engine));
    if (!targets_.empty()) {
      for (const double ratio : ParseRatios(targets_)) {
        request.targets.push_back(ratio);
      }
    }
    request.chosen = config_.Chosen();
    ResolveSchedule(request);
    request.paper = papers_.Resolve();
    request.policies = ParsePolicies(policies_);
    if (re_rotate_) ResolveRotation(trace, options, snapshot, request);
    if (!scores_.empty()) {
      request.weights = scores_ == "flash" ? WeightRule::kFlashLocal : WeightRule::kSoftmax;
    }
    if (granularity_ == "kv-head") request.granularity = eviction::Granularity::kKvHead;
    request.seed = seed_;
    if (prompt_ >= 0) request.prompt_tokens = static_cast<uint64_t>(prompt_);
    const std::string weights = SensitivityFor(trace);
    if (!weights.empty()) request.sensitivity = ReadSensitivity(weights).Weights();
    request.measure_quality = !no_quality_;
    request.quality_rows = quality_rows_;
    return request;
  }

  // A run's own is for traces without gradients, which tell more.
  std::string SensitivityFor(const AttentionTrace& trace) const {
    if (!sensitivity_.empty() || !run_ || trace.gradients) return sensitivity_;
    return run_->sensitivity;
  }

  void ResolveRotation(const AttentionTrace& trace, const OpenOptions& options,
                       const Snapshot& snapshot, mnn::h2o::ReplayRequest& request) const {
    if (std::count(request.policies.begin(), request.policies.end(), "streaming") == 0) {
      throw Error(Finding::kUsage, "--re-rotate: for --policy streaming");
    }
    if (!snapshot_out_.empty()) {
      throw Error(Finding::kUsage,
                  "--snapshot-out: holds keys as they were computed, which --re-rotate would turn")
          .Hint("leave out one of them; --plan-out goes with both");
    }
    if (trace.level != TraceLevel::kQueries) {
      throw Error(Finding::kUsage,
                  "--re-rotate: needs queries; recorded probabilities belong to keys as they were");
    }
    request.re_rotation = rope_.Resolve(options, &snapshot);
    if (!request.re_rotation) {
      throw Error(Finding::kUsage, "--re-rotate: the rotation of the keys is unknown")
          .Hint("give --model MODEL, or --rope-base and --rope-style");
    }
  }

  void ResolveSchedule(mnn::h2o::ReplayRequest& request) const {
    const bool exact = request.engine == mnn::h2o::Engine::kExact;
    if (request.chosen.contains("h2o_target_keep_ratio")) {
      const bool is_read = request.config.target_mode == eviction::TargetMode::kStatic &&
                           (!exact || schedule_ == "mnn") && targets_.empty();
      if (!is_read) {
        throw Error(Finding::kUsage,
                    "--keep-share: with --target-mode static and a schedule of MNN's, in place of "
                    "--target-ratio")
            .Hint("--budget keeps a share of all tokens seen");
      }
    }
    if (!exact && schedule_ == "paper") {
      throw Error(Finding::kUsage,
                  fmt::format("--schedule paper: engine {} has a schedule of its own", engine_));
    }
    request.clock = exact && schedule_ != "mnn" ? mnn::h2o::Clock::kPaper : mnn::h2o::Clock::kMnn;
    if (budgets_.empty()) return;
    if (request.clock == mnn::h2o::Clock::kMnn) {
      throw Error(
          Finding::kUsage,
          "--budget: for --engine exact --schedule paper; on the mnn schedule a target is a "
          "ratio of the cache as it is at each trigger");
    }
    if (!targets_.empty()) {
      throw Error(Finding::kUsage, "--budget and --target-ratio: give one of them");
    }
    request.budgets = ParseBudgets(budgets_);
  }

  void AddWarnings(Console& console, mnn::h2o::ReplayResult& result) const {
    if (!result.missing_layers.empty()) {
      result.warnings.push_back(
          fmt::format("the trace has no rows of layers {}: they keep everything",
                      fmt::join(result.missing_layers, ", ")));
    }
    for (const mnn::h2o::ReplayRun& run : result.runs) {
      if (run.quality && run.quality->undefined_rows > 0) {
        result.warnings.push_back(
            fmt::format("{}: {} of {} measured rows are undefined, by NaN or Inf, and left out",
                        run.policy, run.quality->undefined_rows, run.quality->rows));
      }
      const std::string why = mnn::h2o::WhyNothing(result, run);
      if (!why.empty()) {
        const std::string text = fmt::format("nothing was evicted: {}", why);
        if (std::count(result.warnings.begin(), result.warnings.end(), text) == 0) {
          result.warnings.push_back(text);
        }
      }
    }
    for (const std::string& warning : result.warnings) console.Warn(trace_, warning);
  }

  void WriteOutputs(Context& context, const Snapshot& snapshot, const AttentionTrace& trace,
                    const mnn::h2o::ReplayRequest& request,
                    const mnn::h2o::ReplayResult& result) const {
    H2oReplayed replayed{
        {HashedFile::Of(snapshot.source)}, {snapshot, trace, request, result, detail_}, {}};
    if (!jsonl_.empty()) {
      AtomicFile file(jsonl_, RulesFor(force_));
      mnn::h2o::ForEachEvent(result, [&](const mnn::h2o::ReplayEvent& event) {
        const Value line = mnn::h2o::ReplayEventFields().Object(event);
        file.Write(AsBytes(JsonText(ToJson(line), -1) + "\n"));
      });
      file.Commit();
    }
    if (!plan_.empty()) WritePlan(snapshot, result);
    if (!snapshot_out_.empty()) {
      replayed.snapshot_out = WriteSnapshot(context, snapshot, result.runs.front());
    }
    if (page_.wanted()) {
      page_.Write(mnn::h2o::ReportPage(snapshot, trace, result), *this, context.console,
                  RulesFor(force_));
    }
    report_.Emit(context.console, "h2o", H2oReplayedFields().Object(replayed), RulesFor(force_));
  }

  void WritePlan(const Snapshot& snapshot, const mnn::h2o::ReplayResult& result) const {
    nlohmann::ordered_json plan = ReportHeader("h2o-plan");
    plan["source"] = InputRecord(snapshot.source);
    plan["engine"] = mnn::h2o::Name(result.engine);
    plan["schedule"] = mnn::h2o::Name(result.clock);
    plan["policy"] = result.runs.front().policy;
    WritePlanDocument(plan_, RulesFor(force_), std::move(plan), [&](const EmitPlanEvent& emit) {
      mnn::h2o::ForEachPlanEvent(result.runs.front(), emit);
    });
  }

  H2oReplayed::Written WriteSnapshot(Context& context, const Snapshot& snapshot,
                                     const mnn::h2o::ReplayRun& run) const {
    const FormatEntry& format = WritableFormat(to_);
    RequireKeyPairs(format.pairs, snapshot_.Resolve().geometry, snapshot);
    format.write(mnn::h2o::Compacted(snapshot, run), snapshot_out_,
                 RulesFor(force_, input_, snapshot.source));
    OpenOptions options;
    options.from = to_;
    const Snapshot written = OpenSnapshot(Source::Open(snapshot_out_), options);
    const uint64_t rows = mnn::h2o::CheckRows(snapshot, run, written);
    context.console.Say(fmt::format("{}: {} of K and V, {} rows equal to their source rows by hash",
                                    Printable(snapshot_out_), HumanBytes(written.kv_bytes()),
                                    rows));
    return {snapshot_out_, to_, rows};
  }

  void PrintHead(Console& console, const AttentionTrace& trace,
                 const mnn::h2o::ReplayResult& result) const {
    console.Line(fmt::format(
        "{}: {} of {} layers, positions {} to {} decoded, engine {}, scores {}, open loop",
        Printable(trace_), Name(trace.level), result.traced_layers.size(), result.prompt,
        result.end - 1, mnn::h2o::EngineText(result), mnn::h2o::Name(result.weights)));
    if (result.clock == mnn::h2o::Clock::kPaper) console.Line(ScheduleText(result));
    if (result.measured.is_sample()) {
      console.Line(fmt::format(
          "quality of {} of {} query rows a layer, drawn with seed {}; +- standard errors",
          result.measured.positions.size(), result.measured.population, seed_));
    }
  }

  std::string trace_, sensitivity_, engine_ = "exact", policies_ = "block", targets_, budgets_,
                                    scores_;
  std::string schedule_;
  std::string granularity_ = "layer", jsonl_, plan_, snapshot_out_, to_ = "safetensors";
  int64_t prompt_ = -1;
  uint64_t seed_ = 0, quality_rows_ = 512;
  bool re_rotate_ = false, no_quality_ = false, detail_ = false, force_ = false;
  std::optional<RecordedRun> run_;
  H2oFlags config_;
  PaperFlags papers_;
  RopeOptions rope_;
  SnapshotOptions snapshot_;
  PageOptions page_;
};

}  // namespace

const FieldTable& ReplayH2oFields() { return H2oReplayedFields(); }
const FieldTable& ReplayH2oEventFields() { return mnn::h2o::ReplayEventFields(); }

std::unique_ptr<Command> MakeReplayH2o() { return std::make_unique<ReplayH2o>(); }

}  // namespace kv
