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
  if (variant == "any" || variant == "avx" || variant == "search") return Q8Rounding::kAvx;
  INFO("variant " << variant);
  REQUIRE(variant.starts_with("arm"));
  return Q8Rounding::kArm;
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

DType TypeOf(const json& expected) {
  const std::string name = expected.at("type");
  const std::optional<DType> dtype = ParseDType(name);
  INFO("type " << name);
  REQUIRE(dtype.has_value());
  return *dtype;
}

// Reads the stored rows of an input of this shape.
Npy PackedArray(const json& expected, DType dtype, const Shape& shape) {
  REQUIRE(shape.size() == 2);
  REQUIRE(shape[1] % Info(dtype).block_elements == 0);
  return QuantArray(expected.at("packed"), {shape[0], BytesOf(dtype, shape[1])});
}

// Clears the given rows, whose codes the engine leaves unset, so that they are not compared.
void ClearRows(const json& rows, size_t row_bytes, Bytes& bytes) {
  for (const json& row : rows) {
    const size_t at = row.get<size_t>() * row_bytes;
    REQUIRE(at + row_bytes <= bytes.size());
    std::fill_n(bytes.begin() + static_cast<std::ptrdiff_t>(at) + 2, row_bytes - 2, std::byte{});
  }
}

void CheckPacked(const json& expected, const Npy& input, Run& run) {
  const std::vector<float> values = input.Floats();
  const DType dtype = TypeOf(expected);
  INFO(Name(dtype) << " " << expected.value("variant", "any"));
  const Npy packed = PackedArray(expected, dtype, input.shape);
  Bytes got = Packed(dtype, values, RoundingOf(expected)), wanted = packed.bytes;
  if (expected.value("variant", "any") == "search") {
    REQUIRE(dtype == DType::kIQ4_NL);
    QuantiseIq4NlSearched(values, got.data());
  }
  if (expected.contains("unspecified_codes_rows")) {
    ClearRows(expected["unspecified_codes_rows"], packed.shape[1], got);
    ClearRows(expected["unspecified_codes_rows"], packed.shape[1], wanted);
  }
  CHECK(got == wanted);
  run.Checked();
  if (!expected.contains("deq")) return;
  std::vector<float> back(values.size());
  ToFloats(dtype, packed.bytes, back);
  CHECK(EqualBits(back, QuantArray(expected["deq"], input.shape).Floats()));
  run.Checked();
}

// Rows without NaN, infinities and overflow must be equal; the others only must not crash.
void CheckExtremes(const json& expected, const Npy& input, Run& run) {
  const std::vector<float> values = input.Floats();
  const DType dtype = TypeOf(expected);
  const Npy packed = PackedArray(expected, dtype, input.shape);
  const Npy deq = QuantArray(expected.at("deq"), input.shape);
  const Bytes got = Packed(dtype, values, RoundingOf(expected));
  const std::vector<float> back = deq.Floats();
  const size_t row = packed.shape[1], columns = deq.shape[1];
  for (size_t r = 0; r < packed.shape[0]; ++r) {
    bool binds = true;
    float most = 0;
    for (size_t i = r * columns; i < (r + 1) * columns; ++i) {
      binds = binds && std::isfinite(back[i]) && std::isfinite(values[i]);
      most = std::fmax(most, std::fabs(values[i]));
    }
    // Rows with tiny or huge values are left out, because reciprocals of their scales overflow.
    binds = binds && most > 1e-30f && most < 1e30f && dtype != DType::kIQ4_NL;
    if (!binds) continue;
    INFO(Name(dtype) << " row " << r);
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
  const std::vector<uint8_t> wanted = QuantArray(file, {values.size()}).Codes();
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
  const DType input = FloatNamed(vector.at("dtype")), dtype = FloatNamed(vector.at("code"));
  REQUIRE((input == DType::kF16 || input == DType::kBF16));
  std::vector<float> halves(65536);
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    halves[i] = input == DType::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
  }
  const json& files = vector.at("expect").at(0);
  if (files.contains("torch"))
    CheckCodes(halves, files["torch"], dtype, Float8Overflow::kCast, run);
  if (files.contains("sat"))
    CheckCodes(halves, files["sat"], dtype, Float8Overflow::kSaturate, run);
}

void CheckEngine(const json& vector, Run& run) {
  const json& expected = vector.at("expect").at(0);
  const Npy stored = QuantArray(expected.at("stored_f32"));
  REQUIRE(stored.shape.size() == 2);
  if (expected.contains("before_rotation_f32")) {
    const auto piece = vector.at("n_rot").get<uint32_t>();
    REQUIRE(std::has_single_bit(piece));
    REQUIRE(stored.shape[1] % piece == 0);
    std::vector<float> rotated = QuantArray(expected["before_rotation_f32"], stored.shape).Floats();
    HadamardScaledFirst(rotated.data(), rotated.size(), piece);
    CHECK(EqualBits(rotated, stored.Floats()));
    run.Checked();
  }
  CheckPacked(expected, stored, run);
}

void CheckHadamard(const json& vector, Run& run) {
  const Npy input = QuantArray(vector.at("input"));
  REQUIRE(input.shape.size() == 2);
  REQUIRE(std::has_single_bit(input.shape[1]));
  std::vector<float> values = input.Floats();
  HadamardScaledFirst(values.data(), values.size(), static_cast<uint32_t>(input.shape[1]));
  CHECK(EqualBits(values, QuantArray(vector.at("expect").at(0).at("out"), input.shape).Floats()));
  run.Checked();
}

void CheckDecoding(const json& vector, Run& run) {
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  std::vector<float> got(256);
  DequantiseFloat8(FloatNamed(vector.at("code")), codes, 1, got.data());
  CHECK(EqualBits(got, QuantArray(vector.at("expect").at(0).at("f32"), {256}).Floats()));
  run.Checked();
}

void CheckFloats(const json& vector, Run& run) {
  const std::vector<float> values = QuantArray(vector.at("input")).Floats();
  for (const auto& [code, file] : vector.at("expect").at(0).items())
    CheckCodes(values, file, FloatNamed(code), Float8Overflow::kCast, run);
}

void CheckGgml(const json& vector, Run& run) {
  const Npy input = QuantArray(vector.at("input"));
  const bool is_extreme = vector.at("name").get<std::string>().starts_with("ggml/extreme");
  for (const json& expected : vector.at("expect"))
    is_extreme ? CheckExtremes(expected, input, run) : CheckPacked(expected, input, run);
}

}  // namespace

void CheckQuantBlocks(Run& run) {
  constexpr KindCheck kKinds[] = {{"engine", CheckEngine},   {"hadamard", CheckHadamard},
                                  {"fp8_table", CheckTable}, {"fp8_decode", CheckDecoding},
                                  {"fp8_f32", CheckFloats},  {"ggml", CheckGgml}};
  CheckKinds(kKinds, run);
}

}  // namespace kv::golden
