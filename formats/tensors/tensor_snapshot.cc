// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Makes snapshots of named arrays: decides which axis is which (from names, metadata, flags or the
// values), and assembles layers.
#include "formats/tensors/tensor_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "formats/lmcache/lmcache.h"
#include "formats/tensors/kvtool_arrays.h"
#include "formats/tensors/mlx.h"
#include "formats/tensors/tensor_names.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

namespace {

struct Reading {
  Axes axes;
  std::string note;  // empty if the file itself decides
  // Set if the values decided: the distance from a tie, in standard errors.
  std::optional<double> margin;
  bool is_guess = false;  // true: nothing decides, and the caller accepts a guess
};

// Returns the heads from flags or a model file; 0 if there are none.
HeadSizes GivenHeads(const OpenOptions& options);

enum class TokenPlace { kBeforeHeads, kAfterHeads };

// Two interpretations of the same arrays that differ in the order of the token and head axes, the
// two before the last.
struct ValueOrders {
  std::string_view token_first, head_first;  // values of --layout, such as "THD" and "HTD"
  // The choice, with a warning, if the values do not decide; if empty, the user must choose.
  std::optional<TokenPlace> usual = {};
};

constexpr uint64_t kSampledLayers = 8;  // number of layers whose values are sampled
constexpr uint64_t kMostOuter = 2;  // number of sampled layers, parts and batch rows of one array

// Adds evidence from the values of one layer, part and batch row: the last three axes, at some
// indices of the others.
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

// Returns the view with the type of --input-dtype, for values stored in integers.
TensorView Retyped(TensorView view, const OpenOptions& options) {
  if (options.as_dtype.empty() || Info(view.dtype).is_float) return view;
  const DType dtype = ParseDType(options.as_dtype).value_or(view.dtype);
  if (Info(dtype).block_bytes == Info(view.dtype).block_bytes) view.dtype = dtype;
  return view;
}

TokenAxis ChooseTokenAxis(const KvTensors& found, const OpenOptions& options, size_t rank) {
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

// Decides by the values of some of the layers (Axes). Throws kAmbiguousFormat, naming --layout,
// if they do not decide.
Reading ReadByValues(const KvTensors& found, const OpenOptions& options,
                     const ValueOrders& orders) {
  const TensorView& k = found.layers.begin()->second.k->view;
  const TokenAxis evidence = ChooseTokenAxis(found, options, k.rank());
  const std::string shape = fmt::format("[{}]", fmt::join(k.shape, ", "));
  const Axes token_first = Axes::Parse(orders.token_first),
             head_first = Axes::Parse(orders.head_first);
  if (const auto axis = evidence.axis()) {
    const Axes& axes = *axis == 0 ? token_first : head_first;
    return {axes,
            fmt::format("arrays of shape {} are read as {}: their values tell tokens from heads "
                        "by {:.1f} standard errors, {} would suffice; --layout overrules",
                        shape, axes.text(), evidence.margin(), TokenAxis::kDecidingMargin),
            evidence.margin()};
  }
  const std::string why =
      evidence.is_measured
          ? fmt::format("their values do not show which (margin {:.2f} standard errors, {} needed)",
                        evidence.margin(), TokenAxis::kDecidingMargin)
          : fmt::format("their values ({}) cannot be compared", Name(k.dtype));
  const std::string flags =
      fmt::format("--layout {} or {}", Lower(orders.token_first), Lower(orders.head_first));
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
  throw Error(Finding::kAmbiguousFormat, ambiguous).Hint("choose with {}", flags);
}

// `why` has a placeholder for the shape.
Error Undecided(fmt::format_string<std::string> why, const TensorView& array) {
  return Error(Finding::kAmbiguousFormat, why, fmt::format("[{}]", fmt::join(array.shape, ", ")))
      .Hint("name the axes with --layout, e.g. --layout {}", ExampleLayout(array.rank()));
}

std::optional<uint64_t> TokensToldBySide(const TensorFile& file) {
  for (const NamedTensor& tensor : file.tensors) {
    if (IsSideTensor(tensor.name) && tensor.view.rank() == 1) return tensor.view.shape[0];
  }
  return std::nullopt;
}

// Decides [a, b, dim] by a vector beside the arrays, flags or a model file. The shape alone cannot
// distinguish [token, head, dim] (engines) from [head, token, dim] (Hugging Face without its batch
// axis).
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
  if (const auto place = ToldByShape(file, k, GivenHeads(options)))
    return {Axes::Parse(*place == TokenPlace::kBeforeHeads ? "THD" : "HTD"), {}, {}};
  return ReadByValues(found, options, {"THD", "HTD"});
}

// Returns true for names of Hugging Face's caches, which are always [batch, head, token, dim].
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
  const HeadSizes heads = GivenHeads(options);
  if (heads.count != 0 && (k.shape[1] == heads.count) != (k.shape[2] == heads.count))
    return {Axes::Parse(k.shape[1] == heads.count ? "BHTD" : "BTHD"), {}, {}};
  Reading reading = ReadByValues(found, options, {"BTHD", "BHTD", TokenPlace::kAfterHeads});
  if (!reading.margin && !found.lone) reading.note.clear();  // no note for four axes
  return reading;
}

