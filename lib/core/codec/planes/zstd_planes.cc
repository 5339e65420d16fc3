// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

#include "lib/core/codec/planes/planes.h"
#include "lib/core/kernels/reorder.h"

namespace kv {
namespace {

// A range of bytes in the block struct that becomes one plane.
struct Field {
  uint32_t offset, bytes;
};

// ggml's structs in order: half scale d [, half minimum m] [, 32 high bits qh], quants qs. The two
// bytes of a half get a plane each, as in gear.
constexpr Field kQ8_0[] = {{0, 1}, {1, 1}, {2, 32}};
constexpr Field kQ4_0[] = {{0, 1}, {1, 1}, {2, 16}};
constexpr Field kQ4_1[] = {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 16}};
constexpr Field kQ5_0[] = {{0, 1}, {1, 1}, {2, 4}, {6, 16}};
constexpr Field kQ5_1[] = {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 4}, {8, 16}};

std::span<const Field> ListFields(DType dtype) {
  switch (dtype) {
    case DType::kQ8_0:
      return kQ8_0;
    case DType::kQ4_0:
    case DType::kIQ4_NL:
      return kQ4_0;
    case DType::kQ4_1:
      return kQ4_1;
    case DType::kQ5_0:
      return kQ5_0;
    case DType::kQ5_1:
      return kQ5_1;
    default:
      return {};
  }
}

// Replaces everything from `at` on by the frame and its length.
void PutFrame(ByteSpan frame, size_t at, Bytes& out) {
  out.resize(at);
  std::byte header[4];
  StoreLE(header, static_cast<uint32_t>(frame.size()));
  out.insert(out.end(), header, header + sizeof(header));
  out.insert(out.end(), frame.begin(), frame.end());
}

// Appends the smaller of the requested frames of a plane and returns its length.
size_t AppendFrame(ByteSpan plane, bool matches, bool literals, CodecScratch& scratch, Bytes& out) {
  const size_t at = out.size();
  const std::span<std::byte> frame = scratch.candidate.Get(Zstd::Bound(plane.size()));
  size_t best = SIZE_MAX;
  if (matches) {
    best = scratch.zstd.Compress(plane, frame);
    if (best == 0 || best > UINT32_MAX)
      throw Error(Finding::kLimit, "zstd cannot compress {} bytes", plane.size());
    PutFrame(frame.first(best), at, out);
  }
  if (!literals) return best;
  size_t size = scratch.zstd.CompressLiterals(plane, frame);
  const bool store = size == 0 || size >= plane.size();
  if (store) size = Zstd::StoredSize(plane.size());
  if (size >= best) return best;
  if (size > UINT32_MAX)
    throw Error(Finding::kLimit, "zstd cannot compress {} bytes", plane.size());
  if (!store) {
    PutFrame(frame.first(size), at, out);
    return size;
  }
  PutFrame({}, at, out);
  StoreLE(out.data() + at, static_cast<uint32_t>(size));
  Zstd::Store(plane, out);
  return size;
}

}  // namespace

bool HasBlockPlanes(DType dtype) { return !ListFields(dtype).empty(); }

PlaneChoices EncodeBlockPlanes(DType dtype, ByteSpan raw, BlockFrames frames, CodecScratch& scratch,
                               Bytes& out) {
  const uint32_t block_bytes = Info(dtype).block_bytes;
  const uint64_t blocks = raw.size() / block_bytes;
  KV_ASSERT(HasBlockPlanes(dtype) && blocks != 0 && raw.size() % block_bytes == 0);
  PlaneChoices choices;
  const std::span<const Field> fields = ListFields(dtype);
  for (const Field& field : fields) {
    const std::span<std::byte> plane = scratch.planes.Get(blocks * field.bytes);
    CopyStrided2D(raw.data() + field.offset, block_bytes, field.bytes, plane.data(), field.bytes,
                  field.bytes, blocks, 1, field.bytes);
    const bool both = frames == BlockFrames::kSmaller ||
                      (frames == BlockFrames::kSmallerNarrow && &field != &fields.back());
    const bool matches = both || frames == BlockFrames::kMatches;
    const bool literals = both || frames != BlockFrames::kMatches;
    const size_t size = AppendFrame(plane, matches, literals, scratch, out);
    choices.push_back({Predictor::kRaw, Backend::kZstd, plane.size(), size});
  }
  return choices;
}

void DecodeBlockPlanes(DType dtype, ByteSpan payload, std::span<std::byte> raw,
                       CodecScratch& scratch) {
  const uint32_t block_bytes = Info(dtype).block_bytes;
  if (!HasBlockPlanes(dtype) || raw.empty() || raw.size() % block_bytes != 0) {
    throw Error(Finding::kBadFrame, "{} bytes of {} cannot be split into planes of blocks",
                raw.size(), Name(dtype));
  }
  const uint64_t blocks = raw.size() / block_bytes;
  ByteReader reader(payload);
  for (const Field& field : ListFields(dtype)) {
    const uint32_t size = reader.U32("length of a plane");
    const uint64_t offset = reader.offset();
    const ByteSpan frame = reader.Take(size, "plane");
    const std::span<std::byte> plane = scratch.planes.Get(blocks * field.bytes);
    if (!scratch.zstd.Decompress(frame, plane)) {
      throw Error(Finding::kBadPayload, "the zstd frame of {} bytes does not decode to {} bytes",
                  size, plane.size())
          .At(offset);
    }
    CopyStrided2D(plane.data(), field.bytes, field.bytes, raw.data() + field.offset, block_bytes,
                  field.bytes, blocks, 1, field.bytes);
  }
  reader.ExpectEnd("the last plane");
}

}  // namespace kv
