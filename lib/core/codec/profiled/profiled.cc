// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Profiled chunks (profiled.h; FORMAT.md, "Chunk"). A short page would pay for tables and for a
// first row without a row above; here both come from the profile. Values that its tables lack are
// listed as exceptions.

#include "lib/core/codec/profiled/profiled.h"

#include <algorithm>
#include <bit>

#include "lib/core/codec/codec.h"
#include "lib/core/codec/context/prev.h"
#include "lib/core/codec/wrappers/wrappers.h"

namespace kv {
namespace {

constexpr uint8_t kHasRows = 1, kHides = 2, kNarrow = 4;  // flags of the header
// Each lane costs bytes of state, but without tables to build only the symbols take time, so more
// lanes pay for themselves in smaller chunks than in prev frames.
constexpr size_t kManyLanesFrom = 1 << 12, kMostLanesFrom = 1 << 16;

// Code per row: 0 for the next new row; 1 + n for row n of the profile; 1 + rows of the profile + n
// for a repetition of new row n of this chunk.
using RowCodes = ArenaVector<uint32_t>;

int ComputeCodeWidth(uint64_t listed, uint64_t fresh) { return std::bit_width(listed + fresh); }

void AppendBits(const RowCodes& codes, int width, ByteWriter& out) {
  uint64_t pending = 0;
  int bits = 0;
  for (const uint32_t code : codes) {
    pending |= uint64_t{code} << bits;
    for (bits += width; bits >= 8; bits -= 8, pending >>= 8) out.U8(static_cast<uint8_t>(pending));
  }
  if (bits > 0) out.U8(static_cast<uint8_t>(pending));
}

// Assigns a code to each row. Returns the number of new rows, whose positions go to `fresh`.
uint32_t CodeRows(const ProfileEntry& entry, const ProfileCoder& coder, ByteSpan raw,
                  uint64_t row_bytes, RowCodes& codes, RowCodes& fresh) {
  Arena* arena = codes.get_allocator().arena();
  const RowPlan plan = FindRepeatedRows(raw, row_bytes, arena);
  // Code that a repetition of each distinct row gets: that of the listed row, or beyond all listed
  // rows the index among the new ones.
  RowCodes again(arena);
  again.reserve(plan.unique);
  const uint32_t listed = row_bytes == entry.row_bytes() ? entry.row_count() : 0;
  for (size_t row = 0; row < plan.references.size(); ++row) {
    if (plan.references[row] != 0) {
      codes.push_back(again[plan.references[row] - 1]);
      continue;
    }
    const auto number = coder.FindRow(entry, raw.subspan(row * row_bytes, row_bytes));
    if (number) {
      codes.push_back(1 + *number);
      again.push_back(1 + *number);
    } else {
      again.push_back(1 + listed + static_cast<uint32_t>(fresh.size()));
      fresh.push_back(static_cast<uint32_t>(row));
      codes.push_back(0);
    }
  }
  return static_cast<uint32_t>(fresh.size());
}

// Seven bits a byte, the lowest first; bit 7 says that another byte follows.
void AppendNumber(uint64_t number, ByteWriter& out) {
  for (; number >= 128; number >>= 7) out.U8(static_cast<uint8_t>(number | 128));
  out.U8(static_cast<uint8_t>(number));
}

uint64_t ReadNumber(ByteReader& reader, std::string_view what) {
  uint64_t number = 0;
  for (int shift = 0;; shift += 7) {
    const uint8_t byte = reader.U8(what);
    if (shift > 28) {
      throw Error(Finding::kBadFrame, "the {} takes too many bytes", what).At(reader.offset() - 1);
    }
    number |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return number;
  }
}

// Returns the symbols above the first row. A grid wider than the entry's rows repeats them.
const uint8_t* FirstRow(const ProfileEntry& entry, uint32_t columns, ArenaVector<uint8_t>& own) {
  if (columns <= entry.columns) return entry.first.data();
  own.resize(columns);
  for (uint32_t c = 0; c < columns; ++c) own[c] = entry.first[c % entry.columns];
  return own.data();
}

// Returns exponent bits that a value with a symbol cannot have. With base 0, field 0 stands for
// exponent 0 and for all above 31 alike, so larger bf16 exponents must be exceptions. With other
// bases no table has field 0.
uint16_t BeyondWindow(const SymbolShape& shape) {
  return shape.form.bfloat && shape.exponent_base == 0 ? 0x7000 : 0;
}

// Replaces every symbol that its table lacks by the nearest one, and lists as exceptions the values
// whose symbol was replaced or cannot represent them.
void ReplaceMissing(const ProfileCoder& coder, const SymbolShape& shape, const uint8_t* first,
                    RansGrid grid, ByteSpan values, uint8_t* symbols, ByteWriter& exceptions,
                    uint32_t& count) {
  const uint16_t beyond = BeyondWindow(shape);
  size_t next = 0;  // first value after the last exception
  const uint8_t* above = first;
  for (size_t row = 0; row < grid.rows; ++row) {
    uint8_t* here = symbols + row * grid.columns;
    // Compares the whole row at once, because rows without exceptions are the rule.
    uint32_t any = 0;
    for (size_t c = 0; c < grid.columns; ++c)
      any |= uint32_t{here[c]} ^ coder.nearest[size_t{coder.table_of[above[c]]} << 8 | here[c]];
    if (any != 0 || beyond != 0) {
      for (size_t c = 0; c < grid.columns; ++c) {
        const uint8_t nearest = coder.nearest[size_t{coder.table_of[above[c]]} << 8 | here[c]];
        const size_t at = row * grid.columns + c;
        const auto value = LoadLE<uint16_t>(values.data() + 2 * at);
        if (nearest == here[c] && (value & beyond) == 0) continue;
        here[c] = nearest;
        AppendNumber(at - next, exceptions);
        next = at + 1;
        exceptions.U16(value);
        ++count;
      }
    }
    above = here;
  }
}

void PutExceptions(ByteSpan list, uint32_t count, std::span<std::byte> values) {
  ByteReader reader(list);
  uint64_t at = 0;
  for (uint32_t i = 0; i < count; ++i) {
    at += ReadNumber(reader, "gap");
    StoreLE(values.data() + 2 * at++, reader.U16("value"));
  }
}

// Returns the bytes of the list. Throws unless all exceptions lie among the `values` values.
ByteSpan TakeExceptions(ByteReader& reader, uint32_t count, uint64_t values) {
  const ByteSpan rest = reader.rest();
  const uint64_t begin = reader.offset();
  uint64_t at = 0;
  for (uint32_t i = 0; i < count; ++i) {
    at += ReadNumber(reader, "gap") + 1;
    if (at > values) {
      throw Error(Finding::kBadFrame, "an exception lies outside the chunk").At(reader.offset());
    }
    reader.Skip(2, "value");
  }
  return rest.first(reader.offset() - begin);
}

// A repetition may only name a new row that was decoded before it.
void CheckCodes(const RowCodes& codes, uint32_t listed, uint32_t fresh, uint64_t at) {
  uint32_t seen = 0;
  for (const uint32_t code : codes) {
    if (code == 0 && seen < fresh) {
      ++seen;
    } else if (code == 0 || (code > listed && code - listed > seen)) {
      throw Error(Finding::kBadFrame, "a row repeats a row that does not exist").At(at);
    }
  }
  if (seen != fresh) throw Error(Finding::kBadFrame, "rows are left over").At(at);
}

RowCodes ReadCodes(ByteReader& reader, uint64_t rows, uint32_t listed, uint32_t fresh,
                   Arena* arena) {
  const uint64_t at = reader.offset();
  const int width = ComputeCodeWidth(listed, fresh);
  const ByteSpan packed = reader.Take((rows * static_cast<uint64_t>(width) + 7) / 8, "rows");
  RowCodes codes(rows, arena);
  uint64_t pending = 0;
  int bits = 0;
  size_t next = 0;
  for (uint32_t& code : codes) {
    for (; bits < width; bits += 8) pending |= static_cast<uint64_t>(packed[next++]) << bits;
    code = static_cast<uint32_t>(pending & ((uint64_t{1} << width) - 1));
    pending >>= width;
    bits -= width;
  }
  CheckCodes(codes, listed, fresh, at);
  return codes;
}

// Copies listed and new rows to their places in the chunk.
void PlaceRows(const RowCodes& codes, const ProfileEntry& entry, uint32_t listed, ByteSpan fresh,
               uint64_t row_bytes, std::span<std::byte> raw) {
  size_t next = 0;
  std::byte* to = raw.data();
  for (const uint32_t code : codes) {
    const std::byte* from = nullptr;
    if (code == 0) {
      from = fresh.data() + next++ * row_bytes;
    } else if (code <= listed) {
      from = entry.rows.data() + (code - 1) * row_bytes;
    } else {
      from = fresh.data() + (code - 1 - listed) * row_bytes;
    }
    to = std::copy_n(from, row_bytes, to);
  }
}

// Appends the listed rows of `raw` to `out`.
void GatherRows(ByteSpan raw, const RowCodes& rows, uint64_t row_bytes,
                ArenaVector<std::byte>& out) {
  out.reserve(out.size() + rows.size() * row_bytes);
  for (const uint32_t row : rows) {
    const ByteSpan bytes = raw.subspan(row * row_bytes, row_bytes);
    out.insert(out.end(), bytes.begin(), bytes.end());
  }
}

}  // namespace

void EncodeProfiled(const Profile& profile, size_t entry_number, uint32_t columns, ByteSpan raw,
                    CodecScratch& scratch, Bytes& out) {
  const ProfileEntry& entry = profile.entries()[entry_number];
  const ProfileCoder& coder = profile.GetCoder(entry_number);
  Arena* arena = &scratch.context.arena;
  const uint64_t row_bytes = uint64_t{columns} * 2;
  RowCodes codes(arena), fresh(arena);
  RansGrid grid;
  grid.rows = CodeRows(entry, coder, raw, row_bytes, codes, fresh);
  grid.columns = columns;
  ByteSpan values = raw;
  ArenaVector<std::byte> gathered(arena);
  const bool has_rows = grid.rows < codes.size();
  if (has_rows) {
    GatherRows(raw, fresh, row_bytes, gathered);
    values = gathered;
  }
  const size_t count = values.size() / 2;
  grid.lanes = RansLanesFor(grid, kManyLanesFrom, kMostLanesFrom);
  ContextScratch& context = scratch.context;
  context.symbols.resize(count);
  ToSymbols(values.data(), count, entry.shape, context.symbols.data());
  ArenaVector<uint8_t> own_first(arena);
  const uint8_t* first = FirstRow(entry, columns, own_first);
  ByteWriter exceptions;
  uint32_t exception_count = 0;
  ReplaceMissing(coder, entry.shape, first, grid, values, context.symbols.data(), exceptions,
                 exception_count);
  const size_t hidden = HiddenBytes(grid.lanes);
  const bool hides = RawPlaneBytes(count, entry.shape.raw_bits()) >= hidden;

  ByteWriter head;
  head.U16(static_cast<uint16_t>(entry_number));
  head.U8(static_cast<uint8_t>(std::countr_zero(grid.lanes) - std::countr_zero(kRansLanes)));
  const bool narrow = columns != entry.columns;
  head.U8(static_cast<uint8_t>((has_rows ? kHasRows : 0) | (hides ? kHides : 0) |
                               (narrow ? kNarrow : 0)));
  if (narrow) AppendNumber(columns, head);
  AppendNumber(exception_count, head);
  if (has_rows) {
    AppendNumber(grid.rows, head);
    const uint32_t listed = row_bytes == entry.row_bytes() ? entry.row_count() : 0;
    AppendBits(codes, ComputeCodeWidth(listed, grid.rows), head);
  }
  head.Append(exceptions.bytes());
  out.insert(out.end(), head.bytes().begin(), head.bytes().end());
  if (count == 0) return;
  AppendPlanes(values, entry.shape, out);
  RansStates states;
  states.fill(kRansLow);
  if (hides) HideLast(hidden, out, states);
  context.words.resize(count + kRansRoom);
  uint16_t* end = context.words.data() + count + kRansRoom;
  const uint16_t* begin =
      RansEncode(context.symbols.data(), grid,
                 {.table_of = coder.table_of.data(), .tables = nullptr, .first_row = first},
                 coder.encoder_symbols.data(), end, states);
  AppendCoded({states.data(), grid.lanes}, {begin, end}, out);
}

namespace {

struct ProfiledHead {
  uint16_t entry = 0;
  RansGrid grid;  // counts the new rows only
  bool has_rows = false, hides = false;
  uint32_t exceptions = 0;
};

ProfiledHead ReadHead(ByteReader& reader, const ChunkShape& shape, const Profile& profile,
                      uint64_t raw_bytes) {
  ProfiledHead head;
  head.entry = reader.U16("entry");
  if (head.entry >= profile.entries().size()) {
    throw Error(Finding::kBadFrame, "the profile has no entry {}", head.entry).At(0);
  }
  if (profile.entries()[head.entry].dtype != shape.dtype)
    throw Error(Finding::kBadFrame, "the profile's entry is of another type").At(0);
  const uint32_t lanes = reader.U8("lanes"), flags = reader.U8("flags");
  if (lanes > 2 || flags > (kHasRows | kHides | kNarrow))
    throw Error(Finding::kBadFrame, "the chunk has an unknown form").At(2);
  head.grid.lanes = kRansLanes << lanes;
  head.has_rows = (flags & kHasRows) != 0;
  head.hides = (flags & kHides) != 0;
  head.grid.columns = profile.entries()[head.entry].columns;
  if ((flags & kNarrow) != 0) head.grid.columns = ReadNumber(reader, "number of columns");
  head.exceptions = static_cast<uint32_t>(
      std::min<uint64_t>(ReadNumber(reader, "number of exceptions"), UINT32_MAX));
  const uint64_t row_bytes = uint64_t{head.grid.columns} * 2;
  if (raw_bytes == 0 || row_bytes == 0 || raw_bytes % row_bytes != 0) {
    throw Error(Finding::kBadFrame, "rows of {} values are not the expected {} bytes",
                head.grid.columns, raw_bytes)
        .At(4);
  }
  head.grid.rows = raw_bytes / row_bytes;
  if (head.has_rows) {
    const uint64_t fresh = ReadNumber(reader, "number of new rows");
    if (fresh >= head.grid.rows) throw Error(Finding::kBadFrame, "no row is repeated").At(12);
    head.grid.rows = fresh;
  }
  if (head.grid.rows > 1 && head.grid.columns < head.grid.lanes)
    throw Error(Finding::kBadFrame, "there are fewer columns than lanes").At(4);
  if (head.exceptions > head.grid.rows * head.grid.columns)
    throw Error(Finding::kBadFrame, "there are more exceptions than values").At(8);
  return head;
}

// Decodes the new rows.
void DecodeNewRows(ByteReader& reader, const ProfiledHead& head, const ProfileEntry& entry,
                   const ProfileCoder& coder, std::span<std::byte> values,
                   ContextScratch& context) {
  const size_t count = values.size() / 2;
  const ByteSpan exceptions = TakeExceptions(reader, head.exceptions, count);
  const CodedPart coded =
      ReadCoded(reader, entry.shape, head.grid, head.hides ? HiddenBytes(head.grid.lanes) : 0);
  context.symbols.resize(count);
  ArenaVector<uint8_t> own_first(&context.arena);
  const auto columns = static_cast<uint32_t>(head.grid.columns);
  RansStates states = coded.states;
  const size_t used =
      RansDecode(context.symbols.data(), head.grid,
                 {.table_of = coder.table_of.data(),
                  .tables = nullptr,
                  .first_row = FirstRow(entry, columns, own_first)},
                 coder.slots.data(), coded.words.data(), coded.word_count(), states);
  CheckCodedEnd(coded, used, states, head.hides ? kRansLow - 1 : 0);
  if (!FromSymbols(context.symbols.data(), count, entry.shape, nullptr, 0, coded.planes.data(),
                   values.data())) {
    throw Error(Finding::kBadPayload, "a symbol has no exponent").At(coded.words_at);
  }
  if (head.hides) RevealHidden(coded, head.grid, states, entry.shape.raw_bits(), values.data());
  PutExceptions(exceptions, head.exceptions, values);
}

}  // namespace

void DecodeProfiled(const ChunkShape& shape, ByteSpan payload, std::span<std::byte> raw,
                    CodecScratch& scratch, const ChunkInputs& inputs) {
  if (inputs.profile == nullptr) {
    throw Error(Finding::kProfileMissing, "the chunk needs the profile that it was coded with")
        .Hint(
            "open the profile of that hash and give it to the context: kvt_profile_open, "
            "kvt_ctx_use_profile");
  }
  const Profile& profile = *inputs.profile;
  ByteReader reader(payload);
  const ProfiledHead head = ReadHead(reader, shape, profile, raw.size());
  const ProfileEntry& entry = profile.entries()[head.entry];
  const ProfileCoder& coder = profile.GetCoder(head.entry);
  Arena* arena = &scratch.context.arena;
  if (!head.has_rows) return DecodeNewRows(reader, head, entry, coder, raw, scratch.context);
  const uint64_t row_bytes = head.grid.columns * 2;
  const uint32_t listed = row_bytes == entry.row_bytes() ? entry.row_count() : 0;
  const auto fresh = static_cast<uint32_t>(head.grid.rows);
  const RowCodes codes = ReadCodes(reader, raw.size() / row_bytes, listed, fresh, arena);
  ArenaVector<std::byte> rows(fresh * row_bytes, arena);
  if (fresh > 0) {
    DecodeNewRows(reader, head, entry, coder, rows, scratch.context);
  } else {
    reader.ExpectEnd("chunk");
  }
  PlaceRows(codes, entry, listed, rows, row_bytes, raw);
}

namespace {

// From this size on, a chunk's own tables may pay for themselves, so both ways are tried.
constexpr uint64_t kOwnTablesFrom = 256 << 10;
// A chunk that exceeds the size expected from training by one byte in this many differs from the
// training data, so both ways are tried.
constexpr uint64_t kUnlikeOneIn = 48;
// Allowance for lane states and a first row without a row above.
constexpr uint64_t kChunkOverhead = 128;
// Number of values sampled when the layer is unknown: first a few with every entry, then all with
// the few entries that cost least.
constexpr size_t kLookedAt = 512, kFirstLookedAt = 64, kKeptEntries = 4;

bool Serves(const ProfileEntry& entry, const ProfilePlace& place, DType dtype, uint64_t columns) {
  return entry.dtype == dtype && entry.columns % columns == 0 &&
         (!place.layer || *place.layer == entry.layer) &&
         (!place.is_value || *place.is_value == entry.is_value);
}

// A sample of a chunk's values and of the values above them.
class SomeValues {
 public:
  SomeValues(const ChunkGrid& grid, ByteSpan raw) {
    const uint64_t first = grid.rows > 1 ? grid.columns : 0, values = grid.rows * grid.columns;
    // odd, so that all channels take part
    const uint64_t step = std::max<uint64_t>(1, (values - first) / kLookedAt) | 1;
    has_above_ = first > 0;
    for (uint64_t i = first; i < values && count_ < kLookedAt; i += step) {
      std::memcpy(values_.data() + 2 * count_, raw.data() + 2 * i, 2);
      if (has_above_) std::memcpy(above_.data() + 2 * count_, raw.data() + 2 * (i - first), 2);
      column_[count_++] = static_cast<uint32_t>(i % grid.columns);
    }
    // Permutes the sample (67 is prime), so that its first values represent all of it.
    for (size_t i = 0; i < count_; ++i) order_[i] = static_cast<uint16_t>(i * 67 % count_);
    if (count_ % 67 == 0) {
      for (size_t i = 0; i < count_; ++i) order_[i] = static_cast<uint16_t>(i);
    }
  }

