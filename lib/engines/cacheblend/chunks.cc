// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/cacheblend/chunks.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lib/core/base/error.h"
#include "lib/core/base/number.h"

namespace kv::blend {
namespace {

// Positions that the file records, or nothing. Throws where they do not rise by one: holes and
// several sequences have no place in a prompt.
std::optional<std::vector<int64_t>> RecordedPositions(const Snapshot& snapshot, uint64_t rows) {
  if (snapshot.cell_groups.empty() || snapshot.cell_groups.front().cells.size() != rows) {
    return std::nullopt;
  }
  std::vector<int64_t> positions;
  for (const Cell& cell : snapshot.cell_groups.front().cells) {
    if (cell.position < 0 || cell.position > INT32_MAX) {
      throw std::move(
          Error(Finding::kBadField, fmt::format("row {} is position {}, expected 0 to 2^31",
                                                positions.size(), cell.position))
              .File(snapshot.source.path));
    }
    if (!positions.empty() && cell.position != positions.back() + 1) {
      throw std::move(
          Error(Finding::kUnsupportedKind,
                fmt::format("row {} is position {}, the row before it {}: expected one sequence "
                            "without holes",
                            positions.size(), cell.position, positions.back()))
              .File(snapshot.source.path)
              .Hint("save one sequence, or cut the rows out with kvtool convert --tokens"));
    }
    positions.push_back(cell.position);
  }
  return positions;
}

KeyState StateOf(const KeyStateFlag& flag, const Snapshot& snapshot, bool is_chunk_file) {
  if (flag.state) return *flag.state;
  if (snapshot.key_rotation == KeyRotation::kUnrotated) return KeyState::kUnrotated;
  if (is_chunk_file) return KeyState::kLocal;
  throw std::move(Error(Finding::kUsage,
                        "the file does not say how its keys are rotated: "
                        "--chunks-rope unrotated, local, global or at:POSITIONS")
                      .File(snapshot.source.path)
                      .Hint("CacheBlend's old_kvs is unrotated"));
}

void RequireOffsets(const KeyStateFlag& flag, KeyState state, size_t chunks) {
  if (state != KeyState::kAt || flag.at.size() == chunks) return;
  throw Error(Finding::kUsage,
              fmt::format("--chunks-rope at: {} positions for {} chunks", flag.at.size(), chunks));
}

void AppendRun(int64_t first, uint64_t count, std::vector<int64_t>& positions) {
  for (uint64_t i = 0; i < count; ++i) positions.push_back(first + static_cast<int64_t>(i));
}

// Where the keys of chunk `index` stand; `own` is the position of its first kept token in its own
// run.
void AppendPositions(KeyState state, const KeyStateFlag& flag, size_t index, const Chunk& chunk,
                     int64_t own, std::vector<int64_t>& positions) {
  if (state == KeyState::kUnrotated) return;
  const int64_t first = state == KeyState::kLocal    ? own
                        : state == KeyState::kGlobal ? static_cast<int64_t>(chunk.start)
                                                     : flag.at[index];
  AppendRun(first, chunk.tokens, positions);
}

// Files that record token ids must record the prompt's.
void RequireSameTokens(const Snapshot& full, const KvRows::Part& part, uint64_t start) {
  const std::vector<int32_t>& ids = part.snapshot->tokens;
  if (ids.size() != RowsOf(*part.snapshot) || full.tokens.size() < start + part.rows) return;
  for (uint64_t i = 0; i < part.rows; ++i) {
    const int32_t ours = ids[part.first_row + i], prompts = full.tokens[start + i];
    if (ours == prompts) continue;
    throw std::move(Error(Finding::kInconsistent,
                          fmt::format("token {} has id {}, the full run has {} at position {}: not "
                                      "the same text",
                                      part.first_row + i, ours, prompts, start + i))
                        .File(part.snapshot->source.path)
                        .Hint("a chunk in another order, or a text that was tokenized again"));
  }
}

}  // namespace

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
    return Error(
        Finding::kUsage,
        fmt::format("{} '{}': expected auto, unrotated, local, global or at:0,4,22", flag, text));
  };
  if (text.substr(0, 3) != "at:") throw bad();
  KeyStateFlag at{KeyState::kAt, {}};
  for (size_t begin = 3; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const auto value = ParseNumber<int64_t>(text.substr(begin, end - begin));
    if (!value || *value > INT32_MAX || *value < -INT32_MAX) throw bad();
    at.at.push_back(*value);
    begin = end + 1;
  }
  return at;
}

