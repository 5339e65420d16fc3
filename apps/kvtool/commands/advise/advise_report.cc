// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/advise/advise_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/study/advise/report.h"

namespace kv {
namespace {

using advise::Advice;
using advise::LossKind;

void PrintBest(Console& console, const advise::AdviceRequest& request, const Advice& advice) {
  const LossKind kind = request.measure.kind;
  if (!advice.found.best) {
    console.Line(fmt::format(
        "no plan is within the limits{}",
        request.limits.loss
            ? fmt::format(": {} at {:.4g}x", advise::LossText(kind, *request.limits.loss),
                          1 / request.limits.share)
            : std::string()));
    return;
  }
  const advise::Point& best = *advice.found.best;
  const auto worst =
      static_cast<size_t>(std::max_element(best.outcome.loss.begin(), best.outcome.loss.end()) -
                          best.outcome.loss.begin());
  console.Line(
      fmt::format("best: {:.3f}x at the end, {:.3f}x over the steps, to be expected {}{}",
                  best.outcome.ratio(), best.outcome.mean_ratio(),
                  advise::LossTextWithError(kind, advice.expected_loss(),
                                            advice.optimism * best.outcome.standard_error[worst]),
                  best.outcome.loss.size() == 1 ? "" : " on the worst prompt"));
  console.Line(fmt::format("  {} in the rows it was chosen on, times {:.3g} for having been chosen",
                           advise::LossText(kind, best.outcome.loss[worst]),
                           advise::Shown(kind, advice.optimism) / advise::Shown(kind, 1)));
  if (advice.found.best_uniform) {
    const advise::Point& uniform = *advice.found.best_uniform;
    console.Line(fmt::format("one candidate for all: {:.3f}x, {}, {}", uniform.outcome.ratio(),
                             advise::LossText(kind, uniform.outcome.worst_loss()),
                             advise::PlanText(advice, uniform)));
  }
  if (advice.at_context) {
    const advise::AtContext& at = *advice.at_context;
    console.Line(fmt::format("at {} tokens: {} instead of {}", at.tokens,
                             HumanBytes(static_cast<uint64_t>(at.kept_bytes)),
                             HumanBytes(static_cast<uint64_t>(at.full_bytes))));
  }
  console.Data(Table(advise::PartsTable(advice, best.choice)).Text());
}

}  // namespace

void PrintAdvice(Console& console, const advise::Runs& runs, const advise::AdviceRequest& request,
                 const Advice& advice) {
  const LossKind kind = request.measure.kind;
  const advise::Effects& effects = advice.effects;
  console.Line(fmt::format("{} prompt{}, {} candidates for each of {} parts; {}, {} of {} rows{}",
                           runs.size(), runs.size() == 1 ? "" : "s", advice.candidates.size(),
                           effects.measured.units.size(), advise::LossName(kind),
                           effects.rows.front().positions.size() - effects.undefined_rows.front(),
                           effects.rows.front().population,
                           runs.size() == 1 ? "" : " of the first"));
  PrintBest(console, request, advice);
  console.Line("frontier, from all bytes to few:");
  constexpr size_t kMostLines = 12;
  console.Data(Table(advise::PlansTable(advice, advice.found.frontier, kMostLines)).Text());
  console.Line(advise::CheckText(advice));
  for (const std::string& note : advice.notes) console.Line("note: " + note);
}

void PrintSettings(Console& console, LossKind kind, const std::vector<EngineSettings>& settings) {
  for (const EngineSettings& each : settings) {
    const std::string engine = each.configuration.empty()
                                   ? each.engine
                                   : fmt::format("{} ({})", each.engine, each.configuration);
    console.Line(
        fmt::format("{}: {}\n  {}, {:.3f}x, {}; {}", engine, JsonText(ToJson(each.parameters), -1),
                    each.candidate->Text(), each.ratio,
                    advise::LossText(kind, advise::LossShownAs(kind, each.loss)), each.note));
  }
}

}  // namespace kv
