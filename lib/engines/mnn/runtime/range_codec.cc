// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/runtime/range_codec.h"

#include <fmt/format.h>

#include "lib/core/base/error.h"
#include "lib/core/codec/planes/gear.h"

namespace kv::mnn::runtime {
namespace {

GearKind KindOf(uint32_t element_bytes) {
  if (element_bytes == 2) return GearKind::kTwoPlanes;
  if (element_bytes == 4) return GearKind::kFourPlanes;
  throw Error(Finding::kUnsupportedDtype,
              fmt::format("elements of {} bytes: the codec knows 2 and 4", element_bytes));
}

}  // namespace

Bytes GearRangeCodec::Encode(bool is_value, uint32_t element_bytes, ByteSpan raw,
                             CodecScratch& scratch) const {
  GearOptions options;
  options.predictors.fill(is_value ? values_ : keys_);
  Bytes blob;
  EncodeGear(KindOf(element_bytes), raw, options, scratch, blob);
  return blob;
}

void GearRangeCodec::Decode(bool /*is_value*/, uint32_t element_bytes, ByteSpan blob,
                            std::span<std::byte> raw, CodecScratch& scratch) const {
  DecodeGear(KindOf(element_bytes), blob, raw, scratch);
}

}  // namespace kv::mnn::runtime
