// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads both caches of a prompt, full run and chunks, in one layout, and rotates old keys to the
// prompt's positions when they are read.
#include "lib/engines/cacheblend/cache_pair.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/core/base/number.h"
#include "lib/core/base/utf8.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/cast.h"
#include "lib/core/snapshot/layout.h"

namespace kv::blend {
namespace {

KvRows::Layer ToShape(const LayerKv& layer) {
  return {layer.index, layer.k.heads, layer.k.head_dim, layer.v->head_dim};
}

void RequireBoth(const LayerKv& layer) {
  if (!layer.has_k()) throw Error(Finding::kUnsupportedKind, "no K: a replay needs K and V");
  if (!layer.v || layer.v->pieces.empty()) {
    throw Error(Finding::kUnsupportedKind,
                "no V: a replay needs K and V (latent caches have one vector for both)");
  }
  if (layer.v->heads != layer.k.heads) {
    throw Error(Finding::kInconsistent, "{} heads of K, {} of V", layer.k.heads, layer.v->heads);
  }
}

std::vector<KvRows::Layer> ListShapes(const Snapshot& snapshot) {
  std::vector<KvRows::Layer> shapes;
  for (const LayerKv& layer : snapshot.layers) shapes.push_back(ToShape(layer));
  return shapes;
}

// Throws, naming both parts, unless they have the same layers, heads and dims.
void RequireSameShapes(const std::vector<KvRows::Layer>& first, const std::string& first_path,
                       const Snapshot& other) {
  const std::vector<KvRows::Layer> shapes = ListShapes(other);
  if (shapes.size() != first.size()) {
    throw std::move(Error(Finding::kInconsistent, "{} layers, {} has {}", shapes.size(), first_path,
                          first.size())
                        .File(other.source.path));
  }
  for (size_t i = 0; i < shapes.size(); ++i) {
    if (shapes[i] == first[i]) continue;
    throw std::move(
        Error(Finding::kInconsistent,
              "layer {} has {} kv heads x {} (V {}), {} has layer {} with {} x {} (V {})",
              shapes[i].index, shapes[i].heads, shapes[i].k_dim, shapes[i].v_dim, first_path,
              first[i].index, first[i].heads, first[i].k_dim, first[i].v_dim)
            .File(other.source.path));
  }
}

// Returns rows [first, first + count) in place, if they are consecutive with all heads in order.
// Most caches store tokens in this way and need no copy. Otherwise returns null.
const std::byte* RowsInPlace(const KvTensor& tensor, uint64_t first, uint64_t count) {
  const uint64_t unit = tensor.unit_bytes(), head = tensor.units_per_head() * unit;
  for (const StridedPiece& piece : tensor.pieces) {
    if (first >= piece.tokens) {
      first -= piece.tokens;
      continue;
    }
    const bool plain = piece.token == AxisStride{tensor.row_bytes()} &&
                       (tensor.heads == 1 || piece.head == AxisStride{head}) &&
                       piece.dim == AxisStride{unit};
    return plain && first + count <= piece.tokens ? piece.data + first * tensor.row_bytes()
                                                  : nullptr;
  }
  return nullptr;
}

// Returns the positions that the file records, or nothing. Throws unless they rise by one: gaps and
// several sequences have no place in a prompt.
std::optional<std::vector<int64_t>> RecordedPositions(const Snapshot& snapshot, uint64_t rows) {
  if (snapshot.cell_groups.empty() || snapshot.cell_groups.front().cells.size() != rows) {
    return std::nullopt;
  }
  std::vector<int64_t> positions;
  for (const Cell& cell : snapshot.cell_groups.front().cells) {
    if (cell.position < 0 || cell.position > INT32_MAX) {
      throw std::move(Error(Finding::kBadField, "row {} is position {}, expected 0 to 2^31",
                            positions.size(), cell.position)
                          .File(snapshot.source.path));
    }
    if (!positions.empty() && cell.position != positions.back() + 1) {
      throw std::move(
          Error(Finding::kUnsupportedKind,
                "row {} is position {}, the row before it {}: expected one sequence without holes",
                positions.size(), cell.position, positions.back())
              .File(snapshot.source.path)
              .Hint("save one sequence, or cut the rows out with kvtool convert --tokens"));
    }
    positions.push_back(cell.position);
  }
  return positions;
}

KeyState ResolveKeyState(const KeyStateFlag& flag, const Snapshot& snapshot, bool is_chunk_file) {
  if (flag.state) return *flag.state;
  if (snapshot.key_rotation == KeyRotation::kUnrotated) return KeyState::kUnrotated;
  if (is_chunk_file) return KeyState::kLocal;
  throw std::move(Error(Finding::kUsage,
                        "the file does not say how its keys are rotated: --chunks-rope unrotated, "
                        "local, global or at:POSITIONS")
                      .File(snapshot.source.path)
                      .Hint("CacheBlend's old_kvs is unrotated"));
}

void RequireOffsets(const KeyStateFlag& flag, KeyState state, size_t chunks) {
  if (state != KeyState::kAt || flag.at.size() == chunks) return;
  throw Error(Finding::kUsage, "--chunks-rope at: {} positions for {} chunks", flag.at.size(),
              chunks);
}

void AppendRun(int64_t first, uint64_t count, std::vector<int64_t>& positions) {
  for (uint64_t i = 0; i < count; ++i) positions.push_back(first + static_cast<int64_t>(i));
}

// Appends the positions of the keys of chunk `index`; `own` is the position of its first kept token
// in its own run.
void AppendPositions(KeyState state, const KeyStateFlag& flag, size_t index, const Chunk& chunk,
                     int64_t own, std::vector<int64_t>& positions) {
  if (state == KeyState::kUnrotated) return;
  const int64_t first = state == KeyState::kLocal    ? own
                        : state == KeyState::kGlobal ? static_cast<int64_t>(chunk.start)
                                                     : flag.at[index];
  AppendRun(first, chunk.tokens, positions);
}

// Throws if a file records token ids other than the prompt's.
void RequireSameTokens(const Snapshot& full, const KvRows::Part& part, uint64_t start) {
  const std::vector<int32_t>& ids = part.snapshot->tokens;
  if (ids.size() != CountRows(*part.snapshot) || full.tokens.size() < start + part.rows) return;
  for (uint64_t i = 0; i < part.rows; ++i) {
    const int32_t ours = ids[part.first_row + i], prompts = full.tokens[start + i];
    if (ours == prompts) continue;
    throw std::move(
        Error(Finding::kInconsistent,
              "token {} has id {}, the full run has {} at position {}: not the same text",
              part.first_row + i, ours, prompts, start + i)
            .File(part.snapshot->source.path)
            .Hint("a chunk may be in another order, or a text tokenized again"));
  }
}

// Returns the rotation of each old key to its place in the prompt. The run of a chunk was as long
// as its last position says; keys at the prompt's positions come from a run over the prompt.
std::vector<KeyShift> PlanShifts(const OldCache& old, uint64_t prompt) {
  std::vector<KeyShift> shifts(old.rows.tokens());
  for (size_t t = 0; t < shifts.size(); ++t) {
    const bool first = old.positions.empty();
    shifts[t] = {first ? 0 : old.positions[t], static_cast<int64_t>(t), prompt, prompt, first};
  }
  if (old.positions.empty() || old.state == KeyState::kGlobal) return shifts;
  for (const Chunk& chunk : old.chunks) {
    const uint64_t end = std::min<uint64_t>(chunk.start + chunk.tokens, shifts.size());
    if (chunk.start >= end) continue;
    const uint64_t length = static_cast<uint64_t>(std::max<int64_t>(old.positions[end - 1], 0)) + 1;
    for (uint64_t t = chunk.start; t < end; ++t) shifts[t].from_length = length;
  }
  return shifts;
}

// Returns true if keys must be rotated: because of their positions, or because the rotation depends
// on the length of the run.
bool Any(const std::vector<KeyShift>& shifts, bool by_length) {
  return std::any_of(shifts.begin(), shifts.end(), [&](const KeyShift& shift) {
    return shift.from != shift.to || (by_length && shift.from_length != shift.to_length);
  });
}

void RequireUniformHeads(const std::vector<KvRows::Layer>& layers) {
  for (const KvRows::Layer& layer : layers) {
    if (layer.k_dim == layers.front().k_dim) continue;
    throw Error(Finding::kUnsupportedLayout,
                "layer {} has {} values per key, but layer {} has {}: one RoPE does not fit both",
                layer.index, layer.k_dim, layers.front().index, layers.front().k_dim);
  }
}

}  // namespace

uint64_t CountRows(const Snapshot& snapshot) {
  try {
    if (snapshot.layers.empty()) {
      throw Error(Finding::kUnsupportedKind, "the snapshot has no attention layers");
    }
    const uint64_t rows = snapshot.layers.front().k.tokens();
    for (const LayerKv& layer : snapshot.layers) {
      try {
        RequireBoth(layer);
        if (layer.k.tokens() != rows || layer.v->tokens() != rows) {
          throw Error(
              Finding::kUnsupportedLayout,
              "{} tokens of K and {} of V, layer {} has {}: a replay needs every layer whole",
              layer.k.tokens(), layer.v->tokens(), snapshot.layers.front().index, rows);
        }
      } catch (Error& error) {
        throw error.In(fmt::format("layer {}", layer.index));
      }
    }
    return rows;
  } catch (Error& error) {
    throw error.File(snapshot.source.path);
  }
}

KvRows::KvRows(std::vector<Part> parts) : parts_(std::move(parts)) {
  KV_ASSERT(!parts_.empty());
  for (const Part& part : parts_) {
    KV_ASSERT(part.first_row + part.rows <= CountRows(*part.snapshot));
    tokens_ += part.rows;
  }
  const Snapshot& first = *parts_.front().snapshot;
  layers_ = ListShapes(first);
  for (const Part& part : parts_) RequireSameShapes(layers_, first.source.path, *part.snapshot);
}

uint64_t KvRows::bytes() const {
  uint64_t bytes = 0;
  for (const Part& part : parts_) {
    for (const LayerKv& layer : part.snapshot->layers) {
      bytes += part.rows * (layer.k.row_bytes() + layer.v->row_bytes());
    }
  }
  return bytes;
}

void KvRows::ReadHeads(size_t layer, bool is_value, uint32_t head, uint32_t heads, uint64_t begin,
                       uint64_t count, float* out) const {
  uint64_t part_begin = 0;
  Bytes raw;
  for (const Part& part : parts_) {
    const uint64_t from = std::max(begin, part_begin);
    const uint64_t to = std::min(begin + count, part_begin + part.rows);
    if (from < to) {
      const LayerKv& kv = part.snapshot->layers[layer];
      const KvTensor& tensor = is_value ? *kv.v : kv.k;
      const uint64_t values = (to - from) * heads * tensor.head_dim;
      const uint64_t row = part.first_row + from - part_begin;
      const uint64_t bytes = (to - from) * heads * tensor.units_per_head() * tensor.unit_bytes();
      const std::span<float> floats(out + (from - begin) * heads * tensor.head_dim, values);
      const std::byte* in_place =
          heads == tensor.heads ? RowsInPlace(tensor, row, to - from) : nullptr;
      if (in_place == nullptr) {
        raw.resize(bytes);
        Gather(tensor, row, to - from, head, heads, Order::kTokenHeadDim, raw);
      }
      ToFloats(tensor.dtype, {in_place != nullptr ? in_place : raw.data(), bytes}, floats);
      UndoHadamard(*part.snapshot, tensor, is_value, floats);
    }
    part_begin += part.rows;
  }
}

void KvRows::Read(size_t layer, bool is_value, uint64_t begin, uint64_t count, float* out) const {
  ReadHeads(layer, is_value, 0, layers_[layer].heads, begin, count, out);
}

void KvRows::ReadHead(size_t layer, bool is_value, uint32_t head, uint64_t begin, uint64_t count,
                      float* out) const {
  ReadHeads(layer, is_value, head, 1, begin, count, out);
}

void KvRows::Drop(size_t layer) const {
  for (const Part& part : parts_) {
    DropTensor(*part.snapshot, part.snapshot->layers[layer].k);
    DropTensor(*part.snapshot, *part.snapshot->layers[layer].v);
  }
}

std::string_view Name(KeyState state) {
  switch (state) {
    case KeyState::kUnrotated:
      return "unrotated";
    case KeyState::kLocal:
      return "rotated-local";
    case KeyState::kGlobal:
      return "rotated-global";
    case KeyState::kAt:
      return "rotated-at";
  }
  return "?";
}

KeyStateFlag ParseKeyState(std::string_view text, std::string_view flag) {
  if (text == "auto") return {};
  if (text == "unrotated") return {KeyState::kUnrotated, {}};
  if (text == "local") return {KeyState::kLocal, {}};
  if (text == "global" || text == "rotated") return {KeyState::kGlobal, {}};
  const auto bad = [&] {
    return Error(Finding::kUsage, "{} '{}': expected auto, unrotated, local, global or at:0,4,22",
                 flag, text);
  };
  if (text.substr(0, 3) != "at:") throw bad();
  KeyStateFlag at{KeyState::kAt, {}};
  for (const std::string_view position : Split(text.substr(3), ',')) {
    const auto value = ParseNumber<int64_t>(position);
    if (!value || *value > INT32_MAX || *value < -INT32_MAX) throw bad();
    at.at.push_back(*value);
  }
  return at;
}

BosRule ParseBosRule(std::string_view text) {
  if (text == "none") return BosRule::kNone;
  if (text == "drop") return BosRule::kDrop;
  if (text == "dropped") return BosRule::kDropped;
  throw Error(Finding::kUsage, "--bos '{}': expected none, drop or dropped", text);
}

OldCache JoinChunks(const std::vector<std::shared_ptr<const Snapshot>>& parts, BosRule bos,
                    const KeyStateFlag& flag) {
  KV_ASSERT(!parts.empty());
  OldCache old;
  std::vector<KvRows::Part> rows;
  uint64_t start = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Snapshot& snapshot = *parts[i];
    const uint64_t all = CountRows(snapshot);
    const uint64_t dropped = bos == BosRule::kDrop && i > 0 ? 1 : 0;
    if (all <= dropped) {
      throw std::move(
          Error(Finding::kInconsistent, "a chunk without tokens").File(snapshot.source.path));
    }
    rows.push_back({parts[i], dropped, all - dropped});
    old.chunks.push_back({snapshot.source.path, start, all - dropped});
    start += all - dropped;
    const KeyState state = ResolveKeyState(flag, snapshot, true);
    if (i > 0 && state != old.state) {
      throw std::move(Error(Finding::kInconsistent, "keys are {}, but those of {} are {}",
                            Name(state), parts[0]->source.path, Name(old.state))
                          .File(snapshot.source.path)
                          .Hint("--chunks-rope states how the keys of all chunks are rotated"));
    }
    old.state = state;
    RequireOffsets(flag, state, parts.size());
    int64_t own = static_cast<int64_t>(dropped) + (bos == BosRule::kDropped && i > 0 ? 1 : 0);
    if (const auto recorded = RecordedPositions(snapshot, all); recorded)
      own = (*recorded)[dropped];
    AppendPositions(state, flag, i, old.chunks.back(), own, old.positions);
  }
  old.rows = KvRows(std::move(rows));
  return old;
}

