// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/lmcache/lmcache.h"
#include "lib/core/snapshot/layout.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  kv::Source source;
  source.path = "chunk.data";
  source.files.push_back(
      {"chunk.data", kv::FileSource::FromBytes({begin, begin + size}, "chunk.data")});
  try {
    const bool certain = kv::lmcache::ProbeChunk(source) == kv::Confidence::kCertain;
    const kv::Snapshot snapshot = kv::lmcache::OpenChunk(source, {});
    // A file that is read without a warning was a chunk.
    KV_ASSERT(certain);
    for (const kv::LayerKv& layer : snapshot.layers) {
      kv::Gather(layer.k, 0, layer.k.tokens(), kv::Order::kTokenHeadDim);
      if (layer.v) kv::Gather(*layer.v, 0, layer.v->tokens(), kv::Order::kTokenHeadDim);
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
