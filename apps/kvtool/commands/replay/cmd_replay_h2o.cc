// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool replay evict`: eviction policies on a cache and its trace, their quality, plans and
// events.
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/replay/trace_replay.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/documents/plan_output.h"
#include "apps/kvtool/line/numbers.h"
#include "formats/key_pairs.h"
#include "formats/trace/trace.h"
#include "lib/engines/mnn/h2o/mnn_engine.h"
#include "lib/engines/mnn/h2o/report.h"
#include "lib/study/eviction/policy.h"
#include "lib/study/eviction/replay.h"

namespace kv {
namespace {

constexpr std::string_view kPrefix = "h2o_";  // prefix of the engine's names of the parameters

// The parameters of the engine, under the names of its scripts.
struct H2oFlags {
  std::vector<std::pair<std::string, double>> given;  // meta name, value
  std::string target_mode;

  void Declare(CommandLine& line) {
    const CommandLine::Heading heading(
        line,
        "The engine's parameters (default: the engine's; with a budget: chosen by the trace)");
    const auto add = [&](const char* flag, const char* name, const char* text) {
      line.OnNumber(
              flag, [this, name](const double& value) { given.emplace_back(name, value); }, text)
          .Check(ParameterCheck(name))
          .ValueName(std::string(RuntimeParameterText(name).value));
    };
    add("--block-tokens|--h2o-block-tokens", "h2o_block_tokens",
        "Tokens per block (default: 64; with a budget: budget/8, a power of 2)");
    add("--sink|--h2o-sink-tokens,--h2o-sink", "h2o_sink_tokens",
        "First tokens that block keeps (default: 32; with a budget: budget/16)");
    add("--recent|--h2o-recent-tokens,--h2o-recent", "h2o_recent_tokens",
        "Last tokens that block keeps (default: 256; with a budget: budget/4)");
    add("--ema-alpha|--h2o-ema-alpha", "h2o_ema_alpha", "Weight of the old score (default: 0.9)");
    add("--update-interval|--h2o-update-interval", "h2o_update_interval",
        "Tokens (exact, design) or layer calls (mnn) between decisions (default: 16; with a "
        "budget: every step)");
    add("--trigger-min|--h2o-trigger-min-tokens,--h2o-trigger-min", "h2o_trigger_min_tokens",
        "Shortest cache in which tokens are evicted (default: 512; with a budget: 1)");
    add("--layer-start|--h2o-layer-start", "h2o_layer_start",
        "First layer that evicts (default: 2; with a budget: 0)");
    add("--layer-end|--h2o-layer-end", "h2o_layer_end",
        "Last layer that evicts, -1 = the last one (default: -1)");
    add("--keep-share|--h2o-keep-share,--h2o-target-keep-ratio", "h2o_target_keep_ratio",
        "With --target-mode static: share of the cache that stays at each trigger (default: 0.5)");
    line.Add("--target-mode|--h2o-target-mode", target_mode,
             "adaptive or static: how the engine reads the target (default: adaptive)")
        .OneOf({"adaptive", "static"});
  }
  // Returns the parameters: those given, those recorded in the trace, and otherwise those of
  // `config`.
  eviction::BlockConfig Resolve(const AttentionTrace& trace, eviction::BlockConfig config) const {
    if (trace.block_scores) {
      for (const auto& [name, value] : trace.block_scores->parameters) {
        mnn::h2o::SetParameter(name, value, config);
      }
    }
    for (const auto& [name, value] : given) mnn::h2o::SetParameter(name, value, config);
    if (!target_mode.empty()) {
      mnn::h2o::SetParameter("h2o_target_mode", target_mode == "static" ? 0 : 1, config);
    }
    return config;
  }
  // Returns the names that were given, in the spelling of BlockConfig.
  std::set<std::string, std::less<>> Chosen() const {
    std::set<std::string, std::less<>> names;
    for (const auto& [name, value] : given) names.insert(name.substr(kPrefix.size()));
    return names;
  }
};

// The parameters of the papers' rules.
struct PaperFlags {
  eviction::PaperParameters paper;
  std::string after_prompt = "grow";