OldCache SplitOld(std::shared_ptr<const Snapshot> snapshot, const std::vector<uint64_t>& lengths,
                  BosRule bos, const KeyStateFlag& flag) {
  if (bos == BosRule::kDrop) {
    throw Error(Finding::kUsage,
                "--bos drop is for --chunks; rows of --chunks-joined are the prompt's")
        .Hint("--bos dropped, if the chunks were run with one");
  }
  const uint64_t tokens = CountRows(*snapshot);
  std::vector<uint64_t> chunks = lengths;
  if (chunks.empty()) chunks.push_back(tokens);
  uint64_t sum = 0;
  for (const uint64_t length : chunks) sum = length > tokens - sum ? tokens + 1 : sum + length;
  if (sum != tokens || std::count(chunks.begin(), chunks.end(), uint64_t{0}) != 0) {
    throw std::move(
        Error(Finding::kUsage,
              "--chunk-tokens {}: expected lengths that add up to the {} tokens of the file",
              fmt::join(chunks, ","), tokens)
            .File(snapshot->source.path));
  }
  OldCache old;
  old.state = ResolveKeyState(flag, *snapshot, false);
  if (old.state == KeyState::kLocal && lengths.empty()) {
    throw Error(Finding::kUsage, "--chunks-rope local: --chunk-tokens says where chunks begin");
  }
  RequireOffsets(flag, old.state, chunks.size());
  uint64_t start = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    old.chunks.push_back({snapshot->source.path, start, chunks[i]});
    AppendPositions(old.state, flag, i, old.chunks.back(),
                    bos == BosRule::kDropped && i > 0 ? 1 : 0, old.positions);
    start += chunks[i];
  }
  old.rows = KvRows({{std::move(snapshot), 0, tokens}});
  return old;
}

