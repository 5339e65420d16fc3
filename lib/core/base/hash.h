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

// Computes XXH3, 64 bits, seed 0: the checksum of everything kvtool writes.
uint64_t Hash64(ByteSpan bytes);

// XXH3, 128 bits, seed 0, in xxHash's canonical (big-endian) byte order.
using Hash128Bytes = std::array<std::byte, 16>;
Hash128Bytes Hash128(ByteSpan bytes);

// Computes both hashes over bytes that arrive in pieces.
class StreamingHash {
 public:
  StreamingHash();
  ~StreamingHash();
  StreamingHash(StreamingHash&&) noexcept;
  StreamingHash& operator=(StreamingHash&&) noexcept;

  void Update(ByteSpan bytes);
  uint64_t Digest() const;
  Hash128Bytes Digest128() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns "xxh3:0123456789abcdef".
std::string HashText(uint64_t hash);

// Computes BLAKE2b with 8 bytes of output and no key, little-endian. Engines name slots by it.
uint64_t Blake2b64(ByteSpan message);

// BLAKE2b with 32 bytes of output and no key: collisions cannot be constructed.
using Hash256Bytes = std::array<std::byte, 32>;
Hash256Bytes Blake2b256(ByteSpan message);

}  // namespace kv
