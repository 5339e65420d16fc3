// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Analyses one tensor: codes it with MNN's and kvtool's codecs, finds repeated rows and channels,
// and prices it under the entropy models.
#include "lib/study/analysis/tensor_analysis.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "lib/core/archive/coded_rows.h"
#include "lib/core/base/hash.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/layout.h"

namespace kv::analysis {
namespace {

// Rows shorter than this repeat by chance, and their hashes would take more memory than the rows.
constexpr uint64_t kLeastRow = 8;

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

  // Codes rows as `compress` does; `order` is the order of their cells, or null.
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

// Returns the shape in which compress codes a tensor: by heads if these are known.
ChunkShape ToChunkShape(const KvTensor& tensor, uint64_t tokens) {
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

// Codes f32 values that are all exact in `dtype` at half their size.
Measured CodeNarrow(const Snapshot& snapshot, const KvTensor& tensor, DType dtype) {
  Measurer measurer(Effort::kCompat);
  Bytes halves;
  ForEachChunk(tensor, tensor.row_bytes() / 2, Effort::kCompat,
               [&](uint64_t begin, uint64_t tokens) {
                 ChunkShape shape = ToChunkShape(tensor, tokens);
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
  measured.raw_bytes = tensor.bytes();  // size of the values as f32
  return measured;
}

// Codes rows with kvtool's codecs, in the order of cells if `compress` would use it.
Measured CodeRows(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                  const TensorOptions& options, uint32_t layer) {
  Measurer measurer(options.effort);
  ForEachChunk(tensor, tensor.row_bytes(), options.effort, [&](uint64_t begin, uint64_t tokens) {
    const Bytes rows = Gather(tensor, begin, tokens, Order::kTokenHeadDim);
    ChunkShape shape = ToChunkShape(tensor, tokens);
    shape.order = Order::kTokenHeadDim;
    const std::shared_ptr<const RowOrder> order =
        options.orders == nullptr ? nullptr : options.orders->Of(layer, begin, tokens);
    measurer.AddRows(HeadOfRows(is_value, shape, tensor.heads_known), rows, order.get());
    DropTokens(snapshot, tensor, begin, tokens);
  });
  return measurer.Finish();
}

// Returns true if the positions are plausible; a file may contain any numbers.
bool ArePlausiblePositions(std::span<const int64_t> positions) {
  return !positions.empty() &&
         std::all_of(positions.begin(), positions.end(),
                     [](int64_t position) { return position >= 0 && position <= INT32_MAX; });
}

// `positions` has one entry per token; the last one is the length of the run.
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
    const RopeTable rotations(rope, tensor.head_dim,
                              ShiftsToZero(positions.subspan(begin, tokens), length));
    for (uint64_t t = 0; t < tokens; ++t) {
      rotations.Rotate(t, tensor.heads, &floats[t * tensor.channels()]);
    }
    (tensor.dtype == DType::kF16 ? FloatToHalf : FloatToBFloat)(floats.data(), rows.data(),
                                                                floats.size());
    models.Add(rows, tokens);
    DropTokens(snapshot, tensor, begin, tokens);
  });
  return {interleaved, models.Models()};
}

// Returns the cost of byte planes with their tables, in bits per unit. The quants of a block type
// share one table. The cost is capped at the raw size, as a coder would store the bytes instead.
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

StructureFinder::StructureFinder(uint64_t units, uint32_t unit_bytes)
    : units_(units), unit_bytes_(unit_bytes) {
  found_.channels = units;
}

void StructureFinder::Add(ByteSpan rows, uint64_t tokens) {
  const uint64_t row_bytes = units_ * unit_bytes_;
  KV_ASSERT(rows.size() == tokens * row_bytes);
  if (tokens == 0) return;
  if (found_.tokens == 0) {
    first_.assign(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(row_bytes));
    differs_.resize(row_bytes);
  }
  for (uint64_t t = 0; t < tokens; ++t) {
    const ByteSpan row = rows.subspan(t * row_bytes, row_bytes);
    std::byte any{0};
    for (uint64_t i = 0; i < row_bytes; ++i) {
      differs_[i] |= row[i] ^ first_[i];
      any |= row[i];
    }
    if (any == std::byte{0}) {
      ++found_.zero_rows;
      ++found_.trailing_zero_rows;
      continue;
    }
    found_.trailing_zero_rows = 0;
    if (row_bytes >= kLeastRow) row_hashes_.push_back(Hash64(row));
  }
  found_.tokens += tokens;
}

Structure StructureFinder::Finish() const {
  Structure found = found_;
  std::vector<uint64_t> hashes = row_hashes_;
  std::sort(hashes.begin(), hashes.end());
  const auto distinct = std::unique(hashes.begin(), hashes.end()) - hashes.begin();
  found.repeated_rows = hashes.size() - static_cast<uint64_t>(distinct);
  // A single token cannot show that a channel is constant.
  if (found.tokens < 2) return found;
  const auto is_zero = [&](const Bytes& bytes, uint64_t unit) {
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(unit * unit_bytes_);
    return std::all_of(begin, begin + unit_bytes_, [](std::byte b) { return b == std::byte{0}; });
  };
  for (uint64_t unit = 0; unit < units_; ++unit) {
    if (!is_zero(differs_, unit)) continue;
    ++found.constant_channels;
    found.zero_channels += is_zero(first_, unit);
  }
  return found;
}

void CountNarrow(ByteSpan floats, Narrowness& narrowness) {
  constexpr size_t kStep = 4096;
  float values[kStep], back[kStep];
  std::byte halves[2 * kStep];
  const size_t count = floats.size() / 4;
  for (size_t begin = 0; begin < count; begin += kStep) {
    const size_t n = std::min(kStep, count - begin);
    std::memcpy(values, floats.data() + 4 * begin, 4 * n);
    FloatToHalf(values, halves, n);
    HalfToFloat(halves, back, n);
    for (size_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<uint32_t>(values[i]);
      narrowness.exact_f16 += bits == std::bit_cast<uint32_t>(back[i]);
      narrowness.exact_bf16 += (bits & 0xffff) == 0;
    }
  }
  narrowness.values += count;
}

const EntropyModel& Cheapest(const std::vector<EntropyModel>& models) {
  return *std::ranges::min_element(models, {}, &EntropyModel::total_bits);
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

namespace {

// Undoes RoPE if the positions are known, for each way to pair dimensions.
std::vector<Unrotated> UndoRope(const Snapshot& snapshot, const KvTensor& tensor,
                                const ModelRope& ropes, const TensorPlace& place) {
  std::vector<Unrotated> unrotated;
  std::vector<int64_t> counted(place.positions.empty() ? tensor.tokens() : 0);
  std::iota(counted.begin(), counted.end(), 0);
  const std::span<const int64_t> positions = place.positions.empty() ? counted : place.positions;
  if (!ArePlausiblePositions(positions)) return unrotated;
  const Rope& rope = ropes.Of(place.model_layer);
  RequireFit(rope, tensor.head_dim);
  for (const bool interleaved : {true, false})
    unrotated.push_back(Unrotate(snapshot, tensor, rope, interleaved, positions));
  return unrotated;
}

}  // namespace

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
  if (IsHalfFloat(tensor.dtype)) models.emplace(tensor.dtype, units, out.tokens);
  if (tensor.dtype == DType::kF32) out.narrowness.emplace();
  StructureFinder structure(units, tensor.unit_bytes());
  Measurer measurer(Effort::kCompat);
  Bytes coded_order;
  ForEachChunk(tensor, tensor.row_bytes(), Effort::kCompat, [&](uint64_t begin, uint64_t tokens) {
    const Bytes rows = Gather(tensor, begin, tokens, Order::kTokenHeadDim);
    structure.Add(rows, tokens);
    if (models) models->Add(rows, tokens);
    if (out.narrowness) CountNarrow(rows, *out.narrowness);
    const ChunkShape shape = ToChunkShape(tensor, tokens);
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
    out.stats = ComputePatternStats(tensor.dtype, models->patterns());
  } else {
    out.stats = MeasureTensor(snapshot, tensor, is_value);
  }
  const bool finite = out.stats.nan_count + out.stats.infinite_count == 0;
  if (options.rope && models && tensor.heads_known && finite)
    out.unrotated = UndoRope(snapshot, tensor, *options.rope, place);
  if (options.per_head && tensor.heads_known) out.heads_coded = CodeHeads(snapshot, tensor);
  if (out.narrowness && (out.narrowness->is_f16() || out.narrowness->is_bf16())) {
    // Values that are exact in both types are mostly zeros; f16 is preferred, because it has more
    // mantissa bits.
    out.narrow_dtype = out.narrowness->is_f16() ? DType::kF16 : DType::kBF16;
    out.narrow = CodeNarrow(snapshot, tensor, *out.narrow_dtype);
  }
  DropTensor(snapshot, tensor);
  return out;
}

const Fields<Coded>& CodedFields() {
  static const Fields<Coded> fields = {
      {"raw_bytes", "Bytes before coding", &Coded::raw_bytes},
      {"coded_bytes", "Bytes after coding, headers included", &Coded::coded_bytes},
      {"ratio", "raw_bytes / coded_bytes; 1 where nothing was coded", &Coded::ratio, {.above = 0}},
      {"removed_fraction",
       "Share of the raw bytes that coding removes: 1 - coded_bytes / raw_bytes",
       &Coded::removed,
       {.most = 1}}};
  return fields;
}

namespace {

constexpr const char* kTaggedHashPattern = "^xxh3:[0-9a-f]{16}$";

const Fields<Measured>& MeasuredFields() {
  static const Fields<Measured> fields = {
      Fields<Measured>::Inline([](const Measured& of) -> const Coded& { return of; },
                               CodedFields()),
      {"chunks", "Number of chunks that the tensor was cut into, as compress cuts it",
       &Measured::chunks},
      {"decodes", "Whether all chunks decode to the same bytes again, by hash", &Measured::decodes},
      {"xxh3",
       "XXH3 hash (64 bits) of the tensor's bytes in the order of the chunks",
       [](const Measured& of) { return HashText(of.raw_hash); },
       {.pattern = kTaggedHashPattern}},
      {"codecs", "Number of chunks that each codec coded, by its name",
       [](const Measured& of) {
         std::map<std::string, uint64_t> chunks;
         for (const auto& [codec, count] : of.codecs) chunks.emplace(Name(codec), count);
         return chunks;
       }},
      {"planes",
       "Size of each byte plane of the values, least significant first; empty for types without "
       "planes",
       &Measured::planes, CodedFields()}};
  return fields;
}

const Fields<EntropyModel>& EntropyModelFields() {
  static const Fields<EntropyModel> fields = {
      {"name", "Name of the model", &EntropyModel::name},
      {"bits", "Bits per value that an ideal coder needs with this model's context",
       &EntropyModel::bits, AtLeast(0)},
      {"table_bits", "Bits per value for the model's own parameters; 0 for adaptive models",
       &EntropyModel::table_bits, AtLeast(0)}};
  return fields;
}

const Fields<Structure>& StructureFields() {
  static const Fields<Structure> fields = {
      {"zero_rows", "Number of tokens of which every byte is zero", &Structure::zero_rows},
      {"trailing_zero_rows", "Number of zero tokens at the end, which are padding",
       &Structure::trailing_zero_rows},
      {"repeated_rows", "Number of rows equal, by hash, to an earlier row that is not zero",
       &Structure::repeated_rows},
      {"constant_channels", "Number of channels that are equal in all tokens",
       &Structure::constant_channels},
      {"zero_channels", "Channels that are zero in all tokens", &Structure::zero_channels}};
  return fields;
}

const Fields<Narrowness>& NarrownessFields() {
  static const Fields<Narrowness> fields = {
      {"f16_values", "Number of values that are exact in f16", &Narrowness::exact_f16},
      {"bf16_values", "Number of values that are exact in bf16", &Narrowness::exact_bf16},
      {"is_f16", "Whether every value is exact in f16", &Narrowness::is_f16},
      {"is_bf16", "Whether every value is exact in bf16", &Narrowness::is_bf16}};
  return fields;
}

const Fields<Unrotated>& UnrotatedFields() {
  static const Fields<Unrotated> fields = {
      {"pairs",
       "Which dimensions the rotation pairs: neighbours (2i, 2i+1), or halves (i, i + dims/2)",
       [](const Unrotated& of) { return of.interleaved ? "adjacent" : "halves"; },
       OneOf("adjacent", "halves")},
      {"models", "Every entropy model of the values without the rotation", &Unrotated::models,
       EntropyModelFields()}};
  return fields;
}

struct Narrowed {
  const Measured& measured;
  DType dtype;
};

std::optional<Narrowed> ChooseNarrower(const TensorAnalysis& tensor) {
  if (!tensor.narrow) return std::nullopt;
  return Narrowed{*tensor.narrow, *tensor.narrow_dtype};
}

const Fields<Narrowed>& NarrowedFields() {
  static const Fields<Narrowed> fields = {
      Fields<Narrowed>::Inline([](const Narrowed& of) -> const Measured& { return of.measured; },
                               MeasuredFields()),
      {"dtype", "The narrower type in which the values were coded",
       [](const Narrowed& of) { return Name(of.dtype); }, OneOf("f16", "bf16")}};
  return fields;
}

template <typename T>
const std::vector<T>* UnlessEmpty(const std::vector<T>& list) {
  return list.empty() ? nullptr : &list;
}

}  // namespace

const Fields<TensorAnalysis>& TensorAnalysisFields() {
  using Tensor = TensorAnalysis;
  static const Fields<EntropyModel> bound = {
      {"bits_per_value", "Bits per value under the cheapest model, its table included",
       &EntropyModel::total_bits, AtLeast(0)},
      {"model", "Name of the cheapest model", &EntropyModel::name}};
  static const Value entropy = Value::Object{{"type", "number"}, {"minimum", 0}, {"maximum", 8}};
  static const Fields<Tensor> fields = {
      {"dtype", "Element type as stored", [](const Tensor& of) { return Name(of.dtype); }},
      {"tokens", "Number of tokens", &Tensor::tokens},
      {"kv_heads", "Number of kv heads; null: the heads are not known",
       [](const Tensor& of) { return of.heads_known ? std::optional(of.heads) : std::nullopt; }},
      {"head_dim", "Number of values of a head; null: the heads are not known",
       [](const Tensor& of) { return of.heads_known ? std::optional(of.head_dim) : std::nullopt; }},
      {"channels",
       "Number of storage units of a row: heads times values of a head, or blocks of a block type",
       [](const Tensor& of) { return of.structure.channels; }},
      {"measured", "Sizes under MNN's codec (level compat)", &Tensor::measured, MeasuredFields()},
      {"own", "Sizes under kvtool's codecs at the level asked for; null at level compat",
       &Tensor::own, MeasuredFields()},
      {"bits_per_value", "Bits per value of the better of both codecs", &Tensor::reached_bits,
       AtLeast(0)},
      {"bound", "Bits per value under the cheapest entropy model", &Tensor::bound, bound},
      {"models", "Every entropy model of 16-bit floats; empty for other types", &Tensor::models,
       EntropyModelFields()},
      {"unrotated",
       "The entropy models of K after its rotation is undone and its values are rounded again, for "
       "each way to pair dimensions",
       [](const Tensor& of) { return UnlessEmpty(of.unrotated); }, UnrotatedFields(), Absent()},
      {"autoregressive_gain_bits",
       "Bits per value that the best linear prediction from the token before would save if values "
       "were Gaussian; null for types without models",
       [](const Tensor& of) {
         return of.models.empty() ? std::nullopt : std::optional(of.autoregressive_gain_bits);
       }},
      {"cross_channel_gain_bits",
       "Bits per value that linear prediction from the channels of the same head would save if "
       "values were Gaussian; null: not measured",
       &Tensor::cross_channel_gain_bits},
      {"plane_entropy_bits",
       "Entropy of each byte plane in bits per byte, least significant first",
       [](const Tensor& of) { return of.stats.plane_entropy_bits; },
       {.schema = Value::Object{{"type", "array"}, {"items", entropy}}}},
      {"values", "Summary of the values",
       [](const Tensor& of) -> const ValueSummary& { return of.stats; }, ValueSummaryFields()},
      {"structure", "Rows and channels that repeat or are zero", &Tensor::structure,
       StructureFields()},
      {"exact", "For f32: how many values a type of half the size represents exactly",
       &Tensor::narrowness, NarrownessFields(), Absent()},
      {"narrow",
       "Sizes when f32 values that are exact in a type of half the size are coded in that type",
       ChooseNarrower, NarrowedFields(), Absent()},
      {"heads", "Sizes of each head coded on its own; only with --per-head",
       [](const Tensor& of) { return UnlessEmpty(of.heads_coded); }, CodedFields(), Absent()}};
  return fields;
}

std::string TensorJsonText(const TensorAnalysis& tensor) {
  return ToJson(TensorAnalysisFields().Object(tensor))
      .dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace kv::analysis
