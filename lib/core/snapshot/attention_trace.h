// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/parallel.h"
#include "lib/core/base/tensor.h"
#include "lib/core/snapshot/snapshot.h"

namespace kv {

// The content of a trace, best first. Queries (with the snapshot's keys) allow everything to be
// recomputed, probabilities everything except scores of other keys; block scores serve only the
// block engines.
enum class TraceLevel { kQueries, kProbabilities, kBlockScores };
std::string_view Name(TraceLevel level);

// Probabilities of consecutive query rows: [q_heads][rows][keys]. Column j is the key at position
// key_begin + j.
struct ProbabilityPiece {
  uint64_t row_begin = 0;
  uint64_t key_begin = 0;
  TensorView view;

  uint64_t rows() const { return view.shape[1]; }
  uint64_t keys() const { return view.shape[2]; }
};

// A layer's rule for turning scores into probabilities, if it differs from the trace's general one.
struct LayerRule {
  std::optional<double> scale, softcap;
  std::optional<uint64_t> window;
};

struct TraceLayer {
  uint32_t layer = 0;
  LayerRule rule;
  std::optional<TensorView> queries;            // [rows][q_heads][head_dim], rotated
  std::vector<ProbabilityPiece> probabilities;  // in row order, without gaps
  std::optional<TensorView> keys, values;       // as the recorder saw them: [tokens][kv_heads][dim]
  std::optional<TensorView> gradients;          // [samples][rows of GradientRows][q_heads][v_dim]
};

// The rows that have gradients. These are gradients of the log probability of a next token, drawn
// `samples` times from the model's own distribution, with respect to each layer's attention output
// before its projection.
struct GradientRows {
  uint64_t begin = 0, rows = 0;  // positions [begin, begin + rows)
  uint64_t samples = 0;
  // Number of the last samples that were drawn, and their gradients taken, at states with evicted
  // keys; the others are of the recorded state.
  uint64_t evicted = 0;

  uint64_t recorded() const { return samples - evicted; }
  uint64_t end() const { return begin + rows; }
  bool Has(uint64_t position) const { return position >= begin && position < end(); }
};

// Block sums of one call of a layer, in the engine's order.
struct BlockScoreCall {
  uint64_t line = 0;  // line of the file
  uint64_t step = 0;  // decode step, from 1
  uint32_t layer = 0;
  std::vector<float> block_sums;
};

// Reads one call at a time and never holds more than one.
class BlockScoreReader {
 public:
  virtual ~BlockScoreReader() = default;
  virtual std::optional<BlockScoreCall> Next() = 0;  // throws Error
};

// The parameters in a stream's header: {"h2o_block_tokens", 32} ...
using TraceParameters = std::vector<std::pair<std::string, double>>;

struct BlockScoreStream {
  uint32_t layers = 0;
  uint32_t query_heads = 0, kv_heads = 0, head_dim = 0, element_bytes = 2;
  uint64_t steps = 0;  // 0: unknown before the end
  TraceParameters parameters;
  // Returns a new reader that starts at the first call.
  std::function<std::unique_ptr<BlockScoreReader>()> open;
};

// Attention of a model's decode and prefill rows over a snapshot. Holds metadata and views into
// mapped files; rows are converted when they are read.
struct AttentionTrace {
  std::string path;
  std::string format;  // storage format: "safetensors", "npy set" ...
  std::string engine, model;
  TraceLevel level = TraceLevel::kQueries;
  uint32_t query_heads = 0;
  uint32_t kv_heads = 0;                  // 0: not recorded
  uint32_t head_dim = 0;                  // 0: not recorded (probabilities)
  double scale = 0;                       // 0: 1 / sqrt(head_dim)
  double softcap = 0;                     // 0: none
  uint64_t window = 0;                    // sliding attention window; 0: none
  std::string rope;                       // as the recorder wrote it; kvtool only shows it
  uint64_t q_start = 0;                   // position of row 0
  uint64_t rows = 0;                      // query rows, the same for every layer
  std::optional<uint64_t> prompt_tokens;  // where prefill ends
  std::vector<TraceLayer> layers;         // ascending
  std::optional<GradientRows> gradients;  // the same for every layer that has them
  std::vector<int32_t> tokens;
  std::optional<BlockScoreStream> block_scores;
  std::vector<Note> notes;
  std::shared_ptr<const void> storage;  // keeps the views valid

  const TraceLayer* Find(uint32_t layer) const;
  uint64_t end_position() const { return q_start + rows; }
};

// Reads rows [row_begin, +count) of one head as floats: queries [count][head_dim].
void ReadQueries(const TraceLayer& layer, uint32_t head, uint64_t row_begin, uint64_t count,
                 float* out);
// Reads the gradient of one sample at one position, [v_dim], for a layer that has gradients.
void ReadGradient(const AttentionTrace& trace, const TraceLayer& layer, uint64_t sample,
                  uint64_t position, uint32_t head, float* out);
// Reads one row of one head: `positions` columns from position 0; missing columns are 0.
void ReadProbabilityRow(const TraceLayer& layer, uint32_t head, uint64_t row, uint64_t positions,
                        float* out);

// Throws kTraceMismatch, naming the difference, unless the snapshot has every layer, head and
// position that the trace refers to. Recorded keys and values must equal the snapshot's up to
// rounding (2% of their norm; 7% or 13% for coarser block types), and token ids must be equal if
// both have them.
void RequireMatch(const AttentionTrace& trace, const Snapshot& snapshot);

// Returns the snapshot's heads as the trace tells them, for formats that only store rows.
std::optional<ModelGeometry> FindGeometry(const AttentionTrace& trace);

// Rows of a trace without a usable figure, because some value of some query head is NaN or Inf.
struct UndefinedRows {
  uint64_t rows = 0, of = 0;  // number of invalid rows of `of` rows; a row counts once per layer
  uint32_t first_layer = 0;   // layer of the first invalid row
  uint64_t first_position = 0;
};

// Checks every row. Throws kTraceMismatch for recorded values that are not probabilities: negative,
// above 1 or not finite.
UndefinedRows CheckTraceRows(const AttentionTrace& trace, ThreadPool& pool);

// Counts the rows of gradients that contain NaN or Inf, in layers that have gradients.
UndefinedRows CheckGradients(const AttentionTrace& trace, ThreadPool& pool);

// Returns a warning about undefined rows, which it calls `what`; empty if there are none.
std::string Remark(const UndefinedRows& undefined, std::string_view what = "query rows");

}  // namespace kv
