// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/commands/replay/quant_plan.h"
#include "apps/kvtool/console/console.h"
#include "apps/kvtool/inputs/command_files.h"
#include "apps/kvtool/line/command_line.h"
#include "lib/study/advise/savings_report.h"

namespace kv {

// What `advise` found beyond eviction.
struct FoundSavings {
  std::optional<advise::Savings> savings;  // none: `why_not` says why
  std::string why_not;
  std::vector<advise::LosslessLevel> levels;
  std::vector<advise::SavingRow> rows;

  QuantPlan TypesOf(const advise::Runs& runs) const;  // of the chosen point
  void Print(Console& console, const advise::Runs& runs,
             const advise::AdviceRequest& request) const;
};

// The options of everything that is not eviction.
struct SavingsOptions {
  std::vector<std::string> types;

  void Declare(CommandLine& line);
  FoundSavings Find(const advise::Runs& runs, const advise::AdviceRequest& request,
                    const advise::Advice& advice, const ModelRope* rope, ThreadPool& pool,
                    Progress* progress) const;

 private:
  advise::SavingsRequest RequestFor(const Snapshot& snapshot) const;
};

}  // namespace kv