// Reads the axes of vLLM's connectors, which tell the version of the engine except in one case.
Reading ReadVllm(const TensorView& array, const HeadSizes& heads) {
  const auto& shape = array.shape;
  switch (array.rank()) {
    case 2:
      return {Axes::Parse("TC"), "one latent per token, no separate K and V", {}};
    case 3:
      if (shape[0] == 2) return {Axes::Parse("2TC"), {}, {}};
      if (heads.dim != 0 && shape[2] == 2 * heads.dim) return {Axes::Parse("TH(2D)"), {}, {}};
      if (heads.dim != 0 && shape[2] == heads.dim) return {Axes::Parse("THD"), {}, {}};
      throw Error(
          Finding::kAmbiguousFormat,
          "kv_cache of shape [{}] is [token, head, K and V of {}] or [token, head, {} of one]",
          fmt::join(shape, ", "), shape[2] / 2, shape[2])
          .Hint("choose with --head-dim D, or name the axes: --layout 'th(2d)', 'thd'");
    case 4:
      // The exception is [pages, heads, tokens of a page, K and V] with 2 heads.
      if (heads.dim != 0 && shape[3] == 2 * heads.dim) {
        throw Error(Finding::kUnsupportedLayout,
                    "kv_cache of shape [{}] with heads of {} is a pool of pages, not the "
                    "tokens of a prompt",
                    fmt::join(shape, ", "), heads.dim)
            .Hint(
                "write the array's bytes to a file; --raw DTYPE:THP2D:SIZES (or "
                "TPH2D) reads such pools");
      }
      if ((shape[0] == 2) != (shape[1] == 2))
        return {Axes::Parse(shape[0] == 2 ? "2THD" : "T2HD"), {}, {}};
      [[fallthrough]];
    default:
      throw Undecided("the axes of kv_cache, of shape {}, cannot be determined", array);
  }
}

// Reads LMCache's two safetensors forms: one records its layout as a number, the other depends on
// the engine.
Reading ReadLmcache(const TensorFile& file, const KvTensors& found, const OpenOptions& options) {
  const NamedTensor& tensor = *found.layers.begin()->second.k;
  const std::string number = Lookup(file.metadata, kMemoryFormatPrefix + tensor.name);
  if (!number.empty()) {
    const lmcache::MemoryFormat& format = lmcache::GetMemoryFormat(number);
    return {Axes::Parse(format.axes), {}, {}};
  }
  if (tensor.view.rank() == 5 && tensor.name == "kv_chunk") {  // a chunk of vLLM or Hugging Face
    return ReadByValues(found, options, {"L2THD", "L2HTD", TokenPlace::kBeforeHeads});
  }
  throw Undecided("the axes of its tensors, of shape {}, cannot be determined", tensor.view);
}

// Reads one tensor with K and V together.
Reading ReadJoined(const TensorFile& file, const KvTensors& found, const OpenOptions& options) {
  if (found.joined == Joined::kByNumber) return ReadLmcache(file, found, options);
  return ReadVllm(found.layers.begin()->second.k->view, GivenHeads(options));
}

// Reads the only array of a file, whatever its name.
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
            "its only array, of shape {}, may be a block of TensorRT-LLM (l2(htd), "
            "with --kv-heads and --head-dim) or one tensor (htd, thd)",
            array);
      }
      return ReadRank3(file, found, options);
    case 4:
      return ReadRank4(file, found, options);
    case 5:
      if ((shape[0] == 2) == (shape[1] == 2)) {
        throw Undecided("it cannot be determined which axis of {} holds K and V", array);
      }
      reading =
          ReadByValues(found, options,
                       shape[0] == 2 ? ValueOrders{"2LTHD", "2LHTD", TokenPlace::kAfterHeads}
                                     : ValueOrders{"L2THD", "L2HTD", TokenPlace::kAfterHeads});
      reading.note += fmt::format(
          "; axis {} is taken for layers: where it counts blocks or rows of a batch, --layout {}",
          shape[0] == 2 ? 1 : 0, shape[0] == 2 ? "2bthd or 2bhtd" : "b2thd or b2htd");
      return reading;
    case 6:
      return ReadByValues(found, options, {"L2BTHD", "L2BHTD", TokenPlace::kAfterHeads});
    default:
      throw Error(Finding::kUnsupportedKind, "its only array, of shape [{}], is not a cache",
                  fmt::join(shape, ", "));
  }
  reading.note = fmt::format("the array of shape [{}] is read as {}; --layout names other axes",
                             fmt::join(shape, ", "), reading.axes.text());
  return reading;
}

