// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/documents/document_fields.h"
#include "apps/kvtool/documents/document_names.h"
#include "apps/kvtool/inputs/corpus_entries.h"
#include "apps/kvtool/line/options.h"
#include "lib/corpus/merge.h"

namespace kv {
namespace {

struct MergeDocument {
  std::vector<HashedFile> inputs;  // the corpus keeps its own name, wherever its results are
  corpus::MergeReport report;
};

const Fields<MergeDocument>& DocumentFields() {
  static const Fields<MergeDocument> fields = {
      {"inputs", "The corpus", &MergeDocument::inputs, HashedFileFields()},
      Fields<MergeDocument>::Inline(&MergeDocument::report, corpus::MergeReportFields())};
  return fields;
}

class Merge : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("RESULTS", files_,
             "What --results wrote: one file, or one of each shard; or a pattern in quotes")
        .Required();
    line.Add("-o,--output", output_, "Write the JSON document to a file");
    line.Add("--junit-out", junit_,
             "Write JUnit XML: a suite for each input, a test for each case of a gate");
    page_.Declare(line);
    limit_.Declare(line, "Limit on streams (default: 64GiB)");
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    for (const std::string& given : files_) files.Reads(MatchingPaths(given));
    files.Writes(output_, "-o");
    files.Writes(junit_, "--junit-out");
    page_.Files(files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    if (!output_.empty() && !report_.json_out.empty()) {
      throw Error(Finding::kUsage, "give one of -o and --json-out");
    }
    std::optional<AtomicFile> junit;
    if (!junit_.empty()) junit.emplace(junit_, RulesFor(report_.force));
    const corpus::Merged merged = Join();
    const MergeDocument document = {{{"corpus", merged.head.corpus_bytes, merged.head.corpus_xxh3}},
                                    corpus::MakeMergeReport(merged)};
    if (!report_.json) Print(document.report, context.console);
    if (page_.wanted()) {
      page_.Write(corpus::MergedPage(document.report), *this, context.console,
                  RulesFor(report_.force));
    }
    ReportOptions report = report_;
    if (!output_.empty()) report.json_out = output_;
    report.Emit(context.console, "merge", DocumentFields, document, RulesFor(false));
    if (junit) {
      corpus::WriteMergedJunit(merged, [&](std::string_view text) { junit->Write(AsBytes(text)); });
      junit->Commit();
    }
    // The exit status is that of one run over all inputs.
    return static_cast<ExitStatus>(merged.worst_exit_code);
  }

 private:
  corpus::Merged Join() const {
    // Step after which read pages of a mapped file are released.
    constexpr size_t kStep = size_t{8} << 20;
    corpus::Merger merger;
    for (const std::string& given : files_) {
      for (const std::string& file : MatchingPaths(given)) {
        const auto source =
            SizeLimit::WithHint([&] { return FileSource::Open(file, limit_.most()); });
        size_t dropped = 0;
        merger.Add(file, AsText(source->bytes()), [&](size_t done) {
          if (done < dropped + kStep) return;
          source->Drop(dropped, done - dropped);
          dropped = done;
        });
      }
    }
    return merger.Finish();
  }

  static void Print(const corpus::MergeReport& report, Console& console) {
    const corpus::Merged& merged = *report.merged;
    console.Line(fmt::format("{} of {} inputs: {} done, {} with a negative verdict, {} failed",
                             merged.head.command, merged.entries, merged.done, merged.negative,
                             merged.failed));
    if (report.verdict) {
      console.Line("verdict: " + console.Verdict(*report.verdict == "pass", *report.verdict));
    }
    if (!merged.cases.empty()) {
      console.Data(Table(corpus::Without("failing rules", corpus::CaseTable(report))).Text());
    }
    for (const corpus::MergedCase& one : merged.cases) {
      for (const auto& [rule, entries] : one.failing) {
        console.Line(fmt::format("{}: {} fails on {} of them", one.name, rule, entries));
      }
    }
    const TextTable figures =
        corpus::Without("p5", corpus::Without("p95", corpus::FigureTable(report.figures)));
    if (!figures.rows.empty()) console.Data(Table(figures).Text());
    for (const corpus::Outlier& outlier : report.outliers) {
      console.Line(fmt::format("outlier: {} {} {}: {:.4g}, median {:.4g}: {}", outlier.key.figure,
                               outlier.key.what, outlier.key.part, outlier.value, outlier.median,
                               outlier.command));
    }
  }

  std::vector<std::string> files_;
  std::string output_, junit_;
  SizeLimit limit_;
};

}  // namespace

const FieldTable& MergeFields() { return DocumentFields(); }
std::unique_ptr<Command> MakeMerge() { return std::make_unique<Merge>(); }

}  // namespace kv
