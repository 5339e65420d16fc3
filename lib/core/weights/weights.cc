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

// Collects faults; the name of the header field or block is where a reader looks the offset up.
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

  // Within an MLP each block takes what the one before it gives; layers are all alike.
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

// Every type that weights come in, through float.
float Widen(AsF16 value) { return F16ToF32(value.bits); }
float Widen(AsBF16 value) { return BF16ToF32(value.bits); }
template <typename T>
float Widen(T value) {
  return static_cast<float>(value);
}

// As torch rounds a float that came from a value of type From.
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
      throw Error(Finding::kUnsupportedDtype,
                  fmt::format("weights cannot be written as {}", Name(to)));
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
  // What decides is the shape: the header's head_dim is read by nobody.
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
      throw Error(Finding::kUnsupportedDtype,
                  fmt::format("{} values cannot be read as weights", Name(view.dtype)));
  }
  return to == view.dtype ? values : out;  // the same type keeps its NaN payloads
}

}  // namespace kv
