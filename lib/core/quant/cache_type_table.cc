// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/quant/cache_type.h"

namespace kv::quant {
namespace {

constexpr const char* kLlama = "llama.cpp";
constexpr const char* kVllm = "vLLM";
constexpr const char* kLmcache = "LMCache";
constexpr const char* kPaper = "the paper's code";
constexpr const char* kHf = "transformers";

// Names of llama.cpp are those of -ctk and -ctv; of vLLM, those of --kv-cache-dtype.
constexpr CacheType kTypes[] = {
    {"f16", "", kLlama, "16 bits", DType::kF16, false, false, StoreFull},
    {"bf16", "", kLlama, "16 bits, of these 8 of exponent", DType::kBF16, false, false, StoreFull},
    {"q8_0", "", kLlama, "8 bits, a scale for 32 values", DType::kQ8_0, false, false, StoreBlocks},
    {"q5_1", "", kLlama, "5 bits, scale and minimum", DType::kQ5_1, false, false, StoreBlocks},
    {"q5_0", "", kLlama, "5 bits, a scale", DType::kQ5_0, false, false, StoreBlocks},
    {"q4_1", "", kLlama, "4 bits, scale and minimum", DType::kQ4_1, false, false, StoreBlocks},
    {"q4_0", "", kLlama, "4 bits, a scale", DType::kQ4_0, false, false, StoreBlocks},
    {"iq4_nl", "", kLlama, "4 bits of a table", DType::kIQ4_NL, false, false, StoreBlocks},
    {"iq4_nl_search", "", kLlama, "the same as tools write it, not caches", DType::kIQ4_NL, false,
     false, StoreBlocks},
    {"fp8_e4m3", "f8_e4m3", kVllm, "E4M3, no scale (1.0), saturating", {}, false, false, StoreFp8},
    {"fp8_e5m2", "f8_e5m2", kVllm, "E5M2, no scale, saturating", {}, false, false, StoreFp8},
    {"fp8_amax",
     "f8_e4m3_amax",
     kVllm,
     "E4M3, scale = largest / 448 of a tensor",
     {},
     false,
     false,
     StoreFp8},
    {"fp8_head",
     "f8_e4m3_head",
     kVllm,
     "E4M3, such a scale for each kv head",
     {},
     false,
     false,
     StoreFp8},
    {"int8_per_token_head",
     "int8_token_head",
     kVllm,
     "8 bits, a scale for each token and head",
     {},
     false,
     false,
     StoreTokenHead},
    {"fp8_per_token_head",
     "fp8_token_head",
     kVllm,
     "E4M3, a scale for each token and head",
     {},
     false,
     false,
     StoreTokenHead},
    {"int4_per_token_head",
     "int4_token_head",
     kVllm,
     "4 bits, rotated by random signs",
     {},
     false,
     false,
     StoreTokenHead},
    {"turboquant_k8v4", "", kVllm, "K in E4M3, V in 4 bits", {}, false, true, StoreTurbo},
    {"turboquant_4bit_nc",
     "",
     kVllm,
     "K rotated in 4 bits of a table, V in 4",
     {},
     false,
     true,
     StoreTurbo},
    {"turboquant_k3v4_nc",
     "",
     kVllm,
     "K rotated in 3 bits of a table, V in 4",
     {},
     false,
     true,
     StoreTurbo},
    {"turboquant_3bit_nc",
     "",
     kVllm,
     "K rotated in 3 bits of a table, V in 3",
     {},
     false,
     true,
     StoreTurbo},
    {"lmcache_fp8",
     "fp8_cast",
     kLmcache,
     "E4M3 as cast: NaN above 464",
     {},
     false,
     false,
     StoreFp8},
    {"lmcache_fp8_e5m2",
     "",
     kLmcache,
     "E5M2 as cast: infinite from 61440",
     {},
     false,
     false,
     StoreFp8},
    {"k16v8",
     "",
     kLmcache,
     "K as it is, V in E4M3 with a scale for the tensor",
     {},
     false,
     false,
     StoreFp8},
    {"k16v8_head",
     "",
     kLmcache,
     "K as it is, V in E4M3 with a scale for each head",
     {},
     false,
     false,
     StoreFp8},
    {"lmcache_turboquant_4bit_nc",
     "",
     kLmcache,
     "turboquant_4bit_nc with signs of each layer",
     {},
     false,
     true,
     StoreTurbo},
    {"lmcache_turboquant_3bit_nc",
     "",
     kLmcache,
     "turboquant_3bit_nc with signs of each layer",
     {},
     false,
     true,
     StoreTurbo},
    {"kivi8",
     "",
     kPaper,
     "8 bits: K by channel and 32 tokens, V by token",
     {},
     true,
     false,
     StoreKiviSide},
    {"kivi4",
     "",
     kPaper,
     "4 bits: K by channel and 32 tokens, V by token",
     {},
     true,
     false,
     StoreKiviSide},
    {"kivi2",
     "",
     kPaper,
     "2 bits: K by channel and 32 tokens, V by token",
     {},
     true,
     false,
     StoreKiviSide},
    {"kvquant4",
     "",
     kPaper,
     "4 bits: K by channel before RoPE, V by token",
     {},
     false,
     false,
     StoreKvQuantSide},
    {"kvquant3", "", kPaper, "3 bits of the same", {}, false, false, StoreKvQuantSide},
    {"kvquant2", "", kPaper, "2 bits of the same", {}, false, false, StoreKvQuantSide},
    {"kvquant4_sparse",
     "",
     kPaper,
     "4 bits, the outermost 1% kept",
     {},
     false,
     false,
     StoreKvQuantSide},
    {"kvquant2_sparse",
     "",
     kPaper,
     "2 bits, the outermost 1% kept",
     {},
     false,
     false,
     StoreKvQuantSide},
    {"quanto4", "", kHf, "4 bits of 64 values in a row", {}, true, false, StoreQuantoSide},
    {"quanto2", "", kHf, "2 bits of 64 values in a row", {}, true, false, StoreQuantoSide},
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
