// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lib/core/base/bytes.h"

namespace kv {

// XXH3, 64 bits, seed 0: the checksum of everything kvtool writes.
uint64_t Hash64(ByteSpan bytes);

// XXH3, 128 bits, seed 0, in xxHash's canonical (big-endian) byte order.
using Hash128Bytes = std::array<std::byte, 16>;
Hash128Bytes Hash128(ByteSpan bytes);

// The 64-bit hash over bytes that arrive in pieces.
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

// The 128-bit hash over bytes that arrive in pieces.
class StreamingHash128 {
 public:
  StreamingHash128();
  ~StreamingHash128();
  StreamingHash128(const StreamingHash128&) = delete;
  StreamingHash128& operator=(const StreamingHash128&) = delete;

  void Update(ByteSpan bytes);
  Hash128Bytes Digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// "xxh3:0123456789abcdef"
std::string HashText(uint64_t hash);

// BLAKE2b with 8 bytes of output and no key, as a little-endian number. Engines name slots by it.
uint64_t Blake2b64(ByteSpan message);

// BLAKE2b with 32 bytes of output and no key: a hash that nobody can make two contents for.
using Hash256Bytes = std::array<std::byte, 32>;
Hash256Bytes Blake2b256(ByteSpan message);

}  // namespace kv
