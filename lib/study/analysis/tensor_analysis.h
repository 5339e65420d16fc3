// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The figures of one tensor: structure, codecs, entropy models, and types of half the size that
// would hold its values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/archive/coded_rows.h"
#include "lib/core/base/bytes.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/fields/fields.h"
#include "lib/study/analysis/entropy_models.h"
#include "lib/study/statistics/tensor_stats.h"

namespace kv::analysis {

// Counts the rows and channels of a tensor that repeat or are zero.
struct Structure {
  uint64_t tokens = 0, channels = 0;
  uint64_t zero_rows = 0;           // tokens of which every byte is zero
  uint64_t trailing_zero_rows = 0;  // zero rows at the end, which are padding
  // Rows with the hash of an earlier non-zero row. 0 if rows are shorter than 8 bytes.
  uint64_t repeated_rows = 0;
  uint64_t constant_channels = 0;  // channels with equal values in all tokens
  uint64_t zero_channels = 0;      // constant channels that are zero
};

// Finds the structure of rows of `units` storage units of `unit_bytes` bytes each.
class StructureFinder {
 public:
  StructureFinder(uint64_t units, uint32_t unit_bytes);
  void Add(ByteSpan rows, uint64_t tokens);
  Structure Finish() const;

 private:
  uint64_t units_;
  uint32_t unit_bytes_;
  Structure found_;
  Bytes first_, differs_;             // the first row; the bits that differ in any later row
  std::vector<uint64_t> row_hashes_;  // hashes of rows that are not zero
};

// Counts the values of an f32 cache that a type of half the size represents exactly.
struct Narrowness {
  uint64_t values = 0, exact_f16 = 0, exact_bf16 = 0;

  bool is_f16() const { return values > 0 && exact_f16 == values; }
  bool is_bf16() const { return values > 0 && exact_bf16 == values; }
};
// Adds little-endian floats to the counts.
void CountNarrow(ByteSpan floats, Narrowness& narrowness);

struct Coded {
  uint64_t raw_bytes = 0, coded_bytes = 0;

  void Add(const Coded& other) {
    raw_bytes += other.raw_bytes;
    coded_bytes += other.coded_bytes;
  }
  double ratio() const {
    return coded_bytes == 0 ? 1 : static_cast<double>(raw_bytes) / static_cast<double>(coded_bytes);
  }
  double removed() const {
    return raw_bytes == 0 ? 0
                          : 1 - static_cast<double>(coded_bytes) / static_cast<double>(raw_bytes);
  }
};

// The result of coding a tensor, cut into chunks as `compress` cuts it.
struct Measured : Coded {
  // Payloads with their headers, by byte plane of a value, least significant first. A chunk that is
  // stored raw counts in equal parts for all planes. Empty for types without planes.
  std::vector<Coded> planes;
  uint64_t raw_hash = 0, decoded_hash = 0;  // hashes of all chunks, in order
  uint64_t chunks = 0;
  std::map<CodecId, uint64_t> codecs;  // the number of chunks that each codec coded

  bool decodes() const { return raw_hash == decoded_hash; }
};

// Entropy models of 16-bit values after undoing their rotary embedding and rounding again: the bits
// that a predictor which knows the rotation could reach. Both pairings of dimensions are tried,
// because models often do not say which one they use.
struct Unrotated {
  bool interleaved = false;  // true: pairs (2i, 2i+1); false: pairs of halves
  std::vector<EntropyModel> models;
};

struct TensorAnalysis {
  DType dtype = DType::kF16;
  uint64_t tokens = 0;
  uint32_t heads = 0, head_dim = 0;
  bool heads_known = false;
  Measured measured;               // result of MNN's codec (level compat)
  std::optional<Measured> own;     // result of kvtool's codecs at the requested level
  std::vector<Coded> heads_coded;  // each head coded separately, if requested
  TensorStats stats;
  std::vector<EntropyModel> models;  // 16-bit floats only
  double autoregressive_gain_bits = 0;
  // Gain inside a head; only if the heads are known. Analyse adds it, because it needs a BLAS.
  std::optional<double> cross_channel_gain_bits;
  std::vector<Unrotated> unrotated;  // filled if requested
  Structure structure;
  // For f32 only. If every value is exact in a type of half the size, `narrow` is the result of
  // coding the values in that type.
  std::optional<Narrowness> narrowness;
  std::optional<DType> narrow_dtype;
  std::optional<Measured> narrow;

  double values() const { return static_cast<double>(stats.values); }
  const Measured& better() const {
    return own && own->coded_bytes < measured.coded_bytes ? *own : measured;
  }
  bool decodes() const { return measured.decodes() && (!own || own->decodes()); }
  // Returns the bits per value of the better codec.
  double reached_bits() const {
    return values() == 0 ? 0 : 8.0 * static_cast<double>(better().coded_bytes) / values();
  }
  // Returns the model that needs the fewest bits; for block types and f32, the sum of the entropies
  // of the byte planes.
  EntropyModel bound() const;
};

struct TensorOptions {
  bool per_head = false;
  Effort effort = Effort::kDefault;  // level of TensorAnalysis::own; kCompat: none
  // Rotary embedding of the model: K is also priced with it undone.
  std::optional<ModelRope> rope = {};
  // Orders of the snapshot's cells, for TensorAnalysis::own; null: rows keep their order.
  const RowOrders* orders = nullptr;
};

// The place of a tensor in the model.
struct TensorPlace {
  uint32_t layer = 0;                       // number in the snapshot
  uint32_t model_layer = 0;                 // number in the model
  std::span<const int64_t> positions = {};  // of K's tokens; if empty, token t is at position t
};

// Computes all figures of a tensor in two passes over the tensor, and one more for each optional
// figure. Needs memory for a few slices, whatever the tensor's size. Throws kUsage if the rotation
// does not fit.
TensorAnalysis AnalyseTensor(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                             const TensorOptions& options, const TensorPlace& place = {});

// Returns the model that needs the fewest bits. `models` must not be empty.
const EntropyModel& Cheapest(const std::vector<EntropyModel>& models);

const Fields<Coded>& CodedFields();
// Returns the fields of one tensor in the document of analyze, which also make its line of JSON.
const Fields<TensorAnalysis>& TensorAnalysisFields();
std::string TensorJsonText(const TensorAnalysis& tensor);

}  // namespace kv::analysis
