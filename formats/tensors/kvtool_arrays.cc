// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The arrays and metadata of kvtool's own tensor files: positions, sequences and caches beside K
// and V, for reading and writing.

#include "formats/tensors/kvtool_arrays.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/format.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
std::string Lookup(const TensorMetadata& metadata, std::string_view key) {
  const auto at = metadata.find(std::string(key));
  return at == metadata.end() ? std::string() : at->second;
}

bool IsKvtoolFile(const TensorMetadata& metadata) {
  return metadata.count(std::string(kLayoutKey)) != 0;
}

std::optional<TensorMetadata> ParseMetadata(std::string_view json) {
  const auto document = ReadJson(json, {.keys = 1 << 16});
  if (!document.is_object()) return std::nullopt;
  TensorMetadata metadata;
  for (const auto& [key, value] : document.items()) {
    if (!value.is_string()) return std::nullopt;
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

std::string MetadataJson(const TensorMetadata& metadata) {
  return nlohmann::json(metadata).dump(2, ' ', /*ensure_ascii=*/true,
                                       nlohmann::json::error_handler_t::replace);
}

namespace {

constexpr uint32_t kMaxStreams = UINT16_MAX;
constexpr uint32_t kMaxSequencesPerCell = 4096;
// Each cache is searched for among all layers and arrays, hence the limit; models have one or two.
constexpr size_t kMaxCaches = 64;

template <typename T>
TensorToWrite Vector(std::string name, DType dtype, std::vector<uint64_t> shape,
                     std::vector<T> values) {
  return {std::move(name), dtype, std::move(shape), [values = std::move(values)](Sink& sink) {
            sink.Write(std::as_bytes(std::span(values)));
          }};
}

// Returns "full:1,swa:2": the caches in order, with their number of streams.
std::string CachesText(const Snapshot& snapshot) {
  std::string text;
  for (const CellGroup& group : snapshot.cell_groups)
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", group.group, group.streams);
  return text;
}

int64_t Number(std::string_view text, std::string_view what) {
  const auto value = ParseNumber<int64_t>(text);
  if (!value) throw Error(Finding::kBadField, "{} '{}'", what, Escaped(text, 40));
  return *value;
}

// Takes the text before `mark` (or all of it) off the front of `text`.
std::string_view TakeUntil(std::string_view& text, char mark) {
  const size_t at = std::min(text.find(mark), text.size());
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return taken;
}

// Returns a vector of integers, one per row of the cache, if the file has it under this name.
std::vector<int64_t> SideValues(const TensorFile& file, const std::string& name, uint64_t count) {
  const NamedTensor* tensor = file.Find(name);
  if (tensor == nullptr || tensor->view.rank() != 1 || tensor->view.shape[0] != count ||
      (tensor->view.dtype != DType::kI32 && tensor->view.dtype != DType::kI64)) {
    return {};
  }
  return ToIntegers(tensor->view);
}

void ReadExtensions(const TensorFile& file, const std::string& name, CellGroup& group) {
  const NamedTensor* tensor = file.Find(name);
  if (tensor == nullptr || tensor->view.rank() != 2 || tensor->view.dtype != DType::kI32 ||
      tensor->view.shape[0] != group.cells.size() || tensor->view.shape[1] > UINT8_MAX) {
    return;
  }
  group.extension_words = static_cast<uint32_t>(tensor->view.shape[1]);
  const Bytes bytes = CopyContiguous(tensor->view);
  group.extensions.resize(bytes.size() / sizeof(int32_t));
  if (!bytes.empty()) std::memcpy(group.extensions.data(), bytes.data(), bytes.size());
}

// Reads one cache. Returns false if the file has no positions for its rows.
bool ReadGroup(const TensorFile& file, uint64_t rows, CellGroup& group) {
  const std::string suffix = group.group.empty() ? "" : "." + group.group;
  const auto positions = SideValues(file, "positions" + suffix, rows);
  if (positions.empty()) return false;
  const auto streams = SideValues(file, "streams" + suffix, rows);
  for (size_t i = 0; i < positions.size(); ++i) {
    const int64_t stream = streams.empty() ? 0 : streams[i];
    if (stream < 0 || stream >= kMaxStreams)
      throw Error(Finding::kBadField, "stream {}", stream).In("streams" + suffix);
    group.cells.push_back(
        {.position = positions[i], .stream = static_cast<uint32_t>(stream), .sequences = {}});
    group.streams = std::max(group.streams, static_cast<uint32_t>(stream) + 1);
  }
  const std::string key = std::string(kSequencesKey) + suffix;
  const std::string sequences = Lookup(file.metadata, key);
  try {
    if (!sequences.empty()) ReadSequences(sequences, group.cells);
  } catch (Error& error) {
    throw error.In(key);
  }
  ReadExtensions(file, "extensions" + suffix, group);
  return true;
}

// Returns the caches that the file names, otherwise those of its layers.
std::vector<CellGroup> NamedCaches(const TensorFile& file, const Snapshot& snapshot) {
  std::vector<CellGroup> groups;
  const auto add = [&](std::string_view name, uint32_t streams) {
    const auto same = [&](const CellGroup& group) { return group.group == name; };
    if (std::any_of(groups.begin(), groups.end(), same)) return;
    if (groups.size() == kMaxCaches)
      throw Error(Finding::kLimit, "more than {} caches", kMaxCaches);
    groups.push_back({.group = std::string(name), .streams = streams, .cells = {}});
  };
  const std::string text = Lookup(file.metadata, kCachesKey);
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view count = TakeUntil(rest, ',');
    const std::string_view name = TakeUntil(count, ':');
    const int64_t streams = Number(count, kCachesKey);
    if (streams < 1 || streams > kMaxStreams)
      throw Error(Finding::kBadField, "{} streams", streams).In(kCachesKey);
    add(name, static_cast<uint32_t>(streams));
  }
  for (const LayerKv& layer : snapshot.layers) add(layer.group, 1);
  return groups;
}

void ReadTokens(const TensorFile& file, Snapshot& snapshot) {
  for (const char* name : {"tokens", "input_ids"}) {
    const NamedTensor* tensor = file.Find(name);
    if (tensor == nullptr || tensor->view.rank() != 1) continue;
    for (const int64_t token : SideValues(file, name, tensor->view.shape[0])) {
      if (token != static_cast<int32_t>(token))
        throw Error(Finding::kBadField, "token id {}", token).In(name);
      snapshot.tokens.push_back(static_cast<int32_t>(token));
    }
    return;
  }
}

}  // namespace

std::vector<int64_t> ToIntegers(const TensorView& view) {
  std::vector<int64_t> values(view.shape[0]);
  for (size_t i = 0; i < values.size(); ++i) {
    const std::byte* from = view.data + i * view.strides[0];
    values[i] = view.dtype == DType::kI64 ? LoadLE<int64_t>(from) : LoadLE<int32_t>(from);
  }
  return values;
}

std::string SequencesText(const std::vector<Cell>& cells) {
  std::string text;
  for (size_t i = 0; i < cells.size();) {
    size_t end = i + 1;
    while (end < cells.size() && cells[end].sequences == cells[i].sequences.ids()) ++end;
    text += fmt::format("{}{}*{}", i == 0 ? "" : ";", fmt::join(cells[i].sequences, ","), end - i);
    i = end;
  }
  return text;
}

void ReadSequences(std::string_view text, std::vector<Cell>& cells) {
  size_t cell = 0;
  uint64_t total = 0;
  while (!text.empty()) {
    std::string_view count_text = TakeUntil(text, ';');
    std::string_view ids_text = TakeUntil(count_text, '*');
    const int64_t count = Number(count_text, "run of");
    SequenceIds ids;
    if (!ids_text.empty() && ids_text.back() == ',')
      throw Error(Finding::kBadField, "sequences that end with a comma");
    while (!ids_text.empty()) {
      const int64_t id = Number(TakeUntil(ids_text, ','), "sequence");
      if (id < 0 || id > INT32_MAX || ids.size() == kMaxSequencesPerCell)
        throw Error(Finding::kBadField, "sequence {}", id);
      ids.push_back(static_cast<int32_t>(id));
    }
    if (count < 1 || static_cast<uint64_t>(count) > cells.size() - cell) {
      throw Error(Finding::kBadField, "a run of {} cells, {} are left", count, cells.size() - cell);
    }
    // A short text may ask for many ids in many cells, so the total is limited.
    total += static_cast<uint64_t>(count) * ids.size();
    if (total > cells.size() * 64 + kMaxSequencesPerCell)
      throw Error(Finding::kLimit, "more than {} sequence ids", total);
    for (const size_t end = cell + static_cast<size_t>(count); cell < end; ++cell)
      cells[cell].sequences = ids;
  }
  if (cell != cells.size()) throw Error(Finding::kBadField, "{} of {} cells", cell, cells.size());
}

void ExportCells(const Snapshot& snapshot, TensorExport& out) {
  const auto& groups = snapshot.cell_groups;
  for (const CellGroup& group : groups) {
    const std::string suffix = group.group.empty() ? "" : "." + group.group;
    const uint64_t count = group.cells.size();
    std::vector<int64_t> positions;
    std::vector<int32_t> streams;
    bool any_sequence = false;
    for (const Cell& cell : group.cells) {
      positions.push_back(cell.position);
      streams.push_back(static_cast<int32_t>(cell.stream));
      any_sequence |= !cell.sequences.empty();
    }
    out.tensors.push_back(Vector("positions" + suffix, DType::kI64, {count}, std::move(positions)));
    if (group.streams > 1)
      out.tensors.push_back(Vector("streams" + suffix, DType::kI32, {count}, std::move(streams)));
    if (any_sequence)
      out.metadata[std::string(kSequencesKey) + suffix] = SequencesText(group.cells);
    if (group.extension_words > 0) {
      out.tensors.push_back(Vector("extensions" + suffix, DType::kI32,
                                   {count, group.extension_words}, group.extensions));
    }
  }
  if (groups.size() > 1 || (groups.size() == 1 && groups[0].streams > 1))
    out.metadata[std::string(kCachesKey)] = CachesText(snapshot);
  if (!snapshot.tokens.empty()) {
    out.tensors.push_back(Vector("tokens", DType::kI32, {snapshot.tokens.size()}, snapshot.tokens));
  }
}

void ImportCells(const TensorFile& file, Snapshot& snapshot) {
  for (CellGroup& group : NamedCaches(file, snapshot)) {
    const auto layer =
        std::find_if(snapshot.layers.begin(), snapshot.layers.end(),
                     [&](const LayerKv& other) { return other.group == group.group; });
    if (layer == snapshot.layers.end()) {
      snapshot.cell_groups.push_back(std::move(group));  // an empty cache
    } else if (ReadGroup(file, layer->k.tokens(), group)) {
      snapshot.cell_groups.push_back(std::move(group));
    }
  }
  ReadTokens(file, snapshot);
}

namespace {

void AddTensor(const Snapshot& snapshot, const KvTensor& tensor, std::string name,
               TensorExport& out) {
  const bool blocks = IsBlockQuantised(tensor.dtype);
  const uint64_t last =
      blocks ? tensor.units_per_head() * tensor.unit_bytes() : uint64_t{tensor.head_dim};
  // Records types that npy cannot express (bf16, f8) and that no array can (blocks).
  if (blocks || tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF8E4M3 ||
      tensor.dtype == DType::kF8E5M2) {
    out.metadata[std::string(kDtypePrefix) + name] = Name(tensor.dtype);
  }
  out.tensors.push_back({std::move(name),
                         blocks ? DType::kU8 : tensor.dtype,
                         {tensor.tokens(), tensor.heads, last},
                         [&snapshot, &tensor](Sink& sink) {
                           WriteRows(snapshot, tensor, 0, tensor.tokens(), sink);
                         }});
}

void AddWords(const Snapshot& snapshot, TensorMetadata& metadata) {
  const auto put = [&](std::string_view key, std::string value) {
    if (!value.empty()) metadata[std::string(key)] = std::move(value);
  };
  const auto hadamard = [](HadamardState rotation) {
    return rotation == HadamardState::kUnknown ? ""
           : rotation == HadamardState::kYes   ? "yes"
                                               : "no";
  };
  put(kLayoutKey, std::string(Name(Order::kTokenHeadDim)));
  put(kEngineKey, snapshot.engine);
  put(kModelKey, snapshot.model);
  put(kSourceKey, snapshot.format_version.empty()
                      ? snapshot.format
                      : fmt::format("{} ({})", snapshot.format, snapshot.format_version));
  put(kKeyRotationKey, snapshot.key_rotation == KeyRotation::kRotated     ? "rotated"
                       : snapshot.key_rotation == KeyRotation::kUnrotated ? "unrotated"
                                                                          : "");
  put(kKHadamardKey, hadamard(snapshot.k_hadamard));
  put(kVHadamardKey, hadamard(snapshot.v_hadamard));
  std::string groups;
  bool any = false;
  for (const LayerKv& layer : snapshot.layers) {
    groups += (&layer == &snapshot.layers.front() ? "" : ",") + layer.group;
    any |= !layer.group.empty();
  }
  if (any) put(kGroupsKey, groups);
  for (const auto& [key, value] : snapshot.storage)
    metadata[std::string(kStoragePrefix) + key] = value;
}

}  // namespace

uint64_t TensorToWrite::bytes() const {
  uint64_t count = 1;
  for (const uint64_t extent : shape) count = CheckedMul(count, extent, "tensor shape");
  return BytesOf(dtype, count);
}

TensorExport MakeExport(const Snapshot& snapshot) {
  RequireHeads(snapshot, "writing [token, head, dim] arrays");
  RequireLayerNumbers(snapshot);
  TensorExport out;
  for (const LayerKv& layer : snapshot.layers) {
    if (layer.has_k()) AddTensor(snapshot, layer.k, fmt::format("k_{}", layer.index), out);
    if (layer.v) AddTensor(snapshot, *layer.v, fmt::format("v_{}", layer.index), out);
  }
  ExportCells(snapshot, out);
  AddWords(snapshot, out.metadata);
  return out;
}

}  // namespace kv
