// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads prompt caches of mlx-lm: buffers of every class with their used part, quantised arrays, and
// batches.
#include "formats/tensors/mlx.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/tensors/tensor_names.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::mlx {
namespace {

struct Quantisation {
  uint64_t group, bits;  // numbers of a row that share scale and bias, and bits of each
};

struct QuantisedArray {
  const TensorView &numbers, &scales, &biases;  // [B, H, T, words], [B, H, T, groups] twice
};

// Consecutive rows of a batch.
struct BatchRange {
  uint64_t first, count;
};

constexpr uint64_t kWordBits = 32;
constexpr uint64_t kWidest = 1 << 24;

struct Shape {
  uint64_t rows, heads, tokens, dims;
};

Shape DequantisedShape(const QuantisedArray& array, const Quantisation& how) {
  const auto &numbers = array.numbers.shape, &scales = array.scales.shape;
  const bool known_bits = how.bits >= 2 && how.bits <= 8 && how.bits != 7;
  if (!known_bits || (how.group != 32 && how.group != 64 && how.group != 128)) {
    throw Error(Finding::kBadField,
                "{} bits in groups of {}: MLX has 2 to 6 and 8 bits, and groups of 32, 64 and 128",
                how.bits, how.group);
  }
  if (array.numbers.dtype != DType::kU32)
    throw Error(Finding::kUnsupportedDtype, "its numbers are not u32 words");
  const bool ranks = numbers.size() == 4 && scales.size() == 4;
  if (!ranks || array.biases.shape != scales || array.biases.dtype != array.scales.dtype ||
      !std::equal(numbers.begin(), numbers.begin() + 3, scales.begin()) ||
      scales[3] > kWidest / how.group ||
      CheckedMul(numbers[3], kWordBits, "bits of a row") != scales[3] * how.group * how.bits) {
    throw Error(
        Finding::kSizeMismatch,
        "numbers [{}], scales [{}] and biases [{}] are not one array of {} bits in groups of {}",
        fmt::join(numbers, ", "), fmt::join(scales, ", "), fmt::join(array.biases.shape, ", "),
        how.bits, how.group);
  }
  return {numbers[0], numbers[1], numbers[2], scales[3] * how.group};
}

float At(const TensorView& view, uint64_t index) {
  const std::byte* at = view.data + index * Info(view.dtype).block_bytes;
  switch (view.dtype) {
    case DType::kF16:
      return F16ToF32(LoadLE<uint16_t>(at));
    case DType::kBF16:
      return BF16ToF32(LoadLE<uint16_t>(at));
    case DType::kF32:
      return LoadLE<float>(at);
    default:
      throw Error(Finding::kUnsupportedDtype, "scales of type {}", Name(view.dtype));
  }
}

// Returns a number of a row, which is one run of bits, the low ones first.
uint32_t NumberAt(const std::byte* row, uint64_t index, uint64_t bits) {
  const uint64_t bit = index * bits, byte = bit / 8;
  uint32_t window = static_cast<uint32_t>(row[byte]);
  if (bit % 8 + bits > 8) window |= static_cast<uint32_t>(row[byte + 1]) << 8;
  return window >> (bit % 8) & ((1u << bits) - 1);
}

// Decodes the first `tokens` of each of these rows to f32 in a buffer of the file: scale x number +
// bias, rounded once. Throws kBadField, kSizeMismatch, kUnsupportedDtype, kLimit above
// OpenOptions::max_bytes.
KvTensor Decode(const QuantisedArray& array, const Quantisation& how, uint64_t tokens,
                const BatchRange& rows, const OpenOptions& options, TensorFile& file) {
  const Shape shape = DequantisedShape(array, how);
  if (tokens > shape.tokens) {
    throw Error(Finding::kBadField, "offset {}, but room for {} tokens", tokens, shape.tokens);
  }
  const uint64_t heads = CheckedMul(rows.count, shape.heads, "heads");
  const uint64_t bytes = CheckedProduct({heads, tokens, shape.dims, sizeof(float)}, "values");
  if (bytes > options.max_bytes) {
    throw Error(Finding::kLimit, "{} bytes of values; --max-bytes allows {}", bytes,
                options.max_bytes);
  }
  Bytes values(bytes);
  const uint64_t row_bytes = shape.dims * how.bits / 8;
  for (uint64_t head = 0; head < heads; ++head) {
    for (uint64_t token = 0; token < tokens; ++token) {
      const uint64_t row = (rows.first * shape.heads + head) * shape.tokens + token;
      const std::byte* numbers = array.numbers.data + row * row_bytes;
      std::byte* out = values.data() + (head * tokens + token) * shape.dims * sizeof(float);
      for (uint64_t dim = 0; dim < shape.dims; ++dim) {
        const uint64_t group = row * (shape.dims / how.group) + dim / how.group;
        const auto number = static_cast<float>(NumberAt(numbers, dim, how.bits));
        StoreLE(out + dim * sizeof(float),
                std::fma(At(array.scales, group), number, At(array.biases, group)));
      }
    }
  }
  file.spools.push_back(FileSource::FromBytes(std::move(values), "values"));
  KvTensor tensor{.dtype = DType::kF32,
                  .heads = static_cast<uint32_t>(shape.heads),
                  .head_dim = static_cast<uint32_t>(shape.dims),
                  .heads_known = true,
                  .pieces = {}};
  const uint64_t row = shape.dims * sizeof(float);
  for (uint64_t i = 0; i < rows.count; ++i) {
    const std::byte* begin = file.spools.back()->bytes().data() + i * shape.heads * tokens * row;
    tensor.pieces.push_back({begin, tokens, {row}, {tokens * row}, {sizeof(float)}});
  }
  return tensor;
}

// Selects the used tokens. The pieces are rows of a batch, and the same tokens of each are in use.
void TakeRuns(const Used& used, KvTensor& tensor) {
  const std::vector<StridedPiece> rows = std::move(tensor.pieces);
  tensor.pieces.clear();
  for (const StridedPiece& row : rows) {
    for (const Used::Run& run : used.runs) {
      if (run.begin == run.end && used.runs.size() > 1) continue;
      StridedPiece piece = row;
      if (row.data != nullptr) piece.data = row.data + run.begin * row.token.step;
      piece.tokens = run.end - run.begin;
      tensor.pieces.push_back(piece);
    }
  }
}

class Reader {
 public:
  Reader(TensorFile& file, const OpenOptions& options, const PromptCache& cache)
      : file_(file), options_(options), cache_(cache), arrays_(file) {}

