// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as a buffer of Dynamo's KVTC and as a page of SGLang's: each is refused or has the
// values that it must have. The first two bytes give rows and components, because buffers do not
// contain them.
#include <cstdlib>

#include "lib/core/base/error.h"
#include "lib/engines/dynamo/kvtc.h"
#include "tests/fuzz/accepted.h"
#include "tests/support/sglang_pages.h"

namespace {

constexpr uint32_t kMostRows = 8, kMostComponents = 128;

void ReadAsBuffer(kv::ByteSpan bytes, uint64_t rows, uint64_t components) {
  try {
    const kv::dynamo::Buffer buffer = kv::dynamo::ReadBuffer(bytes, rows, components);
    if (buffer.values.size() != rows * components) std::abort();
    kv::dynamo::WriteBuffer(buffer.values, rows, components, buffer.ranges,
                            kv::dynamo::Fp8Path::kSoft);
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
}

void ReadAsPage(kv::ByteSpan bytes, uint64_t components) {
  constexpr uint32_t kBits[] = {0, 2, 4, 8};
  std::vector<kv::sglang::StaticCode> codes;
  for (uint64_t i = 0; i < components; ++i)
    codes.push_back({1.0f, kBits[std::to_integer<size_t>(bytes[i % bytes.size()]) % 4]});
  try {
    const kv::sglang::PageStreams page = kv::sglang::ReadPageStreams(bytes);
    for (const kv::ByteSpan stream : {page.k, page.v}) {
      if (kv::sglang::ReadStream(stream, codes).size() != components) std::abort();
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  const kv::ByteSpan bytes = std::as_bytes(std::span(data, size)).subspan(2);
  const uint64_t rows = 1 + data[0] % kMostRows, components = 1 + data[1] % kMostComponents;
  ReadAsBuffer(bytes, rows, components);
  ReadAsPage(bytes, components);
  return 0;
}
