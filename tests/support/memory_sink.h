// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include "lib/core/base/file.h"

namespace kv {

// MemorySink collects in memory what is written.
class MemorySink : public Sink {
 public:
  void Write(ByteSpan bytes) override { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  Bytes& bytes() { return bytes_; }

 private:
  Bytes bytes_;
};

}  // namespace kv
