// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/reading.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "formats/lmcache/lmcache.h"
#include "formats/tensors/kvtool_arrays.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/token_axis.h"

namespace kv {
namespace {

enum class TokenPlace { kBeforeHeads, kAfterHeads };

// Two readings of the same arrays that differ in the order of the token and head axes, the two
// before the last.
struct ValueOrders {
  std::string_view token_first, head_first;  // as --layout: "THD", "HTD"
  // The choice, with a warning, if the values do not tell; without it the user is asked.
  std::optional<TokenPlace> usual = {};
};

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

// Decides by the values of some of the layers (lib/core/snapshot/token_axis.h). Throws
// kAmbiguousFormat, naming --layout, if they do not decide.
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

Error Undecided(std::string what) {
  Error error(Finding::kAmbiguousFormat, std::move(what));
  return error.Hint("name the axes with --layout, e.g. --layout 2ltc");
}

std::optional<uint64_t> TokensToldBySide(const TensorFile& file) {
  for (const NamedTensor& tensor : file.tensors) {
    if (IsSideTensor(tensor.name) && tensor.view.rank() == 1) return tensor.view.shape[0];
  }
  return std::nullopt;
}

// What a vector beside the arrays, flags or a model file say of [a, b, dim]; the
// shape alone cannot tell [token, head, dim] (engines) from [head, token, dim] (Hugging Face
// without its batch axis).
std::optional<TokenPlace> ToldByShape(const TensorFile& file, const TensorView& k,
                                      const HeadSizes& heads) {
  const auto choose = [](bool first, bool second) -> std::optional<TokenPlace> {
    if (first == second) return std::nullopt;
    return first ? TokenPlace::kBeforeHeads : TokenPlace::kAfterHeads;
  };
  if (const auto tokens = TokensToldBySide(file)) {
    if (const auto place = choose(k.shape[0] == *tokens, k.shape[1] == *tokens)) return place;
  }
  if (heads.count == 0) return std::nullopt;
  return choose(k.shape[1] == heads.count, k.shape[0] == heads.count);
}

Reading ReadRank3(const TensorFile& file, const KvTensors& found, const OpenOptions& options) {
  const TensorView& k = found.layers.begin()->second.k->view;
  if (const auto place = ToldByShape(file, k, HeadsOf(options)))
    return {Axes::Parse(*place == TokenPlace::kBeforeHeads ? "THD" : "HTD"), {}, {}};
  return ReadByValues(found, options, {"THD", "HTD"});
}

// Names of Hugging Face's caches, which are [batch, head, token, dim] whatever they hold.
bool IsHuggingFace(const TensorFile& file, const KvTensors& found) {
  if (Lookup(file.metadata, "__class__").starts_with("transformers.")) return true;
  const std::string name = found.prefix + "." + found.pattern;
  for (const std::string_view words :
       {"past_key_values", "present", "{x}_cache", "layers.{i}.{x}", "{i}.{01}"}) {
    if (name.find(words) != name.npos) return true;
  }
  return false;
}

Reading ReadRank4(const TensorFile& file, const KvTensors& found, const OpenOptions& options) {
  if (IsHuggingFace(file, found)) return {Axes::Parse("BHTD"), {}, {}};
  const TensorView& k = found.layers.begin()->second.k->view;
  const HeadSizes heads = HeadsOf(options);
  if (heads.count != 0 && (k.shape[1] == heads.count) != (k.shape[2] == heads.count))
    return {Axes::Parse(k.shape[1] == heads.count ? "BHTD" : "BTHD"), {}, {}};
  Reading reading = ReadByValues(found, options, {"BTHD", "BHTD", TokenPlace::kAfterHeads});
  if (!reading.margin && !found.lone) reading.note.clear();  // four axes are as good as said
  return reading;
}

// vLLM's connectors: the axes say which engine version wrote the file, but for one case.
Reading ReadVllm(const TensorView& array, const HeadSizes& heads) {
  const auto& shape = array.shape;
  switch (array.rank()) {
    case 2:
      return {Axes::Parse("TC"), "one latent per token, no separate K and V", {}};
    case 3:
      if (shape[0] == 2) return {Axes::Parse("2TC"), {}, {}};
      if (heads.dim != 0 && shape[2] == 2 * heads.dim) return {Axes::Parse("TH(2D)"), {}, {}};
      if (heads.dim != 0 && shape[2] == heads.dim) return {Axes::Parse("THD"), {}, {}};
      throw std::move(
          Error(Finding::kAmbiguousFormat,
                fmt::format("kv_cache of shape [{}] is [token, head, K and V of {}] or [token, "
                            "head, {} of one]",
                            fmt::join(shape, ", "), shape[2] / 2, shape[2]))
              .Hint("choose with --head-dim D, or name the axes: --layout 'th(2d)', 'thd'"));
    case 4:
      // [pages, heads, tokens of a page, K and V], whose number of heads may be 2.
      if (heads.dim != 0 && shape[3] == 2 * heads.dim) {
        throw std::move(
            Error(Finding::kUnsupportedLayout,
                  fmt::format("kv_cache of shape [{}] with heads of {} is a pool of pages, not the "
                              "tokens of a prompt",
                              fmt::join(shape, ", "), heads.dim))
                .Hint("write the array's bytes to a file; --raw DTYPE:THP2D:SIZES (or TPH2D) reads "
                      "such pools"));
      }
      if ((shape[0] == 2) != (shape[1] == 2))
        return {Axes::Parse(shape[0] == 2 ? "2THD" : "T2HD"), {}, {}};
      [[fallthrough]];
    default:
      throw Undecided(fmt::format("the axes of kv_cache, of shape [{}], cannot be determined",
                                  fmt::join(shape, ", ")));
  }
}

// LMCache: of its two safetensors forms one says its layout by number, the other has one by engine.
Reading ReadLmcache(const TensorFile& file, const KvTensors& found, const OpenOptions& options) {
  const NamedTensor& tensor = *found.layers.begin()->second.k;
  const std::string number = Lookup(file.metadata, kMemoryFormatPrefix + tensor.name);
  if (!number.empty()) {
    const lmcache::MemoryFormat& format = lmcache::MemoryFormatOf(number);
    return {Axes::Parse(format.axes), {}, {}};
  }
  if (tensor.view.rank() == 5 && tensor.name == "kv_chunk") {  // vLLM's or Hugging Face's
    return ReadByValues(found, options, {"L2THD", "L2HTD", TokenPlace::kBeforeHeads});
  }
  throw Undecided(fmt::format("the axes of {}, of shape [{}], cannot be determined",
                              Escaped(tensor.name), fmt::join(tensor.view.shape, ", ")));
}

// One tensor with K and V together.
Reading ReadJoined(const TensorFile& file, const KvTensors& found, const OpenOptions& options) {
  if (found.joined == Joined::kByNumber) return ReadLmcache(file, found, options);
  return ReadVllm(found.layers.begin()->second.k->view, HeadsOf(options));
}

// The only array of a file, with no name to go by.
Reading ReadLone(const TensorFile& file, const KvTensors& found, const OpenOptions& options) {
  const TensorView& array = found.layers.begin()->second.k->view;
  const auto& shape = array.shape;
  Reading reading;
  switch (array.rank()) {
    case 2:
      reading.axes = Axes::Parse("TC");
      break;
    case 3:
      if (shape[1] == 2) {
        throw Undecided(
            fmt::format("its only array, of shape [{}], may be a block of TensorRT-LLM "
                        "(l2(htd), with --kv-heads and --head-dim) or one tensor "
                        "(htd, thd)",
                        fmt::join(shape, ", ")));
      }
      return ReadRank3(file, found, options);
    case 4:
      return ReadRank4(file, found, options);
    case 5:
      if ((shape[0] == 2) == (shape[1] == 2)) {
        throw Undecided(fmt::format("it cannot be determined which axis of [{}] holds K and V",
                                    fmt::join(shape, ", ")));
      }
      return ReadByValues(found, options,
                          shape[0] == 2 ? ValueOrders{"2LTHD", "2LHTD", TokenPlace::kAfterHeads}
                                        : ValueOrders{"L2THD", "L2HTD", TokenPlace::kAfterHeads});
    case 6:
      return ReadByValues(found, options, {"L2BTHD", "L2BHTD", TokenPlace::kAfterHeads});
    default:
      throw Error(
          Finding::kUnsupportedKind,
          fmt::format("its only array, of shape [{}], is not a cache", fmt::join(shape, ", ")));
  }
  reading.note = fmt::format("the array of shape [{}] is read as {}; --layout names other axes",
                             fmt::join(shape, ", "), reading.axes.text());
  return reading;
}

}  // namespace

HeadSizes HeadsOf(const OpenOptions& options) {
  if (!options.geometry) return {};
  const ModelGeometry& geometry = *options.geometry;
  const ModelGeometry::Layer& layer =
      geometry.layers.empty() ? geometry.uniform : geometry.layers.front();
  return {layer.kv_heads, layer.k_dim};
}

Reading ChooseAxes(const TensorFile& file, const KvTensors& found, const OpenOptions& options) {
  if (!options.layout.empty()) return {Axes::Parse(options.layout), {}, {}};
  const TensorView& k = found.layers.begin()->second.k->view;
  if (IsKvtoolFile(file.metadata)) {
    const std::string layout = Lookup(file.metadata, kLayoutKey);
    if (layout == Name(Order::kTokenHeadDim)) return {Axes::Parse("THD"), {}, {}};
    throw Error(Finding::kUnsupportedLayout,
                fmt::format("{} is '{}'; only '{}' is known", kLayoutKey, Escaped(layout),
                            Name(Order::kTokenHeadDim)));
  }
  // A trace's k.{l} and v.{l}, by formats/trace.
  if (!Lookup(file.metadata, "kvtool.trace").empty() && k.rank() == 3 &&
      found.joined == Joined::kApart)
    return {Axes::Parse("THD"), {}, {}};
  if (found.joined != Joined::kApart) return ReadJoined(file, found, options);
  if (found.lone) return ReadLone(file, found, options);
  switch (k.rank()) {
    case 2:
      return {Axes::Parse("TC"), {}, {}};
    case 3:
      return ReadRank3(file, found, options);
    case 4:
      return ReadRank4(file, found, options);
    default:
      throw Undecided(fmt::format("the axes of K, of shape [{}], cannot be determined",
                                  fmt::join(k.shape, ", ")));
  }
}

}  // namespace kv
