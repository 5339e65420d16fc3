// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Writes llama.cpp's sequence and session files from any snapshot: checks what the format can
// express, then cells and tensors in bounded memory.
#include <fmt/format.h>

#include <algorithm>

#include "formats/format.h"
#include "formats/llama_state/llama_state.h"
#include "lib/core/base/bytes.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/select.h"

namespace kv::llama_state {
namespace {

constexpr uint64_t kRowsStep = 8 << 20;      // bytes of cells to buffer before writing them
constexpr uint64_t kColumnsStep = 64 << 20;  // bytes per gather; large, as each walks the tensor

std::string_view GetStorage(const Snapshot& snapshot, const std::string& key) {
  const auto at = snapshot.storage.find(key);
  return at == snapshot.storage.end() ? std::string_view() : std::string_view(at->second);
}

// A cache to write: its cells, and the layers with rows for them.
struct CacheToWrite {
  CellGroup cells;
  std::vector<const LayerKv*> layers;
  bool v_transposed = false;

  bool has_v() const { return !layers.empty() && layers[0]->v.has_value(); }
};

Error Refused(std::string text) { return Error(Finding::kUnsupportedLayout, std::move(text)); }

void CheckTensor(const KvTensor& tensor, bool transposed) {
  if (!TypeNumber(tensor.dtype)) {
    throw Error(Finding::kUnsupportedDtype, "llama.cpp has no cache of {} values",
                Name(tensor.dtype))
        .Hint("--dtype f16, bf16 or f32 converts them");
  }
  if (tensor.channels() == 0 || tensor.channels() > kMaxRowElements)
    throw Error(Finding::kLimit, "rows of {} values", tensor.channels());
  if (transposed && IsBlockQuantised(tensor.dtype)) {
    throw Refused(fmt::format("V of {} blocks cannot be transposed", Name(tensor.dtype)))
        .Hint("--v-order rows, for an engine with flash attention");
  }
}

void CheckLayers(const CacheToWrite& cache) {
  for (const LayerKv* layer : cache.layers) {
    const auto part = [&](const KvTensor& tensor, char which, bool transposed) {
      try {
        if (tensor.tokens() != cache.cells.cells.size()) {
          throw Refused(
              fmt::format("{} rows for a cache of {} cells; in llama.cpp all layers of a cache "
                          "have the same number",
                          tensor.tokens(), cache.cells.cells.size()));
        }
        CheckTensor(tensor, transposed);
      } catch (Error& error) {
        throw error.In("layer {} {}", layer->index, which);
      }
    };
    part(layer->k, 'K', false);
    if (layer->v.has_value() != cache.has_v())
      throw Refused("some layers of a cache have V and others have none");
    if (layer->v) part(*layer->v, 'V', cache.v_transposed);
  }
}

// Returns true if cache `i` is transposed, by a list such as "rows,transposed" or one word for all.
bool IsTransposed(std::string_view order, size_t i) {
  const std::vector<std::string_view> words = Split(order, ',');
  const std::string_view word = words[std::min(i, words.size() - 1)];
  return word.substr(std::min(word.find_first_not_of(' '), word.size())) == "transposed";
}

std::vector<CacheToWrite> CollectCaches(const Snapshot& snapshot) {
  std::vector<CacheToWrite> caches;
  for (const CellGroup& group : snapshot.cell_groups) caches.push_back({group, {}, false});
  for (const LayerKv& layer : snapshot.layers) {
    auto at = std::find_if(caches.begin(), caches.end(), [&](const CacheToWrite& cache) {
      return cache.cells.group == layer.group;
    });
    if (at == caches.end()) {
      if (!layer.has_k()) throw Refused("has no K").In("layer {}", layer.index);
      caches.push_back({{.group = layer.group, .cells = {}}, {}, false});
      at = std::prev(caches.end());
      for (uint64_t i = 0; i < layer.k.tokens(); ++i)  // as after a prompt: 0, 1, 2 ...
        at->cells.cells.push_back({.position = static_cast<int64_t>(i), .sequences = {}});
    }
    at->layers.push_back(&layer);
  }
  if (caches.size() > kMaxCaches) throw Refused(fmt::format("{} caches", caches.size()));
  if (caches.empty()) throw Refused("there is nothing to write");
  size_t with_layers = 0;
  for (CacheToWrite& cache : caches) {
    if (!cache.layers.empty())
      cache.v_transposed = IsTransposed(GetStorage(snapshot, "v_order"), with_layers++);
    if (cache.layers.size() > kMaxLayers)
      throw Error(Finding::kLimit, "{} layers in a cache", cache.layers.size());
    if (cache.layers.empty() && !cache.cells.cells.empty())
      throw Refused(fmt::format("the {} cache has cells but no layers", cache.cells.group));
    CheckLayers(cache);
  }
  return caches;
}

// The third word of newer builds is the token id of the cell.
void FitExtension(const Snapshot& snapshot, uint32_t wanted, CellGroup& group) {
  const uint32_t has = group.extension_words;
  if (has == 0 && !GetStorage(snapshot, "extension_words").empty()) {
    throw Refused(
        "the cells of this model have positions in more than one dimension, which this source does "
        "not store")
        .Hint("decompress an archive and convert the restored state");
  }
  if (has == 0 || has == wanted) return;
  if (wanted == 0) {
    throw Refused("builds of that layout did not keep the further positions of this model's cells");
  }
  const size_t cells = group.cells.size();
  const bool adds_token = has < wanted;
  if (has + 1 != wanted && has != wanted + 1)
    throw Refused(fmt::format("{} words beside each cell, llama.cpp knows 2 or 3", has));
  if (adds_token && snapshot.tokens.size() != cells) {
    throw Refused(fmt::format(
        "this version keeps the token of each of the {} cells; the source has {} token ids", cells,
        snapshot.tokens.size()));
  }
  std::vector<int32_t> fitted;
  for (size_t i = 0; i < cells; ++i) {
    for (uint32_t w = 0; w < wanted; ++w)
      fitted.push_back(w < has ? group.extensions[i * has + w] : snapshot.tokens[i]);
  }
  group.extensions = std::move(fitted);
  group.extension_words = wanted;
}

// Checks that all cells belong to one sequence, and returns it; 0 if none is recorded.
void CheckOneSequence(const std::vector<CacheToWrite>& caches) {
  std::optional<SequenceIds> all;
  for (const CacheToWrite& cache : caches) {
    std::optional<uint32_t> stream;
    for (const Cell& cell : cache.cells.cells) {
      if (!all) all = cell.sequences;
      if (cell.sequences.size() > 1 || !(cell.sequences == all->ids())) {
        throw Refused("a SEQ file holds one sequence, the cells belong to several")
            .Hint("--sequence N chooses one; --to llama-session keeps all");
      }
      if (stream && *stream != cell.stream)
        throw Refused("the cells of one sequence lie in several streams");
      stream = cell.stream;
    }
  }
}

void CheckCells(const std::vector<CacheToWrite>& caches, const Target& target) {
  for (const CacheToWrite& cache : caches) {
    uint32_t stream = 0;
    if (cache.cells.streams > (target.has_streams ? kMaxStreams : 1)) {
      throw Refused(fmt::format("{} streams; {}", cache.cells.streams,
                                target.has_streams ? "llama.cpp has at most 256"
                                                   : "builds of that layout had only one stream"));
    }
    for (const Cell& cell : cache.cells.cells) {
      if (cell.position < 0 || cell.position > INT32_MAX)
        throw Refused(fmt::format("position {}", cell.position));
      if (cell.stream < stream || cell.stream >= cache.cells.streams)
        throw Refused("the cells are not in the order of their streams");
      if (cell.sequences.size() > kMaxSequencesPerCell)
        throw Refused(fmt::format("a cell of {} sequences", cell.sequences.size()));
      stream = cell.stream;
    }
    if (cache.cells.cells.size() > UINT32_MAX)
      throw Error(Finding::kLimit, "{} cells", cache.cells.cells.size());
    if (!target.has_streams && cache.layers.empty())
      throw Refused("an empty cache, but that layout must state its number of layers");
    if (!target.has_streams && !cache.has_v())
      throw Refused("a cache without V, which builds of that layout did not have");
  }
}

class Writer {
 public:
  Writer(const Snapshot& snapshot, const Target& target, Scope scope, Sink& sink)
      : snapshot_(snapshot), target_(target), scope_(scope), sink_(sink) {}

