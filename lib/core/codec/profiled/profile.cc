// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

// Profiles (profile.h): the .kvp file, the tables derived from an entry, and training. FORMAT.md,
// "Profile", is the grammar.

#include "lib/core/codec/profiled/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <unordered_map>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/utf8.h"
#include "lib/core/codec/context/prev.h"

namespace kv {
namespace {

constexpr std::array<unsigned char, 8> kProfileMagic = {0x89, 'K',  'V',  'P',
                                                        '\r', '\n', 0x1a, '\n'};
// Version 2 has regressions without blocks and starts, which no program writes any more.
constexpr uint32_t kPlainVersion = 1, kVersionWithNeighbours = 2, kVersionWithRegressions = 3;
constexpr uint64_t kProfileHashBytes = 16;
constexpr uint32_t kMostNameBytes = 255;
constexpr uint32_t kMostExponentBase = 255 - 31;

auto MakeSortKey(const ProfileEntry& entry) {
  return std::tuple(entry.layer, entry.is_value, entry.dtype);
}

void WriteEntry(const ProfileEntry& entry, ByteWriter& out) {
  out.U32(entry.layer);
  out.U8(entry.is_value ? 2 : 1);
  out.U8(static_cast<uint8_t>(entry.dtype));
  out.U8(static_cast<uint8_t>(entry.shape.symbol_bits));
  out.U8(static_cast<uint8_t>(entry.shape.exponent_base));
  out.U32(entry.columns);
  out.U32(entry.expected);
  out.U32(entry.row_count());
  out.Append(std::as_bytes(std::span(entry.first)));
  WriteModel(entry.model, SignedOrder(entry.shape.symbol_bits), out);
  out.Append(entry.rows);
}

[[noreturn]] void BadEntry(std::string_view what, uint64_t at) {
  throw Error(Finding::kBadField, "a profile cannot have {}", what).At(at);
}

ProfileEntry ReadEntry(ByteReader& reader) {
  const uint64_t at = reader.offset();
  ProfileEntry entry;
  entry.layer = reader.U32("layer");
  const uint32_t role = reader.U8("role"), dtype = reader.U8("dtype");
  if (role != 1 && role != 2) BadEntry("an entry that is neither for K nor for V", at + 4);
  entry.is_value = role == 2;
  entry.dtype = static_cast<DType>(dtype);
  if (entry.dtype != DType::kF16 && entry.dtype != DType::kBF16)
    BadEntry("entries of types other than f16 and bf16", at + 5);
  entry.shape.form.bfloat = entry.dtype == DType::kBF16;
  entry.shape.symbol_bits = reader.U8("symbol bits");
  entry.shape.exponent_base = reader.U8("exponent base");
  if (entry.shape.symbol_bits < 6 || entry.shape.symbol_bits > 8 ||
      entry.shape.exponent_base > (entry.shape.form.bfloat ? kMostExponentBase : 0))
    BadEntry("symbols of this width and exponent base", at + 6);
  entry.columns = reader.U32("columns");
  if (entry.columns == 0 || entry.columns > kMostProfileColumns) BadEntry("this row size", at + 8);
  entry.expected = reader.U32("expected bits");
  const uint32_t rows = reader.U32("number of rows");
  if (rows > kMostProfileRows) BadEntry("too many rows in an entry", at + 16);
  const ByteSpan first = reader.Take(entry.columns, "first row");
  for (const std::byte symbol : first) {
    entry.first.push_back(static_cast<uint8_t>(symbol));
    if (entry.first.back() >> entry.shape.symbol_bits != 0) BadEntry("an oversized symbol", at);
  }
  entry.model = ReadModel(reader, entry.shape.symbol_bits, SignedOrder(entry.shape.symbol_bits));
  for (const auto& table : entry.model.tables) {
    bool any = false;
    for (uint32_t s = 0; s < table.size(); ++s) any |= table[s] != 0 && entry.shape.CanDecode(s);
    if (!any) BadEntry("a table none of whose symbols has an exponent", at);
  }
  const ByteSpan bytes = reader.TakeArray(rows, entry.row_bytes(), "rows");
  entry.rows.assign(bytes.begin(), bytes.end());
  return entry;
}

}  // namespace

// Coders of the entries and integers of the regressions, made on first use: a caller may need few
// of many layers.
struct Profile::Coders {
  struct One {
    std::once_flag once;
    std::unique_ptr<const ProfileCoder> coder;
  };
  struct Weights {
    std::once_flag once;
    std::vector<int8_t> integers;
  };
  Coders(size_t entries, size_t regressions) : of(entries), weights(regressions) {}
  std::vector<One> of;
  std::vector<Weights> weights;
};

Profile::Profile(std::string name, std::vector<ProfileEntry> entries, Regressions regressions,
                 Bytes file)
    : file_(std::move(file)),
      name_(std::move(name)),
      entries_(std::move(entries)),
      regressions_(std::move(regressions)),
      coders_(std::make_unique<Coders>(entries_.size(), regressions_.list.size())) {
  std::copy(file_.end() - static_cast<std::ptrdiff_t>(kProfileHashBytes), file_.end(),
            hash_.begin());
}

Profile::~Profile() = default;

const ProfileCoder& Profile::GetCoder(size_t entry) const {
  Coders::One& one = coders_->of.at(entry);
  std::call_once(one.once,
                 [&] { one.coder = std::make_unique<const ProfileCoder>(entries_[entry]); });
  return *one.coder;
}

const std::vector<int8_t>& Profile::GetIntegers(size_t regression) const {
  Coders::Weights& weights = coders_->weights.at(regression);
  std::call_once(weights.once, [&] {
    const Regression& one = regressions_.list[regression];
    try {
      weights.integers = DecodeWeights(one);
    } catch (const Error& error) {
      // The caller is coding a chunk of a sound file.
      throw Error(error.finding(), "the profile is damaged: weights for layer {} {}: {}", one.layer,
                  one.is_value ? 'V' : 'K', error.message());
    }
  });
  return weights.integers;
}

bool Profile::HasMagic(ByteSpan file) {
  return file.size() >= kProfileMagic.size() &&
         std::memcmp(file.data(), kProfileMagic.data(), kProfileMagic.size()) == 0;
}

std::shared_ptr<const Profile> Profile::Make(std::string name, std::vector<ProfileEntry> entries,
                                             const Regressions& regressions) {
  KV_ASSERT(!entries.empty() && entries.size() <= kMostProfileEntries);
  KV_ASSERT(name.size() <= kMostNameBytes);
  std::ranges::sort(entries, {}, MakeSortKey);
  ByteWriter out;
  out.Append(std::as_bytes(std::span(kProfileMagic)));
  out.U32(regressions.list.empty() ? kPlainVersion : kVersionWithRegressions);
  out.U32(static_cast<uint32_t>(entries.size()));
  out.U64(0);
  out.U32(static_cast<uint32_t>(name.size()));
  out.Append(std::string_view(name));
  for (const ProfileEntry& entry : entries) WriteEntry(entry, out);
  if (!regressions.list.empty()) WriteRegressions(regressions, out);
  StoreLE<uint64_t>(out.data() + 16, out.size() + kProfileHashBytes);
  out.Append(ByteSpan(Hash128(out.bytes())));
  // Reads the result back, so that a profile in memory is exactly what its file says.
  return Read(out.bytes());
}

std::shared_ptr<const Profile> Profile::Read(ByteSpan file) {
  ByteReader reader(file);
  if (!HasMagic(file)) throw Error(Finding::kBadMagic, "this is not a profile").At(0);
  if (file.size() > kMostProfileBytes) {
    throw Error(Finding::kLimit, "the profile has {} bytes; at most {} are read", file.size(),
                kMostProfileBytes);
  }
  reader.Skip(kProfileMagic.size(), "magic");
  const uint32_t version = reader.U32("version");
  if (version < kPlainVersion || version > kVersionWithRegressions) {
    throw Error(Finding::kUnsupportedVersion,
                "the profile has version {}; this program reads {} to {}", version, kPlainVersion,
                kVersionWithRegressions);
  }
  const uint32_t count = reader.U32("number of entries");
  const uint64_t bytes = reader.U64("file size");
  if (bytes > file.size()) {
    throw Error(Finding::kTruncated, "the profile has {} bytes of {}", file.size(), bytes);
  }
  if (bytes < file.size() || file.size() < reader.offset() + kProfileHashBytes)
    throw Error(Finding::kTrailingBytes, "the profile is longer than it says").At(bytes);
  const ByteSpan hashed = file.first(file.size() - kProfileHashBytes);
  if (!std::ranges::equal(Hash128(hashed), file.last(kProfileHashBytes)))
    throw Error(Finding::kChecksum, "the profile is damaged").At(hashed.size());
  if (count == 0 || count > kMostProfileEntries) {
    throw Error(Finding::kLimit, "the profile has {} entries, expected 1 to {}", count,
                kMostProfileEntries)
        .At(12);
  }
  const uint32_t name_bytes = reader.U32("length of the name");
  if (name_bytes > kMostNameBytes) BadEntry("a name of this length", 24);
  ByteReader body(hashed.subspan(reader.offset()), reader.offset());
  std::string name(body.Text(name_bytes, "name"));
  if (!IsUtf8(name)) BadEntry("a name that is not UTF-8", 28);
  std::vector<ProfileEntry> entries;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t at = body.offset();
    entries.push_back(ReadEntry(body));
    if (i > 0 && MakeSortKey(entries[i - 1]) >= MakeSortKey(entries[i])) {
      throw Error(Finding::kDuplicateName, "the entries of the profile are not in order").At(at);
    }
  }
  Regressions regressions;
  if (version >= kVersionWithNeighbours)
    regressions = ReadRegressions(body, version == kVersionWithRegressions);
  body.ExpectEnd("profile");
  return std::shared_ptr<const Profile>(new Profile(std::move(name), std::move(entries),
                                                    std::move(regressions),
                                                    Bytes(file.begin(), file.end())));
}

