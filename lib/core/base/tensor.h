// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/dtype.h"
#include "lib/core/base/file.h"

namespace kv {

// An n-dimensional array in memory that it does not own. Strides are in bytes and never negative.
// Block-quantised types are one-dimensional rows of whole blocks without strides.
struct TensorView {
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> strides;
  const std::byte* data = nullptr;

  size_t rank() const { return shape.size(); }
  uint64_t elements() const;  // checked for overflow
  uint64_t bytes() const;     // size of the values if contiguous
  bool is_contiguous() const;
};

// Returns a C-contiguous view.
TensorView ContiguousView(DType dtype, std::vector<uint64_t> shape, const std::byte* data);
// Returns the values in C order.
Bytes CopyContiguous(const TensorView& view);

struct NamedTensor {
  std::string name;
  TensorView view;
  std::string file;  // for a folder: the containing file, without extension; otherwise empty
};

// A named value in a container that is not read as a tensor.
struct OpaqueValue {
  std::string name = {};
  std::string kind = {};    // "an object of torch.nn.Linear"
  bool is_foreign = false;  // an object of a class not known to be plain data
  bool is_tensor = false;   // a tensor of an unsupported kind or element type
};

// The contents of an array container (safetensors, npz, torch ...). Views point into `source` or
// `spools` and stay valid as long as the object.
struct TensorFile {
  Source source;
  std::vector<std::shared_ptr<const FileSource>> spools;
  std::string format;
  std::vector<NamedTensor> tensors;  // in file order
  std::vector<OpaqueValue> opaque;
  std::map<std::string, std::string> metadata;
  std::vector<std::string> notes;
  // Each throws if stored content is damaged (CRC of zip members). Opening does not run them,
  // because they read everything.
  std::vector<std::function<void()>> checks;

  const NamedTensor* Find(std::string_view name) const;
};

}  // namespace kv