  void Read(Snapshot& snapshot) {
    const bool windows = std::any_of(cache_.layers.begin(), cache_.layers.end(), IsWindow);
    for (uint32_t i = 0; i < cache_.layers.size(); ++i) {
      const LayerState& state = cache_.layers[i];
      if (state.kind == LayerClass::kStateSpace) continue;
      try {
        const std::string group = !windows || !Mixed() ? "" : IsWindow(state) ? "swa" : "full";
        LayerKv& layer = snapshot.layers.emplace_back();
        layer.index = i;
        layer.label = fmt::format("{}.0", i);
        layer.group = group;
        const Used used = Fill(state, layer);
        if (windows && !is_whole_batch()) AddCells(group, used, snapshot);
      } catch (Error& error) {
        throw error.In("layer {} ({})", i, state.class_name);
      }
    }
  }

  // Returns the rows of a batch that is read as a whole; 1 for one sequence.
  uint64_t rows() const { return is_whole_batch() ? *batch_.rows() : 1; }

  bool Any(LayerClass kind) const {
    return std::any_of(cache_.layers.begin(), cache_.layers.end(),
                       [&](const LayerState& layer) { return layer.kind == kind; });
  }

 private:
  // Returns true if the class keeps only the last tokens.
  static bool IsWindow(const LayerState& layer) {
    return layer.kind == LayerClass::kRing || layer.kind == LayerClass::kBatchRing ||
           layer.kind == LayerClass::kChunked;
  }
  bool Mixed() const {
    return Any(LayerClass::kPlain) || Any(LayerClass::kQuantised) || Any(LayerClass::kBatch);
  }
  bool is_whole_batch() const { return !options_.batch && batch_.rows().value_or(1) > 1; }

