// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <vector>

#include "lib/core/archive/archive.h"
#include "tests/support/memory_sink.h"

namespace kv::test {

inline Bytes Pack(const Source& source, const Snapshot* snapshot, uint64_t chunk_bytes = 2048,
                  int threads = 1, Effort effort = Effort::kDefault) {
  ThreadPool pool(threads);
  MemorySink out;
  WriteOptions options;
  options.chunk_bytes = chunk_bytes;
  options.effort = effort;
  WriteArchive(source, snapshot, options, pool, out);
  return std::move(out.bytes());
}

inline Archive OpenBytes(Bytes bytes) {
  return Archive::Open(FileSource::FromBytes(std::move(bytes), "test.kvz"));
}

// MemoryTarget keeps every restored file in memory.
class MemoryTarget : public RestoreTarget {
 public:
  Sink& Begin(size_t file) override {
    if (files.size() <= file) files.resize(file + 1);
    return files[file];
  }
  void End(size_t) override {}

  std::vector<MemorySink> files;
};

struct Unpacked {
  RestoreReport report;
  std::vector<Bytes> files;
};

inline Unpacked Unpack(const Archive& archive, bool keep_going = false, int threads = 1) {
  ThreadPool pool(threads);
  MemoryTarget target;
  RestoreOptions options;
  options.keep_going = keep_going;
  Unpacked unpacked{Restore(archive, options, pool, target), {}};
  for (MemorySink& sink : target.files) unpacked.files.push_back(std::move(sink.bytes()));
  return unpacked;
}

inline Bytes CopyOf(ByteSpan bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace kv::test
