// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/llama_state/llama_state.h"
#include "lib/core/snapshot/layout.h"
#include "tests/fuzz/accepted.h"

namespace {

using kv::Snapshot;

// Everything that opens must also be safe to walk: regions, values, heads.
template <typename Open>
void Try(const kv::Bytes& bytes, const kv::OpenOptions& options, const Open& open) {
  try {
    kv::Source source;
    source.path = "fuzz";
    source.files.push_back({"fuzz", kv::FileSource::FromBytes(bytes, "fuzz")});
    Snapshot snapshot = open(std::move(source), options);
    if (snapshot.layers.empty()) return;
    kv::FindRegions(snapshot);
    for (const kv::LayerKv& layer : snapshot.layers) {
      kv::GatherFloats(layer.k, 0, layer.k.tokens(), kv::Order::kTokenHeadDim);
      if (layer.v) kv::GatherFloats(*layer.v, 0, layer.v->tokens(), kv::Order::kTokenHeadDim);
    }
    kv::ModelGeometry geometry;
    geometry.uniform.kv_heads = 2;
    kv::ApplyGeometry(geometry, snapshot);
    kv::Gather(snapshot.layers[0].k, 0, snapshot.layers[0].k.tokens(), kv::Order::kHeadTokenDim);
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const kv::Bytes bytes(begin, begin + size);
  kv::OpenOptions options;
  Try(bytes, options, kv::llama_state::Open);
  Try(bytes, options, kv::llama_state::OpenSeqBlob);
  Try(bytes, options, kv::llama_state::OpenCtxBlob);
  options.layout.assign(1, 'A');
  Try(bytes, options, kv::llama_state::Open);
  return 0;
}