  // Returns the cost of the first `count` sampled values with an entry's tables.
  uint64_t SumCosts(const ProfileEntry& entry, const ProfileCoder& coder, size_t count) {
    if (!made_ || shape_.exponent_base != entry.shape.exponent_base ||
        shape_.symbol_bits != entry.shape.symbol_bits) {
      shape_ = entry.shape;
      made_ = true;
      ToSymbols(values_.data(), count_, shape_, symbols_.data());
      ToSymbols(above_.data(), count_, shape_, symbols_above_.data());
    }
    uint64_t cost = 0;
    for (size_t n = 0; n < std::min(count, count_); ++n) {
      const size_t i = order_[n];
      const uint8_t above = has_above_ ? symbols_above_[i] : entry.first[column_[i]];
      cost += coder.cost[size_t{coder.table_of[above]} << 8 | symbols_[i]];
    }
    return cost;
  }

 private:
  size_t count_ = 0;
  bool has_above_ = false, made_ = false;
  SymbolShape shape_;
  std::array<std::byte, 2 * kLookedAt> values_{}, above_{};
  std::array<uint8_t, kLookedAt> symbols_{}, symbols_above_{};
  std::array<uint32_t, kLookedAt> column_{};
  std::array<uint16_t, kLookedAt> order_{};
};

}  // namespace

std::optional<size_t> FindProfileEntry(const Profile& profile, const ProfilePlace& place,
                                       const ChunkShape& shape, ByteSpan raw, Arena* arena) {
  const ChunkGrid grid = FindGrid(shape, raw.size());
  if (raw.empty() || raw.size() % (2 * grid.columns) != 0 || grid.columns > kMostProfileColumns ||
      (grid.rows > 1 && grid.columns < kRansLanes)) {
    return std::nullopt;
  }
  ArenaVector<std::pair<uint64_t, size_t>> serve(arena);  // cost, entry
  for (size_t i = 0; i < profile.entries().size(); ++i) {
    if (Serves(profile.entries()[i], place, shape.dtype, grid.columns)) serve.push_back({0, i});
  }
  if (serve.empty()) return std::nullopt;
  if (serve.size() == 1) return serve[0].second;
  SomeValues some(grid, raw);
  for (const size_t count : {kFirstLookedAt, kLookedAt}) {
    for (auto& [cost, entry] : serve)
      cost = some.SumCosts(profile.entries()[entry], profile.GetCoder(entry), count);
    const size_t kept = count == kLookedAt ? 1 : std::min(kKeptEntries, serve.size());
    std::ranges::partial_sort(serve, serve.begin() + static_cast<std::ptrdiff_t>(kept));
    serve.resize(kept);
  }
  return serve[0].second;
}

EncodedChunk EncodeWithProfile(const Profile& profile, const ProfilePlace& place,
                               const ChunkShape& shape, ByteSpan raw, Effort effort,
                               CodecScratch& scratch, const InnerEncoder& own) {
  if (effort < Effort::kDefault) return own(shape, raw);
  const Arena::Scope temporaries(&scratch.context.arena);
  const auto entry = FindProfileEntry(profile, place, shape, raw, &scratch.context.arena);
  if (!entry) return own(shape, raw);
  scratch.Expect(raw.size());
  EncodedChunk chunk{CodecId::kProfiled, scratch.NewPayload(), {}};
  const auto columns = static_cast<uint32_t>(FindGrid(shape, raw.size()).columns);
  EncodeProfiled(profile, *entry, columns, raw, scratch, chunk.payload);
  // 8192 = 1024 values of `expected`, times 8 bits a byte.
  const uint64_t expected =
      raw.size() / 2 * profile.entries()[*entry].expected / 8192 + kChunkOverhead;
  if (effort == Effort::kDefault && raw.size() < kOwnTablesFrom &&
      chunk.payload.size() < expected + expected / kUnlikeOneIn &&
      chunk.payload.size() < raw.size()) {
    return chunk;
  }
  EncodedChunk other = own(shape, raw);
  if (other.payload.size() <= chunk.payload.size()) std::swap(chunk, other);
  scratch.Recycle(std::move(other.payload));
  return chunk;
}

}  // namespace kv
