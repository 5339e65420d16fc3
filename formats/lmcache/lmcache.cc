// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads LMCache's chunks: headers with an unknown number of groups, layouts as arrays, and keys in
// file names.
#include "formats/lmcache/lmcache.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/format.h"
#include "formats/raw/spec.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/number.h"
#include "lib/core/snapshot/rope.h"

namespace kv::lmcache {

namespace {

struct DTypeNumber {
  int32_t number;
  DType dtype;
};
constexpr DTypeNumber kDTypes[] = {
    {1, DType::kF16}, {2, DType::kF16}, {3, DType::kBF16},   {4, DType::kF32},
    {5, DType::kF64}, {6, DType::kU8},  {7, DType::kF8E4M3}, {8, DType::kF8E5M2},
};

GroupShape ReadGroup(ByteReader& reader) {
  GroupShape group{.dtype = reader.I32("dtype"), .shape = {}};
  for (int32_t& extent : group.shape) extent = reader.I32("shape");
  return group;
}

}  // namespace

std::optional<DType> FindDType(int32_t number) {
  for (const DTypeNumber& entry : kDTypes) {
    if (entry.number == number) return entry.dtype;
  }
  return std::nullopt;
}

std::optional<GroupArray> DescribeArray(const MemoryFormat& format, DType dtype,
                                        std::span<const int64_t> shape) {
  GroupArray array{
      .dtype = dtype, .axes = format.axes, .shape = {}, .bytes = Info(dtype).block_bytes};
  if (array.axes.empty()) return std::nullopt;
  // Shapes are padded to four dimensions, and latents of one layer group may lack the leading 1.
  size_t rank = shape.size();
  while (rank > 0 && shape[rank - 1] == 0) --rank;
  if (array.axes == "BLTC" && rank == 3) {
    array.axes = "LTC";
  } else if (rank == array.axes.size() + 1 && shape[rank - 1] == 1) {
    --rank;
  }
  if (rank != array.axes.size()) return std::nullopt;
  for (size_t i = 0; i < rank; ++i) {
    if (shape[i] <= 0) return std::nullopt;
    if ((array.axes[i] == '2' || array.axes[i] == 'B') && shape[i] > 2) return std::nullopt;
    array.shape.push_back(static_cast<uint64_t>(shape[i]));
    if (__builtin_mul_overflow(array.bytes, array.shape.back(), &array.bytes)) return std::nullopt;
  }
  // A chunk may mix groups of latents (one plane) with groups of K and V (two planes), so the first
  // axis counts planes.
  if (array.axes == "BLTC") array.axes = "2LTC";
  return array;
}

std::optional<GroupArray> DescribeArray(const MemoryFormat& format, const GroupShape& group) {
  const std::optional<DType> dtype = FindDType(group.dtype);
  if (!dtype) return std::nullopt;
  const std::array<int64_t, 4> shape = {group.shape[0], group.shape[1], group.shape[2],
                                        group.shape[3]};
  return DescribeArray(format, *dtype, shape);
}

Snapshot SnapshotOfArrays(std::span<const GroupArray> groups, ByteSpan payload,
                          std::optional<uint64_t> batch) {
  Snapshot snapshot;
  for (size_t g = 0; g < groups.size(); ++g) {
    const GroupArray& group = groups[g];
    raw::Spec spec{.name = "the header", .dtype = group.dtype, .axes = {}};
    for (size_t i = 0; i < group.shape.size(); ++i) {
      if (group.axes[i] == 'L' && snapshot.layers.size() + group.shape[i] > raw::kMostLayers)
        throw Error(Finding::kLimit, "{} layers", group.shape[i]);
      spec.axes.push_back({group.axes[i], group.shape[i]});
    }
    if (group.bytes > payload.size()) throw Error(Finding::kSizeMismatch, "groups past the end");
    Snapshot part = raw::MakeSnapshot({}, payload.first(group.bytes), spec, batch);
    payload = payload.subspan(group.bytes);
    const std::string name = groups.size() > 1 ? fmt::format("g{}", g) : "";
    for (LayerKv& layer : part.layers) {
      layer.index = static_cast<uint32_t>(snapshot.layers.size());
      layer.group = name;
      snapshot.layers.push_back(std::move(layer));
    }
    for (auto& [key, value] : part.facts)
      snapshot.facts.emplace_back(name.empty() ? key : key + " of " + name, std::move(value));
    snapshot.stored.insert(snapshot.stored.end(), part.stored.begin(), part.stored.end());
  }
  if (groups.size() > 1) {
    snapshot.notes.push_back({fmt::format("the layers of {} groups are numbered consecutively: the "
                                          "file does not say which layers of the model they are",
                                          groups.size()),
                              false});
  }
  snapshot.engine = "LMCache";
  AssumeRotated(snapshot, "the engines that LMCache serves cache keys after RoPE");
  return snapshot;
}

namespace {

constexpr uint64_t kHeaderBytes = 28;  // size of the header of a chunk with one group
constexpr uint64_t kFirstDtype = 8, kFirstShape = 12;

constexpr MemoryFormat kFormats[] = {
    {1, "KV_2LTD", "2LTC"},   {2, "KV_T2D", "T2C"},      {3, "KV_2TD", "2TC"}, {4, "BINARY", ""},
    {5, "BINARY_BUFFER", ""}, {6, "KV_MLA_FMT", "BLTC"}, {7, "EC_TD", ""},     {8, "HS_TD", ""},
};

uint64_t Payload(const ChunkHeader& header, ByteSpan bytes) {
  return bytes.size() - header.bytes();
}

bool LengthFits(const ChunkHeader& header, ByteSpan bytes) {
  return header.length > 0 && static_cast<uint64_t>(header.length) == Payload(header, bytes);
}

// Probes chunks without K and V: arrays of bytes (shape [length, 0, 0, 0]) or of numbers.
Confidence ProbeOther(const ChunkHeader& header, ByteSpan bytes) {
  uint64_t product = 1;
  for (const int32_t extent : header.groups[0].shape) {
    if (extent < 0) return Confidence::kNo;
    if (__builtin_mul_overflow(product, extent == 0 ? 1 : static_cast<uint64_t>(extent), &product))
      return Confidence::kNo;
  }
  const std::optional<DType> dtype = FindDType(header.groups[0].dtype);
  const uint64_t each = dtype ? Info(*dtype).block_bytes : 1, payload = Payload(header, bytes);
  const bool fits = product == payload || (payload % each == 0 && product == payload / each);
  return LengthFits(header, bytes) && fits ? Confidence::kCertain : Confidence::kNo;
}

// Returns true if the size fits a header with some number of groups and its length.
bool SomeLengthFits(const ChunkHeader& header, ByteSpan bytes) {
  if (header.length <= 0 || bytes.size() < kHeaderBytes) return false;
  const uint64_t length = static_cast<uint64_t>(header.length), payload = Payload(header, bytes);
  return length <= payload && (payload - length) % kGroupBytes == 0 &&
         (payload - length) / kGroupBytes < kMostGroups;
}

// Returns the header whose groups fit the file exactly; otherwise the one with a single group, so
// that the caller can report what is wrong with it. Throws kTruncated.
ChunkHeader ParseChunkHeader(ByteSpan bytes) {
  ByteReader reader(bytes);
  ChunkHeader header;
  header.length = reader.I32("length");
  header.format = reader.I32("fmt");
  header.groups.push_back(ReadGroup(reader));
  const MemoryFormat* format = FindMemoryFormat(header.format);
  if (format == nullptr) return header;
  ChunkHeader attempt = header;
  uint64_t payload = 0;
  for (;;) {
    const std::optional<GroupArray> array = DescribeArray(*format, attempt.groups.back());
    if (!array || __builtin_add_overflow(payload, array->bytes, &payload)) return header;
    if (payload > bytes.size()) return header;
    if (attempt.bytes() + payload == bytes.size() && attempt.length >= 0 &&
        static_cast<uint64_t>(attempt.length) == payload) {
      return attempt;
    }
    if (attempt.groups.size() == kMostGroups || reader.remaining() < kGroupBytes) return header;
    attempt.groups.push_back(ReadGroup(reader));
  }
}

// Returns how certainly the bytes begin with a header. Length, type and shape hold for every chunk;
// two of the three cannot match by chance, and then the reader reports what is wrong.
Confidence ProbeBytes(ByteSpan bytes) {
  if (bytes.size() < kHeaderBytes) return Confidence::kNo;
  const ChunkHeader header = ParseChunkHeader(bytes);
  const MemoryFormat* format = FindMemoryFormat(header.format);
  if (format == nullptr) return Confidence::kNo;
  if (format->axes.empty()) return ProbeOther(header, bytes);
  // Only a complete header has more than one group.
  if (header.groups.size() > 1) return Confidence::kCertain;
  GroupShape typed = header.groups[0];
  const bool known = FindDType(typed.dtype).has_value();
  if (!known) typed.dtype = 6;
  const auto array = DescribeArray(*format, typed);
  const bool length_fits = LengthFits(header, bytes);
  if (!array) return known && length_fits ? Confidence::kMaybe : Confidence::kNo;
  const bool shape_fits = known && array->bytes == Payload(header, bytes);
  if (length_fits && shape_fits) return Confidence::kCertain;
  const bool header_fits =
      known && header.length > 0 && array->bytes == static_cast<uint64_t>(header.length);
  return length_fits || shape_fits || header_fits || (known && SomeLengthFits(header, bytes))
             ? Confidence::kMaybe
             : Confidence::kNo;
}

const SourceFile& OnlyFile(const Source& source) {
  const SourceFile* only = nullptr;
  size_t chunks = 0;
  for (const SourceFile& file : source.files) {
    if (source.is_folder && ProbeBytes(file.data->bytes()) == Confidence::kNo) continue;
    if (chunks++ == 0) only = &file;
  }
  if (chunks == 1) return *only;
  if (chunks == 0) throw Error(Finding::kMissingRecord, "it holds no LMCache chunk");
  throw Error(Finding::kUsage, "holds {} chunks and does not say which follows which", chunks)
      .Hint("give --order FILE, a file with one name per line");
}

// Returns the arrays of the groups, or throws, naming the field that is wrong.
std::vector<GroupArray> CheckedArrays(const ChunkHeader& header, const MemoryFormat& format,
                                      ByteSpan bytes) {
  std::vector<GroupArray> arrays;
  uint64_t total = 0;
  for (const GroupShape& group : header.groups) {
    if (group.dtype == 0) {
      throw Error(Finding::kUnsupportedDtype, "dtype 0: the chunk was stored without one")
          .At(kFirstDtype)
          .Hint("describe the bytes with --raw");
    }
    if (!FindDType(group.dtype)) {
      throw Error(Finding::kUnknownDtype, "dtype {}; LMCache has 0 to 8", group.dtype)
          .At(kFirstDtype);
    }
    const auto array = DescribeArray(format, group);
    if (!array) {
      throw Error(Finding::kBadField, "shape [{}] does not fit {}", fmt::join(group.shape, ", "),
                  format.name)
          .At(kFirstShape);
    }
    arrays.push_back(*array);
    total += array->bytes;  // of several groups, the header's parser has added up the sizes
  }
  const uint64_t payload = Payload(header, bytes);
  if (!LengthFits(header, bytes) && total != payload && SomeLengthFits(header, bytes)) {
    throw Error(Finding::kSizeMismatch,
                "the shapes of its groups do not add up to its length of {} bytes", header.length)
        .At(kFirstShape);
  }
  if (header.length < 0 || static_cast<uint64_t>(header.length) != payload) {
    throw Error(Finding::kSizeMismatch, "length {}, but {} bytes follow the header", header.length,
                payload)
        .At(0);
  }
  if (total != payload) {
    throw Error(Finding::kSizeMismatch,
                "shape [{}] of {} does not give the {} bytes of the payload",
                fmt::join(arrays[0].shape, ", "), Name(arrays[0].dtype), payload)
        .At(kFirstShape);
  }
  return arrays;
}

}  // namespace

const MemoryFormat* FindMemoryFormat(int64_t number) {
  for (const MemoryFormat& format : kFormats) {
    if (format.number == number) return &format;
  }
  return nullptr;
}

const MemoryFormat* FindMemoryFormat(std::string_view name) {
  for (const MemoryFormat& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

const MemoryFormat& CacheFormat(const MemoryFormat& format) {
  if (!format.axes.empty()) return format;
  throw Error(Finding::kUnsupportedKind, "fmt {} ({}): its bytes are not K and V", format.number,
              format.name);
}

const MemoryFormat& GetMemoryFormat(int64_t number) {
  if (const MemoryFormat* format = FindMemoryFormat(number)) return *format;
  throw Error(Finding::kBadField, "fmt {} does not exist in LMCache (expected 1 to {})", number,
              std::size(kFormats));
}

const MemoryFormat& GetMemoryFormat(std::string_view number) {
  const auto value = ParseNumber<int64_t>(number);
  if (!value) {
    throw Error(Finding::kBadField, "fmt '{}' is not a number", Escaped(number, 40));
  }
  return CacheFormat(GetMemoryFormat(*value));
}

Confidence ProbeChunk(const Source& source) {
  if (!source.is_folder) return ProbeBytes(source.files.front().data->bytes());
  return ProbeFiles(source,
                    [](ByteSpan bytes) { return ProbeBytes(bytes) == Confidence::kCertain; });
}

Snapshot OpenChunk(Source source, const OpenOptions& options) {
  const SourceFile& file = OnlyFile(source);
  const ByteSpan bytes = file.data->bytes();
  const ChunkHeader header = ParseChunkHeader(bytes);
  const MemoryFormat& format = CacheFormat(GetMemoryFormat(header.format));
  const std::vector<GroupArray> arrays = CheckedArrays(header, format, bytes);
  Snapshot snapshot = SnapshotOfArrays(arrays, bytes.subspan(header.bytes()), options.batch);
  if (const auto key = ParseKeyFileName(file.name)) {
    snapshot.model = key->model;
    snapshot.facts.insert(snapshot.facts.end(), key->facts.begin(), key->facts.end());
    if (key->layer && snapshot.layers.size() == 1) snapshot.layers.front().index = *key->layer;
  }
  snapshot.source = std::move(source);
  snapshot.format_version = std::string(format.name);
  return snapshot;
}

namespace {

using std::string_view;

bool IsHash(string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
  });
}

void Replace(std::string& text, string_view from, string_view to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// Unescapes a model name: files write "/" as "-SEP-", raw blocks as "%2F".
std::string UnescapeModel(string_view word) {
  std::string model(word);
  Replace(model, "-SEP-", "/");
  Replace(model, "%2F", "/");
  return Escaped(model, 120);
}

// The four bytes are the number of ranks and this rank, of all machines and then of this machine.
std::string RankText(uint32_t rank) {
  std::string text = fmt::format("{} of {}", rank >> 16 & 0xFF, rank >> 24);
  const uint32_t local = rank & 0xFF, locals = rank >> 8 & 0xFF;
  return locals == 0 ? text : text + fmt::format(", {} of {} on its machine", local, locals);
}

std::optional<KeyName> ParseMultiprocess(const std::vector<string_view>& words) {
  if ((words.size() != 4 && words.size() != 5) || !words[1].starts_with("0x") ||
      words[1].size() != 10 || !IsHash(words[3])) {
    return std::nullopt;
  }
  const auto rank = ParseNumber<uint32_t>(words[1].substr(2), 16);
  const auto group = ParseNumber<uint32_t>(words[2], 16);
  if (!rank || !group) return std::nullopt;
  KeyName name;
  name.model = UnescapeModel(words[0]);
  name.hash = words[3];
  name.multiprocess = true;
  name.facts.emplace_back("rank", RankText(*rank));
  name.facts.emplace_back("object group", std::to_string(*group));
  if (words.size() == 5) name.facts.emplace_back("salt", Escaped(words[4], 120));
  return name;
}

}  // namespace

std::optional<KeyName> ParseKeyName(string_view key) {
  const std::vector<string_view> words = Split(key, '@');
  if (auto name = ParseMultiprocess(words)) return name;
  if (words.size() < 5 || !IsHash(words[3])) return std::nullopt;
  const auto world = ParseNumber<uint32_t>(words[1]), worker = ParseNumber<uint32_t>(words[2]);
  if (!world || !worker) return std::nullopt;
  KeyName name;
  name.model = UnescapeModel(words[0]);
  name.hash = words[3];
  name.dtype = ParseDType(words[4]);
  if (*world > 1) name.facts.emplace_back("rank", fmt::format("{} of {}", *worker, *world));
  for (size_t i = 5; i < words.size(); ++i) {
    const auto layer = i == 5 ? ParseNumber<uint32_t>(words[i]) : std::nullopt;
    if (layer && *layer <= UINT16_MAX) {
      name.layer = layer;
    } else {
      name.facts.emplace_back("tag", Escaped(words[i], 120));
    }
  }
  return name;
}

std::optional<KeyName> ParseKeyFileName(string_view file) {
  file = LastPart(file);
  return ParseKeyName(file.substr(0, file.rfind('.')));
}

}  // namespace kv::lmcache
