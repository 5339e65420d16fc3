// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>

namespace kv {

uint64_t Hash64(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct StreamingHash::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

StreamingHash::StreamingHash() : state_(std::make_unique<State>()) {
  if (state_->xxh == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state_->xxh);
}
StreamingHash::~StreamingHash() = default;
StreamingHash::StreamingHash(StreamingHash&&) noexcept = default;
StreamingHash& StreamingHash::operator=(StreamingHash&&) noexcept = default;

void StreamingHash::Update(ByteSpan bytes) {
  if (!bytes.empty()) XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}

uint64_t StreamingHash::Digest() const { return XXH3_64bits_digest(state_->xxh); }

namespace {

Hash128Bytes Canonical(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  Hash128Bytes out;
  static_assert(sizeof canonical.digest == sizeof out);
  std::memcpy(out.data(), canonical.digest, sizeof out);
  return out;
}

}  // namespace

Hash128Bytes Hash128(ByteSpan bytes) { return Canonical(XXH3_128bits(bytes.data(), bytes.size())); }

Hash128Bytes StreamingHash::Digest128() const {
  return Canonical(XXH3_128bits_digest(state_->xxh));
}

std::string HashText(uint64_t hash) { return fmt::format("xxh3:{:016x}", hash); }

// Follows RFC 7693.

namespace {

constexpr size_t kBlock = 128;
constexpr int kRounds = 12;

using State = std::array<uint64_t, 8>;

constexpr State kStart = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b,
                          0xa54ff53a5f1d36f1, 0x510e527fade682d1, 0x9b05688c2b3e6c1f,
                          0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};

constexpr uint8_t kSigma[10][16] = {{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
                                    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
                                    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
                                    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
                                    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
                                    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
                                    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
                                    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
                                    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};

void Mix(std::array<uint64_t, 16>& v, size_t a, size_t b, size_t c, size_t d, uint64_t x,
         uint64_t y) {
  v[a] += v[b] + x;
  v[d] = std::rotr(v[d] ^ v[a], 32);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 24);
  v[a] += v[b] + y;
  v[d] = std::rotr(v[d] ^ v[a], 16);
  v[c] += v[d];
  v[b] = std::rotr(v[b] ^ v[c], 63);
}

void Compress(State& h, ByteSpan block, uint64_t counted, bool last) {
  std::array<uint64_t, 16> m = {}, v = {};
  std::array<std::byte, kBlock> padded = {};
  std::copy(block.begin(), block.end(), padded.begin());
  for (size_t i = 0; i < 16; ++i) m[i] = LoadLE<uint64_t>(&padded[8 * i]);
  for (size_t i = 0; i < 8; ++i) {
    v[i] = h[i];
    v[i + 8] = kStart[i];
  }
  v[12] ^= counted;
  if (last) v[14] = ~v[14];
  for (int round = 0; round < kRounds; ++round) {
    const auto& s = kSigma[round % 10];
    for (size_t i = 0; i < 4; ++i) Mix(v, i, i + 4, i + 8, i + 12, m[s[2 * i]], m[s[2 * i + 1]]);
    for (size_t i = 0; i < 4; ++i) {
      Mix(v, i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12, m[s[2 * i + 8]],
          m[s[2 * i + 9]]);
    }
  }
  for (size_t i = 0; i < 8; ++i) h[i] ^= v[i] ^ v[i + 8];
}

State Digest(ByteSpan message, uint64_t digest_bytes) {
  State h = kStart;
  h[0] ^= 0x01010000 ^ digest_bytes;
  uint64_t counted = 0;
  do {
    const size_t take = std::min(kBlock, message.size());
    counted += take;
    Compress(h, message.first(take), counted, take == message.size());
    message = message.subspan(take);
  } while (!message.empty());
  return h;
}

}  // namespace

uint64_t Blake2b64(ByteSpan message) { return Digest(message, sizeof(uint64_t))[0]; }

Hash256Bytes Blake2b256(ByteSpan message) {
  Hash256Bytes bytes;
  const State h = Digest(message, bytes.size());
  for (size_t i = 0; i < bytes.size() / sizeof(uint64_t); ++i) {
    StoreLE(&bytes[i * sizeof(uint64_t)], h[i]);
  }
  return bytes;
}

}  // namespace kv
