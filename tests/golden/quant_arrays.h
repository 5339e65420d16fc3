// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "formats/npy/npy.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/quant/cache_type.h"
#include "tests/golden/golden.h"

namespace kv::golden {

// Arrays of the quantisers' vectors.
struct Npy {
  std::vector<uint64_t> shape;
  Bytes bytes;
  DType dtype = DType::kU8;

  explicit Npy(const std::filesystem::path& path) {
    const TensorFile file = ReadNpy(Source::Open(path.string()), {});
    const TensorView& view = file.tensors.at(0).view;
    shape = view.shape;
    dtype = view.dtype;
    bytes = CopyContiguous(view);
  }
  std::vector<float> Floats() const {
    std::vector<float> values(bytes.size() / Info(dtype).block_bytes);
    ToFloats(dtype, bytes, values);
    return values;
  }
  std::vector<uint8_t> Codes() const {
    std::vector<uint8_t> codes;
    for (const std::byte b : bytes) codes.push_back(static_cast<uint8_t>(b));
    return codes;
  }
};

inline Npy QuantArray(const nlohmann::json& name) {
  return Npy(Root() / "quant" / name.get<std::string>());
}

// The first tokens of K or V of the shared trace, [token][2 heads][64].
inline std::vector<float> TraceSide(const char* side, size_t tokens) {
  const std::string name = std::string("trace/kjv3m-L0-") + side + ".npy";
  std::vector<float> values = Npy(std::filesystem::path(KVTOOL_TESTDATA) / name).Floats();
  values.resize(tokens * 128);
  return values;
}

inline quant::Side TraceSideOf(std::span<const float> values, bool is_key) {
  return {values, values.size() / 128, 2, 64, is_key, 2, 8, DType::kF16};
}

// Equal bits, but a NaN equals any other.
inline bool EqualBits(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) return false;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(expected[i])) continue;
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(expected[i])) return false;
  }
  return true;
}

// The largest difference.
inline double WorstError(std::span<const float> got, std::span<const float> expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i)
    worst = std::fmax(worst, std::fabs(double{got[i]} - double{expected[i]}));
  return worst;
}

}  // namespace kv::golden