  void Declare(CommandLine& line) {
    const CommandLine::Heading heading(line, "The papers' parameters");
    for (const eviction::PaperParameter& parameter : eviction::PaperParameterTable()) {
      const auto add = [&](auto member) {
        line.Add(std::string(parameter.flags), paper.*member, std::string(parameter.text))
            .ShowDefault();
      };
      std::visit(add, parameter.value);
    }
    line.Add("--after-prompt", after_prompt,
             "snapkv, pyramid: grow as published, or hold the budget (default: grow)")
        .OneOf({"grow", "hold"});
  }
  eviction::PaperParameters Resolve() const {
    eviction::PaperParameters resolved = paper;
    for (const eviction::PaperParameter& parameter : eviction::PaperParameterTable()) {
      const auto check = [&](auto member) {
        const auto number = static_cast<double>(paper.*member);
        const bool fits = number >= parameter.least && number <= parameter.most &&
                          (!parameter.odd || std::fmod(number, 2) == 1);
        if (fits) return;
        throw Error(Finding::kUsage, "{} {}: expected {}",
                    parameter.flags.substr(0, parameter.flags.find('|')), paper.*member,
                    parameter.expected);
      };
      std::visit(check, parameter.value);
    }
    resolved.grow = after_prompt == "grow";
    return resolved;
  }
};

// The result of a run; its document has these fields.
struct H2oReplayed {
  struct Written {
    std::string file, format;
    uint64_t rows_checked = 0;
  };
  std::vector<HashedFile> inputs;
  eviction::Report report;
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
      {"snapshot_out", "What --snapshot-out wrote", &H2oReplayed::snapshot_out, H2oWrittenFields(),
       Absent()}};
  return fields;
}

// Returns the schedule of budgets, with the sizes of a block policy that follow from the smallest.
std::string ScheduleText(const eviction::ReplayResult& result) {
  std::string text = "budgets hold at every step from the prompt's end on";
  const auto blocks = std::ranges::find_if(result.runs, [](const eviction::ReplayRun& run) {
    return run.info().tuned_by == eviction::Tuning::kBlocks;
  });
  if (blocks == result.runs.end()) return text;
  std::vector<std::string> sizes;
  const auto add = [&](std::string_view parameter, std::string_view word, int64_t tokens) {
    if (std::ranges::count(result.followed, parameter) == 0) return;
    sizes.push_back(fmt::format("{} {}", word, tokens));
  };
  add("block_tokens", "blocks of", result.config.block_tokens);
  add("sink_tokens", "sinks", result.config.sink_tokens);
  add("recent_tokens", "recent", result.config.recent_tokens);
  if (sizes.empty()) return text;
  return text + fmt::format("; {}: {}, chosen for the smallest budget", blocks->policy,
                            fmt::join(sizes, ", "));
}

class ReplayH2o : public ForEachInput<ReplayH2o, TraceReplay> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "SNAPSHOT", "Snapshots, or recorded runs: files, folders, '-' for stdin");
    line.Add("--trace", trace_,
             "Trace: file, folder, or DIR/STEM of an npy set (default: that of the run)")
        .Once();
    line.Add("--engine", engine_,
             "exact (policies as their papers have them), design (as MNN documents it), mnn (its "
             "code) or mnn-r6 (its old code)")
        .OneOf({"exact", "design", "mnn", "mnn-r6"});
    line.Add("--policy", policies_,
             fmt::format("Policies to replay, a comma list of {}", fmt::join(PolicyWords(), ", ")))
        .Suggest(PolicyWords());
    line.Add("--target-ratio|--h2o-target-ratio,--h2o-target-lossy-ratio", targets_,
             "Ratios: 2,3,3.5 or 2-4+0.5 or 2-16*2 (default: 3; design: 3.5)")
        .Group("Target ratios as engines define them, instead of --budget")
        .Check(CheckedBy([](const std::string& text) { ParseRatios(text); }));
    line.Add("--budget", budgets_,
             "Budgets of kept tokens: shares 0.5,0.25 or tokens 512t (only with --engine exact)");
    line.Add("--schedule", schedule_,
             "With --engine exact: paper (a budget at every step) or mnn (a ratio at intervals, by "
             "the floor rule of engine mnn) (default: paper)")
        .OneOf({"paper", "mnn"});
    line.Add("--scores", scores_, "exact or flash: how attention becomes scores")
        .OneOf({"exact", "flash"});
    line.Add("--granularity", granularity_, "One plan per layer or per kv-head")
        .OneOf({"layer", "kv-head"});
    line.Add("--prompt-tokens", prompt_, "Where prefill ends, if the trace does not say")
        .Between(int64_t{0}, int64_t{UINT32_MAX})
        .Essential();
    line.AddFlag(
        "--re-rotate", re_rotate_,
        "streaming: count positions within the cache, as published (needs queries and RoPE)");
    line.Add("--seed", seed_, "Seed of policy random and of the sampled rows (default: 0)");
    line.Add("--sample-rows|--quality-rows", rows_,
             "Query rows of a layer to measure, drawn by --seed; 0: all (default: 512)");
    line.Add(
        "--sensitivity", sensitivity_,
        "Predict nats by these layer weights (kvtool.sensitivity/1), not by the trace's gradients");
    line.AddFlag("--no-quality", no_quality_, "Plans and bytes only: no attention figures");
    line.AddFlag("--detail", detail_, "Add the bytes of every step to the JSON document");
    line.Add("--jsonl-out|--jsonl", jsonl_, "Write one JSON record per event");
    page_.Declare(line);
    line.Add("--plan-out", plan_, "Write the tokens to keep (one policy, one ratio)").Essential();
    line.Add("--snapshot-out", snapshot_out_, "Write the compacted snapshot, and check its rows");
    line.Add("--to", to_, "Format of --snapshot-out (default: safetensors)")
        .Suggest(WritableFormats());
    line.AddFlag("-f,--force", force_, "Overwrite outputs");
    config_.Declare(line);
    papers_.Declare(line);
    DeclareRest(line, "RoPE of the model, for --re-rotate");
  }

  void Files(CommandFiles& files) const override {
    TraceReplay::Files(files);
    files.Writes({{jsonl_, "--jsonl-out"}, {plan_, "--plan-out"}});
    files.Writes(snapshot_out_, "--snapshot-out");
  }

  ExitStatus Run(Context& context) override {
    const auto [options, trace, snapshot] = Open(context.console);
    const eviction::ReplayRequest request = RequestFor(trace, options, snapshot);
    const bool single =
        request.targets.size() + request.budgets.size() <= 1 && request.policies.size() == 1;
    if (!single && (!plan_.empty() || !snapshot_out_.empty())) {
      throw Error(Finding::kUsage, "{}: choose one --policy and one target",
                  plan_.empty() ? "--snapshot-out" : "--plan-out");
    }
    ThreadPool pool(context.global.thread_count());
    eviction::ReplayResult result;
    {
      ProgressLine progress(context.console, context.global.progress_when(), "replay");
      result = mnn::h2o::Replay(snapshot, trace, request, pool, &progress);
    }
    AddWarnings(context.console, result);
    WriteOutputs(context, snapshot, trace, request, result);
    if (!report_.json) {
      PrintHead(context.console, trace, result);
      context.console.Data(Table(eviction::RunTable(result)).Text());
      for (const std::string& note : result.notes) context.console.Line("note: " + note);
    }
    return kDone;
  }

 private:
  eviction::ReplayRequest RequestFor(const AttentionTrace& trace, const OpenOptions& options,
                                     const Snapshot& snapshot) const {
    eviction::ReplayRequest request;
    request.engine = mnn::h2o::FindEngine(engine_, schedule_ == "mnn");
    request.config =
        config_.Resolve(trace, request.engine ? request.engine->defaults : eviction::BlockConfig{});
    if (!targets_.empty()) request.targets = ParseRatios(targets_);
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
    request.sensitivity = WeightsFor(trace);
    request.measure_quality = !no_quality_;
    request.quality_rows = rows_;
    return request;
  }

  void ResolveRotation(const AttentionTrace& trace, const OpenOptions& options,
                       const Snapshot& snapshot, eviction::ReplayRequest& request) const {
    const bool has_sinks = std::ranges::any_of(request.policies, [](const std::string& policy) {
      return eviction::FindPolicy(policy)->tuned_by == eviction::Tuning::kSinks;
    });
    if (!has_sinks) {
      throw Error(Finding::kUsage, "--re-rotate: for --policy streaming");
    }
    if (!snapshot_out_.empty()) {
      throw Error(
          Finding::kUsage,
          "--snapshot-out: holds keys as they were computed, which --re-rotate would change")
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

  void ResolveSchedule(eviction::ReplayRequest& request) const {
    if (request.chosen.contains("target_keep_ratio")) {
      const bool is_read = request.config.target_mode == eviction::TargetMode::kStatic &&
                           request.engine != nullptr && targets_.empty();
      if (!is_read) {
        throw Error(Finding::kUsage,
                    "--keep-share: with --target-mode static and a schedule of MNN's, in place of "
                    "--target-ratio")
            .Hint("--budget keeps a share of all tokens seen");
      }
    }
    if (request.engine != nullptr && schedule_ == "paper") {
      throw Error(Finding::kUsage, "--schedule paper: engine {} has a schedule of its own",
                  engine_);
    }
    if (budgets_.empty()) return;
    if (request.engine != nullptr) {
      throw Error(Finding::kUsage,
                  "--budget: for --engine exact --schedule paper; on the mnn schedule a target "
                  "applies to what the cache holds at each trigger");
    }
    if (!targets_.empty()) {
      throw Error(Finding::kUsage, "--budget and --target-ratio: give one of them");
    }
    request.budgets = ParseBudgets(budgets_);
  }

  void AddWarnings(Console& console, eviction::ReplayResult& result) const {
    if (!result.missing_layers.empty()) {
      result.warnings.push_back(
          fmt::format("the trace has no rows of layers {}: these layers keep everything",
                      fmt::join(result.missing_layers, ", ")));
    }
    for (const eviction::ReplayRun& run : result.runs) {
      if (run.quality && run.quality->undefined_rows > 0) {
        result.warnings.push_back(
            fmt::format("{}: {} of {} measured rows are undefined, by NaN or Inf, and left out",
                        run.policy, run.quality->undefined_rows, run.quality->rows));
      }
      if (!run.nothing_because.empty()) {
        const std::string text = fmt::format("nothing was evicted: {}", run.nothing_because);
        if (std::count(result.warnings.begin(), result.warnings.end(), text) == 0) {
          result.warnings.push_back(text);
        }
      }
    }
    for (const std::string& warning : result.warnings) console.Warn(trace_, warning);
  }

  void WriteOutputs(Context& context, const Snapshot& snapshot, const AttentionTrace& trace,
                    const eviction::ReplayRequest& request,
                    const eviction::ReplayResult& result) const {
    H2oReplayed replayed{{HashedFile::Of(snapshot.source)},
                         {snapshot, trace, request, result, detail_, ModelName(trace)},
                         {}};
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
      page_.Write(eviction::ReportPage(replayed.report), *this, context.console, RulesFor(force_));
    }
    report_.Emit(context.console, "h2o", H2oReplayedFields, replayed, RulesFor(force_));
  }

  void WritePlan(const Snapshot& snapshot, const eviction::ReplayResult& result) const {
    nlohmann::ordered_json plan = ReportHeader("h2o-plan");
    plan["source"] = InputRecord(snapshot.source);
    plan["engine"] = result.engine == nullptr ? "exact" : result.engine->name;
    plan["schedule"] = result.engine == nullptr ? "paper" : result.engine->schedule;
    plan["policy"] = result.runs.front().policy;
    WritePlanDocument(plan_, RulesFor(force_), std::move(plan), [&](const EmitPlanEvent& emit) {
      eviction::ForEachPlanEvent(result.runs.front(), emit);
    });
  }

  H2oReplayed::Written WriteSnapshot(Context& context, const Snapshot& snapshot,
                                     const eviction::ReplayRun& run) const {
    const FormatEntry& format = WritableFormat(to_);
    RequireKeyPairs(format.pairs, snapshot_.Resolve().geometry, snapshot);
    format.write(eviction::Compacted(snapshot, run), snapshot_out_,
                 RulesFor(force_, input_, snapshot.source));
    OpenOptions options;
    options.from = to_;
    const Snapshot written = OpenSnapshot(Source::Open(snapshot_out_), options);
    const uint64_t rows = eviction::CheckRows(snapshot, run, written);
    context.console.Say(fmt::format("{}: {} of K and V, {} rows equal to their source rows by hash",
                                    Printable(snapshot_out_), HumanBytes(written.kv_bytes()),
                                    rows));
    return {snapshot_out_, to_, rows};
  }

  void PrintHead(Console& console, const AttentionTrace& trace,
                 const eviction::ReplayResult& result) const {
    console.Line(fmt::format(
        "{}: {} of {} layers, positions {} to {} decoded, engine {}, scores {}, open loop",
        Printable(trace_), Name(trace.level), result.traced_layers.size(), result.prompt,
        result.end - 1, eviction::EngineText(result), eviction::Name(result.weights)));
    if (result.engine == nullptr) console.Line(ScheduleText(result));
    if (result.measured.is_sample()) {
      console.Line(fmt::format(
          "quality of {} of {} query rows a layer, drawn with seed {}; +- standard errors",
          result.measured.positions.size(), result.measured.population, seed_));
    }
  }

  std::string engine_ = "exact", policies_ = "block", targets_, budgets_, scores_, schedule_;
  std::string granularity_ = "layer", jsonl_, plan_, snapshot_out_, to_ = "safetensors";
  bool re_rotate_ = false, no_quality_ = false;
  H2oFlags config_;
  PaperFlags papers_;
};

}  // namespace

const FieldTable& ReplayH2oFields() { return H2oReplayedFields(); }
const FieldTable& ReplayH2oEventFields() { return mnn::h2o::ReplayEventFields(); }

std::unique_ptr<Command> MakeReplayH2o() { return std::make_unique<ReplayH2o>(); }

}  // namespace kv
