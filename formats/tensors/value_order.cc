// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/value_order.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/snapshot/token_axis.h"

namespace kv {
namespace {

constexpr uint64_t kSampledLayers = 8;  // looked at, of all
constexpr uint64_t kMostOuter = 2;      // of the layers, parts and batch rows that one array holds

// The values of one layer, part and batch row: the last three axes, at some places of the others.
void AddInner(const TensorView& view, TokenAxis& evidence) {
  if (view.rank() == 3) return evidence.Add(FindTokenAxis(view));
  const uint64_t extent = view.shape[0], count = std::min(extent, kMostOuter);
  TensorView inner = view;
  inner.shape.erase(inner.shape.begin());
  inner.strides.erase(inner.strides.begin());
  for (uint64_t i = 0; i < count; ++i) {
    inner.data = view.data + i * extent / count * view.strides[0];
    AddInner(inner, evidence);
  }
}

// What --input-dtype says of values that have no float type of their own.
TensorView Retyped(TensorView view, const OpenOptions& options) {
  if (options.as_dtype.empty() || Info(view.dtype).is_float) return view;
  const DType dtype = ParseDType(options.as_dtype).value_or(view.dtype);
  if (Info(dtype).block_bytes == Info(view.dtype).block_bytes) view.dtype = dtype;
  return view;
}

TokenAxis EvidenceOf(const KvTensors& found, const OpenOptions& options, size_t rank) {
  TokenAxis evidence;
  const uint64_t layers = found.layers.size(), count = std::min(layers, kSampledLayers);
  uint64_t at = 0, taken = 0;
  for (const auto& [index, layer] : found.layers) {
    if (at++ != taken * layers / count || taken == count) continue;
    ++taken;
    for (const NamedTensor* tensor : {layer.k, layer.v}) {
      const bool alike = tensor != nullptr && tensor->view.rank() == rank &&
                         tensor->view.data != nullptr && tensor->view.elements() > 0;
      if (alike) AddInner(Retyped(tensor->view, options), evidence);
    }
  }
  return evidence;
}

std::string Letters(std::string_view axes) {
  std::string text(axes);
  std::transform(text.begin(), text.end(), text.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return text;
}

}  // namespace

Reading ReadByValues(const KvTensors& found, const OpenOptions& options,
                     const ValueOrders& orders) {
  const TensorView& k = found.layers.begin()->second.k->view;
  const TokenAxis evidence = EvidenceOf(found, options, k.rank());
  const std::string shape = fmt::format("[{}]", fmt::join(k.shape, ", "));
  const Axes token_first = Axes::Parse(orders.token_first),
             head_first = Axes::Parse(orders.head_first);
  if (const auto axis = evidence.axis()) {
    const Axes& axes = *axis == 0 ? token_first : head_first;
    return {axes,
            fmt::format("arrays of shape {} are read as {}: their values say so by {:.1f} standard "
                        "errors, {} would suffice; --layout overrules",
                        shape, axes.text(), evidence.margin(), TokenAxis::kDecidingMargin),
            evidence.margin()};
  }
  const std::string why =
      evidence.is_measured
          ? fmt::format("their values do not tell (margin {:.2f} standard errors, {} needed)",
                        evidence.margin(), TokenAxis::kDecidingMargin)
          : fmt::format("their values ({}) cannot be compared", Name(k.dtype));
  const std::string flags =
      fmt::format("--layout {} or {}", Letters(orders.token_first), Letters(orders.head_first));
  if (orders.usual) {
    const Axes& axes = *orders.usual == TokenPlace::kBeforeHeads ? token_first : head_first;
    return {axes,
            fmt::format("arrays of shape {} are read as {}, the usual order: {}; {} chooses", shape,
                        axes.text(), why, flags),
            {}};
  }
  const std::string ambiguous = fmt::format("ambiguous: arrays of shape {} are {} or {}, and {}",
                                            shape, token_first.text(), head_first.text(), why);
  if (options.may_guess_axes) {
    const Axes& axes = evidence.log_ratio > 0 ? token_first : head_first;
    return {
        axes, fmt::format("{}; read as {}; {} chooses", ambiguous, axes.text(), flags), {}, true};
  }
  throw std::move(
      Error(Finding::kAmbiguousFormat, ambiguous).Hint(fmt::format("choose with {}", flags)));
}

}  // namespace kv
