// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/npy/npy.h"
#include "formats/tensors/tensor_snapshot.h"
#include "tests/fuzz/accepted.h"

// Reads one file as npy and as npz, then as a cache.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  kv::OpenOptions options;
  options.max_bytes = 1 << 20;
  options.as_dtype = "bf16";
  for (const auto read : {kv::ReadNpy, kv::ReadNpz}) {
    try {
      const auto bytes = kv::FileSource::FromBytes({begin, begin + size}, "fuzz");
      const kv::TensorFile file =
          read({.path = "fuzz", .is_folder = false, .files = {{"fuzz", bytes}}}, options);
      for (const auto& check : file.checks) check();
      for (const kv::NamedTensor& tensor : file.tensors) kv::CopyContiguous(tensor.view);
      kv::BuildSnapshot(file, options);
      ++kv::fuzz::accepted;
    } catch (const kv::Error&) {
    }
  }
  return 0;
}
