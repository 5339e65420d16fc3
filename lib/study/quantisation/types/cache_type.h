// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/base/dtype.h"
#include "lib/core/kernels/quantise.h"
#include "lib/core/snapshot/rope.h"

// The types that engines keep caches in, by name: what attention reads of a cache stored in one,
// and how many bytes that takes. Each does what its engine does, to the last bit where vectors of
// the engine exist (tests/golden).
namespace kv::quant {

// K or V of one layer, [token][kv head][dim], in the precision of the file that it comes from.
struct Side {
  std::span<const float> values;
  uint64_t tokens = 0;
  uint32_t heads = 0, dim = 0;
  bool is_key = true;
  uint32_t layer = 0, layers = 1;  // engines treat the first and last ones apart
  DType model = DType::kF16;       // the 16-bit type that the engine computes in

  uint64_t row() const { return uint64_t{heads} * dim; }
};

struct StoreOptions {
  Q8Rounding rounding = Q8Rounding::kAvx;
  bool rotate = true;  // llama.cpp since 2026-04, where head sizes allow it
  // For types that quantise keys before RoPE: how they were rotated. Token j is at position j.
  const Rope* rope = nullptr;
  // For types whose scale is that of the tokens stored first (a prompt): how many; 0: all.
  uint64_t first_tokens = 0;
};

// Which tokens a query still sees in full: the engine stores them later.
enum class Tail {
  kNone,
  kKeys,    // of n tokens, the last n modulo kTailTokens
  kValues,  // the last kTailTokens
};
inline constexpr uint64_t kTailTokens = 128;
// How many tokens of n the engine has stored in the type; the others are in full.
uint64_t CountStored(Tail tail, uint64_t tokens);

// K or V of a cache whose layers were coded together.
struct WholeSide {
  std::map<uint32_t, std::vector<float>> layers;  // what came back, by layer as Side has it
  double bytes = 0;                               // of all layers
};

struct CacheType {
  std::string_view engine, name, text;
  // Writes what attention reads, as many values as the side has, and returns the bytes that they
  // take, scales and all. Throws kUnsupportedKind for shapes that the engine refuses, kUsage
  // without a rotation where one is needed.
  double (*store)(const CacheType& type, const Side& side, const StoreOptions& options,
                  std::span<float> out) = nullptr;
  bool has_tail = false;      // keys and values have their Tail
  bool full_at_ends = false;  // the first two and last two layers stay in 16 bits
  std::string_view alias = {};
  std::optional<DType> dtype = {};  // of a llama.cpp state
  // Of a type that codes all layers together, which says itself what stays in full.
  const WholeSide* whole = nullptr;

  Tail TailOf(bool is_key) const {
    return !has_tail ? Tail::kNone : is_key ? Tail::kKeys : Tail::kValues;
  }
  // Whether llama.cpp rotates this side before it stores it.
  bool IsRotated(bool is_key, uint32_t dim, const StoreOptions& options) const;
};

// The type of this name whose values are there already.
CacheType TypeOfWhole(std::string_view name, const WholeSide& whole);

std::span<const CacheType> CacheTypes();
// By name or alias; null if there is none.
const CacheType* FindCacheType(std::string_view name);
// Throws kUsage, naming the flag, with the names that exist.
const CacheType& ParseCacheType(std::string_view name, std::string_view flag);

// What llama.cpp writes of a side: rotated where the type is, then in blocks.
std::vector<std::byte> PackedRows(const CacheType& type, const Side& side,
                                  const StoreOptions& options);

}  // namespace kv::quant
