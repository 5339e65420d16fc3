// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/partial_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lib/core/base/checked.h"

namespace kv {
namespace {

[[noreturn]] void NoRoom() { throw Error(Finding::kNoMemory, "no memory for a file in pieces"); }

}  // namespace

PartialFile::PartialFile(uint64_t size, std::string name) {
  if (size == 0) {
    source_ = FileSource::FromBytes({}, std::move(name));
    return;
  }
  descriptor_ = ::memfd_create("kvtool", MFD_CLOEXEC);
  if (descriptor_ < 0) NoRoom();
  void* map = MAP_FAILED;
  if (size <= static_cast<uint64_t>(INT64_MAX) &&
      ::ftruncate(descriptor_, static_cast<off_t>(size)) == 0) {
    map = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor_, 0);
  }
  if (map == MAP_FAILED) {
    ::close(descriptor_);
    NoRoom();
  }
  all_ = {static_cast<std::byte*>(map), size};
  try {
    const int second = ::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0);
    if (second < 0) NoRoom();
    source_ = FileSource::FromDescriptor(second, std::move(name));
  } catch (...) {
    ::munmap(map, size);
    ::close(descriptor_);
    throw;
  }
}

PartialFile::~PartialFile() {
  if (!all_.empty()) ::munmap(all_.data(), all_.size());
  if (descriptor_ >= 0) ::close(descriptor_);
}

void PartialFile::Drop(uint64_t offset, uint64_t size) {
  static const auto kPage = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const uint64_t begin = RoundUp(offset, kPage), end = (offset + size) / kPage * kPage;
  if (begin >= end) return;
  // Where holes cannot be made the memory stays until the end.
  static_cast<void>(::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                static_cast<off_t>(begin), static_cast<off_t>(end - begin)));
}

}  // namespace kv
