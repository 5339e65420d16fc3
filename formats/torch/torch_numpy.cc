// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
//
// numpy arrays in pickles: shape, dtype and values as arguments of a call or as a state.
#include <fmt/format.h>

#include <algorithm>

#include "formats/torch/torch_container.h"
#include "lib/core/base/checked.h"

namespace kv {
namespace {

// numpy 2 moved its core.
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

std::optional<NumpyArrays::Parts> NumpyArrays::Find(PickleId id) const {
  const std::string_view function = pickle_.ClassOf(id);
  const PickleValue& call = pickle_[id];
  Parts parts{};
  if (IsCore(function, "multiarray._reconstruct")) {
    // BUILD gives ([version,] shape, dtype, Fortran order, values).
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
  // The str of Python 2 is a text where its bytes are one. A list holds Python objects.
  if (kind != PickleKind::kBytes && kind != PickleKind::kText) return std::nullopt;
  if (pickle_.ClassOf(parts.dtype) != "numpy.dtype") return std::nullopt;
  return parts;
}

std::optional<NpyType> NumpyArrays::TypeOf(PickleId dtype) const {
  const PickleValue& call = pickle_[dtype];
  const std::span<const PickleId> arguments = pickle_[call.items()[1]].items();
  if (arguments.empty()) FailAt(Finding::kBadPickle, "numpy.dtype is given nothing", call);
  // BUILD gives (version, byte order, subtype, field names, ...).
  std::string order = "=";
  if (call.items().size() > 3) {
    const std::span<const PickleId> state = pickle_[call.items().back()].items();
    if (state.size() < 5 || pickle_[state[1]].text().size() != 1) {
      FailAt(Finding::kBadPickle, "the state of a numpy.dtype names no byte order", call);
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
    const NpyType type = NpyTypeOf(order + std::string(word.text()));
    return type.raw ? std::nullopt : std::optional(type);  // nothing says what its bits mean
  } catch (Error& error) {
    if (error.finding() == Finding::kUnsupportedDtype) return std::nullopt;
    throw std::move(error.At(word.offset()));
  }
}

ByteSpan NumpyArrays::Kept(PickleId values, const NpyType& type) {
  const uint32_t width = type.swapped ? Info(type.dtype).block_bytes : 1;
  const auto [known, is_new] = kept_.try_emplace({values, width});
  if (!is_new) return known->second;
  const ByteSpan bytes = AsBytes(pickle_[values].text());
  if (width > 1) return known->second = SwapBytes(bytes, width, "numpy array", file_);
  bool lives = bytes.empty() || file_.source.FileOf(bytes.data()) != nullptr;
  for (const auto& spool : file_.spools) lives = lives || spool->Contains(bytes.data());
  if (lives) return known->second = bytes;
  // Put together in memory, as protocol 2 spells bytes as text: they go away with the pickle.
  file_.spools.push_back(FileSource::FromBytes({bytes.begin(), bytes.end()}, "numpy array"));
  return known->second = file_.spools.back()->bytes();
}

std::optional<TensorView> NumpyArrays::Build(PickleId id) {
  const std::optional<Parts> parts = Find(id);
  KV_ASSERT(parts.has_value());
  const std::optional<NpyType> type = TypeOf(parts->dtype);
  if (!type) return std::nullopt;
  TensorView view{type->dtype, PickleExtents(pickle_, parts->shape, "shape"), {}, nullptr};
  const uint64_t size = pickle_[parts->values].text().size();
  uint64_t bytes = Info(type->dtype).block_bytes;
  for (const uint64_t extent : view.shape) bytes = CheckedMul(bytes, extent, "shape");
  if (bytes != size) {
    FailAt(Finding::kSizeMismatch,
           fmt::format("an array of shape [{}] has {} bytes, {} expected",
                       fmt::join(view.shape, ", "), size, bytes),
           pickle_[id]);
  }
  if (bytes > max_bytes_) {
    FailAtLimit(fmt::format("an array has {} bytes, at most {} are allowed", bytes, max_bytes_),
                pickle_[id]);
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

}  // namespace kv
