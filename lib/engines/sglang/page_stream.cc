// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/sglang/page_stream.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/half.h"

namespace kv::sglang {
namespace {

constexpr uint32_t kFloatBits = 8;  // components of 8 bits are E4M3
constexpr uint8_t kSplit = 1, kCoded = 2, kFull = 4;

// Returns the bits of integers packed one after another, the first one in the lowest bits.
uint64_t IntegerBits(std::span<const StaticCode> codes) {
  uint64_t bits = 0;
  for (const StaticCode& code : codes) bits += code.bits < kFloatBits ? code.bits : 0;
  return bits;
}

bool IsFloat(const StaticCode& code) { return code.bits == kFloatBits; }

}  // namespace

PageStreams ReadPageStreams(ByteSpan page) {
  ByteReader reader(page);
  if (reader.Text(4, "magic") != "KVTC")
    throw Error(Finding::kBadMagic, "not a page of KVTC").At(0);
  PageStreams streams;
  streams.version = reader.U8("version");
  if (streams.version != 3 && streams.version != 4) {
    throw Error(Finding::kUnsupportedVersion, "a page of version {}, expected 3 or 4",
                streams.version)
        .At(4);
  }
  const uint8_t flags = reader.U8("flags");
  if ((flags & ~(kSplit | kCoded | kFull)) != 0) {
    throw Error(Finding::kBadField, "unknown flags {:#x}", flags).At(5);
  }
  streams.is_split = (flags & kSplit) != 0;
  streams.is_coded = (flags & kCoded) != 0;
  streams.is_full = (flags & kFull) != 0;
  const uint32_t k = reader.U32("bytes of K"), v = reader.U32("bytes of V");
  streams.k = reader.Take(k, "K");
  streams.v = reader.Take(v, "V");
  reader.ExpectEnd("page");
  return streams;
}

Bytes WriteStream(std::span<const float> values, std::span<const StaticCode> codes) {
  KV_ASSERT(values.size() == codes.size());
  Bytes mask(CeilDiv(codes.size(), 8)), floats, integers(CeilDiv(IntegerBits(codes), 8));
  uint64_t at = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    const float level = values[i] / codes[i].scale;
    if (IsFloat(codes[i])) {
      mask[i / 8] |= static_cast<std::byte>(1u << (i % 8));
      floats.push_back(std::byte{F32ToE4M3(level, Float8Overflow::kCast)});
    } else if (codes[i].bits > 0) {
      const auto most = static_cast<float>((1 << (codes[i].bits - 1)) - 1);
      const auto code = static_cast<int32_t>(std::clamp(std::nearbyint(level), -1 - most, most));
      for (uint32_t bit = 0; bit < codes[i].bits; ++bit, ++at)
        integers[at / 8] |= static_cast<std::byte>((code >> bit & 1) << (at % 8));
    }
  }
  ByteWriter out;
  for (const Bytes* part : {&mask, &floats, &integers})
    out.U32(static_cast<uint32_t>(part->size()));
  for (const Bytes* part : {&mask, &floats, &integers}) out.Append(*part);
  return out.Release();
}

std::vector<float> ReadStream(ByteSpan stream, std::span<const StaticCode> codes) {
  ByteReader reader(stream);
  uint32_t sizes[3];
  for (uint32_t& size : sizes) size = reader.U32("bytes of a part");
  const ByteSpan mask = reader.Take(sizes[0], "mask");
  const ByteSpan floats = reader.Take(sizes[1], "fp8 codes");
  const ByteSpan integers = reader.Take(sizes[2], "integers");
  reader.ExpectEnd("stream");
  const auto float_count =
      static_cast<uint64_t>(std::count_if(codes.begin(), codes.end(), IsFloat));
  if (mask.size() != CeilDiv(codes.size(), 8) || floats.size() != float_count ||
      integers.size() != CeilDiv(IntegerBits(codes), 8)) {
    throw Error(Finding::kSizeMismatch,
                "the sizes of the stream do not match {} components of these types", codes.size());
  }
  std::vector<float> values(codes.size(), 0.0f);
  uint64_t next_float = 0, at = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    const bool is_float = (std::to_integer<uint32_t>(mask[i / 8]) >> (i % 8) & 1) != 0;
    if (is_float != IsFloat(codes[i])) {
      throw Error(Finding::kBadField, "the type of component {} differs from its calibration", i);
    }
    if (is_float) {
      values[i] = E4M3ToF32(std::to_integer<uint8_t>(floats[next_float++])) * codes[i].scale;
      continue;
    }
    int32_t code = 0;
    for (uint32_t bit = 0; bit < codes[i].bits; ++bit, ++at)
      code |= static_cast<int32_t>(std::to_integer<uint32_t>(integers[at / 8]) >> (at % 8) & 1)
              << bit;
    if (codes[i].bits > 0 && code >> (codes[i].bits - 1) != 0) code -= 1 << codes[i].bits;
    values[i] = static_cast<float>(code) * codes[i].scale;
  }
  return values;
}

}  // namespace kv::sglang
