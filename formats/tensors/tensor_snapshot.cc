// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/tensor_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/tensors/axes.h"
#include "formats/tensors/metadata.h"
#include "formats/tensors/tensor_names.h"
#include "lib/snapshot/layout.h"

namespace kv {
namespace {

constexpr uint64_t kMostLayers = 1 << 16;  // an empty array may claim any number
constexpr size_t kNotesShown = 8;          // the same thing may hold for a million tensors

struct Reading {
  Axes axes;
  std::string note;  // where the file itself does not decide
};

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

// One tensor with K and V together (vLLM's connectors), by engine version.
Reading ReadJoined(const TensorView& array) {
  const auto& shape = array.shape;
  if (array.rank() == 3 && shape[0] == 2) return {Axes::Parse("2TC"), ""};
  if (array.rank() == 4 && shape[1] == 2) return {Axes::Parse("T2HD"), ""};
  if (array.rank() == 2) return {Axes::Parse("TC"), "one latent per token, no K and V apart"};
  throw Undecided(
      fmt::format("kv_cache of shape [{}] fits several versions of its writer (th(2d), thd)",
                  fmt::join(shape, ", ")));
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
  if (found.joined) return ReadJoined(k);
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

// Gives the values the type they really have: kvtool's metadata, or --as for integers.
void Retype(const TensorFile& file, const NamedTensor& tensor, const OpenOptions& options,
            KvTensor& view) {
  const std::string told = Lookup(file.metadata, std::string(kDtypePrefix) + tensor.name);
  std::optional<DType> dtype;
  if (!told.empty()) {
    dtype = ParseDType(told);
    if (!dtype) throw Error(Finding::kUnknownDtype, fmt::format("dtype '{}'", Escaped(told, 40)));
  } else if (!options.as_dtype.empty() && !Info(view.dtype).is_float) {
    dtype = ParseDType(options.as_dtype);
    if (dtype && Info(*dtype).block_bytes != Info(view.dtype).block_bytes) dtype.reset();
  }
  if (!dtype || *dtype == view.dtype) return;
  const DTypeInfo& info = Info(*dtype);
  if (info.block_elements == 1) {
    if (info.block_bytes != view.unit_bytes()) {
      throw Error(Finding::kSizeMismatch,
                  fmt::format("{} values in an array of {}", info.name, Name(view.dtype)));
    }
    view.dtype = *dtype;
    return;
  }
  StridedPiece& piece = view.pieces.at(0);
  if (view.dtype != DType::kU8 || view.head_dim % info.block_bytes != 0 || piece.dim.step != 1) {
    throw Error(Finding::kSizeMismatch, fmt::format("rows of {} {} are not whole {} blocks",
                                                    view.head_dim, Name(view.dtype), info.name));
  }
  view.dtype = *dtype;
  view.head_dim = view.head_dim / info.block_bytes * info.block_elements;
  piece.dim.step = info.block_bytes;
}

KeyRotation RotationOf(const TensorFile& file, const KvTensors& found) {
  const std::string told = Lookup(file.metadata, kKeyRotationKey);
  if (told == "rotated") return KeyRotation::kRotated;
  if (told == "unrotated") return KeyRotation::kUnrotated;
  // Hugging Face and vLLM rotate before they cache.
  for (const std::string_view words : {"past_key_values", "present", "{x}_cache", "kv_cache"}) {
    if (found.pattern.find(words) != std::string::npos) return KeyRotation::kRotated;
  }
  return KeyRotation::kUnknown;
}

HadamardRotation HadamardOf(const std::string& word) {
  return word == "yes"  ? HadamardRotation::kYes
         : word == "no" ? HadamardRotation::kNo
                        : HadamardRotation::kUnknown;
}

std::vector<int64_t> Integers(const TensorView& view) {
  std::vector<int64_t> values(view.shape[0]);
  for (size_t i = 0; i < values.size(); ++i) {
    const std::byte* from = view.data + i * view.strides[0];
    values[i] = view.dtype == DType::kI64 ? LoadLE<int64_t>(from) : LoadLE<int32_t>(from);
  }
  return values;
}

// A vector of integers, one per row of the cache, if the file has it under this name.
std::vector<int64_t> SideValues(const TensorFile& file, const std::string& name, uint64_t count) {
  const NamedTensor* tensor = file.Find(name);
  if (tensor == nullptr || tensor->view.rank() != 1 || tensor->view.shape[0] != count ||
      (tensor->view.dtype != DType::kI32 && tensor->view.dtype != DType::kI64)) {
    return {};
  }
  return Integers(tensor->view);
}

void AddCells(const TensorFile& file, Snapshot& snapshot) {
  std::set<std::string> done;
  for (const LayerKv& layer : snapshot.layers) {
    if (!done.insert(layer.group).second) continue;
    const std::string suffix = layer.group.empty() ? "" : "." + layer.group;
    const uint64_t tokens = layer.k.tokens();
    const auto positions = SideValues(file, "positions" + suffix, tokens);
    if (positions.empty()) continue;
    const auto streams = SideValues(file, "streams" + suffix, tokens);
    CellGroup cells{.group = layer.group, .streams = 1, .cells = {}};
    for (size_t i = 0; i < positions.size(); ++i) {
      const int64_t stream = streams.empty() ? 0 : streams[i];
      if (stream < 0 || stream >= UINT16_MAX)
        throw Error(Finding::kBadField, fmt::format("stream {}", stream)).In("streams" + suffix);
      cells.cells.push_back(
          {.position = positions[i], .stream = static_cast<uint32_t>(stream), .sequences = {}});
      cells.streams = std::max(cells.streams, static_cast<uint32_t>(stream) + 1);
    }
    snapshot.cell_groups.push_back(std::move(cells));
  }
  for (const char* name : {"tokens", "input_ids"}) {
    const NamedTensor* tensor = file.Find(name);
    if (tensor == nullptr || tensor->view.rank() != 1) continue;
    for (const int64_t token : SideValues(file, name, tensor->view.shape[0])) {
      if (token != static_cast<int32_t>(token))
        throw Error(Finding::kBadField, fmt::format("token id {}", token)).In(name);
      snapshot.tokens.push_back(static_cast<int32_t>(token));
    }
    return;
  }
}

// "key_cache.0, value_cache.0 ...": what the pattern found.
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
  if (!reading.note.empty()) snapshot.notes.push_back({reading.note});
  size_t used = 0;
  for (const auto& [index, layer] : found.layers)
    used += (layer.k != nullptr) + (layer.v != nullptr);
  for (const NamedTensor& tensor : file.tensors) used += IsSideTensor(tensor.name);
  if (used < file.tensors.size()) {
    snapshot.notes.push_back({fmt::format("{} of {} tensors are neither K nor V and are left out",
                                          file.tensors.size() - used, file.tensors.size())});
  }
}

// Makes the layers of one snapshot out of the tensors found.
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
      if (count > kMostLayers) throw Error(Finding::kLimit, fmt::format("{} layers", count));
      for (uint64_t i = 0; i < count; ++i)
        layers.push_back(Layer(static_cast<uint32_t>(i), i, tensors));
    } else {
      for (const auto& [index, tensors] : found_.layers) layers.push_back(Layer(index, 0, tensors));
    }
    NameGroups(layers);
    return layers;
  }

 private:
  LayerKv Layer(uint32_t index, uint64_t at, const KvTensors::Layer& tensors) const {
    const bool both = axes_.Has('2');
    LayerKv layer{
        .index = index,
        .label = tensors.k->file.empty() || !found_.joined ? tensors.k->name : tensors.k->file,
        .group = {},
        .k = View(*tensors.k, at, 0),
        .v = std::nullopt};
    if (both && tensors.v != nullptr)
      throw Error(Finding::kUsage, "--layout has a K/V axis, yet K and V have their own tensors");
    if (both) layer.v = View(*tensors.k, at, 1);
    if (tensors.v != nullptr) layer.v = View(*tensors.v, at, 0);
    if (layer.v && layer.v->tokens() != layer.k.tokens()) {
      throw Error(Finding::kInconsistent,
                  fmt::format("K has {} tokens, V has {}", layer.k.tokens(), layer.v->tokens()))
          .In(fmt::format("layer {}", index));
    }
    return layer;
  }

  KvTensor View(const NamedTensor& tensor, uint64_t layer, uint64_t part) const {
    try {
      const uint64_t rows = tensor.view.rank() == axes_.rank() ? axes_.Extent(tensor.view, 'B') : 1;
      if (options_.batch ? !axes_.Has('B') || *options_.batch >= rows : rows > 1) {
        throw Error(Finding::kUsage, options_.batch ? fmt::format("--batch {}: there are {} rows",
                                                                  *options_.batch, rows)
                                                    : fmt::format("holds a batch of {}", rows))
            .Hint("choose one row with --batch; if the axis is something else give --layout");
      }
      KvTensor view = axes_.View(
          tensor.view, {.layer = layer, .part = part, .batch = options_.batch.value_or(0)});
      Retype(file_, tensor, options_, view);
      return view;
    } catch (Error& error) {
      throw error.In(fmt::format("tensor '{}'", Escaped(tensor.name)));
    }
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
};

}  // namespace

