// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/ref/near_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <numeric>

#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/dequantise.h"

namespace kv {

std::vector<uint16_t> ResidualClassOrder() {
  std::vector<uint16_t> order(kResidualClasses);
  std::iota(order.begin(), order.end(), uint16_t{0});
  return order;
}

uint64_t CodedRows(const NearRows& near) {
  return static_cast<uint64_t>(std::count_if(near.factors.begin(), near.factors.end(),
                                             [](uint8_t factor) { return factor <= kMostFactor; }));
}

void ClassesOf(const NearRows& near, const std::vector<int16_t>& scales, uint8_t* classes) {
  for (uint64_t row = 0; row < near.rows(); ++row) {
    if (near.factors[row] >= kEqualRow) continue;
    ResidualClassesOf(near.expected.data() + row * near.columns, scales.data(), near.columns,
                      near.factors[row] - kFactorOfUsual, near.bfloat, classes);
    classes += near.columns;
  }
}

void WriteFactors(const ArenaVector<uint8_t>& factors, CodecScratch& scratch, ByteWriter& out) {
  const ByteSpan bytes = std::as_bytes(std::span(factors));
  Arena* const arena = &scratch.context.arena;
  ArenaVector<std::byte> frame(Zstd::Bound(bytes.size()), arena), literals(frame.size(), arena);
  frame.resize(scratch.zstd.Compress(bytes, frame));
  literals.resize(scratch.zstd.CompressLiterals(bytes, literals));
  if (frame.empty() || (!literals.empty() && literals.size() < frame.size())) frame.swap(literals);
  KV_ASSERT(!frame.empty());
  out.U32(static_cast<uint32_t>(frame.size()));
  out.Append(frame);
}

void ReadFactors(ByteReader& reader, NearRows& near, CodecScratch& scratch) {
  const uint64_t at = reader.offset();
  const uint32_t size = reader.U32("length of the row factors");
  const ByteSpan frame = reader.Take(size, "row factors");
  const auto bytes = std::as_writable_bytes(std::span(near.factors));
  if (!scratch.zstd.Decompress(frame, bytes)) {
    throw Error(Finding::kBadPayload,
                fmt::format("the row factors do not decode to {} bytes", bytes.size()))
        .At(at);
  }
  for (const uint8_t factor : near.factors) {
    if (factor > kOwnRow)
      throw Error(Finding::kBadFrame, fmt::format("a row has the impossible factor {}", factor))
          .At(at);
  }
}

void CopyEqualRows(NearRows& near) {
  for (uint64_t row = 0; row < near.rows(); ++row) {
    if (near.factors[row] != kEqualRow) continue;
    const uint64_t at = row * near.columns;
    std::copy_n(near.expected.data() + at, near.columns, near.values.data() + at);
  }
}

ExpectedRows::ExpectedRows(bool bfloat, uint64_t columns, const Rotation& rotation)
    : bfloat_(bfloat),
      columns_(columns),
      rotation_(rotation),
      turner_(rotation, columns),
      x_(columns),
      cosines_(columns),
      sines_(columns),
      partners_(columns) {}

void ExpectedRows::Make(DType dtype, ByteSpan from, int32_t turn, uint16_t* expected) {
  const DTypeInfo& info = Info(dtype);
  const uint64_t row_bytes = columns_ / info.block_elements * info.block_bytes;
  KV_ASSERT(row_bytes > 0 && from.size() % row_bytes == 0);
  if (turn == 0 && dtype == (bfloat_ ? DType::kBF16 : DType::kF16)) {
    std::memcpy(expected, from.data(), from.size());
    return;
  }
  if (turn != 0) {
    turner_.Angles(static_cast<uint32_t>(turn), cosines_.data(), sines_.data());
    for (uint64_t c = 0; c < columns_; ++c) {
      if (c / rotation_.distance % 2 == 0) sines_[c] = -sines_[c];
    }
  }
  for (uint64_t at = 0; at < from.size(); at += row_bytes, expected += columns_) {
    ToFloats(dtype, from.subspan(at, row_bytes), x_);
    if (turn != 0) {
      CopyPartners(rotation_.distance, x_.data(), columns_, partners_.data());
      for (uint64_t c = 0; c < columns_; ++c) {
        const float turned = x_[c] * cosines_[c] + partners_[c] * sines_[c];
        x_[c] = std::fabs(turned) <= FLT_MAX ? turned : x_[c];
      }
    }
    auto* to = reinterpret_cast<std::byte*>(expected);
    bfloat_ ? FloatToBFloat(x_.data(), to, columns_) : FloatToHalf(x_.data(), to, columns_);
  }
}

}  // namespace kv