FullCache WholePrompt(std::shared_ptr<const Snapshot> full, const KeyStateFlag& flag) {
  const uint64_t tokens = CountRows(*full);
  if (flag.state && *flag.state != KeyState::kUnrotated && *flag.state != KeyState::kGlobal) {
    throw Error(Finding::kUsage, "--full-rope: expected auto, rotated or unrotated");
  }
  if (const auto recorded = RecordedPositions(*full, tokens); recorded && recorded->front() != 0) {
    throw std::move(Error(Finding::kUnsupportedKind,
                          "the first row is position {}, expected the prompt from 0 on",
                          recorded->front())
                        .File(full->source.path));
  }
  FullCache cache;
  cache.unrotated = flag.state ? *flag.state == KeyState::kUnrotated
                               : full->key_rotation == KeyRotation::kUnrotated;
  cache.rows = KvRows({{std::move(full), 0, tokens}});
  return cache;
}

void RequireSamePrompt(const FullCache& full, const OldCache& old, std::optional<uint64_t> suffix) {
  const Snapshot& whole = *full.rows.parts().front().snapshot;
  const std::string& path = whole.source.path;
  // The constructor of KvRows compares shapes of its parts, so both caches are passed to it.
  KvRows({{full.rows.parts().front().snapshot, 0, full.rows.tokens()},
          {old.rows.parts().front().snapshot, 0, 0}});
  const uint64_t have = old.rows.tokens(), want = full.rows.tokens();
  if (have != want && !(suffix && have + *suffix == want)) {
    Error error(Finding::kInconsistent, "the chunks have {} tokens, the full run {} in every layer",
                have, want);
    if (have == want + old.chunks.size() - 1 && old.chunks.size() > 1) {
      error.Hint(
          "one more for each chunk after the first: --bos drop leaves their first token out");
    } else if (have < want) {
      error.Hint(
          fmt::format("--suffix-tokens {} if the last {} tokens are the question, computed anew; "
                      "texts tokenized again may merge tokens where chunks meet",
                      want - have, want - have));
    } else {
      error.Hint("texts tokenized again may merge tokens where chunks meet");
    }
    throw std::move(error.File(path));
  }
  for (size_t i = 0; i < old.rows.parts().size(); ++i) {
    const bool joined = old.rows.parts().size() == old.chunks.size();
    RequireSameTokens(whole, old.rows.parts()[i], joined ? old.chunks[i].start : 0);
  }
}

