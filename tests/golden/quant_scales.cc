// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Caches with scales beside their codes, against vLLM's, LMCache's and the papers' arithmetic.
#include "lib/core/base/bytes.h"
#include "lib/core/quant/groups.h"
#include "lib/core/quant/token_head.h"
#include "lib/core/quant/turbo.h"
#include "tests/golden/quant_arrays.h"

namespace kv::golden {
namespace {

using nlohmann::json;

std::vector<float> Stored(const char* type, const quant::Side& side,
                          const quant::StoreOptions& options = {}) {
  std::vector<float> out(side.values.size());
  const quant::CacheType& row = quant::ParseCacheType(type, "golden");
  row.store(row, side, options, out);
  return out;
}

void CheckFp8(const json& vector, Run& run) {
  for (const json& expected : vector.at("expect")) {
    const bool is_key = expected.at("side") == "k";
    const std::string scale = expected.at("scale");
    INFO(expected.at("side") << " " << scale);
    const std::vector<float> values = TraceSide(is_key ? "K" : "V", 48);
    const std::vector<float> scales = QuantArray(expected.at("scales")).Floats();
    std::vector<uint8_t> codes(values.size());
    std::vector<float> back(values.size());
    for (size_t at = 0; at < values.size(); at += 64) {
      const float one = scales[at / 64 % scales.size()];
      QuantiseFloat8(DType::kF8E4M3, std::span(values).subspan(at, 64), one,
                     Float8Overflow::kSaturate, &codes[at]);
      DequantiseFloat8(DType::kF8E4M3, std::span(codes).subspan(at, 64), one, &back[at]);
    }
    for (float& value : back) value = F16ToF32(F32ToF16(value));
    CHECK(codes == QuantArray(expected.at("codes")).Codes());
    const std::vector<float> deq = QuantArray(expected.at("deq_f16")).Floats();
    CHECK(EqualBits(back, deq));
    // The named types choose these scales themselves.
    const char* type = scale == "scale1"     ? "fp8_e4m3"
                       : scale == "amax448"  ? "fp8_amax"
                       : scale == "per_head" ? "fp8_head"
                                             : nullptr;
    if (type != nullptr) CHECK(EqualBits(Stored(type, TraceSideOf(values, is_key)), deq));
    run.Checked(2);
  }
}

void CheckTokenHead(const json& vector, Run& run) {
  const bool is_key = vector.at("name").get<std::string>().ends_with("-k");
  const std::vector<float> values = TraceSide(is_key ? "K" : "V", 48);
  for (const json& expected : vector.at("expect")) {
    const std::string type = expected.at("type");
    INFO(type);
    std::vector<float> back(values.size()), signs;
    quant::TokenHeadCodes stored;
    if (type.starts_with("int8")) {
      stored = quant::StoreInt8(values, 64);
      quant::ReadInt8(stored, 64, back);
    } else if (type.starts_with("fp8")) {
      stored = quant::StoreFloat8(values, 64);
      quant::ReadFloat8(stored, 64, back);
    } else {
      signs = quant::VllmSigns(64);
      CHECK(EqualBits(signs, QuantArray(expected.at("signs")).Floats()));
      stored = quant::StoreInt4(values, 64, signs);
      quant::ReadInt4(stored, 64, signs, back);
    }
    CHECK(stored.codes == QuantArray(expected.at("codes")).Codes());
    CHECK(EqualBits(stored.scales, QuantArray(expected.at("scales")).Floats()));
    const std::vector<float> deq = QuantArray(expected.at("deq_f32")).Floats();
    if (signs.empty()) {
      CHECK(EqualBits(back, deq));
    } else {
      CHECK(WorstError(back, deq) < 1e-5);  // the sum of the inverse transform has an order
    }
    run.Checked(3);
  }
}

void CheckLmcache(const json& vector, Run& run) {
  if (vector.at("kind") == "lmcache_fp8") {
    for (const json& expected : vector.at("expect")) {
      const Npy input = QuantArray(expected.at("input_bits"));
      const bool is_bf16 = expected.at("dtype") == "bf16";
      const DType dtype = expected.at("fp8") == "e5m2" ? DType::kF8E5M2 : DType::kF8E4M3;
      std::vector<float> values(input.bytes.size() / 2);
      ToFloats(is_bf16 ? DType::kBF16 : DType::kF16, input.bytes, values);
      std::vector<uint8_t> codes(values.size());
      QuantiseFloat8(dtype, values, 1, Float8Overflow::kCast, codes.data());
      INFO(expected);
      CHECK(codes == QuantArray(expected.at("bytes")).Codes());
      run.Checked();
    }
    return;
  }
  for (const json& expected : vector.at("expect")) {
    if (!expected.contains("v_deq_bits")) continue;
    INFO(expected);
    const bool is_bf16 = expected.at("dtype") == "bf16";
    std::vector<float> values = TraceSide("V", 32);
    if (is_bf16) {
      for (float& value : values) value = BF16ToF32(F32ToBF16(value));
    }
    quant::Side side = TraceSideOf(values, false);
    if (is_bf16) side.model = DType::kBF16;
    const bool by_head = expected.at("scope") == "PER_LAYER_HEAD";
    const std::vector<float> got = Stored(by_head ? "k16v8_head" : "k16v8", side);
    const Npy bits = QuantArray(expected.at("v_deq_bits"));
    std::vector<float> deq(values.size());
    ToFloats(is_bf16 ? DType::kBF16 : DType::kF16, bits.bytes, deq);
    CHECK(EqualBits(got, deq));
    run.Checked();
  }
}

// Codes packed 32 / bits to a word, first in the low bits.
std::vector<uint8_t> Unpacked(const Npy& words, uint32_t bits) {
  std::vector<uint8_t> codes;
  for (size_t i = 0; i < words.bytes.size(); i += 4) {
    const auto word = LoadLE<uint32_t>(&words.bytes[i]);
    for (uint32_t at = 0; at < 32; at += bits)
      codes.push_back(static_cast<uint8_t>(word >> at & ((1u << bits) - 1)));
  }
  return codes;
}

void CheckKivi(const json& vector, Run& run) {
  const json& expected = vector.at("expect").at(0);
  const uint32_t bits = expected.at("bits");
  const uint64_t k_tokens = expected.at("k_tokens_quantised");
  const uint64_t v_tokens = expected.at("v_tokens_quantised");
  std::vector<float> k = TraceSide("K", 96), v = TraceSide("V", 96), k_out = k, v_out = v;
  std::vector<uint8_t> k_codes, v_codes;
  std::vector<float> k_scales, k_least;
  for (uint64_t channel = 0; channel < 128; ++channel) {
    for (uint64_t t = 0; t < k_tokens; t += 32) {
      const auto group =
          quant::StoreKivi(&k[t * 128 + channel], 32, 128, bits, &k_out[t * 128 + channel]);
      k_codes.insert(k_codes.end(), group.codes.begin(), group.codes.end());
      k_scales.push_back(group.scale);
      k_least.push_back(group.shift);
    }
  }
  for (uint64_t head = 0; head < 2; ++head) {
    for (uint64_t t = 0; t < v_tokens; ++t) {
      for (uint64_t d = 0; d < 64; d += 32) {
        const uint64_t at = t * 128 + head * 64 + d;
        const auto group = quant::StoreKivi(&v[at], 32, 1, bits, &v_out[at]);
        v_codes.insert(v_codes.end(), group.codes.begin(), group.codes.end());
      }
    }
  }
  CHECK(EqualBits(k_out, QuantArray(expected.at("k_deq")).Floats()));
  CHECK(EqualBits(v_out, QuantArray(expected.at("v_deq")).Floats()));
  run.Checked(2);
  if (!expected.contains("k_codes")) return;
  CHECK(k_codes == Unpacked(QuantArray(expected.at("k_codes")), bits));
  CHECK(v_codes == Unpacked(QuantArray(expected.at("v_codes")), bits));
  CHECK(EqualBits(k_scales, QuantArray(expected.at("k_scale")).Floats()));
  CHECK(EqualBits(k_least, QuantArray(expected.at("k_min")).Floats()));
  run.Checked(4);
}

void CheckKvQuant(const json& vector, Run& run) {
  const std::vector<float> pre = QuantArray(vector.at("pre_rope_k")).Floats();
  const std::vector<float> k = TraceSide("K", 96), v = TraceSide("V", 96);
  const Rope rope{.pairs = RopePairs::kNeighbours, .theta = 10000};
  for (const json& expected : vector.at("expect")) {
    const bool sparse = expected.at("outliers") != "dense";
    const uint32_t bits = expected.at("bits");
    INFO(bits << " bits, sparse " << sparse);
    std::vector<float> got(pre.size());
    uint64_t outliers = 0;
    for (uint64_t c = 0; c < 128; ++c)
      outliers += quant::StoreKvQuant(&pre[c], 96, 128, bits, sparse, &got[c]);
    CHECK(outliers == expected.at("k_outliers").get<uint64_t>());
    CHECK(WorstError(got, QuantArray(expected.at("k_deq_pre_rope")).Floats()) < 1e-4);
    const std::string type = "kvquant" + std::to_string(bits) + (sparse ? "_sparse" : "");
    const quant::StoreOptions options{.rope = &rope};
    const auto v_got = Stored(type.c_str(), TraceSideOf(v, false), options);
    CHECK(WorstError(v_got, QuantArray(expected.at("v_deq")).Floats()) < 1e-4);
    run.Checked(3);
    if (!expected.contains("k_deq_post_rope")) continue;
    // Un-turning rounds otherwise here and there: a value may land on the next step, rarely.
    const auto k_got = Stored(type.c_str(), TraceSideOf(k, true), options);
    const auto post = QuantArray(expected["k_deq_post_rope"]).Floats();
    size_t beyond = 0;
    for (size_t i = 0; i < post.size(); ++i) beyond += std::fabs(k_got[i] - post[i]) > 1e-3f;
    CHECK(beyond < post.size() / 500);
    run.Checked();
  }
}

void CheckQuanto(const json& vector, Run& run) {
  for (const json& expected : vector.at("expect")) {
    INFO(expected);
    const std::vector<float> side = TraceSide(expected.at("side") == "k" ? "K" : "V", 40);
    const auto arithmetic =
        expected.at("dtype") == "f16" ? quant::Arithmetic::kHalf : quant::Arithmetic::kFloat;
    std::vector<uint8_t> codes;
    std::vector<float> scales, shifts, back(64), all;
    for (uint64_t row = 0; row < 80; ++row) {  // [head][token]
      const uint64_t at = row % 40 * 128 + row / 40 * 64;
      const auto group = quant::StoreQuanto(&side[at], 64, 1, expected.at("bits").get<uint32_t>(),
                                            arithmetic, back.data());
      codes.insert(codes.end(), group.codes.begin(), group.codes.end());
      scales.push_back(group.scale);
      shifts.push_back(group.shift);
      all.insert(all.end(), back.begin(), back.end());
    }
    CHECK(codes == QuantArray(expected.at("codes")).Codes());
    CHECK(EqualBits(scales, QuantArray(expected.at("scale")).Floats()));
    CHECK(EqualBits(shifts, QuantArray(expected.at("shift")).Floats()));
    CHECK(WorstError(all, QuantArray(expected.at("deq")).Floats()) < 1e-3);
    run.Checked(3);
  }
}

// The index of value `d` in packed codes of `bits` bits, little end first.
uint32_t IndexAt(const uint8_t* packed, uint32_t d, uint32_t bits) {
  const uint32_t at = d * bits;
  const uint32_t word = packed[at / 8] | (at % 8 + bits > 8 ? packed[at / 8 + 1] : 0u) << 8;
  return word >> at % 8 & ((1u << bits) - 1);
}

void CheckTurbo(const json& vector, Run& run) {
  const std::string name = vector.at("name");
  const json& expected = vector.at("expect").at(0);
  const Npy slots = QuantArray(expected.at("slots"));
  const std::vector<uint8_t> bytes = slots.Codes();
  const std::vector<float> k = TraceSide("K", 32), v = TraceSide("V", 32);
  const uint32_t slot = static_cast<uint32_t>(slots.shape[2]);
  const bool is_cast = name.find("k8v4") != name.npos;
  const uint32_t k_bits = name.find("4bit") != name.npos ? 4 : 3;
  const uint32_t v_bits = name.find("3bit") != name.npos ? 3 : 4;
  std::vector<float> signs;
  if (expected.contains("signs")) {
    signs = quant::LmcacheSigns(64, 2);
    CHECK(EqualBits(signs, QuantArray(expected["signs"]).Floats()));
    const quant::TurboTable table = quant::LloydMax(64, is_cast ? 4 : k_bits);
    CHECK(EqualBits(table.centroids, QuantArray(expected.at("centroids")).Floats()));
    CHECK(WorstError(table.midpoints, QuantArray(expected.at("midpoints")).Floats()) < 1e-15);
    run.Checked(3);
  }
  const uint32_t v_at = is_cast ? 64 : 64 * k_bits / 8 + 2;
  const auto values = quant::StoreTurboValues(v, 64, v_bits);
  const auto keys = quant::StoreTurboKeys(k, 64, k_bits, signs);
  size_t wrong = 0, wrong_keys = 0;
  for (size_t i = 0; i < 64; ++i) {
    const uint8_t* one = &bytes[i * slot];
    for (uint32_t d = 0; d < 64; ++d) {
      wrong += IndexAt(one + v_at, d, v_bits) != values.codes[i * 64 + d];
      if (!is_cast) wrong_keys += IndexAt(one, d, k_bits) != keys.indices[i * 64 + d];
      if (is_cast) wrong_keys += one[d] != F32ToE4M3(k[i * 64 + d], Float8Overflow::kCast);
    }
    const uint8_t* tail = one + v_at + 64 * v_bits / 8;
    wrong += (tail[0] | tail[1] << 8) != values.scales[i];
    wrong += (tail[2] | tail[3] << 8) != values.least[i];
    if (!is_cast) wrong += (one[v_at - 2] | one[v_at - 1] << 8) != keys.norms[i];
  }
  CHECK(wrong == 0);
  // Values within a rounding of a midpoint may go either way.
  CHECK(wrong_keys <= (is_cast ? 0 : 2));
  run.Checked(2);
  if (is_cast || wrong_keys > 0) return;
  std::vector<float> back(k.size());
  quant::ReadTurboKeys(keys, 64, k_bits, signs, back);
  CHECK(WorstError(back, QuantArray(expected.at("k_deq")).Floats()) < 1e-2);
  run.Checked();
}

}  // namespace

void CheckQuantScales(Run& run) {
  for (const json& vector : run.Json("quant/manifest.json").value("vectors", json::array())) {
    const std::string kind = vector.at("kind"), name = vector.at("name");
    INFO(name);
    if (kind == "vllm_fp8") CheckFp8(vector, run);
    if (kind == "vllm_per_token_head") CheckTokenHead(vector, run);
    if (kind.starts_with("lmcache")) CheckLmcache(vector, run);
    if (kind == "kivi") CheckKivi(vector, run);
    if (kind == "kvquant") CheckKvQuant(vector, run);
    if (kind == "hf_quanto") CheckQuanto(vector, run);
    if (kind == "turboquant") CheckTurbo(vector, run);
  }
}

}  // namespace kv::golden
