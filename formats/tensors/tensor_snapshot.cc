// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/tensor_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/tensors/axes.h"
#include "formats/tensors/kvtool_arrays.h"
#include "formats/tensors/mlx.h"
#include "formats/tensors/reading.h"
#include "formats/tensors/tensor_names.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/rope_pairs.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {
namespace {

constexpr uint64_t kMostLayers = 1 << 16;  // an empty array may claim any number
constexpr size_t kNotesShown = 8;          // the same thing may hold for a million tensors

// Gives the values the type they really have: kvtool's metadata, or --input-dtype for integers.
void Retype(const TensorFile& file, const NamedTensor& tensor, const OpenOptions& options,
            KvTensor& view) {
  const std::string told =
      file.metadata.empty() ? "" : Lookup(file.metadata, std::string(kDtypePrefix) + tensor.name);
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

bool IsTransformers(const TensorFile& file) {
  return Lookup(file.metadata, "__class__").starts_with("transformers.");
}

// A list over layers of pairs [K, V].
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

HadamardState HadamardOf(const std::string& word) {
  return word == "yes"  ? HadamardState::kYes
         : word == "no" ? HadamardState::kNo
                        : HadamardState::kUnknown;
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
      layers.reserve(found_.layers.size());
      for (const auto& [index, tensors] : found_.layers) layers.push_back(Layer(index, 0, tensors));
    }
    NameGroups(layers);
    return layers;
  }

  // Of a batch that is read as a whole; 1 for one sequence.
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
      throw Error(Finding::kInconsistent,
                  fmt::format("K has {} tokens, V has {}", layer.k.tokens(), layer.v->tokens()))
          .In(fmt::format("layer {}", index));
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
      throw error.In(fmt::format("tensor '{}'", Escaped(tensor.name)));
    }
  }

  KvTensor Row(const NamedTensor& tensor, const Axes::Place& place) const {
    KvTensor view = axes_.View(tensor.view, place, HeadsOf(options_));
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

Snapshot SnapshotOf(TensorFile file, const OpenOptions& options) {
  if (options.layout.empty() && mlx::IsPromptCache(file))
    return mlx::OpenPromptCache(std::move(file), options);
  const KvTensors found = FindKvTensors(file, options);
  const Reading reading = ChooseAxes(file, found, options);
  Snapshot snapshot;
  Assembler assembler(file, options, found, reading.axes);
  snapshot.layers = assembler.Layers();
  snapshot.engine = Lookup(file.metadata, kEngineKey);
  snapshot.model = Lookup(file.metadata, kModelKey);
  snapshot.k_hadamard = HadamardOf(Lookup(file.metadata, kKHadamardKey));
  snapshot.v_hadamard = HadamardOf(Lookup(file.metadata, kVHadamardKey));
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
    ImportCells(file, snapshot);  // which are of one sequence
  }
  if (reading.is_guess) snapshot.storage[kAxesGuessed] = "yes";
  AddNotes(file, found, reading, snapshot);
  snapshot.source = std::move(file.source);
  snapshot.spools = std::move(file.spools);
  snapshot.checks = std::move(file.checks);
  return snapshot;
}

}  // namespace kv
