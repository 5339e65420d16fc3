// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as a torch zip archive: every value of every tensor that comes out must be readable.
#include "formats/torch/torch.h"
#include "tests/fuzz/accepted.h"
#include "tests/fuzz/fuzz_repair.h"
#include "tests/fuzz/repair.h"

kv::Bytes FuzzRepair(kv::ByteSpan input, unsigned) { return kv::fuzz::RepairZip(input); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  kv::Source source;
  source.files.push_back({"fuzz", kv::FileSource::FromBytes(kv::Bytes(bytes, bytes + size), "")});
  try {
    const kv::TensorFile file = kv::ReadTorch(source, 1 << 20);
    for (size_t i = 0; i < file.tensors.size() && i < 64; ++i) {
      kv::CopyContiguous(file.tensors[i].view);
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
