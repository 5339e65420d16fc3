// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <optional>
#include <utility>

#include "lib/core/base/bytes.h"

namespace kv {

// Owns a file descriptor, or none (-1).
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.Release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    Reset(other.Release());
    return *this;
  }
  ~Descriptor() { Reset(); }

  int get() const { return number_; }
  int Release() { return std::exchange(number_, -1); }
  void Reset(int number = -1) {
    if (number_ >= 0) ::close(number_);
    number_ = number;
  }

 private:
  int number_;
};

// Writes all bytes, from `offset` on or, without one, where the file stands. Returns false if the
// system refuses; errno then says why.
inline bool WriteAll(int descriptor, ByteSpan bytes, std::optional<uint64_t> offset = {}) {
  while (!bytes.empty()) {
    const ssize_t written =
        offset ? ::pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(*offset))
               : ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(written));
    if (offset) *offset += static_cast<uint64_t>(written);
  }
  return true;
}

}  // namespace kv