Snapshot SnapshotOf(TensorFile file, const OpenOptions& options) {
  const KvTensors found = FindKvTensors(file, options);
  const Reading reading = ChooseAxes(file, found, options);
  Snapshot snapshot;
  snapshot.layers = Assembler(file, options, found, reading.axes).Layers();
  snapshot.engine = Lookup(file.metadata, kEngineKey);
  snapshot.model = Lookup(file.metadata, kModelKey);
  snapshot.key_rotation = RotationOf(file, found);
  snapshot.k_hadamard = HadamardOf(Lookup(file.metadata, kKHadamardKey));
  snapshot.v_hadamard = HadamardOf(Lookup(file.metadata, kVHadamardKey));
  if (found.joined) snapshot.engine = "vLLM";
  const std::string origin = Lookup(file.metadata, kSourceKey);
  if (!origin.empty()) snapshot.facts.emplace_back("origin", origin);
  snapshot.facts.emplace_back("names", SampleNames(found));
  snapshot.facts.emplace_back("axes", reading.axes.text());
  AddCells(file, snapshot);
  AddNotes(file, found, reading, snapshot);
  snapshot.source = std::move(file.source);
  snapshot.spools = std::move(file.spools);
  snapshot.checks = std::move(file.checks);
  return snapshot;
}

}  // namespace kv
