// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/store/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lib/core/base/hash.h"
#include "lib/core/base/number.h"
#include "lib/core/base/output.h"
#include "lib/core/base/output_system.h"

namespace kv::store {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kMarker = "kvtool-store", kMarkerText = "kvtool store 1\n";

Error SystemError(Finding finding, std::string_view action, const std::string& path) {
  return Error(finding, fmt::format("{}: {}", action, std::strerror(errno))).File(path);
}

void MakeFolder(const std::string& path) {
  // What was said in the chat is in it.
  constexpr mode_t kOnlyOwner = 0700;
  if (::mkdir(path.c_str(), kOnlyOwner) != 0 && errno != EEXIST)
    throw SystemError(Finding::kWriteFailed, "cannot make the folder", path);
}

void WriteMarker(const std::string& path) {
  try {
    AtomicFile file(path, Overwrite::kRefuse);
    file.Write(AsBytes(kMarkerText));
    file.Commit();
  } catch (const Error& error) {
    if (error.finding() != Finding::kExists) throw;  // another run was faster
  }
}

// Whether there is a regular file, not whether it can be opened just now.
bool IsThere(const std::string& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) == 0) return S_ISREG(status.st_mode);
  if (errno == ENOENT || errno == ENOTDIR) return false;
  throw SystemError(Finding::kOpenFailed, "cannot open", path);
}

}  // namespace

StoreLock::StoreLock(const std::string& path, bool alone, const std::function<void()>& waiting)
    : path_(path), descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW)) {
  if (descriptor_ < 0) throw SystemError(Finding::kOpenFailed, "cannot open", path);
  const int how = alone ? LOCK_EX : LOCK_SH;
  if (::flock(descriptor_, how | LOCK_NB) == 0) return;
  if (waiting) waiting();
  while (::flock(descriptor_, how) != 0) {
    if (errno == EINTR) continue;
    const Error error = SystemError(Finding::kOpenFailed, "cannot lock", path);
    ::close(descriptor_);
    throw error;
  }
}

StoreLock::~StoreLock() { ::close(descriptor_); }

void StoreLock::Share() {
  while (::flock(descriptor_, LOCK_SH) != 0) {
    if (errno != EINTR) throw SystemError(Finding::kOpenFailed, "cannot lock", path_);
  }
}

Store::Store(std::string folder, Use use, const std::function<void()>& waiting)
    : folder_(std::move(folder)) {
  const std::string marker = folder_ + "/" + std::string(kMarker);
  struct stat status;
  if (::lstat(marker.c_str(), &status) != 0) {
    std::error_code failed;
    const bool there = fs::exists(folder_, failed);
    if (use != Use::kAdd) {
      throw Error(Finding::kOpenFailed, there ? "is no store" : "there is no such store")
          .File(folder_)
          .Hint("'kvtool store add DIR FILE' makes one");
    }
    if (there && (!fs::is_directory(folder_, failed) || !fs::is_empty(folder_, failed)))
      throw Error(Finding::kExists, "something else than a store is there").File(folder_);
    MakeFolder(folder_);
    output::SyncNameOf(folder_);
    WriteMarker(marker);
  }
  const auto text = FileSource::Open(marker);
  if (AsText(text->bytes()) != kMarkerText) {
    throw Error(Finding::kUnsupportedVersion, "this is no store of version 1").File(marker);
  }
  const bool alone = use == Use::kAlone || use == Use::kMend;
  lock_ = std::make_unique<StoreLock>(marker, alone, waiting);
  if (use == Use::kMend) return;
  if (::lstat(IndexPath().c_str(), &status) != 0) {
    if (!alone) {
      lock_ = nullptr;
      lock_ = std::make_unique<StoreLock>(marker, true, waiting);
    }
    Make();
    if (!alone) lock_->Share();
  }
  index_ = std::make_unique<Index>(IndexPath());
}

std::string Store::PackPath(uint64_t pack) const {
  return fmt::format("{}/packs/{:08}.pack", folder_, pack);
}

std::string Store::RecordPath(uint64_t state) const {
  return fmt::format("{}/states/{:08}.kvs", folder_, state);
}

std::string Store::IndexPath() const { return folder_ + "/index.sqlite"; }

// Makes the index of a store that is new, or whose maker was killed.
void Store::Make() {
  struct stat status;
  if (::lstat(IndexPath().c_str(), &status) == 0) return;  // somebody else did
  if (!FilesIn("packs", ".pack").empty() || !FilesIn("states", ".kvs").empty()) {
    throw Error(Finding::kMissingRecord, "the store has no index")
        .File(folder_)
        .Hint("'kvtool store verify --repair' makes a new one of what the store holds");
  }
  MakeFolder(folder_ + "/packs");
  MakeFolder(folder_ + "/states");
  const std::string fresh = IndexPath() + ".new";
  ::unlink(fresh.c_str());
  ::unlink((fresh + "-journal").c_str());
  Index::Create(fresh);
  if (::rename(fresh.c_str(), IndexPath().c_str()) != 0)
    throw SystemError(Finding::kWriteFailed, "cannot name the index", IndexPath());
}

