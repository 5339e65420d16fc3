// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/weights/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/half.h"

namespace kv {
namespace {

// Collects faults; each names the header field or block, by which the reader looks up the offset.
class Checker {
 public:
  explicit Checker(const CompressorWeights& weights) : weights_(weights) {}

  std::vector<WeightsFault> Run() {
    CheckHeader();
    for (uint32_t layer = 0; layer < weights_.header.num_layers; ++layer) CheckLayer(layer);
    return std::move(faults_);
  }

 private:
  void Expect(std::string_view field, uint64_t found, uint64_t expected, std::string_view because,
              std::optional<uint64_t> offset = std::nullopt) {
    if (found == expected || faults_.size() >= kMostFaults) return;
    faults_.push_back({.finding = Finding::kInconsistent,
                       .field = std::string(field),
                       .offset = offset,
                       .found = fmt::to_string(found),
                       .expected = fmt::format("{} ({})", expected, because)});
  }

  void CheckHeader() {
    const WeightsHeader& header = weights_.header;
    const uint32_t count = header.blocks_per_layer;
    if (count % kSlotsPerMlp != 0) {
      faults_.push_back({.finding = Finding::kBadField,
                         .field = "weight_count_per_layer",
                         .found = fmt::to_string(count),
                         .expected = "a multiple of 3 (blocks per MLP)"});
    }
    if (count < kSlotsPerMlp || weights_.blocks.empty()) return;
    const LinearBlock& first = weights_.blocks[0];
    const LinearBlock& last = weights_.blocks[kSlotsPerMlp - 1];
    Expect("hidden_size", header.hidden_size, first.cols(), "cols of the first block");
    Expect("head_dim", header.head_dim, last.rows(), "rows of the last block of the first MLP");
    Expect("compression_factor x head_dim", uint64_t{header.compression_factor} * header.head_dim,
           first.cols(), "cols of the first block");
  }

  // Within an MLP each block's input has the width of the previous block's output; all layers are
  // alike.
  void CheckLayer(uint32_t layer) {
    const uint32_t count = weights_.header.blocks_per_layer;
    for (uint32_t i = 0; i < count; ++i) {
      const LinearBlock& block = weights_.Block(layer, i);
      if (i % kSlotsPerMlp != 0) {
        ExpectOfBlock(layer, i, "cols", block.cols(), weights_.Block(layer, i - 1).rows(),
                      "rows of the block before it");
      }
      if (layer == 0) continue;
      const LinearBlock& model = weights_.Block(0, i);
      ExpectOfBlock(layer, i, "rows", block.rows(), model.rows(), "as in layer 0");
      ExpectOfBlock(layer, i, "cols", block.cols(), model.cols(), "as in layer 0");
    }
  }

  void ExpectOfBlock(uint32_t layer, uint32_t index, std::string_view field, uint64_t found,
                     uint64_t expected, std::string_view because) {
    if (found == expected) return;
    std::optional<uint64_t> offset;
    const LinearBlock& block = weights_.Block(layer, index);
    if (block.offset != 0) offset = block.offset + (field == "cols" ? 4 : 0);
    Expect(fmt::format("{} {}", weights_.BlockName(layer, index), field), found, expected, because,
           offset);
  }

