// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Caches with scales beside their codes, against vLLM's, LMCache's and the papers' arithmetic.
#include <algorithm>
#include <bit>
#include <cstring>

#include "lib/core/base/bytes.h"
#include "lib/study/quantisation/types/codes.h"
#include "tests/golden/quant_arrays.h"

namespace kv::golden {
namespace {

using nlohmann::json;

std::vector<float> Stored(const std::string& type, const quant::Side& side,
                          const quant::StoreOptions& options = {}) {
  std::vector<float> out(side.values.size());
  const quant::CacheType& row = quant::ParseCacheType(type, "golden");
  row.store(row, side, options, out);
  return out;
}

// Returns the side (K or V) that an entry of `expect` names.
std::optional<TraceSide> SideNamed(const json& name, const json& vector, Run& run) {
  INFO("side " << name);
  REQUIRE((name == "k" || name == "v"));
  return SideOfTrace(vector, name == "k", run);
}

void CheckFp8(const json& vector, Run& run) {
  for (const json& expected : vector.at("expect")) {
    const std::string scale = expected.at("scale");
    INFO(expected.at("side") << " " << scale);
    const auto side = SideNamed(expected.at("side"), vector, run);
    if (!side) return;
    const DType dtype = FloatNamed(expected.value("code", vector.value("code", "e4m3fn")));
    const std::vector<float> scales = QuantArray(expected.at("scales")).Floats();
    REQUIRE((scales.size() == 1 || scales.size() == side->heads));
    std::vector<uint8_t> codes(side->values.size());
    std::vector<float> back(side->values.size());
    for (size_t at = 0; at < codes.size(); at += side->dim) {
      const float one = scales[at / side->dim % scales.size()];
      const std::span<uint8_t> vector_codes(&codes[at], side->dim);
      QuantiseFloat8(dtype, std::span(side->values).subspan(at, side->dim), one,
                     Float8Overflow::kSaturate, vector_codes.data());
      DequantiseFloat8(dtype, vector_codes, one, &back[at]);
    }
    for (float& value : back) value = RoundedTo(DType::kF16, value);
    CHECK(codes == QuantArray(expected.at("codes"), side->shape()).Codes());
    const std::vector<float> deq = QuantArray(expected.at("deq_f16"), side->shape()).Floats();
    CHECK(EqualBits(back, deq));
    // The vector's rule of scaling selects the type that implements it.
    const bool is_e4m3 = dtype == DType::kF8E4M3;
    const std::string type = scale == "scale1"                ? is_e4m3 ? "fp8_e4m3" : "fp8_e5m2"
                             : scale == "amax448" && is_e4m3  ? "fp8_amax"
                             : scale == "per_head" && is_e4m3 ? "fp8_head"
                                                              : "";
    if (!type.empty()) CHECK(EqualBits(Stored(type, side->Side()), deq));
    run.Checked(2);
  }
}

void CheckTokenHead(const json& vector, Run& run) {
  const std::string name = vector.at("name");
  REQUIRE((name.ends_with("-k") || name.ends_with("-v")));
  const auto side = SideOfTrace(vector, name.ends_with("-k"), run);
  if (!side) return;
  const std::vector<float>& values = side->values;
  const uint32_t dim = side->dim;
  for (const json& expected : vector.at("expect")) {
    const std::string type = expected.at("type");
    INFO(type);
    std::vector<float> back(values.size()), signs;
    quant::TokenHeadCodes stored;
    Shape codes = side->shape();
    if (type == "int8_per_token_head") {
      stored = quant::StoreInt8(values, dim);
      quant::ReadInt8(stored, dim, back);
    } else if (type == "fp8_per_token_head") {
      stored = quant::StoreFloat8(values, dim);
      quant::ReadFloat8(stored, dim, back);
    } else {
      REQUIRE(type == "int4_per_token_head");
      REQUIRE(dim % 2 == 0);
      codes[2] /= 2;
      signs = quant::VllmSigns(dim);
      CHECK(EqualBits(signs, QuantArray(expected.at("signs"), {dim}).Floats()));
      stored = quant::StoreInt4(values, dim, signs);
      quant::ReadInt4(stored, dim, signs, back);
    }
    CHECK(stored.codes == QuantArray(expected.at("codes"), codes).Codes());
    CHECK(EqualBits(stored.scales,
                    QuantArray(expected.at("scales"), {side->tokens, side->heads}).Floats()));
    const std::vector<float> deq = QuantArray(expected.at("deq_f32"), side->shape()).Floats();
    if (signs.empty()) {
      CHECK(EqualBits(back, deq));
    } else {
      CHECK(WorstError(back, deq) < 1e-5);  // sums of the inverse transform may have another order
    }
    run.Checked(3);
  }
}

void CheckLmcacheCast(const json& vector, Run& run) {
  for (const json& expected : vector.at("expect")) {
    INFO(expected);
    const DType input = FloatNamed(expected.at("dtype")), dtype = FloatNamed(expected.at("fp8"));
    const Npy bits = QuantArray(expected.at("input_bits"));
    const std::vector<float> values = bits.Floats(input);
    std::vector<uint8_t> codes(values.size());
    QuantiseFloat8(dtype, values, 1, Float8Overflow::kCast, codes.data());
    CHECK(codes == QuantArray(expected.at("bytes"), {values.size()}).Codes());
    std::vector<float> back(values.size());
    DequantiseFloat8(dtype, codes, 1, back.data());
    CHECK(EqualBits(back, QuantArray(expected.at("deq_bits"), bits.shape).Floats(input)));
    run.Checked(2);
  }
}

// The lengths of K, V and the scales that a blob states, and these bytes, with which it ends.
struct Blob {
  Bytes bytes;
  ByteSpan k, v, scales;

