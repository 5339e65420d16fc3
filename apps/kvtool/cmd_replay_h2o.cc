// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/progress.h"
#include "apps/kvtool/snapshot_report.h"
#include "formats/trace/trace.h"
#include "lib/h2o/compact.h"
#include "lib/h2o/report.h"

namespace kv {
namespace {

std::string Percent(double share) { return fmt::format("{:.2f}%", 100 * share); }

// The parameters of the engine, under the names its scripts use.
struct ConfigFlags {
  std::vector<std::pair<std::string, double>> given;  // meta name, value
  std::string target_mode;

  void Declare(CLI::App& app) {
    const char* group = "The engine's parameters (defaults as in the engine)";
    const auto add = [&](const char* flag, const char* name, const char* text) {
      app.add_option_function<double>(
             flag, [this, name](const double& value) { given.emplace_back(name, value); }, text)
          ->group(group);
    };
    add("--block-tokens", "h2o_block_tokens", "Tokens per block (64)");
    add("--sink", "h2o_sink_tokens", "First tokens that stay (32)");
    add("--recent", "h2o_recent_tokens", "Last tokens that stay (256)");
    add("--ema-alpha", "h2o_ema_alpha", "Weight of the old score (0.9)");
    add("--update-interval", "h2o_update_interval",
        "Between decisions: tokens (exact) or layer calls (mnn) (16)");
    add("--trigger-min", "h2o_trigger_min_tokens", "Shortest cache that is touched (512)");
    add("--layer-start", "h2o_layer_start", "First layer that evicts (2)");
    add("--layer-end", "h2o_layer_end", "Last layer that evicts, -1 = the last one (-1)");
    app.add_option("--target-mode", target_mode,
                   "adaptive or static: how the engine reads the target (adaptive)")
        ->check(CLI::IsMember({"adaptive", "static"}))
        ->group(group);
  }

  h2o::Config Resolve(const AttentionTrace& trace) const {
    h2o::Config config;
    if (trace.block_scores) {
      for (const auto& [name, value] : trace.block_scores->parameters) {
        h2o::SetParameter(name, value, config);
      }
    }
    for (const auto& [name, value] : given) h2o::SetParameter(name, value, config);
    if (!target_mode.empty()) {
      h2o::SetParameter("h2o_target_mode", target_mode == "static" ? 0 : 1, config);
    }
    return config;
  }
};

class ReplayH2o : public Command {
 public:
  void Declare(CLI::App& app) override {
    app.add_option("SNAPSHOT", input_, "Snapshot: file, folder or '-'")->required();
    app.add_option("--trace", trace_, "Trace: file, folder, or DIR/STEM of an npy set")->required();
    app.add_option("--engine", engine_, "exact (the design), mnn (its code), mnn-r6 (its old code)")
        ->check(CLI::IsMember({"exact", "mnn", "mnn-r6"}));
    app.add_option("--policy", policies_,
                   "What to keep: block (the engine's rule), a comma list, or all");
    app.add_option("--target-ratio", targets_, "Ratios: 2,3,3.5 or 2-4+0.5 or 2-16*2 (3)");
    app.add_option("--scores", scores_, "exact or flash: how attention becomes scores")
        ->check(CLI::IsMember({"exact", "flash"}));
    app.add_option("--granularity", granularity_, "One plan per layer or per kv-head")
        ->check(CLI::IsMember({"layer", "kv-head"}));
    app.add_option("--prompt-tokens", prompt_, "Where prefill ends, if the trace does not say");
    app.add_option("--seed", seed_, "Of policy random (0)");
    app.add_flag("--no-quality", no_quality_, "Plans and bytes only: no attention figures");
    app.add_flag("--detail", detail_, "Bytes of every step in the JSON document");
    app.add_option("--jsonl", jsonl_, "Write one JSON record per event");
    app.add_option("--html-out", html_, "Write a self-contained page");
    app.add_option("--plan-out", plan_, "Write what to keep (one policy, one ratio)");
    app.add_option("--snapshot-out", snapshot_out_, "Write the compacted snapshot, rows checked");
    app.add_option("--to", to_, "Format of --snapshot-out (safetensors)");
    app.add_flag("-f,--force", force_, "Overwrite outputs");
    config_.Declare(app);
    snapshot_.Declare(app);
    report_.Declare(app);
  }