  const CompressorWeights& weights_;
  std::vector<WeightsFault> faults_;
};

struct AsF16 {
  uint16_t bits;
};
struct AsBF16 {
  uint16_t bits;
};

// Widens every type of weights to float.
float Widen(AsF16 value) { return F16ToF32(value.bits); }
float Widen(AsBF16 value) { return BF16ToF32(value.bits); }
template <typename T>
float Widen(T value) {
  return static_cast<float>(value);
}

// Narrows as torch rounds a float that came from a value of type From.
template <typename From>
void Narrow(float value, AsF16& out) {
  constexpr uint16_t kNan = 0x7e00, kSign = 0x8000;
  out.bits = F32ToF16(value);
  if (std::isnan(value)) out.bits = std::signbit(value) ? kNan | kSign : kNan;
}
template <typename From>
void Narrow(float value, AsBF16& out) {
  constexpr uint16_t kNan = std::is_same_v<From, AsF16> ? 0x7fc0 : 0xffff;
  out.bits = std::isnan(value) ? kNan : F32ToBF16(value);
}
template <typename From>
void Narrow(float value, float& out) {
  out = value;
}

template <typename From, typename To>
void Round(const std::byte* from, uint64_t count, std::byte* to, RoundingCounts& counts) {
  for (uint64_t i = 0; i < count; ++i) {
    From source;
    std::memcpy(&source, from + i * sizeof(From), sizeof(From));
    To target;
    Narrow<From>(Widen(source), target);
    std::memcpy(to + i * sizeof(To), &target, sizeof(To));

    double before;
    if constexpr (std::is_arithmetic_v<From>) {
      before = static_cast<double>(source);
    } else {
      before = Widen(source);
    }
    const double after = Widen(target);
    counts.nan += std::isnan(after);
    counts.infinite += std::isinf(before);
    counts.overflowed += std::isinf(after) && std::isfinite(before);
    counts.flushed += after == 0 && before != 0;
    counts.changed += before != after && !std::isnan(before);
  }
  counts.values += count;
}

template <typename From>
void RoundTo(DType to, const std::byte* from, uint64_t count, std::byte* out,
             RoundingCounts& counts) {
  switch (to) {
    case DType::kF32:
      return Round<From, float>(from, count, out, counts);
    case DType::kF16:
      return Round<From, AsF16>(from, count, out, counts);
    case DType::kBF16:
      return Round<From, AsBF16>(from, count, out, counts);
    default:
      throw Error(Finding::kUnsupportedDtype, "weights cannot be written as {}", Name(to));
  }
}

std::string Which(const LayerKv& layer, char which) {
  return fmt::format("layer {} {}", layer.index, which);
}

// Checks one MLP against the tensor that it will be applied to.
void CheckMlp(const CompressorWeights& weights, uint32_t layer, MlpRole role,
              const KvTensor& tensor, const StepPlan& plan) {
  const LinearBlock* blocks = weights.Mlp(layer, role);
  const std::string name =
      fmt::format("layer {} {}", layer, kMlpPrefixes[static_cast<size_t>(role)]);
  if (blocks == nullptr) {
    throw Error(Finding::kMissingRecord, "the weights have no {}", name);
  }
  const uint64_t in = uint64_t{plan.factor} * tensor.head_dim;
  if (blocks[0].cols() != in) {
    throw Error(Finding::kInconsistent, "{} has {} inputs, but {} tokens of head dim {} have {}",
                name, blocks[0].cols(), plan.factor, tensor.head_dim, in)
        .Hint("the compression factor of weights cannot be changed after training");
  }
  for (uint32_t slot = 1; slot < kSlotsPerMlp; ++slot) {
    if (blocks[slot].cols() != blocks[slot - 1].rows()) {
      throw Error(Finding::kInconsistent, "{}: block {} takes {} values, block {} gives {}", name,
                  slot, blocks[slot].cols(), slot - 1, blocks[slot - 1].rows());
    }
  }
  if (blocks[2].rows() != tensor.head_dim) {
    throw Error(Finding::kInconsistent, "{} gives {} values, but the head dim of the cache is {}",
                name, blocks[2].rows(), tensor.head_dim);
  }
}

void CheckTensor(const KvTensor& tensor, HadamardState hadamard) {
  if (tensor.tokens() == 0) throw Error(Finding::kInconsistent, "there are no tokens");
  const DTypeInfo& info = Info(tensor.dtype);
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 && tensor.dtype != DType::kBF16) {
    throw Error(Finding::kUnsupportedDtype, "the step is not defined for {} caches", info.name)
        .Hint("--dtype f16 (or f32, bf16) converts the cache first");
  }
  if (hadamard == HadamardState::kYes) {
    throw Error(Finding::kUnsupportedKind,
                "the values are Hadamard-rotated, which no compressor was trained on")
        .Hint("dump the cache unrotated, for example from an f16 cache");
  }
}

// Checks the tensors of one layer against each other and against the weights.
void CheckLayer(const Snapshot& snapshot, const LayerKv& layer, const CompressorWeights& weights,
                const StepSettings& settings, const StepPlan& plan) {
  if (!layer.v)
    throw Error(Finding::kUnsupportedKind, "there is no V to compress").In(Which(layer, 'V'));
  const struct {
    const KvTensor& tensor;
    char which;
    HadamardState hadamard;
    MlpRole text, image;
  } sides[] = {
      {layer.k, 'K', snapshot.k_hadamard, MlpRole::kTextK, MlpRole::kImageK},
      {*layer.v, 'V', snapshot.v_hadamard, MlpRole::kTextV, MlpRole::kImageV},
  };
  for (const auto& side : sides) {
    try {
      CheckTensor(side.tensor, side.hadamard);
      const uint64_t tokens = side.tensor.tokens();
      if (std::min(tokens, settings.seq_len.value_or(tokens)) != plan.tokens) {
        throw Error(Finding::kInconsistent,
                    "{} tokens, where layer {} K has {}: the step needs one length", tokens,
                    snapshot.layers.front().index, plan.tokens);
      }
      CheckMlp(weights, layer.index, side.text, side.tensor, plan);
      if (!weights.is_text_only()) CheckMlp(weights, layer.index, side.image, side.tensor, plan);
    } catch (Error& error) {
      throw error.In(Which(layer, side.which));
    }
  }
}

// Returns floor(tokens / factor) groups if these are at least `min_groups`, else 0.
uint64_t CountGroups(uint64_t tokens, uint32_t factor, uint64_t min_groups) {
  const uint64_t groups = tokens / factor;
  return groups < min_groups ? 0 : groups;
}

Segment MakeSegment(uint64_t begin, uint64_t tokens, const StepPlan& plan, MlpRole k, MlpRole v,
                    bool has_weights) {
  Segment segment{begin, tokens, 0, k, v, RawReason::kNone};
  if (tokens == 0) return segment;
  if (has_weights) segment.groups = CountGroups(tokens, plan.factor, plan.min_seq_len);
  if (segment.groups == 0) {
    segment.raw_reason = has_weights ? RawReason::kFewGroups : RawReason::kNoImageWeights;
  }
  return segment;
}

void AddCosts(const Snapshot& snapshot, const CompressorWeights& weights, StepPlan& plan) {
  for (const LayerKv& layer : snapshot.layers) {
    for (const bool is_value : {false, true}) {
      const KvTensor& tensor = is_value ? *layer.v : layer.k;
      plan.bytes_before += plan.tokens * tensor.row_bytes();
      plan.bytes_after += plan.new_length * tensor.row_bytes();
      for (const Segment& segment : plan.segments()) {
        if (segment.groups == 0) continue;
        const LinearBlock* blocks =
            weights.Mlp(layer.index, is_value ? segment.v_role : segment.k_role);
        for (uint32_t slot = 0; slot < kSlotsPerMlp; ++slot) {
          plan.flop +=
              2 * blocks[slot].rows() * blocks[slot].cols() * segment.groups * tensor.heads;
        }
      }
    }
  }
}

}  // namespace

