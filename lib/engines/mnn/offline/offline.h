// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/base/progress.h"
#include "lib/core/snapshot/dump_entry.h"

// What MNN's offline experiment says a cache would compress to. It splits 16-bit values into byte
// planes, predicts blocks of tokens from the token before, and counts zstd's bytes; it writes
// nothing and decodes nothing. Sizes are those of the original with the same zstd library.
namespace kv::offline {

// How entries are cut before they are compressed.
enum class EntryMode : uint8_t {
  kPerMeta,         // every entry on its own
  kAggregate,       // entries of a run and layer joined
  kChunked,         // entries cut into chunks of tokens
  kChunkedGrouped,  // joined, then cut
};
enum class CodecMode : uint8_t { kLegacy, kAdaptive };
enum class Scope : uint8_t { kFrontN, kLayerRange, kLayerIds };
enum class Stage : uint8_t { kBoth, kPrefill, kDecode };

// Along tokens (delta, xor) and between neighbouring dims (pair); the values are places in names.
enum class Predictor : uint8_t { kRaw, kDeltaSeq, kXorSeq, kPairDelta, kPairDeltaDeltaSeq };

// The original's words: "chunked_grouped", "adaptive_v22", "front_n", "pair_delta" ...
std::string_view Name(EntryMode mode);
std::string_view Name(CodecMode mode);
std::string_view Name(Scope scope);
std::string_view Name(Stage stage);
std::string_view Name(Predictor predictor);

// "raw,delta_seq": repeats dropped. Throws kUsage, naming `flag`, for other words and for none.
std::vector<Predictor> ParsePredictorList(std::string_view list, std::string_view flag);

// The streams of a tensor pair, in the order of the original's keys.
enum Stream : uint8_t { kKHi, kKLo, kVHi, kVLo };
inline constexpr size_t kStreams = 4;
std::string_view Name(Stream stream);  // "k_hi"

// Defaults as in the original.
struct Options {
  Stage stage = Stage::kBoth;
  Scope scope = Scope::kFrontN;
  int64_t front_n = 2;
  int64_t layer_start = 2, layer_end = -1;  // -1 = to the last
  std::set<int64_t> layer_ids;
  int zstd_level = 3;
  bool strict_fp16 = false;                // leave f32 out instead of rounding it to f16
  int64_t min_tokens = 0, max_tokens = 0;  // 0 = any
  EntryMode entry_mode = EntryMode::kPerMeta;
  int64_t chunk_tokens = 0;  // 0 = whole
  int64_t framing_bytes = 16;
  bool aggregate_by_stage = false;
  CodecMode codec = CodecMode::kAdaptive;
  int64_t block_tokens = 64;
  bool bitshuffle = false;
  std::array<std::vector<Predictor>, kStreams> predictors = DefaultPredictors();

  static std::array<std::vector<Predictor>, kStreams> DefaultPredictors();
};

// What the gate runs: `lossless_selected_value` (chunked_grouped, 192 tokens, framing 8), and the
// upper bound beside it (aggregate by stage).
Options OnlineSimOptions();
Options UpperBoundOptions();

struct Sizes {
  uint64_t raw = 0, compressed = 0, chunk_meta = 0;
  double ratio() const {
    return compressed == 0 ? 0.0 : static_cast<double>(raw) / static_cast<double>(compressed);
  }
};

struct Result {
  std::set<int64_t> layers;
  uint64_t entries = 0;  // selected; some of them may fail later
  uint64_t dumps = 0;    // runs among them
  uint64_t groups = 0, chunks = 0;
  Sizes k, v;
  // How many blocks took each predictor. Predictors that competed and never won count 0.
  std::array<std::map<Predictor, uint64_t>, kStreams> mode_counts;
  uint64_t scanned = 0, converted = 0, skipped = 0;
  std::vector<std::pair<std::string, uint64_t>> skip_reasons;  // in the order of occurrence

  Sizes total() const {
    return {k.raw + v.raw, k.compressed + v.compressed, k.chunk_meta + v.chunk_meta};
  }
  double ratio() const { return total().ratio(); }
};

// Entries in the order of the original: sorted by their meta's path. Results do not depend on the
// number of threads. Selecting nothing is a result with no entries (the original exits).
Result Simulate(std::span<const Entry> entries, const Options& options, ThreadPool& pool,
                Progress* progress = nullptr);

}  // namespace kv::offline
