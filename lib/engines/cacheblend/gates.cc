// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/engines/cacheblend/report.h"

namespace kv::blend {
namespace {

constexpr double kLeastRatio = 0.15;  // r* of the CacheBlend paper

struct Figure {
  std::string_view name;
  std::optional<double> (*of)(const CurveLayer& layer);
};

template <double AttentionError::*field>
std::optional<double> Attention(const CurveLayer& layer) {
  return layer.attention ? std::optional((*layer.attention).*field) : std::nullopt;
}

constexpr Figure kFigures[] = {
    {"dev_v_remaining_frac", [](const CurveLayer& l) { return std::optional(l.selected.v); }},
    {"dev_k_remaining_frac", [](const CurveLayer& l) { return std::optional(l.selected.k); }},
    {"attn_dev_l2", Attention<&AttentionError::dev_l2>},
    {"attn_out_rel_l2", Attention<&AttentionError::out_rel_l2>},
    {"attn_out_cos_mean", Attention<&AttentionError::out_cos_mean>},
};

const Figure* FindFigure(std::string_view name) {
  for (const Figure& figure : kFigures) {
    if (figure.name == name) return &figure;
  }
  return nullptr;
}

Error BadGate(std::string_view text) {
  std::string known;
  for (const Figure& figure : kFigures) {
    known += fmt::format("{}{}", known.empty() ? "" : ", ", figure.name);
  }
  return std::move(Error(Finding::kUsage,
                         "--fail-unless '{}': expected FIGURE@RATIO.mean<=LIMIT "
                         "(or min, max, layerN; or >=)",
                         text)
                       .Hint("figures: " + known));
}

double ParseReal(std::string_view number, std::string_view whole) {
  const std::optional<double> value = ParseNumber<double>(number);
  if (!value || !std::isfinite(*value)) throw BadGate(whole);
  return *value;
}

// Parses "layer12". The word is required, because "@0.1" would otherwise be ratio 0 in layer 1.
std::optional<uint32_t> LayerNumber(std::string_view text) {
  constexpr std::string_view kWord = "layer";
  if (!text.starts_with(kWord)) return std::nullopt;
  return ParseNumber<uint32_t>(text.substr(kWord.size()));
}

}  // namespace

std::string Gate::Name() const { return fmt::format("{}@{}.{}", figure, ratio, over); }

Gate ParseGate(std::string_view text) {
  const size_t at = text.find('@'), sign = text.find_first_of("<>");
  if (at == text.npos || sign == text.npos || sign < at || sign + 1 >= text.size() ||
      text[sign + 1] != '=') {
    throw BadGate(text);
  }
  const std::string_view middle = text.substr(at + 1, sign - at - 1);
  const size_t dot = middle.rfind('.');
  if (dot == middle.npos) throw BadGate(text);
  Gate gate;
  gate.figure = text.substr(0, at);
  gate.ratio = ParseReal(middle.substr(0, dot), text);
  gate.over = middle.substr(dot + 1);
  gate.at_most = text[sign] == '<';
  gate.limit = ParseReal(text.substr(sign + 2), text);
  const bool known_over =
      gate.over == "mean" || gate.over == "min" || gate.over == "max" || LayerNumber(gate.over);
  if (FindFigure(gate.figure) == nullptr || !known_over) throw BadGate(text);
  TopCount(0, gate.ratio);
  return gate;
}

GateResult Judge(const Gate& gate, const Result& result) {
  const auto point = std::find_if(result.curve.begin(), result.curve.end(),
                                  [&](const CurvePoint& p) { return p.ratio == gate.ratio; });
  KV_ASSERT(point != result.curve.end());
  const Figure& figure = *FindFigure(gate.figure);
  GateResult judged{gate, {}, false};
  if (gate.over == "mean") {
    judged.value = figure.of(point->mean);
  } else {
    const auto number = LayerNumber(gate.over);
    bool found = false;
    for (const CurveLayer& layer : point->layers) {
      if (number && layer.layer != *number) continue;
      found = true;
      const std::optional<double> value = figure.of(layer);
      if (!value) continue;
      if (std::isnan(*value)) {  // a NaN exceeds no limit, but its gate must fail
        judged.value = value;
        break;
      }
      const double so_far = judged.value.value_or(*value);
      judged.value = gate.over == "min" ? std::min(so_far, *value) : std::max(so_far, *value);
    }
    if (!found) {
      throw Error(Finding::kUsage, "--fail-unless {}: {} is not blended", gate.Name(), gate.over);
    }
  }
  judged.pass =
      judged.value && (gate.at_most ? *judged.value <= gate.limit : *judged.value >= gate.limit);
  return judged;
}

Controller PlanRatio(const CachePair& caches, double prefill_seconds, double bytes_per_second) {
  Controller plan;
  plan.prefill_seconds = prefill_seconds;
  plan.bytes_per_second = bytes_per_second;
  const auto bytes = static_cast<double>(caches.old().rows.bytes());
  const auto layers = static_cast<double>(caches.layers().size());
  plan.load_seconds_per_layer = bytes / bytes_per_second / layers;
  plan.prefill_seconds_per_layer = prefill_seconds / layers;
  plan.ratio_hide = plan.load_seconds_per_layer / plan.prefill_seconds_per_layer;
  plan.ratio = std::min(1.0, std::max(plan.ratio_hide, kLeastRatio));
  return plan;
}

}  // namespace kv::blend
