// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/analysis/tensor_analysis.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lib/core/archive/coded_rows.h"
#include "lib/core/base/hash.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/layout.h"

namespace kv::analysis {
namespace {

bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// Calls `body` with the first token and the number of tokens of every chunk that `compress` makes.
template <typename Body>
void ForEachChunk(const KvTensor& tensor, uint64_t row_bytes, Effort effort, Body body) {
  const uint64_t step = ChunkBytesAt(effort) / std::max<uint64_t>(1, row_bytes);
  ForEachPiece(tensor.tokens(), std::max<uint64_t>(1, step), body);
}

// Encodes chunks, decodes them again and keeps both hashes.
class Measurer {
 public:
  explicit Measurer(Effort effort) : effort_(effort) {}

  void Add(const ChunkShape& shape, ByteSpan raw) {
    const EncodedChunk chunk = EncodeChunk(shape, raw, effort_, scratch_);
    const auto decoded = decoded_.Get(raw.size()).first(raw.size());
    DecodeChunk(chunk.codec, shape, chunk.payload, decoded, scratch_);
    Count(shape.dtype, chunk, raw, decoded);
  }

  // Rows as `compress` codes them; `order` is that of their cells, or null.
  void AddRows(ChunkHead head, ByteSpan raw, const RowOrder* order) {
    const Order source_order = head.order;
    const EncodedChunk chunk = EncodeRows(head, raw, order, effort_, scratch_);
    auto decoded = decoded_.Get(raw.size()).first(raw.size());
    DecodeRows(chunk.codec, head, chunk.payload, head.by_cells ? order : nullptr, decoded,
               scratch_);
    if (head.order != source_order) {
      const auto apart = scratch_.ordered.Get(raw.size()).first(raw.size());
      std::ranges::copy(decoded, apart.begin());
      Reorder(apart, head.order, decoded, source_order, head.tokens, head.heads, head.units,
              head.unit_bytes);
    }
    Count(head.dtype, chunk, raw, decoded);
  }

  Measured Finish() {
    measured_.raw_hash = raw_hash_.Digest();
    measured_.decoded_hash = decoded_hash_.Digest();
    return measured_;
  }

 private:
  void Count(DType dtype, const EncodedChunk& chunk, ByteSpan raw, ByteSpan decoded) {
    raw_hash_.Update(raw);
    decoded_hash_.Update(decoded);
    measured_.Add({raw.size(), chunk.payload.size()});
    ++measured_.chunks;
    ++measured_.codecs[chunk.codec];
    if (chunk.codec == CodecId::kRaw && Info(dtype).is_float) {
      const uint32_t planes = Info(dtype).block_bytes;
      measured_.planes.resize(planes);
      for (Coded& plane : measured_.planes) {
        plane.Add({raw.size() / planes, raw.size() / planes});
      }
    }
    measured_.planes.resize(std::max(measured_.planes.size(), chunk.planes.size()));
    for (size_t i = 0; i < chunk.planes.size(); ++i) {
      measured_.planes[i].Add(
          {chunk.planes[i].raw_bytes, chunk.planes[i].payload_bytes + kPlaneHeaderBytes});
    }
  }

