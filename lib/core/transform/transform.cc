// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/transform/transform.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "lib/core/base/error.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

constexpr uint32_t kHalf = 16;

constexpr CodeTypeInfo kCodeTypes[] = {
    {CodeType::kNone, "none", 0, 0},         {CodeType::kInt2, "int2", 2, 2 * kHalf},
    {CodeType::kInt4, "int4", 4, 2 * kHalf}, {CodeType::kInt8, "int8", 8, 2 * kHalf},
    {CodeType::kFp8, "fp8", 8, kHalf},       {CodeType::kBFloat16, "bfloat16", 16, 0},
    {CodeType::kFloat32, "float32", 32, 0},
};

}  // namespace

std::span<const CodeTypeInfo> CodeTypes() { return kCodeTypes; }

const CodeTypeInfo& Info(CodeType type) { return kCodeTypes[static_cast<size_t>(type)]; }

std::optional<CodeType> ParseCodeType(std::string_view name) {
  for (const CodeTypeInfo& info : kCodeTypes) {
    if (info.name == name) return info.type;
  }
  return std::nullopt;
}

uint64_t CountBits(const CodeSchema& schema) {
  uint64_t bits = 0;
  for (const CodeGroup& group : schema) bits += group.bits();
  return bits;
}

uint64_t CountComponents(const CodeSchema& schema) {
  uint64_t components = 0;
  for (const CodeGroup& group : schema) components += group.size;
  return components;
}

uint64_t TransformSide::components() const {
  uint64_t sum = 0;
  for (const TransformPart& part : parts) sum += part.rank();
  return sum;
}

std::vector<uint64_t> TransformSide::OrderComponents() const {
  std::vector<double> variances;
  for (const TransformPart& part : parts)
    variances.insert(variances.end(), part.variances.begin(), part.variances.end());
  std::vector<uint64_t> order(variances.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint64_t a, uint64_t b) { return variances[a] > variances[b]; });
  return order;
}

const TransformPlan* TransformSide::Find(std::string_view form, double ratio) const {
  for (const TransformPlan& plan : plans) {
    if (plan.form == form && plan.ratio == ratio) return &plan;
  }
  return nullptr;
}

uint64_t Transform::BasisBytes(const TransformSide& side) const {
  uint64_t vectors = 0;
  for (const TransformPart& part : side.parts) vectors += part.vectors.size();
  return 4 * (side.features() + side.weights.size()) + (is_bfloat ? 2 : 4) * vectors;
}

std::string RopeText(const ModelRope& model, uint32_t layers, uint32_t head_dim) {
  const auto text = [&](const Rope& rope) {
    const std::string words =
        fmt::format("{} {} of {}", Name(rope.pairs), rope.theta, rope.CountRotated(head_dim));
    const std::string scaling = Name(rope.scaling);
    return rope.scaling.kind == RopeScaling::Kind::kNone ? words : words + " " + scaling;
  };
  std::string all = text(model.Of(0));
  for (uint32_t layer = 1; layer < layers; ++layer) {
    if (model.Of(layer) != model.Of(layer - 1)) all += fmt::format("; {}", text(model.Of(layer)));
  }
  return all;
}

std::optional<ModelRope> ParseRopeText(const std::string& text, uint32_t layers,
                                       uint32_t head_dim) {
  std::istringstream words(text);
  std::string pairs, theta, of, rotated, scaling;
  words >> pairs >> theta >> of >> rotated >> scaling;
  Rope rope;
  try {
    rope.pairs = ParsePairs(pairs);
    rope.theta = ParseNumber<double>(theta).value_or(0);
    rope.rotary_dim = ParseNumber<uint32_t>(rotated).value_or(0);
    if (!scaling.empty()) rope.scaling = ParseScaling(scaling);
    RequireFit(rope, head_dim);
  } catch (const Error&) {
    return std::nullopt;
  }
  ModelRope model(std::move(rope));
  if (RopeText(model, layers, head_dim) != text) return std::nullopt;
  return model;
}

namespace {

constexpr uint32_t kTableTotal = 2048, kMostReach = 63;
// Weights beyond these would overflow floats when they multiply values and divide vectors.
constexpr float kLeastWeight = 1e-20f, kMostWeight = 1e20f;

[[noreturn]] void RefuseSide(char side, std::string_view what) {
  throw Error(Finding::kBadField, "{} of the transform: {}", side, what);
}

template <typename Values>
bool AllFinite(const Values& values) {
  return std::all_of(values.begin(), values.end(), [](auto value) { return std::isfinite(value); });
}

void RequireWeights(char name, const TransformSide& side) {
  if (!side.weights.empty() && side.weights.size() != side.features())
    RefuseSide(name, "the weights are not one for each feature");
  for (const float weight : side.weights) {
    if (!(weight >= kLeastWeight && weight <= kMostWeight))
      RefuseSide(name, fmt::format("a weight of {}, expected 1e-20 to 1e20", weight));
  }
}

void RequireParts(char name, const TransformSide& side) {
  uint64_t next = 0;
  for (const TransformPart& part : side.parts) {
    if (part.first_feature != next) RefuseSide(name, "parts of the basis are not consecutive");
    next += part.features;
    if (part.rank() == 0 || part.rank() > part.features ||
        part.vectors.size() != part.rank() * part.features) {
      RefuseSide(name, "a part of the basis has more components than features, or none");
    }
    if (!AllFinite(part.vectors) || !AllFinite(part.variances))
      RefuseSide(name, "the basis holds values that are not finite");
  }
  if (next != side.features()) RefuseSide(name, "the parts of the basis do not cover all features");
}

void RequirePlan(char name, const TransformSide& side, const TransformPlan& plan) {
  if (!std::isfinite(plan.ratio) || plan.ratio < 1) RefuseSide(name, "a ratio below 1");
  uint64_t left = side.components();
  for (const CodeGroup& group : plan.schema) {
    if (group.size == 0 || group.size > left) RefuseSide(name, "a schema does not fit the basis");
    left -= group.size;
  }
  if (!std::isfinite(plan.steps.step) || plan.steps.step <= 0) RefuseSide(name, "a step below 0");
  if (plan.steps.tables.size() > side.components()) RefuseSide(name, "more tables than components");
  for (const StepTable& table : plan.steps.tables) {
    const auto sum = std::accumulate(table.frequencies.begin(), table.frequencies.end(), 0u);
    const bool has_zero = std::count(table.frequencies.begin(), table.frequencies.end(), 0) > 0;
    if (table.reach > kMostReach || table.frequencies.size() != table.symbols() ||
        sum != kTableTotal || has_zero) {
      RefuseSide(name, "frequencies of a table do not sum to 2048");
    }
  }
}

}  // namespace

void RequireSound(const Transform& transform) {
  if (transform.k.weights.empty() != transform.v.weights.empty())
    RefuseSide(transform.k.weights.empty() ? 'K' : 'V', "has no weights, but the other side has");
  for (const auto& [name, side] : {std::pair{'K', &transform.k}, std::pair{'V', &transform.v}}) {
    if (side->features() == 0 ||
        side->features() != uint64_t{transform.layers} * side->heads * side->dim) {
      RefuseSide(name, "the mean does not have one value per feature");
    }
    if (!AllFinite(side->mean)) RefuseSide(name, "the mean holds values that are not finite");
    RequireWeights(name, *side);
    RequireParts(name, *side);
    for (const TransformPlan& plan : side->plans) RequirePlan(name, *side, plan);
  }
}

}  // namespace kv
