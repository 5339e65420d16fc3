// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// `kvtool analyze`: how far a cache compresses, with MNN's offline experiment and its reports on
// request.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/analyze/analyze_report.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/inputs/each_command.h"
#include "apps/kvtool/inputs/run_input.h"
#include "apps/kvtool/line/options.h"
#include "lib/core/snapshot/cast.h"
#include "lib/engines/mnn/offline/offline.h"
#include "lib/study/analysis/analysis.h"
#include "lib/study/analysis/dump_rows.h"

namespace kv {
namespace {

template <typename T>
T Chosen(const std::string& word, std::initializer_list<T> all) {
  return *std::find_if(all.begin(), all.end(), [&](T value) { return Name(value) == word; });
}

std::string NameFlag(mnn::offline::Stream stream) {
  std::string flag = fmt::format("--{}-predictors", Name(stream));
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// The options of MNN's offline experiment, under the names in its script.
struct OfflineOptions {
  std::string codec, json_out, md_out;
  std::string stage = "both", scope = "front_n", entry_mode = "per_meta", layer_ids;
  std::string predictors[mnn::offline::kStreams];
  mnn::offline::Options values;

  void Declare(CommandLine& line) {
    const char* group =
        "MNN's offline experiment, with --offline-codec (names and defaults of its script)";
    const Option needed =
        line.Add("--offline-codec", codec, "Codec to simulate: adaptive (adaptive_v22) or legacy")
            .OneOf({"adaptive", "adaptive_v22", "legacy"})
            .Group(group);
    const auto add = [&](const char* flag, auto& to, const char* text) {
      return line.Add(flag, to, text).Needs(needed).Group(group);
    };
    const auto add_flag = [&](const char* flag, bool& to, const char* text) {
      line.AddFlag(flag, to, text).Needs(needed).Group(group);
    };
    constexpr int64_t kMost = int64_t{1} << 40;
    add("--entry-mode", entry_mode,
        "per_meta, aggregate, chunked, chunked_grouped (default: per_meta)")
        .OneOf({"per_meta", "aggregate", "chunked", "chunked_grouped"});
    add("--stage", stage, "prefill, decode or both (default: both)")
        .OneOf({"prefill", "decode", "both"});
    add("--scope", scope, "front_n, layer_range or layer_ids (default: front_n)")
        .OneOf({"front_n", "layer_range", "layer_ids"});
    add("--front-n", values.front_n, "Layers of scope front_n (default: 2)")
        .Between(int64_t{1}, kMost);
    add("--layer-start", values.layer_start, "First layer of scope layer_range (default: 2)");
    add("--layer-end", values.layer_end, "Last layer of scope layer_range, -1 = all (default: -1)");
    add("--layer-ids", layer_ids, "Layers of scope layer_ids, e.g. 0,2");
    add("--zstd-level", values.zstd_level,
        "zstd level, also of --distribution and --packed (default: 3)")
        .Between(-131072, 22);
    add("--online-chunk-seq", values.chunk_tokens, "Tokens per chunk, 0 = whole (default: 0)")
        .Between(int64_t{0}, kMost);
    add("--online-framing-bytes", values.framing_bytes, "Bytes that each chunk adds (default: 16)")
        .Between(int64_t{0}, kMost);
    add("--adaptive-block-seq", values.block_tokens, "Tokens per choice of predictor (default: 64)")
        .Between(int64_t{1}, kMost);
    add("--min-seq-len", values.min_tokens, "Omit entries shorter than this")
        .Between(int64_t{0}, kMost);
    add("--max-seq-len", values.max_tokens, "Omit entries longer than this")
        .Between(int64_t{0}, kMost);
    add_flag("--aggregate-by-stage", values.aggregate_by_stage,
             "Join prefill and decode separately");
    add_flag("--bitshuffle", values.bitshuffle, "Shuffle bits before zstd");
    add_flag("--strict-fp16", values.strict_fp16,
             "Omit f32 entries instead of rounding them to f16");
    for (size_t i = 0; i < mnn::offline::kStreams; ++i) {
      const auto stream = static_cast<mnn::offline::Stream>(i);
      add(NameFlag(stream).c_str(), predictors[i], "Candidates in their order, e.g. raw,delta_seq");
    }
    add("--offline-json-out", json_out, "Write the script's own JSON document");
    add("--offline-md-out", md_out, "Write the script's own Markdown summary");
  }

  // Returns nothing unless --offline-codec was given. Throws kUsage.
  std::optional<mnn::offline::Options> Resolve() const {
    if (codec.empty()) return std::nullopt;
    using namespace mnn::offline;
    Options options = values;
    options.codec = codec == "legacy" ? CodecMode::kLegacy : CodecMode::kAdaptive;
    options.stage = Chosen(stage, {Stage::kBoth, Stage::kPrefill, Stage::kDecode});
    options.scope = Chosen(scope, {Scope::kFrontN, Scope::kLayerRange, Scope::kLayerIds});
    options.entry_mode = Chosen(entry_mode, {EntryMode::kPerMeta, EntryMode::kAggregate,
                                             EntryMode::kChunked, EntryMode::kChunkedGrouped});
    if (!layer_ids.empty()) {
      const std::vector<uint32_t> ids = ParseIndexList(layer_ids, "--layer-ids");
      options.layer_ids = {ids.begin(), ids.end()};
    }
    if (options.scope == Scope::kLayerIds && options.layer_ids.empty()) {
      throw Error(Finding::kUsage, "--scope layer_ids: give --layer-ids");
    }
    for (size_t i = 0; i < kStreams; ++i) {
      if (predictors[i].empty()) continue;
      options.predictors[i] = ParsePredictorList(predictors[i], NameFlag(static_cast<Stream>(i)));
    }
    return options;
  }
};

// The figures of one cache.
struct Analysed {
  std::string format, engine, model, level;
  analysis::Analysis analysis;
};

struct AnalysedRun {
  std::string run;
  std::optional<Analysed> analysed;
};

struct AnalyzeTiming {
  uint64_t elapsed_us = 0;
  int threads = 0;
};

struct AnalyzeResult {
  std::vector<HashedFile> inputs;
  std::optional<std::vector<AnalysedRun>> runs;
  std::optional<Analysed> analysed;
  std::optional<mnn::offline::Document> offline;
  std::optional<analysis::RowsReport> distribution, packed;
  std::vector<std::string> warnings;
  std::optional<AnalyzeTiming> timing;
};

const Fields<Analysed>& AnalysedFields() {
  static const Fields<Analysed> fields = {
      {"format", "Name of the format the input was read as", &Analysed::format},
      {"engine", "Engine that wrote the input; empty: not known", &Analysed::engine},
      {"model", "Model that the input is of; empty: not known", &Analysed::model},
      {"level", "Level of compress that was measured beside MNN's codec; compat: none",
       &Analysed::level, OneOf("compat", "fast", "default", "high", "max")},
      Fields<Analysed>::Inline(
          [](const Analysed& of) -> const auto& { return of.analysis; },
          analysis::AnalysisFields())};
  return fields;
}

const Fields<AnalyzeResult>& AnalyzeResultFields() {
  using Result = AnalyzeResult;
  static const Fields<AnalysedRun> runs = {
      {"run", "Folder of the run, relative to the input", &AnalysedRun::run},
      Fields<AnalysedRun>::Inline(&AnalysedRun::analysed, AnalysedFields())};
  static const Fields<AnalyzeTiming> timing = {
      {"elapsed_us", "Wall time of the command, in microseconds", &AnalyzeTiming::elapsed_us},
      {"threads", "Number of threads that were used", &AnalyzeTiming::threads, AtLeast(0)}};
  static const Fields<Result> fields = {
      {"inputs", "What was read", &Result::inputs, HashedFileFields()},
      {"runs", "The document of each run, if the folder has several runs of dumps", &Result::runs,
       runs, Absent()},
      Fields<Result>::Inline(&Result::analysed, AnalysedFields()),
      {"offline", "the document of MNN's offline_lossless_fp16.py, schema_version 3",
       &Result::offline, mnn::offline::DocumentFields(), Absent()},
      {"distribution", "Entropies and zstd ratios of each dump, or of each layer of a snapshot",
       &Result::distribution, analysis::RowsReportFields(), Absent()},
      {"packed", "Entropies and zstd ratios of packed MNN dumps, padding included", &Result::packed,
       analysis::RowsReportFields(), Absent()},
      {"warnings", "Warnings of the run", &Result::warnings},
      {"timing", "How long it took; absent in deterministic output", &Result::timing, timing,
       Absent()}};
  return fields;
}

class Analyze : public ForEachInput<Analyze> {
 public:
  void Declare(CommandLine& line) override {
    DeclareInputs(line, "FILE", "Snapshots or folders of dumps: files, folders, '-' for stdin");
    line.Add("--level", level_,
             "Level of compress to measure beside MNN's codec (default: default; compat: none)")
        .OneOf({"compat", "fast", "default", "high", "max"});
    line.AddFlag("--per-head", per_head_, "Also code every head on its own (takes twice as long)");
    line.AddFlag("--distribution", distribution_,
                 "Entropies and zstd ratios per dump (for a snapshot: per layer)");
    line.AddFlag("--packed", packed_,
                 "Entropies and zstd ratios of packed MNN dumps, padding included");
    line.AddFlag("--reports-only", reports_only_,
                 "Omit the layers: report only --offline-codec, --distribution or --packed");
    line.Add("--csv-out", csv_, "Write the rows of --distribution (or --packed) as CSV");
    const char* group = "RoPE of the model, to measure K without its rotation, too";
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
    const auto rope = rope_.ResolveOrWarn(
        options, nullptr, "K is not measured without its rotation", context.console);
    AnalyzeResult result;
    result.inputs = {HashedFile::Of(inputs.source())};
    ExitStatus status = kDone;
    report::Page page(
        "What compresses",
        inputs.snapshot
            ? fmt::format("{} ({})", input_, ShapeText(*inputs.snapshot, snapshot_.ModelName("")))
            : input_);
    if (!reports_only_) status = AddLayers(context, inputs, options, rope, pool, result, page);
    if (simulated) AddOffline(context, *simulated, inputs, pool, result);
    if (with_rows()) AddRows(context, inputs, rope, pool, result);
    result.warnings = context.console.warning_texts();
    if (!context.global.deterministic) {
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - begin;
      result.timing = {static_cast<uint64_t>(took.count()), pool.threads()};
    }
    if (page_.wanted()) {
      page_.Write(page, *this, context.console, RulesFor(force_));
    }
    report_.Emit(context.console, "analyze", AnalyzeResultFields, result, RulesFor(force_));
    return status;
  }

 private:
  // A snapshot, with its dumps if the format has them; or only the dumps, if a folder has several
  // runs, each of which is a snapshot.
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
      throw Error(Finding::kUsage, "--reports-only omits the layers that the page would show");
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
        // Reports that need no snapshot still run: those of other runs, and of dumps one by one.
        const bool several = error.finding() == Finding::kAmbiguousFormat;
        if (!dumps_wanted || !(several || with_reports())) throw error.File(input_);
        if (!several) context.console.Warn(input_, fmt::format("no layers: {}", error.message()));
        inputs.runs = std::move(source);
      }
    }
    if (!dumps_wanted) {
      inputs.dumps.logical = ListDumpEntries(*inputs.snapshot);
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
    WarnAboutNotes(snapshot.notes, source.path, context.console);
    const std::string rotated = HadamardRemark(snapshot);
    if (!rotated.empty()) context.console.Warn(source.path, rotated);
    snapshot.CheckContent();
    return snapshot;
  }

