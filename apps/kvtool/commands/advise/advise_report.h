// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by advise_report.cc, advise_confirm.cc, advise_states.cc

#include <optional>
#include <string>
#include <vector>

#include "apps/kvtool/command.h"
#include "apps/kvtool/commands/replay/quant_plan.h"
#include "apps/kvtool/console/console.h"
#include "apps/kvtool/inputs/command_files.h"
#include "apps/kvtool/line/command_line.h"
#include "lib/fields/fields.h"
#include "lib/study/advise/advice.h"
#include "lib/study/advise/confirm.h"
#include "lib/study/advise/savings.h"
#include "lib/study/advise/states.h"

namespace kv {

// Results of `advise` beyond eviction.
struct FoundSavings {
  std::optional<advise::Savings> savings;  // `why_not` says why there are none
  std::string why_not;
  std::vector<advise::LosslessLevel> levels;
  std::vector<advise::SavingRow> rows;

  void Print(Console& console, const advise::Runs& runs, const advise::AdviceRequest& request,
             const advise::Advice& advice, const std::optional<advise::Answer>& answer) const;
};

// Writes the evictions of a plan of a run as kvtool.h2o-plan/1.
void WriteEvictions(const std::string& path, const OutputRules& rules, const advise::AdviseRun& run,
                    const std::string& policy, const std::vector<advise::UnitChoice>& choices,
                    const std::vector<advise::PlanOfLayer>& plans);
// Writes the types that each layer stores as kvtool.quant-plan/1.
void WriteTypes(const std::string& path, const OutputRules& rules, const advise::Runs& runs,
                const advise::Savings& savings, const std::vector<std::optional<uint32_t>>& pairs);

// Applies the answer and its neighbours in the model, by kvtool.closed_loop in Python.
struct ConfirmOptions {
  bool is_wanted = false;
  std::string python = "python3", model;

  void Declare(CommandLine& line);
  // Throws kOpenFailed if Python cannot be started, kUnsupportedKind if it fails, and as
  // ReadDocument if it writes something else than a result.
  advise::Confirmation Confirm(Console& console, const advise::Runs& runs,
                               const advise::AdviceRequest& request, const advise::Advice& advice,
                               const advise::Savings* savings, const advise::Answer& answer,
                               ThreadPool& pool) const;
};
void PrintConfirmation(Console& console, const advise::Confirmation& confirmation,
                       const advise::Answer& answer);

// The options apart from eviction.
struct SavingsOptions {
  std::vector<std::string> types;

  void Declare(CommandLine& line);
  FoundSavings Find(const advise::Runs& runs, const advise::AdviceRequest& request,
                    const advise::Advice& advice, const ModelRope* rope, ThreadPool& pool,
                    Progress* progress) const;

 private:
  advise::SavingsRequest RequestFor(const Snapshot& snapshot) const;
};

// Settings with which an engine does what one candidate does, and their result.
struct EngineSettings {
  std::string engine;
  std::string configuration;  // name of the engine's configuration; empty: command-line options
  const advise::Candidate* candidate = nullptr;
  Value parameters;
  double ratio = 1, loss = 0;  // figures of the worst prompt, as shown
  std::string note;
};

// Returns, for each engine with parameters for some policy, those of the smallest plan within the
// limits that it can express. Empty if there is none.
std::vector<EngineSettings> SuggestEngineSettings(const advise::Runs& runs,
                                                  const advise::AdviceRequest& request,
                                                  const advise::Advice& advice, ThreadPool& pool);

const Fields<EngineSettings>& EngineSettingsFields();

// Prints the result of eviction alone: the best plan, its parts, and the frontier.
void PrintAdvice(Console& console, const advise::Runs& runs, const advise::AdviceRequest& request,
                 const advise::Advice& advice);

// Returns the command that applies the answer: llama.cpp's flags, or this run with outputs for its
// plans. Empty if there is none, or if this run writes them.
std::string CommandFor(const std::optional<advise::Answer>& answer, size_t runs,
                       const std::string& command_line);
// Prints the last lines of the output.
void PrintAnswer(Console& console, const std::optional<advise::Answer>& answer,
                 const std::string& command);

// Prints instructions for each engine: one line for its parameters and one for their effect.
void PrintSettings(Console& console, advise::LossKind kind,
                   const std::vector<EngineSettings>& settings);

// `advise` for saved states without recorded runs.

// Returns true for several inputs, and for a file or folder without a trace beside it.
bool AreStates(const std::vector<std::string>& inputs);

struct StatesRequest {
  std::vector<std::string> inputs;
  OpenOptions reading;
  uint64_t idle_days = 30;
};
// Links, pipes, unreadable files and files that are not caches are skipped and named in the result.
// Throws kUnknownFormat if nothing is left.
advise::StatesAdvice AdviseStates(const StatesRequest& request, Context& context);
void PrintStates(Console& console, const advise::StatesAdvice& advice);

}  // namespace kv