const LinearBlock* CompressorWeights::Mlp(uint32_t layer, MlpRole role) const {
  const std::string_view name = kMlpPrefixes[static_cast<size_t>(role)];
  const auto found = std::find(prefixes.begin(), prefixes.end(), name);
  const auto index = static_cast<uint32_t>(found - prefixes.begin()) * kSlotsPerMlp;
  if (found == prefixes.end() || layer >= header.num_layers ||
      index + kSlotsPerMlp > header.blocks_per_layer) {
    return nullptr;
  }
  return &Block(layer, index);
}

std::string CompressorWeights::BlockName(uint32_t layer, uint32_t index) const {
  const uint32_t prefix = index / kSlotsPerMlp;
  if (prefix >= prefixes.size() || slots.size() != kSlotsPerMlp) {
    return fmt::format("layer {} block {}", layer, index);
  }
  return fmt::format("layer {} {} slot {}", layer, prefixes[prefix], slots[index % kSlotsPerMlp]);
}

Error WeightsFault::ToError() const {
  Error error(finding, fmt::format("{} is {}, expected {}", field, found, expected));
  if (offset) error.At(*offset);
  if (!effect.empty()) error.Hint(effect);
  return error;
}

std::vector<WeightsFault> CheckWeights(const CompressorWeights& weights) {
  return Checker(weights).Run();
}

std::vector<WeightsFault> CheckExpectation(const CompressorWeights& weights,
                                           const WeightsExpectation& expected) {
  std::vector<WeightsFault> faults;
  const auto expect = [&](std::string_view field, uint32_t found, uint32_t wanted,
                          std::string_view effect) {
    if (wanted == 0 || found == wanted) return;
    faults.push_back({.finding = Finding::kInconsistent,
                      .field = std::string(field),
                      .found = fmt::to_string(found),
                      .expected = fmt::format("{} (asked for)", wanted),
                      .effect = std::string(effect)});
  };
  const WeightsHeader& header = weights.header;
  expect("num_layers", header.num_layers, expected.layers,
         header.num_layers < expected.layers
             ? "csrc overwrites the layers it has weights for, then reports that nothing changed: "
               "the cache is left half compressed"
             : "both loaders ignore the extra layers");
  // The shape decides: no engine reads the header's head_dim.
  const uint64_t rows =
      weights.blocks.size() < kSlotsPerMlp ? 0 : weights.blocks[kSlotsPerMlp - 1].rows();
  expect("head_dim", static_cast<uint32_t>(rows), expected.head_dim,
         "csrc throws when the result is reshaped to heads; the engine stops");
  expect("compression_factor", header.compression_factor, expected.factor,
         "csrc prefers the caller's factor; when it does not fit the first block, nothing is "
         "compressed and no message says so");
  return faults;
}

