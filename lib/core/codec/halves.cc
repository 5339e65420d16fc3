// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/halves.h"

#include "lib/core/kernels/symbols.h"

namespace kv {
namespace {

// An 8-bit float is its own symbol of eight bits.
SymbolShape MakeByteShape(DType dtype) {
  return {.form = {false, FindByteShift(dtype)}, .symbol_bits = 8};
}

}  // namespace

Halves::Halves(DType dtype, ByteSpan raw, Arena* arena) : widened_(arena), bytes_(raw) {
  if (FindByteShift(dtype) == 0) return;
  widened_.resize(2 * raw.size());
  AddSymbols(reinterpret_cast<const uint8_t*>(raw.data()), raw.size(), MakeByteShape(dtype),
             widened_.data());
  bytes_ = widened_;
}

void NarrowHalves(DType dtype, ByteSpan halves, std::span<std::byte> raw) {
  ToSymbols(halves.data(), raw.size(), MakeByteShape(dtype),
            reinterpret_cast<uint8_t*>(raw.data()));
  // Bits of an f16 that no 8-bit float of this type sets.
  const uint32_t unused = 0x7fffu & ~(0x7fu << FindByteShift(dtype));
  uint32_t found = 0;
  for (size_t i = 0; i < raw.size(); ++i) found |= LoadLE<uint16_t>(halves.data() + 2 * i);
  if ((found & unused) != 0) throw Error(Finding::kBadPayload, "a value is not an 8-bit float");
}

}  // namespace kv