BosRule ParseBosRule(std::string_view text) {
  if (text == "none") return BosRule::kNone;
  if (text == "drop") return BosRule::kDrop;
  if (text == "dropped") return BosRule::kDropped;
  throw Error(Finding::kUsage, fmt::format("--bos '{}': expected none, drop or dropped", text));
}

OldCache JoinChunks(const std::vector<std::shared_ptr<const Snapshot>>& parts, BosRule bos,
                    const KeyStateFlag& flag) {
  KV_ASSERT(!parts.empty());
  OldCache old;
  std::vector<KvRows::Part> rows;
  uint64_t start = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Snapshot& snapshot = *parts[i];
    const uint64_t all = RowsOf(snapshot);
    const uint64_t dropped = bos == BosRule::kDrop && i > 0 ? 1 : 0;
    if (all <= dropped) {
      throw std::move(
          Error(Finding::kInconsistent, "a chunk without tokens").File(snapshot.source.path));
    }
    rows.push_back({parts[i], dropped, all - dropped});
    old.chunks.push_back({snapshot.source.path, start, all - dropped});
    start += all - dropped;
    const KeyState state = StateOf(flag, snapshot, true);
    if (i > 0 && state != old.state) {
      throw std::move(
          Error(Finding::kInconsistent, fmt::format("keys are {}, those of {} {}", Name(state),
                                                    parts[0]->source.path, Name(old.state)))
              .File(snapshot.source.path)
              .Hint("--chunks-rope says how the keys of all chunks are rotated"));
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
  const uint64_t tokens = RowsOf(*snapshot);
  std::vector<uint64_t> chunks = lengths;
  if (chunks.empty()) chunks.push_back(tokens);
  uint64_t sum = 0;
  for (const uint64_t length : chunks) sum = length > tokens - sum ? tokens + 1 : sum + length;
  if (sum != tokens || std::count(chunks.begin(), chunks.end(), uint64_t{0}) != 0) {
    throw std::move(
        Error(Finding::kUsage,
              fmt::format("--chunk-tokens {}: expected lengths that add up to the {} tokens "
                          "of the file",
                          fmt::join(chunks, ","), tokens))
            .File(snapshot->source.path));
  }
  OldCache old;
  old.state = StateOf(flag, *snapshot, false);
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
  const uint64_t tokens = RowsOf(*full);
  if (flag.state && *flag.state != KeyState::kUnrotated && *flag.state != KeyState::kGlobal) {
    throw Error(Finding::kUsage, "--full-rope: expected auto, rotated or unrotated");
  }
  if (const auto recorded = RecordedPositions(*full, tokens); recorded && recorded->front() != 0) {
    throw std::move(Error(Finding::kUnsupportedKind,
                          fmt::format("the first row is position {}, expected the prompt from 0 on",
                                      recorded->front()))
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
  // The constructor compares shapes of its parts: let it compare these two as well.
  KvRows({{full.rows.parts().front().snapshot, 0, full.rows.tokens()},
          {old.rows.parts().front().snapshot, 0, 0}});
  const uint64_t have = old.rows.tokens(), want = full.rows.tokens();
  if (have != want && !(suffix && have + *suffix == want)) {
    Error error(
        Finding::kInconsistent,
        fmt::format("the chunks have {} tokens, the full run {} in every layer", have, want));
    if (have == want + old.chunks.size() - 1 && old.chunks.size() > 1) {
      error.Hint(
          "one more for each chunk after the first: --bos drop leaves their first token out");
    } else if (have < want) {
      error.Hint(
          fmt::format("--suffix-tokens {} if the last {} tokens are the question, computed anew; "
                      "texts tokenized "
                      "again may merge tokens where chunks meet",
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

}  // namespace kv::blend