  explicit Blob(Bytes all) : bytes(std::move(all)) {
    constexpr size_t kFixed = 76, kLengths = 3 * sizeof(uint64_t);
    REQUIRE(bytes.size() >= kFixed + kLengths);
    const auto extents = LoadLE<uint64_t>(&bytes[kFixed - sizeof(uint64_t)]);  // of the scales
    REQUIRE(extents <= 4);
    const size_t at = kFixed + extents * sizeof(uint64_t);
    REQUIRE(bytes.size() >= at + kLengths);
    const auto k_bytes = LoadLE<uint64_t>(&bytes[at]), v_bytes = LoadLE<uint64_t>(&bytes[at + 8]),
               scale_bytes = LoadLE<uint64_t>(&bytes[at + 16]);
    const uint64_t room = bytes.size() - at - kLengths;
    REQUIRE(
        (k_bytes <= room && v_bytes <= room - k_bytes && scale_bytes <= room - k_bytes - v_bytes));
    const ByteSpan end = ByteSpan(bytes).last(k_bytes + v_bytes + scale_bytes);
    k = end.first(k_bytes);
    v = end.subspan(k_bytes, v_bytes);
    scales = end.last(scale_bytes);
  }
};

// K is unchanged, and V holds the codes of its values with the scales next to them.
void CheckBlob(const Blob& blob, DType dtype, std::span<const float> k, std::span<const float> v,
               const TraceSide& side, bool by_head, Run& run) {
  REQUIRE(blob.k.size() == k.size() * 2);
  REQUIRE(blob.v.size() == v.size());
  REQUIRE(blob.scales.size() == (by_head ? side.heads : 1) * sizeof(float));
  std::vector<float> keys(k.size());
  ToFloats(dtype, blob.k, keys);
  CHECK(EqualBits(keys, k));
  size_t wrong = 0;
  for (size_t at = 0; at + side.dim <= v.size(); at += side.dim) {
    const size_t head = by_head ? at / side.dim % side.heads : 0;
    float scale;
    std::memcpy(&scale, &blob.scales[head * sizeof scale], sizeof scale);
    std::vector<uint8_t> codes(side.dim);
    QuantiseFloat8(DType::kF8E4M3, v.subspan(at, side.dim), scale, Float8Overflow::kSaturate,
                   codes.data());
    for (size_t d = 0; d < side.dim; ++d)
      wrong += static_cast<std::byte>(codes[d]) != blob.v[at + d];
  }
  CHECK(wrong == 0);
  run.Checked(2);
}

void CheckK16V8(const json& vector, Run& run) {
  const auto k = SideOfTrace(vector, true, run), v = SideOfTrace(vector, false, run);
  if (!k || !v) return;
  REQUIRE(k->shape() == v->shape());
  for (const json& expected : vector.at("expect")) {
    INFO(expected);
    const DType dtype = FloatNamed(expected.at("dtype"));
    const std::string scope = expected.at("scope");
    REQUIRE((scope == "PER_TENSOR" || scope == "PER_LAYER_HEAD"));
    const bool by_head = scope == "PER_LAYER_HEAD";
    std::vector<float> keys = k->values, values = v->values;
    for (float& key : keys) key = RoundedTo(dtype, key);
    for (float& value : values) value = RoundedTo(dtype, value);
    const std::string file = "quant/" + expected.value("blob", "");
    if (expected.contains("blob") && run.File(file)) {
      const Blob blob(run.Load(file));
      if (expected.contains("case")) {  // values of a `case` do not come from the trace
        REQUIRE(expected["case"].get<std::string>().starts_with("V all zero"));
        keys.assign(blob.k.size() / 2, 0);
        values.assign(blob.v.size(), 0);
      }
      CheckBlob(blob, dtype, keys, values, *v, by_head, run);
      if (expected.contains("scales")) {
        const auto scales = expected["scales"].get<std::vector<float>>();
        REQUIRE(scales.size() * sizeof(float) == blob.scales.size());
        CHECK(std::memcmp(scales.data(), blob.scales.data(), blob.scales.size()) == 0);
        run.Checked();
      }
    }
    if (!expected.contains("v_deq_bits")) continue;
    quant::Side side = v->Side(values);
    side.model = dtype;
    const std::vector<float> got = Stored(by_head ? "k16v8_head" : "k16v8", side);
    CHECK(EqualBits(got, QuantArray(expected["v_deq_bits"], v->shape()).Floats(dtype)));
    run.Checked();
  }
}

// Unpacks codes, 32 / bits of them in a word, the first in the low bits.
std::vector<uint8_t> Unpacked(const Npy& words, uint32_t bits) {
  REQUIRE(Info(words.dtype).block_bytes == 4);
  std::vector<uint8_t> codes;
  for (size_t i = 0; i < words.bytes.size(); i += 4) {
    const auto word = LoadLE<uint32_t>(&words.bytes[i]);
    for (uint32_t at = 0; at < 32; at += bits)
      codes.push_back(static_cast<uint8_t>(word >> at & ((1u << bits) - 1)));
  }
  return codes;
}

// Groups as the engine made them, and the values read back from their tokens.
struct KiviGroups {
  std::vector<uint8_t> codes;
  std::vector<float> scales, least, out;

