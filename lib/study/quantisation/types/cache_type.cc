// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The table of cache types, and how each type stores K and V.
#include "lib/study/quantisation/types/cache_type.h"

#include <fmt/format.h>

#include <numeric>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/kernels/convert.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/kernels/hadamard.h"
#include "lib/core/snapshot/cast.h"
#include "lib/study/quantisation/types/codes.h"

namespace kv::quant {
namespace {

constexpr uint32_t kBlockValues = 32, kGroup = 32, kQuantoGroup = 64;
constexpr double kFullBytes = 2, kHalfBytes = 2, kOutlierBytes = 4;

Error Refused(const CacheType& type, std::string text) {
  return Error(Finding::kUnsupportedKind, "{}: {}", type.name, text);
}

float RoundToModel(const Side& side, float value) {
  return side.model == DType::kBF16 ? BF16ToF32(F32ToBF16(value)) : ToHalf(value);
}

// Returns the bits in a name such as "kivi4" or "kvquant2_sparse".
uint32_t BitsIn(std::string_view name) {
  return static_cast<uint32_t>(name[name.find_first_of("23458")] - '0');
}

void RequirePowerOfTwo(const CacheType& type, const Side& side) {
  if (side.dim < 2 || (side.dim & (side.dim - 1)) != 0)
    throw Refused(type, fmt::format("heads of {} values; it needs a power of two", side.dim));
}

double KeepFull(const Side& side, std::span<float> out) {
  std::copy(side.values.begin(), side.values.end(), out.begin());
  return kFullBytes * static_cast<double>(side.values.size());
}

struct Float8Rule {
  DType dtype = DType::kF8E4M3;
  Float8Overflow overflow = Float8Overflow::kSaturate;
  bool is_scaled = false, by_head = false, only_values = false, counts_scales = false;
  bool is_frozen = false;  // true: the tokens stored first set the scale
};

// Derives the rule from the name: suffixes name the format and what a scale applies to, prefixes
// the engine.
Float8Rule FindFloat8Rule(std::string_view name) {
  Float8Rule rule;
  if (name.ends_with("e5m2")) rule.dtype = DType::kF8E5M2;
  rule.is_frozen = name.starts_with("transformers");
  if (name.starts_with("lmcache") || rule.is_frozen) rule.overflow = Float8Overflow::kCast;
  rule.by_head = name.ends_with("head");
  rule.only_values = name.starts_with("k16v8");
  rule.counts_scales = rule.only_values || rule.is_frozen;
  rule.is_scaled = rule.by_head || rule.only_values || rule.is_frozen || name.ends_with("amax");
  return rule;
}

}  // namespace

uint64_t CountStored(Tail tail, uint64_t tokens) {
  if (tail == Tail::kKeys) return tokens - tokens % kTailTokens;
  if (tail == Tail::kValues) return tokens - std::min(tokens, kTailTokens);
  return tokens;
}

bool CacheType::IsRotated(bool is_key, uint32_t dim, const StoreOptions& options) const {
  return options.rotate && dtype && IsBlockQuantised(*dtype) && HadamardSize(!is_key, dim) != 0;
}

std::vector<std::byte> PackedRows(const CacheType& type, const Side& side,
                                  const StoreOptions& options) {
  KV_ASSERT(type.dtype);
  std::vector<std::byte> packed(BytesOf(*type.dtype, side.values.size()));
  if (!IsBlockQuantised(*type.dtype)) {
    const auto narrow = *type.dtype == DType::kF16 ? FloatToHalf : FloatToBFloat;
    narrow(side.values.data(), packed.data(), side.values.size());
    return packed;
  }
  std::vector<float> rotated;
  std::span<const float> values = side.values;
  if (type.IsRotated(side.is_key, side.dim, options)) {
    rotated.assign(values.begin(), values.end());
    HadamardScaledFirst(rotated.data(), rotated.size(), HadamardSize(!side.is_key, side.dim));
    values = rotated;
  }
  if (type.name == "iq4_nl_search") {
    QuantiseIq4NlSearched(values, packed.data());
  } else {
    QuantiseBlocks(*type.dtype, values, packed.data(), options.rounding);
  }
  return packed;
}

namespace {

// Stores values in f16 or bf16.
double StoreFull(const CacheType& type, const Side& side, const StoreOptions& options,
                 std::span<float> out) {
  const std::vector<std::byte> packed = PackedRows(type, side, options);
  ToFloats(*type.dtype, packed, out);
  return static_cast<double>(packed.size());
}

// Stores blocks of llama.cpp. If the type is rotated, the rotation is undone at the end.
double StoreBlocks(const CacheType& type, const Side& side, const StoreOptions& options,
                   std::span<float> out) {
  if (side.row() % kBlockValues != 0) {
    throw Refused(type, fmt::format("rows of {} values are not whole blocks of {}", side.row(),
                                    kBlockValues));
  }
  const std::vector<std::byte> packed = PackedRows(type, side, options);
  ToFloats(*type.dtype, packed, out);
  if (type.IsRotated(side.is_key, side.dim, options))
    HadamardScaledFirst(out.data(), out.size(), HadamardSize(!side.is_key, side.dim));
  return static_cast<double>(packed.size());
}

// Stores fp8, with one scale per tensor or kv head, or without scales.
double StoreFp8(const CacheType& type, const Side& side, const StoreOptions& options,
                std::span<float> out) {
  const Float8Rule rule = FindFloat8Rule(type.name);
  if (rule.only_values && side.is_key) return KeepFull(side, out);
  const uint64_t scaled = rule.is_frozen && options.first_tokens > 0
                              ? std::min(options.first_tokens, side.tokens) * side.row()
                              : side.values.size();
  // A scale applies to the tensor, or to each kv head.
  std::vector<float> most(side.heads, 0.0f);
  for (uint64_t i = 0; i < scaled; ++i) {
    float& of_head = most[i / side.dim % side.heads];
    of_head = std::max(of_head, std::fabs(side.values[i]));
  }
  if (!rule.by_head)
    std::fill(most.begin(), most.end(), *std::max_element(most.begin(), most.end()));
  std::vector<uint8_t> codes(side.dim);
  for (uint64_t at = 0; at < side.values.size(); at += side.dim) {
    const float largest = most[at / side.dim % side.heads];
    const float scale = rule.is_scaled && largest > 0 ? largest / kE4M3Max : 1.0f;
    QuantiseFloat8(rule.dtype, side.values.subspan(at, side.dim), scale, rule.overflow,
                   codes.data());
    DequantiseFloat8(rule.dtype, codes, scale, &out[at]);
    for (uint32_t d = 0; d < side.dim; ++d) out[at + d] = RoundToModel(side, out[at + d]);
  }
  const double scales = rule.counts_scales ? sizeof(float) * (rule.by_head ? side.heads : 1) : 0;
  return static_cast<double>(side.values.size()) + scales;
}

// Stores vLLM's types with a scale per token and kv head.
double StoreTokenHead(const CacheType& type, const Side& side, const StoreOptions&,
                      std::span<float> out) {
  const double scales = static_cast<double>(sizeof(float) * side.tokens * side.heads);
  const auto count = static_cast<double>(side.values.size());
  if (type.name.starts_with("int8")) {
    ReadInt8(StoreInt8(side.values, side.dim), side.dim, out);
    return count + scales;
  }
  if (type.name.starts_with("fp8")) {
    ReadFloat8(StoreFloat8(side.values, side.dim), side.dim, out);
    return count + scales;
  }
  if (side.dim % 2 != 0) throw Refused(type, fmt::format("heads of {} values", side.dim));
  const std::vector<float> signs = VllmSigns(side.dim);
  ReadInt4(StoreInt4(side.values, side.dim, signs), side.dim, signs, out);
  return count / 2 + scales;
}

// Stores KIVI: K in groups of tokens per channel, V in groups of channels per token.
double StoreKiviSide(const CacheType& type, const Side& side, const StoreOptions&,
                     std::span<float> out) {
  const uint32_t bits = BitsIn(type.name);
  KeepFull(side, out);
  const double values = static_cast<double>(side.values.size());
  if (!side.is_key) {
    if (side.dim % kGroup != 0)
      throw Refused(
          type, fmt::format("heads of {} values; V is stored in groups of {}", side.dim, kGroup));
    for (uint64_t i = 0; i < side.values.size(); i += kGroup)
      StoreKivi(&side.values[i], kGroup, 1, bits, &out[i]);
  } else {
    // Tokens after the last whole group are always in the tail.
    for (uint64_t t = 0; t + kGroup <= side.tokens; t += kGroup) {
      for (uint64_t channel = 0; channel < side.row(); ++channel) {
        const uint64_t at = t * side.row() + channel;
        StoreKivi(&side.values[at], kGroup, side.row(), bits, &out[at]);
      }
    }
  }
  return values * (bits / 8.0 + 2 * kHalfBytes / kGroup);
}

// Stores KVQuant: V per token, and K per channel. K's rotation is undone first and applied again at
// the end.
double StoreKvQuantSide(const CacheType& type, const Side& side, const StoreOptions& options,
                        std::span<float> out) {
  const uint32_t bits = BitsIn(type.name);
  const bool sparse = type.name.ends_with("sparse");
  const double codes = static_cast<double>(side.values.size()) * bits / 8;
  uint64_t outliers = 0;
  if (!side.is_key) {
    for (uint64_t t = 0; t < side.tokens; ++t) {
      const uint64_t at = t * side.row();
      outliers += StoreKvQuant(&side.values[at], side.row(), 1, bits, sparse, &out[at]);
    }
    return codes + kOutlierBytes * static_cast<double>(outliers) +
           2 * kHalfBytes * static_cast<double>(side.tokens);
  }
  if (options.rope == nullptr) {
    throw Error(Finding::kUsage, "{}: K is quantised before RoPE, and how it is rotated is unknown",
                type.name)
        .Hint("give --model MODEL, or --rope-base and --rope-style");
  }
  std::vector<int64_t> positions(side.tokens);
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<KeyShift> back = ShiftsToZero(positions, side.tokens), forth = back;
  for (KeyShift& shift : forth) {
    std::swap(shift.from, shift.to);
    std::swap(shift.from_length, shift.to_length);
  }
  std::vector<float> plain(side.values.begin(), side.values.end()), stored(plain.size());
  const RopeTable undo(*options.rope, side.dim, back), redo(*options.rope, side.dim, forth);
  for (uint64_t t = 0; t < side.tokens; ++t) undo.Rotate(t, side.heads, &plain[t * side.row()]);
  for (uint64_t channel = 0; channel < side.row(); ++channel) {
    outliers +=
        StoreKvQuant(&plain[channel], side.tokens, side.row(), bits, sparse, &stored[channel]);
  }
  for (uint64_t t = 0; t < side.tokens; ++t) redo.Rotate(t, side.heads, &stored[t * side.row()]);
  std::copy(stored.begin(), stored.end(), out.begin());
  return codes + kOutlierBytes * static_cast<double>(outliers) +
         2 * kHalfBytes * static_cast<double>(side.row());
}

// Stores transformers' quanto: groups of channels, for K and V alike.
double StoreQuantoSide(const CacheType& type, const Side& side, const StoreOptions&,
                       std::span<float> out) {
  const uint32_t bits = BitsIn(type.name);
  if (side.dim % kQuantoGroup != 0) {
    throw Refused(type, fmt::format("heads of {} values; it is stored in groups of {}", side.dim,
                                    kQuantoGroup));
  }
  for (uint64_t i = 0; i < side.values.size(); i += kQuantoGroup)
    StoreQuanto(&side.values[i], kQuantoGroup, 1, bits, Arithmetic::kHalf, &out[i]);
  return static_cast<double>(side.values.size()) * (bits / 8.0 + 2 * kHalfBytes / kQuantoGroup);
}

// Stores TurboQuant, except in the first two and last two layers, which stay in 16 bits.
double StoreTurbo(const CacheType& type, const Side& side, const StoreOptions&,
                  std::span<float> out) {
  const bool is_at_end = side.layer < 2 || side.layer + 2 >= side.layers;
  if (is_at_end) return KeepFull(side, out);
  RequirePowerOfTwo(type, side);
  std::string_view name = type.name;
  const bool is_signed = name.starts_with("lmcache_");
  const double vectors = static_cast<double>(side.tokens * side.heads);
  if (side.is_key && name.ends_with("k8v4")) {
    std::vector<uint8_t> codes(side.values.size());
    QuantiseFloat8(DType::kF8E4M3, side.values, 1, Float8Overflow::kCast, codes.data());
    DequantiseFloat8(DType::kF8E4M3, codes, 1, out.data());
    return static_cast<double>(side.values.size());
  }
  const bool is_three = name.ends_with("3bit_nc") || (side.is_key && name.ends_with("k3v4_nc"));
  const uint32_t bits = is_three ? 3 : 4;
  const double codes = std::ceil(side.dim * bits / 8.0);
  if (side.is_key) {
    const std::vector<float> signs =
        is_signed ? LmcacheSigns(side.dim, side.layer) : std::vector<float>();
    ReadTurboKeys(StoreTurboKeys(side.values, side.dim, bits, signs), side.dim, bits, signs, out);
    return vectors * (codes + kHalfBytes);
  }
  ReadTurboValues(StoreTurboValues(side.values, side.dim, bits), side.dim, out);
  return vectors * (codes + 2 * kHalfBytes);
}

// Stores vLLM's ultraquant. Keys are rotated first and rotated back at the end.
double StoreUltraSide(const CacheType& type, const Side& side, const StoreOptions&,
                      std::span<float> out) {
  RequirePowerOfTwo(type, side);
  if (side.dim % kUltraGroup != 0)
    throw Refused(type, fmt::format("heads of {} values; it is stored in groups of {}", side.dim,
                                    kUltraGroup));
  ReadUltra(StoreUltra(side.values, side.dim, side.is_key), out);
  if (side.is_key) HadamardScaledFirst(out.data(), out.size(), side.dim);
  return static_cast<double>(side.values.size()) * (0.5 + 1.0 / kUltraGroup);
}

// Stores vLLM's octave types.
double StoreOctaveSide(const CacheType& type, const Side& side, const StoreOptions&,
                       std::span<float> out) {
  if (side.dim != kOctaveDim) {
    throw Refused(type, fmt::format("heads of {} values; only the signs of {} are known", side.dim,
                                    kOctaveDim));
  }
  const bool is_compact = type.name.ends_with("compact");
  const bool is_three = is_compact || (!side.is_key && type.name.ends_with("v3"));
  const uint32_t bits = is_three ? 3 : 4;
  ReadOctave(StoreOctave(side.values, bits), bits, out);
  // Slots of K and V have 72, 64 or 52 bytes; half of the padding is counted with either side.
  const double codes = kOctaveDim * bits / 8.0, scale = is_compact ? kHalfBytes : 2 * kHalfBytes;
  return static_cast<double>(side.tokens * side.heads) * (codes + scale);
}

// Returns the values of a type that coded all layers before, with an equal share of its bytes.
double StoreWhole(const CacheType& type, const Side& side, const StoreOptions&,
                  std::span<float> out) {
  const std::vector<float>& values = type.whole->layers.at(side.layer);
  KV_ASSERT(values.size() == out.size());
  std::copy(values.begin(), values.end(), out.begin());
  return type.whole->bytes / static_cast<double>(type.whole->layers.size());
}

constexpr const char* kLlama = "llama.cpp";
constexpr const char* kVllm = "vLLM";
constexpr const char* kLmcache = "LMCache";
constexpr const char* kPaper = "the paper's code";
constexpr const char* kHf = "transformers";

// llama.cpp's names are those of -ctk and -ctv, vLLM's those of --kv-cache-dtype.
constexpr CacheType kTypes[] = {
    {kLlama, "f16", "16 bits", StoreFull, false, false, "", DType::kF16},
    {kLlama, "bf16", "16 bits, 8 of them exponent", StoreFull, false, false, "", DType::kBF16},
    {kLlama, "q8_0", "8 bits, a scale for 32 values", StoreBlocks, false, false, "", DType::kQ8_0},
    {kLlama, "q5_1", "5 bits, scale and minimum", StoreBlocks, false, false, "", DType::kQ5_1},
    {kLlama, "q5_0", "5 bits, a scale", StoreBlocks, false, false, "", DType::kQ5_0},
    {kLlama, "q4_1", "4 bits, scale and minimum", StoreBlocks, false, false, "", DType::kQ4_1},
    {kLlama, "q4_0", "4 bits, a scale", StoreBlocks, false, false, "", DType::kQ4_0},
    {kLlama, "iq4_nl", "4-bit codebook", StoreBlocks, false, false, "", DType::kIQ4_NL},
    {kLlama, "iq4_nl_search", "4-bit codebook, with the tools' search for scales", StoreBlocks,
     false, false, "", DType::kIQ4_NL},
    {kVllm, "fp8_e4m3", "E4M3, no scale (1.0), saturating", StoreFp8, false, false, "f8_e4m3"},
    {kVllm, "fp8_e5m2", "E5M2, no scale, saturating", StoreFp8, false, false, "f8_e5m2"},
    {kVllm, "fp8_amax", "E4M3, scale = largest / 448 of a tensor", StoreFp8, false, false,
     "f8_e4m3_amax"},
    {kVllm, "fp8_head", "E4M3, scale = largest / 448 of a kv head", StoreFp8, false, false,
     "f8_e4m3_head"},
    {kVllm, "int8_per_token_head", "8 bits, a scale for each token and head", StoreTokenHead, false,
     false, "int8_token_head"},
    {kVllm, "fp8_per_token_head", "E4M3, a scale for each token and head", StoreTokenHead, false,
     false, "fp8_token_head"},
    {kVllm, "int4_per_token_head", "4 bits, Hadamard-rotated with random signs", StoreTokenHead,
     false, false, "int4_token_head"},
    {kVllm, "turboquant_k8v4", "K in E4M3, V in 4 bits", StoreTurbo, false, true},
    {kVllm, "turboquant_4bit_nc", "K rotated, 4-bit codebook; V in 4 bits", StoreTurbo, false,
     true},
    {kVllm, "turboquant_k3v4_nc", "K rotated, 3-bit codebook; V in 4 bits", StoreTurbo, false,
     true},
    {kVllm, "turboquant_3bit_nc", "K rotated, 3-bit codebook; V in 3 bits", StoreTurbo, false,
     true},
    {kVllm, "octave_k3v4", "K and V with signs, rotated, 4-bit codebook (ROCm)", StoreOctaveSide},
    {kVllm, "octave_k3v3", "octave_k3v4 with V in 3 bits", StoreOctaveSide},
    {kVllm, "octave_k3v3_compact", "octave_k3v4 with K and V in 3 bits", StoreOctaveSide},
    {kVllm, "ultraquant_4bit", "E2M1, a power-of-two scale for 32 values, K rotated (gfx950)",
     StoreUltraSide},
    {kLmcache, "lmcache_fp8", "E4M3 as cast: NaN above 464", StoreFp8, false, false, "fp8_cast"},
    {kLmcache, "lmcache_fp8_e5m2", "E5M2 as cast: infinite from 61440", StoreFp8},
    {kLmcache, "k16v8", "K as it is, V in E4M3 with a scale for the tensor", StoreFp8},
    {kLmcache, "k16v8_head", "K as it is, V in E4M3 with a scale for each head", StoreFp8},
    {kLmcache, "lmcache_turboquant_4bit_nc", "turboquant_4bit_nc with random signs per layer",
     StoreTurbo, false, true},
    {kLmcache, "lmcache_turboquant_3bit_nc", "turboquant_3bit_nc with random signs per layer",
     StoreTurbo, false, true},
    {kPaper, "kivi8", "8 bits: K by channel and 32 tokens, V by token", StoreKiviSide, true},
    {kPaper, "kivi4", "4 bits: K by channel and 32 tokens, V by token", StoreKiviSide, true},
    {kPaper, "kivi2", "2 bits: K by channel and 32 tokens, V by token", StoreKiviSide, true},
    {kPaper, "kvquant4", "4 bits: K by channel before RoPE, V by token", StoreKvQuantSide},
    {kPaper, "kvquant3", "3 bits: K by channel before RoPE, V by token", StoreKvQuantSide},
    {kPaper, "kvquant2", "2 bits: K by channel before RoPE, V by token", StoreKvQuantSide},
    {kPaper, "kvquant4_sparse", "4 bits, the outermost 1% kept unquantised", StoreKvQuantSide},
    {kPaper, "kvquant2_sparse", "2 bits, the outermost 1% kept unquantised", StoreKvQuantSide},
    {kHf, "quanto4", "4 bits of 64 values in a row", StoreQuantoSide, true},
    {kHf, "quanto2", "2 bits of 64 values in a row", StoreQuantoSide, true},
    {kHf, "transformers_fp8", "E4M3 as cast, with the prompt's scale: NaN beyond it", StoreFp8},
};

}  // namespace

CacheType TypeOfWhole(std::string_view name, const WholeSide& whole) {
  CacheType type{"kvtool", name, "all layers together", StoreWhole};
  type.whole = &whole;
  return type;
}

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
  throw Error(Finding::kUsage, "{} '{}': no such cache type", flag, Escaped(name))
      .Hint("they are " + names);
}

}  // namespace kv::quant
