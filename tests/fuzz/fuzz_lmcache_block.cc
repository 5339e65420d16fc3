// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/lmcache/block_store.h"
#include "formats/lmcache/lmcache.h"
#include "lib/core/snapshot/layout.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  kv::Source source;
  source.path = "store";
  source.files.push_back({"store", kv::FileSource::FromBytes({begin, begin + size}, "store")});
  try {
    const kv::lmcache::BlockStore store(std::move(source));
    for (const auto& [key, entry] : store.entries()) {
      KV_ASSERT(entry.offset + entry.size <= size);
      try {
        const kv::Snapshot snapshot = store.Open(key, {});
        for (const kv::LayerKv& layer : snapshot.layers) {
          kv::Gather(layer.k, 0, layer.k.tokens(), kv::Order::kTokenHeadDim);
          if (layer.v) kv::Gather(*layer.v, 0, layer.v->tokens(), kv::Order::kTokenHeadDim);
        }
        ++kv::fuzz::accepted;
      } catch (const kv::Error&) {
      }
    }
  } catch (const kv::Error&) {
  }
  return 0;
}