CachePair::CachePair(FullCache full, OldCache old, std::optional<ModelRope> rope)
    : full_(std::move(full)), old_(std::move(old)), rope_(std::move(rope)) {
  const std::vector<KeyShift> old_shifts = PlanShifts(old_, tokens());
  const bool by_length =
      rope_ && (rope_->rope.scaling.by_length() ||
                std::any_of(rope_->layers.begin(), rope_->layers.end(),
                            [](const Rope& rope) { return rope.scaling.by_length(); }));
  const bool rotate_old = Any(old_shifts, by_length);
  if (!rotate_old && !full_.unrotated) return;
  if (!rope_) {
    throw Error(Finding::kUsage,
                "keys of the {} must be rotated to the prompt's positions: give --rope-base and "
                "--rope-style",
                rotate_old ? "chunks" : "full run")
        .Hint(
            "--model reads them from a GGUF or a config.json; --rope-freqs FILE supplies the "
            "frequencies");
  }
  RequireUniformHeads(layers());
  if (rotate_old) old_tables_ = MakeTables(old_shifts);
  if (!full_.unrotated) return;
  std::vector<KeyShift> shifts(tokens());
  for (size_t t = 0; t < shifts.size(); ++t)
    shifts[t] = {0, static_cast<int64_t>(t), tokens(), tokens(), /*is_first=*/true};
  full_tables_ = MakeTables(shifts);
}

