// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/gear/gear_container.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <new>

#include "lib/core/kernels/planes.h"
#include "lib/core/kernels/rotl16.h"

namespace kv {

namespace {

// Works a block at a time, so that the rotated words stay in the first-level cache.
void SplitRotated(ByteSpan raw, std::byte* low, std::byte* high) {
  constexpr size_t kBlock = 4096;  // words
  alignas(64) std::byte block[2 * kBlock];
  const size_t words = raw.size() / 2;
  for (size_t at = 0; at < words; at += kBlock) {
    const size_t count = std::min(kBlock, words - at);
    Rotl16(raw.data() + 2 * at, count, block);
    SplitPlanes2(block, count, low + at, high + at);
  }
}

}  // namespace

PlaneChoices EncodeGear(GearKind kind, ByteSpan raw, const GearOptions& options,
                        CodecScratch& scratch, Bytes& out) {
  const uint32_t count = PlanesOf(kind);
  if (raw.empty() || raw.size() % count != 0) {
    throw Error(
        Finding::kSizeMismatch,
        fmt::format("{} bytes are not a positive number of {}-byte words", raw.size(), count));
  }
  const size_t words = raw.size() / count;
  if (words > std::numeric_limits<uint32_t>::max()) {
    throw Error(
        Finding::kLimit,
        fmt::format("there are {} words, but a gear container counts them in 32 bits", words));
  }
  const std::span<std::byte> planes = scratch.planes.Get(raw.size());
  std::array<std::byte*, kMaxGearPlanes> plane{};
  for (uint32_t b = 0; b < count; ++b) plane[b] = planes.data() + b * words;
  if (kind == GearKind::kTwoPlanes && options.rotl) {
    SplitRotated(raw, plane[0], plane[1]);
  } else if (kind == GearKind::kTwoPlanes) {
    SplitPlanes2(raw.data(), words, plane[0], plane[1]);
  } else {
    SplitPlanes4(raw.data(), words, plane.data());
  }
  std::byte header[4];
  StoreLE(header, static_cast<uint32_t>(words));
  out.insert(out.end(), header, header + sizeof(header));
  PlaneChoices choices;
  for (uint32_t b = 0; b < count; ++b) {
    const ByteSpan bytes(plane[b], words);
    choices.push_back(options.literals
                          ? EncodeLiteralPlane(bytes, options.noise[b], scratch, out)
                          : EncodePlane(bytes, options.predictors[b], options.zstd, scratch, out));
  }
  return choices;
}

namespace {

uint32_t ReadWords(ByteReader& reader) {
  const uint32_t words = reader.U32("word count");
  if (words == 0) throw Error(Finding::kBadFrame, "the word count is 0").At(0);
  return words;
}

void ReadPlanes(ByteReader& reader, uint32_t count, GearLayout& layout) {
  while (layout.planes.size() < count) {
    const size_t plane = layout.planes.size();
    try {
      const PlaneFrame frame = ReadPlaneFrame(reader);
      if (frame.raw_bytes != layout.words) {
        throw Error(Finding::kBadFrame, fmt::format("raw_len is {}, but the container has {} words",
                                                    frame.raw_bytes, layout.words))
            .At(frame.offset + 2);
      }
      CheckPlaneFrame(frame);
      layout.planes.push_back(frame);
    } catch (Error& error) {
      error.In(fmt::format("plane {}", plane));
      throw;
    }
  }
}

}  // namespace

GearLayout ReadGear(GearKind kind, ByteSpan container) {
  ByteReader reader(container);
  GearLayout layout;
  layout.words = ReadWords(reader);
  ReadPlanes(reader, PlanesOf(kind), layout);
  reader.ExpectEnd(fmt::format("plane {}, the last", PlanesOf(kind) - 1));
  return layout;
}

GearLayout ReadGear(ByteSpan container) {
  ByteReader reader(container);
  GearLayout layout;
  layout.words = ReadWords(reader);
  ReadPlanes(reader, PlanesOf(GearKind::kTwoPlanes), layout);
  if (reader.at_end()) return layout;
  ReadPlanes(reader, PlanesOf(GearKind::kFourPlanes), layout);
  reader.ExpectEnd("plane 3, the last");
  return layout;
}

namespace {

using PlanePointers = std::array<const std::byte*, kMaxGearPlanes>;

PlanePointers DecodePlanes(const GearLayout& layout, CodecScratch& scratch) {
  const size_t words = layout.words;
  const std::span<std::byte> planes = scratch.planes.Get(layout.raw_bytes());
  PlanePointers pointers{};
  for (size_t b = 0; b < layout.planes.size(); ++b) {
    try {
      DecodePlane(layout.planes[b], planes.subspan(b * words, words), scratch);
    } catch (Error& error) {
      error.In(fmt::format("plane {}", b));
      throw;
    }
    pointers[b] = planes.data() + b * words;
  }
  return pointers;
}

void JoinPlanes(GearKind kind, const PlanePointers& planes, size_t words, std::byte* to) {
  if (kind == GearKind::kTwoPlanes) {
    JoinPlanes2(planes[0], planes[1], words, to);
  } else {
    JoinPlanes4(planes.data(), words, to);
  }
}

}  // namespace

void DecodeGear(GearKind kind, ByteSpan container, std::span<std::byte> raw,
                CodecScratch& scratch) {
  const GearLayout layout = ReadGear(kind, container);
  if (layout.raw_bytes() != raw.size()) {
    throw Error(Finding::kBadFrame, fmt::format("the container holds {} bytes, expected {}",
                                                layout.raw_bytes(), raw.size()))
        .At(0);
  }
  JoinPlanes(kind, DecodePlanes(layout, scratch), layout.words, raw.data());
}

Bytes DecodeGear(GearKind kind, ByteSpan container, CodecScratch& scratch) {
  const GearLayout layout = ReadGear(kind, container);
  try {
    // Planes first: their memory is not touched before a payload fills it, so that a damaged one
    // costs no more than it holds.
    const PlanePointers planes = DecodePlanes(layout, scratch);
    Bytes raw(layout.raw_bytes());
    JoinPlanes(kind, planes, layout.words, raw.data());
    return raw;
  } catch (const std::bad_alloc&) {
    throw Error(Finding::kLimit,
                fmt::format("decoding needs {} bytes of memory", 2 * layout.raw_bytes()));
  }
}

}  // namespace kv
