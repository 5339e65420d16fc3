// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A frame, whose header hash is made right first, decoded whole, in part and without an output, and
// its lists of segments and blocks; and the same bytes as a description and values that must come
// back.
#include <cstdlib>

#include "lib/api/kvtool.h"
#include "lib/core/frame/frame.h"
#include "tests/fuzz/accepted.h"

namespace {

using namespace kv;

// Fills a list with its C function. Aborts if an entry is outside the frame or the raw bytes.
template <typename T, typename List>
std::vector<T> Listed(ByteSpan frame, List list) {
  size_t count = 0;
  if (list(frame.data(), frame.size(), nullptr, 0, &count) != 0) return {};
  T first = {};
  first.struct_size = sizeof first;
  std::vector<T> found(count, first);
  if (list(frame.data(), frame.size(), found.data(), count, &count) != 0) std::abort();
  for (const T& one : found) {
    if (one.offset > frame.size() || one.bytes > frame.size() - one.offset) std::abort();
  }
  return found;
}

void List(ByteSpan frame, uint64_t raw_bytes) {
  uint64_t end = 0;
  for (const kvt_segment& segment : Listed<kvt_segment>(frame, kvt_frame_segments)) {
    if (segment.raw_offset != end) std::abort();
    end += segment.raw_bytes;
  }
  if (end != 0 && end != raw_bytes) std::abort();
  end = 0;
  for (const kvt_block& block : Listed<kvt_block>(frame, kvt_frame_blocks)) {
    if (block.planes_offset != end || block.bytes > block.raw_bytes) std::abort();
    end += block.raw_bytes;
  }
  if (end != 0 && end != raw_bytes) std::abort();
}

void DecodeSomeHeads(ByteSpan frame, uint32_t heads, std::span<std::byte> out) {
  static kvt_ctx* const ctx = [] {
    kvt_ctx* made = nullptr;
    if (kvt_ctx_create(nullptr, &made) != 0) std::abort();
    return made;
  }();
  size_t written = 0;
  const kvt_status status = kvt_decode_heads(ctx, frame.data(), frame.size(), nullptr, heads / 2,
                                             heads - heads / 2, out.data(), out.size(), &written);
  if (kvt_fault(status) == KVT_FAULT_INTERNAL || written > out.size()) std::abort();
}

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
    List(frame, header.raw_bytes);
    DecodeSomeHeads(frame, header.description.heads, raw);
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
