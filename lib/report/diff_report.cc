// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/report/diff_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kv {

using report::LineChart;
using report::StripMap;
using report::StripRow;

std::string BitsText(DType dtype, uint64_t bits) {
  return fmt::format("{:#0{}x}", bits, 2 + 2 * Info(dtype).block_bytes);
}

FirstDifference FindFirst(const SnapshotDiff& diff) {
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

std::optional<std::string> PrintBits(DType dtype, uint64_t bits) {
  if (IsBlockQuantised(dtype)) return std::nullopt;
  return BitsText(dtype, bits);
}

// Row of a tensor that differs.
const Fields<TensorDiff>& DifferingPlaceFields() {
  const auto at = [](auto member, bool if_known, bool if_unknown) {
    return [=](const TensorDiff& of) -> std::optional<uint64_t> {
      if (!(of.heads_known ? if_known : if_unknown)) return std::nullopt;
      return (*of.first).*member;
    };
  };
  static const Fields<TensorDiff> fields = {
      {"token", "Index of the token", [](const TensorDiff& of) { return of.first->token; }},
      {"head", "Index of the kv head", at(&DifferingValue::head, true, false), Absent()},
      {"dim", "Index of the value in its head", at(&DifferingValue::dim, true, false), Absent()},
      {"channel", "Index of the value in its row, where the heads are not known",
       at(&DifferingValue::dim, false, true), Absent()},
      {"a", "The value in A; null: not finite", [](const TensorDiff& of) { return of.first->a; },
       Nullable()},
      {"b", "The value in B; null: not finite", [](const TensorDiff& of) { return of.first->b; },
       Nullable()},
      {"a_bits",
       "The value in A as it is stored, in hex; absent for block types",
       [](const TensorDiff& of) { return PrintBits(of.a_dtype, of.first->a_bits); },
       {.absent = true, .pattern = kBitsPattern}},
      {"b_bits",
       "The value in B as it is stored, in hex; absent for block types",
       [](const TensorDiff& of) { return PrintBits(of.b_dtype, of.first->b_bits); },
       {.absent = true, .pattern = kBitsPattern}}};
  return fields;
}

const Fields<FirstDifference>& FirstDifferenceFields() {
  static const Fields<FirstDifference> fields = {
      {"layer", "Number of the layer", &FirstDifference::layer},
      {"part", "Tensor of the difference: K or V",
       [](const FirstDifference& of) { return of.part == 'K' ? "k" : "v"; }, OneOf("k", "v")},
      Fields<FirstDifference>::Inline(
          [](const FirstDifference& of) -> const TensorDiff& { return *of.diff; },
          DifferingPlaceFields())};
  return fields;
}

const Fields<LayerDiff>& LayerDiffFields() {
  static const Fields<LayerDiff> fields = {{"layer", "Number of the layer", &LayerDiff::layer},
                                           {"k", "Comparison of K; absent where a side has none",
                                            &LayerDiff::k, TensorDiffFields(), Absent()},
                                           {"v", "Comparison of V; absent where a side has none",
                                            &LayerDiff::v, TensorDiffFields(), Absent()}};
  return fields;
}

constexpr std::string_view kDifferent =
    "Number of values whose stored bits differ; across element types, number of different values";
constexpr std::string_view kBeyond =
    "Number of different values that count: those beyond the tolerance, or all without a tolerance";

// Returns nullopt if every pair has NaN or infinity on one side, so that no distance is known.
template <double (TensorDiff::*distance)() const>
std::optional<double> FindDistance(const TensorDiff& of) {
  return of.measured() == 0 ? std::nullopt : std::optional((of.*distance)());
}

double ComputeShare(uint64_t part, uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

std::string PercentText(double share) { return fmt::format("{:.3g}%", 100 * share); }

// A single difference is as visible as many: shades follow the root of the share, never quite pale.
double ChooseStrength(double share) { return share == 0 ? 0 : 0.3 + 0.7 * std::sqrt(share); }

// Returns "3.12% of the values differ, at most 0.5 apart".
std::string BinText(const TensorDiff& bin, bool by_value) {
  if (bin.different == 0) return "equal";
  const bool counts = bin.beyond > 0;
  std::string text =
      fmt::format("{} of the values {}",
                  PercentText(ComputeShare(counts ? bin.beyond : bin.different, bin.values)),
                  !counts    ? "differ within the tolerance"
                  : by_value ? "are beyond the tolerance"
                             : "differ");
  if (bin.max_abs > 0) text += fmt::format(", at most {:.3g} apart", bin.max_abs);
  if (bin.not_finite > 0) text += fmt::format(", {} by NaN or infinity", bin.not_finite);
  return text;
}

// Marks the bins of one layer that differ. Equal neighbours share a span.
StripRow MapRow(uint32_t number, const std::vector<TensorDiff>& bins, const SnapshotDiff& diff,
                bool with_tips) {
  StripRow row{fmt::format("L{}", number), {}};
  const auto end = static_cast<double>(diff.tokens);
  if (bins.empty()) {
    row.spans.push_back({0, end, 0, 0, with_tips ? fmt::format("layer {}: equal", number) : ""});
    return row;
  }
  for (size_t i = 0; i < bins.size(); ++i) {
    const TensorDiff& bin = bins[i];
    const bool counts = bin.beyond > 0;
    const double share = ComputeShare(counts ? bin.beyond : bin.different, bin.values);
    const auto begin = static_cast<double>(i * diff.bin_tokens);
    const double next = std::min(end, begin + static_cast<double>(diff.bin_tokens));
    std::string tip;
    if (with_tips) {
      tip = fmt::format("layer {}, token{}: ", number,
                        next - begin > 1 ? fmt::format("s {} to {}", begin, next - 1)
                                         : fmt::format(" {}", begin)) +
            BinText(bin, diff.by_value);
    }
    row.spans.push_back({begin, next, ChooseStrength(share), counts ? 1 : 0, std::move(tip)});
  }
  return row;
}

void AddMap(const SnapshotDiff& diff, bool is_value, report::Page& page) {
  StripMap map;
  const char* name = is_value ? "V" : "K";
  map.title = fmt::format("Where {} differs by layer and token", name);
  map.x_label = diff.bin_tokens > 1 ? fmt::format("token, {} to a column", diff.bin_tokens)
                                    : std::string("token");
  map.x_end = static_cast<double>(diff.tokens);
  map.high_label = diff.by_value ? "within the tolerance" : "";
  map.second_label = diff.by_value ? "beyond it" : "different";
  const uint64_t columns = diff.tokens / std::max<uint64_t>(1, diff.bin_tokens) + 1;
  const bool with_tips = report::HasRoomForTips(columns, diff.layers.size());
  for (const LayerDiff& layer : diff.layers) {
    if (!(is_value ? layer.v : layer.k)) continue;
    map.rows.push_back(
        MapRow(layer.layer, is_value ? layer.v_bins : layer.k_bins, diff, with_tips));
  }
  if (map.rows.empty()) return;
  page.Figure(Render(map), fmt::format("{}, layers down, tokens across. The stronger the colour, "
                                       "the larger the share of values that differ; pale: equal.",
                                       name));
}

std::string_view NameVerdict(DiffVerdict verdict) {
  switch (verdict) {
    case DiffVerdict::kIdentical:
      return "Identical";
    case DiffVerdict::kEqualValues:
      return "Equal in value";
    case DiffVerdict::kWithinTolerance:
      return "Within the tolerance";
    case DiffVerdict::kDifferent:
      return "Different";
  }
  return "?";
}

Fields<SnapshotDiff>::Field VerdictField() {
  return {"verdict",
          "How the snapshots compare: every stored bit equal, every value equal in other types, "
          "equal within the tolerance, or different",
          [](const SnapshotDiff& of) { return Name(of.verdict()); },
          OneOf("identical", "equal_values", "within_tolerance", "different")};
}

Fields<SnapshotDiff>::Field PartsField() {
  static const Fields<SnapshotDiff> fields = {
      {"structure", "Differences of geometry, positions and token ids; any makes the verdict",
       &SnapshotDiff::structure},
      {"notes", "Differences that do not count", &SnapshotDiff::notes},
      {"values", "Number of values that were compared",
       [](const SnapshotDiff& of) { return of.Total().values; }},
      {"different_count", kDifferent, [](const SnapshotDiff& of) { return of.Total().different; }},
      {"beyond_tolerance_count", kBeyond, [](const SnapshotDiff& of) { return of.Total().beyond; }},
      {"first", "The first difference that counts, otherwise the first difference",
       [](const SnapshotDiff& of) {
         const FirstDifference first = FindFirst(of);
         return first.diff == nullptr ? std::nullopt : std::optional(first);
       },
       FirstDifferenceFields()},
      {"layers", "The layers that both snapshots have", &SnapshotDiff::layers, LayerDiffFields(),
       CsvRows()}};
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
       &TensorDiff::values, Heading("values")},
      {"different_count", kDifferent, &TensorDiff::different, Heading("differ")},
      {"beyond_tolerance_count", kBeyond, &TensorDiff::beyond, Heading("beyond")},
      {"not_finite_count",
       "Number of different values without a distance, because one side is NaN or infinite",
       &TensorDiff::not_finite},
      {"max_abs", "Largest of abs(a - b) over finite pairs", FindDistance<&TensorDiff::largest_abs>,
       Heading("max abs", format::AsNats)},
      {"mean_abs",
       "Mean of abs(a - b) over all pairs but those with a NaN or infinity on one side; null if "
       "there are no others",
       FindDistance<&TensorDiff::mean_abs>, Heading("mean abs", format::AsNats)},
      {"max_rel", "Largest of abs(a - b) / abs(b) over finite pairs in which b is not 0",
       FindDistance<&TensorDiff::largest_rel>, Heading("max rel", format::AsNats)},
      {"max_ulp",
       "Largest distance in units of the last place; null across element types, for block types "
       "and without pairs",
       &TensorDiff::largest_ulp, Heading("max ulp")},
      {"first", "The first difference that counts, otherwise the first; absent where all are equal",
       [](const TensorDiff& of) { return of.first ? &of : nullptr; }, DifferingPlaceFields(),
       Absent()}};
  return fields;
}

