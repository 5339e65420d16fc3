// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as a pickle: a value or an Error, never more.
#include "formats/torch/pickle.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const kv::ByteSpan bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    const kv::Pickle pickle = kv::ReadPickle(bytes);
    pickle.Describe(pickle.root());
    pickle.Get(pickle.root(), "state_dict");
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
