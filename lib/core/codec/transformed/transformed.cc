// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/transformed/transformed.h"

#include <algorithm>
#include <cstring>

#include "lib/core/codec/transformed/coefficients.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/ordered_product.h"

namespace kv {

bool TakesTransform(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32;
}

HeadTurner::HeadTurner(const Rotation& rotation, uint64_t head_dim)
    : rotation_(rotation),
      head_dim_(head_dim),
      turner_(rotation, 2 * rotation.turns.size()),
      cosines_(2 * rotation.turns.size()),
      sines_(cosines_.size()) {}

void HeadTurner::Turn(uint32_t steps, std::span<float> row) {
  const uint64_t pairs = rotation_.turns.size(), distance = rotation_.distance;
  if (pairs == 0) return;
  turner_.Angles(steps, cosines_.data(), sines_.data());
  for (uint64_t head = 0; head < row.size(); head += head_dim_) {
    for (uint64_t pair = 0; pair < pairs; ++pair) {
      const uint64_t at = distance == 1 ? 2 * pair : pair;
      const float a = row[head + at], b = row[head + at + distance];
      row[head + at] = a * cosines_[at] - b * sines_[at];
      row[head + at + distance] = b * cosines_[at] + a * sines_[at];
    }
  }
}

void RestoreRows(const ChunkShape& shape, const TransformedRows& rows, std::span<std::byte> raw) {
  const uint64_t columns = shape.heads * shape.units_per_head;
  if (shape.order != Order::kTokenHeadDim || shape.tokens > kStreamTokens ||
      raw.size() != shape.tokens * columns * Info(shape.dtype).block_bytes) {
    throw Error(Finding::kBadFrame, "a transformed chunk of {} tokens in {} bytes", shape.tokens,
                raw.size());
  }
  std::vector<float> values(shape.tokens * columns);
  for (uint64_t t = 0; t < shape.tokens; ++t) std::copy_n(rows.mean, columns, &values[t * columns]);
  AddProducts(rows.coefficients, shape.tokens, rows.components, rows.vectors, rows.stride, columns,
              values.data());
  if (rows.rotation != nullptr) {
    HeadTurner turner(*rows.rotation, rows.head_dim);
    for (uint64_t t = 0; t < shape.tokens; ++t) {
      turner.Turn(static_cast<uint32_t>(rows.position + t),
                  std::span(values).subspan(t * columns, columns));
    }
  }
  NarrowRows(shape.dtype, values, raw);
}

std::vector<float> WidenRows(DType dtype, ByteSpan raw) {
  std::vector<float> values(raw.size() / Info(dtype).block_bytes);
  if (dtype == DType::kF16) {
    HalfToFloat(raw.data(), values.data(), values.size());
  } else if (dtype == DType::kBF16) {
    BFloatToFloat(raw.data(), values.data(), values.size());
  } else if (!values.empty()) {
    std::memcpy(values.data(), raw.data(), raw.size());
  }
  return values;
}

void NarrowRows(DType dtype, std::span<const float> values, std::span<std::byte> raw) {
  KV_ASSERT(raw.size() == values.size() * Info(dtype).block_bytes);
  if (dtype == DType::kF16) {
    FloatToHalf(values.data(), raw.data(), values.size());
  } else if (dtype == DType::kBF16) {
    FloatToBFloat(values.data(), raw.data(), values.size());
  } else if (!values.empty()) {
    std::memcpy(raw.data(), values.data(), raw.size());
  }
}

}  // namespace kv