std::string ProfileHashText(const Hash128Bytes& hash) {
  std::string text;
  for (const std::byte byte : hash) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

namespace {

// Assumed cost of a value that its table lacks, in 256ths of a bit.
constexpr uint16_t kExceptionCost = 30 * 256;

}  // namespace

ProfileCoder::ProfileCoder(const ProfileEntry& entry) {
  const ContextModel& model = entry.model;
  std::copy(model.table_of.begin(), model.table_of.end(), table_of.begin());
  MakeSlots(model, slots);
  MakeEncoderSymbols(model, encoder_symbols);
  // Computes, for each context and symbol, the cost of coding it and the nearest symbol that the
  // table has. Exceptions are coded as that symbol.
  const std::vector<uint16_t>& order = SignedOrder(entry.shape.symbol_bits);
  nearest.resize(model.tables.size() * 256);
  cost.assign(nearest.size(), kExceptionCost);
  for (size_t t = 0; t < model.tables.size(); ++t) {
    auto table = model.tables[t];
    for (uint32_t s = 0; s < table.size(); ++s) {
      if (!entry.shape.CanDecode(s)) table[s] = 0;
    }
    // Searches from below, then from above, and takes the nearer symbol.
    int64_t last = -1;
    std::array<int64_t, 256> below;
    for (size_t i = 0; i < order.size(); ++i) {
      if (table[order[i]] != 0) last = static_cast<int64_t>(i);
      below[i] = last;
    }
    last = -1;
    for (size_t i = order.size(); i-- > 0;) {
      if (table[order[i]] != 0) last = static_cast<int64_t>(i);
      const auto here = static_cast<int64_t>(i);
      const bool up = below[i] < 0 || (last >= 0 && last - here < here - below[i]);
      nearest[t << 8 | order[i]] =
          static_cast<uint8_t>(order[static_cast<size_t>(up ? last : below[i])]);
      const uint32_t f = table[order[i]];
      if (f != 0) {
        cost[t << 8 | order[i]] =
            static_cast<uint16_t>(((uint64_t{kRansTotalBits} << 16) - FixedLog2(f)) >> 8);
      }
    }
  }
  if (entry.rows.empty()) return;
  // Open addressing at a load of at most one half.
  places_.resize(std::bit_ceil(size_t{2} * entry.row_count()));
  for (uint32_t i = 0; i < entry.row_count(); ++i) {
    const ByteSpan row = ByteSpan(entry.rows).subspan(i * entry.row_bytes(), entry.row_bytes());
    size_t at = Hash64(row) & (places_.size() - 1);
    while (places_[at] != 0) at = (at + 1) & (places_.size() - 1);
    places_[at] = i + 1;
  }
}

std::optional<uint32_t> ProfileCoder::FindRow(const ProfileEntry& entry, ByteSpan row) const {
  if (places_.empty() || row.size() != entry.row_bytes()) return std::nullopt;
  for (size_t at = Hash64(row) & (places_.size() - 1); places_[at] != 0;
       at = (at + 1) & (places_.size() - 1)) {
    const uint32_t number = places_[at] - 1;
    const ByteSpan known = ByteSpan(entry.rows).subspan(number * entry.row_bytes(), row.size());
    if (std::memcmp(known.data(), row.data(), row.size()) == 0) return number;
  }
  return std::nullopt;
}

namespace {

// A symbol rarer than one in this many costs more as a table entry, which takes slots from every
// other symbol, than as an exception.
constexpr uint64_t kRareOneIn = 40000;
// Repeated rows are listed if at least one row in this many repeats an earlier one.
constexpr uint64_t kRepeatsOneIn = 8;
constexpr uint64_t kMostRowBytes = 4 << 20;

constexpr uint32_t kProfileSymbolBits = 8;
constexpr size_t kProfileSymbols = 256;

}  // namespace

struct ProfileTrainer::State {
  ProfileEntry entry;
  ContextCounts joint{kProfileSymbols, kProfileSymbolBits};
  std::vector<uint32_t> by_column;  // [column << 8 | symbol]
  struct Seen {
    uint32_t count = 0, row = UINT32_MAX;  // index into `repeated`
  };
  std::unordered_map<uint64_t, Seen> seen;  // key: hash of the row
  Bytes repeated;
  std::vector<uint32_t> counts;  // occurrences of the rows in `repeated`
  uint64_t rows = 0, repeats = 0;
  std::vector<uint8_t> above, here;
};

ProfileTrainer::ProfileTrainer(uint32_t layer, bool is_value, DType dtype, uint32_t columns)
    : state_(std::make_unique<State>()) {
  ProfileEntry& entry = state_->entry;
  entry.layer = layer;
  entry.is_value = is_value;
  entry.dtype = dtype;
  entry.columns = columns;
  entry.shape = {{dtype == DType::kBF16}, kProfileSymbolBits, 0};
  state_->by_column.resize(size_t{columns} * kProfileSymbols);
}

ProfileTrainer::~ProfileTrainer() = default;
ProfileTrainer::ProfileTrainer(ProfileTrainer&&) noexcept = default;

void ProfileTrainer::Add(ByteSpan rows) {
  State& state = *state_;
  const uint64_t row_bytes = state.entry.row_bytes();
  if (rows.empty()) return;
  // The exponent window comes from the first rows that are not all zeros.
  if (state.entry.shape.form.bfloat && !state.entry.shape.has_escapes()) {
    uint64_t escapes = 0;
    const SymbolShape window = ChooseWindow(SurveyHalves(rows, {.bfloat = true}, true), escapes);
    state.entry.shape.exponent_base = window.exponent_base;
    // All-zero rows before these were counted without a window and would distort the tables.
    if (window.has_escapes() && state.rows > 0) {
      std::ranges::fill(state.by_column, 0);
      std::ranges::fill(state.joint.counts, 0);
    }
  }
  state.above.clear();
  state.here.resize(state.entry.columns);
  const SymbolShape shape = state.entry.shape;
  for (uint64_t at = 0; at + row_bytes <= rows.size(); at += row_bytes) {
    const ByteSpan row = rows.subspan(at, row_bytes);
    ++state.rows;
    State::Seen& seen = state.seen[Hash64(row)];
    if (++seen.count > 1) {
      ++state.repeats;
      if (seen.row == UINT32_MAX && state.repeated.size() + row_bytes <= kMostRowBytes &&
          state.counts.size() < kMostProfileRows) {
        seen.row = static_cast<uint32_t>(state.counts.size());
        state.counts.push_back(0);
        state.repeated.insert(state.repeated.end(), row.begin(), row.end());
      }
      if (seen.row != UINT32_MAX) state.counts[seen.row] = seen.count;
      continue;
    }
    ToSymbols(row.data(), state.entry.columns, state.entry.shape, state.here.data());
    for (uint32_t c = 0; c < state.entry.columns; ++c) {
      const uint8_t symbol = state.here[c];
      if (!shape.CanDecode(symbol)) continue;  // coded as an exception
      ++state.by_column[size_t{c} << 8 | symbol];
      if (!state.above.empty()) ++state.joint.Of(state.above[c])[symbol];
    }
    state.above = state.here;
  }
}

namespace {

// Returns the median symbol of each column, the best guess for the symbol above a first row.
std::vector<uint8_t> MiddleOfColumns(const std::vector<uint32_t>& by_column, uint32_t columns) {
  const std::vector<uint16_t>& order = SignedOrder(kProfileSymbolBits);
  std::vector<uint8_t> middle(columns);
  for (uint32_t c = 0; c < columns; ++c) {
    const uint32_t* counts = by_column.data() + (size_t{c} << 8);
    uint64_t total = 0, below = 0;
    for (size_t s = 0; s < kProfileSymbols; ++s) total += counts[s];
    for (const uint16_t symbol : order) {
      below += counts[symbol];
      if (2 * below < total) continue;
      middle[c] = static_cast<uint8_t>(symbol);
      break;
    }
  }
  return middle;
}

// Sorts rows by frequency, the most frequent first, so that they get small codes.
Bytes ByFrequency(const Bytes& rows, const std::vector<uint32_t>& counts, uint64_t row_bytes) {
  std::vector<uint32_t> order(counts.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return counts[a] > counts[b]; });
  Bytes sorted;
  sorted.reserve(rows.size());
  for (const uint32_t i : order) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(i * row_bytes);
    sorted.insert(sorted.end(), begin, begin + static_cast<std::ptrdiff_t>(row_bytes));
  }
  return sorted;
}

}  // namespace

