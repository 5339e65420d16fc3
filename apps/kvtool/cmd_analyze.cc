// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <set>

#include "apps/kvtool/analyze_report.h"
#include "apps/kvtool/commands.h"
#include "apps/kvtool/each_command.h"
#include "apps/kvtool/offline_options.h"
#include "apps/kvtool/page_options.h"
#include "apps/kvtool/progress.h"
#include "apps/kvtool/rope_options.h"
#include "apps/kvtool/run_input.h"
#include "apps/kvtool/snapshot_report.h"
#include "lib/core/snapshot/hadamard.h"
#include "lib/engines/mnn/offline/result_report.h"
#include "lib/study/analysis/dump_rows.h"
#include "lib/study/analysis/report.h"

namespace kv {
namespace {

using Json = nlohmann::ordered_json;

// Of nothing there is no ratio. Tables and the files of the original's form, whose columns are the
// same for every row, write 0 there.
void RemoveZeroRatios(Json& value) {
  if (value.is_array()) {
    for (Json& element : value) RemoveZeroRatios(element);
  }
  if (!value.is_object()) return;
  for (auto& [key, child] : value.items()) {
    if (key.ends_with("ratio") && child.is_number() && child.get<double>() == 0) child = nullptr;
    RemoveZeroRatios(child);
  }
}

class Analyze : public EachOf<Analyze> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "FILE", "Snapshots or folders of dumps: files, folders, '-' for stdin");
    line.Add("--level", level_,
             "Level of compress to measure beside MNN's codec (default: default; compat: "
             "none)")
        .OneOf({"compat", "fast", "default", "high", "max"});
    line.AddFlag("--per-head", per_head_, "Also code every head on its own (takes twice as long)");
    line.AddFlag("--distribution", distribution_,
                 "Entropies and zstd ratios per dump (for a snapshot: per layer)");
    line.AddFlag("--packed", packed_,
                 "Entropies and zstd ratios of packed MNN dumps, padding included");
    line.AddFlag("--reports-only", reports_only_,
                 "Omit the layers: report only --offline-codec, --distribution or --packed");
    line.Add("--csv-out", csv_, "Write the rows of --distribution (or --packed) as CSV");
    const char* group = "RoPE of the model: K is measured with it undone, too";
    rope_.DeclareUnpaired(line, group);
    line.AddFlag("-f,--force", force_, "Overwrite outputs");
    offline_.Declare(line);
    selection_.Declare(line);
    snapshot_.Declare(line);
    page_.Declare(line);
    report_.Declare(line);
  }

  void TakeRuns() override { TakeRope(TakeRun(input_, snapshot_), snapshot_, rope_); }

  void Files(CommandFiles& files) const override {
    files.Reads({input_, rope_.freqs});
    snapshot_.Files(files);
    files.Writes(csv_, "--csv-out");
    files.Writes(offline_.json_out, "--offline-json-out");
    files.Writes(offline_.md_out, "--offline-md-out");
    page_.Files(files);
    report_.Files(files);
  }

  OpenOptions Reading() const override { return snapshot_.WithLimit(); }

  ExitStatus Run(Context& context) override {
    const auto begin = std::chrono::steady_clock::now();
    const std::optional<mnn::offline::Options> simulated = offline_.Resolve();
    CheckOutputs();
    const OpenOptions options = snapshot_.Resolve(flags_for());
    ThreadPool pool(context.global.thread_count());
    Inputs inputs = Open(context, options);
    const auto rope =
        rope_.ResolveOrWarn(options, nullptr, "K is not measured with it undone", context.console);
    Json document = ReportHeader("analyze");
    document["inputs"] = InputRecords(inputs.source());
    ExitStatus status = kDone;
    report::Page page("What compresses", input_);
    if (!reports_only_) status = AddLayers(context, inputs, options, rope, pool, document, page);
    if (simulated) AddOffline(context, *simulated, inputs, pool, document);
    if (with_rows()) AddRows(context, inputs, rope, pool, document);
    document["warnings"] = context.console.warning_texts();
    if (!context.global.deterministic) {
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      document["timing"] = {{"elapsed_us", static_cast<uint64_t>(took.count())},
                            {"threads", pool.threads()}};
    }
    if (page_.wanted()) {
      page.Footer(MadeBy());
      page_.Write(page, *this, context.console, RulesFor(force_));
    }
    RemoveZeroRatios(document);
    report_.Emit(context.console, document, RulesFor(force_));
    return status;
  }

 private:
  // A snapshot, its dumps where the format has them, or only those: a folder of several runs is no
  // snapshot, but each of them is.
  struct Inputs {
    std::optional<Snapshot> snapshot;
    std::optional<Source> runs;
    std::set<std::filesystem::path> run_folders;
    DumpEntries dumps;

    const Source& source() const { return snapshot ? snapshot->source : *runs; }
  };

  bool with_rows() const { return distribution_ || packed_ || !csv_.empty(); }
  bool with_reports() const { return with_rows() || !offline_.codec.empty(); }

  void CheckOutputs() const {
    if (distribution_ && packed_ && !csv_.empty()) {
      throw Error(Finding::kUsage, "--csv-out: give --distribution or --packed, not both");
    }
    if (reports_only_ && page_.wanted()) {
      throw Error(Finding::kUsage, "--reports-only: the page shows the layers that it omits");
    }
    if (reports_only_ && !with_reports()) {
      throw Error(Finding::kUsage,
                  "--reports-only: give --offline-codec, --distribution or --packed");
    }
  }

  Inputs Open(Context& context, const OpenOptions& options) const {
    Inputs inputs;
    Source source = snapshot_.Open(input_);
    const FormatEntry& format = DetectFormat(source, options);
    const bool dumps_wanted = format.read_dumps != nullptr && selection_.Resolve().is_all();
    if (dumps_wanted && reports_only_) {
      inputs.runs = std::move(source);
    } else {
      try {
        inputs.snapshot = OpenOne(context, source, options);
      } catch (Error& error) {
        // What needs no snapshot goes on without: other runs, the dumps one by one.
        const bool several = error.finding() == Finding::kAmbiguousFormat;
        if (!dumps_wanted || !(several || with_reports())) throw error.File(input_);
        if (!several) context.console.Warn(input_, fmt::format("no layers: {}", error.message()));
        inputs.runs = std::move(source);
      }
    }
    if (!dumps_wanted) {
      inputs.dumps.logical = DumpEntriesOf(*inputs.snapshot);
      return inputs;
    }
    inputs.dumps = format.read_dumps(inputs.source());
    for (const DumpEntry& entry : inputs.dumps.logical) {
      if (inputs.runs) inputs.run_folders.insert(std::filesystem::path(entry.place).parent_path());
    }
    return inputs;
  }

  Snapshot OpenOne(Context& context, const Source& source, const OpenOptions& options) const {
    const Selection selection = selection_.Resolve();
    Snapshot snapshot = Select(OpenSnapshot(source, options), selection);
    for (LayerKv& layer : snapshot.layers) {
      if (!selection.keys) layer.k.pieces.clear();
      if (!selection.values) layer.v.reset();
    }
    WarnOf(snapshot.notes, source.path, context.console);
    const std::string rotated = HadamardRemark(snapshot);
    if (!rotated.empty()) context.console.Warn(source.path, rotated);
    snapshot.CheckContent();
    return snapshot;
  }

  ExitStatus AddLayers(Context& context, const Inputs& inputs, const OpenOptions& options,
                       const std::optional<ModelRope>& rope, ThreadPool& pool, Json& document,
                       report::Page& page) const {
    if (inputs.snapshot) {
      return AddAnalysis(context, *inputs.snapshot, rope, pool, document, page);
    }
    ExitStatus status = kDone;
    document["runs"] = Json::array();
    for (const std::filesystem::path& folder : inputs.run_folders) {
      const Source source = Source::Open(std::filesystem::path(input_) / folder);
      Json run = {{"run", folder.generic_string()}};
      if (!report_.json && !document["runs"].empty()) context.console.Line("");
      try {
        const Snapshot snapshot = OpenOne(context, source, options);
        page.Heading(folder.generic_string());
        status = Worse(status, AddAnalysis(context, snapshot, rope, pool, run, page));
      } catch (Error& error) {
        // Damage is counted by the other reports, which look past it.
        if (!with_reports()) throw error.File(source.path);
        context.console.Warn(source.path, fmt::format("no layers: {}", error.message()));
      }
      document["runs"].push_back(std::move(run));
    }
    return status;
  }

  ExitStatus AddAnalysis(Context& context, const Snapshot& snapshot,
                         const std::optional<ModelRope>& rope, ThreadPool& pool, Json& document,
                         report::Page& page) const {
    document["format"] = snapshot.format;
    document["engine"] = snapshot.engine;
    document["model"] = snapshot.model;
    analysis::Analysis analysis;
    {
      ProgressLine progress(context.console, context.global.progress_when(), "analyze");
      analysis =
          analysis::Analyse(snapshot, {per_head_, *ParseEffort(level_), rope}, pool, &progress);
    }
    document["level"] = level_;
    document.update(analysis::AnalysisJson(analysis));
    analysis::AddAnalysis(analysis, level_, page);
    if (!report_.json)
      context.console.Data(AnalysisText(snapshot, analysis, level_, context.console));
    return analysis.total().decodes ? kDone : kVerdict;
  }

  void AddOffline(Context& context, const mnn::offline::Options& options, const Inputs& inputs,
                  ThreadPool& pool, Json& document) const {
    mnn::offline::Result result;
    {
      ProgressLine progress(context.console, context.global.progress_when(), "simulate");
      result = mnn::offline::Simulate(inputs.dumps.logical, options, pool, &progress);
    }
    const Json original = mnn::offline::ResultJson(input_, options, result);
    document["offline"] = original;
    Write(offline_.json_out, JsonText(original, 2, true));
    Write(offline_.md_out, mnn::offline::ResultMarkdown(input_, options, result));
    if (!report_.json) {
      context.console.Data("\n" + OfflineText(options, result, context.console));
    }
  }

  void AddRows(Context& context, const Inputs& inputs, const std::optional<ModelRope>& rope,
               ThreadPool& pool, Json& document) const {
    const analysis::RowOptions row_options{offline_.values.zstd_level, rope};
    const auto add = [&](const char* name, const char* title, const std::vector<Json>& rows,
                         bool positive_only) {
      document[name] = {{"averages", analysis::RowAverages(rows, positive_only)}, {"rows", rows}};
      Write(csv_, analysis::RowsCsv(rows));
      if (!report_.json) context.console.Data("\n" + RowsText(title, rows, context.console));
    };
    if (distribution_ || !packed_) {
      add("distribution", "Distribution",
          analysis::DistributionRows(inputs.dumps.logical, row_options, pool), false);
    }
    if (packed_) {
      add("packed", "Packed dumps, padding included",
          analysis::PackedRows(inputs.dumps.packed, row_options, pool), true);
    }
  }

  void Write(const std::string& path, const std::string& text) const {
    WriteText(path, text, RulesFor(force_));
  }

  std::string csv_, level_ = "default";
  bool per_head_ = false, distribution_ = false, packed_ = false, reports_only_ = false;
  bool force_ = false;
  RopeOptions rope_;
  OfflineOptions offline_;
  SelectionOptions selection_;
  SnapshotOptions snapshot_;
  PageOptions page_;
};

}  // namespace

std::unique_ptr<Command> MakeAnalyze() { return std::make_unique<Analyze>(); }

}  // namespace kv
