// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A stream of a transform's coefficients, after a byte with the number of components and one with
// the number of tokens: it is refused, or the encoder writes the same stream from its values.
#include <algorithm>
#include <cstdlib>
#include <span>
#include <vector>

#include "lib/core/base/error.h"
#include "lib/core/codec/transformed/transformed.h"
#include "tests/fuzz/accepted.h"

namespace {

// Each component codes fewer values than the one before it. The value 0 has all the frequency that
// the others leave.
kv::StepCode MakeCode(size_t count) {
  kv::StepCode code;
  for (size_t c = 0; c < count; ++c) {
    kv::StepTable table{static_cast<uint32_t>(c < 20 ? 20 - c : 0), {}};
    table.frequencies.assign(table.symbols(), 1);
    table.frequencies[table.reach] = static_cast<uint16_t>(2049 - table.symbols());
    code.tables.push_back(std::move(table));
  }
  return code;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const kv::StepCode code = MakeCode(data[0] % 64);
  const uint64_t tokens = 1 + data[1] % kv::kStreamTokens;
  const kv::ByteSpan stream = std::as_bytes(std::span(data, size)).subspan(2);
  std::vector<int16_t> values(tokens * code.tables.size());
  try {
    kv::DecodeCoefficients(code, stream, tokens, values);
  } catch (const kv::Error&) {
    return 0;
  }
  ++kv::fuzz::accepted;
  const kv::Bytes again = kv::EncodeCoefficients(code, values, tokens);
  if (!std::equal(again.begin(), again.end(), stream.begin(), stream.end())) std::abort();
  return 0;
}
