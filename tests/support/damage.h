// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <catch2/catch.hpp>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"

namespace kv::test {

// Changes each byte of a frame: it must be refused as invalid or decode to something, and some
// changes must be refused. A frame that is truncated anywhere must be refused. `decode` takes a
// ByteSpan.
template <typename Decode>
void CheckDamage(const Bytes& frame, const Decode& decode) {
  int refused = 0;
  for (size_t at = 0; at < frame.size(); ++at) {
    Bytes bad = frame;
    bad[at] ^= std::byte{0x41};
    try {
      decode(bad);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kInvalidData);
      ++refused;
    }
    REQUIRE_THROWS_AS(decode(ByteSpan(frame).first(at)), Error);
  }
  CHECK(refused > 0);
}

}  // namespace kv::test