  ExitStatus Run(Context& context) override {
    const OpenOptions options = snapshot_.Resolve();
    const AttentionTrace trace = OpenTrace(trace_, options);
    Snapshot snapshot = OpenSnapshot(Source::Open(input_), options);
    if (snapshot.layers.empty()) {
      throw Error(Finding::kUnsupportedKind, "the snapshot has no attention layers").File(input_);
    }
    if (!snapshot.heads_known()) {
      if (const auto geometry = GeometryOf(trace)) ApplyGeometry(*geometry, snapshot);
    }
    RequireHeads(snapshot, "a replay");
    RequireMatch(trace, snapshot);
    WarnOf(snapshot.notes, input_, context.console);
    for (const Note& note : trace.notes) context.console.Warn(trace_, note.text);

    const h2o::ReplayRequest request = RequestFor(trace);
    const bool single = request.targets.size() <= 1 && request.policies.size() == 1;
    if (!single && (!plan_.empty() || !snapshot_out_.empty())) {
      throw Error(Finding::kUsage, fmt::format("{}: choose one --policy and one --target-ratio",
                                               plan_.empty() ? "--snapshot-out" : "--plan-out"));
    }
    ThreadPool pool(context.global.thread_count());
    h2o::ReplayResult result;
    {
      ProgressLine progress(context.console, context.global.progress_when(), "replay");
      result = h2o::Replay(snapshot, trace, request, pool, &progress);
    }
    AddWarnings(context.console, result);
    WriteOutputs(context, snapshot, trace, request, result);
    if (!report_.json) Print(context.console, trace, result);
    return kDone;
  }

 private:
  Overwrite overwrite() const { return force_ ? Overwrite::kAllow : Overwrite::kRefuse; }

  h2o::ReplayRequest RequestFor(const AttentionTrace& trace) const {
    h2o::ReplayRequest request;
    request.engine = h2o::ParseEngine(engine_).value_or(h2o::Engine::kExact);
    request.config = config_.Resolve(trace);
    if (!targets_.empty()) {
      for (const double ratio : ParseSweep(targets_, "--target-ratio")) {
        if (!(ratio >= 1)) throw Error(Finding::kUsage, "--target-ratio: a ratio is at least 1");
        request.targets.push_back(static_cast<float>(ratio));
      }
    }
    request.policies = ParsePolicies();
    if (!scores_.empty()) {
      request.weights = scores_ == "flash" ? WeightRule::kFlashLocal : WeightRule::kSoftmax;
    }
    if (granularity_ == "kv-head") request.granularity = h2o::Granularity::kKvHead;
    request.seed = seed_;
    if (prompt_ >= 0) request.prompt_tokens = static_cast<uint64_t>(prompt_);
    request.measure_quality = !no_quality_;
    return request;
  }

  std::vector<std::string> ParsePolicies() const {
    std::vector<std::string> names;
    if (policies_ == "all") {
      for (const h2o::PolicyInfo& policy : h2o::Policies()) names.emplace_back(policy.name);
      return names;
    }
    for (size_t begin = 0; begin <= policies_.size();) {
      const size_t end = std::min(policies_.find(',', begin), policies_.size());
      names.push_back(policies_.substr(begin, end - begin));
      begin = end + 1;
      if (h2o::FindPolicy(names.back()) != nullptr) continue;
      std::string known = "all";
      for (const h2o::PolicyInfo& policy : h2o::Policies())
        known += fmt::format(", {}", policy.name);
      throw Error(Finding::kUsage,
                  fmt::format("--policy '{}': expected one of {}", Escaped(names.back()), known));
    }
    return names;
  }

