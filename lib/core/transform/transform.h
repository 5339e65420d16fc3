// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/core/codec/transformed/transformed.h"
#include "lib/core/snapshot/rope.h"

namespace kv {

// Storage type of a transform's coefficient. The values are stored in .kvx files: never changed,
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
  uint32_t bits;        // bits of a coefficient
  uint32_t scale_bits;  // per group and token: two binary16 numbers, one or none
};

std::span<const CodeTypeInfo> CodeTypes();
const CodeTypeInfo& Info(CodeType type);
std::optional<CodeType> ParseCodeType(std::string_view name);

// Adjacent components of one type; each token has its own scales for the group.
struct CodeGroup {
  uint32_t size = 0;
  CodeType type = CodeType::kNone;

  uint64_t bits() const { return uint64_t{size} * Info(type).bits + Info(type).scale_bits; }
  bool operator==(const CodeGroup&) const = default;
};

// Groups one after another, from component 0 on. Components after the last group are dropped.
using CodeSchema = std::vector<CodeGroup>;

// Returns the bits of one token, including scales.
uint64_t CountBits(const CodeSchema& schema);
uint64_t CountComponents(const CodeSchema& schema);

// A basis of the features of some adjacent layers: orthonormal without weights. With weights it is
// orthonormal in the product that multiplies each feature by its weight.
struct TransformPart {
  uint32_t first_feature = 0, features = 0;
  std::vector<double> variances;  // variance of each component, falling; 0 if unknown
  std::vector<float> vectors;     // [component][feature]

  uint64_t rank() const { return variances.size(); }
};

// The form whose plans are steps and tables; all others have schemas.
inline constexpr std::string_view kStepForm = "kvtc_rans";

// The code that a form chose for a given ratio: a schema, or one step with tables.
struct TransformPlan {
  std::string form;
  double ratio = 1;
  CodeSchema schema;
  StepCode steps;
  double error = 0;  // |y' - y| / |y| over held-out rows, centred (and weighted)
};

// K or V. A row of its matrix is a token: [layer][head][dim].
struct TransformSide {
  uint32_t heads = 0, dim = 0;
  std::vector<float> mean;
  // Twice the nats that a mean squared error of 1 in each feature costs, over the coded tokens, so
  // that features count by their share in the loss. Empty: all count alike.
  std::vector<float> weights;
  std::vector<TransformPart> parts;  // consecutive, covering all features
  std::vector<TransformPlan> plans;

  uint64_t features() const { return mean.size(); }
  uint64_t components() const;
  // Returns the components of all parts by descending variance, each as its index among all of
  // them; plans count components in this order.
  std::vector<uint64_t> OrderComponents() const;
  const TransformPlan* Find(std::string_view form, double ratio) const;
  float Weight(uint64_t feature) const { return weights.empty() ? 1 : weights[feature]; }
  // Replaces the centred value of a feature by the one whose products with the vectors are
  // coefficients.
  float Weigh(uint64_t feature, float centred) const { return Weight(feature) * centred; }
};

// A transform learnt from caches of one model (formats/kvx/FORMAT.md).
struct Transform {
  std::string model;
  std::string rope;  // the RoPE that is undone before keys are transformed, as text; see RopeText
  uint32_t layers = 0;
  uint32_t sinks = 4, window = 128;  // first and last tokens of a cache that are stored in full
  bool is_bfloat = false;            // storage type of the basis
  uint64_t rows = 0;                 // tokens that it was learnt from
  std::vector<std::string> sources;  // XXH3 of the files, as in documents
  // hashes of rows of V, which identify caches that begin with the same tokens
  std::vector<uint64_t> fingerprints;
  TransformSide k, v;

  // Returns the stored bytes of means, weights and vectors.
  uint64_t BasisBytes(const TransformSide& side) const;
  uint64_t basis_bytes() const { return BasisBytes(k) + BasisBytes(v); }
};

// Returns "neox 10000 of 64", with the number of rotated values of a head last, and the scaling;
// per layer if they differ.
std::string RopeText(const ModelRope& rope, uint32_t layers, uint32_t head_dim);
// Returns the rotation that such a text describes; nothing if layers differ, frequencies are given
// one by one, or the text is none of RopeText's.
std::optional<ModelRope> ParseRopeText(const std::string& text, uint32_t layers, uint32_t head_dim);
// Throws kBadField for a transform that cannot exist: sizes that do not fit, values that are not
// finite, tables that do not sum to 2048.
void RequireSound(const Transform& transform);

}  // namespace kv
