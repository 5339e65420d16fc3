// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/report/diff_report.h"

#include <fmt/format.h>

namespace kv {

std::string BitsText(DType dtype, uint64_t bits) {
  return fmt::format("{:#0{}x}", bits, 2 + 2 * Info(dtype).block_bytes);
}

FirstDifference FirstOf(const SnapshotDiff& diff) {
  FirstDifference first;
  for (const LayerDiff& layer : diff.layers) {
    for (const auto& [part, name] : {std::pair{&layer.k, 'K'}, {&layer.v, 'V'}}) {
      if (!*part || !(*part)->first) continue;
      if (first.diff == nullptr || (!first.diff->first->is_beyond && (*part)->first->is_beyond)) {
        first = {&**part, layer.layer, name};
      }
    }
  }
  return first;
}

namespace {

constexpr const char* kBitsPattern = "^0x[0-9a-f]+$";

std::optional<std::string> BitsOf(DType dtype, uint64_t bits) {
  if (IsBlockQuantised(dtype)) return std::nullopt;
  return BitsText(dtype, bits);
}

// Of a tensor that differs.
const Fields<TensorDiff>& DifferingPlaceFields() {
  const auto at = [](auto member, bool if_known, bool if_unknown) {
    return [=](const TensorDiff& of) -> std::optional<uint64_t> {
      if (!(of.heads_known ? if_known : if_unknown)) return std::nullopt;
      return (*of.first).*member;
    };
  };
  static const Fields<TensorDiff> fields = {
      {"token", "Index of the token", [](const TensorDiff& of) { return of.first->token; }},
      {"head", "Index of the kv head", at(&DifferingValue::head, true, false), {.absent = true}},
      {"dim",
       "Index of the value in its head",
       at(&DifferingValue::dim, true, false),
       {.absent = true}},
      {"channel",
       "Index of the value in its row, where the heads are not known",
       at(&DifferingValue::dim, false, true),
       {.absent = true}},
      {"a",
       "The value in A; null: not finite",
       [](const TensorDiff& of) { return of.first->a; },
       {.nullable = true}},
      {"b",
       "The value in B; null: not finite",
       [](const TensorDiff& of) { return of.first->b; },
       {.nullable = true}},
      {"a_bits",
       "The value in A as it is stored, in hex; absent for block types",
       [](const TensorDiff& of) { return BitsOf(of.a_dtype, of.first->a_bits); },
       {.absent = true, .pattern = kBitsPattern}},
      {"b_bits",
       "The value in B as it is stored, in hex; absent for block types",
       [](const TensorDiff& of) { return BitsOf(of.b_dtype, of.first->b_bits); },
       {.absent = true, .pattern = kBitsPattern}}};
  return fields;
}

const Fields<FirstDifference>& FirstDifferenceFields() {
  static const Fields<FirstDifference> fields = {
      {"layer", "Number of the layer", &FirstDifference::layer},
      {"part",
       "Whether it is in K or in V",
       [](const FirstDifference& of) { return of.part == 'K' ? "k" : "v"; },
       {.choices = {"k", "v"}}},
      Fields<FirstDifference>::Inline(
          [](const FirstDifference& of) -> const TensorDiff& { return *of.diff; },
          DifferingPlaceFields())};
  return fields;
}

const Fields<LayerDiff>& LayerDiffFields() {
  static const Fields<LayerDiff> fields = {{"layer", "Number of the layer", &LayerDiff::layer},
                                           {"k",
                                            "Comparison of K; absent where a side has none",
                                            &LayerDiff::k,
                                            TensorDiffFields(),
                                            {.absent = true}},
                                           {"v",
                                            "Comparison of V; absent where a side has none",
                                            &LayerDiff::v,
                                            TensorDiffFields(),
                                            {.absent = true}}};
  return fields;
}

constexpr std::string_view kDifferent =
    "Number of values whose stored bits differ; across element types: whose values do";
constexpr std::string_view kBeyond =
    "Number of these that count: beyond the tolerance, or all without one";

// Nothing where every pair has a NaN or infinity on one side, so that no distance is known.
template <double (TensorDiff::*distance)() const>
std::optional<double> DistanceOf(const TensorDiff& of) {
  return of.measured() == 0 ? std::nullopt : std::optional((of.*distance)());
}

Fields<SnapshotDiff>::Field VerdictField() {
  return {"verdict",
          "How the snapshots compare: every stored bit equal, every value equal in other types, "
          "equal within the tolerance, or different",
          [](const SnapshotDiff& of) { return Name(of.verdict()); },
          {.choices = {"identical", "equal_values", "within_tolerance", "different"}}};
}

Fields<SnapshotDiff>::Field PartsField() {
  static const Fields<SnapshotDiff> fields = {
      {"structure", "Differences of geometry, positions and token ids; any makes the verdict",
       &SnapshotDiff::structure},
      {"notes", "What differs and does not count", &SnapshotDiff::notes},
      {"values", "Number of values that were compared",
       [](const SnapshotDiff& of) { return of.Total().values; }},
      {"different_count", kDifferent, [](const SnapshotDiff& of) { return of.Total().different; }},
      {"beyond_tolerance_count", kBeyond, [](const SnapshotDiff& of) { return of.Total().beyond; }},
      {"first", "The first value that counts, or else that differs",
       [](const SnapshotDiff& of) {
         const FirstDifference first = FirstOf(of);
         return first.diff == nullptr ? std::nullopt : std::optional(first);
       },
       FirstDifferenceFields()},
      {"layers", "The layers that both snapshots have", &SnapshotDiff::layers, LayerDiffFields()}};
  return Fields<SnapshotDiff>::Inline(fields);
}

}  // namespace

const Fields<TensorDiff>& TensorDiffFields() {
  static const Fields<TensorDiff> fields = {
      {"a_dtype", "Element type in A", [](const TensorDiff& of) { return Name(of.a_dtype); }},
      {"b_dtype", "Element type in B", [](const TensorDiff& of) { return Name(of.b_dtype); }},
      {"values",
       "Number of values that were compared; a block of a block type of the same name counts as "
       "one",
       &TensorDiff::values,
       {.column = "values"}},
      {"different_count", kDifferent, &TensorDiff::different, {.column = "differ"}},
      {"beyond_tolerance_count", kBeyond, &TensorDiff::beyond, {.column = "beyond"}},
      {"not_finite_count",
       "Number of the different values that are NaN or infinite on a side, which have no distance",
       &TensorDiff::not_finite},
      {"max_abs",
       "Largest of abs(a - b) over finite pairs",
       DistanceOf<&TensorDiff::largest_abs>,
       {.column = "max abs", .format = format::AsNats}},
      {"mean_abs",
       "Mean of abs(a - b) over all pairs but those with a NaN or infinity on one side; null if "
       "there are no others",
       DistanceOf<&TensorDiff::mean_abs>,
       {.column = "mean abs", .format = format::AsNats}},
      {"max_rel",
       "Largest of abs(a - b) / abs(b) over finite pairs in which b is not 0",
       DistanceOf<&TensorDiff::largest_rel>,
       {.column = "max rel", .format = format::AsNats}},
      {"max_ulp",
       "The same in units of the last place; null across element types, for block types and of no "
       "pair",
       &TensorDiff::largest_ulp,
       {.column = "max ulp"}},
      {"first",
       "The first value that counts, or else that differs; absent where all are equal",
       [](const TensorDiff& of) { return of.first ? &of : nullptr; },
       DifferingPlaceFields(),
       {.absent = true}}};
  return fields;
}

const Fields<SnapshotDiff>& DifferenceFields() {
  static const Fields<SnapshotDiff> fields = {VerdictField(), PartsField()};
  return fields;
}

const Fields<SnapshotDiff>& SnapshotDiffFields() {
  static const Fields<SnapshotDiff> fields = {
      VerdictField(),
      {"equal", "Whether they count as equal: exit status 0", &SnapshotDiff::equal},
      PartsField()};
  return fields;
}

}  // namespace kv