HeadSizes GivenHeads(const OpenOptions& options) {
  if (!options.geometry) return {};
  const ModelGeometry& geometry = *options.geometry;
  const ModelGeometry::Layer& layer =
      geometry.layers.empty() ? geometry.uniform : geometry.layers.front();
  return {layer.kv_heads, layer.k_dim};
}

// Determines the meaning of the tensors' axes from --layout, from the file, or from the program
// that wrote it. Throws kAmbiguousFormat if several interpretations fit, kUnsupportedKind if none
// does.
Reading ChooseAxes(const TensorFile& file, const KvTensors& found, const OpenOptions& options) {
  if (!options.layout.empty()) return {Axes::Parse(options.layout), {}, {}};
  const TensorView& k = found.layers.begin()->second.k->view;
  if (IsKvtoolFile(file.metadata)) {
    const std::string layout = Lookup(file.metadata, kLayoutKey);
    if (layout == Name(Order::kTokenHeadDim)) return {Axes::Parse("THD"), {}, {}};
    throw Error(Finding::kUnsupportedLayout, "{} is '{}'; only '{}' is known", kLayoutKey,
                Escaped(layout), Name(Order::kTokenHeadDim));
  }
  // These are k.{l} and v.{l} of a trace (formats/trace).
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
      throw Undecided("the axes of K, of shape {}, cannot be determined", k);
  }
}

constexpr uint64_t kMostLayers = 1 << 16;  // bounds the layers that an empty array may claim
constexpr size_t kNotesShown = 8;          // bounds notes, of which tensors may have many

// Gives the values their real type: from kvtool's metadata, or from --input-dtype for integers.
void Retype(const TensorFile& file, const NamedTensor& tensor, const OpenOptions& options,
            KvTensor& view) {
  const std::string told =
      file.metadata.empty() ? "" : Lookup(file.metadata, std::string(kDtypePrefix) + tensor.name);
  std::optional<DType> dtype;
  if (!told.empty()) {
    dtype = ParseDType(told);
    if (!dtype) throw Error(Finding::kUnknownDtype, "dtype '{}'", Escaped(told, 40));
  } else if (!options.as_dtype.empty() && !Info(view.dtype).is_float) {
    dtype = ParseDType(options.as_dtype);
    if (dtype && Info(*dtype).block_bytes != Info(view.dtype).block_bytes) dtype.reset();
  }
  if (!dtype || *dtype == view.dtype) return;
  const DTypeInfo& info = Info(*dtype);
  if (info.block_elements == 1) {
    if (info.block_bytes != view.unit_bytes()) {
      throw Error(Finding::kSizeMismatch, "{} values in an array of {}", info.name,
                  Name(view.dtype));
    }
    view.dtype = *dtype;
    return;
  }
  StridedPiece& piece = view.pieces.at(0);
  if (view.dtype != DType::kU8 || view.head_dim % info.block_bytes != 0 || piece.dim.step != 1) {
    throw Error(Finding::kSizeMismatch, "rows of {} {} are not whole {} blocks", view.head_dim,
                Name(view.dtype), info.name);
  }
  view.dtype = *dtype;
  view.head_dim = view.head_dim / info.block_bytes * info.block_elements;
  piece.dim.step = info.block_bytes;
}

bool IsTransformers(const TensorFile& file) {
  return Lookup(file.metadata, "__class__").starts_with("transformers.");
}

// Returns true for a list over layers of pairs [K, V].
bool IsPairs(const KvTensors& found) { return found.pattern.ends_with("{i}.{01}"); }

