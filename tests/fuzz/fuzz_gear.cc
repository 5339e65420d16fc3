// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Containers of either kind are decoded or refused. The decoded bytes, and the input's own, must be
// encoded and come back; no refusal is allowed there.
#include <cstdlib>
#include <optional>

#include "lib/core/codec/planes/gear.h"
#include "tests/fuzz/accepted.h"

namespace {

using namespace kv;

constexpr uint64_t kMostBytes = 32 << 20;

std::optional<Bytes> Decoded(GearKind kind, ByteSpan container, CodecScratch& scratch) {
  try {
    const GearLayout layout = ReadGear(kind, container);
    if (layout.raw_bytes() > kMostBytes) return std::nullopt;
    KV_ASSERT(layout.planes.size() == CountPlanes(kind));
    return DecodeGear(kind, container, scratch);
  } catch (const Error&) {
    return std::nullopt;  // the container was refused with an error
  }
}

void RoundTrip(GearKind kind, ByteSpan raw, CodecScratch& scratch) {
  if (raw.empty()) return;
  Bytes container;
  EncodeGear(kind, raw, {}, scratch, container);
  const Bytes back = DecodeGear(kind, container, scratch);  // an Error ends this input
  if (!std::equal(back.begin(), back.end(), raw.begin(), raw.end())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteSpan input = std::as_bytes(std::span(data, size));
  static CodecScratch scratch;
  for (const GearKind kind : {GearKind::kTwoPlanes, GearKind::kFourPlanes}) {
    const std::optional<Bytes> raw = Decoded(kind, input, scratch);
    if (raw) RoundTrip(kind, *raw, scratch);
    fuzz::accepted += raw.has_value();
    RoundTrip(kind, input.first(size - size % CountPlanes(kind)), scratch);
  }
  return 0;
}
