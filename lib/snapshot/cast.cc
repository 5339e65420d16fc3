// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/snapshot/cast.h"

#include <fmt/format.h>

#include <cstring>

#include "lib/base/checked.h"
#include "lib/kernels/convert.h"
#include "lib/snapshot/layout.h"

namespace kv {
namespace {

Bytes CastTensor(const KvTensor& tensor, DType dtype) {
  const std::vector<float> values = GatherFloats(tensor, 0, tensor.tokens(), Order::kTokenHeadDim);
  Bytes out(BytesOf(dtype, values.size()));
  if (dtype == DType::kF16) {
    FloatToHalf(values.data(), out.data(), values.size());
  } else if (dtype == DType::kBF16) {
    FloatToBFloat(values.data(), out.data(), values.size());
  } else {
    std::memcpy(out.data(), values.data(), out.size());
  }
  return out;
}

}  // namespace

Snapshot CastSnapshot(Snapshot snapshot, DType dtype, ThreadPool& pool) {
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
    throw Error(Finding::kUsage, fmt::format("a cache cannot be converted to {}", Name(dtype)))
        .Hint("f32, f16 or bf16");
  }
  std::vector<KvTensor*> tensors;
  for (LayerKv& layer : snapshot.layers) {
    if (layer.k.dtype != dtype) tensors.push_back(&layer.k);
    if (layer.v && layer.v->dtype != dtype) tensors.push_back(&*layer.v);
  }
  const size_t first = snapshot.spools.size();
  snapshot.spools.resize(first + tensors.size());
  pool.ParallelFor(tensors.size(), [&](uint64_t i) {
    KvTensor& tensor = *tensors[i];
    auto& spool = snapshot.spools[first + i];
    spool = FileSource::FromBytes(CastTensor(tensor, dtype), std::string(Name(dtype)));
    const bool heads_known = tensor.heads_known;
    tensor = ContiguousTensor(spool->bytes().data(), dtype, tensor.tokens(), tensor.heads,
                              tensor.head_dim, Order::kTokenHeadDim);
    tensor.heads_known = heads_known;
  });
  return snapshot;
}

}  // namespace kv
