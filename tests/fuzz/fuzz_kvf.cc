// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A frame as a file, whose header hash is made right first, read as a cache.
#include "formats/kvf/kvf.h"
#include "lib/core/base/hash.h"
#include "lib/core/frame/frame.h"
#include "lib/core/snapshot/layout.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  kv::Bytes frame(begin, begin + size);
  if (size >= kv::kFrameHeaderBytes) {
    kv::StoreLE<uint64_t>(&frame[120], kv::Hash64(kv::ByteSpan(frame).first(120)));
  }
  kv::Source source;
  source.path = "page";
  source.files.push_back({"page", kv::FileSource::FromBytes(std::move(frame), "page")});
  kv::OpenOptions options;
  options.max_bytes = 1 << 22;
  options.in_memory = true;
  try {
    const kv::Snapshot snapshot = kv::kvf::Open(std::move(source), options);
    for (const kv::LayerKv& layer : snapshot.layers) {
      if (layer.has_k()) kv::Gather(layer.k, 0, layer.k.tokens(), kv::Order::kTokenHeadDim);
      if (layer.v) kv::Gather(*layer.v, 0, layer.v->tokens(), kv::Order::kTokenHeadDim);
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
