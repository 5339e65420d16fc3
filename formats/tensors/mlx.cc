// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/mlx.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/tensors/axes.h"
#include "formats/tensors/mlx_quantised.h"
#include "formats/tensors/mlx_state.h"
#include "lib/core/snapshot/key_rotation.h"

namespace kv::mlx {
namespace {

// Which tokens of a buffer are in use, in the order of their positions.
struct Used {
  struct Run {
    uint64_t begin, end;
  };
  std::vector<Run> runs;
  uint64_t tokens = 0;
  uint64_t kept = 0;    // of them from the beginning of the text
  uint64_t offset = 0;  // position behind the last one

  int64_t PositionOf(uint64_t i) const {
    return static_cast<int64_t>(i < kept ? i : offset - tokens + i);
  }
};

Error Bad(std::string what) { return Error(Finding::kBadField, std::move(what)); }

Used UsedOfPlain(const LayerState& layer, uint64_t room) {
  const uint64_t offset = layer.numbers.empty() ? room : layer.numbers[0];
  if (offset > room) throw Bad(fmt::format("offset {}, but room for {} tokens", offset, room));
  return {{{0, offset}}, offset, offset, offset};
}

// The numbers of a ring, whose order has changed.
struct Ring {
  uint64_t offset, keep, most, index;
};

Ring RingOf(const LayerState& layer, bool in_arrays) {
  const auto& n = layer.numbers;
  if (in_arrays && n.size() == 4) return {n[0], n[1], n[2], n[3]};
  if (!in_arrays && n.size() == 4) return {n[2], n[0], n[1], n[3]};
  if (!in_arrays && n.size() == 5) return {n[3], n[0], n[1], n[4]};
  throw Bad(fmt::format("a ring needs 4 or 5 numbers, not {}", n.size()));
}

Used UsedOfRing(const Ring& ring, uint64_t room) {
  if (ring.index > room)
    throw Bad(fmt::format("the ring's next place is {} of {}", ring.index, room));
  Used used{{}, room, 0, ring.offset};
  if (ring.index == room) {
    used.runs = {{0, room}};
  } else if (ring.index >= ring.offset) {
    used.runs = {{0, ring.index}};
    used.tokens = ring.index;
  } else {
    if (ring.keep > ring.index)
      throw Bad(fmt::format("the ring's next place {} lies among the {} kept tokens", ring.index,
                            ring.keep));
    used.runs = {{0, ring.keep}, {ring.index, room}, {ring.keep, ring.index}};
  }
  if (used.tokens > ring.offset)
    throw Bad(fmt::format("holds {} tokens, but saw {}", used.tokens, ring.offset));
  used.kept = used.tokens == ring.offset ? used.tokens : std::min(ring.keep, used.tokens);
  return used;
}

void TakeRuns(const Used& used, KvTensor& tensor) {
  const StridedPiece whole = tensor.pieces.at(0);
  tensor.pieces.clear();
  for (const Used::Run& run : used.runs) {
    if (run.begin == run.end && used.runs.size() > 1) continue;
    StridedPiece piece = whole;
    if (whole.data != nullptr) piece.data = whole.data + run.begin * whole.token.step;
    piece.tokens = run.end - run.begin;
    tensor.pieces.push_back(piece);
  }
}

class Reader {
 public:
  Reader(TensorFile& file, const OpenOptions& options, const PromptCache& cache)
      : file_(file), options_(options), cache_(cache), arrays_(file) {}

  void Read(Snapshot& snapshot) {
    const bool rings = Any(LayerClass::kRing);
    for (uint32_t i = 0; i < cache_.layers.size(); ++i) {
      const LayerState& state = cache_.layers[i];
      if (state.kind == LayerClass::kStateSpace) continue;
      try {
        const bool ring = state.kind == LayerClass::kRing;
        const std::string group = !rings || !Mixed() ? "" : ring ? "swa" : "full";
        LayerKv& layer = snapshot.layers.emplace_back();
        layer.index = i;
        layer.label = fmt::format("{}.0", i);
        layer.group = group;
        const Used used = Fill(state, layer);
        if (rings) AddCells(group, used, snapshot);
      } catch (Error& error) {
        throw error.In(fmt::format("layer {} ({})", i, state.class_name));
      }
    }
  }

  bool Any(LayerClass kind) const {
    return std::any_of(cache_.layers.begin(), cache_.layers.end(),
                       [&](const LayerState& layer) { return layer.kind == kind; });
  }

 private:
  bool Mixed() const { return Any(LayerClass::kPlain) || Any(LayerClass::kQuantised); }

  Used Fill(const LayerState& state, LayerKv& layer) {
    if (state.kind == LayerClass::kQuantised) return FillQuantised(state, layer);
    const NamedTensor &k = Array(layer.index, ".0"), &v = Array(layer.index, ".1");
    layer.k = View(k);
    layer.v = View(v);
    const uint64_t room = layer.k.tokens();
    if (layer.v->tokens() != room)
      throw Error(Finding::kInconsistent,
                  fmt::format("K has {} tokens, V has {}", room, layer.v->tokens()));
    const bool in_arrays = arrays_.Find(fmt::format("{}.2", layer.index)) != nullptr;
    const Used used = state.kind == LayerClass::kRing ? UsedOfRing(RingOf(state, in_arrays), room)
                                                      : UsedOfPlain(state, room);
    TakeRuns(used, layer.k);
    TakeRuns(used, *layer.v);
    return used;
  }

