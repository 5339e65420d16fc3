// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The two caches that a blend is made of: the full run, and chunks computed separately.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv::blend {

// One cache of consecutive tokens, joined from parts of snapshots that may be stored in different
// formats, orders and types. Owns the snapshots but no values, which are read block by block.
class KvRows {
 public:
  struct Part {
    std::shared_ptr<const Snapshot> snapshot;
    uint64_t first_row = 0, rows = 0;  // rows of the snapshot's layers that belong to the part
  };
  struct Layer {
    uint32_t index = 0;  // layer number in the snapshots
    uint32_t heads = 0, k_dim = 0, v_dim = 0;

    uint32_t channels(bool is_value) const { return heads * (is_value ? v_dim : k_dim); }
    bool operator==(const Layer&) const = default;
  };

  KvRows() = default;
  // Throws unless the parts agree in layers, heads and head sizes and have K and V of all their
  // rows in every layer.
  explicit KvRows(std::vector<Part> parts);

  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<Layer>& layers() const { return layers_; }
  uint64_t tokens() const { return tokens_; }
  uint64_t bytes() const;

  // Writes the keys or values of tokens [begin, begin + count) as floats, [token][head][dim]. Block
  // types are dequantised and llama.cpp's Hadamard transform is undone. `layer` is an index into
  // layers().
  void Read(size_t layer, bool is_value, uint64_t begin, uint64_t count, float* out) const;
  // Writes one head's keys or values, [token][dim].
  void ReadHead(size_t layer, bool is_value, uint32_t head, uint64_t begin, uint64_t count,
                float* out) const;
  // Gives the pages of a layer back to the system.
  void Drop(size_t layer) const;

 private:
  void ReadHeads(size_t layer, bool is_value, uint32_t head, uint32_t heads, uint64_t begin,
                 uint64_t count, float* out) const;

  std::vector<Part> parts_;
  std::vector<Layer> layers_;
  uint64_t tokens_ = 0;
};

// Returns the number of rows in every layer of a snapshot. Throws kUnsupportedLayout if layers hold
// different numbers of tokens (sliding windows), and kUnsupportedKind if there are no layers.
uint64_t CountRows(const Snapshot& snapshot);

// The positions that the keys of a dump are rotated to by the rotary embedding.
enum class KeyState {
  kUnrotated,
  kLocal,   // position in the chunk's own run
  kGlobal,  // position in the prompt
  kAt,      // successive positions from a given start, for each chunk
};
std::string_view Name(KeyState state);

// The value of a flag: "auto", "unrotated", "local", "global", or "at:0,4,22" with the position of
// the first kept token of each chunk.
struct KeyStateFlag {
  std::optional<KeyState> state;  // empty for "auto": the state that the file records
  std::vector<int64_t> at;
};
// Throws kUsage, naming `flag`.
KeyStateFlag ParseKeyState(std::string_view text, std::string_view flag);

// States what happened to the token that an engine prepends to every text (BOS). The prompt has it
// only once.
enum class BosRule {
  kNone,     // chunks are those of the prompt
  kDrop,     // later chunks begin with a BOS token, which is left out
  kDropped,  // BOS is already removed from later chunks, whose first position was 1
};
// Throws kUsage.
BosRule ParseBosRule(std::string_view text);

struct Chunk {
  std::string path;
  uint64_t start = 0, tokens = 0;

  bool is_prefix() const { return start == 0; }
};

// Keys and values that were computed chunk by chunk, in the prompt's order.
struct OldCache {
  KvRows rows;
  std::vector<Chunk> chunks;
  KeyState state = KeyState::kLocal;
  std::vector<int64_t> positions;  // positions that the keys are rotated to; empty if unrotated
};

// Joins chunks that are one file each.
OldCache JoinChunks(const std::vector<std::shared_ptr<const Snapshot>>& parts, BosRule bos,
                    const KeyStateFlag& state);
// Splits one file that holds all chunks, by their lengths in tokens; without lengths it is one
// chunk. Throws unless the lengths add up to the file's tokens.
OldCache SplitOld(std::shared_ptr<const Snapshot> old, const std::vector<uint64_t>& lengths,
                  BosRule bos, const KeyStateFlag& state);

// The cache of the full run: row t is the prompt's position t.
struct FullCache {
  KvRows rows;
  bool unrotated = false;
};
// Throws if the snapshot's cells have other positions.
FullCache WholePrompt(std::shared_ptr<const Snapshot> full, const KeyStateFlag& state);

// Throws unless both caches have the same layers and heads, the chunks cover the prompt (all of it,
// or all but its last `suffix` tokens), and both record the same token ids, if both record any.
void RequireSamePrompt(const FullCache& full, const OldCache& old, std::optional<uint64_t> suffix);

// The full run and the chunks side by side, with the keys of both rotated to the prompt's
// positions. A key is rotated when it is read, and the sources do not change, so no key is rotated
// twice. Tokens that no chunk covers are read from the full run, because an engine computes them
// anew.
class CachePair {
 public:
  // Throws kUsage if keys must be rotated and `rope` is missing, and kUnsupportedLayout if the head
  // size differs from layer to layer.
  CachePair(FullCache full, OldCache old, std::optional<ModelRope> rope);

  const FullCache& full() const { return full_; }
  const OldCache& old() const { return old_; }
  const std::optional<ModelRope>& rope() const { return rope_; }
  uint64_t tokens() const { return full_.rows.tokens(); }
  uint64_t covered() const { return old_.rows.tokens(); }  // tokens that chunks cover
  const std::vector<KvRows::Layer>& layers() const { return full_.rows.layers(); }
  // Returns the index in layers() of the layer with this number, if there is one.
  std::optional<size_t> Place(uint32_t layer) const;
  DType dtype() const;     // dtype of the full run's first layer
  uint64_t bytes() const;  // bytes of K and V of both caches

  // Write the keys or values of tokens [begin, begin + count) as floats, [token][head][dim].
  // `layer` is an index into layers().
  void ReadFull(size_t layer, bool is_value, uint64_t begin, uint64_t count, float* out) const;
  void ReadOld(size_t layer, bool is_value, uint64_t begin, uint64_t count, float* out) const;
  // Return the keys or values of one head, [token][dim], for all tokens.
  std::vector<float> FullHead(size_t layer, bool is_value, uint32_t head) const;
  std::vector<float> OldHead(size_t layer, bool is_value, uint32_t head) const;
  // Rotates old keys, [token][head][dim], a second time, as CacheBlend does when it runs twice on
  // the same object.
  void RotateAgain(size_t layer, uint64_t begin, uint64_t count, float* keys) const;
  // Gives the pages of a layer back to the system.
  void Drop(size_t layer) const;

 private:
  FullCache full_;
  OldCache old_;
  // The rotations of all layers' keys; layers with equal rotations share a table. Empty if no key
  // is rotated.
  struct RopeTables {
    std::vector<RopeTable> tables;
    std::vector<size_t> of_layer;
    explicit operator bool() const { return !tables.empty(); }
    const RopeTable& Of(size_t layer) const { return tables[of_layer[layer]]; }
  };
  RopeTables MakeTables(std::span<const KeyShift> shifts) const;

  std::optional<ModelRope> rope_;
  RopeTables full_tables_, old_tables_;
};

}  // namespace kv::blend
