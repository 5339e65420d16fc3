// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/reading.h"

#include <fmt/format.h>

#include "formats/lmcache/memory_format.h"
#include "formats/tensors/metadata.h"
#include "lib/snapshot/layout.h"

namespace kv {
namespace {

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

// [head, token, dim] is what a Hugging Face cache without its batch axis is; [token, head, dim]
// what engines dump. The shape alone cannot tell.
Reading ReadRank3(const TensorFile& file, const TensorView& k) {
  if (const auto tokens = TokensToldBySide(file)) {
    const bool first = k.shape[0] == *tokens, second = k.shape[1] == *tokens;
    if (first != second) return {Axes::Parse(first ? "THD" : "HTD"), ""};
  }
  return {
      Axes::Parse("HTD"),
      fmt::format("arrays of shape [{}] are read as [head, token, dim]; if they are [token, head, "
                  "dim] give --layout thd",
                  fmt::join(k.shape, ", "))};
}

// vLLM's connectors: the axes say which engine version wrote the file, but for one case.
Reading ReadVllm(const TensorView& array, const HeadSizes& heads) {
  const auto& shape = array.shape;
  switch (array.rank()) {
    case 2:
      return {Axes::Parse("TC"), "one latent per token, no K and V apart"};
    case 3:
      if (shape[0] == 2) return {Axes::Parse("2TC"), ""};
      if (heads.dim != 0 && shape[2] == 2 * heads.dim) return {Axes::Parse("TH(2D)"), ""};
      if (heads.dim != 0 && shape[2] == heads.dim) return {Axes::Parse("THD"), ""};
      throw std::move(
          Error(Finding::kAmbiguousFormat,
                fmt::format("kv_cache of shape [{}] is [token, head, K and V of {}] or [token, "
                            "head, {} of one]",
                            fmt::join(shape, ", "), shape[2] / 2, shape[2]))
              .Hint("say which with --head-dim D, or name the axes: --layout 'th(2d)', 'thd'"));
    case 4:
      if ((shape[0] == 2) != (shape[1] == 2))
        return {Axes::Parse(shape[0] == 2 ? "2THD" : "T2HD"), ""};
      [[fallthrough]];
    default:
      throw Undecided(fmt::format("which axes kv_cache of shape [{}] has cannot be told",
                                  fmt::join(shape, ", ")));
  }
}

// LMCache: of its two safetensors forms one says its layout by number, the other has one by engine.
Reading ReadLmcache(const TensorFile& file, const NamedTensor& tensor) {
  const std::string number = Lookup(file.metadata, kMemoryFormatPrefix + tensor.name);
  if (!number.empty()) {
    const lmcache::MemoryFormat& format = lmcache::MemoryFormatOf(number);
    return {Axes::Parse(format.axes), ""};
  }
  if (tensor.view.rank() == 5 && tensor.name == "kv_chunk") {
    return {Axes::Parse("L2THD"),
            fmt::format("kv_chunk of shape [{}] is read as [layer, K/V, token, head, dim], as "
                        "vLLM's are; one of Hugging Face needs --layout l2htd",
                        fmt::join(tensor.view.shape, ", "))};
  }
  throw Undecided(fmt::format("which axes {} of shape [{}] has cannot be told",
                              Escaped(tensor.name), fmt::join(tensor.view.shape, ", ")));
}

// One tensor with K and V together.
Reading ReadJoined(const TensorFile& file, const KvTensors& found, const OpenOptions& options) {
  const NamedTensor& tensor = *found.layers.begin()->second.k;
  if (found.engine == "LMCache") return ReadLmcache(file, tensor);
  return ReadVllm(tensor.view, HeadsOf(options));
}

// The only array of a file, with no name to go by.
Reading ReadLone(const TensorFile& file, const TensorView& array) {
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
      return ReadRank3(file, array);
    case 4:
      reading.axes = Axes::Parse("BHTD");
      break;
    case 5:
      if ((shape[0] == 2) == (shape[1] == 2)) {
        throw Undecided(
            fmt::format("which axis of [{}] is K and V cannot be told", fmt::join(shape, ", ")));
      }
      reading.axes = Axes::Parse(shape[0] == 2 ? "2LHTD" : "L2HTD");
      break;
    case 6:
      reading.axes = Axes::Parse("L2BHTD");
      break;
    default:
      throw Error(
          Finding::kUnsupportedKind,
          fmt::format("its only array, of shape [{}], is no cache", fmt::join(shape, ", ")));
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
  if (!options.layout.empty()) return {Axes::Parse(options.layout), ""};
  const TensorView& k = found.layers.begin()->second.k->view;
  if (IsKvtoolFile(file.metadata)) {
    const std::string layout = Lookup(file.metadata, kLayoutKey);
    if (layout == Name(Order::kTokenHeadDim)) return {Axes::Parse("THD"), ""};
    throw Error(Finding::kUnsupportedLayout,
                fmt::format("{} is '{}'; only '{}' is known", kLayoutKey, Escaped(layout),
                            Name(Order::kTokenHeadDim)));
  }
  if (found.joined) return ReadJoined(file, found, options);
  if (found.lone) return ReadLone(file, k);
  switch (k.rank()) {
    case 2:
      return {Axes::Parse("TC"), ""};
    case 3:
      return ReadRank3(file, k);
    case 4:
      return {Axes::Parse("BHTD"), ""};
    default:
      throw Undecided(fmt::format("what the axes of K, of shape [{}], mean cannot be told",
                                  fmt::join(k.shape, ", ")));
  }
}

}  // namespace kv
