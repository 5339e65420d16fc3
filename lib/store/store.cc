// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/store/store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lib/core/base/hash.h"
#include "lib/core/base/number.h"
#include "lib/core/base/output.h"
#include "lib/core/base/utf8.h"

namespace kv::store {
namespace {

using NameOf = std::string (*)(uint64_t number);

// Returns the number in a file name; nullopt if `name` gives that number another name.
std::optional<uint64_t> NumberIn(const std::string& entry, NameOf name) {
  const auto number = ParseNumber<uint64_t>(std::string_view(entry).substr(0, entry.find('.')));
  if (!number || *number == 0 || *number >= kMostNumber || entry != name(*number)) return {};
  return number;
}

constexpr std::string_view kMarker = "kvtool-store", kMarkerText = "kvtool store 1\n";

void WriteMarker(const Folder& folder) {
  try {
    NewFile file(folder, std::string(kMarker));
    file.Write(AsBytes(kMarkerText));
    file.Commit();
  } catch (const Error& error) {
    if (error.finding() != Finding::kExists) throw;  // another process created it first
  }
}

}  // namespace

StoreLock::StoreLock(int descriptor, std::string path, bool alone,
                     const std::function<void()>& waiting)
    : descriptor_(descriptor), path_(std::move(path)) {
  Lock(alone ? LOCK_EX : LOCK_SH, waiting);
}

void StoreLock::Lock(int how, const std::function<void()>& waiting) {
  if (::flock(descriptor_.get(), how | LOCK_NB) == 0) return;
  if (waiting) waiting();
  while (::flock(descriptor_.get(), how) != 0) {
    if (errno != EINTR) throw SystemError(Finding::kOpenFailed, "cannot lock", path_);
  }
}

void StoreLock::BeAlone(const std::function<void()>& waiting) {
  ::flock(descriptor_.get(), LOCK_UN);  // two holders of a shared lock would wait for each other
  Lock(LOCK_EX, waiting);
}

void StoreLock::Share() { Lock(LOCK_SH, {}); }

// Opens the folder of the store; creates it for adding.
void Store::OpenRoot(Use use) {
  root_ = Folder::Open(folder_);
  if (root_ && root_->Find(std::string(kMarker))) return;
  if (use != Use::kAdd) {
    throw Error(Finding::kOpenFailed, root_ ? "is not a store" : "no such store")
        .File(folder_)
        .Hint("'kvtool store add DIR FILE' makes one");
  }
  std::vector<std::string> names;
  if (root_) names = root_->Names();
  // A temporary name is that of the marker, which another run is about to create, or failed to.
  if (!std::all_of(names.begin(), names.end(), IsTemporaryName)) {
    // Another run may have made the store since. The marker is created before any other name.
    if (root_->Find(std::string(kMarker))) return;
    throw Error(Finding::kExists, "the folder holds something other than a store").File(folder_);
  }
  if (!root_) {
    // Mode 0700: the store contains conversation content.
    constexpr mode_t kOnlyOwner = 0700;
    if (::mkdir(folder_.c_str(), kOnlyOwner) != 0 && errno != EEXIST)
      throw SystemError(Finding::kWriteFailed, "cannot make the folder", folder_);
    root_ = Folder::Open(folder_);
    if (!root_) throw SystemError(Finding::kOpenFailed, "cannot open", folder_);
  }
  output::SyncName(folder_);
  WriteMarker(*root_);
}

Store::Store(std::string folder, Use use, const std::function<void()>& waiting)
    : folder_(std::move(folder)) {
  OpenRoot(use);
  const std::string marker(kMarker), index(kIndexName);
  const auto text = root_->OpenFile(marker);
  if (text == nullptr || AsText(text->bytes()) != kMarkerText) {
    throw Error(Finding::kUnsupportedVersion, "this is not a store of version 1")
        .File(root_->Join(marker));
  }
  const bool alone = use == Use::kAlone || use == Use::kMend;
  const int descriptor = root_->OpenDescriptor(marker);
  if (descriptor < 0) throw SystemError(Finding::kOpenFailed, "cannot open", root_->Join(marker));
  lock_ = std::make_unique<StoreLock>(descriptor, root_->Join(marker), alone, waiting);
  const auto has_index = [&] {
    struct stat status;
    return ::fstatat(root_->descriptor(), index.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
  };
  if (alone) UseReserve();
  if (use != Use::kMend && !has_index()) {
    if (!alone) lock_->BeAlone(waiting);
    if (!has_index()) Make();  // another process may have created it meanwhile
    if (!alone) lock_->Share();
  }
  for (const auto& [part, name] : {std::pair(&packs_, "packs"), std::pair(&states_, "states")}) {
    if (use == Use::kRead) {
      *part = root_->Below(name);
      if (*part) continue;
      throw Error(Finding::kMissingRecord, "this folder of the store is missing")
          .File(root_->Join(name))
          .Hint("'kvtool store verify --repair' repairs what can be repaired");
    }
    *part = root_->MakeBelow(name);
  }
  if (use == Use::kMend) return;
  index_ = std::make_unique<Index>(
      *root_, index, use == Use::kRead ? Database::Use::kRead : Database::Use::kWrite);
  if (use == Use::kAdd) KeepReserve();
}

std::string Store::PackName(uint64_t pack) { return fmt::format("{:08}.pack", pack); }

std::string Store::RecordName(uint64_t state) { return fmt::format("{:08}.kvs", state); }

// Makes the index of a store that is new, or whose creation was interrupted.
void Store::Make() {
  const Folder packs = root_->MakeBelow("packs"), states = root_->MakeBelow("states");
  if (!FilesIn(packs, PackName).empty() || !FilesIn(states, RecordName).empty()) {
    throw Error(Finding::kMissingRecord, "the store has no index")
        .File(folder_)
        .Hint("'kvtool store verify --repair' makes a new one of what the store holds");
  }
  NameIndex({});
}

void Store::NameIndex(const Index::Contents& contents) {
  const std::string index(kIndexName), fresh = index + ".new";
  for (const std::string& old : {fresh, fresh + "-journal"}) root_->Remove(old);
  Index::Create(*root_, fresh);
  Index(*root_, fresh, Database::Use::kWrite).Fill(contents);
  // An old journal would be rolled back into the new index.
  for (const char* ending : {"-journal", "-wal", "-shm"}) {
    const std::string name = index + ending;
    if (!root_->Remove(name) && errno != ENOENT)
      throw SystemError(Finding::kWriteFailed, "cannot be removed", root_->Join(name));
  }
  root_->Rename(fresh, index);
  root_->Sync();
}

std::map<uint64_t, uint64_t> Store::FilesIn(const Folder& folder,
                                            std::string (*name)(uint64_t number)) {
  std::map<uint64_t, uint64_t> files;
  for (const std::string& entry : folder.Names()) {
    const std::optional<uint64_t> number = NumberIn(entry, name);
    if (!number) continue;
    if (const auto status = folder.Find(entry))
      files[*number] = static_cast<uint64_t>(status->st_size);
  }
  return files;
}

uint64_t Store::NewNumber(uint64_t after) {
  if (after != 0) return index_->NextNumber(after + 1);
  uint64_t least = 1;
  for (const auto& [folder, name] :
       {std::pair(&packs(), &PackName), std::pair(&states(), &RecordName)}) {
    // A link or a folder also occupies a name that a new file needs.
    for (const std::string& entry : folder->Names()) {
      const std::optional<uint64_t> number = NumberIn(entry, name);
      if (number && *number <= kMostCounted) least = std::max(least, *number + 1);
    }
  }
  return index_->NextNumber(least);
}

Permissions Store::permissions() const {
  struct stat store, packs;
  if (::fstat(root_->descriptor(), &store) != 0 || ::fstat(packs_->descriptor(), &packs) != 0)
    throw SystemError(Finding::kOpenFailed, "cannot open", folder_);
  constexpr mode_t kReadAndWrite = 0666;
  return {uint32_t{store.st_mode} & packs.st_mode & kReadAndWrite, store.st_uid, store.st_gid};
}

uint64_t Store::CountBytes() const {
  constexpr uint64_t kBlock = 512;
  uint64_t sum = 0;
  for (const Folder* folder : {&packs(), &states()}) {
    for (const std::string& name : folder->Names()) {
      const auto status = folder->Find(name);
      if (!status) continue;
      sum += std::min(static_cast<uint64_t>(status->st_size),
                      static_cast<uint64_t>(status->st_blocks) * kBlock);
    }
  }
  return sum;
}

uint64_t Store::IndexBytes() const {
  const auto status = root_->Find(std::string(kIndexName));
  return status ? static_cast<uint64_t>(status->st_size) : 0;
}

uint64_t Store::FreeBytes() const {
  struct statvfs status;
  if (::fstatvfs(root_->descriptor(), &status) != 0) return kNoLimit;
  return uint64_t{status.f_bavail} * status.f_frsize;
}

namespace {

// A journal contains pages of the index, and a new index is as large as the old one.
constexpr uint64_t kBesideIndex = 32 << 10, kLeastReserve = 64 << 10;

}  // namespace

void Store::KeepReserve() {
  const std::string name(kReserveName);
  const auto reserve = root_->Find(name);
  if (reserve && static_cast<uint64_t>(reserve->st_size) >= IndexBytes() + kBesideIndex) return;
  root_->Remove(name);
  try {
    NewFile file(*root_, name);
    file.Write(Bytes(std::max(kLeastReserve, 2 * IndexBytes())));
    file.Commit();
  } catch (const Error&) {
    // The disk is already full, or another run was faster.
  }
}

void Store::UseReserve() {
  if (FreeBytes() < IndexBytes() + kBesideIndex) root_->Remove(std::string(kReserveName));
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
  std::vector<std::string> names;
  for (StateRow& state : states) names.push_back(std::move(state.name));
  const std::string nearest = Nearest(what, names);
  throw Error(Finding::kMissingRecord, "has no state '{}'{}", what,
              nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest))
      .File(folder_)
      .Hint("'kvtool store list' shows the states of the store");
}

StateRecord Store::Load(const StateRow& row) const {
  const std::string path = RecordPath(row.id);
  try {
    const auto file = states().OpenFile(RecordName(row.id));
    if (file == nullptr) throw Error(Finding::kMissingRecord, "the record of the state is missing");
    if (file->size() != row.record_bytes || Hash64(file->bytes()) != row.record_hash) {
      throw Error(Finding::kChecksum, "the record of the state is not the one that was added");
    }
    StateRecord record = DecodeState(file->bytes());
    if (record.id != row.id || record.name != row.name) {
      throw Error(Finding::kInconsistent, "the record belongs to another state");
    }
    return record;
  } catch (Error& error) {
    throw error.File(path);
  }
}

std::shared_ptr<const FileSource> Store::Pack(uint64_t pack) {
  const std::lock_guard lock(opened_mutex_);
  std::shared_ptr<const FileSource>& file = opened_[pack];
  if (file == nullptr) {
    const std::string path = PackPath(pack);
    auto opened = packs().OpenFile(PackName(pack));
    if (opened == nullptr)
      throw Error(Finding::kLostChunk, "a pack of the store is missing").File(path);
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
    throw Error(Finding::kLostChunk, "object {} is not in the store", Hex(id)).File(folder_);
  }
  const auto pack = Pack(place->pack);
  try {
    const ObjectHead head = ReadObjectHead(*pack, place->offset);
    if (head.id != id) {
      throw Error(Finding::kInconsistent, "the index points to another object")
          .At(place->offset)
          .Hint("'kvtool store verify --repair' makes a new index of what the store holds");
    }
    if (head.raw_bytes != bytes) {
      throw Error(Finding::kSizeMismatch, "the object has {} bytes, the state needs {}",
                  head.raw_bytes, bytes)
          .At(place->offset);
    }
    DecodeObject(*pack, place->offset, head, scratch, raw);
  } catch (Error& error) {
    throw error.File(pack->name());
  }
}

namespace {

// The use of one object by all states.
struct ObjectUse {
  uint64_t times = 0, bytes = 0;
  uint64_t referenced_bytes = 0;  // sum over all uses
  size_t first = 0;               // index of the first state that needs it
  bool by_several = false, by_newest = false;
};

// Marks the newest state of each name; rows are sorted by number. Returns the number of names.
uint64_t MarkNewest(std::vector<StateUse>& uses) {
  std::set<std::string_view> names;
  for (auto use = uses.rbegin(); use != uses.rend(); ++use)
    use->is_newest = names.insert(use->row.name).second;
  return names.size();
}

}  // namespace

StoreStats Store::Stats() {
  StoreStats stats;
  for (StateRow& row : States()) stats.uses.push_back({std::move(row)});
  stats.states = stats.uses.size();
  stats.names = MarkNewest(stats.uses);
  std::map<ObjectId, ObjectUse> used;
  for (size_t at = 0; at < stats.uses.size(); ++at) {
    StateUse& use = stats.uses[at];
    stats.source_bytes += use.row.source_bytes;
    stats.record_bytes += use.row.record_bytes;
    use.own_stored_bytes = use.row.record_bytes;
    if (!use.is_newest) {
      ++stats.older_states;
      stats.older_bytes += use.row.record_bytes;
    }
    ForEachPiece(Load(use.row), [&](const Extent& extent, const Piece& piece) {
      ObjectUse& object = used[piece.id];
      if (object.times++ == 0) object.first = at;
      object.by_several |= object.first != at;
      object.by_newest |= use.is_newest;
      object.bytes = extent.BytesOf(piece);
      object.referenced_bytes += object.bytes;
      use.shared_bytes += object.bytes;  // has the state's own objects until all states are known
    });
  }
  const std::map<ObjectId, Place> objects = index_->Objects();
  for (const auto& [id, use] : used) {
    const auto place = objects.find(id);
    const uint64_t stored = place == objects.end() ? 0 : place->second.stored_bytes;
    stats.live_stored_bytes += stored;
    stats.live_raw_bytes += use.bytes;
    if (use.times > 1) stats.shared_raw_bytes += use.bytes;
    stats.referenced_raw_bytes += use.referenced_bytes;
    if (!use.by_several) {
      stats.uses[use.first].own_stored_bytes += stored;
      stats.uses[use.first].shared_bytes -= use.referenced_bytes;
    }
    if (!use.by_newest) stats.older_bytes += stored;
  }
  stats.objects = objects.size();
  for (const auto& [pack, bytes] : PackFiles()) {
    stats.pack_bytes += bytes;
    ++stats.packs;
  }
  stats.index_bytes = IndexBytes();
  stats.levels = index_->Levels();
  return stats;
}

}  // namespace kv::store