CachePair::RopeTables CachePair::MakeTables(std::span<const KeyShift> shifts) const {
  RopeTables made;
  std::vector<const Rope*> known;
  const std::vector<LayerKv>& stored = full_.rows.parts().front().snapshot->layers;
  for (size_t i = 0; i < layers().size(); ++i) {
    const KvRows::Layer& layer = layers()[i];
    const Rope& rope = rope_->Of(ModelNumber(stored[i]));
    size_t at = 0;
    while (at < known.size() && !(*known[at] == rope)) ++at;
    made.of_layer.push_back(at);
    if (at < known.size()) continue;
    RequireFit(rope, layer.k_dim);
    known.push_back(&rope);
    made.tables.emplace_back(rope, layer.k_dim, shifts);
  }
  return made;
}

std::optional<size_t> CachePair::Place(uint32_t layer) const {
  for (size_t i = 0; i < layers().size(); ++i) {
    if (layers()[i].index == layer) return i;
  }
  return std::nullopt;
}

DType CachePair::dtype() const {
  return full_.rows.parts().front().snapshot->layers.front().v->dtype;
}

uint64_t CachePair::bytes() const { return full_.rows.bytes() + old_.rows.bytes(); }

void CachePair::ReadFull(size_t layer, bool is_value, uint64_t begin, uint64_t count,
                         float* out) const {
  full_.rows.Read(layer, is_value, begin, count, out);
  if (is_value || !full_tables_) return;
  const KvRows::Layer& shape = layers()[layer];
  for (uint64_t t = 0; t < count; ++t) {
    full_tables_.Of(layer).Rotate(begin + t, shape.heads, out + t * shape.channels(false));
  }
}