  void Head() {
    const bool session = scope_ == Scope::kContext;
    head_.U32(session ? kSessionMagic : kSequenceMagic);
    head_.U32(session ? target_.session_version : target_.sequence_version);
    WriteTokenList(snapshot_.tokens, GetStorage(snapshot_, "tokens") == "record", head_);
    if (!session) return;
    head_.U32(static_cast<uint32_t>(snapshot_.model.size()));
    head_.Append(snapshot_.model);
    if (target_.has_outputs) {  // the session has no output rows, logits and embeddings
      head_.U32(0);
      head_.U64(0);
      head_.U64(0);
    }
  }

  void Cache(const CacheToWrite& cache) {
    if (target_.has_streams) head_.U32(cache.cells.streams);
    uint64_t begin = 0;
    for (uint32_t stream = 0; stream < cache.cells.streams; ++stream) {
      uint64_t end = begin;
      while (end < cache.cells.cells.size() && cache.cells.cells[end].stream == stream) ++end;
      Stream(cache, begin, end - begin);
      begin = end;
    }
    Flush();
  }

 private:
  void Stream(const CacheToWrite& cache, uint64_t begin, uint64_t count) {
    head_.U32(static_cast<uint32_t>(count));
    if (count == 0 && target_.has_streams) return;
    for (uint64_t i = begin; i < begin + count; ++i) Cell(cache.cells, i);
    head_.U32(cache.v_transposed ? 1 : 0);
    head_.U32(static_cast<uint32_t>(cache.layers.size()));
    for (const LayerKv* layer : cache.layers) Rows(layer->k, begin, count);
    if (!cache.has_v()) return;
    for (const LayerKv* layer : cache.layers) {
      cache.v_transposed ? Columns(*layer->v, begin, count) : Rows(*layer->v, begin, count);
    }
  }

