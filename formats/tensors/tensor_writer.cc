// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/tensor_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/tensors/cells.h"
#include "lib/core/base/checked.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/residency.h"

namespace kv {
namespace {

// Large enough that gathering a transposed tensor touches whole pages of each of its rows.
constexpr uint64_t kGatherBytes = 8 << 20;

void WriteRows(const Snapshot& snapshot, const KvTensor& tensor, Sink& sink) {
  const uint64_t tokens = tensor.tokens();
  const uint64_t step = std::max<uint64_t>(1, kGatherBytes / tensor.row_bytes());
  for (uint64_t begin = 0; begin < tokens; begin += step) {
    const uint64_t count = std::min(step, tokens - begin);
    sink.Write(Gather(tensor, begin, count, Order::kTokenHeadDim));
    DropTokens(snapshot, tensor, begin, count);
  }
  DropTensor(snapshot, tensor);
}

void AddTensor(const Snapshot& snapshot, const KvTensor& tensor, std::string name,
               TensorExport& out) {
  const bool blocks = IsBlockQuantised(tensor.dtype);
  const uint64_t last =
      blocks ? tensor.units_per_head() * tensor.unit_bytes() : uint64_t{tensor.head_dim};
  // What npy cannot say (bf16, f8) and no array can (blocks).
  if (blocks || tensor.dtype == DType::kBF16 || tensor.dtype == DType::kF8E4M3 ||
      tensor.dtype == DType::kF8E5M2) {
    out.metadata[std::string(kDtypePrefix) + name] = Name(tensor.dtype);
  }
  out.tensors.push_back({std::move(name),
                         blocks ? DType::kU8 : tensor.dtype,
                         {tensor.tokens(), tensor.heads, last},
                         [&snapshot, &tensor](Sink& sink) { WriteRows(snapshot, tensor, sink); }});
}

void AddWords(const Snapshot& snapshot, TensorMetadata& metadata) {
  const auto put = [&](std::string_view key, std::string value) {
    if (!value.empty()) metadata[std::string(key)] = std::move(value);
  };
  const auto hadamard = [](HadamardState rotation) {
    return rotation == HadamardState::kUnknown ? ""
           : rotation == HadamardState::kYes   ? "yes"
                                               : "no";
  };
  put(kLayoutKey, std::string(Name(Order::kTokenHeadDim)));
  put(kEngineKey, snapshot.engine);
  put(kModelKey, snapshot.model);
  put(kSourceKey, snapshot.format_version.empty()
                      ? snapshot.format
                      : fmt::format("{} ({})", snapshot.format, snapshot.format_version));
  put(kKeyRotationKey, snapshot.key_rotation == KeyRotation::kRotated     ? "rotated"
                       : snapshot.key_rotation == KeyRotation::kUnrotated ? "unrotated"
                                                                          : "");
  put(kKHadamardKey, hadamard(snapshot.k_hadamard));
  put(kVHadamardKey, hadamard(snapshot.v_hadamard));
  std::string groups;
  bool any = false;
  for (const LayerKv& layer : snapshot.layers) {
    groups += (&layer == &snapshot.layers.front() ? "" : ",") + layer.group;
    any |= !layer.group.empty();
  }
  if (any) put(kGroupsKey, groups);
  for (const auto& [key, value] : snapshot.storage)
    metadata[std::string(kStoragePrefix) + key] = value;
}

}  // namespace

uint64_t TensorToWrite::bytes() const {
  uint64_t count = 1;
  for (const uint64_t extent : shape) count = CheckedMul(count, extent, "tensor shape");
  return BytesOf(dtype, count);
}

TensorExport ExportOf(const Snapshot& snapshot) {
  RequireHeads(snapshot, "writing [token, head, dim] arrays");
  TensorExport out;
  std::set<uint32_t> indices;
  for (const LayerKv& layer : snapshot.layers) {
    if (!indices.insert(layer.index).second) {
      throw Error(Finding::kUnsupportedLayout,
                  fmt::format("two layers have the index {}", layer.index));
    }
    if (layer.has_k()) AddTensor(snapshot, layer.k, fmt::format("k_{}", layer.index), out);
    if (layer.v) AddTensor(snapshot, *layer.v, fmt::format("v_{}", layer.index), out);
  }
  ExportCells(snapshot, out);
  AddWords(snapshot, out.metadata);
  return out;
}

}  // namespace kv
