// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/engines/cacheblend/rows.h"

namespace kv::blend {

// The positions that the keys of a dump are rotated to by the rotary embedding.
enum class KeyState {
  kUnrotated,
  kLocal,   // positions in the chunk's own run
  kGlobal,  // positions in the prompt
  kAt,      // successive positions from a given one on, for each chunk
};
std::string_view Name(KeyState state);

// The value of a flag: "auto", "unrotated", "local", "global", or "at:0,4,22" with the position of
// the first kept token of each chunk.
struct KeyStateFlag {
  std::optional<KeyState> state;  // nothing for "auto": as the file says
  std::vector<int64_t> at;
};
// Throws kUsage, naming `flag`.
KeyStateFlag ParseKeyState(std::string_view text, std::string_view flag);

// What became of the token that an engine puts in front of every text (BOS). The prompt has it
// once.
enum class BosRule {
  kNone,     // chunks are as they stand in the prompt
  kDrop,     // chunks after the first begin with one, which is to be left out
  kDropped,  // it was left out already: first tokens of later chunks were at position 1
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
  std::vector<int64_t> positions;  // that each token's key is rotated to; empty if unrotated
};

// Joins chunks that come as one file each.
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

}  // namespace kv::blend
