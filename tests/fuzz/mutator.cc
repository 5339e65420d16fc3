// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// libFuzzer's own mutations, after which a target that defines FuzzRepair puts hashes right: in
// three of four inputs, so that the checks of the hashes are tried as well.
#include <algorithm>
#include <cstring>

#include "tests/fuzz/fuzz_repair.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  const size_t mutated = LLVMFuzzerMutate(data, size, max_size);
  if (FuzzRepair == nullptr || seed % 4 == 0) return mutated;
  const kv::Bytes repaired = FuzzRepair(std::as_bytes(std::span(data, mutated)), seed / 4);
  if (repaired.empty() || repaired.size() > max_size) return mutated;
  std::memcpy(data, repaired.data(), repaired.size());
  return repaired.size();
}
