// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/documents/transform_report.h"

#include <fmt/format.h>

#include "apps/kvtool/console/console.h"
#include "lib/core/base/utf8.h"

namespace kv {
namespace {

const Fields<TransformPlan>& TransformPlanFields() {
  static const Fields<TransformPlan> fields = {
      {"form", "How coefficients are stored", &TransformPlan::form},
      {"ratio", "Bits of a token at 16 bits per value / bits as stored", &TransformPlan::ratio},
      {"bits_per_token", "Bits of a token as stored; 0 for kvtc_rans: they depend on the values",
       [](const TransformPlan& plan) { return CountBits(plan.schema); }},
      {"held_out_error", "|y' - y| / |y - mean| of rows that were not used in training",
       &TransformPlan::error}};
  return fields;
}

const Fields<TransformSide>& TransformSideFields() {
  static const Fields<TransformSide> fields = {
      {"heads", "Heads of a layer", &TransformSide::heads},
      {"head_dim", "Values per head", &TransformSide::dim},
      {"features", "Values per token in all layers", &TransformSide::features},
      {"components", "Components of the basis", &TransformSide::components},
      {"bases", "Number of bases, each of which serves some layers",
       [](const TransformSide& side) { return side.parts.size(); }},
      {"plans", "Results for each form and ratio", &TransformSide::plans, TransformPlanFields()}};
  return fields;
}

}  // namespace

const Fields<Transform>& BasisFields() {
  static const Fields<Transform> fields = {
      {"basis_type", "How the basis is stored: f32 or bf16",
       [](const Transform& of) { return of.is_bfloat ? "bf16" : "f32"; }, OneOf("f32", "bf16")},
      {"basis_bytes", "Bytes of means and bases of K and V", &Transform::basis_bytes},
      {"rows", "Number of tokens that the transform was learnt from", &Transform::rows},
      {"weighted", "True if features count by their share in the loss",
       [](const Transform& of) { return !of.k.weights.empty(); }},
      {"learnt_from", "XXH3 of each cache that the transform was learnt from",
       &Transform::sources}};
  return fields;
}

const Fields<Transform>& TransformFields() {
  static const Fields<Transform> fields = {
      {"model", "Name of the model", &Transform::model},
      {"rope", "RoPE by which keys are rotated back", &Transform::rope},
      {"layers", "Layers of the model", &Transform::layers},
      {"sinks", "First tokens that stay uncompressed", &Transform::sinks},
      {"window", "Last tokens that stay uncompressed", &Transform::window},
      Fields<Transform>::Inline(BasisFields()),
      {"k", "K", &Transform::k, TransformSideFields()},
      {"v", "V", &Transform::v, TransformSideFields()}};
  return fields;
}

std::string TransformSummary(const Transform& transform) {
  return fmt::format("transform of {}, {} layers, {} + {} components learnt from {} tokens",
                     transform.model.empty() ? "a model without name" : Printable(transform.model),
                     transform.layers, transform.k.components(), transform.v.components(),
                     transform.rows);
}

std::string TransformText(const Transform& transform) {
  Table table({"kv", "form", "ratio", "bits per token", "held-out error"});
  for (const TransformSide* side : {&transform.k, &transform.v}) {
    for (const TransformPlan& plan : side->plans) {
      table.Row({side == &transform.k ? "k" : "v", plan.form, fmt::format("{}", plan.ratio),
                 plan.schema.empty() ? "by values" : std::to_string(CountBits(plan.schema)),
                 fmt::format("{:.2f}%", 100 * plan.error)});
    }
  }
  return fmt::format(
      "{}\n  rope     {}\n  in full  the first {} and the last {} tokens of a prompt\n"
      "  basis    {}, {}{}\n\n{}",
      TransformSummary(transform), transform.rope.empty() ? "keys are not rotated" : transform.rope,
      transform.sinks, transform.window, transform.is_bfloat ? "bf16" : "f32",
      HumanBytes(transform.basis_bytes()),
      transform.k.weights.empty() ? "" : ", features weighted by their share in the loss",
      table.Text("  "));
}

}  // namespace kv
