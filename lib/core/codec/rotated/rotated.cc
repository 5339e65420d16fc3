// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/rotated/rotated.h"

#include "lib/core/kernels/rotl16.h"

namespace kv {

bool EncodeRotated(const ChunkShape&, ByteSpan raw, uint64_t, CodecScratch& scratch,
                   EncodedChunk& out) {
  if (raw.empty() || raw.size() % 2 != 0) return false;
  const GearOptions literals{.predictors = {}, .rotl = true, .literals = true};
  out.planes = EncodeGear(GearKind::kTwoPlanes, raw, literals, scratch, out.payload);
  return true;
}

void DecodeRotated(const ChunkShape&, ByteSpan payload, std::span<std::byte> raw,
                   CodecScratch& scratch) {
  DecodeGear(GearKind::kTwoPlanes, payload, raw, scratch);
  Rotr16(raw.data(), raw.size() / 2, raw.data());
}

}  // namespace kv
