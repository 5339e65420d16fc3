// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/zip/zip_reader.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <utility>

#include "formats/zip/zip_directory.h"
#include "lib/core/base/checked.h"

namespace kv {
namespace {

constexpr uint64_t kStep = 1 << 20;
constexpr uint64_t kAlignment = 64;
// No deflate stream holds more: 258 bytes for a two-bit match.
constexpr uint64_t kHighestRatio = 1032;

Error InMember(Error error, const ZipEntry& entry) {
  error.At(entry.data_offset).In(fmt::format("member '{}'", Escaped(entry.name)));
  return error;
}

void ExpectCrc(uint64_t found, const ZipEntry& entry) {
  if (found == entry.crc32) return;
  throw InMember(
      Error(Finding::kChecksum,
            fmt::format("content has CRC {:08x}, the directory says {:08x}", found, entry.crc32)),
      entry);
}

// One deflate stream, written to a sink piece by piece. The declared size is a hard limit: the
// output buffer never offers more room than is left of it.
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
  std::byte probe{};  // takes the byte too many, if there is one
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
      throw InMember(Error(Finding::kBadPayload,
                           fmt::format("deflate stream: {}",
                                       stream_.msg != nullptr ? stream_.msg : "damaged")),
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
        fmt::format("inflates to {} bytes, declared are {}", entry.size - left, entry.size));
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
      throw InMember(
          Error(Finding::kSizeMismatch, fmt::format("{} deflated bytes cannot hold the {} declared",
                                                    entry.compressed_size, entry.size)),
          entry);
    }
    entry.spool_offset = RoundUp(total, kAlignment);
    total = CheckedAdd(entry.spool_offset, entry.size, "inflated size");
    if (total > max_bytes) {
      throw InMember(Error(Finding::kLimit, fmt::format("deflated members need {} bytes, the limit "
                                                        "is {}",
                                                        total, max_bytes))
                         .Hint("raise --max-bytes if the file is trusted"),
                     entry);
    }
  }
  if (total == 0 && std::none_of(entries_.begin(), entries_.end(),
                                 [](const ZipEntry& entry) { return entry.deflated; })) {
    return;
  }
  struct Spool {
    int descriptor = OpenSpool();
    ~Spool() {
      if (descriptor >= 0) ::close(descriptor);
    }
  } spool;
  DescriptorSink sink(spool.descriptor, "temporary spool file");
  Inflater inflater;
  uint64_t written = 0;
  for (const ZipEntry& entry : entries_) {
    if (!entry.deflated) continue;
    sink.Write(Bytes(entry.spool_offset - written));
    inflater.Run(*file_, entry, sink);
    written = entry.spool_offset + entry.size;
  }
  spool_ = FileSource::FromDescriptor(std::exchange(spool.descriptor, -1), file_->name());
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
