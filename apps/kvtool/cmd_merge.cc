// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/corpus_entries.h"
#include "apps/kvtool/page_options.h"
#include "lib/study/corpus/merge_page.h"

namespace kv {
namespace {

class Merge : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("RESULTS", files_,
             "What --results wrote: one file, or one of each shard; or a pattern in quotes")
        .Required();
    line.Add("-o,--output", output_, "Write the JSON document to a file");
    page_.Declare(line);
    report_.Declare(line);
  }

  void Files(CommandFiles& files) const override {
    for (const std::string& given : files_) files.Reads(MatchingPaths(given));
    files.Writes(output_, "-o");
    page_.Files(files);
    report_.Files(files);
  }

  ExitStatus Run(Context& context) override {
    if (!output_.empty() && !report_.json_out.empty()) {
      throw Error(Finding::kUsage, "give one of -o and --json-out");
    }
    corpus::Merger merger;
    for (const std::string& given : files_) {
      for (const std::string& file : MatchingPaths(given)) {
        const auto source = FileSource::Open(file);
        const ByteSpan bytes = source->bytes();
        merger.Add(file, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      }
    }
    const corpus::Merged merged = merger.Finish();
    nlohmann::ordered_json document = ReportHeader("merge");
    document["inputs"] = {{{"file", "corpus"},
                           {"bytes", merged.head.corpus_bytes},
                           {"xxh3", merged.head.corpus_xxh3}}};
    document.update(corpus::MergedJson(merged));
    if (!report_.json) Print(document, context.console);
    if (page_.wanted()) {
      page_.Write(corpus::MergedPage(merged, MadeBy()), *this, context.console,
                  RulesFor(report_.force));
    }
    ReportOptions report = report_;
    if (!output_.empty()) report.json_out = output_;
    report.Emit(context.console, document, RulesFor(false));
    // That of the run over all inputs at once.
    int status = kDone;
    for (const corpus::MergedInput& input : merged.inputs) {
      status = std::max(status, input.exit_code);
    }
    return static_cast<ExitStatus>(status);
  }

 private:
  static void Print(const nlohmann::ordered_json& document, Console& console) {
    console.Line(fmt::format("{} of {} inputs: {} done, {} with a negative verdict, {} failed",
                             document["command"].get<std::string>(),
                             document["entries"].get<size_t>(), document["done"].get<size_t>(),
                             document["negative"].get<size_t>(), document["failed"].get<size_t>()));
    if (document["verdict"].is_string()) {
      const std::string verdict = document["verdict"];
      console.Line("verdict: " + console.Verdict(verdict == "pass", verdict));
    }
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

  std::vector<std::string> files_;
  std::string output_;
  PageOptions page_;
  ReportOptions report_;
};

}  // namespace

std::unique_ptr<Command> MakeMerge() { return std::make_unique<Merge>(); }

}  // namespace kv
