// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/cast.h"

#include <functional>

#include "lib/core/base/bytes.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/kernels/hadamard.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/rope.h"

namespace kv {

namespace {

Bytes CastTensor(const Snapshot& snapshot, const KvTensor& tensor, bool is_value, DType dtype) {
  std::vector<float> values = GatherFloats(tensor, 0, tensor.tokens(), Order::kTokenHeadDim);
  UndoHadamard(snapshot, tensor, is_value, values);
  Bytes out(BytesOf(dtype, values.size()));
  FromFloats(dtype, values, out.data());
  return out;
}

void ExpectHadamardKnown(const Snapshot& snapshot, const KvTensor& tensor, bool is_value) {
  const HadamardState state = is_value ? snapshot.v_hadamard : snapshot.k_hadamard;
  if (!IsBlockQuantised(tensor.dtype) || state == HadamardState::kNo) return;
  if (state == HadamardState::kYes) return RequireHeads(snapshot, "undoing a Hadamard rotation");
  // Only some engines transform blocks; the files of others need not say whether they do.
  if (!FindTraits(snapshot.engine).may_rotate_blocks) return;
  throw Error(Finding::kGeometryMissing,
              "it is not known whether the quantised values are Hadamard-rotated")
      .File(snapshot.source.path)
      .Hint("give --kv-heads or --head-dim, and --rotated if the heads do not decide it");
}

// Tensors of a snapshot, each with true if it is V.
using Tensors = std::vector<std::pair<KvTensor*, bool>>;

Tensors SelectTensors(Snapshot& snapshot,
                      const std::function<bool(const KvTensor&, bool)>& wanted) {
  Tensors tensors;
  for (LayerKv& layer : snapshot.layers) {
    if (layer.has_k() && wanted(layer.k, false)) tensors.emplace_back(&layer.k, false);
    if (layer.v && wanted(*layer.v, true)) tensors.emplace_back(&*layer.v, true);
  }
  return tensors;
}

void Cast(const Tensors& tensors, DType dtype, Snapshot& snapshot, ThreadPool& pool) {
  const size_t first = snapshot.spools.size();
  snapshot.spools.resize(first + tensors.size());
  pool.ParallelFor(tensors.size(), [&](uint64_t i) {
    KvTensor& tensor = *tensors[i].first;
    auto& spool = snapshot.spools[first + i];
    spool = FileSource::FromBytes(CastTensor(snapshot, tensor, tensors[i].second, dtype),
                                  std::string(Name(dtype)));
    const bool heads_known = tensor.heads_known;
    tensor = ContiguousTensor(spool->bytes().data(), dtype, tensor.tokens(), tensor.heads,
                              tensor.head_dim, Order::kTokenHeadDim);
    tensor.heads_known = heads_known;
  });
}

}  // namespace

Snapshot CastSnapshot(Snapshot snapshot, DType dtype, ThreadPool& pool) {
  if (dtype != DType::kF32 && dtype != DType::kF16 && dtype != DType::kBF16) {
    throw Error(Finding::kUsage, "a cache cannot be converted to {}", Name(dtype))
        .Hint("f32, f16 or bf16");
  }
  const Tensors tensors =
      SelectTensors(snapshot, [&](const KvTensor& tensor, bool) { return tensor.dtype != dtype; });
  for (const auto& [tensor, is_value] : tensors) ExpectHadamardKnown(snapshot, *tensor, is_value);
  Cast(tensors, dtype, snapshot, pool);
  snapshot.k_hadamard = snapshot.v_hadamard = HadamardState::kNo;  // nothing is quantised any more
  return snapshot;
}

void RequireHadamardKnown(const Snapshot& snapshot) {
  for (const LayerKv& layer : snapshot.layers) {
    ExpectHadamardKnown(snapshot, layer.k, false);
    if (layer.v) ExpectHadamardKnown(snapshot, *layer.v, true);
  }
}

Snapshot WithoutHadamard(Snapshot snapshot, ThreadPool& pool) {
  RequireHadamardKnown(snapshot);
  const Tensors tensors = SelectTensors(snapshot, [&](const KvTensor& tensor, bool is_value) {
    return IsHadamardTransformed(snapshot, tensor, is_value);
  });
  Cast(tensors, DType::kF32, snapshot, pool);
  if (!tensors.empty()) snapshot.k_hadamard = snapshot.v_hadamard = HadamardState::kNo;
  return snapshot;
}

uint32_t HadamardSize(bool is_value, uint32_t head_dim) {
  if (head_dim == 0 || head_dim % 64 != 0) return 0;
  // the largest power of two that divides head_dim
  return is_value ? 64 : head_dim & (~head_dim + 1);
}

bool IsHadamardTransformed(const Snapshot& snapshot, const KvTensor& tensor, bool is_value) {
  const HadamardState state = is_value ? snapshot.v_hadamard : snapshot.k_hadamard;
  return state == HadamardState::kYes && IsBlockQuantised(tensor.dtype) &&
         HadamardSize(is_value, tensor.head_dim) != 0;
}

std::string HadamardRemark(const Snapshot& snapshot) {
  bool is_unrotated = false, is_as_stored = false;
  const auto look = [&](const KvTensor& tensor, bool is_value) {
    const HadamardState state = is_value ? snapshot.v_hadamard : snapshot.k_hadamard;
    if (!IsBlockQuantised(tensor.dtype) || !FindTraits(snapshot.engine).may_rotate_blocks) return;
    if (IsHadamardTransformed(snapshot, tensor, is_value) && tensor.heads_known) {
      is_unrotated = true;
    } else if (state != HadamardState::kNo) {
      is_as_stored = true;
    }
  };
  for (const LayerKv& layer : snapshot.layers) {
    if (layer.has_k()) look(layer.k, false);
    if (layer.v) look(*layer.v, true);
  }
  if (is_as_stored) {
    return "it is unknown whether the quantised values are Hadamard-rotated: figures describe the "
           "values as stored (--kv-heads or --head-dim, and --rotated yes or no, settle it)";
  }
  if (is_unrotated) {
    return "values are stored Hadamard-rotated: figures of values describe what the model "
           "computed, figures of bytes and codes what is stored";
  }
  return {};
}

void UndoHadamard(const Snapshot& snapshot, const KvTensor& tensor, bool is_value,
                  std::span<float> values) {
  if (!IsHadamardTransformed(snapshot, tensor, is_value)) return;
  const uint32_t size = HadamardSize(is_value, tensor.head_dim);
  KV_ASSERT(tensor.heads_known && values.size() % size == 0);
  Hadamard(values.data(), values.size(), size);
}

}  // namespace kv
