// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/tensor.h"

#include <cstring>

#include "lib/core/base/bytes.h"

namespace kv {

uint64_t TensorView::elements() const {
  uint64_t count = 1;
  for (uint64_t extent : shape) count = CheckedMul(count, extent, "tensor shape");
  return count;
}

uint64_t TensorView::bytes() const { return BytesOf(dtype, elements()); }

bool TensorView::is_contiguous() const {
  if (IsBlockQuantised(dtype)) return true;
  uint64_t expected = Info(dtype).block_bytes;
  for (size_t axis = rank(); axis-- > 0;) {
    if (shape[axis] > 1 && strides[axis] != expected) return false;
    expected *= shape[axis];
  }
  return true;
}

TensorView ContiguousView(DType dtype, std::vector<uint64_t> shape, const std::byte* data) {
  TensorView view{dtype, std::move(shape), {}, data};
  view.strides.resize(view.rank());
  uint64_t stride = Info(dtype).block_bytes;
  for (size_t axis = view.rank(); axis-- > 0;) {
    view.strides[axis] = stride;
    stride = CheckedMul(stride, view.shape[axis], "tensor shape");
  }
  return view;
}

namespace {

void CopyAxis(const TensorView& view, size_t axis, const std::byte* from, uint64_t unit,
              std::byte*& to) {
  if (axis == view.rank()) {
    std::memcpy(to, from, unit);
    to += unit;
    return;
  }
  if (axis + 1 == view.rank() && view.strides[axis] == unit) {
    std::memcpy(to, from, view.shape[axis] * unit);
    to += view.shape[axis] * unit;
    return;
  }
  for (uint64_t i = 0; i < view.shape[axis]; ++i)
    CopyAxis(view, axis + 1, from + i * view.strides[axis], unit, to);
}

}  // namespace

Bytes CopyContiguous(const TensorView& view) {
  Bytes out(view.bytes());
  if (out.empty()) return out;
  if (view.is_contiguous()) {
    std::memcpy(out.data(), view.data, out.size());
    return out;
  }
  std::byte* to = out.data();
  CopyAxis(view, 0, view.data, Info(view.dtype).block_bytes, to);
  return out;
}

const NamedTensor* TensorFile::Find(std::string_view name) const {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

}  // namespace kv
