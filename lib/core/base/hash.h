// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lib/core/base/bytes.h"

namespace kv {

// XXH3, 64 bits, seed 0: the checksum of everything kvtool writes.
uint64_t Hash64(ByteSpan bytes);

// The same hash over bytes that arrive in pieces.
class StreamingHash64 {
 public:
  StreamingHash64();
  ~StreamingHash64();
  StreamingHash64(StreamingHash64&&) noexcept;
  StreamingHash64& operator=(StreamingHash64&&) noexcept;

  void Update(ByteSpan bytes);
  uint64_t Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "xxh3:0123456789abcdef"
std::string HashText(uint64_t hash);

}  // namespace kv
