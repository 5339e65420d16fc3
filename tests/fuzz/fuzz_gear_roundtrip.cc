// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A byte of options, then values: what is encoded comes back, as container and as chunk.
#include <cstdlib>

#include "lib/core/codec/chunk.h"
#include "tests/fuzz/accepted.h"

namespace {

using namespace kv;

void RoundTrip(GearKind kind, ByteSpan raw, const GearOptions& options, CodecScratch& scratch) {
  if (raw.empty() || raw.size() % CountPlanes(kind) != 0) return;
  Bytes container;
  EncodeGear(kind, raw, options, scratch, container);
  const Bytes back = DecodeGear(kind, container, scratch);
  if (!std::equal(back.begin(), back.end(), raw.begin(), raw.end())) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  static CodecScratch scratch;
  const unsigned bits = data[0];
  const ByteSpan raw = std::as_bytes(std::span(data + 1, size - 1));
  const PredictorSet set{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
  const GearOptions options{{set, PredictorSet{}, set, PredictorSet{}}, (bits & 8) != 0};
  RoundTrip(GearKind::kTwoPlanes, raw, options, scratch);
  RoundTrip(GearKind::kFourPlanes, raw, options, scratch);

  const auto dtypes = AllDTypes();
  const DType dtype = dtypes[(bits >> 4) % dtypes.size()].dtype;
  const ChunkShape shape{dtype, raw.size() / Info(dtype).block_bytes, 1, 1, Order::kTokenHeadDim};
  const EncodedChunk chunk = EncodeChunk(shape, raw, Effort::kCompat, scratch);
  Bytes back(raw.size());
  DecodeChunk(chunk.codec, shape, chunk.payload, back, scratch);
  if (!std::equal(back.begin(), back.end(), raw.begin(), raw.end())) std::abort();
  // With another codec number the payload must be refused or decode to something, without harm.
  for (const CodecId codec :
       {CodecId::kRaw, CodecId::kGear16, CodecId::kGear32, CodecId::kZstdPlanes, CodecId::kZstd}) {
    try {
      DecodeChunk(codec, shape, raw, back, scratch);
      ++fuzz::accepted;
    } catch (const Error&) {
    }
  }
  return 0;
}
