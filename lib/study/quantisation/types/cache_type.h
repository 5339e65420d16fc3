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

// The types that engines keep caches in, by name: what attention reads from a cache stored in one,
// and its size in bytes. Each type matches its engine to the last bit, if there are vectors of the
// engine to compare with (tests/golden).
namespace kv::quant {

// K or V of one layer, [token][kv head][dim], in the precision of the source file.
struct Side {
  std::span<const float> values;
  uint64_t tokens = 0;
  uint32_t heads = 0, dim = 0;
  bool is_key = true;
  uint32_t layer = 0, layers = 1;  // some engines treat their first and last layers differently
  DType model = DType::kF16;       // the 16-bit type that the engine computes in

  uint64_t row() const { return uint64_t{heads} * dim; }
};

struct StoreOptions {
  Q8Rounding rounding = Q8Rounding::kAvx;
  bool rotate = true;  // llama.cpp since 2026-04, where head sizes allow it
  // Rotation of the keys, for types that quantise keys before RoPE. Token j is at position j.
  const Rope* rope = nullptr;
  // Number of tokens stored first (a prompt), for types whose scale comes from them; 0: all.
  uint64_t first_tokens = 0;
};

// Tokens that a query still sees in full, because the engine stores them later.
enum class Tail {
  kNone,
  kKeys,    // keys: the last n modulo kTailTokens tokens
  kValues,  // the last kTailTokens
};
inline constexpr uint64_t kTailTokens = 128;
// Returns how many of n tokens the engine has stored in the type; the others are in full.
uint64_t CountStored(Tail tail, uint64_t tokens);

// K or V of a cache whose layers were coded together.
struct WholeSide {
  std::map<uint32_t, std::vector<float>> layers;  // decoded values, by layer, in the layout of Side
  double bytes = 0;                               // bytes of all layers
};

struct CacheType {
  std::string_view engine, name, text;
  // Writes the values that attention reads, as many as the side has, and returns their stored bytes
  // including scales. Throws kUnsupportedKind for shapes that the engine refuses, kUsage if a
  // rotation is needed and missing.
  double (*store)(const CacheType& type, const Side& side, const StoreOptions& options,
                  std::span<float> out) = nullptr;
  bool has_tail = false;      // keys and values have their kinds of Tail
  bool full_at_ends = false;  // the first two and last two layers are kept in 16 bits
  std::string_view alias = {};
  std::optional<DType> dtype = {};  // type of a llama.cpp state
  // For a type that codes all layers together; it decides itself which values stay in full.
  const WholeSide* whole = nullptr;

  Tail GetTail(bool is_key) const {
    return !has_tail ? Tail::kNone : is_key ? Tail::kKeys : Tail::kValues;
  }
  // Returns true if llama.cpp rotates K (or V) before storing it.
  bool IsRotated(bool is_key, uint32_t dim, const StoreOptions& options) const;
};

// Returns a type of this name whose values are already computed.
CacheType TypeOfWhole(std::string_view name, const WholeSide& whole);

std::span<const CacheType> CacheTypes();
// Finds a type by name or alias; returns null if there is none.
const CacheType* FindCacheType(std::string_view name);
// Returns the type, or throws kUsage, naming the flag and the types that exist.
const CacheType& ParseCacheType(std::string_view name, std::string_view flag);

// Returns the bytes that llama.cpp writes for K or V: rotated if the type is, then in blocks.
std::vector<std::byte> PackedRows(const CacheType& type, const Side& side,
                                  const StoreOptions& options);

}  // namespace kv::quant
