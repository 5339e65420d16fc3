// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "formats/safetensors/safetensors.h"
#include "lib/core/base/bytes.h"
#include "lib/core/kernels/dequantise.h"

namespace kv::golden {

// Tensors are the arrays of one of blend's safetensors files.
struct Tensors {
  TensorFile file;

  explicit Tensors(const std::filesystem::path& path)
      : file(ReadSafetensors(Source::Open(path), {})) {}
  bool Has(const std::string& name) const { return file.Find(name) != nullptr; }
  const TensorView& View(const std::string& name) const {
    REQUIRE(file.Find(name) != nullptr);
    return file.Find(name)->view;
  }
  std::vector<float> Floats(const std::string& name) const {
    const Bytes raw = CopyContiguous(View(name));
    std::vector<float> values(View(name).elements());
    ToFloats(View(name).dtype, raw, values);
    return values;
  }
  std::vector<double> Doubles(const std::string& name) const {
    REQUIRE(View(name).dtype == DType::kF64);
    const Bytes raw = CopyContiguous(View(name));
    std::vector<double> values(View(name).elements());
    for (size_t i = 0; i < values.size(); ++i) values[i] = LoadLE<double>(raw.data() + 8 * i);
    return values;
  }
  std::vector<int64_t> Integers(const std::string& name) const {
    REQUIRE(View(name).dtype == DType::kI64);
    const Bytes raw = CopyContiguous(View(name));
    std::vector<int64_t> values(View(name).elements());
    for (size_t i = 0; i < values.size(); ++i) values[i] = LoadLE<int64_t>(raw.data() + 8 * i);
    return values;
  }
};

}  // namespace kv::golden