  Used FillQuantised(const LayerState& state, LayerKv& layer) {
    const auto& n = state.numbers;  // the oldest begin with the step by which buffers grow
    if (n.size() != 3 && n.size() != 4)
      throw Bad(fmt::format("quantisation needs 3 or 4 numbers, not {}", n.size()));
    const size_t first = n.size() - 3;
    const Quantisation how{n[first + 1], n[first + 2]};
    const auto part = [&](const char* of) {
      const std::string name = of;
      return Decode({Array(layer.index, name + ".0").view, Array(layer.index, name + ".1").view,
                     Array(layer.index, name + ".2").view},
                    how, n[first], options_, file_);
    };
    layer.k = part(".0");
    layer.v = part(".1");
    return {{}, n[first], n[first], n[first]};
  }

  const NamedTensor& Array(uint32_t layer, const std::string& part) const {
    const std::string name = std::to_string(layer) + part;
    const NamedTensor* tensor = arrays_.Find(name);
    if (tensor == nullptr || (tensor->view.rank() == 1 && tensor->view.elements() == 0))
      throw Error(Finding::kMissingRecord, fmt::format("has no array '{}': it is empty", name));
    return *tensor;
  }

  KvTensor View(const NamedTensor& tensor) const {
    const Axes axes = Axes::Parse("BHTD");
    const uint64_t rows = tensor.view.rank() == 4 ? tensor.view.shape[0] : 1;
    if (options_.batch ? *options_.batch >= rows : rows > 1) {
      throw Error(Finding::kUsage, fmt::format("holds a batch of {}", rows))
          .Hint("choose one row with --batch");
    }
    return axes.View(tensor.view, {.layer = 0, .part = 0, .batch = options_.batch.value_or(0)});
  }

  static void AddCells(const std::string& group, const Used& used, Snapshot& snapshot) {
    CellGroup cells{.group = group, .streams = 1, .cells = {}, .extensions = {}};
    for (uint64_t i = 0; i < used.tokens; ++i)
      cells.cells.push_back({.position = used.PositionOf(i), .stream = 0, .sequences = {0}});
    for (const CellGroup& known : snapshot.cell_groups) {
      if (known.group != group) continue;
      const auto same = [](const Cell& a, const Cell& b) { return a.position == b.position; };
      if (!std::equal(known.cells.begin(), known.cells.end(), cells.cells.begin(),
                      cells.cells.end(), same)) {
        throw Error(Finding::kInconsistent, "holds other positions than the layers before");
      }
      return;
    }
    snapshot.cell_groups.push_back(std::move(cells));
  }

  TensorFile& file_;
  const OpenOptions& options_;
  const PromptCache& cache_;
  const ArraysByName arrays_;
};

// "0, 1, 2 ..."
std::string Numbers(const PromptCache& cache, LayerClass kind) {
  constexpr size_t kShown = 6;
  std::string text;
  size_t found = 0;
  for (size_t i = 0; i < cache.layers.size(); ++i) {
    if (cache.layers[i].kind != kind) continue;
    if (found++ < kShown) text += fmt::format("{}{}", found == 1 ? "" : ", ", i);
  }
  return found > kShown ? text + " ..." : text;
}

void RefuseWhatIsNoKv(const PromptCache& cache, const OpenOptions& options) {
  for (size_t i = 0; i < cache.layers.size(); ++i) {
    if (cache.layers[i].kind != LayerClass::kOther) continue;
    throw std::move(
        Error(Finding::kUnsupportedKind,
              fmt::format("layer {} is a {}, whose arrays are not K and V of one sequence", i,
                          Escaped(cache.layers[i].class_name, 80)))
            .Hint("save one sequence with KVCache, RotatingKVCache or QuantizedKVCache, or archive "
                  "the file with --from opaque"));
  }
  const LayerState* state = nullptr;
  bool attention = false;
  for (const LayerState& layer : cache.layers) {
    if (layer.kind == LayerClass::kStateSpace) state = &layer;
    attention = attention || layer.kind != LayerClass::kStateSpace;
  }
  if (state == nullptr || (attention && !options.k_pattern.empty())) return;
  Error error(Finding::kUnsupportedKind,
              fmt::format("layers {} are state-space layers ({}): their arrays are a recurrent "
                          "state, not K and V of tokens",
                          Numbers(cache, LayerClass::kStateSpace), state->class_name));
  throw std::move(error.Hint(
      attention ? "--k-pattern '{i}.0' --v-pattern '{i}.1' reads the attention layers alone; "
                  "--from opaque archives all"
                : "archive the file with --from opaque"));
}

}  // namespace

bool IsPromptCache(const TensorFile& file) { return !ReadPromptCache(file).layers.empty(); }

Snapshot OpenPromptCache(TensorFile file, const OpenOptions& options) {
  const PromptCache cache = ReadPromptCache(file);
  RefuseWhatIsNoKv(cache, options);
  Snapshot snapshot;
  Reader reader(file, options, cache);
  reader.Read(snapshot);
  snapshot.engine = "MLX";
  AssumeRotated(snapshot, "MLX caches keys after RoPE, in models that have it");
  std::string classes;
  for (const LayerState& layer : cache.layers) {
    if (classes.find(layer.class_name) == std::string::npos)
      classes += (classes.empty() ? "" : ", ") + layer.class_name;
  }
  snapshot.facts.emplace_back("classes", classes);
  for (const auto& [key, value] : cache.user) {
    if (key == "model") snapshot.model = Escaped(value, 120);
  }
  if (reader.Any(LayerClass::kQuantised)) {
    snapshot.notes.push_back(
        {"values of QuantizedKVCache are read as f32: scale x number + bias", false});
  }
  if (reader.Any(LayerClass::kStateSpace)) {
    snapshot.notes.push_back({fmt::format("layers {} are state-space layers and are left out",
                                          Numbers(cache, LayerClass::kStateSpace))});
  }
  snapshot.source = std::move(file.source);
  snapshot.spools = std::move(file.spools);
  snapshot.checks = std::move(file.checks);
  return snapshot;
}

}  // namespace kv::mlx