ProfileEntry ProfileTrainer::Finish() const {
  const State& state = *state_;
  ProfileEntry entry = state.entry;
  entry.first = MiddleOfColumns(state.by_column, entry.columns);
  // With a single row there are no pairs; its own symbols then serve in every context.
  ContextCounts joint = state.joint;
  if (std::ranges::all_of(joint.counts, [](uint32_t n) { return n == 0; })) {
    for (size_t i = 0; i < state.by_column.size(); ++i)
      joint.Of(0)[i % kProfileSymbols] += state.by_column[i];
  }
  const ContextGroups groups = MergeContexts(joint, SignedOrder(kProfileSymbolBits), 1, false);
  ContextCounts merged(groups.groups, kProfileSymbolBits);
  for (uint32_t context = 0; context < kProfileSymbols; ++context) {
    for (uint32_t s = 0; s < kProfileSymbols; ++s)
      merged.Of(groups.group_of[context])[s] += joint.Of(context)[s];
  }
  uint64_t total = 0;
  for (uint32_t g = 0; g < groups.groups; ++g) {
    uint32_t* counts = merged.Of(g);
    uint64_t sum = 0;
    for (uint32_t s = 0; s < kProfileSymbols; ++s) sum += counts[s];
    for (uint32_t s = 0; s < kProfileSymbols; ++s) {
      if (uint64_t{counts[s]} * kRareOneIn < sum) counts[s] = 0;
    }
    if (sum == 0) counts[entry.first[0]] = 1;
    total += sum;
  }
  entry.model = MakeModel(groups, merged);
  uint64_t bits16 = 0;
  for (uint32_t g = 0; g < groups.groups; ++g)
    bits16 += CodedBits16(merged.Of(g), entry.model.tables[g], kProfileSymbols);
  entry.expected = 1024 * entry.shape.raw_bits() +
                   static_cast<uint32_t>(total == 0 ? 0 : bits16 / total * 1024 / 65536);
  if (state.repeats * kRepeatsOneIn >= state.rows)
    entry.rows = ByFrequency(state.repeated, state.counts, entry.row_bytes());
  return entry;
}

}  // namespace kv
