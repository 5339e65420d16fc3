// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/replay/quant_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "lib/study/quantisation/report.h"

namespace kv {

using quantisation::Outcome;
using quantisation::ReplayRequest;
using quantisation::ReplayResult;

void PrintPairs(Console& console, const ReplayRequest& request, const ReplayResult& result) {
  console.Data(Table(quantisation::PairTable(request, result)).Text());
}

void PrintOutcome(Console& console, std::string_view what, const Outcome& outcome,
                  const ReplayResult& result) {
  console.Line(fmt::format(
      "{}: {:.3f}x, {:.4g} bytes a token, output error {:.3g}{}", what, outcome.ratio(),
      outcome.bytes / static_cast<double>(result.tokens), outcome.mean.output_error,
      outcome.kl ? fmt::format(", {} nats", quantisation::ExpectedText(outcome)) : std::string()));
}

std::vector<std::string> QuantWarnings(const Snapshot& snapshot, const ReplayRequest& request,
                                       const ReplayResult& result) {
  std::vector<std::string> warnings;
  const uint32_t dim = snapshot.layers.front().k.head_dim;
  const auto is_block = [](const quant::CacheType* type) {
    return type->dtype && IsBlockQuantised(*type->dtype);
  };
  const auto has_block = [&](const std::vector<const quant::CacheType*>& types) {
    return std::any_of(types.begin(), types.end(), is_block);
  };
  if (dim % 32 != 0 && (has_block(request.store.k_types) || has_block(request.store.v_types))) {
    warnings.push_back(
        fmt::format("llama.cpp refuses blocks of 32 in heads of {} values with flash attention, "
                    "and reads such keys wrongly without: figures are of rows read rightly",
                    dim));
  }
  const KvTensor& k = snapshot.layers.front().k;
  if (IsBlockQuantised(k.dtype)) {
    warnings.push_back(fmt::format("the cache is of {} already: losses come on top of its own",
                                   kv::Name(k.dtype)));
  }
  if (!result.missing_layers.empty()) {
    warnings.push_back(fmt::format("the trace has no queries of layers {}: they count in full",
                                   fmt::join(result.missing_layers, ", ")));
  }
  uint64_t rows = 0, undefined = 0;
  std::vector<uint32_t> lost;
  for (const quantisation::LayerFigures& layer : result.layers) {
    const quantisation::PairFigures& whole = layer.all.front();  // of the cache as it came
    rows += whole.rows;
    undefined += whole.undefined_rows;
    if (whole.rows > 0 && whole.rows == whole.undefined_rows) lost.push_back(layer.layer);
  }
  if (undefined > 0) {
    warnings.push_back(fmt::format(
        "{} of {} measured rows are undefined, by NaN or Inf, and left out{}", undefined, rows,
        lost.empty()
            ? ""
            : fmt::format("; no other row is left in layers {}, so the model has no figures",
                          fmt::join(lost, ", "))));
  }
  for (const bool is_key : {true, false}) {
    const auto& types = is_key ? request.store.k_types : request.store.v_types;
    for (uint32_t i = 1; i < types.size(); ++i) {  // the first is the cache as it came
      std::string why = WhyUnchanged(request, result, i, is_key);
      if (!why.empty()) warnings.push_back(std::move(why));
    }
  }
  const auto count = [&](const auto& types, const auto& of_layer, char side) {
    for (size_t i = 0; i < types.size(); ++i) {
      uint64_t values = 0;
      for (const quantisation::LayerFigures& layer : result.layers)
        values += i < (layer.*of_layer).size() ? (layer.*of_layer)[i] : 0;
      if (values > 0) {
        warnings.push_back(fmt::format("{}: {} values of {} are NaN or infinite once stored",
                                       types[i]->name, values, side));
      }
    }
  };
  count(request.store.k_types, &quantisation::LayerFigures::k_not_finite, 'K');
  count(request.store.v_types, &quantisation::LayerFigures::v_not_finite, 'V');
  return warnings;
}

}  // namespace kv