  Used Fill(const LayerState& state, LayerKv& layer) {
    if (state.kind == LayerClass::kQuantised) return FillQuantised(state, layer);
    const NamedTensor &k = Array(layer.index, ".0"), &v = Array(layer.index, ".1");
    layer.k = View(k);
    layer.v = View(v);
    const uint64_t room = layer.k.pieces.at(0).tokens;
    if (layer.v->pieces.at(0).tokens != room)
      throw Error(Finding::kInconsistent, "K has {} tokens, V has {}", room,
                  layer.v->pieces.at(0).tokens);
    const uint64_t rows = *batch_.rows();
    if (state.is_batch() && (state.offsets.size() != rows || state.paddings.size() != rows)) {
      throw Bad("{} offsets and {} paddings of {} sequences", state.offsets.size(),
                state.paddings.size(), rows);
    }
    const Used used =
        FindUsedRows(state, room, cache_.in_arrays,
                     is_whole_batch() ? std::nullopt : std::optional(options_.batch.value_or(0)));
    TakeRuns(used, layer.k);
    TakeRuns(used, *layer.v);
    return used;
  }

  Used FillQuantised(const LayerState& state, LayerKv& layer) {
    const auto& n = state.numbers;  // the oldest versions put the growth step of buffers first
    if (n.size() != 3 && n.size() != 4)
      throw Bad("quantisation needs 3 or 4 numbers, not {}", n.size());
    const size_t first = n.size() - 3;
    const Quantisation how{n[first + 1], n[first + 2]};
    const auto part = [&](const char* of) {
      const std::string name = of;
      const TensorView& numbers = Array(layer.index, name + ".0").view;
      return Decode(
          {numbers, Array(layer.index, name + ".1").view, Array(layer.index, name + ".2").view},
          how, n[first], Choose(numbers), options_, file_);
    };
    layer.k = part(".0");
    layer.v = part(".1");
    return {{}, n[first], n[first], n[first]};
  }

  const NamedTensor& Array(uint32_t layer, const std::string& part) const {
    const std::string name = std::to_string(layer) + part;
    const NamedTensor* tensor = arrays_.Find(name);
    if (tensor == nullptr || (tensor->view.rank() == 1 && tensor->view.elements() == 0))
      throw Error(Finding::kMissingRecord, "has no array '{}': it is empty", name);
    return *tensor;
  }

  // Returns the rows to read: one, or all if the caller accepts whole batches.
  BatchRange Choose(const TensorView& array) {
    const uint64_t rows = array.rank() == 4 ? array.shape[0] : 1;
    RequireRow(options_, rows, true, "choose one row with --batch");
    batch_.Add(rows);
    return options_.batch ? BatchRange{*options_.batch, 1} : BatchRange{0, rows};
  }

  KvTensor View(const NamedTensor& tensor) {
    const Axes axes = Axes::Parse("BHTD");
    const BatchRange range = Choose(tensor.view);
    const auto row = [&](uint64_t i) {
      return axes.View(tensor.view, {.layer = 0, .part = 0, .batch = range.first + i});
    };
    KvTensor all = row(0);
    for (uint64_t i = 1; i < range.count; ++i) all.pieces.push_back(row(i).pieces.at(0));
    return all;
  }