const Fields<SnapshotDiff>& DifferenceFields() {
  static const Fields<SnapshotDiff> fields = {VerdictField(), PartsField()};
  return fields;
}

const Fields<SnapshotDiff>& SnapshotDiffFields() {
  static const Fields<SnapshotDiff> fields = {
      VerdictField(),
      {"equal", "Whether the snapshots count as equal: exit status 0", &SnapshotDiff::equal},
      PartsField()};
  return fields;
}

std::string PlaceText(const TensorDiff& diff) {
  const DifferingValue& at = *diff.first;
  return diff.heads_known ? fmt::format("token {} head {} dim {}", at.token, at.head, at.dim)
                          : fmt::format("token {} channel {}", at.token, at.dim);
}

TextTable DiffTable(const SnapshotDiff& diff) {
  static const Fields<TensorDiff> columns = {Fields<TensorDiff>::Inline(TensorDiffFields()),
                                             Fields<TensorDiff>::Column("first at", PlaceText)};
  return TableByTensor(
      columns, diff.layers, {"k", "v"}, +[](const TensorDiff& of) { return of.different > 0; });
}

report::Page DiffPage(const std::string& a, const std::string& b, const SnapshotDiff& diff) {
  report::Page page("Two caches compared", fmt::format("{} and {}", a, b));
  const TensorDiff total = diff.Total();
  std::string text = fmt::format("{} of {} values differ", total.different, total.values);
  if (diff.by_value) text += fmt::format(", {} beyond the tolerance", total.beyond);
  page.Verdict(diff.equal() ? report::Tone::kGood : report::Tone::kBad, NameVerdict(diff.verdict()),
               text + ".");
  if (diff.tokens > 0 && !diff.layers.empty()) {
    page.Heading("Where");
    AddMap(diff, false, page);
    AddMap(diff, true, page);
  }
  if (total.different > 0) {
    page.Heading("How much");
    LineChart share = report::ChartByLayer("Values that differ by layer", "share of the values", 0);
    share.y_unit = report::Unit::kPercent;
    share.series = report::SeriesOfTensors(
        diff.layers, [](const TensorDiff& of) { return ComputeShare(of.different, of.values); });
    page.Figure(Render(share), "How many values differ at all.");
    LineChart largest = report::ChartByLayer("Largest difference by layer", "largest |a - b|", 0);
    largest.series =
        report::SeriesOfTensors(diff.layers, [](const TensorDiff& of) { return of.max_abs; });
    page.Figure(Render(largest), "Only finite values count.");
    page.Table(DiffTable(diff));
  }
  page.Notes("Other differences", diff.structure);
  page.Notes("Differences that do not count", diff.notes);
  return page;
}

}  // namespace kv
