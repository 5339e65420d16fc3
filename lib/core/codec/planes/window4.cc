// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/kernels/window4.h"

#include <array>

#include "lib/core/codec/context/model.h"
#include "lib/core/codec/planes/planes.h"

namespace kv {
namespace {

constexpr size_t kSampled = 1 << 12, kWindowHeaderBytes = 8;

}  // namespace

WindowPlan PlanWindow(ByteSpan values) {
  const size_t count = values.size() / 2, step = count / kSampled | 1;
  std::array<uint32_t, 256> exponents{};
  uint64_t sampled = 0;
  for (size_t i = 0; i < count; i += step, ++sampled)
    ++exponents[LoadLE<uint16_t>(values.data() + 2 * i) >> 7 & 0xff];
  std::array<uint32_t, 257> below{};
  for (size_t e = 0; e < 256; ++e) below[e + 1] = below[e] + exponents[e];
  WindowPlan plan;
  uint32_t inside = 0;
  for (uint32_t base = 0; base <= kMaxWindow4Base; ++base) {
    const uint32_t in = below[base + kWindow4Exponents] - below[base];
    if (in <= inside) continue;
    inside = in;
    plan.base = base;
  }
  if (sampled == 0) return plan;
  // 12 bits per value: sign, mantissa and four bits of exponent; each value outside costs a byte
  // more.
  plan.window_bits = 12 * kSampled + (sampled - inside) * 8 * kSampled / sampled;
  plan.entropy_bits =
      8 * kSampled + EntropyBits16(exponents.data(), 256) / 65536 * kSampled / sampled;
  return plan;
}

void EncodeWindow(ByteSpan values, uint32_t base, CodecScratch& scratch, Bytes& out) {
  const size_t count = values.size() / 2, half = Window4NibbleBytes(count);
  const std::span<std::byte> escapes = scratch.candidate.Get(count);
  const size_t at = out.size();
  out.resize(at + kWindowHeaderBytes + count + half);
  std::byte* fields = out.data() + at + kWindowHeaderBytes;
  const size_t escaped =
      Window4Encode(values.data(), count, base, fields, fields + count, escapes.data());
  StoreLE(out.data() + at, base);
  StoreLE(out.data() + at + 4, static_cast<uint32_t>(escaped));
  out.insert(out.end(), escapes.begin(), escapes.begin() + static_cast<std::ptrdiff_t>(escaped));
}

void DecodeWindow(ByteSpan frame, std::span<std::byte> values) {
  ByteReader reader(frame);
  const size_t count = values.size() / 2;
  const uint32_t base = reader.U32("first exponent"), escaped = reader.U32("escape count");
  if (base > kMaxWindow4Base || values.size() % 2 != 0) {
    throw Error(Finding::kBadFrame, "a window of exponents cannot begin at {}", base).At(0);
  }
  const ByteSpan fields = reader.Take(count, "signs and mantissas");
  const ByteSpan nibbles = reader.Take(Window4NibbleBytes(count), "exponents");
  const ByteSpan escapes = reader.Take(escaped, "escapes");
  reader.ExpectEnd("the escapes");
  if (!Window4Decode(fields.data(), nibbles.data(), count, base, escapes.data(), escapes.size(),
                     values.data())) {
    throw Error(Finding::kBadPayload, "the number of escapes does not fit the exponents").At(4);
  }
}

}  // namespace kv
