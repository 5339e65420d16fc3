// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Two bytes of size, then a payload for the decoder; the whole input is also encoded.
#include <cstdlib>

#include "lib/core/kernels/reference.h"
#include "lib/core/kernels/rle.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kv;
  const ByteSpan input = std::as_bytes(std::span(data, size));
  if (size >= 2) {
    const size_t raw_size = LoadLE<uint16_t>(data);
    Bytes out(raw_size), expected(raw_size);
    const bool ok = RleDecode(input.data() + 2, size - 2, out.data(), raw_size);
    if (ok != ref::RleDecode(input.data() + 2, size - 2, expected.data(), raw_size)) std::abort();
    if (ok && out != expected) std::abort();
  }
  Bytes encoded(RleEncodedSize(input.data(), size)), expected(RleBound(size)), back(size);
  if (RleEncode(input.data(), size, encoded.data()) != encoded.size()) std::abort();
  expected.resize(ref::RleEncode(input.data(), size, expected.data()));
  if (encoded != expected) std::abort();
  if (size != 0) {
    if (!RleDecode(encoded.data(), encoded.size(), back.data(), size)) std::abort();
    if (!std::equal(back.begin(), back.end(), input.begin())) std::abort();
  }
  ++kv::fuzz::accepted;  // this target refuses no input
  return 0;
}