  Effort effort_;
  Measured measured_;
  CodecScratch scratch_;
  ScratchBuffer decoded_;
  StreamingHash raw_hash_, decoded_hash_;
};

// What compress does: head by head where heads are known.
ChunkShape ShapeOf(const KvTensor& tensor, uint64_t tokens) {
  return {tensor.dtype, tokens, tensor.heads, tensor.units_per_head(),
          tensor.heads_known ? Order::kHeadTokenDim : Order::kTokenHeadDim};
}

std::vector<Coded> CodeHeads(const Snapshot& snapshot, const KvTensor& tensor) {
  std::vector<Coded> heads;
  CodecScratch scratch;
  Bytes raw;
  const uint64_t row_bytes = tensor.units_per_head() * tensor.unit_bytes();
  for (uint32_t head = 0; head < tensor.heads; ++head) {
    Coded& coded = heads.emplace_back();
    ForEachChunk(tensor, row_bytes, Effort::kCompat, [&](uint64_t begin, uint64_t tokens) {
      raw.resize(tokens * row_bytes);
      Gather(tensor, begin, tokens, head, 1, Order::kHeadTokenDim, raw);
      const ChunkShape shape = {tensor.dtype, tokens, 1, tensor.units_per_head(),
                                Order::kHeadTokenDim};
      const EncodedChunk chunk = EncodeChunk(shape, raw, Effort::kCompat, scratch);
      coded.Add({raw.size(), chunk.payload.size()});
    });
  }
  DropTensor(snapshot, tensor);
  return heads;
}

// Stores f32 values, all of which are exact in `dtype`, in half their size.
Measured CodeNarrow(const Snapshot& snapshot, const KvTensor& tensor, DType dtype) {
  Measurer measurer(Effort::kCompat);
  Bytes halves;
  ForEachChunk(tensor, tensor.row_bytes() / 2, Effort::kCompat,
               [&](uint64_t begin, uint64_t tokens) {
                 ChunkShape shape = ShapeOf(tensor, tokens);
                 const Bytes raw = Gather(tensor, begin, tokens, shape.order);
                 std::vector<float> floats(raw.size() / 4);
                 std::memcpy(floats.data(), raw.data(), raw.size());
                 halves.resize(raw.size() / 2);
                 (dtype == DType::kF16 ? FloatToHalf : FloatToBFloat)(floats.data(), halves.data(),
                                                                      floats.size());
                 shape.dtype = dtype;
                 measurer.Add(shape, halves);
                 DropTokens(snapshot, tensor, begin, tokens);
               });
  Measured measured = measurer.Finish();
  measured.raw_bytes = tensor.bytes();  // what it stands for
  return measured;
}

// By kvtool's codecs, in the order of cells where that is how `compress` does it.
Measured CodeRows(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                  const TensorOptions& options, uint32_t layer) {
  Measurer measurer(options.effort);
  ForEachChunk(tensor, tensor.row_bytes(), options.effort, [&](uint64_t begin, uint64_t tokens) {
    const Bytes rows = Gather(tensor, begin, tokens, Order::kTokenHeadDim);
    ChunkShape shape = ShapeOf(tensor, tokens);
    shape.order = Order::kTokenHeadDim;
    const std::shared_ptr<const RowOrder> order =
        options.orders == nullptr ? nullptr : options.orders->Of(layer, begin, tokens);
    measurer.AddRows(HeadOfRows(is_value, shape, tensor.heads_known), rows, order.get());
    DropTokens(snapshot, tensor, begin, tokens);
  });
  return measurer.Finish();
}

// Whether tokens can stand there; files may say anything.
bool AreOfARun(std::span<const int64_t> positions) {
  return !positions.empty() &&
         std::all_of(positions.begin(), positions.end(),
                     [](int64_t position) { return position >= 0 && position <= INT32_MAX; });
}

// `positions` are of all tokens; the last one tells how long the run was.
Unrotated Unrotate(const Snapshot& snapshot, const KvTensor& tensor, Rope rope, bool interleaved,
                   std::span<const int64_t> positions) {
  rope.pairs = interleaved ? RopePairs::kNeighbours : RopePairs::kHalves;
  const int64_t last = *std::max_element(positions.begin(), positions.end());
  const auto length = static_cast<uint64_t>(last) + 1;
  EntropyModels models(tensor.dtype, tensor.channels(), tensor.tokens());
  std::vector<float> floats;
  ForEachChunk(tensor, tensor.row_bytes(), Effort::kCompat, [&](uint64_t begin, uint64_t tokens) {
    Bytes rows = Gather(tensor, begin, tokens, Order::kTokenHeadDim);
    floats.resize(rows.size() / 2);
    ToFloats(tensor.dtype, rows, floats);
    const RopeTable turns(rope, tensor.head_dim,
                          TurnsBack(positions.subspan(begin, tokens), length));
    for (uint64_t t = 0; t < tokens; ++t) {
      turns.Rotate(t, tensor.heads, &floats[t * tensor.channels()]);
    }
    (tensor.dtype == DType::kF16 ? FloatToHalf : FloatToBFloat)(floats.data(), rows.data(),
                                                                floats.size());
    models.Add(rows, tokens);
    DropTokens(snapshot, tensor, begin, tokens);
  });
  return {interleaved, models.Models()};
}

// Byte planes with their tables, in bits per unit. The quants of a block type share one table; no
// table is worth more than storing bytes as they are.
double PlaneTableBits(const TensorAnalysis& tensor, double units) {
  const auto& bits = tensor.stats.plane_entropy_bits;
  const auto& symbols = tensor.stats.plane_symbols;
  const size_t quants = !IsBlockQuantised(tensor.dtype) ? 0
                        : tensor.dtype == DType::kQ8_0  ? 32
                                                        : 16;
  const auto price = [](uint32_t count, double n) {
    return static_cast<double>(std::max(count, 1u) - 1) / 2 * std::log2(std::max(n, 2.0)) / n;
  };
  double tables = 0;
  for (size_t i = 0; i + quants < bits.size(); ++i) {
    tables += std::min(price(symbols[i], units), 8 - bits[i]);
  }
  if (quants > 0) {
    const auto first = symbols.end() - static_cast<std::ptrdiff_t>(quants);
    const double n = static_cast<double>(quants) * units;
    tables += static_cast<double>(quants) * price(*std::max_element(first, symbols.end()), n);
  }
  return tables;
}

}  // namespace

const EntropyModel& Cheapest(const std::vector<EntropyModel>& models) {
  return *std::min_element(
      models.begin(), models.end(),
      [](const EntropyModel& a, const EntropyModel& b) { return a.total_bits() < b.total_bits(); });
}

EntropyModel TensorAnalysis::bound() const {
  if (!models.empty()) return Cheapest(models);
  if (values() == 0) return {"byte_planes", "", 0};
  const auto& planes = stats.plane_entropy_bits;
  const double block = static_cast<double>(Info(dtype).block_elements);
  const double bits = std::accumulate(planes.begin(), planes.end(), 0.0) / block;
  return {"byte_planes", "every byte of a value (or block) on its own", bits,
          PlaneTableBits(*this, values() / block) / block};
}

TensorAnalysis AnalyseTensor(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                             const TensorOptions& options, const TensorPlace& place) {
  TensorAnalysis out;
  out.dtype = tensor.dtype;
  out.tokens = tensor.tokens();
  out.heads = tensor.heads;
  out.head_dim = tensor.head_dim;
  out.heads_known = tensor.heads_known;

  const uint64_t units = tensor.units_per_head() * tensor.heads;
  std::optional<EntropyModels> models;
  if (IsHalf(tensor.dtype)) models.emplace(tensor.dtype, units, out.tokens);
  if (tensor.dtype == DType::kF32) out.narrowness.emplace();
  StructureFinder structure(units, tensor.unit_bytes());
  Measurer measurer(Effort::kCompat);
  Bytes coded_order;
  ForEachChunk(tensor, tensor.row_bytes(), Effort::kCompat, [&](uint64_t begin, uint64_t tokens) {
    const Bytes rows = Gather(tensor, begin, tokens, Order::kTokenHeadDim);
    structure.Add(rows, tokens);
    if (models) models->Add(rows, tokens);
    if (out.narrowness) CountNarrow(rows, *out.narrowness);
    const ChunkShape shape = ShapeOf(tensor, tokens);
    if (shape.order == Order::kTokenHeadDim || tensor.heads == 1) {
      measurer.Add(shape, rows);
    } else {
      coded_order.resize(rows.size());
      Reorder(rows, Order::kTokenHeadDim, coded_order, shape.order, tokens, tensor.heads,
              tensor.units_per_head(), tensor.unit_bytes());
      measurer.Add(shape, coded_order);
    }
    DropTokens(snapshot, tensor, begin, tokens);
  });
  out.measured = measurer.Finish();
  if (options.effort != Effort::kCompat)
    out.own = CodeRows(snapshot, tensor, is_value, options, place.layer);
  out.structure = structure.Finish();
  if (models) {
    out.models = models->Models();
    out.autoregressive_gain_bits = models->autoregressive_gain_bits();
    out.stats = StatsOfPatterns(tensor.dtype, models->patterns());
  } else {
    out.stats = StatsOf(snapshot, tensor, is_value);
  }
  const bool finite = out.stats.nan_count + out.stats.infinite_count == 0;
  std::vector<int64_t> counted(place.positions.empty() ? out.tokens : 0);
  std::iota(counted.begin(), counted.end(), 0);
  const std::span<const int64_t> positions = place.positions.empty() ? counted : place.positions;
  if (options.rope && models && tensor.heads_known && finite && AreOfARun(positions)) {
    const Rope& rope = options.rope->Of(place.model_layer);
    RequireFit(rope, tensor.head_dim);
    for (const bool interleaved : {true, false}) {
      out.unrotated.push_back(Unrotate(snapshot, tensor, rope, interleaved, positions));
    }
  }
  if (options.per_head && tensor.heads_known) out.heads_coded = CodeHeads(snapshot, tensor);
  if (out.narrowness && (out.narrowness->is_f16() || out.narrowness->is_bf16())) {
    // What fits both is mostly zeros; f16 keeps more of the rest.
    out.narrow_dtype = out.narrowness->is_f16() ? DType::kF16 : DType::kBF16;
    out.narrow = CodeNarrow(snapshot, tensor, *out.narrow_dtype);
  }
  DropTensor(snapshot, tensor);
  return out;
}

}  // namespace kv::analysis
