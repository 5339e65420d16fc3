// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
//
// What persistent ids and types say about storages.
#include <fmt/format.h>

#include "formats/torch/torch_names.h"
#include "formats/torch/torch_tensor.h"
#include "lib/core/base/checked.h"

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

// Types of torch that have no DType here. A name that is in neither list is none of torch's.
constexpr std::string_view kUnread[] = {"complex32",
                                        "complex64",
                                        "complex128",
                                        "quint8",
                                        "qint8",
                                        "qint32",
                                        "quint4x2",
                                        "quint2x4",
                                        "bits1x8",
                                        "bits2x4",
                                        "bits4x2",
                                        "bits8",
                                        "bits16",
                                        "float8_e4m3fnuz",
                                        "float8_e5m2fnuz",
                                        "float8_e8m0fnu",
                                        "float4_e2m1fn_x2",
                                        "int1",
                                        "int2",
                                        "int3",
                                        "int4",
                                        "int5",
                                        "int6",
                                        "int7",
                                        "uint1",
                                        "uint2",
                                        "uint3",
                                        "uint4",
                                        "uint5",
                                        "uint6",
                                        "uint7",
                                        "ComplexFloatStorage",
                                        "ComplexDoubleStorage",
                                        "ComplexHalfStorage",
                                        "QInt8Storage",
                                        "QUInt8Storage",
                                        "QInt32Storage",
                                        "QUInt4x2Storage",
                                        "QUInt2x4Storage"};
constexpr size_t kMostRank = 64;  // as in torch

// Throws for a name that no torch ever gave a type.
void RequireKnown(std::string_view global, const PickleValue& at) {
  std::string_view name = global;
  if (StripTorch(name) && Among(name, kUnread)) return;
  FailAt(Finding::kUnknownDtype, fmt::format("torch has no element type {}", Escaped(global, 80)),
         at);
}

}  // namespace

void FailAt(Finding finding, const std::string& message, const PickleValue& at) {
  Error error(finding, message);
  throw error.At(at.offset());
}

void FailAtLimit(const std::string& message, const PickleValue& at) {
  Error error(Finding::kLimit, message);
  throw error.At(at.offset()).Hint("raise --max-bytes if the file is trusted");
}

std::optional<DType> TorchDType(std::string_view global) {
  if (!StripTorch(global)) return std::nullopt;
  for (const TypeName& known : kTypes) {
    if (known.dtype == global) return known.type;
  }
  return std::nullopt;
}

std::optional<DType> TorchDType(const Pickle& pickle, PickleId type) {
  const PickleValue& name = pickle[type];
  if (name.kind() != PickleKind::kGlobal) {
    FailAt(Finding::kBadPickle,
           fmt::format("an element type is {}, expected a name", pickle.Describe(type)), name);
  }
  const std::optional<DType> dtype = TorchDType(name.text());
  if (!dtype) RequireKnown(name.text(), name);
  return dtype;
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
  const PickleValue& tuple = pickle[pickle[storage].items()[0]];
  const auto kind = [&](size_t i) {
    return i < tuple.items().size() ? pickle[tuple.items()[i]].kind() : PickleKind::kNone;
  };
  StorageId id;
  if (kind(0) == PickleKind::kText && pickle[tuple.items()[0]].text() == "module") {
    id.is_module = true;
    return id;
  }
  const bool good = (tuple.items().size() == 5 || tuple.items().size() == 6) &&
                    kind(0) == PickleKind::kText && pickle[tuple.items()[0]].text() == "storage" &&
                    kind(1) == PickleKind::kGlobal && kind(2) == PickleKind::kText &&
                    kind(3) == PickleKind::kText && kind(4) == PickleKind::kInt;
  if (!good) {
    FailAt(Finding::kBadPickle,
           "persistent id is not ('storage', type, key, location, element count)", pickle[storage]);
  }
  id.type = pickle[tuple.items()[1]].text();
  id.key = pickle[tuple.items()[2]].text();
  id.untyped = Among(id.type, kUntyped);
  id.dtype = id.untyped ? DType::kU8 : TorchStorageDType(id.type);
  if (!id.dtype) RequireKnown(id.type, pickle[storage]);
  if (pickle[tuple.items()[3]].text() == "meta") {
    FailAt(Finding::kUnsupportedKind,
           fmt::format("storage '{}' is on the meta device and has no data", Escaped(id.key)),
           pickle[storage]);
  }
  const int64_t numel = pickle[tuple.items()[4]].integer();
  if (numel < 0) {
    FailAt(Finding::kBadField, fmt::format("storage '{}' has {} elements", Escaped(id.key), numel),
           pickle[storage]);
  }
  id.numel = static_cast<uint64_t>(numel);
  if (tuple.items().size() == 6 && kind(5) == PickleKind::kTuple) {
    const std::span<const PickleId> view =
        pickle[tuple.items()[5]].items();  // (key, offset, count)
    if (view.size() != 3 || pickle[view[1]].kind() != PickleKind::kInt ||
        pickle[view[2]].kind() != PickleKind::kInt) {
      FailAt(Finding::kBadPickle, "view of a storage is not (key, offset, count)", pickle[storage]);
    }
    const int64_t first = pickle[view[1]].integer(), count = pickle[view[2]].integer();
    if (first < 0 || count < 0 || first > numel || count > numel - first) {
      FailAt(Finding::kBadOffsets,
             fmt::format("a view of {} elements from {} leaves its storage '{}' of {}", count,
                         first, Escaped(id.key), numel),
             pickle[storage]);
    }
    id.part = {static_cast<uint64_t>(first), static_cast<uint64_t>(count)};
  }
  return id;
}

uint64_t PickleNatural(const Pickle& pickle, PickleId id, std::string_view what) {
  const PickleValue& value = pickle[id];
  if (value.kind() == PickleKind::kBigInt) {
    FailAt(Finding::kLimit, fmt::format("{} needs more than 64 bits", what), value);
  }
  if (value.kind() != PickleKind::kInt) {
    FailAt(Finding::kBadPickle, fmt::format("{} is {}, expected an int", what, pickle.Describe(id)),
           value);
  }
  if (value.integer() < 0) {
    FailAt(Finding::kBadOffsets,
           fmt::format("{} is {}, expected at least 0", what, value.integer()), value);
  }
  return static_cast<uint64_t>(value.integer());
}

std::vector<uint64_t> PickleExtents(const Pickle& pickle, PickleId id, std::string_view what) {
  if (pickle.ClassOf(id) == "torch.Size" && !pickle[pickle[id].items()[1]].items().empty()) {
    id = pickle[pickle[id].items()[1]].items()[0];
  }
  const PickleValue& value = pickle[id];
  if (value.kind() != PickleKind::kTuple && value.kind() != PickleKind::kList) {
    FailAt(Finding::kBadPickle,
           fmt::format("{} is {}, expected a tuple", what, pickle.Describe(id)), value);
  }
  if (value.items().size() > kMostRank) {
    FailAt(Finding::kLimit,
           fmt::format("{} has {} axes, at most {} exist", what, value.items().size(), kMostRank),
           value);
  }
  std::vector<uint64_t> extents;
  extents.reserve(value.items().size());
  for (const PickleId item : value.items()) extents.push_back(PickleNatural(pickle, item, what));
  return extents;
}

}  // namespace kv