  void Add(const quant::GroupCodes& group) {
    codes.insert(codes.end(), group.codes.begin(), group.codes.end());
    scales.push_back(group.scale);
    least.push_back(group.shift);
  }
  void Check(const json& expected, const std::string& side, uint32_t bits, const TraceSide& trace,
             Run& run) const {
    INFO(side);
    CHECK(EqualBits(out, QuantArray(expected.at(side + "_deq"), trace.shape()).Floats()));
    run.Checked();
    if (!expected.contains(side + "_codes")) return;
    CHECK(codes == Unpacked(QuantArray(expected.at(side + "_codes")), bits));
    CHECK(EqualBits(scales, QuantArray(expected.at(side + "_scale")).Floats()));
    CHECK(EqualBits(least, QuantArray(expected.at(side + "_min")).Floats()));
    run.Checked(3);
  }
};

void CheckKivi(const json& vector, Run& run) {
  const auto k = SideOfTrace(vector, true, run), v = SideOfTrace(vector, false, run);
  if (!k || !v) return;
  for (const json& expected : vector.at("expect")) {
    const uint32_t bits = expected.at("bits");
    REQUIRE((bits == 2 || bits == 4 || bits == 8));
    const uint64_t k_group = expected.at("group_k_tokens");
    const uint64_t v_group = expected.at("group_v_channels");
    const uint64_t k_tokens = expected.at("k_tokens_quantised");
    const uint64_t v_tokens = expected.at("v_tokens_quantised");
    REQUIRE((k_group > 0 && v_group > 0 && k_tokens % k_group == 0 && v->dim % v_group == 0));
    REQUIRE((k_tokens <= k->tokens && v_tokens <= v->tokens));
    KiviGroups keys, values;
    keys.out = k->values, values.out = v->values;
    for (uint64_t channel = 0; channel < k->row(); ++channel) {
      for (uint64_t at = channel; at < k_tokens * k->row(); at += k_group * k->row())
        keys.Add(quant::StoreKivi(&k->values[at], k_group, k->row(), bits, &keys.out[at]));
    }
    for (uint64_t head = 0; head < v->heads; ++head) {
      for (uint64_t t = 0; t < v_tokens; ++t) {
        for (uint64_t d = 0; d < v->dim; d += v_group) {
          const uint64_t at = t * v->row() + head * v->dim + d;
          values.Add(quant::StoreKivi(&v->values[at], v_group, 1, bits, &values.out[at]));
        }
      }
    }
    keys.Check(expected, "k", bits, *k, run);
    values.Check(expected, "v", bits, *v, run);
  }
}

void CheckKvQuant(const json& vector, Run& run) {
  const auto k = SideOfTrace(vector, true, run), v = SideOfTrace(vector, false, run);
  if (!k || !v) return;
  const std::vector<float> pre = QuantArray(vector.at("pre_rope_k"), k->shape()).Floats();
  const std::string input = vector.at("input");  // states how the keys were rotated
  REQUIRE(input.find("base 10000, neighbouring pairs") != input.npos);
  const Rope rope{.pairs = RopePairs::kNeighbours, .theta = 10000};
  for (const json& expected : vector.at("expect")) {
    const std::string outliers = expected.at("outliers");
    REQUIRE((outliers == "dense" || outliers == "sparse1pct"));
    const bool sparse = outliers == "sparse1pct";
    const uint32_t bits = expected.at("bits");
    INFO(bits << " bits, sparse " << sparse);
    std::vector<float> got(pre.size());
    uint64_t kept = 0;
    for (uint64_t c = 0; c < k->row(); ++c)
      kept += quant::StoreKvQuant(&pre[c], k->tokens, k->row(), bits, sparse, &got[c]);
    CHECK(kept == expected.at("k_outliers").get<uint64_t>());
    CHECK(WorstError(got, QuantArray(expected.at("k_deq_pre_rope"), k->shape()).Floats()) < 1e-4);
    const std::string type = "kvquant" + std::to_string(bits) + (sparse ? "_sparse" : "");
    const quant::StoreOptions options{.rope = &rope};
    const auto v_got = Stored(type, v->Side(), options);
    CHECK(WorstError(v_got, QuantArray(expected.at("v_deq"), v->shape()).Floats()) < 1e-4);
    run.Checked(3);
    if (!expected.contains("k_deq_post_rope")) continue;
    // The inverse rotation rounds differently here and there: rarely, a value gets the next code.
    const auto k_got = Stored(type, k->Side(), options);
    const auto post = QuantArray(expected["k_deq_post_rope"], k->shape()).Floats();
    size_t beyond = 0;
    for (size_t i = 0; i < post.size(); ++i) beyond += std::fabs(k_got[i] - post[i]) > 1e-3f;
    CHECK(beyond < post.size() / 500);
    run.Checked();
  }
}

void CheckQuanto(const json& vector, Run& run) {
  for (const json& expected : vector.at("expect")) {
    INFO(expected);
    const auto side = SideNamed(expected.at("side"), vector, run);
    if (!side) return;
    const DType dtype = FloatNamed(expected.at("dtype"));
    REQUIRE((dtype == DType::kF16 || dtype == DType::kF32));
    REQUIRE(expected.at("axis") == 0);
    const uint64_t group = expected.at("group");
    REQUIRE((group > 0 && side->dim % group == 0));
    const auto arithmetic =
        dtype == DType::kF16 ? quant::Arithmetic::kHalf : quant::Arithmetic::kFloat;
    std::vector<uint8_t> codes;
    std::vector<float> scales, shifts, back(group), all;
    for (uint64_t head = 0; head < side->heads; ++head) {
      for (uint64_t i = 0; i < side->tokens * side->dim; i += group) {
        const uint64_t at = i / side->dim * side->row() + head * side->dim + i % side->dim;
        const auto stored =
            quant::StoreQuanto(&side->values[at], group, 1, expected.at("bits").get<uint32_t>(),
                               arithmetic, back.data());
        codes.insert(codes.end(), stored.codes.begin(), stored.codes.end());
        scales.push_back(stored.scale);
        shifts.push_back(stored.shift);
        all.insert(all.end(), back.begin(), back.end());
      }
    }
    const Shape rows = {scales.size(), group}, each = {scales.size(), 1};
    CHECK(codes == QuantArray(expected.at("codes"), rows).Codes());
    CHECK(EqualBits(scales, QuantArray(expected.at("scale"), each).Floats()));
    CHECK(EqualBits(shifts, QuantArray(expected.at("shift"), each).Floats()));
    CHECK(WorstError(all, QuantArray(expected.at("deq"), rows).Floats()) < 1e-3);
    run.Checked(3);
  }
}

// Returns the index of value `d` in packed codes of `bits` bits, little end first.
uint32_t IndexAt(const uint8_t* packed, uint32_t d, uint32_t bits) {
  const uint32_t at = d * bits;
  const uint32_t word = packed[at / 8] | (at % 8 + bits > 8 ? packed[at / 8 + 1] : 0u) << 8;
  return word >> at % 8 & ((1u << bits) - 1);
}

struct TurboBits {
  std::string_view name;
  uint32_t k, v;
};

void CheckTurbo(const json& vector, Run& run) {
  constexpr TurboBits kTypes[] = {{"turboquant_k8v4", 8, 4},
                                  {"turboquant_4bit_nc", 4, 4},
                                  {"turboquant_k3v4_nc", 3, 4},
                                  {"turboquant_3bit_nc", 3, 3}};
  const std::string name = vector.at("name");
  const auto type = std::ranges::find_if(
      kTypes, [&](const TurboBits& row) { return name.find(row.name) != name.npos; });
  REQUIRE(type != std::end(kTypes));
  const auto k_side = SideOfTrace(vector, true, run), v_side = SideOfTrace(vector, false, run);
  if (!k_side || !v_side) return;
  REQUIRE(k_side->shape() == v_side->shape());
  const std::vector<float>&k = k_side->values, &v = v_side->values;
  const uint32_t dim = k_side->dim;
  REQUIRE(std::has_single_bit(dim));
  REQUIRE(dim % 8 == 0);
  const bool is_cast = type->k == 8;
  const uint32_t v_at = dim * type->k / 8 + (is_cast ? 0 : 2);
  const uint32_t slot = v_at + dim * type->v / 8 + 4;
  const json& expected = vector.at("expect").at(0);
  const std::vector<uint8_t> bytes =
      QuantArray(expected.at("slots"), {k_side->tokens, k_side->heads, slot}).Codes();
  std::vector<float> signs;
  if (expected.contains("signs")) {
    const std::string input = vector.at("input");
    constexpr std::string_view kSeed = "seed layer index ";
    REQUIRE(input.find(kSeed) != input.npos);
    const auto layer = std::stoul(input.substr(input.find(kSeed) + kSeed.size()));
    signs = quant::LmcacheSigns(dim, static_cast<uint32_t>(layer));
    CHECK(EqualBits(signs, QuantArray(expected["signs"], {dim}).Floats()));
    const quant::TurboTable table = quant::LloydMax(dim, is_cast ? 4 : type->k);
    CHECK(EqualBits(table.centroids, QuantArray(expected.at("centroids")).Floats()));
    CHECK(WorstError(table.midpoints, QuantArray(expected.at("midpoints")).Floats()) < 1e-15);
    run.Checked(3);
  }
  const auto values = quant::StoreTurboValues(v, dim, type->v);
  quant::TurboKeys keys;
  if (!is_cast) keys = quant::StoreTurboKeys(k, dim, type->k, signs);
  size_t wrong = 0, wrong_keys = 0;
  for (size_t i = 0; i < k.size() / dim; ++i) {
    const uint8_t* one = &bytes[i * slot];
    for (uint32_t d = 0; d < dim; ++d) {
      wrong += IndexAt(one + v_at, d, type->v) != values.codes[i * dim + d];
      if (!is_cast) wrong_keys += IndexAt(one, d, type->k) != keys.indices[i * dim + d];
      if (is_cast) wrong_keys += one[d] != F32ToE4M3(k[i * dim + d], Float8Overflow::kCast);
    }
    const uint8_t* tail = one + v_at + dim * type->v / 8;
    wrong += (tail[0] | tail[1] << 8) != values.scales[i];
    wrong += (tail[2] | tail[3] << 8) != values.least[i];
    if (!is_cast) wrong += (one[v_at - 2] | one[v_at - 1] << 8) != keys.norms[i];
  }
  CHECK(wrong == 0);
  // Values within rounding of a midpoint may get either code.
  CHECK(wrong_keys <= (is_cast ? 0 : 2));
  run.Checked(2);
  std::vector<float> back(v.size());
  if (expected.contains("v_deq")) {
    quant::ReadTurboValues(values, dim, back);
    CHECK(WorstError(back, QuantArray(expected["v_deq"], v_side->shape()).Floats()) < 1e-2);
    run.Checked();
  }
  if (is_cast || wrong_keys > 0) return;
  quant::ReadTurboKeys(keys, dim, type->k, signs, back);
  CHECK(WorstError(back, QuantArray(expected.at("k_deq"), k_side->shape()).Floats()) < 1e-2);
  run.Checked();
}

// Unpacks the indices of one vector in a slot: two bits (of three) or four of each value, four
// values per group of as many bytes, the first values low; then the third bits likewise.
std::vector<uint8_t> OctaveIndices(std::span<const uint8_t> packed, uint32_t bits) {
  const uint32_t low = bits == 3 ? 2 : 4, values = quant::kOctaveDim;
  const auto plane = [](std::span<const uint8_t> bytes, uint32_t d, uint32_t width) {
    const uint32_t in_group = 32 / width, at = d % in_group;  // of four bytes
    return bytes[d / in_group * 4 + at % 4] >> (at / 4 * width) & ((1u << width) - 1);
  };
  std::vector<uint8_t> indices(values);
  for (uint32_t d = 0; d < values; ++d) {
    uint32_t index = plane(packed, d, low);
    if (bits == 3) index |= plane(packed.subspan(values * low / 8), d, 1) << 2;
    indices[d] = static_cast<uint8_t>(index);
  }
  return indices;
}

void CheckOctave(const json& vector, Run& run) {
  constexpr TurboBits kTypes[] = {
      {"octave_k3v4", 4, 4}, {"octave_k3v3_compact", 3, 3}, {"octave_k3v3", 4, 3}};
  const std::string name = vector.at("name");
  const auto type = std::ranges::find_if(
      kTypes, [&](const TurboBits& row) { return name.find(row.name) != name.npos; });
  REQUIRE(type != std::end(kTypes));
  const auto k = SideOfTrace(vector, true, run), v = SideOfTrace(vector, false, run);
  if (!k || !v) return;
  REQUIRE(k->shape() == v->shape());
  constexpr uint32_t kDim = quant::kOctaveDim;
  REQUIRE(k->dim == kDim);
  for (const json& expected : vector.at("expect")) {
    CHECK(EqualBits(quant::OctaveSigns(), QuantArray(expected.at("signs"), {kDim}).Floats()));
    const uint64_t size = expected.at("slot_bytes"), v_at = type->k * kDim / 8,
                   scales = v_at + type->v * kDim / 8;
    REQUIRE(scales + 4 <= size);
    const std::vector<uint8_t> slots =
        QuantArray(expected.at("slots"), {k->tokens, k->heads, size}).Codes();
    for (const bool is_key : {true, false}) {
      const TraceSide& side = is_key ? *k : *v;
      const uint32_t bits = is_key ? type->k : type->v;
      const quant::OctaveCodes stored = quant::StoreOctave(side.values, bits);
      size_t wrong = 0, wrong_scales = 0;
      for (size_t i = 0; i < stored.scales.size(); ++i) {
        const std::span<const uint8_t> slot = std::span(slots).subspan(i * size, size);
        const auto indices = OctaveIndices(slot.subspan(is_key ? 0 : v_at, bits * kDim / 8), bits);
        for (uint32_t d = 0; d < kDim; ++d) wrong += indices[d] != stored.indices[i * kDim + d];
        const uint8_t* at = &slot[scales + (is_key ? 0 : 2)];
        wrong_scales += std::abs((at[0] | at[1] << 8) - stored.scales[i]) > 1;
      }
      INFO((is_key ? "K" : "V"));
      // Values within rounding of a boundary may get either code, and their scale changes with
      // them.
      CHECK(wrong <= 2);
      CHECK(wrong_scales == 0);
      const auto got = Stored(std::string(type->name), side.Side());
      const auto deq = QuantArray(expected.at(is_key ? "k_deq" : "v_deq"), side.shape()).Floats();
      if (wrong == 0) CHECK(WorstError(got, deq) < 1e-5);
      run.Checked(3);
    }
  }
}

void CheckUltra(const json& vector, Run& run) {
  const std::string name = vector.at("name");
  REQUIRE((name.ends_with("-k") || name.ends_with("-v")));
  for (const json& expected : vector.at("expect")) {
    const Npy input = QuantArray(expected.at("input_f32"));
    REQUIRE(input.shape.size() == 3);
    const uint64_t dim = input.shape[2];
    REQUIRE((std::has_single_bit(dim) && dim % quant::kUltraGroup == 0));
    // The vectors of K and of V are rotated; the engine rotates only those of K.
    const auto stored = quant::StoreUltra(input.Floats(), static_cast<uint32_t>(dim), true);
    Shape codes = input.shape, groups = input.shape;
    codes[2] = dim / 2;
    groups[2] = dim / quant::kUltraGroup;
    CHECK(stored.codes == QuantArray(expected.at("codes_packed"), codes).Codes());
    CHECK(stored.exponents == QuantArray(expected.at("scale_bytes"), groups).Codes());
    std::vector<float> back(input.size());
    quant::ReadUltra(stored, back);
    CHECK(EqualBits(back, QuantArray(expected.at("deq"), input.shape).Floats()));
    run.Checked(3);
  }
}

void CheckFrozenFp8(const json& vector, Run& run) {
  for (const json& expected : vector.at("expect")) {
    const auto side = SideNamed(expected.at("side"), vector, run);
    if (!side) return;
    const uint64_t first = expected.at("scale_from_tokens");
    REQUIRE((first > 0 && first <= side->tokens));
    float most = 0;
    for (uint64_t i = 0; i < first * side->row(); ++i)
      most = std::max(most, std::fabs(side->values[i]));
    const auto scale = static_cast<float>(expected.at("scale").get<double>());
    CHECK(most / 448.0f == scale);
    std::vector<uint8_t> codes(side->values.size());
    QuantiseFloat8(DType::kF8E4M3, side->values, scale, Float8Overflow::kCast, codes.data());
    CHECK(codes == QuantArray(expected.at("codes"), side->shape()).Codes());
    const auto got = Stored("transformers_fp8", side->Side(), {.first_tokens = first});
    CHECK(EqualBits(got, QuantArray(expected.at("deq_f16"), side->shape()).Floats()));
    run.Checked(3);
  }
}

}  // namespace

void CheckQuantScales(Run& run) {
  constexpr KindCheck kKinds[] = {{"vllm_fp8", CheckFp8},
                                  {"vllm_per_token_head", CheckTokenHead},
                                  {"lmcache_fp8", CheckLmcacheCast},
                                  {"lmcache_k16v8", CheckK16V8},
                                  {"kivi", CheckKivi},
                                  {"kvquant", CheckKvQuant},
                                  {"hf_quanto", CheckQuanto},
                                  {"turboquant", CheckTurbo},
                                  {"octave", CheckOctave},
                                  {"ultraquant", CheckUltra},
                                  {"hf_fp8", CheckFrozenFp8}};
  CheckKinds(kKinds, run);
}

}  // namespace kv::golden
