// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "formats/npy/npy.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/study/quantisation/types/cache_type.h"
#include "tests/golden/golden.h"

namespace kv::golden {

using Shape = std::vector<uint64_t>;

// Arrays of the quantisers' vectors. Each is read with the shape that its vector states, so that an
// array of another set fails here and is not read past its end.
struct Npy {
  Shape shape;
  Bytes bytes;
  DType dtype = DType::kU8;

  explicit Npy(const std::filesystem::path& path) {
    const TensorFile file = ReadNpy(Source::Open(path.string()), {});
    const TensorView& view = file.tensors.at(0).view;
    shape = view.shape;
    dtype = view.dtype;
    bytes = CopyContiguous(view);
  }
  uint64_t size() const { return bytes.size() / Info(dtype).block_bytes; }
  std::vector<float> Floats() const {
    std::vector<float> values(size());
    ToFloats(dtype, bytes, values);
    return values;
  }
  // Reads 16-bit floats that are stored as integers.
  std::vector<float> Floats(DType pattern) const {
    REQUIRE(Info(dtype).block_bytes == Info(pattern).block_bytes);
    std::vector<float> values(size());
    ToFloats(pattern, bytes, values);
    return values;
  }
  std::vector<uint8_t> Codes() const {
    REQUIRE(Info(dtype).block_bytes == 1);
    std::vector<uint8_t> codes;
    for (const std::byte b : bytes) codes.push_back(static_cast<uint8_t>(b));
    return codes;
  }
};

inline Npy QuantArray(const nlohmann::json& name) {
  return Npy(Root() / "quant" / name.get<std::string>());
}
inline Npy QuantArray(const nlohmann::json& name, const Shape& shape) {
  Npy array = QuantArray(name);
  INFO(name);
  REQUIRE(array.shape == shape);
  return array;
}

// Finds 8-bit floats and the types of models by their names in the manifests.
inline DType FloatNamed(const std::string& name) {
  if (name == "e4m3fn" || name == "e4m3") return DType::kF8E4M3;
  if (name == "e5m2") return DType::kF8E5M2;
  if (name == "f16") return DType::kF16;
  if (name == "bf16") return DType::kBF16;
  if (name == "f32") return DType::kF32;
  FAIL("no row knows the element type '" << name << "'");
  return DType::kU8;
}

inline float RoundedTo(DType dtype, float value) {
  if (dtype == DType::kF32) return value;
  return dtype == DType::kBF16 ? BF16ToF32(F32ToBF16(value)) : F16ToF32(F32ToF16(value));
}

// K or V of the tokens that a vector's `source` names, [token][head][dim].
struct TraceSide {
  std::vector<float> values;
  uint64_t tokens = 0;
  uint32_t heads = 0, dim = 0;
  DType dtype = DType::kF16;
  bool is_key = true;

  uint64_t row() const { return uint64_t{heads} * dim; }
  Shape shape() const { return {tokens, heads, dim}; }
  quant::Side Side(std::span<const float> instead = {}) const {
    return {instead.empty() ? std::span<const float>(values) : instead,
            tokens,
            heads,
            dim,
            is_key,
            2,
            8,
            DType::kF16};
  }
};

// Returns nothing, counted as absent, if the trace is neither next to the set nor in testdata.
inline std::optional<TraceSide> SideOfTrace(const nlohmann::json& vector, bool is_key, Run& run) {
  REQUIRE(vector.contains("source"));
  const nlohmann::json& source = vector["source"];
  const auto path = run.Trace(source.at("trace"), source.at("layer"), is_key ? 'K' : 'V');
  if (!path) return std::nullopt;
  const Npy array(*path);
  REQUIRE(array.shape.size() == 3);
  const nlohmann::json all = {0, array.shape[0]};
  const nlohmann::json range = source.value("tokens", all);
  const uint64_t from = range.at(0), to = range.at(1);
  REQUIRE(from < to);
  REQUIRE(to <= array.shape[0]);
  TraceSide side;
  side.tokens = to - from;
  side.heads = static_cast<uint32_t>(array.shape[1]);
  side.dim = static_cast<uint32_t>(array.shape[2]);
  side.dtype = array.dtype;
  side.is_key = is_key;
  const std::vector<float> values = array.Floats();
  side.values.assign(values.begin() + static_cast<std::ptrdiff_t>(from * side.row()),
                     values.begin() + static_cast<std::ptrdiff_t>(to * side.row()));
  return side;
}

// One kind of vector in quant/manifest.json, and its check.
struct KindCheck {
  std::string_view kind;
  void (*check)(const nlohmann::json& vector, Run& run);
};
inline void CheckKinds(std::span<const KindCheck> kinds, Run& run) {
  std::set<std::string_view> seen;
  for (const nlohmann::json& vector : run.Json("quant/manifest.json").value("vectors", kNone)) {
    const std::string kind = vector.at("kind"), name = vector.at("name");
    INFO(name);
    for (const KindCheck& known : kinds) {
      if (known.kind != kind) continue;
      seen.insert(known.kind);
      const int before = run.checked() + run.absent();
      known.check(vector, run);
      CHECK(run.checked() + run.absent() > before);  // an empty `expect` would compare nothing
    }
  }
  for (const KindCheck& known : kinds) {
    INFO("no vector of the kind " << known.kind);
    CHECK((seen.contains(known.kind) || !IsOwnSet()));
  }
}

// Returns true if all bits are equal, where a NaN equals any other.
inline bool EqualBits(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) return false;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(got[i]) && std::isnan(expected[i])) continue;
    if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(expected[i])) return false;
  }
  return true;
}

// Returns the largest absolute difference.
inline double WorstError(std::span<const float> got, std::span<const float> expected) {
  REQUIRE(got.size() == expected.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i)
    worst = std::fmax(worst, std::fabs(double{got[i]} - double{expected[i]}));
  return worst;
}

}  // namespace kv::golden
