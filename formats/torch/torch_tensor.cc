// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Builds views from the nodes of a pickle: torch's rebuild functions, storages, and numpy arrays.
#include "formats/torch/torch_tensor.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/format.h"
#include "lib/core/base/bytes.h"

namespace kv {
namespace {

constexpr size_t kMostWrappers = 16;  // nested parameters

// Names of torch functions, after "torch.", that a pickle calls to rebuild tensors.
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
    // Strides of axes that are not walked may have any value.
    const bool followed = !empty && view.shape[axis] > 1;
    view.strides[axis] = followed ? view.strides[axis] * item : item;
  }
}

// Persistent ids and types of storages.

constexpr TorchTypeName kTypes[] = {
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

// Types of torch that have no DType in kvtool. A name in neither list is not one of torch's.
constexpr std::string_view kUnread =
    "complex32 complex64 complex128 quint8 qint8 qint32 quint4x2 quint2x4 bits1x8 bits2x4 bits4x2 "
    "bits8 bits16 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 int1 int2 int3 "
    "int4 int5 int6 int7 uint1 uint2 uint3 uint4 uint5 uint6 uint7 ComplexFloatStorage "
    "ComplexDoubleStorage ComplexHalfStorage QInt8Storage QUInt8Storage QInt32Storage "
    "QUInt4x2Storage QUInt2x4Storage";
constexpr size_t kMostRank = 64;  // as in torch

// Throws for a name that is not a type in any version of torch.
void RequireKnown(std::string_view global, const PickleValue& at) {
  std::string_view name = global;
  if (StripTorch(name) && HasWord(kUnread, name)) return;
  FailAt(at, Finding::kUnknownDtype, "torch has no element type {}", Escaped(global, 80));
}

// numpy arrays in pickles: shape, dtype and values as arguments of a call or as a state.

// numpy 2 moved its core, so both names are accepted.
bool IsCore(std::string_view global, std::string_view function) {
  for (const std::string_view core : {"numpy.core.", "numpy._core."}) {
    if (global.starts_with(core) && global.substr(core.size()) == function) return true;
  }
  return false;
}

std::optional<DType> MlDType(std::string_view global) {
  if (global == "ml_dtypes.bfloat16") return DType::kBF16;
  if (global == "ml_dtypes.float8_e4m3fn") return DType::kF8E4M3;
  if (global == "ml_dtypes.float8_e5m2") return DType::kF8E5M2;
  return std::nullopt;
}

}  // namespace

std::optional<TensorBuilder::Call> TensorBuilder::Find(PickleId id) const {
  const PickleValue& first = pickle_[id];
  if (rebuild_ != kPickleNone && first.kind() == PickleKind::kObject &&
      first.items()[0] == rebuild_)
    return Call{rebuild_name_, first.items()[1]};
  for (size_t depth = 0; depth < kMostWrappers; ++depth) {
    std::string_view function = pickle_.FindClass(id);
    if (!StripTorch(function)) return std::nullopt;
    PickleId arguments = pickle_[id].items()[1];
    if (function == kSubclass) {  // (function, type, arguments, state)
      const std::span<const PickleId> items = pickle_[arguments].items();
      if (items.size() < 3 || pickle_[items[0]].kind() != PickleKind::kGlobal) return std::nullopt;
      function = pickle_[items[0]].text();
      arguments = items[2];
      if (!StripTorch(function)) return std::nullopt;
    }
    if (Contains(kRebuild, function)) {
      if (depth == 0 && arguments == first.items()[1]) {
        rebuild_ = first.items()[0];
        rebuild_name_ = function;
      }
      return Call{function, arguments};
    }
    if (!Contains(kWrappers, function) || pickle_[arguments].items().empty()) return std::nullopt;
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
    FailAt(node, Finding::kBadPickle, "{} has {} arguments", call->function, arguments.size());
  }
  const std::optional<EmbeddedStorage> embedded = FindEmbedded(arguments[0]);
  if (!embedded && pickle_[arguments[0]].kind() != PickleKind::kStorage) {
    FailAt(node, Finding::kBadPickle, "a tensor is made from {}", pickle_.Describe(arguments[0]));
  }
  const StorageId storage = embedded ? StorageId() : ParseStorageId(pickle_, arguments[0]);
  std::optional<DType> dtype = embedded ? embedded->dtype : storage.dtype;
  if (has_dtype) dtype = TorchDType(pickle_, arguments[6]);
  if (!dtype || storage.is_module) return std::nullopt;

  const uint64_t offset = PickleNatural(pickle_, arguments[1], "storage offset");
  std::vector<uint64_t> shape = PickleExtents(pickle_, arguments[2], "size");
  std::vector<uint64_t> strides = PickleExtents(pickle_, arguments[3], "stride");
  if (shape.size() != strides.size()) {
    FailAt(node, Finding::kBadField, "a tensor has {} sizes and {} strides", shape.size(),
           strides.size());
  }
  TensorView view{*dtype, std::move(shape), std::move(strides), nullptr};
  const uint64_t last = LastElement(view, offset, node);
  const ByteSpan data = embedded ? embedded->data : storages_.Find(storage);
  const uint64_t item = Info(view.dtype).block_bytes, numel = data.size() / item;
  if (last >= numel && !IsEmpty(view)) {
    FailAt(node, Finding::kBadOffsets,
           "a tensor of shape [{}], strides [{}], offset {} exceeds storage '{}' of {} elements",
           fmt::join(view.shape, ", "), fmt::join(view.strides, ", "), offset,
           embedded ? "in the pickle" : Escaped(storage.key), numel);
  }
  Locate(view, offset, data);
  return view;
}

