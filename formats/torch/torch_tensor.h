// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Internals of formats/torch: from the nodes of a pickle to tensors.
#pragma once  // implemented by torch_tensor.cc, torch_walk.cc

#include <map>
#include <optional>
#include <string>
#include <unordered_map>

#include "formats/npy/npy.h"
#include "formats/torch/pickle.h"
#include "lib/core/base/tensor.h"

namespace kv {

// Removes "torch." from a global's name; returns false if it is not in that module.
inline bool StripTorch(std::string_view& name) {
  if (!name.starts_with("torch.")) return false;
  name.remove_prefix(6);
  return true;
}

// Throws this finding, at the offset of a node in its pickle.
template <typename... Values>
[[noreturn]] void FailAt(const PickleValue& at, Finding finding, fmt::format_string<Values...> text,
                         Values&&... values) {
  throw Error(finding, fmt::format(text, std::forward<Values>(values)...)).At(at.offset());
}
// Throws kLimit for a value above --max-bytes.
template <typename... Values>
[[noreturn]] void FailAtLimit(const PickleValue& at, fmt::format_string<Values...> text,
                              Values&&... values) {
  throw Error(Finding::kLimit, fmt::format(text, std::forward<Values>(values)...))
      .At(at.offset())
      .Hint("raise --max-bytes if the file is trusted");
}

// The description of a storage in a persistent id.
struct StorageId {
  std::string_view key;
  std::string_view type;       // "torch.FloatStorage"
  std::optional<DType> dtype;  // empty for complex, quantised and other types
  uint64_t numel = 0;          // number of elements; bytes if the storage is untyped
  bool untyped = false;
  bool is_module = false;  // ('module', ...): a class's source text instead of a storage
  // In the legacy form: only this part of the storage.
  std::optional<std::pair<uint64_t, uint64_t>> part;  // first element, count

  uint64_t bytes() const;  // checks for overflow
};
// Throws kBadPickle, kUnknownDtype.
StorageId ParseStorageId(const Pickle& pickle, PickleId storage);

// A storage that lies in the pickle itself.
struct EmbeddedStorage {
  std::optional<DType> dtype;
  ByteSpan data;
};

// Finds the bytes of a storage in its container, in host byte order.
class StorageBytes {
 public:
  virtual ~StorageBytes() = default;
  virtual ByteSpan Find(const StorageId& id) = 0;
  // The argument of torch.storage._load_from_bytes, a legacy file whose object is one storage.
  virtual EmbeddedStorage Embedded(ByteSpan file) = 0;
};

// NumPy arrays whose values lie in the pickle.
class NumpyArrays {
 public:
  NumpyArrays(const Pickle& pickle, uint64_t max_bytes, TensorFile& file)
      : pickle_(pickle), max_bytes_(max_bytes), file_(file) {}

  // Returns true if a value is an array of anything but Python objects.
  bool IsArray(PickleId id) const { return Find(id).has_value(); }
  // Returns nothing for element types without a DType. Throws kBadPickle, kBadOffsets, kLimit,
  // kSizeMismatch, kUnknownDtype.
  std::optional<TensorView> Build(PickleId id);

 private:
  struct Parts {
    PickleId shape, dtype, values;
    bool fortran_order;
  };
  std::optional<Parts> Find(PickleId id) const;
  std::optional<NpyType> FindType(PickleId dtype) const;
  // Returns the values in host byte order, valid as long as the file.
  ByteSpan Kept(PickleId values, const NpyType& type);

  const Pickle& pickle_;
  uint64_t max_bytes_;
  TensorFile& file_;
  std::map<std::pair<PickleId, uint32_t>, ByteSpan> kept_;  // by id and swapped width
};

// Evaluates torch's functions that rebuild tensors, as data.
class TensorBuilder {
 public:
  // `file` keeps the values that the pickle itself holds.
  TensorBuilder(const Pickle& pickle, StorageBytes& storages, uint64_t max_bytes, TensorFile& file)
      : pickle_(pickle),
        storages_(storages),
        max_bytes_(max_bytes),
        numpy_(pickle, max_bytes, file) {}

  // Returns true if a value is a tensor (or parameter, array ...) that this class can build.
  bool IsTensor(PickleId id) const;
  // Builds a tensor and checks every bound. Returns nothing for element types without a DType.
  // Throws kBadOffsets, kBadField, kLimit, kMissingRecord, kSizeMismatch.
  std::optional<TensorView> Build(PickleId id);

 private:
  struct Call {
    std::string_view function;  // without the module
    PickleId arguments;
  };
  // Returns the innermost rebuild call, through parameters and tensor subclasses.
  std::optional<Call> Find(PickleId id) const;
  std::optional<EmbeddedStorage> FindEmbedded(PickleId storage);
  // Returns the farthest element of its storage that a view reaches, saturated. Throws kLimit if
  // the view claims more bytes than may be read.
  uint64_t LastElement(const TensorView& view, uint64_t offset, const PickleValue& node) const;

  const Pickle& pickle_;
  StorageBytes& storages_;
  uint64_t max_bytes_;
  NumpyArrays numpy_;
  // The function that made the last tensor. Most files call only one, and comparing ids avoids
  // comparing names.
  mutable PickleId rebuild_ = kPickleNone;
  mutable std::string_view rebuild_name_;
  std::map<PickleId, EmbeddedStorage> embedded_;  // shared by tensors, by their id
};

// Torch's names of an element type: "float32", and its storage class "FloatStorage" or "" if it has
// none.
struct TorchTypeName {
  std::string_view dtype, storage;
  DType type;
};
// Returns how the writer stores a type. Throws kUnsupportedDtype.
TorchTypeName ToTorchType(DType dtype);
// Converts "torch.float32" and "torch.FloatStorage" to a DType; nothing for other names.
std::optional<DType> TorchDType(std::string_view global);
std::optional<DType> TorchStorageDType(std::string_view global);
// Reads a type from a pickle. Returns nothing for types of torch that have no DType. Throws
// kBadPickle, kUnknownDtype for a name that is not torch's.
std::optional<DType> TorchDType(const Pickle& pickle, PickleId type);

// Reads a non-negative integer. Throws kBadPickle for other values, kBadOffsets for a negative one,
// kLimit.
uint64_t PickleNatural(const Pickle& pickle, PickleId id, std::string_view what);
std::vector<uint64_t> PickleExtents(const Pickle& pickle, PickleId id, std::string_view what);

// Swaps elements from a host of the other byte order; `file` keeps them alive.
ByteSpan SwapBytes(ByteSpan bytes, uint64_t item, const std::string& name, TensorFile& file);

// Puts tensors, scalars and opaque objects below the root into `file`, named by their key paths.
// Throws kLimit, kDuplicateName and what TensorBuilder throws.
void WalkPickle(const Pickle& pickle, TensorBuilder& builder, TensorFile& file);

}  // namespace kv
