// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <catch2/catch.hpp>

#include "lib/engines/mnn/runtime/layer_cache.h"

namespace kv::mnn::runtime::decode_cache_test {
namespace {

DecodeCache::Entry EntryOf(uint64_t begin, uint64_t raw_hash, uint64_t blob_hash,
                           uint64_t raw_bytes = 100) {
  DecodeCache::Entry entry;
  entry.id = {begin, 8, raw_hash, blob_hash, raw_bytes, 50};
  entry.decoded.tensors[0] = std::make_shared<const Bytes>(raw_bytes);
  return entry;
}

std::shared_ptr<const Bytes> BytesOf(size_t size) { return std::make_shared<const Bytes>(size); }

}  // namespace

TEST_CASE("the engine's cache matches by bytes and one known hash", "[lossless]") {
  DecodeCache cache(4);
  cache.Insert(EntryOf(0, 0, 7), true);
  CHECK(cache.Find(EntryOf(0, 0, 7).id, true) != nullptr);
  CHECK(cache.Find(EntryOf(9, 0, 7).id, true) == nullptr);
  CHECK(cache.Find(EntryOf(9, 0, 7).id, false) != nullptr);
  CHECK(cache.Find(EntryOf(0, 0, 8).id, false) == nullptr);
  CHECK(cache.Find(EntryOf(0, 0, 7, 101).id, false) == nullptr);
  // Two unknown hashes never match.
  cache.Insert(EntryOf(16, 0, 0), true);
  CHECK(cache.Find(EntryOf(16, 0, 0).id, true) == nullptr);
}

TEST_CASE("the engine's cache forgets what was used longest ago", "[lossless]") {
  DecodeCache cache(2);
  cache.Insert(EntryOf(0, 1, 0), true);
  cache.Insert(EntryOf(8, 2, 0), true);
  CHECK(cache.Find(EntryOf(0, 1, 0).id, true) != nullptr);
  cache.Insert(EntryOf(16, 3, 0), true);
  CHECK(cache.Find(EntryOf(8, 2, 0).id, true) == nullptr);
  CHECK(cache.Find(EntryOf(0, 1, 0).id, true) != nullptr);
  CHECK(cache.bytes() == 200);
  // A local cache replaces the entry of the same place by other bytes; the global cache keeps both.
  cache.Insert(EntryOf(0, 9, 0), true);
  CHECK(cache.size() == 2);
  CHECK(cache.Find(EntryOf(0, 1, 0).id, false) == nullptr);
  DecodeCache none(0);
  none.Insert(EntryOf(0, 1, 0), true);
  CHECK(none.size() == 0);
}

TEST_CASE("the design's cache holds so many bytes, tells layers apart and keeps what it has",
          "[lossless]") {
  RangeCache cache(250);
  const RangeCache::Key key{0, false, DType::kF16, 0, 8, 1};
  RangeCache::Key other_layer = key, values = key, later = key;
  other_layer.layer = 1;
  values.is_value = true;
  later.begin = 8;
  CHECK(cache.Insert(key, BytesOf(100)));
  CHECK(cache.Find(other_layer) == nullptr);
  CHECK(cache.Find(values) == nullptr);
  CHECK(cache.Insert(values, BytesOf(100)));
  CHECK_FALSE(cache.Insert(later, BytesOf(100)));
  CHECK(cache.Find(later) == nullptr);
  CHECK(cache.Find(key) != nullptr);
  CHECK(cache.bytes() == 200);
  CHECK(cache.Insert(later, BytesOf(50)));
  CHECK(cache.bytes() == 250);
  cache.Erase(key);
  CHECK(cache.Find(key) == nullptr);
  CHECK(cache.bytes() == 150);
  CHECK(cache.Insert(other_layer, BytesOf(100)));
}

}  // namespace kv::mnn::runtime::decode_cache_test
