// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The flag's text up to the first newline, then the headerless data.
#include <string_view>

#include "formats/raw/raw.h"
#include "lib/core/snapshot/layout.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t newline = input.find('\n');
  const std::string_view body = newline == input.npos ? "" : input.substr(newline + 1);
  const kv::ByteSpan bytes = kv::AsBytes(body);
  try {
    const kv::raw::Spec spec = kv::raw::ParseSpec(input.substr(0, newline));
    kv::Source source;
    source.path = "data";
    source.files.push_back(
        {"data", kv::FileSource::FromBytes({bytes.begin(), bytes.end()}, "data")});
    const kv::ByteSpan data = source.files.front().data->bytes();
    const kv::Snapshot snapshot = kv::raw::MakeSnapshot(std::move(source), data, spec, 0);
    for (const kv::LayerKv& layer : snapshot.layers) {
      kv::Gather(layer.k, 0, layer.k.tokens(), kv::Order::kTokenHeadDim);
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
