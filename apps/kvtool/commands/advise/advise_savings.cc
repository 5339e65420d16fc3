// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/advise/advise_savings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "apps/kvtool/commands/replay/quant_plan.h"
#include "apps/kvtool/line/options.h"
#include "lib/core/base/error.h"
#include "lib/study/statistics/checkup.h"

namespace kv {
namespace {

using advise::SavingRow;

std::vector<std::string> KnownTypes() {
  std::vector<std::string> words;
  for (const quant::CacheType& type : quant::CacheTypes()) words.emplace_back(type.name);
  return words;
}

// Types that engines have for heads of this size.
std::vector<std::string> UsualTypes(uint32_t head_dim) {
  if (head_dim % 32 == 0) return {"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"};
  return {"fp8_amax", "int8_per_token_head"};
}

// Few enough rows to read: those on the front, evenly spread.
std::vector<const SavingRow*> RowsToPrint(const std::vector<SavingRow>& rows) {
  constexpr size_t kMost = 16;
  std::vector<const SavingRow*> front;
  for (const SavingRow& row : rows) {
    if (row.on_front) front.push_back(&row);
  }
  std::stable_sort(front.begin(), front.end(), [](const SavingRow* a, const SavingRow* b) {
    return a->bytes_per_token > b->bytes_per_token;
  });
  if (front.size() <= kMost) return front;
  std::vector<const SavingRow*> some;
  for (size_t i = 0; i < kMost; ++i) some.push_back(front[i * (front.size() - 1) / (kMost - 1)]);
  return some;
}

}  // namespace

void SavingsOptions::Declare(CommandLine& line) {
  line.Add("--types", types,
           "Types to store K and V in, a comma list (llama.cpp's, where heads allow them); none: "
           "eviction alone")
      .Suggest(KnownTypes())
      .Separator(',');
}

advise::SavingsRequest SavingsOptions::RequestFor(const Snapshot& snapshot) const {
  advise::SavingsRequest request;
  const std::vector<std::string> names =
      types.empty() ? UsualTypes(snapshot.layers.front().k.head_dim) : types;
  request.store.k_types = request.store.v_types = ParseTypes(names, "--types");
  const auto count = static_cast<uint32_t>(request.store.k_types.size());
  constexpr uint32_t kFull = quantisation::TypePair::kFull;
  for (uint32_t i = 0; i < count; ++i) request.pairs.push_back({i, kFull});
  for (uint32_t i = 0; i < count; ++i) request.pairs.push_back({kFull, i});
  for (uint32_t k = 0; k < count; ++k) {
    for (uint32_t v = 0; v < count; ++v) request.pairs.push_back({k, v});
  }
  return request;
}

FoundSavings SavingsOptions::Find(const advise::Runs& runs, const advise::AdviceRequest& request,
                                  const advise::Advice& advice, const ModelRope* rope,
                                  ThreadPool& pool, Progress* progress) const {
  FoundSavings found;
  if (types == std::vector<std::string>{"none"}) {
    found.why_not = "--types none";
    return found;
  }
  advise::SavingsRequest wanted = RequestFor(runs.front()->snapshot());
  wanted.store.rope = rope;
  found.why_not = advise::WhyNoTypes(runs);
  if (!found.why_not.empty()) {
    if (types.empty()) return found;
    throw Error(Finding::kUsage, fmt::format("--types: {}", found.why_not))
        .File(runs.front()->name());
  }
  try {
    found.savings = advise::FindSavings(runs, request, wanted, advice, pool, progress);
  } catch (const Error& error) {
    if (!types.empty()) throw;
    found.why_not = error.what();  // types that nobody asked for
    return found;
  }
  for (const Effort level : {Effort::kFast, Effort::kDefault}) {
    const Checkup checkup = CheckUp(runs.front()->snapshot(), level, pool);
    found.levels.push_back({std::string(Name(level)), checkup.ratio()});
  }
  found.rows = advise::SavingRows(runs, advice, *found.savings, found.levels);
  return found;
}

QuantPlan FoundSavings::TypesOf(const advise::Runs& runs) const {
  QuantPlan plan;
  for (size_t l = 0; l < savings->types_of_layers.size(); ++l) {
    plan.layers.push_back({runs.front()->layers()[l].layer(),
                           advise::TypeOfLayer(runs, *savings, l, true),
                           advise::TypeOfLayer(runs, *savings, l, false)});
  }
  return plan;
}

void FoundSavings::Print(Console& console, const advise::Runs& runs,
                         const advise::AdviceRequest& request) const {
  if (!savings) {
    console.Line("note: only eviction was tried: " + why_not);
    return;
  }
  const advise::LossKind kind = request.measure.kind;
  Table table({"what", "plan", "bytes/token", "ratio", "worst prompt"});
  const auto full = static_cast<double>(runs.front()->bytes_per_token());
  for (const SavingRow* row : RowsToPrint(rows)) {
    table.Row({std::string(row->kind), row->plan, fmt::format("{:.0f}", row->bytes_per_token),
               fmt::format("{:.3f}x", full / row->bytes_per_token),
               advise::LossTextWithError(kind, row->worst_loss, row->standard_error)});
  }
  for (const SavingRow& row : rows) {
    if (row.kind != "offload") continue;
    table.Row({"offload", fmt::format("{}: {:.0f} bytes/token a step", row.plan, row.link_bytes),
               "0", "-", advise::LossText(kind, 0)});
  }
  console.Line(fmt::format("everything that saves memory, {} plans, those that no other one beats:",
                           rows.size()));
  console.Data(table.Text());
  if (!savings->searched.found.best) {
    console.Line("no plan of any kind is within the limits");
    return;
  }
  const advise::Point& best = *savings->searched.found.best;
  console.Line(fmt::format("chosen: {:.0f} bytes a token, {:.3f}x, to be expected {}",
                           full * best.outcome.mean_share(), best.outcome.ratio(),
                           advise::LossText(kind, savings->expected_loss())));
  const std::string flags = advise::FlagsOf(runs, *savings);
  if (!flags.empty()) console.Line("llama.cpp: " + flags);
}

}  // namespace kv
