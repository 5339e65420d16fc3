// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <charconv>

#include "formats/lmcache/lmcache.h"
#include "formats/lmcache/memory_format.h"
#include "formats/raw/raw.h"
#include "formats/tensors/probe.h"

namespace kv::lmcache {
namespace {

constexpr uint64_t kHeaderBytes = 28;
constexpr size_t kShapeRank = 4;

constexpr MemoryFormat kFormats[] = {
    {1, "KV_2LTD", "2LTC"}, {2, "KV_T2D", "T2C"},     {3, "KV_2TD", "2TC"},
    {4, "BINARY", ""},      {5, "BINARY_BUFFER", ""}, {6, "KV_MLA_FMT", "BLTC"},
};

struct DTypeNumber {
  int32_t number;
  DType dtype;
};
constexpr DTypeNumber kDTypes[] = {
    {1, DType::kF16}, {2, DType::kF16}, {3, DType::kBF16},   {4, DType::kF32},
    {5, DType::kF64}, {6, DType::kU8},  {7, DType::kF8E4M3}, {8, DType::kF8E5M2},
};

const MemoryFormat* FindFormat(int64_t number) {
  for (const MemoryFormat& format : kFormats) {
    if (format.number == number) return &format;
  }
  return nullptr;
}

std::optional<DType> FindDType(int32_t number) {
  for (const DTypeNumber& entry : kDTypes) {
    if (entry.number == number) return entry.dtype;
  }
  return std::nullopt;
}

struct ChunkHeader {
  int32_t length = 0, format = 0, dtype = 0;
  std::array<int32_t, kShapeRank> shape = {};
};

ChunkHeader ParseHeader(ByteSpan bytes) {
  ByteReader reader(bytes);
  ChunkHeader header;
  header.length = reader.I32("length");
  header.format = reader.I32("fmt");
  header.dtype = reader.I32("dtype");
  for (int32_t& extent : header.shape) extent = reader.I32("shape");
  return header;
}

// The shape as the layout's axes count it: a place that the layout has no axis for is 0 or 1.
std::optional<std::vector<uint64_t>> ShapeOf(const ChunkHeader& header, size_t rank) {
  std::vector<uint64_t> shape;
  for (size_t i = 0; i < kShapeRank; ++i) {
    const int32_t extent = header.shape[i];
    if (i < rank ? extent <= 0 : extent != 0 && extent != 1) return std::nullopt;
    if (i < rank) shape.push_back(static_cast<uint64_t>(extent));
  }
  return shape;
}

// Nothing where it is more than 64 bits can say.
std::optional<uint64_t> BytesOf(const std::vector<uint64_t>& shape, DType dtype) {
  uint64_t bytes = Info(dtype).block_bytes;
  for (const uint64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return bytes;
}

// How much of a header the bytes are. All three conditions hold for every chunk; two of them are
// still too much for chance, and then the reader says what is wrong.
Confidence ProbeBytes(ByteSpan bytes) {
  if (bytes.size() < kHeaderBytes) return Confidence::kNo;
  const ChunkHeader header = ParseHeader(bytes);
  const MemoryFormat* format = FindFormat(header.format);
  if (format == nullptr) return Confidence::kNo;
  const auto shape = ShapeOf(header, format->axes.empty() ? kShapeRank : format->axes.size());
  if (!shape) return Confidence::kNo;
  const std::optional<DType> dtype = FindDType(header.dtype);
  const uint64_t payload = bytes.size() - kHeaderBytes;
  const bool length_fits = header.length > 0 && static_cast<uint64_t>(header.length) == payload;
  const bool shape_fits = dtype && BytesOf(*shape, *dtype) == payload;
  if (length_fits && shape_fits) return Confidence::kCertain;
  const bool header_fits =
      dtype && header.length > 0 && BytesOf(*shape, *dtype) == static_cast<uint64_t>(header.length);
  return length_fits || shape_fits || header_fits ? Confidence::kMaybe : Confidence::kNo;
}

const SourceFile& OnlyFile(const Source& source) {
  const SourceFile* only = nullptr;
  size_t chunks = 0;
  for (const SourceFile& file : source.files) {
    if (source.is_folder && ProbeBytes(file.data->bytes()) == Confidence::kNo) continue;
    if (chunks++ == 0) only = &file;
  }
  if (chunks == 1) return *only;
  if (chunks == 0) throw Error(Finding::kMissingRecord, "no chunk of LMCache in it");
  throw std::move(
      Error(Finding::kUsage, fmt::format("holds {} chunks, and no word on which follows "
                                         "which",
                                         chunks))
          .Hint("give --order FILE, a file with one name per line"));
}

}  // namespace

const MemoryFormat& MemoryFormatOf(int64_t number) {
  if (const MemoryFormat* format = FindFormat(number)) return *format;
  throw Error(Finding::kBadField, fmt::format("fmt {} is none of LMCache's (1 to 6)", number));
}

const MemoryFormat& MemoryFormatOf(std::string_view number) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error != std::errc() || end != number.data() + number.size()) {
    throw Error(Finding::kBadField, fmt::format("fmt '{}' is no number", Escaped(number, 40)));
  }
  const MemoryFormat& format = MemoryFormatOf(value);
  if (!format.axes.empty()) return format;
  throw Error(Finding::kUnsupportedKind,
              fmt::format("fmt {} ({}): bytes of another kind than K and V", value, format.name));
}

