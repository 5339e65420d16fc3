// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by offline.cc, result_report.cc

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
#include "lib/core/codec/backends.h"
#include "lib/core/snapshot/dump_entry.h"
#include "lib/fields/fields.h"

// MNN's offline experiment, which estimates the size that a cache would compress to. It splits
// 16-bit values into byte planes, predicts each token of a block from the token before it, and
// counts the bytes that zstd needs. It writes nothing and decodes nothing. With the same zstd
// library the sizes equal those of MNN's script.
namespace kv::mnn::offline {

// The way in which entries are joined and cut before they are compressed.
enum class EntryMode : uint8_t {
  kPerMeta,         // every entry separately
  kAggregate,       // all entries of a run and layer joined
  kChunked,         // each entry cut into chunks of tokens
  kChunkedGrouped,  // entries of a run and layer joined, then cut into chunks
};
enum class CodecMode : uint8_t { kLegacy, kAdaptive };
enum class Scope : uint8_t { kFrontN, kLayerRange, kLayerIds };
enum class Stage : uint8_t { kBoth, kPrefill, kDecode };

// Predictors work along tokens (delta, xor) or between neighbouring dims (pair).
enum class Predictor : uint8_t { kRaw, kDeltaSeq, kXorSeq, kPairDelta, kPairDeltaDeltaSeq };

// Return the words of MNN's script, such as "chunked_grouped", "adaptive_v22", "front_n" and
// "pair_delta".
std::string_view Name(EntryMode mode);
std::string_view Name(CodecMode mode);
std::string_view Name(Scope scope);
std::string_view Name(Stage stage);
std::string_view Name(Predictor predictor);

// Parses a list such as "raw,delta_seq" and drops repeats. Throws kUsage, naming `flag`, for
// unknown words and for an empty list.
std::vector<Predictor> ParsePredictorList(std::string_view list, std::string_view flag);

// The byte planes of K and V, in the order of the keys in MNN's JSON.
enum Stream : uint8_t { kKHi, kKLo, kVHi, kVLo };
inline constexpr size_t kStreams = 4;
std::string_view Name(Stream stream);  // "k_hi"

// Options with the defaults of MNN's script.
struct Options {
  Stage stage = Stage::kBoth;
  Scope scope = Scope::kFrontN;
  int64_t front_n = 2;
  int64_t layer_start = 2, layer_end = -1;  // -1 means the last layer
  std::set<int64_t> layer_ids;
  int zstd_level = 3;
  bool strict_fp16 = false;                // skip f32 entries instead of rounding them to f16
  int64_t min_tokens = 0, max_tokens = 0;  // 0 means no limit
  EntryMode entry_mode = EntryMode::kPerMeta;
  int64_t chunk_tokens = 0;  // 0: not cut
  int64_t framing_bytes = 16;
  bool aggregate_by_stage = false;
  CodecMode codec = CodecMode::kAdaptive;
  int64_t block_tokens = 64;
  bool bitshuffle = false;
  std::array<std::vector<Predictor>, kStreams> predictors = DefaultPredictors();

  static std::array<std::vector<Predictor>, kStreams> DefaultPredictors();
};

// Returns the options of the estimate that the gate calls `lossless_selected_value`: grouped chunks
// of 192 tokens, 8 framing bytes.
Options OnlineSimOptions();

struct Sizes {
  uint64_t raw = 0, compressed = 0, chunk_meta = 0;
  double ratio() const {
    return compressed == 0 ? 0.0 : static_cast<double>(raw) / static_cast<double>(compressed);
  }
};

struct Result {
  std::set<int64_t> layers;
  uint64_t entries = 0;  // selected entries, some of which may fail later
  uint64_t dumps = 0;    // number of runs that the entries come from
  uint64_t groups = 0, chunks = 0;
  Sizes k, v;
  // Number of blocks that each predictor won. A predictor that competed without winning has 0.
  std::array<std::map<Predictor, uint64_t>, kStreams> mode_counts;
  uint64_t scanned = 0, converted = 0, skipped = 0;
  std::vector<std::pair<std::string, uint64_t>> skip_reasons;  // in the order of occurrence

  Sizes total() const {
    return {k.raw + v.raw, k.compressed + v.compressed, k.chunk_meta + v.chunk_meta};
  }
  double ratio() const { return total().ratio(); }
};

// One byte plane of [tokens][heads][dim] values. A token has `row` bytes, and a head `dim` of them.
struct PlaneShape {
  uint64_t tokens = 0, row = 0, dim = 0;
};

// Writes the residuals of a block (tokens x row bytes) to `to`. The first token is copied, because
// there is nothing to predict it from.
void Predict(Predictor predictor, const PlaneShape& shape, const std::byte* from, std::byte* to);

// Transposes bits: bit b of byte i becomes bit b * size + i of the output, counted from the least
// significant bit of byte 0.
void BitShuffle(const std::byte* from, size_t size, std::byte* to);

// Counts the bytes that MNN's coder would need for a plane. Each thread needs its own.
class PlaneCoder {
 public:
  // Returns the size and adds to `counts` the predictor that each block chose. Only adaptive mode
  // chooses; legacy mode uses delta_seq for the high plane and raw for the low one.
  uint64_t Size(ByteSpan plane, const PlaneShape& shape, const Options& options, Stream stream,
                std::map<Predictor, uint64_t>& counts);

 private:
  uint64_t Compressed(ByteSpan bytes, int level);
  uint64_t AdaptiveSize(ByteSpan plane, const PlaneShape& shape, const Options& options,
                        Stream stream, std::map<Predictor, uint64_t>& counts);
  // Writes the best payload of one block to `to` and returns its compressed size.
  uint64_t BestOfBlock(const PlaneShape& block, const std::byte* from, const Options& options,
                       const std::vector<Predictor>& predictors, Predictor& best, std::byte* to);
  ByteSpan Payload(Predictor predictor, const PlaneShape& block, const std::byte* from,
                   bool bitshuffle);

  Zstd zstd_;
  ScratchBuffer compressed_, predicted_, shuffled_, merged_;
};

// Runs the estimate. Entries must be in MNN's order, sorted by the paths of their meta files. The
// number of threads does not change the result. If no entry is selected, the result is empty (MNN's
// script exits).
Result Simulate(std::span<const DumpEntry> entries, const Options& options, ThreadPool& pool,
                Progress* progress = nullptr);

// The result as MNN's JSON document, with its keys in its order.
struct Document {
  std::string dump_dir;
  Options options;
  Result result;
  bool zero_is_null = false;  // true: without bytes the ratio is null; MNN writes 0
};
const Fields<Document>& DocumentFields();
// Returns the result as MNN's Markdown summary.
std::string ResultMarkdown(const std::string& dump_dir, const Options& options,
                           const Result& result);

}  // namespace kv::mnn::offline
