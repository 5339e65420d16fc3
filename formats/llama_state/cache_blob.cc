// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The grammar of llama.cpp's caches in all layouts: finds every interpretation of a state that
// fits, and describes layouts for writing.

#include <algorithm>
#include <cstring>

#include "formats/llama_state/llama_state.h"
#include "lib/core/base/number.h"

namespace kv::llama_state {
namespace {

struct GgmlType {
  int32_t id;
  DType dtype;
};
constexpr GgmlType kGgmlTypes[] = {
    {0, DType::kF32},  {1, DType::kF16},     {2, DType::kQ4_0},
    {3, DType::kQ4_1}, {6, DType::kQ5_0},    {7, DType::kQ5_1},
    {8, DType::kQ8_0}, {20, DType::kIQ4_NL}, {30, DType::kBF16},
};

// Reads a field and refuses it, with the field's own offset, unless it lies in [low, high].
uint32_t ReadBetween(ByteReader& in, std::string_view field, uint32_t low, uint32_t high) {
  const uint64_t at = in.offset();
  const uint32_t value = in.U32(field);
  if (value >= low && value <= high) return value;
  throw Error(Finding::kBadField, "{} is {}, expected {} to {}", field, value, low, high).At(at);
}

uint32_t CheckedChannels(uint64_t elements, uint64_t at) {
  if (elements > 0 && elements <= kMaxRowElements) return static_cast<uint32_t>(elements);
  throw Error(Finding::kLimit, "a row of {} values, expected 1 to {}", elements, kMaxRowElements)
      .At(at);
}

// Reads the header of one K or plain V part: type, bytes of one cell.
RowShape ReadRowShape(ByteReader& in) {
  const DType dtype = ReadType(in);
  const DTypeInfo& info = Info(dtype);
  const uint64_t at = in.offset();
  const uint64_t row_bytes = in.U64("row size");
  if (row_bytes % info.block_bytes != 0) {
    throw Error(Finding::kBadField, "row size {} is not whole {} blocks of {} bytes", row_bytes,
                info.name, info.block_bytes)
        .At(at);
  }
  const uint64_t blocks = row_bytes / info.block_bytes;
  return {dtype, CheckedChannels(std::min(blocks, kMaxRowElements + 1) * info.block_elements, at)};
}

// Reads the header of one transposed V part: type, bytes of one element, elements of a row.
RowShape ReadTransposedShape(ByteReader& in) {
  const uint64_t type_at = in.offset();
  const DType dtype = ReadType(in);
  const DTypeInfo& info = Info(dtype);
  if (IsBlockQuantised(dtype)) {
    throw Error(Finding::kBadField, "transposed V of type {}", info.name).At(type_at);
  }
  const uint32_t bytes = info.block_bytes;
  ReadBetween(in, "element size", bytes, bytes);
  const uint64_t at = in.offset();
  return {dtype, CheckedChannels(in.U32("row width"), at)};
}

uint64_t RowBytes(const RowShape& shape) {
  const DTypeInfo& info = Info(shape.dtype);
  return uint64_t{shape.channels} / info.block_elements * info.block_bytes;
}

// Reads the parts of all layers, K or V, of one stream. The first stream that has cells fills
// `shapes`; the others must agree.
void ReadParts(ByteReader& in, char which, bool transposed, uint32_t layers, uint32_t cells,
               bool first, std::vector<RowShape>& shapes, std::vector<uint64_t>& offsets) {
  for (uint32_t layer = 0; layer < layers; ++layer) {
    const uint64_t at = in.offset();
    try {
      const RowShape shape = transposed ? ReadTransposedShape(in) : ReadRowShape(in);
      if (first) {
        shapes.push_back(shape);
      } else if (shape != shapes[layer]) {
        throw Error(Finding::kInconsistent, "row type or size differs from the first stream's")
            .At(at);
      }
      offsets.push_back(in.offset());
      in.Skip(cells * RowBytes(shape), "data");  // 2^32 cells of < 2^27 bytes cannot overflow
    } catch (Error& error) {
      throw error.In("layer {} {}", layer, which);
    }
  }
}

// Checks the cells of one stream. In a sequence file all carry the id of that one sequence.
void CheckCells(ByteReader& in, uint32_t cells, const Layout& layout, Scope scope) {
  std::optional<int32_t> sequence;
  for (uint32_t i = 0; i < cells; ++i) {
    const uint64_t at = in.offset();
    const CellRecord cell = ReadCell(in, layout, scope);
    if (scope != Scope::kSequence || cell.ids.empty()) continue;
    const auto id = LoadLE<int32_t>(cell.ids.data());
    if (sequence && *sequence != id) {
      throw Error(Finding::kBadField, "cell {} belongs to sequence {}, the first to {}", i, id,
                  *sequence)
          .At(at);
    }
    sequence = id;
  }
}

void ReadStream(ByteReader& in, const Layout& layout, Scope scope, Cache& cache) {
  Stream& stream = cache.streams.emplace_back();
  stream.cells = in.U32("cell count");
  stream.cells_offset = in.offset();
  if (stream.cells == 0 && layout.has_streams) return;
  CheckCells(in, stream.cells, layout, scope);
  const bool first = cache.k.empty();
  const uint64_t at = in.offset();
  const bool transposed = ReadBetween(in, "v_trans", 0, 1) != 0;
  const uint32_t layers = ReadBetween(in, "layer count", 1, kMaxLayers);
  if (!first && (transposed != cache.v_transposed || layers != cache.k.size())) {
    throw Error(Finding::kInconsistent, "v_trans or layer count differs from the first stream's")
        .At(at);
  }
  cache.v_transposed = transposed;
  ReadParts(in, 'K', false, layers, stream.cells, first, cache.k, stream.k_offsets);
  if (!cache.has_v) return;
  ReadParts(in, 'V', transposed, layers, stream.cells, first, cache.v, stream.v_offsets);
}

void ReadCache(ByteReader& in, const Layout& layout, Scope scope, Cache& cache) {
  const uint32_t streams = layout.has_streams ? ReadBetween(in, "stream count", 1, kMaxStreams) : 1;
  uint32_t used = 0;
  for (uint32_t i = 0; i < streams; ++i) {
    const uint64_t at = in.offset();
    try {
      ReadStream(in, layout, scope, cache);
      used += cache.streams.back().cells > 0;
      if (scope == Scope::kSequence && used > 1) {
        throw Error(Finding::kBadField, "the state of one sequence has cells in a second stream")
            .At(at);
      }
    } catch (Error& error) {
      if (streams > 1) error.In("stream {}", i);
      throw;
    }
  }
}

bool HasCells(const Cache& cache) {
  return std::any_of(cache.streams.begin(), cache.streams.end(),
                     [](const Stream& stream) { return stream.cells > 0; });
}

// Returns the number of K and V parts that were found in the file.
uint64_t CountParts(std::span<const Cache> caches) {
  uint64_t parts = 0;
  for (const Cache& cache : caches) {
    for (const Stream& stream : cache.streams)
      parts += stream.k_offsets.size() + stream.v_offsets.size();
  }
  return parts;
}

Error LeftOver(const ByteReader& in) {
  return Error(Finding::kTrailingBytes, "{} bytes follow the last cache", in.remaining())
      .At(in.offset());
}

}  // namespace

std::string Layout::Word() const {
  std::string word;
  for (char letter : letters) {
    if (!word.empty()) word += '/';
    word += letter;
  }
  return extension != 0 ? word + "'" : word;
}

std::string Reading::Word() const {
  std::string kinds;
  bool all_v = true;
  for (const Cache& cache : caches) {
    kinds += kinds.empty() ? "-" : ",";
    kinds += cache.has_v ? "kv" : "k";
    all_v &= cache.has_v;
  }
  return all_v ? layout->Word() : layout->Word() + kinds;
}

DType ReadType(ByteReader& in) {
  const uint64_t at = in.offset();
  const int32_t id = in.I32("type");
  for (const GgmlType& type : kGgmlTypes) {
    if (type.id == id) return type.dtype;
  }
  throw Error(Finding::kUnknownDtype, "type {} is not a type of a KV cache", id).At(at);
}

std::optional<int32_t> TypeNumber(DType dtype) {
  for (const GgmlType& type : kGgmlTypes) {
    if (type.dtype == dtype) return type.id;
  }
  return std::nullopt;
}

CellRecord ReadCell(ByteReader& in, const Layout& layout, Scope scope) {
  const uint64_t at = in.offset();
  const bool one = scope == Scope::kSequence;
  const int32_t position = in.I32("cell position");
  if (position < 0) {
    throw Error(Finding::kBadField, "cell position is {}", position).At(at);
  }
  const uint32_t count = ReadBetween(in, "sequence ids of a cell", one ? layout.ids : 1,
                                     one ? layout.ids : kMaxSequencesPerCell);
  const ByteSpan extension = in.Take(layout.extension, "cell extension");
  const CellRecord cell{position, extension, in.TakeArray(count, 4, "sequence ids")};
  for (uint32_t i = 0; i < count; ++i) {
    const auto id = LoadLE<int32_t>(cell.ids.data() + 4 * i);
    if (id < 0) throw Error(Finding::kBadField, "sequence id is {}", id).At(at);
  }
  return cell;
}

void Search::Failed(Error error, const Layout& layout, std::pair<uint64_t, uint64_t> reached) {
  if (furthest && reached <= reached_) return;
  reached_ = reached;
  furthest = std::move(error.In("layout " + layout.Word()));
}

void Search::Try(ByteReader in, const Layout& layout, Scope scope) {
  std::vector<Cache> none;
  Extend(in, layout, scope, none);
}

void Search::Extend(const ByteReader& in, const Layout& layout, Scope scope,
                    std::vector<Cache>& before) {
  for (const bool has_v : {true, false}) {
    ByteReader at = in;
    Cache cache{.has_v = has_v, .v_transposed = false, .k = {}, .v = {}, .streams = {}};
    try {
      ReadCache(at, layout, scope, cache);
    } catch (Error& error) {
      const uint64_t parts = CountParts(before) + CountParts({&cache, 1});
      if (before.empty() || !cache.k.empty()) {
        Failed(error, layout, {parts, error.offset().value_or(0)});
      } else if (error.finding() == Finding::kTruncated && HasCells(cache)) {
        Failed(error, layout, {parts, in.offset()});
      } else {  // the bytes do not begin another cache, so they are left over
        Failed(LeftOver(in), layout, {parts, in.offset()});
      }
      if (!layout.has_streams) return;
      continue;
    }
    const bool is_empty = cache.k.empty();
    before.push_back(std::move(cache));
    if (at.at_end()) {
      const auto same = [&](const Reading& reading) { return reading.caches == before; };
      // If a cache is empty, all layouts of its cells fit alike.
      if (std::none_of(readings.begin(), readings.end(), same))
        readings.push_back({&layout, before});
    } else {
      // An empty cache has no layers that could be distinguished from those of the state.
      const auto state = is_empty ? std::nullopt : FindRecurrent(at, scope);
      if (state) hybrids.push_back({&layout, before, state});
      if (before.size() < kMaxCaches) {
        Extend(at, layout, scope, before);
      } else {
        Failed(LeftOver(at), layout, {CountParts(before), at.offset()});
      }
    }
    before.pop_back();
    // Caches without V are newer than the stream count; an empty one hides whether V exists.
    if (is_empty || !layout.has_streams) return;
  }
}

std::optional<RecurrentState> FindRecurrent(ByteReader in, Scope scope) {
  try {
    RecurrentState state{.offset = in.offset(), .bytes = in.remaining()};
    state.cells = in.U32("cell count");
    // Cells of sequence states have no ids; newer builds may begin to write one.
    const uint32_t least = scope == Scope::kSequence ? 0 : 1;
    const uint32_t most = scope == Scope::kSequence ? 1 : kMaxSequencesPerCell;
    for (uint32_t i = 0; i < state.cells; ++i) {
      if (in.I32("position") < 0) return std::nullopt;
      in.TakeArray(ReadBetween(in, "sequence ids", least, most), 4, "sequence ids");
    }
    ReadBetween(in, "s_trans", 0, 0);
    state.layers = ReadBetween(in, "layer count", 1, kMaxLayers);
    // Layers without a state are not in the list, which ends with the bytes. It has R (convolution)
    // of every layer, then S of every layer. S is wider than R, or empty if the model has no S.
    std::vector<uint64_t> widths;
    while (!in.at_end()) {
      if (ReadType(in) != DType::kF32) return std::nullopt;
      const uint64_t row = in.U64("row size");
      if (row % sizeof(float) != 0) return std::nullopt;
      in.TakeArray(state.cells, row, "state");
      widths.push_back(row);
    }
    state.states = static_cast<uint32_t>(widths.size() / 2);
    if (widths.empty() || widths.size() % 2 != 0 || state.states > state.layers)
      return std::nullopt;
    for (size_t i = 0; i < state.states; ++i) {
      const uint64_t r = widths[i], s = widths[state.states + i];
      if (r == 0 || (s != 0 && r >= s)) return std::nullopt;
    }
    return state;
  } catch (const Error&) {
    return std::nullopt;
  }
}

namespace {

constexpr int32_t kNoToken = -1;  // a record begins with this word, too
constexpr uint32_t kRecordVersion = 1;

std::vector<int32_t> Ids(ByteSpan words) {
  std::vector<int32_t> ids(words.size() / sizeof(int32_t));
  if (!ids.empty()) std::memcpy(ids.data(), words.data(), words.size());
  return ids;
}

TokenList ReadRecord(ByteReader in) {
  TokenList list;
  in.Skip(4, "record marker");
  const uint64_t version_at = in.offset();
  const uint32_t version = in.U32("record version");
  if (version != kRecordVersion) {
    throw Error(Finding::kUnsupportedVersion, "server token record version {}, supported is {}",
                version, kRecordVersion)
        .At(version_at);
  }
  list.tokens = Ids(in.TakeArray(in.U32("text token count"), 4, "text tokens"));
  const uint64_t media_at = in.offset();
  const uint32_t media = in.U32("media count");
  const ByteSpan starts = in.TakeArray(media, 4, "media start indices");
  for (uint32_t i = 0; i < media; ++i) {
    const auto start = LoadLE<uint32_t>(starts.data() + 4 * uint64_t{i});
    if (start >= list.tokens.size() || list.tokens[start] != kNoToken) {
      throw Error(Finding::kBadField, "media {} starts at token {}, which is not a media position",
                  i, start)
          .At(media_at);
    }
  }
  for (uint32_t i = 0; i < media; ++i) in.Skip(in.U32("media length"), "media entry");
  const ByteSpan padding = in.Take(in.remaining(), "padding");
  if (padding.size() >= 4 ||
      std::any_of(padding.begin(), padding.end(), [](std::byte b) { return b != std::byte{0}; })) {
    throw Error(Finding::kTrailingBytes,
                "{} bytes follow the record; at most 3 zero bytes are allowed", padding.size())
        .At(in.offset() - padding.size());
  }
  list.media_count = media;
  return list;
}

}  // namespace

TokenList ReadTokenList(ByteReader& in) {
  const uint32_t words = in.U32("token count");
  const uint64_t at = in.offset();
  const ByteSpan bytes = in.TakeArray(words, 4, "tokens");
  if (words == 0 || LoadLE<int32_t>(bytes.data()) != kNoToken) return {Ids(bytes), std::nullopt};
  try {
    return ReadRecord(ByteReader(bytes, at));
  } catch (Error& error) {
    throw error.In("server token record");
  }
}

void WriteTokenList(const std::vector<int32_t>& tokens, bool as_record, ByteWriter& out) {
  const auto count = static_cast<uint32_t>(tokens.size());
  if (as_record || (count > 0 && tokens[0] == kNoToken)) {
    out.U32(count + 4);
    out.I32(kNoToken);
    out.U32(kRecordVersion);
    out.U32(count);
    for (const int32_t token : tokens) out.I32(token);
    out.U32(0);  // media
    return;
  }
  out.U32(count);
  for (const int32_t token : tokens) out.I32(token);
}

namespace {

struct Era {
  Target target;
  uint32_t first_build, last_build;  // builds of which files of this layout were seen
};

// SEQ files of layouts C and D have the same bytes, as do SESSION files of A and B.
constexpr Era kEras[] = {
    {{'A', 9, 2, false, true, false, 0}, 3889, 4753},
    {{'B', 9, 2, false, true, true, 0}, 5640, 5640},
    {{'C', 9, 2, true, true, true, 0}, 6122, 7698},
    {{'D', 9, 2, true, false, true, 2}, 8179, 10361},
    {{'E', 10, 3, true, false, true, 3}, 0, 0},
};

Error Unknown(std::string_view version) {
  return Error(Finding::kUsage,
               "--target-version '{}': expected a llama.cpp build such as b6122 or "
               "v0.5.0, or a layout A to E",
               Escaped(version, 40));
}

// Returns true for "v0.4.0" and later, with any suffix.
bool IsRelease(std::string_view version) {
  version.remove_prefix(1);
  const auto major = TakeNumber<uint32_t>(version);
  if (!major || !version.starts_with('.')) return false;
  version.remove_prefix(1);
  const auto minor = TakeNumber<uint32_t>(version);
  return minor && (*major > 0 || *minor >= 4);
}

}  // namespace

Target FindTarget(std::string_view version) {
  if (version.empty()) return std::end(kEras)[-1].target;
  if (version.size() == 1) {
    for (const Era& era : kEras) {
      if (era.target.letter == version[0]) return era.target;
    }
    throw Unknown(version);
  }
  if (version[0] == 'v' && IsRelease(version)) return std::end(kEras)[-1].target;
  const auto number = ParseNumber<uint32_t>(version.substr(1));
  if (version[0] != 'b' || !number) throw Unknown(version);
  const uint32_t build = *number;
  const Era* before = nullptr;
  for (const Era& era : kEras) {
    if (era.first_build <= build && build <= era.last_build) return era.target;
    if (build < era.first_build || era.first_build == 0) {
      if (before == nullptr)
        throw Unknown(version).Hint("layouts of builds before b3889 cannot be written");
      throw Error(Finding::kUsage,
                  "--target-version {}: the build lies between those "
                  "known to write layout {} and layout {}",
                  version, before->target.letter, era.target.letter)
          .Hint("give the layout's letter; the engine refuses a file of the wrong layout");
    }
    before = &era;
  }
  throw Unknown(version);
}

}  // namespace kv::llama_state
