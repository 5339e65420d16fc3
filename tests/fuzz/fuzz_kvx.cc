// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A learnt transform, whose hash is made right first: it is refused, or written again as it was.
#include <algorithm>
#include <cstdlib>

#include "formats/kvx/kvx.h"
#include "lib/core/base/error.h"
#include "lib/core/base/hash.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const kv::ByteSpan input = std::as_bytes(std::span(data, size));
  kv::Bytes file(input.begin(), input.end());
  if (size >= 16) {
    const kv::Hash128Bytes hash = kv::Hash128(kv::ByteSpan(file).first(size - 16));
    std::copy(hash.begin(), hash.end(), file.end() - 16);
  }
  try {
    const kv::Transform transform = kv::ReadTransform(file);
    if (kv::WriteTransform(transform) != file) std::abort();
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