void SetRotation(const TensorFile& file, const KvTensors& found, Snapshot& snapshot) {
  const std::string told = Lookup(file.metadata, kKeyRotationKey);
  if (told == "rotated") snapshot.key_rotation = KeyRotation::kRotated;
  if (told == "unrotated") snapshot.key_rotation = KeyRotation::kUnrotated;
  if (snapshot.key_rotation != KeyRotation::kUnknown) return;
  if (!found.engine.empty())
    return AssumeRotated(snapshot, fmt::format("{} caches keys after RoPE", found.engine));
  const std::string transformers = "transformers caches keys after RoPE, in models that have it";
  if (IsTransformers(file)) return AssumeRotated(snapshot, transformers);
  if (IsPairs(found)) {
    if (found.layers.begin()->second.k->view.rank() == 4)
      AssumeRotated(snapshot, transformers + "; four axes are its legacy cache's");
    return;
  }
  for (const std::string_view words : {"past_key_values", "present", "{x}_cache"}) {
    if ((found.prefix + "." + found.pattern).find(words) != std::string::npos)
      return AssumeRotated(snapshot, transformers + "; the names are its");
  }
}

HadamardState ParseHadamard(const std::string& word) {
  return word == "yes"  ? HadamardState::kYes
         : word == "no" ? HadamardState::kNo
                        : HadamardState::kUnknown;
}

// Returns some names that the pattern found: "key_cache.0, value_cache.0 ...".
std::string SampleNames(const KvTensors& found) {
  const KvTensors::Layer& layer = found.layers.begin()->second;
  std::string names = Escaped(layer.k->name, 80);
  if (layer.v != nullptr) names += ", " + Escaped(layer.v->name, 80);
  return names + (found.layers.size() > 1 ? " ..." : "");
}

void AddNotes(const TensorFile& file, const KvTensors& found, const Reading& reading,
              Snapshot& snapshot) {
  for (size_t i = 0; i < file.notes.size() && i < kNotesShown; ++i)
    snapshot.notes.push_back({file.notes[i]});
  if (file.notes.size() > kNotesShown) {
    snapshot.notes.push_back(
        {fmt::format("and {} more of this kind", file.notes.size() - kNotesShown)});
  }
  if (!reading.note.empty()) snapshot.notes.push_back({reading.note, !reading.margin});
  if (IsPairs(found) && found.layers.begin()->second.k->view.rank() == 2 &&
      snapshot.key_rotation == KeyRotation::kUnknown) {
    snapshot.notes.push_back(
        {"pairs of [token, channel] rows are how CacheBlend's old_kvs are saved: their keys are "
         "from before RoPE",
         false});
  }
  size_t used = 0;
  for (const auto& [index, layer] : found.layers)
    used += (layer.k != nullptr) + (layer.v != nullptr);
  for (const NamedTensor& tensor : file.tensors) used += IsSideTensor(tensor.name);
  if (used < file.tensors.size()) {
    snapshot.notes.push_back({fmt::format("{} of {} tensors are neither K nor V and are left out",
                                          file.tensors.size() - used, file.tensors.size())});
  }
}

// Makes the layers of one snapshot from the tensors found.
class Assembler {
 public:
  Assembler(const TensorFile& file, const OpenOptions& options, const KvTensors& found,
            const Axes& axes)
      : file_(file), options_(options), found_(found), axes_(axes) {}

  std::vector<LayerKv> Layers() {
    std::vector<LayerKv> layers;
    if (axes_.Has('L')) {
      if (found_.layers.size() != 1) {
        throw Error(Finding::kUsage,
                    "--layout has a layer axis, yet each layer has its own tensors");
      }
      const KvTensors::Layer& tensors = found_.layers.begin()->second;
      const TensorView& array = tensors.k->view;
      const uint64_t count = array.rank() == axes_.rank() ? axes_.Extent(array, 'L') : 1;
      if (count > kMostLayers) throw Error(Finding::kLimit, "{} layers", count);
      for (uint64_t i = 0; i < count; ++i)
        layers.push_back(Layer(static_cast<uint32_t>(i), i, tensors));
    } else {
      layers.reserve(found_.layers.size());
      for (const auto& [index, tensors] : found_.layers) layers.push_back(Layer(index, 0, tensors));
    }
    NameGroups(layers);
    return layers;
  }

  // Returns the rows of a batch that is read as a whole; 1 for one sequence.
  uint64_t rows() const { return batch_.rows().value_or(1); }

 private:
  LayerKv Layer(uint32_t index, uint64_t at, const KvTensors::Layer& tensors) {
    const bool both = axes_.Has('2');
    LayerKv layer{.index = index,
                  .label = tensors.k->file.empty() || found_.joined == Joined::kApart
                               ? tensors.k->name
                               : tensors.k->file,
                  .group = {},
                  .k = View(*tensors.k, at, 0),
                  .v = std::nullopt};
    if (both && tensors.v != nullptr)
      throw Error(Finding::kUsage, "--layout has a K/V axis, yet K and V have their own tensors");
    if (both) layer.v = View(*tensors.k, at, 1);
    if (tensors.v != nullptr) layer.v = View(*tensors.v, at, 0);
    if (layer.v && layer.v->tokens() != layer.k.tokens()) {
      Error error(Finding::kInconsistent, "K has {} tokens, V has {}", layer.k.tokens(),
                  layer.v->tokens());
      if (layer.k.tokens() == layer.v->head_dim && layer.k.head_dim == layer.v->tokens()) {
        error.Hint(
            "K looks stored as [.., dim, token], which --layout cannot say for K alone: swap its "
            "last two axes before saving (numpy: k.swapaxes(-1, -2))");
      }
      throw error.In("layer {}", index);
    }
    return layer;
  }