std::map<uint64_t, uint64_t> Store::FilesIn(const std::string& folder,
                                            const std::string& ending) const {
  std::map<uint64_t, uint64_t> files;
  std::error_code failed;
  for (fs::directory_iterator entry(folder_ + "/" + folder, failed), end; !failed && entry != end;
       entry.increment(failed)) {
    std::string name = entry->path().filename().string();
    if (!name.ends_with(ending)) continue;
    name.resize(name.size() - ending.size());
    const auto number = ParseNumber<uint64_t>(name);
    if (!number || !IsThere(entry->path().string())) continue;
    struct stat status;
    if (::lstat(entry->path().c_str(), &status) != 0) continue;  // removed meanwhile
    files[*number] = static_cast<uint64_t>(status.st_size);
  }
  // A list that ends early would tell a repair that the rest is gone.
  if (failed && failed != std::errc::no_such_file_or_directory) {
    throw Error(Finding::kOpenFailed, fmt::format("cannot be read: {}", failed.message()))
        .File(folder_ + "/" + folder);
  }
  return files;
}

uint64_t Store::IndexBytes() const {
  struct stat status;
  return ::stat(IndexPath().c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
}

StateRow Store::Find(const std::string& what) {
  std::vector<StateRow> states = States();
  const size_t at = what.rfind('@');
  const std::string_view behind =
      at == std::string::npos ? "" : std::string_view(what).substr(at + 1);
  const std::optional<uint64_t> parsed = ParseNumber<uint64_t>(behind);
  const bool by_number = parsed.has_value();
  const uint64_t number = parsed.value_or(0);
  uint64_t place = 0;
  std::optional<StateRow> newest;
  for (StateRow& state : states) {
    if (by_number && at == 0 && state.id == number) return state;
    const bool is_of_name = by_number && at > 0 && what.substr(0, at) == state.name;
    if (is_of_name && ++place == number) return state;
    if (state.name == what) newest = std::move(state);
  }
  if (newest) return *newest;
  throw Error(Finding::kMissingRecord, fmt::format("has no state '{}'", what))
      .File(folder_)
      .Hint("'kvtool store list' shows those that it has");
}

StateRecord Store::Load(const StateRow& row) const {
  const std::string path = RecordPath(row.id);
  try {
    if (!IsThere(path))
      throw Error(Finding::kMissingRecord, "the record of the state is not there");
    const auto file = FileSource::Open(path);
    if (file->size() != row.record_bytes || Hash64(file->bytes()) != row.record_hash) {
      throw Error(Finding::kChecksum, "the record of the state is not the one that was added");
    }
    StateRecord record = DecodeState(file->bytes());
    if (record.id != row.id || record.name != row.name) {
      throw Error(Finding::kInconsistent, "the record is that of another state");
    }
    return record;
  } catch (Error& error) {
    throw error.File(path);
  }
}

std::shared_ptr<const FileSource> Store::Pack(uint64_t pack) {
  const std::lock_guard lock(packs_mutex_);
  std::shared_ptr<const FileSource>& file = packs_[pack];
  if (file == nullptr) {
    const std::string path = PackPath(pack);
    if (!IsThere(path))
      throw Error(Finding::kLostChunk, "a pack of the store is not there").File(path);
    auto opened = FileSource::Open(path);
    try {
      CheckPackHeader(*opened);
    } catch (Error& error) {
      throw error.File(path);
    }
    file = std::move(opened);
  }
  return file;
}

void Store::LoadObject(const ObjectId& id, uint64_t bytes, CodecScratch& scratch, Bytes& raw) {
  const std::optional<Place> place = index_->Find(id);
  if (!place) {
    throw Error(Finding::kLostChunk, fmt::format("object {} is not in the store", HexText(id)))
        .File(folder_);
  }
  const auto pack = Pack(place->pack);
  try {
    const ObjectHead head = ReadObjectHead(*pack, place->offset);
    if (head.id != id) {
      throw Error(Finding::kInconsistent, "another object lies where the index says")
          .At(place->offset)
          .Hint("'kvtool store verify --repair' makes a new index of what the store holds");
    }
    if (head.raw_bytes != bytes) {
      throw Error(Finding::kSizeMismatch,
                  fmt::format("the object has {} bytes, the state needs {}", head.raw_bytes, bytes))
          .At(place->offset);
    }
    DecodeObject(*pack, place->offset, head, scratch, raw);
  } catch (Error& error) {
    throw error.File(pack->name());
  }
}

StoreStats Store::Stats() {
  StoreStats stats;
  std::set<std::string> names;
  std::map<ObjectId, std::pair<uint64_t, uint64_t>> used;  // times, bytes
  for (const StateRow& row : States()) {
    const StateRecord record = Load(row);
    ++stats.states;
    names.insert(row.name);
    stats.source_bytes += row.source_bytes;
    stats.record_bytes += row.record_bytes;
    for (const StoredFile& file : record.files) {
      for (const Extent& extent : file.extents) {
        for (const Piece& piece : extent.pieces) {
          auto& [times, bytes] = used[piece.id];
          ++times;
          bytes = extent.BytesOf(piece);
          stats.referenced_raw_bytes += bytes;
        }
      }
    }
  }
  const std::map<ObjectId, Place> objects = index_->Objects();
  for (const auto& [id, use] : used) {
    const auto place = objects.find(id);
    if (place != objects.end()) stats.live_stored_bytes += place->second.stored_bytes;
    stats.live_raw_bytes += use.second;
    if (use.first > 1) stats.shared_raw_bytes += use.second;
  }
  stats.names = names.size();
  stats.objects = objects.size();
  for (const auto& [pack, bytes] : FilesIn("packs", ".pack")) {
    stats.pack_bytes += bytes;
    ++stats.packs;
  }
  stats.index_bytes = IndexBytes();
  stats.levels = index_->Levels();
  return stats;
}

}  // namespace kv::store
