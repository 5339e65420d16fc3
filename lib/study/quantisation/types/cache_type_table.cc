// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/study/quantisation/types/cache_type.h"

namespace kv::quant {
namespace {

constexpr const char* kLlama = "llama.cpp";
constexpr const char* kVllm = "vLLM";
constexpr const char* kLmcache = "LMCache";
constexpr const char* kPaper = "the paper's code";
constexpr const char* kHf = "transformers";

// Names of llama.cpp are those of -ctk and -ctv; of vLLM, those of --kv-cache-dtype.
constexpr CacheType kTypes[] = {
    {kLlama, "f16", "16 bits", StoreFull, false, false, "", DType::kF16},
    {kLlama, "bf16", "16 bits, of these 8 of exponent", StoreFull, false, false, "", DType::kBF16},
    {kLlama, "q8_0", "8 bits, a scale for 32 values", StoreBlocks, false, false, "", DType::kQ8_0},
    {kLlama, "q5_1", "5 bits, scale and minimum", StoreBlocks, false, false, "", DType::kQ5_1},
    {kLlama, "q5_0", "5 bits, a scale", StoreBlocks, false, false, "", DType::kQ5_0},
    {kLlama, "q4_1", "4 bits, scale and minimum", StoreBlocks, false, false, "", DType::kQ4_1},
    {kLlama, "q4_0", "4 bits, a scale", StoreBlocks, false, false, "", DType::kQ4_0},
    {kLlama, "iq4_nl", "4 bits of a table", StoreBlocks, false, false, "", DType::kIQ4_NL},
    {kLlama, "iq4_nl_search", "the same as tools write it, not caches", StoreBlocks, false, false,
     "", DType::kIQ4_NL},
    {kVllm, "fp8_e4m3", "E4M3, no scale (1.0), saturating", StoreFp8, false, false, "f8_e4m3"},
    {kVllm, "fp8_e5m2", "E5M2, no scale, saturating", StoreFp8, false, false, "f8_e5m2"},
    {kVllm, "fp8_amax", "E4M3, scale = largest / 448 of a tensor", StoreFp8, false, false,
     "f8_e4m3_amax"},
    {kVllm, "fp8_head", "E4M3, such a scale for each kv head", StoreFp8, false, false,
     "f8_e4m3_head"},
    {kVllm, "int8_per_token_head", "8 bits, a scale for each token and head", StoreTokenHead, false,
     false, "int8_token_head"},
    {kVllm, "fp8_per_token_head", "E4M3, a scale for each token and head", StoreTokenHead, false,
     false, "fp8_token_head"},
    {kVllm, "int4_per_token_head", "4 bits, rotated by random signs", StoreTokenHead, false, false,
     "int4_token_head"},
    {kVllm, "turboquant_k8v4", "K in E4M3, V in 4 bits", StoreTurbo, false, true},
    {kVllm, "turboquant_4bit_nc", "K rotated in 4 bits of a table, V in 4", StoreTurbo, false,
     true},
    {kVllm, "turboquant_k3v4_nc", "K rotated in 3 bits of a table, V in 4", StoreTurbo, false,
     true},
    {kVllm, "turboquant_3bit_nc", "K rotated in 3 bits of a table, V in 3", StoreTurbo, false,
     true},
    {kVllm, "octave_k3v4", "K and V with signs, rotated, in 4 bits of a table (ROCm)",
     StoreOctaveSide},
    {kVllm, "octave_k3v3", "the same with V in 3 bits", StoreOctaveSide},
    {kVllm, "octave_k3v3_compact", "the same with K and V in 3 bits", StoreOctaveSide},
    {kVllm, "ultraquant_4bit", "E2M1, a power of two for 32 values, K rotated (gfx950)",
     StoreUltraSide},
    {kLmcache, "lmcache_fp8", "E4M3 as cast: NaN above 464", StoreFp8, false, false, "fp8_cast"},
    {kLmcache, "lmcache_fp8_e5m2", "E5M2 as cast: infinite from 61440", StoreFp8},
    {kLmcache, "k16v8", "K as it is, V in E4M3 with a scale for the tensor", StoreFp8},
    {kLmcache, "k16v8_head", "K as it is, V in E4M3 with a scale for each head", StoreFp8},
    {kLmcache, "lmcache_turboquant_4bit_nc", "turboquant_4bit_nc with signs of each layer",
     StoreTurbo, false, true},
    {kLmcache, "lmcache_turboquant_3bit_nc", "turboquant_3bit_nc with signs of each layer",
     StoreTurbo, false, true},
    {kPaper, "kivi8", "8 bits: K by channel and 32 tokens, V by token", StoreKiviSide, true},
    {kPaper, "kivi4", "4 bits: K by channel and 32 tokens, V by token", StoreKiviSide, true},
    {kPaper, "kivi2", "2 bits: K by channel and 32 tokens, V by token", StoreKiviSide, true},
    {kPaper, "kvquant4", "4 bits: K by channel before RoPE, V by token", StoreKvQuantSide},
    {kPaper, "kvquant3", "3 bits of the same", StoreKvQuantSide},
    {kPaper, "kvquant2", "2 bits of the same", StoreKvQuantSide},
    {kPaper, "kvquant4_sparse", "4 bits, the outermost 1% kept", StoreKvQuantSide},
    {kPaper, "kvquant2_sparse", "2 bits, the outermost 1% kept", StoreKvQuantSide},
    {kHf, "quanto4", "4 bits of 64 values in a row", StoreQuantoSide, true},
    {kHf, "quanto2", "2 bits of 64 values in a row", StoreQuantoSide, true},
    {kHf, "transformers_fp8", "E4M3 as cast, with the prompt's scale: NaN beyond it", StoreFp8},
};

}  // namespace

std::span<const CacheType> CacheTypes() { return kTypes; }

const CacheType* FindCacheType(std::string_view name) {
  for (const CacheType& type : kTypes) {
    if (type.name == name || (!type.alias.empty() && type.alias == name)) return &type;
  }
  return nullptr;
}

const CacheType& ParseCacheType(std::string_view name, std::string_view flag) {
  if (const CacheType* type = FindCacheType(name)) return *type;
  std::string names;
  for (const CacheType& type : kTypes) {
    names += names.empty() ? "" : ", ";
    names += type.name;
  }
  throw Error(Finding::kUsage, fmt::format("{} '{}': no such cache type", flag, Escaped(name)))
      .Hint("they are " + names);
}

}  // namespace kv::quant
