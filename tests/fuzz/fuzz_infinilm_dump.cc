// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A folder from one input: meta.json, a zero byte, then the values of both files. Every value of an
// accepted folder is read.
#include <algorithm>

#include "formats/infinilm_dump/infinilm_dump.h"
#include "lib/core/snapshot/layout.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  const auto* end = begin + size;
  const auto* border = std::find(begin, end, std::byte{0});
  const auto* values = border == end ? end : border + 1;
  kv::Source source;
  source.path = "dump";
  source.is_folder = true;
  for (const auto& [name, bytes] : {std::pair{kv::infinilm::kInputName, kv::Bytes(values, end)},
                                    std::pair{kv::infinilm::kMetaName, kv::Bytes(begin, border)},
                                    std::pair{kv::infinilm::kOutputName, kv::Bytes(values, end)}}) {
    source.files.push_back({std::string(name), kv::FileSource::FromBytes(bytes, "")});
  }
  kv::infinilm::ProbeDump(source);
  for (const char* layout : {"input", "output"}) {
    kv::OpenOptions options;
    options.layout = layout;
    try {
      const kv::Snapshot snapshot = kv::infinilm::OpenDump(source, options);
      for (const kv::LayerKv& layer : snapshot.layers) {
        kv::Gather(layer.k, 0, layer.k.tokens(), kv::Order::kTokenHeadDim);
        kv::Gather(*layer.v, 0, layer.v->tokens(), kv::Order::kHeadTokenDim);
      }
      ++kv::fuzz::accepted;
    } catch (const kv::Error&) {
    }
  }
  return 0;
}
