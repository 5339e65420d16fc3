// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lib/core/base/descriptor.h"
#include "lib/core/base/error.h"
#include "lib/core/base/file.h"

namespace kv {

// An unnamed temporary file for values that a reader computes; it is mapped once it is written.
// Throws kWriteFailed.
class SpoolFile : public Sink {
 public:
  SpoolFile() : descriptor_(OpenSpool()) {}

  void Write(ByteSpan bytes) override {
    WriteAt(size_, bytes);
    size_ += bytes.size();
  }
  // May be called from several threads.
  void WriteAt(uint64_t offset, ByteSpan bytes) const {
    if (!WriteAll(descriptor_.get(), bytes, offset))
      throw SystemError(Finding::kWriteFailed, "cannot write", "temporary spool file");
  }
  uint64_t size() const { return size_; }  // bytes written in order
  int descriptor() const { return descriptor_.get(); }
  std::shared_ptr<const FileSource> Release(std::string name) {
    return FileSource::FromDescriptor(descriptor_.Release(), std::move(name));
  }

 private:
  Descriptor descriptor_;
  uint64_t size_ = 0;
};

}  // namespace kv
