// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads a zip file's directory strictly, and inflates its deflated entries with hard limits.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "formats/format.h"
#include "formats/zip/zip.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/spool_file.h"

namespace kv {
uint32_t Crc32(ByteSpan bytes) {
  const uLong start = crc32_z(0, nullptr, 0);
  return static_cast<uint32_t>(
      crc32_z(start, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

}  // namespace kv

namespace kv::zip {
namespace {

Error Bad(std::string message, uint64_t offset) {
  Error error(Finding::kBadZip, std::move(message));
  error.At(offset);
  return error;
}

struct Directory {
  uint64_t entries = 0, offset = 0, size = 0;
};

ByteReader ReaderAt(ByteSpan file, uint64_t offset) {
  return ByteReader(file.subspan(std::min<uint64_t>(offset, file.size())), offset);
}

// Finds the one end record whose comment reaches exactly to the end of the file. A comment may
// contain a second record that does so too; readers differ in their choice, so such a file is
// refused.
uint64_t FindEndRecord(ByteSpan file) {
  constexpr uint64_t kReach = kEndBytes + 0xffff;
  if (file.size() < kEndBytes) throw Bad("too short for an end-of-directory record", 0);
  std::optional<uint64_t> found;
  const uint64_t first = file.size() - std::min<uint64_t>(file.size(), kReach);
  for (uint64_t at = file.size() - kEndBytes + 1; at-- > first;) {
    if (LoadLE<uint32_t>(&file[at]) != kEndSignature) continue;
    if (at + kEndBytes + LoadLE<uint16_t>(&file[at + 20]) != file.size()) continue;
    if (found) throw Bad("two end-of-directory records are possible; zip the files again", at);
    found = at;
  }
  if (!found) throw Bad("no end-of-directory record", file.size());
  return *found;
}

template <typename T>
void Merge(T narrow, T saturated, uint64_t& wide, std::string_view field, uint64_t at) {
  if (narrow != saturated && narrow != wide) {
    throw Bad(
        fmt::format("{} is {} in the end record and {} in its zip64 form", field, narrow, wide),
        at);
  }
}

Directory ReadEnd(ByteSpan file) {
  const uint64_t end = FindEndRecord(file);
  ByteReader reader = ReaderAt(file, end + 4);
  const uint16_t disk = reader.U16("disk number"), directory_disk = reader.U16("directory disk");
  const uint16_t on_disk = reader.U16("entries on this disk"), total = reader.U16("entries");
  const uint32_t size = reader.U32("directory size"), offset = reader.U32("directory offset");

  Directory directory{total, offset, size};
  uint64_t directory_end = end, disks = disk | directory_disk, entries_here = on_disk;
  if (end >= kLocator64Bytes &&
      LoadLE<uint32_t>(&file[end - kLocator64Bytes]) == kLocator64Signature) {
    const uint64_t locator = end - kLocator64Bytes;
    directory_end = LoadLE<uint64_t>(&file[locator + 8]);
    if (directory_end > locator || locator - directory_end < kEnd64Bytes) {
      throw Bad("the zip64 end record lies outside the file", locator + 8);
    }
    ByteReader wide = ReaderAt(file, directory_end);
    if (wide.U32("signature") != kEnd64Signature) throw Bad("no zip64 end record", directory_end);
    if (wide.U64("record size") != locator - directory_end - 12) {
      throw Bad("the zip64 end record does not end at its locator", directory_end + 4);
    }
    wide.Skip(4, "versions");
    disks = uint64_t{wide.U32("disk number")} | wide.U32("directory disk");
    entries_here = wide.U64("entries on this disk");
    directory = {wide.U64("entries"), 0, wide.U64("directory size")};
    directory.offset = wide.U64("directory offset");
    Merge(total, kSaturated16, directory.entries, "the number of entries", end + 10);
    Merge(size, kSaturated32, directory.size, "the directory size", end + 12);
    Merge(offset, kSaturated32, directory.offset, "the directory offset", end + 16);
  }
  if (disks != 0 || entries_here != directory.entries) {
    throw Error(Finding::kUnsupportedKind, "is one part of a zip archive on several disks").At(end);
  }
  if (directory.offset > directory_end || directory_end - directory.offset != directory.size) {
    throw Bad(fmt::format("directory of {} bytes at {:#x} does not end at its end record",
                          directory.size, directory.offset),
              end);
  }
  if (directory.entries > directory.size / kCentralBytes) {
    throw Bad(fmt::format("{} entries do not fit a directory of {} bytes", directory.entries,
                          directory.size),
              end);
  }
  if (directory.entries >= UINT32_MAX)
    throw Error(Finding::kLimit, "{} entries", directory.entries).At(end);
  return directory;
}

// Fills in the 64-bit forms of the saturated fields, in the order of the format.
void ApplyZip64(ByteReader extra, std::initializer_list<uint64_t*> fields, uint32_t& disk) {
  bool found = false;
  while (!extra.at_end()) {
    const uint16_t id = extra.U16("extra field id"), size = extra.U16("extra field size");
    ByteReader field(extra.Take(size, "extra field"), extra.offset() - size);
    if (id != kZip64Extra) continue;
    if (found) throw Bad("two zip64 fields in one entry", field.offset());
    found = true;
    for (uint64_t* value : fields) {
      if (*value == kSaturated32) *value = field.U64("zip64 value");
    }
    if (disk == kSaturated16) disk = field.U32("zip64 disk");
  }
  for (const uint64_t* value : fields) {
    if (!found && *value == kSaturated32)
      throw Bad("no zip64 field for a size of 4 GiB", extra.offset());
  }
}

struct Central {
  ZipEntry entry;
  uint16_t flags = 0, method = 0;
  uint64_t local_offset = 0;
};

void ReadCentral(ByteReader& reader, Central& central) {
  const uint64_t at = reader.offset();
  if (reader.U32("entry signature") != kCentralSignature) throw Bad("no directory entry", at);
  ZipEntry& entry = central.entry;
  reader.Skip(4, "versions");
  central.flags = reader.U16("flags");
  central.method = reader.U16("method");
  reader.Skip(4, "time");
  entry.crc32 = reader.U32("crc");
  entry.compressed_size = reader.U32("compressed size");
  entry.size = reader.U32("size");
  const uint16_t name_bytes = reader.U16("name length");
  const uint16_t extra_bytes = reader.U16("extra length");
  const uint16_t comment_bytes = reader.U16("comment length");
  uint32_t disk = reader.U16("disk");
  reader.Skip(6, "attributes");
  central.local_offset = reader.U32("local header offset");
  entry.name = reader.Text(name_bytes, "name");
  const uint64_t extra_at = reader.offset();
  ApplyZip64(ByteReader(reader.Take(extra_bytes, "extra fields"), extra_at),
             {&entry.size, &entry.compressed_size, &central.local_offset}, disk);
  reader.Skip(comment_bytes, "comment");

  const auto unsupported = [&](std::string what) {
    Error error(Finding::kUnsupportedKind, std::move(what));
    return error.At(at);
  };
  if ((central.flags & kFlagsRefused) != 0) throw unsupported("is encrypted or patched");
  if (central.method != kStored && central.method != kDeflated) {
    throw unsupported(
        fmt::format("uses compression method {}; only stored (0) and deflate (8) are supported",
                    central.method));
  }
  if (disk != 0) throw unsupported("lies on another disk");
  entry.deflated = central.method == kDeflated;
  if (!entry.deflated && entry.size != entry.compressed_size) {
    throw Error(Finding::kSizeMismatch, "is stored, but has {} of its {} bytes",
                entry.compressed_size, entry.size)
        .At(at);
  }
}

// Finds where the content begins. The directory decides; a local header that differs (unless flag
// bit 3 leaves its fields empty) is refused.
void ReadLocal(ByteSpan file, uint64_t limit, Central& central) {
  const uint64_t at = central.local_offset;
  ZipEntry& entry = central.entry;
  const auto outside = [&](std::string_view what) {
    Error error(Finding::kBadOffsets, "{} reaches into the directory", what);
    return error.At(at);
  };
  if (at > limit || limit - at < kLocalBytes) throw outside("its local header");
  ByteReader reader(file.subspan(at, limit - at), at);
  if (reader.U32("local signature") != kLocalSignature) throw Bad("no local header", at);
  reader.Skip(2, "version");
  const uint16_t flags = reader.U16("flags"), method = reader.U16("method");
  reader.Skip(4, "time");
  const uint32_t crc = reader.U32("crc"), compressed = reader.U32("compressed size");
  const uint32_t size = reader.U32("size");
  const uint16_t name_bytes = reader.U16("name length"), extra_bytes = reader.U16("extra length");
  if (reader.remaining() < uint64_t{name_bytes} + extra_bytes) throw outside("its local header");
  const std::string_view name = reader.Text(name_bytes, "name");
  reader.Skip(extra_bytes, "extra");
  const auto differs = [](uint32_t local, uint64_t directory) {
    return local != kSaturated32 && local != directory;
  };
  const bool silent = (flags & kFlagSizesFollow) != 0;
  if ((flags & kFlagsRefused) != 0 || method != central.method || name != entry.name ||
      (!silent && (crc != entry.crc32 || differs(compressed, entry.compressed_size) ||
                   differs(size, entry.size)))) {
    throw Bad("local header and directory differ", at);
  }
  entry.data_offset = reader.offset();
  if (entry.compressed_size > limit - entry.data_offset) throw outside("its content");
}

struct Place {
  uint64_t local_offset;
  uint32_t entry;
};

void RefuseOverlaps(const std::vector<ZipEntry>& entries, std::vector<Place> places) {
  const auto before = [](const Place& a, const Place& b) {
    return a.local_offset < b.local_offset;
  };
  if (!std::is_sorted(places.begin(), places.end(), before))
    std::sort(places.begin(), places.end(), before);
  for (size_t i = 1; i < places.size(); ++i) {
    const ZipEntry &first = entries[places[i - 1].entry], &second = entries[places[i].entry];
    if (first.data_offset + first.compressed_size > places[i].local_offset) {
      throw Error(Finding::kBadOffsets, "members '{}' and '{}' overlap", Escaped(first.name),
                  Escaped(second.name))
          .At(places[i].local_offset);
    }
  }
}

// Returns the entries in the order of the directory, and their names by index.
std::vector<ZipEntry> ReadDirectory(ByteSpan file, NameTable& names) {
  const Directory directory = ReadEnd(file);
  ByteReader reader(file.subspan(directory.offset, directory.size), directory.offset);
  std::vector<ZipEntry> entries;
  entries.reserve(directory.entries);  // bounded by the size of the directory
  std::vector<Place> places;
  places.reserve(directory.entries);
  for (uint64_t i = 0; i < directory.entries; ++i) {
    Central central;
    const std::string_view& name = central.entry.name;
    try {
      ReadCentral(reader, central);
      ReadLocal(file, directory.offset, central);
    } catch (Error& error) {
      throw error.In(name.empty() ? fmt::format("member {}", i)
                                  : fmt::format("member '{}'", Escaped(name)));
    }
    places.push_back({central.local_offset, static_cast<uint32_t>(i)});
    entries.push_back(central.entry);
  }
  reader.ExpectEnd("the last directory entry");
  const auto name_at = [&](uint32_t i) { return entries[i].name; };
  names.InsertAll(static_cast<uint32_t>(entries.size()), name_at, [&](uint32_t i, uint32_t) {
    const std::string_view name = entries[i].name;
    throw Error(Finding::kDuplicateName, "two members '{}'", Escaped(name))
        .At(static_cast<uint64_t>(AsBytes(name).data() - file.data()) - kCentralBytes);
  });
  RefuseOverlaps(entries, std::move(places));
  return entries;
}

}  // namespace

}  // namespace kv::zip

namespace kv {
bool HoldsMember(ByteSpan file, std::string_view name) {
  const zip::Directory directory = zip::ReadEnd(file);
  ByteReader reader(file.subspan(directory.offset, directory.size), directory.offset);
  for (uint64_t i = 0; i < directory.entries; ++i) {
    zip::Central central;
    zip::ReadCentral(reader, central);
    std::string_view found = central.entry.name;
    if (!found.ends_with(name)) continue;
    found.remove_suffix(name.size());
    if (found.empty() || found.back() == '/') return true;
  }
  return false;
}

namespace {

constexpr uint64_t kStep = 1 << 20;
constexpr uint64_t kAlignment = 64;
// Highest ratio of a deflate stream: 258 bytes for a two-bit match.
constexpr uint64_t kHighestRatio = 1032;

Error InMember(Error error, const ZipEntry& entry) {
  error.At(entry.data_offset).In("member '{}'", Escaped(entry.name));
  return error;
}

void ExpectCrc(uint64_t found, const ZipEntry& entry) {
  if (found == entry.crc32) return;
  throw InMember(Error(Finding::kChecksum, "content has CRC {:08x}, the directory says {:08x}",
                       found, entry.crc32),
                 entry);
}

// One deflate stream, written to a sink piece by piece. The declared size is a hard limit: the
// output buffer is never larger than the rest of it.
class Inflater {
 public:
  Inflater() {
    if (inflateInit2(&stream_, -MAX_WBITS) != Z_OK) throw std::bad_alloc();
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  void Run(const FileSource& file, const ZipEntry& entry, Sink& sink);

 private:
  z_stream stream_{};
  Bytes buffer_ = Bytes(kStep);
};

void Inflater::Run(const FileSource& file, const ZipEntry& entry, Sink& sink) {
  inflateReset(&stream_);
  const auto mismatch = [&](std::string message) {
    return InMember(Error(Finding::kSizeMismatch, std::move(message)), entry);
  };
  uint64_t at = entry.data_offset;
  const uint64_t end = at + entry.compressed_size;
  uint64_t left = entry.size;
  uLong crc = crc32_z(0, nullptr, 0);
  std::byte probe{};  // receives the first byte beyond the stated size, if any
  for (int status = Z_OK; status != Z_STREAM_END;) {
    if (stream_.avail_in == 0) {
      const uint64_t count = std::min(end - at, kStep);
      if (at > entry.data_offset) file.Drop(at - kStep, kStep);
      stream_.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(file.bytes().data() + at));
      stream_.avail_in = static_cast<uInt>(count);
      at += count;
    }
    const uint64_t room = std::min<uint64_t>(left, kStep);
    std::byte* out = room == 0 ? &probe : buffer_.data();
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(room == 0 ? 1 : room);
    status = inflate(&stream_, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END) {
      if (status == Z_BUF_ERROR) throw mismatch("the deflate stream has no end");
      if (status == Z_MEM_ERROR) throw std::bad_alloc();
      throw InMember(Error(Finding::kBadPayload, "deflate stream: {}",
                           stream_.msg != nullptr ? stream_.msg : "damaged"),
                     entry);
    }
    const uint64_t made =
        static_cast<uint64_t>(reinterpret_cast<std::byte*>(stream_.next_out) - out);
    if (made > left) throw mismatch(fmt::format("inflates to more than its {} bytes", entry.size));
    left -= made;
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(out), made);
    sink.Write({out, made});
  }
  if (left != 0) {
    throw mismatch(
        fmt::format("inflates to {} bytes, but {} are declared", entry.size - left, entry.size));
  }
  if (at != end || stream_.avail_in != 0) {
    throw mismatch(fmt::format("{} bytes follow the deflate stream", end - at + stream_.avail_in));
  }
  ExpectCrc(crc, entry);
}

}  // namespace

ZipArchive::ZipArchive(std::shared_ptr<const FileSource> file)
    : file_(std::move(file)), entries_(zip::ReadDirectory(file_->bytes(), names_)) {}

const ZipEntry* ZipArchive::Find(std::string_view name) const {
  const auto at = names_.Find(name, [&](uint32_t i) { return entries_[i].name; });
  return at ? &entries_[*at] : nullptr;
}

void ZipArchive::Inflate(uint64_t max_bytes) {
  uint64_t total = 0;
  for (ZipEntry& entry : entries_) {
    if (!entry.deflated) continue;
    if (entry.size / kHighestRatio > entry.compressed_size) {
      throw InMember(Error(Finding::kSizeMismatch, "{} deflated bytes cannot hold the {} declared",
                           entry.compressed_size, entry.size),
                     entry);
    }
    entry.spool_offset = RoundUp(total, kAlignment);
    total = CheckedAdd(entry.spool_offset, entry.size, "inflated size");
    if (total > max_bytes) {
      throw InMember(Error(Finding::kLimit, "deflated members need {} bytes, the limit is {}",
                           total, max_bytes)
                         .Hint("raise --max-bytes if the file is trusted"),
                     entry);
    }
  }
  if (total == 0 && std::none_of(entries_.begin(), entries_.end(),
                                 [](const ZipEntry& entry) { return entry.deflated; })) {
    return;
  }
  SpoolFile spool;
  Inflater inflater;
  uint64_t written = 0;
  for (const ZipEntry& entry : entries_) {
    if (!entry.deflated) continue;
    spool.Write(Bytes(entry.spool_offset - written));
    inflater.Run(*file_, entry, spool);
    written = entry.spool_offset + entry.size;
  }
  spool_ = spool.Release(file_->name());
}

ByteSpan ZipArchive::Data(const ZipEntry& entry) const {
  if (!entry.deflated) return file_->bytes().subspan(entry.data_offset, entry.size);
  KV_ASSERT(spool_ != nullptr);
  return spool_->bytes().subspan(entry.spool_offset, entry.size);
}

void ZipArchive::CheckStored(const ZipEntry& entry) const {
  KV_ASSERT(!entry.deflated);
  const ByteSpan data = Data(entry);
  uLong crc = crc32_z(0, nullptr, 0);
  for (uint64_t at = 0; at < data.size(); at += kStep) {
    const ByteSpan piece = data.subspan(at, std::min<uint64_t>(kStep, data.size() - at));
    crc = crc32_z(crc, reinterpret_cast<const Bytef*>(piece.data()), piece.size());
    file_->Drop(entry.data_offset + at, piece.size());
  }
  ExpectCrc(crc, entry);
}

void ZipArchive::CheckStored() const {
  for (const ZipEntry& entry : entries_) {
    if (!entry.deflated) CheckStored(entry);
  }
}

}  // namespace kv
