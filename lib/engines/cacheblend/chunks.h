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

// How the keys of a dump are rotated.
enum class KeyState {
  kUnrotated,
  kLocal,   // at positions of the chunk's own run
  kGlobal,  // at positions of the prompt
  kAt,      // from named positions on
};
std::string_view Name(KeyState state);

// What a flag says of it: "auto", "unrotated", "local", "global", "at:0,4,22" (the position of the
// first kept token of each chunk).
struct KeyStateFlag {
  std::optional<KeyState> state;  // nothing: as the file says
  std::vector<int64_t> at;
};
KeyStateFlag ParseKeyState(std::string_view text, std::string_view flag);

// The token that an engine puts in front of every text. The prompt has it once.
enum class BosRule {
  kNone,     // chunks are as they stand in the prompt
  kDrop,     // chunks after the first begin with one: leave it out
  kDropped,  // it was left out already: first tokens of later chunks were at position 1
};
BosRule ParseBosRule(std::string_view text);

struct Chunk {
  std::string path;
  uint64_t start = 0, tokens = 0;

  bool is_prefix() const { return start == 0; }
};

// Keys and values that were computed chunk by chunk, in the order of the prompt.
struct OldCache {
  KvRows rows;
  std::vector<Chunk> chunks;
  KeyState state = KeyState::kLocal;
  std::vector<int64_t> positions;  // where each key is rotated to; empty if unrotated
};

// One file per chunk.
OldCache JoinChunks(const std::vector<std::shared_ptr<const Snapshot>>& parts, BosRule bos,
                    const KeyStateFlag& state);
// One file that holds them all, in chunks of these lengths (none: one chunk). Throws unless the
// lengths add up.
OldCache SplitOld(std::shared_ptr<const Snapshot> old, const std::vector<uint64_t>& lengths,
                  BosRule bos, const KeyStateFlag& state);

// The full run: rows are the prompt's positions. Throws where cells say otherwise.
struct FullCache {
  KvRows rows;
  bool unrotated = false;
};
FullCache WholePrompt(std::shared_ptr<const Snapshot> full, const KeyStateFlag& state);

// Throws unless both caches have the same layers and heads, the chunks cover the prompt (or all of
// it but `suffix` tokens), and tokens are the same where both files record them.
void RequireSamePrompt(const FullCache& full, const OldCache& old, std::optional<uint64_t> suffix);

}  // namespace kv::blend
