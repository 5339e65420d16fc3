// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Containers of either kind: decode or refuse, never more; what decodes survives another round.
#include <cstdlib>

#include "lib/codec/gear_container.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kv;
  const ByteSpan container = std::as_bytes(std::span(data, size));
  static CodecScratch scratch;
  for (const GearKind kind : {GearKind::kTwoPlanes, GearKind::kFourPlanes}) {
    try {
      if (ReadGear(kind, container).raw_bytes() > (32 << 20)) continue;
      const Bytes raw = DecodeGear(kind, container, scratch);
      Bytes again;
      EncodeGear(kind, raw, {}, scratch, again);
      if (DecodeGear(kind, again, scratch) != raw) std::abort();
      if (ReadGear(container).planes.size() != PlanesOf(kind)) std::abort();
    } catch (const Error&) {
    }
  }
  return 0;
}
