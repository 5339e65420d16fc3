// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/arena.h"
#include "lib/core/codec/codec.h"

// Codecs of f16 code 8-bit floats as well, as the f16 that have their bits. So f8_e4m3 values are
// divided by 256, which changes nothing that a codec looks at.
namespace kv {

// Returns HalfForm::byte_shift of a type: 0 if it has no 8-bit floats.
constexpr uint32_t ByteShiftOf(DType dtype) {
  return dtype == DType::kF8E5M2 ? 8 : dtype == DType::kF8E4M3 ? 7 : 0;
}
// Returns whether codecs of halves take the type.
constexpr bool AreHalves(DType dtype) { return IsHalfFloat(dtype) || ByteShiftOf(dtype) != 0; }

// Returns the shape of the halves that stand for a chunk: its own unless it has 8-bit floats.
inline ChunkShape HalvesShape(ChunkShape shape) {
  shape.byte_shift = ByteShiftOf(shape.dtype);
  if (shape.byte_shift != 0) shape.dtype = DType::kF16;
  return shape;
}

// The halves that stand for values of a type, which `raw` holds: those bytes themselves unless they
// are 8-bit floats.
class Halves {
 public:
  Halves(DType dtype, ByteSpan raw, Arena* arena);
  ByteSpan bytes() const { return bytes_; }

 private:
  ArenaVector<std::byte> widened_;
  ByteSpan bytes_;
};

// Fills `raw` with the 8-bit floats that halves stand for. Throws kBadPayload if a half stands for
// none.
void NarrowHalves(DType dtype, ByteSpan halves, std::span<std::byte> raw);

}  // namespace kv