RoundingCounts& RoundingCounts::operator+=(const RoundingCounts& other) {
  values += other.values;
  nan += other.nan;
  infinite += other.infinite;
  overflowed += other.overflowed;
  flushed += other.flushed;
  changed += other.changed;
  return *this;
}

Bytes RoundValues(const TensorView& view, DType to, RoundingCounts* counts) {
  RoundingCounts ignored;
  RoundingCounts& tally = counts == nullptr ? ignored : *counts;
  Bytes values = CopyContiguous(view);
  const uint64_t count = view.elements();
  Bytes out(BytesOf(to, count));
  const auto round = [&]<typename From>(From) {
    RoundTo<From>(to, values.data(), count, out.data(), tally);
  };
  switch (view.dtype) {
    case DType::kF32:
      round(float{});
      break;
    case DType::kF16:
      round(AsF16{});
      break;
    case DType::kBF16:
      round(AsBF16{});
      break;
    case DType::kF64:
      round(double{});
      break;
    case DType::kI8:
      round(int8_t{});
      break;
    case DType::kBool:
    case DType::kU8:
      round(uint8_t{});
      break;
    case DType::kI16:
      round(int16_t{});
      break;
    case DType::kU16:
      round(uint16_t{});
      break;
    case DType::kI32:
      round(int32_t{});
      break;
    case DType::kU32:
      round(uint32_t{});
      break;
    case DType::kI64:
      round(int64_t{});
      break;
    case DType::kU64:
      round(uint64_t{});
      break;
    default:
      throw Error(Finding::kUnsupportedDtype, "{} values cannot be read as weights",
                  Name(view.dtype));
  }
  return to == view.dtype ? values : out;  // a conversion would change NaN payloads
}

std::vector<TokenRange> StepPlan::Sources() const {
  std::vector<TokenRange> sources;
  sources.reserve(new_length);
  for (const Segment& segment : segments()) {
    const uint64_t end = segment.begin + segment.tokens;
    uint64_t at = segment.begin;
    for (uint64_t g = 0; g < segment.groups; ++g, at += factor)
      sources.push_back({at, at + factor});
    for (; at < end; ++at) sources.push_back({at, at + 1});
  }
  return sources;
}

uint64_t CompressedLength(uint64_t tokens, uint32_t factor, uint64_t min_groups) {
  const uint64_t groups = CountGroups(tokens, factor, min_groups);
  return tokens - groups * (factor - 1);
}

StepPlan PlanStep(const Snapshot& snapshot, const CompressorWeights& weights,
                  const StepSettings& settings) {
  RequireHeads(snapshot, "the compression step");
  if (snapshot.layers.empty()) throw Error(Finding::kInconsistent, "the snapshot has no layers");
  StepPlan plan;
  plan.factor_from_weights = settings.factor <= 1;
  plan.factor = plan.factor_from_weights ? weights.header.compression_factor : settings.factor;
  plan.min_seq_len_from_weights = settings.min_seq_len == 0;
  plan.min_seq_len =
      plan.min_seq_len_from_weights ? weights.header.min_seq_len : settings.min_seq_len;
  if (plan.factor <= 1) {
    throw Error(Finding::kInconsistent,
                "the weights' compression factor is {}: nothing to compress", plan.factor)
        .Hint("give --compression-factor");
  }
  if (!weights.Has(MlpRole::kTextK) || !weights.Has(MlpRole::kTextV)) {
    throw Error(Finding::kMissingRecord, "the weights have no MLPs for text");
  }
  const uint64_t stored = snapshot.layers.front().k.tokens();
  plan.tokens = std::min(stored, settings.seq_len.value_or(stored));
  plan.image_len = std::min(settings.image_len, plan.tokens);
  plan.layers = snapshot.layers.size();
  for (const LayerKv& layer : snapshot.layers) {
    if (layer.index >= weights.header.num_layers) {
      throw Error(Finding::kInconsistent, "the weights have {} layers, the cache has a layer {}",
                  weights.header.num_layers, layer.index);
    }
    CheckLayer(snapshot, layer, weights, settings, plan);
  }
  plan.image = MakeSegment(0, plan.image_len, plan, MlpRole::kImageK, MlpRole::kImageV,
                           !weights.is_text_only());
  plan.text = MakeSegment(plan.image_len, plan.tokens - plan.image_len, plan, MlpRole::kTextK,
                          MlpRole::kTextV, true);
  plan.new_length = plan.image.new_length(plan.factor) + plan.text.new_length(plan.factor);
  AddCosts(snapshot, weights, plan);
  return plan;
}

}  // namespace kv