  void Cell(const CellGroup& group, uint64_t i) {
    const kv::Cell& cell = group.cells[i];
    const bool with_id = scope_ == Scope::kContext || target_.has_sequence_id;
    SequenceIds ids = with_id ? cell.sequences : SequenceIds();
    if (with_id && ids.empty()) ids.push_back(0);
    head_.I32(static_cast<int32_t>(cell.position));
    head_.U32(static_cast<uint32_t>(ids.size()));
    for (uint32_t w = 0; w < group.extension_words; ++w)
      head_.I32(group.extensions[i * group.extension_words + w]);
    for (const int32_t id : ids) head_.I32(id);
    if (head_.size() >= kRowsStep) Flush();
  }

  void Rows(const KvTensor& tensor, uint64_t begin, uint64_t count) {
    head_.I32(*TypeNumber(tensor.dtype));
    head_.U64(tensor.row_bytes());
    Flush();
    WriteRows(snapshot_, tensor, begin, count, sink_);
  }

  // Writes element after element, each for all cells. Gathers as many at a time as fit a step.
  void Columns(const KvTensor& tensor, uint64_t begin, uint64_t count) {
    head_.I32(*TypeNumber(tensor.dtype));
    head_.U32(tensor.unit_bytes());
    head_.U32(static_cast<uint32_t>(tensor.channels()));
    Flush();
    const KvTensor part = SliceTokens(tensor, begin, count);
    const uint64_t column = std::max<uint64_t>(1, count * tensor.unit_bytes());
    const auto step =
        static_cast<uint32_t>(std::clamp<uint64_t>(kColumnsStep / column, 1, tensor.channels()));
    for (uint32_t h = 0; h < tensor.heads; ++h) {
      for (uint32_t d = 0, next; d < tensor.head_dim; d = next) {
        next = std::min(d + step, tensor.head_dim);
        sink_.Write(Gather(SliceDims(part, h, d, next), 0, count, Order::kHeadDimToken));
      }
    }
    DropTensor(snapshot_, tensor);
  }

