// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/safetensors/safetensors.h"
#include "formats/tensors/tensor_snapshot.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/snapshot.h"
#include "tests/fuzz/accepted.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  try {
    const auto bytes = kv::FileSource::FromBytes({begin, begin + size}, "fuzz");
    const kv::TensorFile file =
        kv::ReadSafetensors({.path = "fuzz", .is_folder = false, .files = {{"fuzz", bytes}}}, {});
    for (const kv::NamedTensor& tensor : file.tensors) kv::CopyContiguous(tensor.view);
    kv::OpenOptions options;
    options.any_batch = true;
    const kv::Snapshot snapshot = kv::BuildSnapshot(file, options);
    for (const kv::LayerKv& layer : snapshot.layers)
      kv::Gather(layer.k, 0, layer.k.tokens(), kv::Order::kTokenHeadDim);
    if (kv::BatchRows(snapshot) > 1) {
      options.batch = 0;
      kv::BuildSnapshot(file, options);
    }
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
