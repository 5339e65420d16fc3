// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/torch/torch_tensor.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/base/checked.h"

namespace kv {
namespace {

struct TypeName {
  std::string_view dtype, storage;
  DType type;
};
constexpr TypeName kTypes[] = {
    {"float32", "FloatStorage", DType::kF32},
    {"float16", "HalfStorage", DType::kF16},
    {"bfloat16", "BFloat16Storage", DType::kBF16},
    {"float64", "DoubleStorage", DType::kF64},
    {"int64", "LongStorage", DType::kI64},
    {"int32", "IntStorage", DType::kI32},
    {"int16", "ShortStorage", DType::kI16},
    {"int8", "CharStorage", DType::kI8},
    {"uint8", "ByteStorage", DType::kU8},
    {"bool", "BoolStorage", DType::kBool},
    {"uint16", "", DType::kU16},
    {"uint32", "", DType::kU32},
    {"uint64", "", DType::kU64},
    {"float8_e4m3fn", "", DType::kF8E4M3},
    {"float8_e5m2", "", DType::kF8E5M2},
};

constexpr std::string_view kUntyped[] = {"torch.storage.UntypedStorage", "torch.UntypedStorage",
                                         "torch.storage._UntypedStorage"};
constexpr size_t kMostWrappers = 16;  // parameters of parameters ...
constexpr size_t kMostRank = 64;      // as in torch

// Names that come after "torch." in what a pickle calls.
constexpr std::string_view kRebuild[] = {"_utils._rebuild_tensor", "_utils._rebuild_tensor_v2",
                                         "_utils._rebuild_tensor_v3"};
constexpr std::string_view kWrappers[] = {"_utils._rebuild_parameter",
                                          "_utils._rebuild_parameter_with_state"};
constexpr std::string_view kSubclass = "_tensor._rebuild_from_type_v2";

bool StripTorch(std::string_view& name) {
  if (!name.starts_with("torch.")) return false;
  name.remove_prefix(6);
  return true;
}

template <size_t N>
bool Among(std::string_view name, const std::string_view (&list)[N]) {
  for (const std::string_view candidate : list) {
    if (candidate == name) return true;
  }
  return false;
}

uint64_t SaturatingMul(uint64_t a, uint64_t b) {
  uint64_t product;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

[[noreturn]] void Fail(Finding finding, const std::string& message, const PickleValue& at) {
  Error error(finding, message);
  throw error.At(at.offset);
}

}  // namespace

std::optional<DType> TorchDType(std::string_view global) {
  if (!StripTorch(global)) return std::nullopt;
  for (const TypeName& known : kTypes) {
    if (known.dtype == global) return known.type;
  }
  return std::nullopt;
}

std::optional<DType> TorchStorageDType(std::string_view global) {
  if (!StripTorch(global)) return std::nullopt;
  for (const TypeName& known : kTypes) {
    if (!known.storage.empty() && known.storage == global) return known.type;
  }
  return std::nullopt;
}

uint64_t StorageId::bytes() const {
  return untyped || !dtype ? numel : CheckedMul(numel, Info(*dtype).block_bytes, "storage size");
}

StorageId ParseStorageId(const Pickle& pickle, PickleId storage) {
  const PickleValue& tuple = pickle[pickle[storage].items[0]];
  const auto kind = [&](size_t i) {
    return i < tuple.items.size() ? pickle[tuple.items[i]].kind : PickleKind::kNone;
  };
  StorageId id;
  if (kind(0) == PickleKind::kText && pickle[tuple.items[0]].text == "module") {
    id.is_module = true;
    return id;
  }
  const bool good = (tuple.items.size() == 5 || tuple.items.size() == 6) &&
                    kind(0) == PickleKind::kText && pickle[tuple.items[0]].text == "storage" &&
                    kind(1) == PickleKind::kGlobal && kind(2) == PickleKind::kText &&
                    kind(3) == PickleKind::kText && kind(4) == PickleKind::kInt;
  if (!good) {
    Fail(Finding::kBadPickle,
         "persistent id is not ('storage', type, key, location, element count)", pickle[storage]);
  }
  id.type = pickle[tuple.items[1]].text;
  id.key = pickle[tuple.items[2]].text;
  id.untyped = Among(id.type, kUntyped);
  id.dtype = id.untyped ? DType::kU8 : TorchStorageDType(id.type);
  if (pickle[tuple.items[3]].text == "meta") {
    Fail(Finding::kUnsupportedKind,
         fmt::format("storage '{}' is on the meta device and has no data", Escaped(id.key)),
         pickle[storage]);
  }
  const int64_t numel = pickle[tuple.items[4]].integer;
  if (numel < 0) {
    Fail(Finding::kBadField, fmt::format("storage '{}' has {} elements", Escaped(id.key), numel),
         pickle[storage]);
  }
  id.numel = static_cast<uint64_t>(numel);
  if (tuple.items.size() == 6 && kind(5) == PickleKind::kTuple) {
    const std::vector<PickleId>& view = pickle[tuple.items[5]].items;  // (key, offset, count)
    if (view.size() != 3 || pickle[view[1]].kind != PickleKind::kInt ||
        pickle[view[2]].kind != PickleKind::kInt) {
      Fail(Finding::kBadPickle, "view of a storage is not (key, offset, count)", pickle[storage]);
    }
    const int64_t first = pickle[view[1]].integer, count = pickle[view[2]].integer;
    if (first < 0 || count < 0 || first > numel || count > numel - first) {
      Fail(Finding::kBadOffsets,
           fmt::format("a view of {} elements from {} leaves its storage '{}' of {}", count, first,
                       Escaped(id.key), numel),
           pickle[storage]);
    }
    id.part = {static_cast<uint64_t>(first), static_cast<uint64_t>(count)};
  }
  return id;
}

std::optional<TensorBuilder::Call> TensorBuilder::Find(PickleId id) const {
  for (size_t depth = 0; depth < kMostWrappers; ++depth) {
    std::string_view function = pickle_.ClassOf(id);
    if (!StripTorch(function)) return std::nullopt;
    PickleId arguments = pickle_[id].items[1];
    if (function == kSubclass) {  // (function, type, arguments, state)
      const std::vector<PickleId>& items = pickle_[arguments].items;
      if (items.size() < 3 || pickle_[items[0]].kind != PickleKind::kGlobal) return std::nullopt;
      function = pickle_[items[0]].text;
      arguments = items[2];
      if (!StripTorch(function)) return std::nullopt;
    }
    if (Among(function, kRebuild)) return Call{function, arguments};
    if (!Among(function, kWrappers) || pickle_[arguments].items.empty()) return std::nullopt;
    id = pickle_[arguments].items[0];
  }
  return std::nullopt;
}

bool TensorBuilder::IsTensor(PickleId id) const { return Find(id).has_value(); }

uint64_t TensorBuilder::Natural(PickleId id, std::string_view what) const {
  const PickleValue& value = pickle_[id];
  if (value.kind == PickleKind::kBigInt) {
    Fail(Finding::kLimit, fmt::format("{} needs more than 64 bits", what), value);
  }
  if (value.kind != PickleKind::kInt) {
    Fail(Finding::kBadPickle, fmt::format("{} is {}, expected an int", what, pickle_.Describe(id)),
         value);
  }
  if (value.integer < 0) {
    Fail(Finding::kBadOffsets, fmt::format("{} is {}, expected at least 0", what, value.integer),
         value);
  }
  return static_cast<uint64_t>(value.integer);
}

std::vector<uint64_t> TensorBuilder::Extents(PickleId id, std::string_view what) const {
  if (pickle_.ClassOf(id) == "torch.Size" && !pickle_[pickle_[id].items[1]].items.empty()) {
    id = pickle_[pickle_[id].items[1]].items[0];
  }
  const PickleValue& value = pickle_[id];
  if (value.kind != PickleKind::kTuple && value.kind != PickleKind::kList) {
    Fail(Finding::kBadPickle, fmt::format("{} is {}, expected a tuple", what, pickle_.Describe(id)),
         value);
  }
  if (value.items.size() > kMostRank) {
    Fail(Finding::kLimit,
         fmt::format("{} has {} axes, at most {} exist", what, value.items.size(), kMostRank),
         value);
  }
  std::vector<uint64_t> extents;
  for (const PickleId item : value.items) extents.push_back(Natural(item, what));
  return extents;
}

std::optional<TensorView> TensorBuilder::Build(PickleId id) {
  const std::optional<Call> call = Find(id);
  KV_ASSERT(call.has_value());
  const PickleValue& node = pickle_[id];
  const std::vector<PickleId>& arguments = pickle_[call->arguments].items;
  const bool has_dtype = call->function.ends_with("_v3");
  if (arguments.size() < (has_dtype ? 7u : 4u)) {
    Fail(Finding::kBadPickle, fmt::format("{} has {} arguments", call->function, arguments.size()),
         node);
  }
  const std::optional<EmbeddedStorage> embedded = FindEmbedded(arguments[0]);
  if (!embedded && pickle_[arguments[0]].kind != PickleKind::kStorage) {
    Fail(Finding::kBadPickle,
         fmt::format("a tensor is made from {}", pickle_.Describe(arguments[0])), node);
  }
  const StorageId storage = embedded ? StorageId() : ParseStorageId(pickle_, arguments[0]);
  std::optional<DType> dtype = embedded ? embedded->dtype : storage.dtype;
  if (has_dtype) dtype = TorchDType(pickle_[arguments[6]].text);
  if (!dtype || storage.is_module) return std::nullopt;

  const uint64_t offset = Natural(arguments[1], "storage offset");
  std::vector<uint64_t> shape = Extents(arguments[2], "size");
  std::vector<uint64_t> strides = Extents(arguments[3], "stride");
  if (shape.size() != strides.size()) {
    Fail(Finding::kBadField,
         fmt::format("a tensor has {} sizes and {} strides", shape.size(), strides.size()), node);
  }
  TensorView view{*dtype, std::move(shape), std::move(strides), nullptr};
  const auto find = [&] { return embedded ? embedded->data : storages_.Find(storage); };
  Locate(view, offset, node, find, embedded ? "in the pickle" : storage.key);
  return view;
}

// pickle.dump writes a storage as a call of _load_from_bytes with what torch.save makes of it.
std::optional<EmbeddedStorage> TensorBuilder::FindEmbedded(PickleId storage) {
  if (pickle_.ClassOf(storage) != "torch.storage._load_from_bytes") return std::nullopt;
  const std::vector<PickleId>& arguments = pickle_[pickle_[storage].items[1]].items;
  if (arguments.size() != 1 || pickle_[arguments[0]].kind != PickleKind::kBytes) {
    Fail(Finding::kBadPickle, "_load_from_bytes is not given bytes", pickle_[storage]);
  }
  const auto known = embedded_.find(arguments[0]);
  if (known != embedded_.end()) return known->second;
  const EmbeddedStorage found = storages_.Embedded(AsBytes(pickle_[arguments[0]].text));
  embedded_.emplace(arguments[0], found);
  return found;
}

// Sets data and byte strides after checking that the last value lies in the storage.
void TensorBuilder::Locate(TensorView& view, uint64_t offset, const PickleValue& node,
                           const std::function<ByteSpan()>& find, std::string_view key) const {
  const uint64_t item = Info(view.dtype).block_bytes;
  const bool empty = std::find(view.shape.begin(), view.shape.end(), 0) != view.shape.end();
  // An expanded view can claim more values than exist; nobody may have to visit them all.
  uint64_t bytes = item, last = offset;
  for (size_t axis = 0; axis < view.rank() && !empty; ++axis) {
    bytes = SaturatingMul(bytes, view.shape[axis]);
    last = SaturatingAdd(last, SaturatingMul(view.shape[axis] - 1, view.strides[axis]));
  }
  if (!empty && bytes > max_bytes_) {
    Fail(Finding::kLimit,
         fmt::format("a tensor of shape [{}] has more than {} bytes", fmt::join(view.shape, ", "),
                     max_bytes_),
         node);
  }
  const ByteSpan data = find();
  const uint64_t numel = data.size() / item;
  if (!empty && last >= numel) {
    Fail(
        Finding::kBadOffsets,
        fmt::format("a tensor of shape [{}], strides [{}], offset {} leaves its storage '{}' of {} "
                    "elements",
                    fmt::join(view.shape, ", "), fmt::join(view.strides, ", "), offset,
                    Escaped(key), numel),
        node);
  }
  view.data = data.data() + (empty ? 0 : offset * item);
  for (size_t axis = 0; axis < view.rank(); ++axis) {
    // Strides that are never followed may be anything.
    const bool followed = !empty && view.shape[axis] > 1;
    view.strides[axis] = followed ? view.strides[axis] * item : item;
  }
}

}  // namespace kv