  ExitStatus AddLayers(Context& context, const Inputs& inputs, const OpenOptions& options,
                       const std::optional<ModelRope>& rope, ThreadPool& pool,
                       AnalyzeResult& result, report::Page& page) const {
    if (inputs.snapshot) {
      return AddAnalysis(context, *inputs.snapshot, rope, pool, result.analysed, page);
    }
    ExitStatus status = kDone;
    result.runs.emplace();
    for (const std::filesystem::path& folder : inputs.run_folders) {
      const Source source = Source::Open(std::filesystem::path(input_) / folder);
      AnalysedRun run = {folder.generic_string(), {}};
      if (!report_.json && !result.runs->empty()) context.console.Line("");
      try {
        const Snapshot snapshot = OpenOne(context, source, options);
        page.Heading(folder.generic_string());
        status = Worse(status, AddAnalysis(context, snapshot, rope, pool, run.analysed, page));
      } catch (Error& error) {
        // The other reports count damage and continue.
        if (!with_reports()) throw error.File(source.path);
        context.console.Warn(source.path, fmt::format("no layers: {}", error.message()));
      }
      result.runs->push_back(std::move(run));
    }
    return status;
  }

  ExitStatus AddAnalysis(Context& context, const Snapshot& snapshot,
                         const std::optional<ModelRope>& rope, ThreadPool& pool,
                         std::optional<Analysed>& result, report::Page& page) const {
    analysis::Analysis analysis;
    {
      ProgressLine progress(context.console, context.global.progress_when(), "analyze");
      analysis =
          analysis::Analyse(snapshot, {per_head_, *ParseEffort(level_), rope}, pool, &progress);
    }
    analysis::AddAnalysis(analysis, level_, page);
    if (!report_.json)
      context.console.Data(AnalysisText(snapshot, analysis, level_, context.console));
    const bool decodes = analysis.total().decodes;
    result = {snapshot.format, snapshot.engine, snapshot.model, level_, std::move(analysis)};
    return decodes ? kDone : kVerdict;
  }