  KvTensor View(const NamedTensor& tensor, uint64_t layer, uint64_t part) {
    try {
      const uint64_t rows = tensor.view.rank() == axes_.rank() ? axes_.Extent(tensor.view, 'B') : 1;
      RequireRow(options_, rows, axes_.Has('B'),
                 "choose one row with --batch; if the axis is something else give --layout");
      if (options_.batch) return Row(tensor, {layer, part, *options_.batch});
      batch_.Add(rows);
      KvTensor all = Row(tensor, {layer, part, 0});
      for (uint64_t row = 1; row < rows; ++row)
        all.pieces.push_back(Row(tensor, {layer, part, row}).pieces.at(0));
      return all;
    } catch (Error& error) {
      if (tensor.name.empty()) throw;
      throw error.In("tensor '{}'", Escaped(tensor.name));
    }
  }

  KvTensor Row(const NamedTensor& tensor, const Axes::Place& place) const {
    KvTensor view = axes_.View(tensor.view, place, GivenHeads(options_));
    Retype(file_, tensor, options_, view);
    return view;
  }

  void NameGroups(std::vector<LayerKv>& layers) const {
    const std::string groups = Lookup(file_.metadata, kGroupsKey);
    if (groups.empty()) return;
    size_t begin = 0;
    for (LayerKv& layer : layers) {
      const size_t end = std::min(groups.find(',', begin), groups.size());
      layer.group = groups.substr(begin, end - begin);
      begin = std::min(end + 1, groups.size());
    }
  }

  const TensorFile& file_;
  const OpenOptions& options_;
  const KvTensors& found_;
  const Axes& axes_;
  BatchOfFile batch_;
};

}  // namespace

Snapshot BuildSnapshot(TensorFile file, const OpenOptions& options) {
  if (options.layout.empty() && mlx::IsPromptCache(file))
    return mlx::OpenPromptCache(std::move(file), options);
  const KvTensors found = FindKvTensors(file, options);
  const Reading reading = ChooseAxes(file, found, options);
  Snapshot snapshot;
  Assembler assembler(file, options, found, reading.axes);
  snapshot.layers = assembler.Layers();
  snapshot.engine = Lookup(file.metadata, kEngineKey);
  snapshot.model = Lookup(file.metadata, kModelKey);
  snapshot.k_hadamard = ParseHadamard(Lookup(file.metadata, kKHadamardKey));
  snapshot.v_hadamard = ParseHadamard(Lookup(file.metadata, kVHadamardKey));
  for (const auto& [key, value] : file.metadata) {
    if (key.compare(0, kStoragePrefix.size(), kStoragePrefix) == 0)
      snapshot.storage[key.substr(kStoragePrefix.size())] = value;
  }
  SetRotation(file, found, snapshot);
  if (!found.engine.empty()) snapshot.engine = found.engine;
  if (snapshot.engine.empty() && IsTransformers(file)) {
    snapshot.engine = "transformers";
    snapshot.facts.emplace_back("object", Escaped(Lookup(file.metadata, "__class__"), 120));
  }
  const std::string origin = Lookup(file.metadata, kSourceKey);
  if (!origin.empty()) snapshot.facts.emplace_back("origin", origin);
  snapshot.facts.emplace_back("names", SampleNames(found));
  snapshot.facts.emplace_back("axes", reading.axes.text());
  if (reading.margin)
    snapshot.facts.emplace_back("axes margin",
                                fmt::format("{:.1f} standard errors", *reading.margin));
  if (assembler.rows() > 1) {
    snapshot.storage[kBatchRows] = std::to_string(assembler.rows());
  } else {
    ImportCells(file, snapshot);  // cells describe a single sequence
  }
  if (reading.is_guess) snapshot.storage[kAxesGuessed] = "yes";
  AddNotes(file, found, reading, snapshot);
  snapshot.source = std::move(file.source);
  snapshot.spools = std::move(file.spools);
  snapshot.checks = std::move(file.checks);
  return snapshot;
}

}  // namespace kv
