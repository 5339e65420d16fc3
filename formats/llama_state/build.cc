// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/llama_state/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "lib/core/snapshot/hadamard.h"
#include "lib/core/snapshot/layout.h"

namespace kv::llama_state {
namespace {

// Caches carry no name; their order and which of them have V tell what they are.
std::string_view GroupName(const Reading& reading, size_t i) {
  const std::vector<Cache>& caches = reading.caches;
  if (caches.size() == 1) return "";
  if (caches.size() == 2) return i == 0 ? "full" : caches[1].has_v ? "swa" : "index";
  return i == 0 ? "full" : i == 1 ? "index" : "swa";
}

CellGroup ReadCells(const FileSource& file, const Cache& cache, const Layout& layout, Scope scope,
                    std::string_view name) {
  CellGroup group{.group = std::string(name),
                  .streams = static_cast<uint32_t>(cache.streams.size()),
                  .cells = {}};
  uint64_t total = 0;
  for (const Stream& stream : cache.streams) total += stream.cells;
  group.cells.reserve(total);
  group.extension_words = layout.extension / sizeof(int32_t);
  group.extensions.reserve(total * group.extension_words);
  std::vector<int32_t> ids;
  for (uint32_t s = 0; s < cache.streams.size(); ++s) {
    const Stream& stream = cache.streams[s];
    ByteReader in(file.bytes().subspan(stream.cells_offset), stream.cells_offset);
    for (uint32_t i = 0; i < stream.cells; ++i) {
      const CellRecord record = ReadCell(in, layout, scope);
      Cell& cell = group.cells.emplace_back();
      cell.position = record.position;
      cell.stream = s;
      ids.resize(record.ids.size() / 4);
      if (!ids.empty()) std::memcpy(ids.data(), record.ids.data(), record.ids.size());
      cell.sequences = SequenceIds(ids);
      for (uint32_t w = 0; w < group.extension_words; ++w)
        group.extensions.push_back(LoadLE<int32_t>(record.extension.data() + 4 * w));
    }
    // Read for good: of a small model with many tokens the records are much of the file.
    file.Drop(stream.cells_offset, in.offset() - stream.cells_offset);
  }
  return group;
}

// One piece per stream with cells. The row is one head until somebody says how it divides.
KvTensor Rows(const FileSource& file, const Cache& cache, const RowShape& shape, uint32_t layer,
              bool is_value) {
  const Order order = is_value && cache.v_transposed ? Order::kHeadDimToken : Order::kTokenHeadDim;
  KvTensor tensor{.dtype = shape.dtype,
                  .heads = 1,
                  .head_dim = shape.channels,
                  .heads_known = false,
                  .pieces = {}};
  for (const Stream& stream : cache.streams) {
    if (stream.cells == 0) continue;
    const uint64_t offset = (is_value ? stream.v_offsets : stream.k_offsets)[layer];
    const KvTensor piece = ContiguousTensor(file.bytes().data() + offset, shape.dtype, stream.cells,
                                            1, shape.channels, order);
    tensor.pieces.push_back(piece.pieces[0]);
  }
  return tensor;
}

// "rows", "transposed" or "none", per cache where they differ.
std::string ValueStorage(const Reading& reading) {
  std::vector<std::string> words;
  for (const Cache& cache : reading.caches) {
    if (cache.k.empty()) continue;
    words.push_back(!cache.has_v ? "none" : cache.v_transposed ? "transposed" : "rows");
  }
  if (std::adjacent_find(words.begin(), words.end(), std::not_equal_to<>()) == words.end())
    words.resize(std::min<size_t>(words.size(), 1));
  return fmt::format("{}", fmt::join(words, ", "));
}

void AddFactsAndNotes(const Reading& reading, Snapshot& snapshot) {
  if (!snapshot.layers.empty()) {
    const std::string order = ValueStorage(reading);
    if (order.find("transposed") != std::string::npos) snapshot.storage["v_order"] = order;
    snapshot.facts.emplace_back("v storage", order);
  }
  if (reading.layout->extension != 0) {
    snapshot.facts.emplace_back("extension",
                                fmt::format("{} bytes per cell", reading.layout->extension));
    snapshot.storage["extension_words"] = std::to_string(reading.layout->extension / 4);
  }
  if (const auto& state = reading.recurrent) {
    const std::string what =
        fmt::format("{} of {} layers, {} cell{}, {} bytes at {:#x}", state->states, state->layers,
                    state->cells, state->cells == 1 ? "" : "s", state->bytes, state->offset);
    snapshot.facts.emplace_back("recurrent", what + ": kept as it is, not read");
    snapshot.storage["recurrent"] = what;
    snapshot.notes.push_back(
        {"a hybrid model: the state of its recurrent layers is not K and V; archives keep it byte "
         "for byte, other outputs do not",
         false});
  }
  if (snapshot.layers.empty()) snapshot.notes.push_back({"the cache is empty", true});
  const bool none_has_v = std::none_of(snapshot.layers.begin(), snapshot.layers.end(),
                                       [](const LayerKv& layer) { return layer.v.has_value(); });
  if (none_has_v && !snapshot.layers.empty()) {
    snapshot.notes.push_back(
        {"no layer has V: a latent-attention (MLA) model, or a file cut off just before its V",
         true});
  }
}

// What decides the rotation of K or of V, over all layers.
struct Side {
  bool is_quantised = false, heads_known = true, can_transform = false;
};

Side Summarise(const Snapshot& snapshot, bool is_value) {
  Side side;
  for (const LayerKv& layer : snapshot.layers) {
    if (is_value && !layer.v) continue;
    const KvTensor& tensor = is_value ? *layer.v : layer.k;
    if (!IsBlockQuantised(tensor.dtype)) continue;
    side.is_quantised = true;
    side.heads_known &= tensor.heads_known;
    side.can_transform |= HadamardSize(is_value, tensor.head_dim) != 0;
  }
  return side;
}

}  // namespace

Snapshot Build(Source source, const Reading& reading, Scope scope) {
  Snapshot snapshot;
  const FileSource& file = *source.files[0].data;
  snapshot.source = std::move(source);
  snapshot.key_rotation = KeyRotation::kRotated;
  for (size_t i = 0; i < reading.caches.size(); ++i) {
    const Cache& cache = reading.caches[i];
    const std::string_view name = GroupName(reading, i);
    snapshot.cell_groups.push_back(ReadCells(file, cache, *reading.layout, scope, name));
    for (uint32_t layer = 0; layer < cache.k.size(); ++layer) {
      LayerKv& kv = snapshot.layers.emplace_back();
      kv.index = static_cast<uint32_t>(snapshot.layers.size() - 1);
      kv.group = name;
      kv.k = Rows(file, cache, cache.k[layer], layer, false);
      if (cache.has_v) kv.v = Rows(file, cache, cache.v[layer], layer, true);
    }
  }
  AddFactsAndNotes(reading, snapshot);
  return snapshot;
}

void SettleHadamard(Snapshot& snapshot, const Layout& layout, const std::string& rotated) {
  if (rotated != "auto" && rotated != "yes" && rotated != "no") {
    throw Error(Finding::kUsage, fmt::format("--rotated {}: expected auto, yes or no", rotated));
  }
  // Rotation came to llama.cpp in 2026-04, between builds b8352 and b9842, both of layout D.
  const bool is_older = !layout.has_streams || layout.has_outputs;
  const bool is_newer = layout.letters == "E";
  bool is_open = false, is_assumed = false;
  const auto settle = [&](bool is_value) {
    const Side side = Summarise(snapshot, is_value);
    if (!side.is_quantised || rotated == "no") return HadamardState::kNo;
    if (rotated == "yes" && side.can_transform) return HadamardState::kYes;
    if (!side.can_transform || is_older) return HadamardState::kNo;
    if (!side.heads_known || !is_newer) {
      is_open = true;
      return HadamardState::kUnknown;
    }
    is_assumed = true;
    return HadamardState::kYes;
  };
  snapshot.k_hadamard = settle(false);
  snapshot.v_hadamard = settle(true);
  if (rotated == "yes" && snapshot.k_hadamard == HadamardState::kNo &&
      snapshot.v_hadamard == HadamardState::kNo) {
    throw Error(Finding::kUsage,
                "--rotated yes: neither K nor V is quantised with a head size that is a multiple "
                "of 64");
  }
  if (is_open) {
    snapshot.notes.push_back(
        {"the file does not say whether its quantised values are Hadamard-rotated: --rotated yes "
         "or no decides",
         false});
  }
  if (is_assumed) {
    snapshot.notes.push_back(
        {"quantised values are assumed to be Hadamard-rotated, as this version writes them unless "
         "LLAMA_ATTN_ROT_DISABLE=1; if that was set, give --rotated no",
         false});
  }
}

}  // namespace kv::llama_state
