// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/analyze/offline_options.h"
#include "apps/kvtool/console/console.h"
#include "apps/kvtool/console/progress.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/result_fields.h"
#include "apps/kvtool/documents/snapshot_report.h"
#include "apps/kvtool/inputs/each_command.h"
#include "apps/kvtool/inputs/run_input.h"
#include "apps/kvtool/line/page_options.h"
#include "apps/kvtool/line/rope_options.h"
#include "lib/core/snapshot/cast.h"
#include "lib/engines/mnn/offline/offline.h"
#include "lib/engines/mnn/offline/result_report.h"
#include "lib/fields/value.h"
#include "lib/study/analysis/analysis.h"
#include "lib/study/analysis/dump_rows.h"
#include "lib/study/analysis/report.h"

namespace kv {
namespace {

using analysis::Analysis;
using analysis::LayerAnalysis;
using analysis::Totals;

std::string Row(std::string_view name, std::string_view value) {
  return fmt::format("  {:<9} {}\n", name, value);
}

using format::Factor;

// "f16", or "f16 and q8_0" where tensors differ.
std::string DTypesOf(const Analysis& analysis) {
  std::set<std::string_view> names;
  for (const LayerAnalysis& layer : analysis.layers) {
    for (const auto* tensor : {&layer.k, &layer.v}) {
      if (*tensor) names.insert(Name((*tensor)->dtype));
    }
  }
  std::string text;
  for (const std::string_view name : names)
    text += fmt::format("{}{}", text.empty() ? "" : " and ", name);
  return text;
}

uint64_t MostTokens(const Analysis& analysis) {
  uint64_t most = 0;
  for (const LayerAnalysis& layer : analysis.layers) {
    for (const auto* tensor : {&layer.k, &layer.v}) {
      if (*tensor) most = std::max(most, (*tensor)->tokens);
    }
  }
  return most;
}

// "1.151x" of MNN's codec, and " 1.234x" of ours where it was asked.
std::string BothRatios(double mnn, double own, bool with_own) {
  return with_own ? Factor(mnn) + ", " + Factor(own) : Factor(mnn);
}

// "1.151x, 1.234x   12.97 of 16 bits per value, order-0/1 entropy 12.71 (1.259x)"
std::string TotalsLine(const Analysis& analysis, bool values, bool with_own) {
  const Totals& totals = values ? analysis.v : analysis.k;
  if (totals.raw_bytes == 0) return "not in the snapshot";
  const double raw = 8.0 * static_cast<double>(totals.raw_bytes) / totals.values;
  std::string line =
      fmt::format("{:<{}} {:.2f} of {:.4g} bits per value, order-0/1 entropy {:.2f} ({})",
                  BothRatios(totals.ratio(), totals.own_ratio(), with_own), with_own ? 16 : 8,
                  totals.reached(), raw, totals.bound(), Factor(totals.bound_ratio()));
  if (totals.reached() >= totals.bound()) return line;
  const bool repeats =
      std::any_of(analysis.layers.begin(), analysis.layers.end(), [&](const LayerAnalysis& layer) {
        const auto& tensor = values ? layer.v : layer.k;
        return tensor && tensor->structure.repeated_rows > 0;
      });
  return line + fmt::format(": beaten by {}, which no such model sees",
                            repeats ? "repeated rows" : "what the codec takes from rows before");
}

// The layers in their order, from the ratio 1 up to the best.
std::string RatiosByLayer(const Analysis& analysis, bool values, bool utf8) {
  std::vector<double> ratios;
  for (const LayerAnalysis& layer : analysis.layers) {
    const auto& tensor = values ? layer.v : layer.k;
    if (tensor) ratios.push_back(tensor->better().ratio());
  }
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  const std::string range = fmt::format("{} to {}", Factor(*least), Factor(*most));
  const double top = std::max(*most - 1, 1e-9);
  for (double& ratio : ratios) ratio = std::clamp((ratio - 1) / top, 0.0, 1.0);
  return fmt::format("{}  {}", Sparkline(ratios, utf8), range);
}

// Columns that a table for people has room for: what a dump is, and ratios and entropies of the
// whole, where any row has one.
bool IsShown(const std::string& name, const std::vector<Value>& rows) {
  for (const char* part :
       {"_hi", "_lo", "_diff", "kv_heads", "head_dim", "bytes", "pack_", "flash", "max_seq"}) {
    if (name.find(part) != name.npos && !name.ends_with("half_zstd_ratio") &&
        !name.ends_with("half_gear_ratio")) {
      return false;
    }
  }
  return std::any_of(rows.begin(), rows.end(), [&](const Value& row) {
    const Value* cell = row.Find(name);  // rows without a known place lack some columns
    const auto* number = cell == nullptr ? nullptr : cell->get_if<double>();
    return cell != nullptr && (number == nullptr || *number != 0);
  });
}

// What storing exact values in half the size would give in all.
std::string NarrowLine(const Analysis& analysis) {
  analysis::Coded as_is, narrow;
  for (const LayerAnalysis& layer : analysis.layers) {
    for (const auto* tensor : {&layer.k, &layer.v}) {
      if (!*tensor) continue;
      as_is.Add((*tensor)->measured);
      narrow.Add((*tensor)->narrow ? *(*tensor)->narrow : (*tensor)->measured);
    }
  }
  if (narrow.coded_bytes == as_is.coded_bytes) return {};
  return fmt::format("{:<8} if those values were stored in two bytes, without losing a bit",
                     Factor(narrow.ratio()));
}

std::string AnalysisText(const Snapshot& snapshot, const Analysis& analysis,
                         const std::string& level, const Console& console) {
  const bool with_own = level != "compat";
  const Totals total = analysis.total();
  std::string text = fmt::format(
      "{}: {}{}, {} layer{}, {} tokens, {}, {}\n", console.Bold(snapshot.source.path),
      snapshot.format, snapshot.engine.empty() ? "" : " of " + Printable(snapshot.engine),
      analysis.layers.size(), analysis.layers.size() == 1 ? "" : "s", MostTokens(analysis),
      DTypesOf(analysis), HumanBytes(total.raw_bytes));
  if (total.raw_bytes == 0) return text;
  std::string overall = HumanRatio(total.raw_bytes, total.coded_bytes);
  if (with_own) {
    overall += fmt::format(" by MNN's codec, {} at level {}",
                           HumanRatio(total.raw_bytes, total.own_bytes), level);
  }
  overall += total.decodes ? "; decoded again and equal by hash"
                           : "; " + console.Verdict(false, "DECODED DIFFERENTLY");
  text += Row("overall", overall);
  text += Row("K", TotalsLine(analysis, false, with_own));
  text += Row("V", TotalsLine(analysis, true, with_own));
  const auto extreme = [](const analysis::Extreme& e) {
    return fmt::format("layer {} {}, {}", e.layer, e.is_value ? "V" : "K", Factor(e.ratio));
  };
  text += Row("best", extreme(analysis.best));
  text += Row("worst", extreme(analysis.worst));
  const std::string narrow = NarrowLine(analysis);
  if (!narrow.empty()) text += Row("narrow", narrow);
  const bool several = analysis.layers.size() > 2;
  if (several && analysis.k.raw_bytes > 0) {
    text += Row("K layers", RatiosByLayer(analysis, false, console.utf8()));
  }
  if (several && analysis.v.raw_bytes > 0) {
    text += Row("V layers", RatiosByLayer(analysis, true, console.utf8()));
  }
  for (const std::string& finding : analysis.findings) text += Row("note", finding);
  return text + "\n" + Table(analysis::LayersTable(analysis, level)).Text("  ");
}

std::string OfflineText(const mnn::offline::Options& options, const mnn::offline::Result& result,
                        const Console& console) {
  std::string text = console.Bold("MNN's offline experiment") +
                     fmt::format(": {}, {}, {}\n", Name(options.codec), Name(options.entry_mode),
                                 Name(options.scope));
  if (result.entries == 0) {
    text += Row("nothing", fmt::format("none of {} entries is selected", result.scanned));
  } else {
    const mnn::offline::Sizes total = result.total();
    text += Row("overall", fmt::format("{}, K {}, V {}; an estimate, nothing is decoded",
                                       Factor(total.ratio()), Factor(result.k.ratio()),
                                       Factor(result.v.ratio())));
    text +=
        Row("counted", fmt::format("{} of {} entries in {} layers, {} as f16", result.entries,
                                   result.scanned, result.layers.size(), HumanBytes(total.raw)));
    for (size_t i = 0; i < mnn::offline::kStreams; ++i) {
      std::string chosen;
      for (const auto& [predictor, count] : result.mode_counts[i]) {
        if (count > 0) {
          chosen += fmt::format("{}{} {}", chosen.empty() ? "" : ", ", Name(predictor), count);
        }
      }
      text += Row(Name(static_cast<mnn::offline::Stream>(i)), chosen.empty() ? "-" : chosen);
    }
  }
  for (const auto& [reason, count] : result.skip_reasons) {
    text += Row("skipped", fmt::format("{} {}", count, reason));
  }
  return text;
}

// Rows of the distribution or the packed report; columns that are 0 in all of them are left out.
std::string RowsText(std::string_view title, const std::vector<Value>& rows,
                     const Console& console) {
  constexpr size_t kMostRows = 40;
  std::string text =
      console.Bold(title) + fmt::format(": {} dump{}\n", rows.size(), rows.size() == 1 ? "" : "s");
  if (rows.empty()) return text;
  std::vector<std::string> names;
  for (const auto& [name, first] : *rows.front().get_if<Value::Object>()) {
    if (IsShown(name, rows)) names.push_back(name);
  }
  Table table(names);
  for (size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) {
    std::vector<std::string> cells;
    for (const std::string& name : names) {
      const Value* cell = rows[i].Find(name);
      const auto* number = cell == nullptr ? nullptr : cell->get_if<double>();
      cells.push_back(cell == nullptr     ? "-"
                      : number != nullptr ? fmt::format("{:.3f}", *number)
                                          : format::Plain(*cell));
    }
    table.Row(std::move(cells));
  }
  text += table.Text("  ");
  if (rows.size() > kMostRows) {
    text +=
        fmt::format("  ... and {} more: --csv-out and --json have all\n", rows.size() - kMostRows);
  }
  return text;
}

// What was measured of one cache.
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
      {"engine", "The engine that wrote it; empty: not known", &Analysed::engine},
      {"model", "The model it is of; empty: not known", &Analysed::model},
      {"level",
       "Level of compress that was measured beside MNN's codec; compat: none",
       &Analysed::level,
       {.choices = {"compat", "fast", "default", "high", "max"}}},
      Fields<Analysed>::Inline(
          [](const Analysed& of) -> const auto& { return of.analysis; },
          analysis::AnalysisFields())};
  return fields;
}

