// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/archive/coded_rows.h"
#include "lib/core/codec/chunk.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/study/analysis/entropy_models.h"
#include "lib/study/analysis/structure.h"
#include "lib/study/statistics/tensor_stats.h"

namespace kv::analysis {

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
  // Payloads with their headers by byte plane of a value, least significant first. A chunk that is
  // stored as it is counts in equal parts for all planes. Empty for types without planes.
  std::vector<Coded> planes;
  uint64_t raw_hash = 0, decoded_hash = 0;  // of all chunks, in order
  uint64_t chunks = 0;
  std::map<CodecId, uint64_t> codecs;  // the number of chunks that each codec coded

  bool decodes() const { return raw_hash == decoded_hash; }
};

// The entropy models of 16-bit values whose rotary embedding is undone and which are then rounded
// again: what a predictor that knows the rotation could hope for. Both ways to pair dimensions are
// tried, because models often do not say which is theirs.
struct Unrotated {
  bool interleaved = false;  // pairs (2i, 2i+1), else halves
  std::vector<EntropyModel> models;
};

struct TensorAnalysis {
  DType dtype = DType::kF16;
  uint64_t tokens = 0;
  uint32_t heads = 0, head_dim = 0;
  bool heads_known = false;
  Measured measured;               // by MNN's codec (level compat)
  std::optional<Measured> own;     // by kvtool's codecs at the level asked for
  std::vector<Coded> heads_coded;  // each head coded on its own, if asked for
  TensorStats stats;
  std::vector<EntropyModel> models;  // 16-bit floats only
  double autoregressive_gain_bits = 0;
  // Inside a head; only if the heads are known. Analyse adds it: it needs a BLAS.
  std::optional<double> cross_channel_gain_bits;
  std::vector<Unrotated> unrotated;  // if asked for
  Structure structure;
  // f32 only. If every value is exact in a type of half the size, `narrow` is the result of coding
  // the values in that type.
  std::optional<Narrowness> narrowness;
  std::optional<DType> narrow_dtype;
  std::optional<Measured> narrow;

  double values() const { return static_cast<double>(stats.values); }
  const Measured& better() const {
    return own && own->coded_bytes < measured.coded_bytes ? *own : measured;
  }
  bool decodes() const { return measured.decodes() && (!own || own->decodes()); }
  // Returns the bits per value that the better codec reached.
  double reached_bits() const {
    return values() == 0 ? 0 : 8.0 * static_cast<double>(better().coded_bytes) / values();
  }
  // Returns the model that needs the fewest bits; for block types and f32, the sum of the entropies
  // of the byte planes.
  EntropyModel bound() const;
};

struct TensorOptions {
  bool per_head = false;
  Effort effort = Effort::kDefault;  // level of TensorAnalysis::own; kCompat: leave it out
  // Of the model: K is also priced with it undone.
  std::optional<ModelRope> rope = {};
  // Of the snapshot's cells, for TensorAnalysis::own; null where rows stay where they are.
  const RowOrders* orders = nullptr;
};

// Where a tensor comes from.
struct TensorPlace {
  uint32_t layer = 0;                       // as the snapshot numbers it
  uint32_t model_layer = 0;                 // as the model does
  std::span<const int64_t> positions = {};  // of K's tokens; if empty, token t is at position t
};

// Computes all of the above in two walks over the tensor, and in one more for each answer that is
// asked for. Needs memory for a few slices, whatever the tensor's size. Throws kUsage where the
// rotation does not fit.
TensorAnalysis AnalyseTensor(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                             const TensorOptions& options, const TensorPlace& place = {});

// Returns the model that needs the fewest bits. `models` must not be empty.
const EntropyModel& Cheapest(const std::vector<EntropyModel>& models);

}  // namespace kv::analysis
