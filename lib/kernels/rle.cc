// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/kernels/rle.h"

#include "lib/kernels/reference.h"

namespace kv {

size_t RleEncodedSize(const std::byte* from, size_t size) noexcept {
  size_t at = 0, written = 0;
  while (at < size) {
    const size_t run = ref::RleRun(from, size, at);
    if (run >= ref::kRleMinRun) {
      written += 2;
      at += run;
      continue;
    }
    const size_t start = at;
    do {
      ++at;
    } while (at < size && ref::RleRun(from, size, at) < ref::kRleMinRun);
    written += RleBound(at - start);
  }
  return written;
}

size_t RleEncode(const std::byte* from, size_t size, std::byte* to) noexcept {
  return ref::RleEncode(from, size, to);
}
bool RleDecode(const std::byte* payload, size_t payload_size, std::byte* to, size_t size) noexcept {
  return ref::RleDecode(payload, payload_size, to, size);
}

}  // namespace kv