  void AddWarnings(Console& console, h2o::ReplayResult& result) const {
    if (!result.missing_layers.empty()) {
      result.warnings.push_back(
          fmt::format("the trace has no rows of layers {}: their lengths are replayed, what they "
                      "keep is not, and --snapshot-out leaves them whole",
                      fmt::join(result.missing_layers, ", ")));
    }
    for (const h2o::ReplayRun& run : result.runs) {
      if (run.quality && run.quality->mass.nans > 0) {
        result.warnings.push_back(fmt::format("{}: {} attention rows are NaN and left out",
                                              run.policy, run.quality->mass.nans));
      }
      const std::string why = h2o::WhyNothing(result, run);
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
                    const h2o::ReplayRequest& request, const h2o::ReplayResult& result) const {
    nlohmann::ordered_json document = ReportHeader("h2o");
    document["inputs"] = {InputRecord(snapshot.source)};
    document.update(h2o::ReportJson(snapshot, trace, request, result, detail_));
    if (!jsonl_.empty()) {
      AtomicFile file(jsonl_, overwrite());
      h2o::ForEachEvent(result, [&](const nlohmann::ordered_json& event) {
        file.Write(AsBytes(event.dump() + "\n"));
      });
      file.Commit();
    }
    if (!plan_.empty()) WritePlan(snapshot, result);
    if (!snapshot_out_.empty()) WriteSnapshot(context, snapshot, result.runs.front(), document);
    if (!html_.empty()) {
      AtomicFile file(html_, overwrite());
      file.Write(AsBytes(h2o::ReportPage(
          snapshot, trace, result,
          fmt::format("Made by kvtool {}.", document["tool"]["version"].get<std::string>()))));
      file.Commit();
    }
    report_.Emit(context.console, document, overwrite());
  }

  void WritePlan(const Snapshot& snapshot, const h2o::ReplayResult& result) const {
    nlohmann::ordered_json plan = ReportHeader("h2o-plan");
    plan["source"] = InputRecord(snapshot.source);
    plan["engine"] = h2o::Name(result.engine);
    plan["policy"] = result.runs.front().policy;
    plan["unit"] = "position";
    plan["applied"] = "before the next token";
    plan["events"] = h2o::PlanEvents(result.runs.front());
    AtomicFile file(plan_, overwrite());
    file.Write(AsBytes(plan.dump() + "\n"));
    file.Commit();
  }

  void WriteSnapshot(Context& context, const Snapshot& snapshot, const h2o::ReplayRun& run,
                     nlohmann::ordered_json& document) const {
    const FormatEntry* format = FindFormat(to_);
    if (format == nullptr || format->write == nullptr) {
      throw Error(Finding::kUsage, fmt::format("--to '{}': not a format that can be written", to_))
          .Hint("'kvtool formats' lists them");
    }
    format->write(h2o::Compacted(snapshot, run), snapshot_out_, overwrite());
    OpenOptions options;
    options.from = to_;
    const Snapshot written = OpenSnapshot(Source::Open(snapshot_out_), options);
    const uint64_t rows = h2o::CheckRows(snapshot, run, written);
    document["snapshot_out"] = {{"file", snapshot_out_}, {"format", to_}, {"rows_checked", rows}};
    context.console.Say(fmt::format("{}: {} of K and V, {} rows equal to their source rows by hash",
                                    snapshot_out_, HumanBytes(written.kv_bytes()), rows));
  }

  void Print(Console& console, const AttentionTrace& trace, const h2o::ReplayResult& result) const {
    console.Line(fmt::format(
        "{}: {} of {} layers, positions {} to {} decoded, engine {}, scores {}, open loop", trace_,
        Name(trace.level), result.traced_layers.size(), result.prompt, result.end - 1,
        h2o::Name(result.engine), h2o::Name(result.weights)));
    const bool engine = result.engine != h2o::Engine::kExact;
    std::vector<std::string> header = {"policy", "target", "true ratio", "mean ratio", "evictions"};
    if (engine) header.push_back("h2o_lossy_ratio");
    if (!no_quality_ && !trace.block_scores) {
      header.insert(header.end(), {"mass", "mass p5", "output error", "error p95", "cosine p5",
                                   "KL", "top-16", "mass (all rows)", "error (all rows)"});
    }
    Table table(header);
    for (const h2o::ReplayRun& run : result.runs) table.Row(RowOf(run, engine));
    console.Data(table.Text());
  }

  static std::vector<std::string> RowOf(const h2o::ReplayRun& run, bool engine) {
    std::vector<std::string> row = {
        run.policy, fmt::format("{:.4g}x", run.target_ratio()), fmt::format("{:.3f}x", run.ratio()),
        fmt::format("{:.3f}x", run.mean_ratio()), std::to_string(run.evictions())};
    if (engine) {
      row.push_back(run.mnn ? fmt::format("{:.4f}x", run.mnn->metrics.lossy_ratio)
                            : std::string(1, '-'));
    }
    if (!run.quality) return row;
    const AttentionSummary &evicting = *run.evicting, &all = *run.quality;
    const auto figure = [](const Distribution& of, double Distribution::*value, auto&& text) {
      return of.count == 0 ? std::string(1, '-') : text(of.*value);
    };
    const auto real = [](double value) { return fmt::format("{:.4g}", value); };
    const auto fixed = [](double value) { return fmt::format("{:.4f}", value); };
    row.push_back(figure(evicting.mass, &Distribution::mean, Percent));
    row.push_back(figure(evicting.mass, &Distribution::p5, Percent));
    row.push_back(figure(evicting.output_error, &Distribution::mean, Percent));
    row.push_back(figure(evicting.output_error, &Distribution::p95, Percent));
    row.push_back(figure(evicting.output_cosine, &Distribution::p5, fixed));
    row.push_back(figure(evicting.kl, &Distribution::mean, real));
    row.push_back(figure(evicting.top_k[1], &Distribution::mean, Percent));
    row.push_back(figure(all.mass, &Distribution::mean, Percent));
    row.push_back(figure(all.output_error, &Distribution::mean, Percent));
    return row;
  }

  std::string input_, trace_, engine_ = "exact", policies_ = "block", targets_, scores_;
  std::string granularity_ = "layer", jsonl_, html_, plan_, snapshot_out_, to_ = "safetensors";
  int64_t prompt_ = -1;
  uint64_t seed_ = 0;
  bool no_quality_ = false, detail_ = false, force_ = false;
  ConfigFlags config_;
  SnapshotOptions snapshot_;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeReplayH2o() { return std::make_unique<ReplayH2o>(); }

}  // namespace kv
