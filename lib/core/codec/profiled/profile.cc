// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/codec/profiled/profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "lib/core/base/checked.h"
#include "lib/core/base/error.h"
#include "lib/core/base/utf8.h"

namespace kv {
namespace {

constexpr std::array<unsigned char, 8> kProfileMagic = {0x89, 'K',  'V',  'P',
                                                        '\r', '\n', 0x1a, '\n'};
constexpr uint32_t kProfileVersion = 1;
constexpr uint64_t kProfileHashBytes = 16;
constexpr uint32_t kMostNameBytes = 255;
constexpr uint32_t kMostExponentBase = 255 - 31;

auto KeyOf(const ProfileEntry& entry) {
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
  throw Error(Finding::kBadField, fmt::format("a profile cannot have {}", what)).At(at);
}

ProfileEntry ReadEntry(ByteReader& reader) {
  const uint64_t at = reader.offset();
  ProfileEntry entry;
  entry.layer = reader.U32("layer");
  const uint32_t role = reader.U8("role"), dtype = reader.U8("dtype");
  if (role != 1 && role != 2) BadEntry("an entry that is neither of K nor of V", at + 4);
  entry.is_value = role == 2;
  entry.dtype = static_cast<DType>(dtype);
  if (entry.dtype != DType::kF16 && entry.dtype != DType::kBF16)
    BadEntry("entries of other types than f16 and bf16", at + 5);
  entry.shape.bfloat = entry.dtype == DType::kBF16;
  entry.shape.symbol_bits = reader.U8("symbol bits");
  entry.shape.exponent_base = reader.U8("exponent base");
  if (entry.shape.symbol_bits < 6 || entry.shape.symbol_bits > 8 ||
      entry.shape.exponent_base > (entry.shape.bfloat ? kMostExponentBase : 0))
    BadEntry("such symbols", at + 6);
  entry.columns = reader.U32("columns");
  if (entry.columns == 0 || entry.columns > kMostProfileColumns) BadEntry("such rows", at + 8);
  entry.expected = reader.U32("expected bits");
  const uint32_t rows = reader.U32("number of rows");
  if (rows > kMostProfileRows) BadEntry("so many rows in an entry", at + 16);
  const ByteSpan first = reader.Take(entry.columns, "first row");
  for (const std::byte symbol : first) {
    entry.first.push_back(static_cast<uint8_t>(symbol));
    if (entry.first.back() >> entry.shape.symbol_bits != 0) BadEntry("such a first row", at);
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

// Made when they are first needed: few of many layers may be.
struct Profile::Coders {
  struct One {
    std::once_flag once;
    std::unique_ptr<const ProfileCoder> coder;
  };
  explicit Coders(size_t count) : of(count) {}
  std::vector<One> of;
};

Profile::Profile(std::string name, std::vector<ProfileEntry> entries, Bytes file)
    : file_(std::move(file)),
      name_(std::move(name)),
      entries_(std::move(entries)),
      coders_(std::make_unique<Coders>(entries_.size())) {
  std::copy(file_.end() - static_cast<std::ptrdiff_t>(kProfileHashBytes), file_.end(),
            hash_.begin());
}

Profile::~Profile() = default;

const ProfileCoder& Profile::CoderOf(size_t entry) const {
  Coders::One& one = coders_->of.at(entry);
  std::call_once(one.once,
                 [&] { one.coder = std::make_unique<const ProfileCoder>(entries_[entry]); });
  return *one.coder;
}

bool Profile::HasMagic(ByteSpan file) {
  return file.size() >= kProfileMagic.size() &&
         std::memcmp(file.data(), kProfileMagic.data(), kProfileMagic.size()) == 0;
}

std::shared_ptr<const Profile> Profile::Make(std::string name, std::vector<ProfileEntry> entries) {
  KV_ASSERT(!entries.empty() && entries.size() <= kMostProfileEntries);
  KV_ASSERT(name.size() <= kMostNameBytes);
  std::ranges::sort(entries, {}, KeyOf);
  ByteWriter out;
  out.Append(std::as_bytes(std::span(kProfileMagic)));
  out.U32(kProfileVersion);
  out.U32(static_cast<uint32_t>(entries.size()));
  out.U64(0);
  out.U32(static_cast<uint32_t>(name.size()));
  out.Append(std::string_view(name));
  for (const ProfileEntry& entry : entries) WriteEntry(entry, out);
  StoreLE<uint64_t>(out.data() + 16, out.size() + kProfileHashBytes);
  out.Append(ByteSpan(Hash128(out.bytes())));
  // Read back: a profile is what its file says.
  return Read(out.bytes());
}

std::shared_ptr<const Profile> Profile::Read(ByteSpan file) {
  ByteReader reader(file);
  if (!HasMagic(file)) throw Error(Finding::kBadMagic, "this is not a profile").At(0);
  if (file.size() > kMostProfileBytes) {
    throw Error(Finding::kLimit, fmt::format("the profile has {} bytes; {} are the most",
                                             file.size(), kMostProfileBytes));
  }
  reader.Skip(kProfileMagic.size(), "magic");
  const uint32_t version = reader.U32("version");
  if (version != kProfileVersion) {
    throw Error(
        Finding::kUnsupportedVersion,
        fmt::format("the profile has version {}; this program reads {}", version, kProfileVersion));
  }
  const uint32_t count = reader.U32("number of entries");
  const uint64_t bytes = reader.U64("file size");
  if (bytes > file.size()) {
    throw Error(Finding::kTruncated,
                fmt::format("the profile has {} bytes of {}", file.size(), bytes));
  }
  if (bytes < file.size() || file.size() < reader.offset() + kProfileHashBytes)
    throw Error(Finding::kTrailingBytes, "the profile is longer than it says").At(bytes);
  const ByteSpan hashed = file.first(file.size() - kProfileHashBytes);
  if (!std::ranges::equal(Hash128(hashed), file.last(kProfileHashBytes)))
    throw Error(Finding::kChecksum, "the profile is damaged").At(hashed.size());
  if (count == 0 || count > kMostProfileEntries) {
    throw Error(Finding::kLimit, fmt::format("the profile has {} entries, expected 1 to {}", count,
                                             kMostProfileEntries))
        .At(12);
  }
  const uint32_t name_bytes = reader.U32("length of the name");
  if (name_bytes > kMostNameBytes) BadEntry("so long a name", 24);
  ByteReader body(hashed.subspan(reader.offset()), reader.offset());
  std::string name(body.Text(name_bytes, "name"));
  if (!IsUtf8(name)) BadEntry("a name that is no text", 28);
  std::vector<ProfileEntry> entries;
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t at = body.offset();
    entries.push_back(ReadEntry(body));
    if (i > 0 && KeyOf(entries[i - 1]) >= KeyOf(entries[i])) {
      throw Error(Finding::kDuplicateName, "the entries of the profile are not in order").At(at);
    }
  }
  body.ExpectEnd("profile");
  return std::shared_ptr<const Profile>(
      new Profile(std::move(name), std::move(entries), Bytes(file.begin(), file.end())));
}

std::string ProfileHashText(const Hash128Bytes& hash) {
  std::string text;
  for (const std::byte byte : hash) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

}  // namespace kv
