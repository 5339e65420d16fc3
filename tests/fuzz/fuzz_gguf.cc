// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/gguf/gguf.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  try {
    kv::ReadGgufGeometry(*kv::FileSource::FromBytes({begin, begin + size}, "fuzz"));
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
