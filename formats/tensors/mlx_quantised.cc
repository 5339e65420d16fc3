// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/mlx_quantised.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "lib/core/base/checked.h"
#include "lib/core/base/half.h"

namespace kv::mlx {
namespace {

constexpr uint64_t kWordBits = 32;
constexpr uint64_t kWidest = 1 << 24;

struct Shape {
  uint64_t rows, heads, tokens, dims;
};

Shape ShapeOf(const QuantisedArray& array, const Quantisation& how) {
  const auto &numbers = array.numbers.shape, &scales = array.scales.shape;
  const bool known_bits = how.bits >= 2 && how.bits <= 8 && how.bits != 7;
  if (!known_bits || (how.group != 32 && how.group != 64 && how.group != 128)) {
    throw Error(Finding::kBadField,
                fmt::format("{} bits in groups of {}: MLX has 2 to 6 and 8 bits, and groups of 32, "
                            "64 and 128",
                            how.bits, how.group));
  }
  if (array.numbers.dtype != DType::kU32)
    throw Error(Finding::kUnsupportedDtype, "its numbers are not u32 words");
  const bool ranks = numbers.size() == 4 && scales.size() == 4;
  if (!ranks || array.biases.shape != scales || array.biases.dtype != array.scales.dtype ||
      !std::equal(numbers.begin(), numbers.begin() + 3, scales.begin()) ||
      scales[3] > kWidest / how.group ||
      CheckedMul(numbers[3], kWordBits, "bits of a row") != scales[3] * how.group * how.bits) {
    throw Error(Finding::kSizeMismatch,
                fmt::format("numbers [{}], scales [{}] and biases [{}] are not one array of {} "
                            "bits in groups of {}",
                            fmt::join(numbers, ", "), fmt::join(scales, ", "),
                            fmt::join(array.biases.shape, ", "), how.bits, how.group));
  }
  return {numbers[0], numbers[1], numbers[2], scales[3] * how.group};
}

float At(const TensorView& view, uint64_t index) {
  const std::byte* at = view.data + index * Info(view.dtype).block_bytes;
  switch (view.dtype) {
    case DType::kF16:
      return F16ToF32(LoadLE<uint16_t>(at));
    case DType::kBF16:
      return BF16ToF32(LoadLE<uint16_t>(at));
    case DType::kF32:
      return LoadLE<float>(at);
    default:
      throw Error(Finding::kUnsupportedDtype, fmt::format("scales of type {}", Name(view.dtype)));
  }
}

// A row of numbers is one run of bits, the low ones first.
uint32_t NumberAt(const std::byte* row, uint64_t index, uint64_t bits) {
  const uint64_t bit = index * bits, byte = bit / 8;
  uint32_t window = static_cast<uint32_t>(row[byte]);
  if (bit % 8 + bits > 8) window |= static_cast<uint32_t>(row[byte + 1]) << 8;
  return window >> (bit % 8) & ((1u << bits) - 1);
}

}  // namespace

KvTensor Decode(const QuantisedArray& array, const Quantisation& how, uint64_t tokens,
                const BatchRange& rows, const OpenOptions& options, TensorFile& file) {
  const Shape shape = ShapeOf(array, how);
  if (tokens > shape.tokens) {
    throw Error(Finding::kBadField,
                fmt::format("offset {}, but room for {} tokens", tokens, shape.tokens));
  }
  const uint64_t heads = CheckedMul(rows.count, shape.heads, "heads");
  const uint64_t bytes = CheckedProduct({heads, tokens, shape.dims, sizeof(float)}, "values");
  if (bytes > options.max_bytes) {
    throw Error(Finding::kLimit,
                fmt::format("{} bytes of values; --max-bytes allows {}", bytes, options.max_bytes));
  }
  Bytes values(bytes);
  const uint64_t row_bytes = shape.dims * how.bits / 8;
  for (uint64_t head = 0; head < heads; ++head) {
    for (uint64_t token = 0; token < tokens; ++token) {
      const uint64_t row = (rows.first * shape.heads + head) * shape.tokens + token;
      const std::byte* numbers = array.numbers.data + row * row_bytes;
      std::byte* out = values.data() + (head * tokens + token) * shape.dims * sizeof(float);
      for (uint64_t dim = 0; dim < shape.dims; ++dim) {
        const uint64_t group = row * (shape.dims / how.group) + dim / how.group;
        const auto number = static_cast<float>(NumberAt(numbers, dim, how.bits));
        StoreLE(out + dim * sizeof(float),
                std::fma(At(array.scales, group), number, At(array.biases, group)));
      }
    }
  }
  file.spools.push_back(FileSource::FromBytes(std::move(values), "values"));
  KvTensor tensor{.dtype = DType::kF32,
                  .heads = static_cast<uint32_t>(shape.heads),
                  .head_dim = static_cast<uint32_t>(shape.dims),
                  .heads_known = true,
                  .pieces = {}};
  const uint64_t row = shape.dims * sizeof(float);
  for (uint64_t i = 0; i < rows.count; ++i) {
    const std::byte* begin = file.spools.back()->bytes().data() + i * shape.heads * tokens * row;
    tensor.pieces.push_back({begin, tokens, {row}, {tokens * row}, {sizeof(float)}});
  }
  return tensor;
}

}  // namespace kv::mlx