  void AddOffline(Context& context, const mnn::offline::Options& options, const Inputs& inputs,
                  ThreadPool& pool, AnalyzeResult& result) const {
    mnn::offline::Document document = {input_, options, {}};
    {
      ProgressLine progress(context.console, context.global.progress_when(), "simulate");
      document.result = mnn::offline::Simulate(inputs.dumps.logical, options, pool, &progress);
    }
    Write(offline_.json_out,
          JsonText(ToJson(mnn::offline::DocumentFields().Object(document)), 2, true));
    Write(offline_.md_out, mnn::offline::ResultMarkdown(input_, options, document.result));
    if (!report_.json) {
      context.console.Data("\n" + OfflineText(options, document.result, context.console));
    }
    document.zero_is_null = true;
    result.offline = std::move(document);
  }

  void AddRows(Context& context, const Inputs& inputs, const std::optional<ModelRope>& rope,
               ThreadPool& pool, AnalyzeResult& result) const {
    const analysis::RowOptions row_options{offline_.values.zstd_level, rope};
    const auto add = [&](std::optional<analysis::RowsReport>& report, const char* title,
                         const std::vector<Value>& rows, bool positive_only) {
      report = analysis::ReportRows(rows, positive_only);
      Write(csv_, analysis::RowsCsv(rows));
      if (!report_.json) context.console.Data("\n" + RowsText(title, rows, context.console));
    };
    if (distribution_ || !packed_) {
      add(result.distribution, "Distribution",
          analysis::DistributionRows(inputs.dumps.logical, row_options, pool), false);
    }
    if (packed_) {
      add(result.packed, "Packed dumps, padding included",
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
};

}  // namespace

const FieldTable& AnalyzeFields() { return AnalyzeResultFields(); }

std::unique_ptr<Command> MakeAnalyze() { return std::make_unique<Analyze>(); }

}  // namespace kv
