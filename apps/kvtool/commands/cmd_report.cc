// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/line/options.h"
#include "lib/engines/mnn/gate/engine.h"
#include "lib/study/gate/summary_view.h"

namespace kv {
namespace {

// Larger than any summary that a gate writes.
constexpr uint64_t kMaxSummaryBytes = 64u << 20;

class Report : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("SUMMARY", files_,
             "summary.json of kvtool gate or of the engine's suite; several make a history, in the "
             "order of their dates or, without dates, as given")
        .Required();
    page_.Declare(line);
    line.Add("--junit-out", junit_, "Write JUnit XML: a suite per case, a test per rule");
    line.AddFlag("-f,--force", force_, "Overwrite outputs");
  }

  void Files(CommandFiles& files) const override {
    files.Reads(files_);
    page_.Files(files);
    files.Writes(junit_, "--junit-out");
  }

  ExitStatus Run(Context& context) override {
    std::vector<gate::Summary> summaries;
    for (const std::string& file : files_) {
      const auto source = FileSource::OpenSmall(file, kMaxSummaryBytes, "a summary");
      summaries.push_back(gate::ParseSummary(AsText(source->bytes()), file));
    }
    const gate::Summary& newest = gate::Newest(summaries);
    if (page_.wanted()) {
      page_.Write(gate::SummaryPage(summaries, mnn::Engine()), *this, context.console,
                  RulesFor(force_));
    }
    if (!junit_.empty()) Write(junit_, gate::SummaryJunit(newest, mnn::Engine()));
    Print(context.console, gate::MakeView(newest, mnn::Engine()));
    return kDone;
  }

 private:
  void Write(const std::string& path, const std::string& text) const {
    WriteText(path, text, RulesFor(force_));
  }

  static void Print(Console& console, const gate::SummaryView& view) {
    Table table({"case", "mode", "status", "decided by"});
    for (const gate::CaseView& c : view.cases) {
      const gate::RuleOutcome* rule = c.Deciding();
      const bool decides =
          rule != nullptr && rule->status == c.status && c.status != gate::Status::kNotRun;
      table.Row({c.name, c.mode, std::string(gate::Text(c.status)),
                 decides ? rule->rule.shown() + ": " + gate::Sentence(*rule) : c.reason});
    }
    const size_t inconclusive = view.Count(gate::Status::kInconclusive);
    console.Line(fmt::format(
        "{}: {}, {} passed, {} failed, {} not run{}", Printable(view.file),
        console.Verdict(view.pass, view.pass ? "pass" : "fail"), view.Count(gate::Status::kPass),
        view.Count(gate::Status::kFail), view.Count(gate::Status::kNotRun),
        inconclusive > 0 ? fmt::format(", {} inconclusive", inconclusive) : std::string()));
    console.Data(table.Text());
  }

  std::vector<std::string> files_;
  std::string junit_;
  bool force_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeReport() { return std::make_unique<Report>(); }

}  // namespace kv
