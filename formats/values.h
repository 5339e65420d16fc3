// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lib/core/base/file.h"
#include "lib/core/snapshot/snapshot.h"

// What readers that make values and writers of rows have in common.
namespace kv {

// An unnamed temporary file for values that a reader must make: it is mapped once it is written.
class SpoolFile : public Sink {
 public:
  SpoolFile() : descriptor_(OpenSpool()), sink_(descriptor_, "temporary spool file") {}
  ~SpoolFile() override;
  SpoolFile(const SpoolFile&) = delete;
  SpoolFile& operator=(const SpoolFile&) = delete;

  void Write(ByteSpan bytes) override { sink_.Write(bytes); }
  std::shared_ptr<const FileSource> Release(std::string name);

 private:
  int descriptor_;
  DescriptorSink sink_;
};

// Writes rows of a tensor as [token][head][dim], gathered in bounded memory, and gives back the
// pages that were read.
void WriteRows(const Snapshot& snapshot, const KvTensor& tensor, uint64_t begin, uint64_t count,
               Sink& sink);
// Throws kUnsupportedLayout for two layers of one number, where it becomes a name.
void RequireLayerNumbers(const Snapshot& snapshot);
// For FormatEntry::not_kept of formats that count layers from 0.
void AddLayerNumbers(const Snapshot& snapshot, std::vector<std::string>& lost);

}  // namespace kv