Confidence ProbeChunk(const Source& source) {
  if (!source.is_folder) return ProbeBytes(source.files.front().data->bytes());
  return ProbeFiles(source,
                    [](ByteSpan bytes) { return ProbeBytes(bytes) == Confidence::kCertain; });
}

Snapshot OpenChunk(Source source, const OpenOptions& options) {
  const SourceFile& file = OnlyFile(source);
  const ByteSpan bytes = file.data->bytes();
  const ChunkHeader header = ParseHeader(bytes);
  const MemoryFormat& format = MemoryFormatOf(std::to_string(header.format));
  if (header.dtype == 0) {
    throw std::move(Error(Finding::kUnsupportedDtype, "dtype 0: the chunk was stored without one")
                        .At(8)
                        .Hint("describe the bytes with --raw"));
  }
  const std::optional<DType> dtype = FindDType(header.dtype);
  if (!dtype) {
    throw std::move(
        Error(Finding::kUnknownDtype, fmt::format("dtype {}; LMCache has 0 to 8", header.dtype))
            .At(8));
  }
  const auto shape = ShapeOf(header, format.axes.size());
  if (!shape) {
    throw std::move(
        Error(Finding::kBadField,
              fmt::format("shape [{}] is no {}", fmt::join(header.shape, ", "), format.name))
            .At(12));
  }
  const uint64_t payload = bytes.size() - kHeaderBytes;
  if (header.length < 0 || static_cast<uint64_t>(header.length) != payload) {
    throw std::move(
        Error(Finding::kSizeMismatch,
              fmt::format("length {}, but {} bytes follow the header", header.length, payload))
            .At(0));
  }
  if (BytesOf(*shape, *dtype) != payload) {
    throw std::move(Error(Finding::kSizeMismatch,
                          fmt::format("shape [{}] of {} does not make the {} bytes of the payload",
                                      fmt::join(*shape, ", "), Name(*dtype), payload))
                        .At(12));
  }
  const size_t layer_axis = format.axes.find('L');
  if (layer_axis != format.axes.npos && (*shape)[layer_axis] > raw::kMostLayers) {
    throw std::move(Error(Finding::kLimit, fmt::format("{} layers", (*shape)[layer_axis])).At(12));
  }
  raw::Spec spec{.name = "the header", .dtype = *dtype, .axes = {}};
  for (size_t i = 0; i < shape->size(); ++i) spec.axes.push_back({format.axes[i], (*shape)[i]});
  Snapshot snapshot =
      raw::MakeSnapshot(std::move(source), bytes.subspan(kHeaderBytes), spec, options.batch);
  snapshot.engine = "LMCache";
  snapshot.format_version = std::string(format.name);
  snapshot.key_rotation = KeyRotation::kRotated;
  return snapshot;
}

}  // namespace kv::lmcache