// pickle.dump writes a storage as a call of _load_from_bytes with the output of torch.save.
std::optional<EmbeddedStorage> TensorBuilder::FindEmbedded(PickleId storage) {
  if (pickle_.FindClass(storage) != "torch.storage._load_from_bytes") return std::nullopt;
  const std::span<const PickleId> arguments = pickle_[pickle_[storage].items()[1]].items();
  if (arguments.size() != 1 || pickle_[arguments[0]].kind() != PickleKind::kBytes) {
    FailAt(pickle_[storage], Finding::kBadPickle, "_load_from_bytes is called without bytes");
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
  // An expanded view can claim more values than exist, so its size is limited.
  uint64_t bytes = Info(view.dtype).block_bytes, last = offset;
  for (size_t axis = 0; axis < view.rank(); ++axis) {
    bytes = SaturatingMul(bytes, view.shape[axis]);
    last = SaturatingAdd(last, SaturatingMul(view.shape[axis] - 1, view.strides[axis]));
  }
  if (bytes > max_bytes_) {
    FailAtLimit(node, "a tensor of shape [{}] has more than {} bytes", fmt::join(view.shape, ", "),
                max_bytes_);
  }
  return last;
}

std::optional<DType> TorchDType(std::string_view global) {
  if (!StripTorch(global)) return std::nullopt;
  for (const TorchTypeName& known : kTypes) {
    if (known.dtype == global) return known.type;
  }
  return std::nullopt;
}

std::optional<DType> TorchDType(const Pickle& pickle, PickleId type) {
  const PickleValue& name = pickle[type];
  if (name.kind() != PickleKind::kGlobal) {
    FailAt(name, Finding::kBadPickle, "an element type is {}, expected a name",
           pickle.Describe(type));
  }
  const std::optional<DType> dtype = TorchDType(name.text());
  if (!dtype) RequireKnown(name.text(), name);
  return dtype;
}

std::optional<DType> TorchStorageDType(std::string_view global) {
  if (!StripTorch(global)) return std::nullopt;
  for (const TorchTypeName& known : kTypes) {
    if (!known.storage.empty() && known.storage == global) return known.type;
  }
  return std::nullopt;
}

TorchTypeName ToTorchType(DType dtype) {
  const bool is_float8 = dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
  for (const TorchTypeName& known : kTypes) {
    if (known.type == dtype && (is_float8 || !known.storage.empty())) return known;
  }
  throw Error(Finding::kUnsupportedDtype, "torch has no storage for {} values", Name(dtype));
}

uint64_t StorageId::bytes() const {
  return untyped || !dtype ? numel : CheckedMul(numel, Info(*dtype).block_bytes, "storage size");
}

namespace {

bool IsTextEqualTo(const PickleValue& value, std::string_view text) {
  return value.kind() == PickleKind::kText && value.text() == text;
}

// Reads the part of a storage that a view (key, offset, count) covers.
std::pair<uint64_t, uint64_t> ReadView(const Pickle& pickle, PickleId storage,
                                       std::span<const PickleId> view, const StorageId& id) {
  if (view.size() != 3 || pickle[view[1]].kind() != PickleKind::kInt ||
      pickle[view[2]].kind() != PickleKind::kInt) {
    FailAt(pickle[storage], Finding::kBadPickle, "view of a storage is not (key, offset, count)");
  }
  const int64_t first = pickle[view[1]].integer(), count = pickle[view[2]].integer();
  const auto numel = static_cast<int64_t>(id.numel);
  if (first < 0 || count < 0 || first > numel || count > numel - first) {
    FailAt(pickle[storage], Finding::kBadOffsets,
           "a view of {} elements from {} exceeds storage '{}' of {}", count, first,
           Escaped(id.key), numel);
  }
  return {static_cast<uint64_t>(first), static_cast<uint64_t>(count)};
}

}  // namespace

StorageId ParseStorageId(const Pickle& pickle, PickleId storage) {
  constexpr PickleKind kKinds[] = {PickleKind::kText, PickleKind::kGlobal, PickleKind::kText,
                                   PickleKind::kText, PickleKind::kInt};
  const std::span<const PickleId> items = pickle[pickle[storage].items()[0]].items();
  StorageId id;
  if (!items.empty() && IsTextEqualTo(pickle[items[0]], "module")) {
    id.is_module = true;
    return id;
  }
  const bool good = (items.size() == 5 || items.size() == 6) &&
                    std::ranges::equal(items.first(5), kKinds, {},
                                       [&](PickleId item) { return pickle[item].kind(); }) &&
                    pickle[items[0]].text() == "storage";
  if (!good) {
    FailAt(pickle[storage], Finding::kBadPickle,
           "persistent id is not ('storage', type, key, location, element count)");
  }
  id.type = pickle[items[1]].text();
  id.key = pickle[items[2]].text();
  id.untyped = Contains(kUntyped, id.type);
  id.dtype = id.untyped ? DType::kU8 : TorchStorageDType(id.type);
  if (!id.dtype) RequireKnown(id.type, pickle[storage]);
  if (pickle[items[3]].text() == "meta") {
    FailAt(pickle[storage], Finding::kUnsupportedKind,
           "storage '{}' is on the meta device and has no data", Escaped(id.key));
  }
  const int64_t numel = pickle[items[4]].integer();
  if (numel < 0) {
    FailAt(pickle[storage], Finding::kBadField, "storage '{}' has {} elements", Escaped(id.key),
           numel);
  }
  id.numel = static_cast<uint64_t>(numel);
  if (items.size() == 6 && pickle[items[5]].kind() == PickleKind::kTuple)
    id.part = ReadView(pickle, storage, pickle[items[5]].items(), id);
  return id;
}

uint64_t PickleNatural(const Pickle& pickle, PickleId id, std::string_view what) {
  const PickleValue& value = pickle[id];
  if (value.kind() == PickleKind::kBigInt) {
    FailAt(value, Finding::kLimit, "{} needs more than 64 bits", what);
  }
  if (value.kind() != PickleKind::kInt) {
    FailAt(value, Finding::kBadPickle, "{} is {}, expected an int", what, pickle.Describe(id));
  }
  if (value.integer() < 0) {
    FailAt(value, Finding::kBadOffsets, "{} is {}, expected at least 0", what, value.integer());
  }
  return static_cast<uint64_t>(value.integer());
}

std::vector<uint64_t> PickleExtents(const Pickle& pickle, PickleId id, std::string_view what) {
  if (pickle.FindClass(id) == "torch.Size" && !pickle[pickle[id].items()[1]].items().empty()) {
    id = pickle[pickle[id].items()[1]].items()[0];
  }
  const PickleValue& value = pickle[id];
  if (value.kind() != PickleKind::kTuple && value.kind() != PickleKind::kList) {
    FailAt(value, Finding::kBadPickle, "{} is {}, expected a tuple", what, pickle.Describe(id));
  }
  if (value.items().size() > kMostRank) {
    FailAt(value, Finding::kLimit, "{} has {} axes; torch allows at most {}", what,
           value.items().size(), kMostRank);
  }
  std::vector<uint64_t> extents;
  extents.reserve(value.items().size());
  for (const PickleId item : value.items()) extents.push_back(PickleNatural(pickle, item, what));
  return extents;
}

std::optional<NumpyArrays::Parts> NumpyArrays::Find(PickleId id) const {
  const std::string_view function = pickle_.FindClass(id);
  const PickleValue& call = pickle_[id];
  Parts parts{};
  if (IsCore(function, "multiarray._reconstruct")) {
    // BUILD has ([version,] shape, dtype, Fortran order, values).
    const std::span<const PickleId> state = pickle_[call.items().back()].items();
    if (call.items().size() < 4 || pickle_[call.items().back()].kind() != PickleKind::kTuple ||
        state.size() < 4 || state.size() > 5) {
      return std::nullopt;
    }
    const size_t first = state.size() - 4;
    parts = {state[first], state[first + 1], state[first + 3],
             pickle_[state[first + 2]].integer() != 0};
  } else if (IsCore(function, "numeric._frombuffer")) {  // protocol 5
    const std::span<const PickleId> arguments = pickle_[call.items()[1]].items();
    if (arguments.size() != 4) return std::nullopt;
    parts = {arguments[2], arguments[1], arguments[0], pickle_[arguments[3]].text() == "F"};
  } else {
    return std::nullopt;
  }
  const PickleKind kind = pickle_[parts.values].kind();
  // A str of Python 2 becomes a text if its bytes are one. A list holds Python objects and is
  // skipped.
  if (kind != PickleKind::kBytes && kind != PickleKind::kText) return std::nullopt;
  if (pickle_.FindClass(parts.dtype) != "numpy.dtype") return std::nullopt;
  return parts;
}

std::optional<NpyType> NumpyArrays::FindType(PickleId dtype) const {
  const PickleValue& call = pickle_[dtype];
  const std::span<const PickleId> arguments = pickle_[call.items()[1]].items();
  if (arguments.empty()) FailAt(call, Finding::kBadPickle, "numpy.dtype has no argument");
  // BUILD has (version, byte order, subtype, field names, ...).
  std::string order = "=";
  if (call.items().size() > 3) {
    const std::span<const PickleId> state = pickle_[call.items().back()].items();
    if (state.size() < 5 || pickle_[state[1]].text().size() != 1) {
      FailAt(call, Finding::kBadPickle, "the state of a numpy.dtype names no byte order");
    }
    order = pickle_[state[1]].text();
    if (state[2] != kPickleNone || state[3] != kPickleNone) return std::nullopt;  // structured
  }
  const PickleValue& word = pickle_[arguments[0]];
  if (word.kind() == PickleKind::kGlobal) {
    const std::optional<DType> known = MlDType(word.text());
    if (!known) return std::nullopt;
    return NpyType{*known, order == ">" && Info(*known).block_bytes > 1, false};
  }
  try {
    const NpyType type = ParseNpyType(order + std::string(word.text()));
    return type.raw ? std::nullopt : std::optional(type);  // the meaning of its bits is unknown
  } catch (Error& error) {
    if (error.finding() == Finding::kUnsupportedDtype) return std::nullopt;
    throw error.At(word.offset());
  }
}

ByteSpan NumpyArrays::Kept(PickleId values, const NpyType& type) {
  const uint32_t width = type.swapped ? Info(type.dtype).block_bytes : 1;
  const auto [known, is_new] = kept_.try_emplace({values, width});
  if (!is_new) return known->second;
  const ByteSpan bytes = AsBytes(pickle_[values].text());
  if (width > 1) return known->second = SwapBytes(bytes, width, "numpy array", file_);
  bool lives = bytes.empty() || file_.source.FindFile(bytes.data()) != nullptr;
  for (const auto& spool : file_.spools) lives = lives || spool->Contains(bytes.data());
  if (lives) return known->second = bytes;
  // The bytes were decoded in memory, as protocol 2 writes bytes as text, and would be freed with
  // the pickle.
  file_.spools.push_back(FileSource::FromBytes({bytes.begin(), bytes.end()}, "numpy array"));
  return known->second = file_.spools.back()->bytes();
}

std::optional<TensorView> NumpyArrays::Build(PickleId id) {
  const std::optional<Parts> parts = Find(id);
  KV_ASSERT(parts.has_value());
  const std::optional<NpyType> type = FindType(parts->dtype);
  if (!type) return std::nullopt;
  TensorView view{type->dtype, PickleExtents(pickle_, parts->shape, "shape"), {}, nullptr};
  const uint64_t size = pickle_[parts->values].text().size();
  uint64_t bytes = Info(type->dtype).block_bytes;
  for (const uint64_t extent : view.shape) bytes = CheckedMul(bytes, extent, "shape");
  if (bytes != size) {
    FailAt(pickle_[id], Finding::kSizeMismatch, "an array of shape [{}] has {} bytes, {} expected",
           fmt::join(view.shape, ", "), size, bytes);
  }
  if (bytes > max_bytes_) {
    FailAtLimit(pickle_[id], "an array has {} bytes, at most {} are allowed", bytes, max_bytes_);
  }
  uint64_t stride = Info(type->dtype).block_bytes;
  view.strides.assign(view.rank(), stride);
  for (size_t i = 0; i < view.rank() && bytes > 0; ++i) {
    const size_t axis = parts->fortran_order ? i : view.rank() - 1 - i;
    view.strides[axis] = stride;
    stride *= view.shape[axis];
  }
  view.data = Kept(parts->values, *type).data();
  return view;
}

ByteSpan SwapBytes(ByteSpan bytes, uint64_t item, const std::string& name, TensorFile& file) {
  Bytes out(bytes.begin(), bytes.end());
  for (uint64_t at = 0; at + item <= out.size(); at += item) {
    std::reverse(out.begin() + static_cast<std::ptrdiff_t>(at),
                 out.begin() + static_cast<std::ptrdiff_t>(at + item));
  }
  file.spools.push_back(FileSource::FromBytes(std::move(out), name));
  return file.spools.back()->bytes();
}

}  // namespace kv