void CachePair::RotateAgain(size_t layer, uint64_t begin, uint64_t count, float* keys) const {
  if (!old_tables_) return;
  const KvRows::Layer& shape = layers()[layer];
  for (uint64_t t = 0; t < count && begin + t < covered(); ++t) {
    old_tables_.Of(layer).Rotate(begin + t, shape.heads, keys + t * shape.channels(false));
  }
}

void CachePair::ReadOld(size_t layer, bool is_value, uint64_t begin, uint64_t count,
                        float* out) const {
  const uint64_t end = std::clamp(covered(), begin, begin + count);
  if (end > begin) old_.rows.Read(layer, is_value, begin, end - begin, out);
  if (!is_value) RotateAgain(layer, begin, end - begin, out);
  if (end == begin + count) return;
  ReadFull(layer, is_value, end, begin + count - end,
           out + (end - begin) * layers()[layer].channels(is_value));
}

std::vector<float> CachePair::FullHead(size_t layer, bool is_value, uint32_t head) const {
  const KvRows::Layer& shape = layers()[layer];
  const uint64_t dim = is_value ? shape.v_dim : shape.k_dim;
  std::vector<float> values(tokens() * dim);
  full_.rows.ReadHead(layer, is_value, head, 0, tokens(), values.data());
  if (!is_value && full_tables_) {
    for (uint64_t t = 0; t < tokens(); ++t) full_tables_.Of(layer).Rotate(t, 1, &values[t * dim]);
  }
  return values;
}

std::vector<float> CachePair::OldHead(size_t layer, bool is_value, uint32_t head) const {
  const KvRows::Layer& shape = layers()[layer];
  const uint64_t dim = is_value ? shape.v_dim : shape.k_dim;
  // The full run's values are used for tokens that no chunk covers.
  std::vector<float> values =
      covered() == tokens() ? std::vector<float>(tokens() * dim) : FullHead(layer, is_value, head);
  old_.rows.ReadHead(layer, is_value, head, 0, covered(), values.data());
  if (!is_value && old_tables_) {
    for (uint64_t t = 0; t < covered(); ++t) old_tables_.Of(layer).Rotate(t, 1, &values[t * dim]);
  }
  return values;
}

void CachePair::Drop(size_t layer) const {
  full_.rows.Drop(layer);
  old_.rows.Drop(layer);
}

}  // namespace kv::blend
