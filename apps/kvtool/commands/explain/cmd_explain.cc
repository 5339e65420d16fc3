// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "apps/kvtool/commands.h"
#include "apps/kvtool/commands/explain/explanations.h"

namespace kv {
namespace {

class Explain : public Command {
 public:
  void Declare(CommandLine& line) override {
    line.Add("FINDING", id_, "A number such as KV1001, kv1001 or 1001; without one all are listed");
  }

  void Files(CommandFiles&) const override {}

  ExitStatus Run(Context& context) override {
    if (id_.empty()) {
      Table table({"finding", "exit", "what it means"});
      for (const FindingInfo& info : AllFindings()) {
        table.Row({FindingId(info.finding), std::to_string(StatusOf(info.code)),
                   std::string(info.summary)});
      }
      context.console.Data(table.Text());
      return kDone;
    }
    if (const std::optional<FindingInfo> info = ParseFinding(id_)) {
      context.console.Data(ExplanationText(*info));
      return kDone;
    }
    throw Error(Finding::kUsage, fmt::format("unknown finding '{}'", Escaped(id_)))
        .Hint("'kvtool explain' lists them");
  }

 private:
  std::string id_;
};

}  // namespace

std::unique_ptr<Command> MakeExplain() { return std::make_unique<Explain>(); }

}  // namespace kv