  static void AddCells(const std::string& group, const Used& used, Snapshot& snapshot) {
    CellGroup cells{.group = group, .streams = 1, .cells = {}, .extensions = {}};
    for (uint64_t i = 0; i < used.tokens; ++i)
      cells.cells.push_back({.position = used.GetPosition(i), .stream = 0, .sequences = {0}});
    for (const CellGroup& known : snapshot.cell_groups) {
      if (known.group != group) continue;
      const auto same = [](const Cell& a, const Cell& b) { return a.position == b.position; };
      if (!std::equal(known.cells.begin(), known.cells.end(), cells.cells.begin(),
                      cells.cells.end(), same)) {
        throw Error(Finding::kInconsistent, "its positions differ from those of earlier layers");
      }
      return;
    }
    snapshot.cell_groups.push_back(std::move(cells));
  }

  TensorFile& file_;
  const OpenOptions& options_;
  const PromptCache& cache_;
  const ArraysByName arrays_;
  BatchOfFile batch_;
};

// Describes the padding before the shorter sequences of a batch that is read as a whole.
std::string PaddingText(const PromptCache& cache) {
  constexpr size_t kShown = 8;
  for (const LayerState& layer : cache.layers) {
    const auto& paddings = layer.paddings;
    if (std::none_of(paddings.begin(), paddings.end(), [](int64_t p) { return p > 0; })) continue;
    std::string text;
    for (size_t i = 0; i < std::min(paddings.size(), kShown); ++i)
      text += fmt::format("{}{}", i == 0 ? "" : ", ", std::max<int64_t>(paddings[i], 0));
    if (paddings.size() > kShown) text += " ...";
    return text;
  }
  return {};
}

// Returns "0, 1, 2 ...".
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
    throw Error(Finding::kUnsupportedKind,
                "layer {} is a {}, whose arrays are not known to be K and V", i,
                Escaped(cache.layers[i].class_name, 80))
        .Hint(
            "save it with KVCache, RotatingKVCache or QuantizedKVCache, or "
            "archive the file with --from opaque");
  }
  const LayerState* state = nullptr;
  bool attention = false;
  for (const LayerState& layer : cache.layers) {
    if (layer.kind == LayerClass::kStateSpace) state = &layer;
    attention = attention || layer.kind != LayerClass::kStateSpace;
  }
  const bool has_pattern = !options.k_pattern.empty() || !options.v_pattern.empty();
  if (state == nullptr && has_pattern && !options.is_shared) {
    throw Error(Finding::kUsage,
                "--{}-pattern {}: the file names the class of every layer, which says which arrays "
                "are K and V",
                options.k_pattern.empty() ? "v" : "k",
                options.k_pattern.empty() ? options.v_pattern : options.k_pattern)
        .Hint("leave --k-pattern and --v-pattern out");
  }
  if (state == nullptr || (attention && has_pattern)) return;
  Error error(Finding::kUnsupportedKind,
              "layers {} are state-space layers ({}): their arrays are a recurrent state, not K "
              "and V of tokens",
              Numbers(cache, LayerClass::kStateSpace), state->class_name);
  throw error.Hint(attention ? "--k-pattern '{i}.0' --v-pattern '{i}.1' reads the "
                               "attention layers alone; --from opaque archives all"
                             : "archive the file with --from opaque");
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
  std::vector<std::string> classes;
  for (const LayerState& layer : cache.layers) {
    if (std::find(classes.begin(), classes.end(), layer.class_name) == classes.end())
      classes.push_back(layer.class_name);
  }
  snapshot.facts.emplace_back("classes", fmt::format("{}", fmt::join(classes, ", ")));
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
  if (reader.rows() > 1) {
    snapshot.storage[kBatchRows] = std::to_string(reader.rows());
    const std::string padding = PaddingText(cache);
    if (!padding.empty()) {
      snapshot.notes.push_back(
          {fmt::format("rows begin with padding, of {} tokens; --batch N reads one without it",
                       padding),
           false});
    }
  }
  snapshot.source = std::move(file.source);
  snapshot.spools = std::move(file.spools);
  snapshot.checks = std::move(file.checks);
  return snapshot;
}

}  // namespace kv::mlx
