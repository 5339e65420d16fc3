// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/arena.h"
#include "lib/core/codec/codec.h"

// 8-bit floats are coded by the codecs of f16: their bits are placed in an f16. An f8_e4m3 value is
// thereby divided by 256, which changes neither the order nor the ratio of values.
namespace kv {

// Returns HalfForm::byte_shift of a type; 0 if it is not an 8-bit float.
constexpr uint32_t FindByteShift(DType dtype) {
  return dtype == DType::kF8E5M2 ? 8 : dtype == DType::kF8E4M3 ? 7 : 0;
}
// Returns true if codecs of halves accept the type.
constexpr bool AreHalves(DType dtype) { return IsHalfFloat(dtype) || FindByteShift(dtype) != 0; }

// Returns the shape of the halves that represent a chunk; the chunk's own shape unless it has 8-bit
// floats.
inline ChunkShape HalvesShape(ChunkShape shape) {
  shape.byte_shift = FindByteShift(shape.dtype);
  if (shape.byte_shift != 0) shape.dtype = DType::kF16;
  return shape;
}

// The values in `raw` as halves: the same bytes, or a widened copy if they are 8-bit floats.
class Halves {
 public:
  Halves(DType dtype, ByteSpan raw, Arena* arena);
  ByteSpan bytes() const { return bytes_; }

 private:
  ArenaVector<std::byte> widened_;
  ByteSpan bytes_;
};

// Converts halves back to 8-bit floats in `raw`. Throws kBadPayload if a half represents none.
void NarrowHalves(DType dtype, ByteSpan halves, std::span<std::byte> raw);

}  // namespace kv
