// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>
#include <new>

namespace kv {

uint64_t Hash64(ByteSpan bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct StreamingHash64::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

StreamingHash64::StreamingHash64() : state_(std::make_unique<State>()) {
  if (state_->xxh == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state_->xxh);
}
StreamingHash64::~StreamingHash64() = default;
StreamingHash64::StreamingHash64(StreamingHash64&&) noexcept = default;
StreamingHash64& StreamingHash64::operator=(StreamingHash64&&) noexcept = default;

void StreamingHash64::Update(ByteSpan bytes) {
  if (!bytes.empty()) XXH3_64bits_update(state_->xxh, bytes.data(), bytes.size());
}

uint64_t StreamingHash64::Digest() const { return XXH3_64bits_digest(state_->xxh); }

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

struct StreamingHash128::State {
  XXH3_state_t* xxh = XXH3_createState();
  ~State() { XXH3_freeState(xxh); }
};

StreamingHash128::StreamingHash128() : state_(std::make_unique<State>()) {
  if (state_->xxh == nullptr) throw std::bad_alloc();
  XXH3_128bits_reset(state_->xxh);
}
StreamingHash128::~StreamingHash128() = default;

void StreamingHash128::Update(ByteSpan bytes) {
  if (!bytes.empty()) XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}

Hash128Bytes StreamingHash128::Digest() const {
  return Canonical(XXH3_128bits_digest(state_->xxh));
}

std::string HashText(uint64_t hash) { return fmt::format("xxh3:{:016x}", hash); }

}  // namespace kv
