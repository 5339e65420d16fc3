// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "lib/core/base/descriptor.h"
#include "lib/core/base/file.h"

namespace kv {
namespace fs = std::filesystem;
namespace {

// Folders with more files than this keep the small ones in a spool.
constexpr size_t kMostMappings = 4096;
constexpr uint64_t kSmallFile = 64 << 10;

// Small files, one after another in an unnamed temporary file that is mapped once.
class SmallFileSpool {
 public:
  // Returns true if the file was small enough; `place` is its index in the list for Finish.
  bool Add(const fs::path& path, size_t place) {
    const std::shared_ptr<const FileSource> file = FileSource::Open(path);
    if (file->size() > kSmallFile) return false;
    pending_.insert(pending_.end(), file->bytes().begin(), file->bytes().end());
    parts_.push_back({path.string(), place, offset_, file->size()});
    offset_ += file->size();
    if (pending_.size() >= kFlushBytes) Flush();
    return true;
  }

  void Finish(std::vector<SourceFile>& files) {
    Flush();
    const auto whole = FileSource::FromDescriptor(spool_.Release(), "spool");
    for (Part& part : parts_) {
      files[part.place].data =
          FileSource::Slice(whole, part.offset, part.size, std::move(part.name));
    }
  }

 private:
  static constexpr size_t kFlushBytes = 1 << 20;
  struct Part {
    std::string name;
    size_t place;
    uint64_t offset, size;
  };

  void Flush() {
    DescriptorSink(spool_.get(), "temporary spool file").Write(pending_);
    pending_.clear();
  }

  Descriptor spool_{OpenSpool()};
  uint64_t offset_ = 0;
  Bytes pending_;
  std::vector<Part> parts_;
};

}  // namespace

namespace {

struct Listing {
  std::vector<fs::path> files;
  std::vector<std::string> empty_folders;
};

Listing ListFolder(const fs::path& path) {
  Listing list;
  try {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
      const fs::file_type type = entry.symlink_status().type();
      if (type == fs::file_type::regular) {
        list.files.push_back(entry.path());
      } else if (type == fs::file_type::directory) {
        if (!fs::is_empty(entry.path())) continue;
        list.empty_folders.push_back(entry.path().lexically_relative(path).generic_string());
      } else {
        throw Error(Finding::kUnsafeName, "is {} inside a folder",
                    type == fs::file_type::symlink ? "a link" : "neither file nor folder")
            .File(entry.path().string());
      }
    }
  } catch (const fs::filesystem_error& error) {
    throw Error(Finding::kOpenFailed, error.code().message()).File(path.string());
  }
  std::sort(list.empty_folders.begin(), list.empty_folders.end());
  return list;
}

bool IsExecutable(const fs::path& path) {
  std::error_code ignored;
  return (fs::status(path, ignored).permissions() & fs::perms::owner_exec) != fs::perms::none;
}

}  // namespace

Source Source::Open(const fs::path& path, std::optional<uint64_t> most_of_stream, FetchMode fetch) {
  Source source;
  source.path = path.string();
  std::error_code ignored;
  if (path == "-" || !fs::is_directory(path, ignored)) {
    source.files.push_back(
        {path.filename().string(), FileSource::Open(path, most_of_stream, fetch)});
    source.by_address = {0};
    return source;
  }
  source.is_folder = true;
  Listing list = ListFolder(path);
  source.empty_folders = std::move(list.empty_folders);
  std::optional<SmallFileSpool> spool;
  if (list.files.size() > kMostMappings) spool.emplace();
  for (const fs::path& file : list.files) {
    const std::string name = file.lexically_relative(path).generic_string();
    const bool executable = IsExecutable(file);
    if (spool && spool->Add(file, source.files.size())) {
      source.files.push_back({name, nullptr, executable});
    } else {
      source.files.push_back({name, FileSource::Open(file), executable});
    }
  }
  if (spool) spool->Finish(source.files);
  std::sort(source.files.begin(), source.files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.name < b.name; });
  source.by_address.resize(source.files.size());
  std::iota(source.by_address.begin(), source.by_address.end(), 0);
  const auto place = [&](uint32_t i) {
    const ByteSpan bytes = source.files[i].data->bytes();
    // empty files sort before the next one at the same address
    return std::pair(bytes.data(), bytes.size());
  };
  std::sort(source.by_address.begin(), source.by_address.end(),
            [&](uint32_t a, uint32_t b) { return place(a) < place(b); });
  return source;
}

uint64_t Source::total_bytes() const {
  uint64_t total = 0;
  for (const SourceFile& file : files) total += file.data->size();
  return total;
}

void Source::NeedAll(uint64_t most) const {
  for (const SourceFile& file : files) file.data->NeedAll(most);
}

void Source::RequireUnchanged() const {
  for (const SourceFile& file : files) file.data->RequireUnchanged();
}

const SourceFile* Source::Find(std::string_view name) const {
  const auto at =
      std::lower_bound(files.begin(), files.end(), name,
                       [](const SourceFile& file, std::string_view n) { return file.name < n; });
  return at != files.end() && at->name == name ? &*at : nullptr;
}

const SourceFile* Source::FindFile(const std::byte* p) const {
  if (by_address.size() != files.size()) {  // Open, which fills by_address, did not run
    for (const SourceFile& file : files) {
      if (file.data->Contains(p)) return &file;
    }
    return nullptr;
  }
  const auto after = std::upper_bound(
      by_address.begin(), by_address.end(), p,
      [&](const std::byte* q, uint32_t place) { return q < files[place].data->bytes().data(); });
  if (after == by_address.begin()) return nullptr;
  const SourceFile& file = files[*(after - 1)];
  return file.data->Contains(p) ? &file : nullptr;
}

}  // namespace kv
