// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A line with the flag, a line with the config.json of a store, then data: a block below the
// config, or, cut in two, K and V of a packed cache.
#include <string>
#include <string_view>

#include "formats/raw/raw.h"
#include "lib/core/snapshot/layout.h"
#include "tests/fuzz/accepted.h"

namespace {

std::string_view TakeLine(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

void Add(kv::Source& source, std::string name, std::string_view text) {
  const kv::ByteSpan bytes = kv::AsBytes(text);
  source.files.push_back({name, kv::FileSource::FromBytes({bytes.begin(), bytes.end()}, name)});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  kv::OpenOptions options;
  options.raw = TakeLine(input);
  const std::string_view config = TakeLine(input);
  kv::Source source;
  source.path = "store";
  source.is_folder = true;
  if (options.raw.starts_with("mnn-cache")) {
    Add(source, "a_0.k", input.substr(0, input.size() / 2));
    Add(source, "a_0.v", input.substr(input.size() / 2));
  } else {
    Add(source, "base/config.json", config);
    Add(source, "base_r0/abc/de_g0/f.bin", input);
  }
  try {
    if (options.raw.empty()) return 0;
    const kv::Snapshot snapshot = kv::raw::OpenRaw(std::move(source), options);
    for (const kv::LayerKv& layer : snapshot.layers) {
      kv::Gather(layer.k, 0, layer.k.tokens(), kv::Order::kTokenHeadDim);
      if (layer.v) kv::Gather(*layer.v, 0, layer.v->tokens(), kv::Order::kTokenHeadDim);
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