  // Returns dims [begin, end) of one head as a tensor; `end` shrinks to what strides can express.
  static KvTensor SliceDims(const KvTensor& tensor, uint32_t head, uint32_t begin, uint32_t& end) {
    for (const StridedPiece& piece : tensor.pieces) {
      const uint64_t group = piece.dim.group;
      if (group != UINT64_MAX)
        end = static_cast<uint32_t>(std::min<uint64_t>(end, (begin / group + 1) * group));
    }
    KvTensor slice = tensor;
    slice.heads = 1;
    slice.head_dim = end - begin;
    for (StridedPiece& piece : slice.pieces) {
      piece.data += piece.head.Offset(head) + piece.dim.Offset(begin);
      piece.head = {};
      piece.dim = {piece.dim.step};
    }
    return slice;
  }

  void Flush() {
    sink_.Write(head_.bytes());
    head_ = ByteWriter();
  }

  const Snapshot& snapshot_;
  const Target& target_;
  Scope scope_;
  Sink& sink_;
  ByteWriter head_;  // bytes between tensors
};

void Write(const Snapshot& snapshot, const std::string& path, const OutputRules& rules,
           Scope scope) {
  const Target target = FindTarget(GetStorage(snapshot, "version"));
  RequireRotatedKeys(snapshot, "a state of llama.cpp");
  if (snapshot.tokens.size() > UINT32_MAX / 2)
    throw Error(Finding::kLimit, "{} token ids", snapshot.tokens.size());
  std::vector<CacheToWrite> caches = CollectCaches(snapshot);
  for (CacheToWrite& cache : caches) FitExtension(snapshot, target.extension_words, cache.cells);
  CheckCells(caches, target);
  if (scope == Scope::kSequence) {
    CheckOneSequence(caches);
  } else if (snapshot.model.empty() || snapshot.model.size() > kMaxArchitecture) {
    throw Error(Finding::kGeometryMissing, "a SESSION must name the model's architecture")
        .Hint("give --model MODEL");
  }
  snapshot.CheckContent();
  AtomicFile file(path, rules);
  Writer writer(snapshot, target, scope, file);
  writer.Head();
  for (const CacheToWrite& cache : caches) writer.Cache(cache);
  file.Commit();
}

}  // namespace

void WriteSequence(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  Write(snapshot, path, rules, Scope::kSequence);
}

void WriteSession(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  Write(snapshot, path, rules, Scope::kContext);
}

std::vector<std::string> NotKept(const Snapshot& snapshot) {
  std::vector<std::string> lost;
  if (snapshot.cell_groups.empty())
    lost.emplace_back("positions: the source has none, rows are numbered from 0");
  AddLayerNumbers(snapshot, lost);
  if (GetStorage(snapshot, "tokens") == "record with media")
    lost.emplace_back("the images or audio of the server's token record");
  if (!GetStorage(snapshot, "recurrent").empty())
    lost.emplace_back("the state of recurrent layers, without which no engine restores the file");
  if (!GetStorage(snapshot, "outputs").empty())
    lost.emplace_back("logits and embeddings of the last step, which older sessions hold");
  for (const auto& [is_value, state] :
       {std::pair{false, snapshot.k_hadamard}, {true, snapshot.v_hadamard}}) {
    const bool plain = std::any_of(snapshot.layers.begin(), snapshot.layers.end(),
                                   [value = is_value](const LayerKv& layer) {
                                     if (value && !layer.v) return false;
                                     const KvTensor& tensor = value ? *layer.v : layer.k;
                                     return IsBlockQuantised(tensor.dtype) && tensor.heads_known &&
                                            HadamardSize(value, tensor.head_dim) != 0;
                                   });
    if (plain && state == HadamardState::kNo) {
      lost.push_back(
          fmt::format("{} is quantised without Hadamard rotation: builds since 2026-04 read it "
                      "correctly only with LLAMA_ATTN_ROT_DISABLE=1",
                      is_value ? 'V' : 'K'));
    }
  }
  return lost;
}

}  // namespace kv::llama_state
