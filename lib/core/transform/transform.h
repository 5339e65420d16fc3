// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/snapshot/rope.h"

namespace kv {

// How one coefficient of a transform is stored. The values are stored in .kvx files: never changed,
// never reused.
enum class CodeType : uint8_t {
  kNone = 0,  // dropped: it decodes to 0
  kInt2 = 1,
  kInt4 = 2,
  kInt8 = 3,
  kFp8 = 4,  // E4M3
  kBFloat16 = 5,
  kFloat32 = 6,
};

struct CodeTypeInfo {
  CodeType type;
  std::string_view name;
  uint32_t bits;        // of a coefficient
  uint32_t scale_bits;  // of a group and token: two binary16, one or none
};

std::span<const CodeTypeInfo> CodeTypes();
const CodeTypeInfo& Info(CodeType type);
std::optional<CodeType> ParseCodeType(std::string_view name);

// Neighbouring components of one type; scales are of a group and token.
struct CodeGroup {
  uint32_t size = 0;
  CodeType type = CodeType::kNone;

  uint64_t bits() const { return uint64_t{size} * Info(type).bits + Info(type).scale_bits; }
  bool operator==(const CodeGroup&) const = default;
};

// Groups one after another, from component 0 on. What follows the last one is dropped.
using CodeSchema = std::vector<CodeGroup>;

// Of one token, scales included.
uint64_t BitsOf(const CodeSchema& schema);
uint64_t ComponentsOf(const CodeSchema& schema);
// "int8*16+int4*128": neighbours of one type are one term.
std::string Name(const CodeSchema& schema);

// One component in the form kvtc_rans: frequencies of the symbols -reach to reach, then of the
// escape, which sum to 2048.
struct StepTable {
  uint32_t reach = 0;
  std::vector<uint16_t> frequencies;

  uint32_t symbols() const { return 2 * reach + 2; }
};

// One step for all components of a matrix, and their tables; what follows the last is dropped.
struct StepCode {
  float step = 1;
  std::vector<StepTable> tables;
};

// An orthonormal basis of the features of some neighbouring layers.
struct TransformPart {
  uint32_t first_feature = 0, features = 0;
  std::vector<double> variances;  // of each component, falling; 0 where nobody says
  std::vector<float> vectors;     // [component][feature]

  uint64_t rank() const { return variances.size(); }
};

// What a form stores at a ratio: a schema, or one step with tables.
struct TransformPlan {
  std::string form;
  double ratio = 1;
  CodeSchema schema;
  StepCode steps;
  double error = 0;  // |y' - y| / |y| of the centred rows that were held out
};

// K or V. A row of its matrix is a token: [layer][head][dim].
struct TransformSide {
  uint32_t heads = 0, dim = 0;
  std::vector<float> mean;
  std::vector<TransformPart> parts;  // one after another, all features
  std::vector<TransformPlan> plans;

  uint64_t features() const { return mean.size(); }
  uint64_t components() const;
  const TransformPlan* Find(std::string_view form, double ratio) const;
};

// A transform that was learnt from caches of one model (formats/kvx/FORMAT.md).
struct Transform {
  std::string model;
  std::string rope;  // how keys were turned before they are turned back, in words; see RopeText
  uint32_t layers = 0;
  uint32_t sinks = 4, window = 128;    // first and last tokens of a cache that stay in full
  bool is_bfloat = false;              // how the basis is stored
  uint64_t rows = 0;                   // tokens that it was learnt from
  std::vector<std::string> sources;    // XXH3 of the files, as documents say them
  std::vector<uint64_t> fingerprints;  // of rows of V, which a cache that begins alike has as well
  TransformSide k, v;

  // Bytes of means and vectors as they are stored.
  uint64_t BasisBytes(const TransformSide& side) const;
  uint64_t basis_bytes() const { return BasisBytes(k) + BasisBytes(v); }
};

// Returns "neox 10000 of 64", the rotated values of a head last, and the scaling; of layers apart
// where they are not alike.
std::string RopeText(const ModelRope& rope, uint32_t layers, uint32_t head_dim);
// Throws kBadField for what no transform has: sizes that do not fit, values that are not finite,
// tables that do not sum to 2048.
void RequireSound(const Transform& transform);

}  // namespace kv
