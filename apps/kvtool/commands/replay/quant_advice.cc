// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/replay/quant_advice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>

#include "apps/kvtool/commands/replay/quant_plan.h"
#include "apps/kvtool/commands/replay/quant_table.h"
#include "lib/study/quantisation/report.h"

namespace kv {

using quantisation::ReplayRequest;
using quantisation::ReplayResult;
using quantisation::TypePair;

quantisation::SearchResult SearchTypes(const QuantLimits& asked, const ReplayRequest& request,
                                       const ReplayResult& result) {
  quantisation::SearchLimits limits;
  if (asked.max_kl) {
    // What is searched by is not calibrated.
    limits.loss = *asked.max_kl;
    if (result.kl_method) {
      const eviction::Calibration& calibration =
          CalibrationOf(*result.kl_method, eviction::Cause::kQuantisation);
      limits.loss = *asked.max_kl * calibration.median;
    }
  }
  if (asked.bytes != 0) limits.bytes_per_token = static_cast<double>(asked.bytes);
  std::vector<bool> has_flags;
  for (const TypePair& pair : result.pairs)
    has_flags.push_back(!EngineFlags(request, pair).empty());
  return Search(result, limits, has_flags);
}

nlohmann::ordered_json AdviceJson(const QuantLimits& asked, const ReplayRequest& request,
                                  const ReplayResult& result,
                                  const quantisation::SearchResult& found) {
  const auto or_null = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
  };
  nlohmann::ordered_json json = {
      {"max_kl", or_null(asked.max_kl)},
      {"bytes_per_token",
       asked.bytes == 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(asked.bytes)},
      {"loss", found.is_nats ? "nats" : "one_minus_cosine"},
      {"best", nullptr},
      {"flags", nullptr},
      {"path", nlohmann::ordered_json::array()}};
  if (found.best) {
    json["best"] = quantisation::OutcomeJson(Evaluate(result, found.best->choice), result.tokens);
    json["best"].update(QuantPlanJson(request, result, found.best->choice));
  }
  if (found.best_with_flags)
    json["flags"] = EngineFlags(request, result.pairs[*found.best_with_flags]);
  for (const quantisation::SearchPoint& point : found.path) {
    json["path"].push_back({{"bytes_per_token", point.bytes / static_cast<double>(result.tokens)},
                            {"loss", point.loss}});
  }
  return json;
}

void PrintAdvice(Console& console, const ReplayRequest& request, const ReplayResult& result,
                 const quantisation::SearchResult& found) {
  if (!found.best) {
    console.Line("no choice of these types is within the limits");
    return;
  }
  PrintOutcome(console, "advised", Evaluate(result, found.best->choice), result);
  std::map<std::string, std::vector<uint32_t>> layers;
  for (size_t l = 0; l < result.layers.size(); ++l) {
    const TypePair& pair = result.pairs[found.best->choice[l]];
    layers[fmt::format("K {}, V {}", TypeName(request, pair, true), TypeName(request, pair, false))]
        .push_back(result.layers[l].layer);
  }
  for (const auto& [types, where] : layers)
    console.Line(fmt::format("  {}: layers {}", types, fmt::join(where, ", ")));
  if (found.best_with_flags) {
    const size_t pair = *found.best_with_flags;
    PrintOutcome(console, fmt::format("llama.cpp: {}", EngineFlags(request, result.pairs[pair])),
                 EvaluatePair(result, pair), result);
  }
}

}  // namespace kv
