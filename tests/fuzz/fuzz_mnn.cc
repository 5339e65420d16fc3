// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The input is one meta file; if it parses and requires little data, it is read in a folder with
// exactly that data.
#include "formats/mnn/mnn.h"
#include "lib/core/snapshot/layout.h"
#include "lib/engines/mnn/offline/offline.h"
#include "tests/fuzz/accepted.h"

namespace {

constexpr uint64_t kMostData = 1 << 16;

void ReadFolder(const kv::mnn::DumpMeta& meta, kv::ByteSpan text) {
  kv::Source source;
  source.path = "run";
  source.is_folder = true;
  source.files.push_back({"a", kv::FileSource::FromBytes({text.begin(), text.end()}, "a")});
  if (meta.k_file == "a" || meta.v_file == "a") return;
  for (const auto& [name, bytes] :
       {std::pair{meta.k_file, meta.k_bytes()}, std::pair{meta.v_file, meta.v_bytes()}}) {
    source.files.push_back({name, kv::FileSource::FromBytes(kv::Bytes(bytes), name)});
  }
  std::sort(source.files.begin(), source.files.end(),
            [](const kv::SourceFile& a, const kv::SourceFile& b) { return a.name < b.name; });
  const kv::Snapshot snapshot = kv::mnn::OpenDump(std::move(source), {});
  for (const kv::LayerKv& layer : snapshot.layers) {
    kv::Gather(layer.k, 0, layer.k.tokens(), kv::Order::kHeadTokenDim);
    kv::Gather(*layer.v, 0, layer.v->tokens(), kv::Order::kTokenHeadDim);
  }
}

// Gives the same text to the reader that tolerates damage, next to two files that it may name.
void ReadLeniently(kv::ByteSpan text) {
  kv::Source source;
  source.is_folder = true;
  for (const auto& [name, bytes] :
       {std::pair{"k_t0_2.bin", kv::Bytes(64)},
        std::pair{"meta_t0_2.json", kv::Bytes(text.begin(), text.end())},
        std::pair{"v_t0_2.bin", kv::Bytes(64)}}) {
    source.files.push_back({name, kv::FileSource::FromBytes(bytes, name)});
  }
  kv::ThreadPool pool(1);
  kv::mnn::offline::Simulate(kv::mnn::ReadOfflineEntries(source), {}, pool);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const kv::ByteSpan text{reinterpret_cast<const std::byte*>(data), size};
  ReadLeniently(text);
  try {
    const kv::mnn::DumpMeta meta = kv::mnn::ParseMeta(text);
    if (meta.k_bytes() <= kMostData && meta.v_bytes() <= kMostData) ReadFolder(meta, text);
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
