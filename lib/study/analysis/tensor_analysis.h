// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/core/codec/chunk.h"
#include "lib/core/snapshot/snapshot.h"
#include "lib/engines/infinilm/quality.h"
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
};

// What a codec makes of a tensor, cut as `compress` cuts it.
struct Measured : Coded {
  // By byte plane of a value, least significant first: payloads and their headers. Chunks that are
  // stored as they are count half and half. Empty for types without planes.
  std::vector<Coded> planes;
  uint64_t raw_hash = 0, decoded_hash = 0;  // of all chunks, in order
  uint64_t chunks = 0;
  std::map<CodecId, uint64_t> codecs;  // how many chunks took each

  bool decodes() const { return raw_hash == decoded_hash; }
};

// 16-bit values with their rotary embedding undone and rounded again: what a predictor that knows
// the rotation could hope for. Models often do not say which dims they pair.
struct Unrotated {
  bool interleaved = false;  // pairs (2i, 2i+1), else halves
  std::vector<EntropyModel> models;
};

struct TensorAnalysis {
  DType dtype = DType::kF16;
  uint64_t tokens = 0;
  uint32_t heads = 0, head_dim = 0;
  bool heads_known = false;
  Measured measured;               // the engine's codec, what `compress` does
  std::optional<Measured> own;     // kvtool's, at the level asked for
  std::vector<Coded> heads_coded;  // each head on its own, on request
  TensorStats stats;
  std::vector<EntropyModel> models;  // 16-bit floats only
  double autoregressive_gain_bits = 0;
  std::optional<double> cross_channel_gain_bits;  // inside a head; where heads are known
  std::vector<Unrotated> unrotated;               // on request
  Structure structure;
  // f32 only. Where every value is exact in half the size, `narrow` is what storing it so gives.
  std::optional<Narrowness> narrowness;
  std::optional<DType> narrow_dtype;
  std::optional<Measured> narrow;

  double values() const { return static_cast<double>(stats.values); }
  const Measured& better() const {
    return own && own->coded_bytes < measured.coded_bytes ? *own : measured;
  }
  bool decodes() const { return measured.decodes() && (!own || own->decodes()); }
  // Bits per value that the better codec reached.
  double reached_bits() const {
    return values() == 0 ? 0 : 8.0 * static_cast<double>(better().coded_bytes) / values();
  }
  // The model that needs least; of block types and f32 the sum of the planes' entropies.
  EntropyModel bound() const;
};

struct TensorOptions {
  bool per_head = false;
  Effort effort = Effort::kDefault;  // of TensorAnalysis::own; kCompat: none
  Rope rope = {};                    // of the model; known: K is also priced with it undone
};

// Everything above, in one walk over the tensor and one more per further answer. Needs memory for a
// few slices, whatever the tensor's size. `positions` are those of K's tokens; empty: their places.
TensorAnalysis AnalyseTensor(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                             const TensorOptions& options, std::span<const int64_t> positions = {});

// The model that needs least.
const EntropyModel& Cheapest(const std::vector<EntropyModel>& models);

}  // namespace kv::analysis
