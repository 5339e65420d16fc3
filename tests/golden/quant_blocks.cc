// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Block types, rotations and 8-bit floats against what llama.cpp and torch made.
#include <bit>

#include "lib/core/base/bytes.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/hadamard.h"
#include "lib/core/kernels/quantise.h"
#include "tests/golden/quant_arrays.h"

namespace kv::golden {
namespace {

using nlohmann::json;

Q8Rounding RoundingOf(const json& expected) {
  const std::string variant = expected.value("variant", "any");
  if (variant == "ref") return Q8Rounding::kReference;
  return variant.starts_with("arm") ? Q8Rounding::kArm : Q8Rounding::kAvx;
}

Bytes Packed(DType dtype, const std::vector<float>& values, Q8Rounding rounding) {
  Bytes out(BytesOf(dtype, values.size()));
  if (dtype == DType::kF16) {
    FloatToHalf(values.data(), out.data(), values.size());
  } else if (dtype == DType::kBF16) {
    FloatToBFloat(values.data(), out.data(), values.size());
  } else {
    QuantiseBlocks(dtype, values, out.data(), rounding);
  }
  return out;
}

// Codes that the engine leaves unset are not compared.
void ClearRows(const json& rows, size_t row_bytes, Bytes& bytes) {
  for (const json& row : rows) {
    const size_t at = row.get<size_t>() * row_bytes;
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at) + 2, row_bytes - 2, std::byte{});
  }
}

void CheckPacked(const json& expected, const std::vector<float>& values, Run& run) {
  const std::string name = expected.at("type");
  INFO(name << " " << expected.value("variant", "any"));
  const DType dtype = *ParseDType(name);
  const Npy packed = QuantArray(expected.at("packed"));
  Bytes got = Packed(dtype, values, RoundingOf(expected)), wanted = packed.bytes;
  if (expected.value("variant", "any") == "search") QuantiseIq4NlSearched(values, got.data());
  if (expected.contains("unspecified_codes_rows")) {
    ClearRows(expected["unspecified_codes_rows"], packed.shape[1], got);
    ClearRows(expected["unspecified_codes_rows"], packed.shape[1], wanted);
  }
  CHECK(got == wanted);
  run.Checked();
  if (!expected.contains("deq")) return;
  std::vector<float> back(values.size());
  ToFloats(dtype, packed.bytes, back);
  CHECK(EqualBits(back, QuantArray(expected["deq"]).Floats()));
  run.Checked();
}

// Rows free of NaN, infinities and overflow bind; of the others, that nothing crashes.
void CheckExtremes(const json& expected, const std::vector<float>& values, Run& run) {
  const std::string name = expected.at("type");
  const DType dtype = *ParseDType(name);
  const Bytes got = Packed(dtype, values, RoundingOf(expected));
  const Npy packed = QuantArray(expected.at("packed")), deq = QuantArray(expected.at("deq"));
  const std::vector<float> back = deq.Floats();
  const size_t row = packed.shape[1], columns = deq.shape[1];
  for (size_t r = 0; r < packed.shape[0]; ++r) {
    bool binds = true;
    float most = 0;
    for (size_t i = r * columns; i < (r + 1) * columns; ++i) {
      binds = binds && std::isfinite(back[i]) && std::isfinite(values[i]);
      most = std::fmax(most, std::fabs(values[i]));
    }
    // Reciprocals that overflow make infinities of their own.
    binds = binds && most > 1e-30f && most < 1e30f && dtype != DType::kIQ4_NL;
    if (!binds) continue;
    INFO(name << " row " << r);
    CHECK(std::equal(&got[r * row], &got[r * row] + row, &packed.bytes[r * row]));
    run.Checked();
  }
}

bool SameCode(uint8_t a, uint8_t b, bool is_e4m3) {
  const auto is_nan = [&](uint8_t code) { return (code & 0x7f) > (is_e4m3 ? 0x7e : 0x7c); };
  return a == b || (is_nan(a) && is_nan(b));
}

void CheckCodes(const std::vector<float>& values, const json& file, DType dtype,
                Float8Overflow overflow, Run& run) {
  const std::vector<uint8_t> wanted = QuantArray(file).Codes();
  std::vector<uint8_t> got(values.size());
  QuantiseFloat8(dtype, values, 1, overflow, got.data());
  size_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i)
    wrong += !SameCode(got[i], wanted[i], dtype == DType::kF8E4M3);
  INFO(file);
  CHECK(wrong == 0);
  run.Checked();
}

void CheckTable(const json& vector, Run& run) {
  std::vector<float> halves(65536);
  for (uint32_t i = 0; i < 65536; ++i) halves[i] = F16ToF32(static_cast<uint16_t>(i));
  const DType dtype =
      vector.at("name").get<std::string>().ends_with("e4m3fn") ? DType::kF8E4M3 : DType::kF8E5M2;
  const json& files = vector.at("expect").at(0);
  if (files.contains("torch"))
    CheckCodes(halves, files["torch"], dtype, Float8Overflow::kCast, run);
  if (files.contains("sat"))
    CheckCodes(halves, files["sat"], dtype, Float8Overflow::kSaturate, run);
}

void CheckEngine(const json& vector, Run& run) {
  const json& expected = vector.at("expect").at(0);
  const std::vector<float> stored = QuantArray(expected.at("stored_f32")).Floats();
  if (expected.contains("before_rotation_f32")) {
    std::vector<float> rotated = QuantArray(expected["before_rotation_f32"]).Floats();
    HadamardScaledFirst(rotated.data(), rotated.size(), vector.at("n_rot").get<uint32_t>());
    CHECK(EqualBits(rotated, stored));
    run.Checked();
  }
  CheckPacked(expected, stored, run);
}

void CheckHadamard(const json& vector, Run& run) {
  const Npy input = QuantArray(vector.at("input"));
  std::vector<float> values = input.Floats();
  HadamardScaledFirst(values.data(), values.size(), static_cast<uint32_t>(input.shape[1]));
  CHECK(EqualBits(values, QuantArray(vector.at("expect").at(0).at("out")).Floats()));
  run.Checked();
}

}  // namespace

void CheckQuantBlocks(Run& run) {
  for (const json& vector : run.Json("quant/manifest.json").value("vectors", json::array())) {
    const std::string kind = vector.at("kind"), name = vector.at("name");
    INFO(name);
    if (kind == "engine") CheckEngine(vector, run);
    if (kind == "hadamard") CheckHadamard(vector, run);
    if (kind == "fp8_table") CheckTable(vector, run);
    if (kind == "fp8_decode") {
      std::vector<uint8_t> codes(256);
      for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
      std::vector<float> got(256);
      DequantiseFloat8(DType::kF8E4M3, codes, 1, got.data());
      CHECK(EqualBits(got, QuantArray(vector.at("expect").at(0).at("f32")).Floats()));
      run.Checked();
    }
    if (kind == "fp8_f32") {
      const std::vector<float> values = QuantArray(vector.at("input")).Floats();
      const json& files = vector.at("expect").at(0);
      CheckCodes(values, files.at("e4m3fn"), DType::kF8E4M3, Float8Overflow::kCast, run);
      CheckCodes(values, files.at("e5m2"), DType::kF8E5M2, Float8Overflow::kCast, run);
    }
    if (kind == "ggml") {
      const std::vector<float> values = QuantArray(vector.at("input")).Floats();
      for (const json& expected : vector.at("expect")) {
        name.starts_with("ggml/extreme") ? CheckExtremes(expected, values, run)
                                         : CheckPacked(expected, values, run);
      }
    }
  }
}

}  // namespace kv::golden
