// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A frame, whose header hash is made right first, decoded whole, in part and without an output; and
// the same bytes as a description and values that must come back.
#include <cstdlib>

#include "lib/core/frame/frame.h"
#include "tests/fuzz/accepted.h"

namespace {

using namespace kv;

void DecodeAll(ByteSpan frame) {
  constexpr uint64_t kMostRaw = 1 << 22;
  static FrameCoder coder(Effort::kFast);
  try {
    const FrameHeader header = ReadFrameHeader(frame);
    if (header.raw_bytes > kMostRaw) return;
    Bytes raw(header.raw_bytes);
    const uint64_t step = header.segment_tokens();
    bool whole = true;
    try {
      coder.Decode(frame, nullptr, raw);
      ++fuzz::accepted;
    } catch (const Error&) {
      whole = false;
    }
    try {
      coder.Verify(frame, nullptr);
      if (!whole) std::abort();
    } catch (const Error&) {
      if (whole) std::abort();
    }
    if (step == 0) return;
    Bytes some(raw.size());
    const uint64_t count = std::min(header.description.tokens, step + 1);
    coder.DecodeTokens(frame, nullptr, header.description.tokens - count, count, some);
  } catch (const Error&) {
  }
}

void EncodeAndBack(const uint8_t* data, size_t size) {
  constexpr size_t kHead = 8;
  if (size < kHead) return;
  FrameDescription description;
  description.dtype = AllDTypes()[data[0] % AllDTypes().size()].dtype;
  description.order =
      std::array{Order::kTokenHeadDim, Order::kHeadTokenDim, Order::kStorage}[data[1] % 3];
  description.heads = data[2];
  description.head_dim = data[3];
  description.tokens = data[4];
  description.role = static_cast<FrameRole>(data[6] % 4);
  const ByteSpan raw = std::as_bytes(std::span(data + kHead, size - kHead));
  FrameCoder coder(static_cast<Effort>(1 + data[5] % 4));
  Bytes frame(FrameBound(raw.size())), back(raw.size());
  frame.resize(coder.Encode(description, raw, frame));
  coder.Decode(frame, &description.context, back);
  if (!std::ranges::equal(back, raw)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ByteSpan input = std::as_bytes(std::span(data, size));
  Bytes frame(input.begin(), input.end());
  if (frame.size() >= kFrameHeaderBytes) {
    StoreLE<uint64_t>(&frame[120], Hash64(ByteSpan(frame).first(120)));
  }
  DecodeAll(frame);
  EncodeAndBack(data, size);
  return 0;
}