const Fields<AnalyzeResult>& AnalyzeResultFields() {
  using Result = AnalyzeResult;
  static const Fields<AnalysedRun> runs = {
      {"run", "Folder of the run below the input", &AnalysedRun::run},
      Fields<AnalysedRun>::Inline(&AnalysedRun::analysed, AnalysedFields())};
  static const Fields<AnalyzeTiming> timing = {
      {"elapsed_us", "Wall time of the command, in microseconds", &AnalyzeTiming::elapsed_us},
      {"threads", "Number of threads that were used", &AnalyzeTiming::threads, AtLeast(0)}};
  static const Fields<Result> fields = {
      {"inputs", "What was read", &Result::inputs, HashedFileFields()},
      {"runs",
       "of a folder that holds several runs of dumps: what stands in the document otherwise, run "
       "by run",
       &Result::runs, runs, Absent()},
      Fields<Result>::Inline(&Result::analysed, AnalysedFields()),
      {"offline", "the document of MNN's offline_lossless_fp16.py, schema_version 3",
       &Result::offline, mnn::offline::DocumentFields(), Absent()},
      {"distribution", "Entropies and zstd ratios of each dump, or of each layer of a snapshot",
       &Result::distribution, analysis::RowsReportFields(), Absent()},
      {"packed", "Entropies and zstd ratios of packed MNN dumps, padding included", &Result::packed,
       analysis::RowsReportFields(), Absent()},
      {"warnings", "Everything that the run warned of", &Result::warnings},
      {"timing", "How long it took; absent in deterministic output", &Result::timing, timing,
       Absent()}};
  return fields;
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
    AnalyzeResult result;
    result.inputs = {HashedFile::Of(inputs.source())};
    ExitStatus status = kDone;
    report::Page page("What compresses", input_);
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
    report_.Emit(context.console, "analyze", AnalyzeResultFields().Object(result),
                 RulesFor(force_));
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
        // Damage is counted by the other reports, which look past it.
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
  SnapshotOptions snapshot_;
  PageOptions page_;
};

}  // namespace

const FieldTable& AnalyzeFields() { return AnalyzeResultFields(); }

std::unique_ptr<Command> MakeAnalyze() { return std::make_unique<Analyze>(); }

}  // namespace kv
