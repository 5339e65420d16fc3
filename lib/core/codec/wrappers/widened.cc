// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

#include <algorithm>
#include <cstring>

#include "lib/core/codec/wrappers/wrappers.h"
#include "lib/core/kernels/convert.h"

namespace kv {
namespace {

constexpr size_t kBlock = 1024;  // floats converted at a time

// Returns true if every float is a bf16.
bool IsAllBf16(ByteSpan raw) {
  for (size_t begin = 0; begin < raw.size(); begin += 4 * kBlock) {
    uint32_t low = 0;
    for (size_t at = begin; at < std::min(raw.size(), begin + 4 * kBlock); at += 4)
      low |= LoadLE<uint16_t>(raw.data() + at);
    if (low != 0) return false;
  }
  return true;
}

// Returns true if every float is an f16, and fills `halves` with them.
bool NarrowToHalf(ByteSpan raw, std::span<std::byte> halves) {
  const size_t count = raw.size() / 4;
  float values[kBlock], back[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t n = std::min(kBlock, count - begin);
    std::memcpy(values, raw.data() + 4 * begin, 4 * n);
    FloatToHalf(values, halves.data() + 2 * begin, n);
    HalfToFloat(halves.data() + 2 * begin, back, n);
    if (std::memcmp(values, back, 4 * n) != 0) return false;
  }
  return true;
}

void TakeUpperHalves(ByteSpan raw, std::span<std::byte> halves) {
  for (size_t i = 0; i < raw.size() / 4; ++i)
    StoreLE(halves.data() + 2 * i, LoadLE<uint16_t>(raw.data() + 4 * i + 2));
}

// Appends the frames of the two lower byte planes.
PlaneChoices AppendLowerPlanes(ByteSpan raw, CodecScratch& scratch, Bytes& out) {
  const size_t count = raw.size() / 4;
  const std::span<std::byte> plane = scratch.planes.Get(count).first(count);
  PlaneChoices choices;
  for (size_t byte = 0; byte < 2; ++byte) {
    for (size_t i = 0; i < count; ++i) plane[i] = raw[4 * i + byte];
    choices.push_back(EncodeLiteralPlane(plane, Noise::kUnknown, scratch, out));
  }
  return choices;
}

}  // namespace

EncodedChunk EncodeWide(const ChunkShape& shape, ByteSpan raw, CodecScratch& scratch,
                        const InnerEncoder& encode) {
  const std::span<std::byte> halves = scratch.halves.Get(raw.size() / 2).first(raw.size() / 2);
  ChunkShape inner_shape = shape;
  const bool exact = !IsAllBf16(raw) && NarrowToHalf(raw, halves);
  inner_shape.dtype = exact ? DType::kF16 : DType::kBF16;
  if (!exact) TakeUpperHalves(raw, halves);
  EncodedChunk inner = encode(inner_shape, halves);
  ByteWriter header(scratch.NewPayload());
  header.U8(exact ? 1 : 2);
  header.U8(static_cast<uint8_t>(inner.codec));
  header.U16(0);
  header.U32(static_cast<uint32_t>(inner.payload.size()));
  header.Append(inner.payload);
  scratch.Recycle(std::move(inner.payload));
  EncodedChunk chunk{CodecId::kWidened, header.Release(), std::move(inner.planes)};
  if (exact) return chunk;
  for (const PlaneChoice& plane : AppendLowerPlanes(raw, scratch, chunk.payload))
    chunk.planes.push_back(plane);
  return chunk;
}

void DecodeWide(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                CodecScratch& scratch, const ChunkInputs& inputs, InnerDecoder inner) {
  ByteReader reader(payload);
  const uint32_t form = reader.U8("form");
  const auto codec = static_cast<CodecId>(reader.U8("codec of the halves"));
  const uint32_t reserved = reader.U16("reserved field");
  const uint32_t inner_bytes = reader.U32("length of the halves");
  // Rows are refused inside: an outer chunk of rows may have lent scratch.rows as the buffer that
  // is filled here.
  if (form < 1 || form > 2 || reserved != 0 || codec == CodecId::kRows || !MayBeInside(codec) ||
      raw.size() % 4 != 0) {
    throw Error(Finding::kBadFrame, "unknown form {} of widened floats", form).At(0);
  }
  const size_t count = raw.size() / 4;
  const std::span<std::byte> halves = scratch.halves.Get(2 * count).first(2 * count);
  ChunkShape inner_shape = shape;
  inner_shape.dtype = form == 1 ? DType::kF16 : DType::kBF16;
  inner(codec, inner_shape, reader.Take(inner_bytes, "halves"), halves, scratch, inputs);
  if (form == 1) {
    float values[kBlock];
    for (size_t begin = 0; begin < count; begin += kBlock) {
      const size_t n = std::min(kBlock, count - begin);
      HalfToFloat(halves.data() + 2 * begin, values, n);
      std::memcpy(raw.data() + 4 * begin, values, 4 * n);
    }
  } else {
    for (size_t i = 0; i < count; ++i)
      StoreLE(raw.data() + 4 * i, uint32_t{LoadLE<uint16_t>(halves.data() + 2 * i)} << 16);
    for (size_t byte = 0; byte < 2; ++byte) {
      const PlaneFrame frame = ReadPlaneFrame(reader);
      if (frame.raw_bytes != count) {
        throw Error(Finding::kBadFrame, "a plane has {} bytes, expected {}", frame.raw_bytes, count)
            .At(frame.offset);
      }
      const std::span<std::byte> plane = scratch.planes.Get(count).first(count);
      DecodePlane(frame, plane, scratch);
      for (size_t i = 0; i < count; ++i) raw[4 * i + byte] = plane[i];
    }
  }
  reader.ExpectEnd("the floats");
}

}  // namespace kv
