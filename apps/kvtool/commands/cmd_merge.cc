// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/inputs/corpus_entries.h"
#include "apps/kvtool/line/page_options.h"
#include "lib/corpus/merge_page.h"

namespace kv {
namespace {

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
    limit_.Declare(line, "Limit on streams (default 64GiB)");
    report_.Declare(line, false);
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
    nlohmann::ordered_json document = ReportHeader("merge");
    document["inputs"] = {{{"file", "corpus"},
                           {"bytes", merged.head.corpus_bytes},
                           {"xxh3", merged.head.corpus_xxh3}}};
    document.update(corpus::MergedJson(merged));
    if (!report_.json) Print(document, context.console);
    if (page_.wanted()) {
      page_.Write(corpus::MergedPage(merged, document), *this, context.console,
                  RulesFor(report_.force));
    }
    ReportOptions report = report_;
    if (!output_.empty()) report.json_out = output_;
    report.Emit(context.console, document, RulesFor(false));
    if (junit) {
      corpus::WriteMergedJunit(merged, [&](std::string_view text) { junit->Write(AsBytes(text)); });
      junit->Commit();
    }
    // That of the run over all inputs at once.
    return static_cast<ExitStatus>(merged.worst_exit_code);
  }

 private:
  corpus::Merged Join() const {
    // What was read of a mapped file need not stay in memory.
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

  static void Print(const nlohmann::ordered_json& document, Console& console) {
    console.Line(fmt::format("{} of {} inputs: {} done, {} with a negative verdict, {} failed",
                             document["command"].get<std::string>(),
                             document["entries"].get<size_t>(), document["done"].get<size_t>(),
                             document["negative"].get<size_t>(), document["failed"].get<size_t>()));
    if (document["verdict"].is_string()) {
      const std::string verdict = document["verdict"];
      console.Line("verdict: " + console.Verdict(verdict == "pass", verdict));
    }
    PrintCases(document["cases"], console);
    Table table({"what", "figure", "part", "inputs", "all together", "mean", "deviation", "min",
                 "median", "max"});
    bool any = false;
    for (const nlohmann::ordered_json& figure : document["figures"]) {
      if (!figure["layer"].is_null()) continue;
      any = true;
      const auto text = [&](const char* key) {
        return figure[key].is_number() ? fmt::format("{:.4g}", figure[key].get<double>())
                                       : std::string("-");
      };
      table.Row({figure["what"], figure["figure"], figure["part"],
                 std::to_string(figure["count"].get<size_t>()), text("weighted"), text("mean"),
                 text("deviation"), text("min"), text("median"), text("max")});
    }
    if (any) console.Data(table.Text());
    for (const nlohmann::ordered_json& outlier : document["outliers"]) {
      console.Line(
          fmt::format("far out: {} {} {}: {:.4g}, median {:.4g}: {}",
                      outlier["figure"].get<std::string>(), outlier["what"].get<std::string>(),
                      outlier["part"].get<std::string>(), outlier["value"].get<double>(),
                      outlier["median"].get<double>(), outlier["command"].get<std::string>()));
    }
  }

  static void PrintCases(const nlohmann::ordered_json& cases, Console& console) {
    if (cases.empty()) return;
    Table table({"case", "passed", "failed", "not run", "inconclusive"});
    for (const nlohmann::ordered_json& one : cases) {
      const auto count = [&](const char* key) { return std::to_string(one[key].get<uint64_t>()); };
      table.Row(
          {one["name"], count("pass"), count("fail"), count("not_run"), count("inconclusive")});
    }
    console.Data(table.Text());
    for (const nlohmann::ordered_json& one : cases) {
      for (const nlohmann::ordered_json& rule : one["failing"]) {
        console.Line(fmt::format("{}: {} fails on {} of them", one["name"].get<std::string>(),
                                 rule["rule"].get<std::string>(), rule["entries"].get<uint64_t>()));
      }
    }
  }

  std::vector<std::string> files_;
  std::string output_, junit_;
  PageOptions page_;
  SizeLimit limit_;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeMerge() { return std::make_unique<Merge>(); }

}  // namespace kv
