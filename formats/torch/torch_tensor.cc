// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/torch/torch_tensor.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/torch/torch_names.h"
#include "lib/core/base/checked.h"

namespace kv {
namespace {

constexpr size_t kMostWrappers = 16;  // parameters of parameters ...

// Names that come after "torch." in what a pickle calls.
constexpr std::string_view kRebuild[] = {"_utils._rebuild_tensor", "_utils._rebuild_tensor_v2",
                                         "_utils._rebuild_tensor_v3"};
constexpr std::string_view kWrappers[] = {"_utils._rebuild_parameter",
                                          "_utils._rebuild_parameter_with_state"};
constexpr std::string_view kSubclass = "_tensor._rebuild_from_type_v2";

uint64_t SaturatingMul(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

bool IsEmpty(const TensorView& view) {
  return std::find(view.shape.begin(), view.shape.end(), 0) != view.shape.end();
}

// Sets data and byte strides of a view whose strides count elements of `storage`.
void Locate(TensorView& view, uint64_t offset, ByteSpan storage) {
  const uint64_t item = Info(view.dtype).block_bytes;
  const bool empty = IsEmpty(view);
  view.data = storage.data() + (empty ? 0 : offset * item);
  for (size_t axis = 0; axis < view.rank(); ++axis) {
    // Strides that are never followed may be anything.
    const bool followed = !empty && view.shape[axis] > 1;
    view.strides[axis] = followed ? view.strides[axis] * item : item;
  }
}

}  // namespace

std::optional<TensorBuilder::Call> TensorBuilder::Find(PickleId id) const {
  const PickleValue& first = pickle_[id];
  if (rebuild_ != kPickleNone && first.kind() == PickleKind::kObject &&
      first.items()[0] == rebuild_)
    return Call{rebuild_name_, first.items()[1]};
  for (size_t depth = 0; depth < kMostWrappers; ++depth) {
    std::string_view function = pickle_.ClassOf(id);
    if (!StripTorch(function)) return std::nullopt;
    PickleId arguments = pickle_[id].items()[1];
    if (function == kSubclass) {  // (function, type, arguments, state)
      const std::span<const PickleId> items = pickle_[arguments].items();
      if (items.size() < 3 || pickle_[items[0]].kind() != PickleKind::kGlobal) return std::nullopt;
      function = pickle_[items[0]].text();
      arguments = items[2];
      if (!StripTorch(function)) return std::nullopt;
    }
    if (Among(function, kRebuild)) {
      if (depth == 0 && arguments == first.items()[1]) {
        rebuild_ = first.items()[0];
        rebuild_name_ = function;
      }
      return Call{function, arguments};
    }
    if (!Among(function, kWrappers) || pickle_[arguments].items().empty()) return std::nullopt;
    id = pickle_[arguments].items()[0];
  }
  return std::nullopt;
}

bool TensorBuilder::IsTensor(PickleId id) const {
  return Find(id).has_value() || numpy_.IsArray(id);
}

std::optional<TensorView> TensorBuilder::Build(PickleId id) {
  const std::optional<Call> call = Find(id);
  if (!call) return numpy_.Build(id);
  const PickleValue& node = pickle_[id];
  const std::span<const PickleId> arguments = pickle_[call->arguments].items();
  const bool has_dtype = call->function.ends_with("_v3");
  if (arguments.size() < (has_dtype ? 7u : 4u)) {
    FailAt(Finding::kBadPickle,
           fmt::format("{} has {} arguments", call->function, arguments.size()), node);
  }
  const std::optional<EmbeddedStorage> embedded = FindEmbedded(arguments[0]);
  if (!embedded && pickle_[arguments[0]].kind() != PickleKind::kStorage) {
    FailAt(Finding::kBadPickle,
           fmt::format("a tensor is made from {}", pickle_.Describe(arguments[0])), node);
  }
  const StorageId storage = embedded ? StorageId() : ParseStorageId(pickle_, arguments[0]);
  std::optional<DType> dtype = embedded ? embedded->dtype : storage.dtype;
  if (has_dtype) dtype = TorchDType(pickle_, arguments[6]);
  if (!dtype || storage.is_module) return std::nullopt;

  const uint64_t offset = PickleNatural(pickle_, arguments[1], "storage offset");
  std::vector<uint64_t> shape = PickleExtents(pickle_, arguments[2], "size");
  std::vector<uint64_t> strides = PickleExtents(pickle_, arguments[3], "stride");
  if (shape.size() != strides.size()) {
    FailAt(Finding::kBadField,
           fmt::format("a tensor has {} sizes and {} strides", shape.size(), strides.size()), node);
  }
  TensorView view{*dtype, std::move(shape), std::move(strides), nullptr};
  const uint64_t last = LastElement(view, offset, node);
  const ByteSpan data = embedded ? embedded->data : storages_.Find(storage);
  const uint64_t item = Info(view.dtype).block_bytes, numel = data.size() / item;
  if (last >= numel && !IsEmpty(view)) {
    FailAt(
        Finding::kBadOffsets,
        fmt::format("a tensor of shape [{}], strides [{}], offset {} leaves its storage '{}' of {} "
                    "elements",
                    fmt::join(view.shape, ", "), fmt::join(view.strides, ", "), offset,
                    embedded ? "in the pickle" : Escaped(storage.key), numel),
        node);
  }
  Locate(view, offset, data);
  return view;
}

// pickle.dump writes a storage as a call of _load_from_bytes with what torch.save makes of it.
std::optional<EmbeddedStorage> TensorBuilder::FindEmbedded(PickleId storage) {
  if (pickle_.ClassOf(storage) != "torch.storage._load_from_bytes") return std::nullopt;
  const std::span<const PickleId> arguments = pickle_[pickle_[storage].items()[1]].items();
  if (arguments.size() != 1 || pickle_[arguments[0]].kind() != PickleKind::kBytes) {
    FailAt(Finding::kBadPickle, "_load_from_bytes is not given bytes", pickle_[storage]);
  }
  const auto known = embedded_.find(arguments[0]);
  if (known != embedded_.end()) return known->second;
  const EmbeddedStorage found = storages_.Embedded(AsBytes(pickle_[arguments[0]].text()));
  embedded_.emplace(arguments[0], found);
  return found;
}

uint64_t TensorBuilder::LastElement(const TensorView& view, uint64_t offset,
                                    const PickleValue& node) const {
  if (IsEmpty(view)) return offset;
  // An expanded view can claim more values than exist; nobody may have to visit them all.
  uint64_t bytes = Info(view.dtype).block_bytes, last = offset;
  for (size_t axis = 0; axis < view.rank(); ++axis) {
    bytes = SaturatingMul(bytes, view.shape[axis]);
    last = SaturatingAdd(last, SaturatingMul(view.shape[axis] - 1, view.strides[axis]));
  }
  if (bytes > max_bytes_) {
    FailAtLimit(fmt::format("a tensor of shape [{}] has more than {} bytes",
                            fmt::join(view.shape, ", "), max_bytes_),
                node);
  }
  return last;
}

}  // namespace kv
