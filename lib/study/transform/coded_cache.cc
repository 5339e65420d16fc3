// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/transform/coded_cache.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/study/transform/steps.h"

namespace kv::transform {
namespace {

constexpr double kFullBytes = 2;  // bytes of a value in 16 bits

float RoundedAs(DType dtype, float value) {
  if (dtype == DType::kF16) return F16ToF32(F32ToF16(value));
  return dtype == DType::kBF16 ? BF16ToF32(F32ToBF16(value)) : value;
}

double Energy(std::span<const float> coefficients) {
  double sum = 0;
  for (const float value : coefficients)
    sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

// Returns the energy that all coefficients of a complete basis would have.
double CentredEnergy(std::span<const float> values, const TransformSide& side) {
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t feature = i % side.features();
    const double off = static_cast<double>(values[i]) - static_cast<double>(side.mean[feature]);
    sum += off * off * static_cast<double>(side.Weight(feature));
  }
  return sum;
}

}  // namespace

RowCoder CodeBySchema(const Form& form, CodeSchema schema) {
  return
      [&form, schema = std::move(schema)](const Rows& rows, std::span<float> out, Faults& faults) {
        for (uint64_t t = 0; t < rows.tokens; ++t) {
          StoreRow(form, schema, rows.Row(t), out.subspan(t * rows.components, rows.components),
                   faults);
        }
        return static_cast<double>(rows.tokens * CountBits(schema)) / 8;
      };
}

RowCoder CodeBySteps(StepCode code) {
  return [code = std::move(code)](const Rows& rows, std::span<float> out, Faults& faults) {
    uint64_t bytes = 0;
    for (uint64_t t = 0; t < rows.tokens; t += kStreamTokens) {
      const uint64_t count = std::min(kStreamTokens, rows.tokens - t);
      const uint64_t at = t * rows.components, size = count * rows.components;
      bytes += StoreBlock(code, {rows.values.subspan(at, size), count, rows.components},
                          out.subspan(at, size), faults);
    }
    return static_cast<double>(bytes);
  };
}

double CodedCache::middle_ratio() const {
  return kFullBytes * static_cast<double>(middle_tokens * rows.features) / middle_bytes;
}

uint64_t CodedCache::PaysFrom(double basis_bytes) const {
  if (middle_tokens == 0) return 0;
  const double saved = kFullBytes * static_cast<double>(rows.features) -
                       middle_bytes / static_cast<double>(middle_tokens);
  return saved > 0 ? static_cast<uint64_t>(std::ceil(basis_bytes / saved)) : 0;
}

CodedCache CodeCache(const Snapshot& snapshot, const TransformSide& side, bool is_key,
                     const ModelRope* rope, TokenRange range, const RowCoder& coder) {
  const LayerKv& first = snapshot.layers.front();
  const DType dtype = is_key ? first.k.dtype : first.v->dtype;
  CodedCache coded;
  // Tokens that stay in full are copied from the file's own values, so that they keep their bits.
  Snapshot as_stored = snapshot;
  as_stored.key_rotation = KeyRotation::kUnrotated;
  coded.rows = CollectRows(as_stored, is_key, nullptr, {0, first.k.tokens()});
  CacheRows middle = CollectRows(snapshot, is_key, rope, range);
  const std::vector<uint64_t> places = DropNotFinite(middle);
  coded.middle_tokens = middle.tokens;
  coded.not_finite = range.end - range.begin - middle.tokens;
  const double full = kFullBytes * static_cast<double>(coded.rows.features);
  coded.bytes = full * static_cast<double>(coded.full_tokens());
  if (coded.middle_tokens == 0) return coded;

  const Basis basis(side);
  const std::vector<float> values = basis.Project(middle);
  std::vector<float> stored(values.size());
  coded.middle_bytes = coder({values, middle.tokens, basis.components()}, stored, coded.faults);
  coded.bytes += coded.middle_bytes;
  coded.retained = Energy(values) / CentredEnergy(middle.values, side);
  const CacheRows restored = basis.Restore(stored, middle.tokens);
  CacheRows rotated{std::vector<float>((range.end - range.begin) * coded.rows.features),
                    range.end - range.begin, coded.rows.features};
  const uint64_t row = coded.rows.features;
  for (size_t i = 0; i < places.size(); ++i)
    std::copy_n(&restored.values[i * row], row, &rotated.values[places[i] * row]);
  if (is_key && rope != nullptr) RotateToPositions(snapshot, *rope, range, rotated);
  for (const uint64_t place : places) {
    for (uint64_t i = 0; i < row; ++i) {
      coded.rows.values[(range.begin + place) * row + i] =
          RoundedAs(dtype, rotated.values[place * row + i]);
    }
  }
  return coded;
}

void RequireFit(const Transform& transform, const Snapshot& snapshot, const ModelRope* rope) {
  const LayerKv& first = snapshot.layers.front();
  const auto require = [](std::string_view what, const auto& of_transform, const auto& of_cache) {
    if (of_transform == of_cache) return;
    throw Error(Finding::kInconsistent, "the transform has {} {}, the cache {}", what, of_transform,
                of_cache);
  };
  const auto layers = static_cast<uint32_t>(snapshot.layers.size());
  require("layers", transform.layers, layers);
  require("heads of K", transform.k.heads, first.k.heads);
  require("head dim of K", transform.k.dim, first.k.head_dim);
  require("heads of V", transform.v.heads, first.v->heads);
  require("head dim of V", transform.v.dim, first.v->head_dim);
  const bool rotates = snapshot.key_rotation != KeyRotation::kUnrotated;
  if (rotates && rope != nullptr)
    require("RoPE", transform.rope, RopeText(*rope, layers, first.k.head_dim));
}

}  // namespace kv::transform
