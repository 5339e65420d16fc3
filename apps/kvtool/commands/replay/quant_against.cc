// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/replay/quant_against.h"

#include <fmt/format.h>

#include "lib/study/quantisation/report.h"

namespace kv {
namespace {

using quantisation::Agreement;
using quantisation::Hypothesis;
using quantisation::Origin;
using quantisation::SideOrigin;

const Fields<Agreement>& AgreementFields() {
  static const Fields<Agreement> fields = {
      {"codes", "Quantised codes that were compared", &Agreement::codes},
      {"equal_codes", "Codes that are equal in both", &Agreement::equal_codes},
      {"equal_codes_fraction", "equal_codes / codes", &Agreement::share},
      {"equal_blocks_fraction", "Share of the blocks of which all codes are equal",
       &Agreement::block_share},
      {"furthest", "The largest difference of two codes", &Agreement::furthest}};
  return fields;
}

// A way to store a side that was tried.
struct TriedOrigin {
  DType dtype;
  const Hypothesis& hypothesis;
};

const Fields<TriedOrigin>& TriedOriginFields() {
  static const Fields<TriedOrigin> fields = {
      {"hadamard", "Whether values are rotated by a Hadamard transform before they are quantised",
       [](const TriedOrigin& of) { return of.hypothesis.origin.rotated; }},
      {"rounding", "How q8_0 rounds: avx (x86), ref (plain C) or arm; null for other types",
       [](const TriedOrigin& of) {
         return of.dtype == DType::kQ8_0
                    ? std::optional(quantisation::RoundingName(of.hypothesis.origin.rounding))
                    : std::nullopt;
       },
       OneOf("avx", "ref", "arm")},
      {"searched", "Whether a search over scales is made, which iq4_nl alone may do",
       [](const TriedOrigin& of) { return of.hypothesis.origin.searched; }},
      Fields<TriedOrigin>::Inline(
          [](const TriedOrigin& of) -> const Agreement& { return of.hypothesis.first_layer; },
          AgreementFields())};
  return fields;
}

std::vector<TriedOrigin> TriedIn(const SideOrigin& side) {
  std::vector<TriedOrigin> tried;
  for (const Hypothesis& hypothesis : side.tried) tried.push_back({side.dtype, hypothesis});
  return tried;
}

const Fields<SideOrigin>& SideOriginFields() {
  static const Fields<SideOrigin> fields = {
      {"type", "The cache type, as q8_0", [](const SideOrigin& side) { return Name(side.dtype); }},
      {"named",
       "Whether at least 98% of the first layer's codes agree under the best one that was tried",
       &SideOrigin::is_named},
      {"equally_good", "How many of those tried agree as well as the first",
       &SideOrigin::equally_good, AtLeast(1)},
      {"tried", "Best first, by the first layer", TriedIn, TriedOriginFields()},
      {"layers", "Under the best one", &SideOrigin::layers, AgreementFields()}};
  return fields;
}

// The roundings that fit equally well: a pair of runs tells them apart only where a tie shows.
std::string OriginText(const SideOrigin& side) {
  const Origin& best = side.tried.front().origin;
  std::string text =
      fmt::format("{}, {}", Name(side.dtype), best.rotated ? "rotated" : "not rotated");
  if (best.searched) text += ", with a search over scales";
  if (side.dtype != DType::kQ8_0) return text;
  text += ", rounded as";
  for (size_t i = 0; i < side.equally_good(); ++i) {
    text += i == 0 ? " " : " or ";
    text += quantisation::RoundingName(side.tried[i].origin.rounding);
  }
  if (side.equally_good() > 1) text += " (two runs do not tell)";
  return text;
}

void PrintSide(Console& console, char name, const std::optional<SideOrigin>& side) {
  if (!side) {
    console.Line(fmt::format("{}: not quantised", name));
    return;
  }
  const Hypothesis& best = side->tried.front();
  const double others = side->tried.size() > side->equally_good()
                            ? side->tried[side->equally_good()].first_layer.share()
                            : 0;
  console.Line(
      fmt::format("{}: {}{}: {:.2f}% of the first layer's codes agree, {:.2f}% under the next best",
                  name, side->is_named() ? "" : "not named, nearest to ", OriginText(*side),
                  100 * best.first_layer.share(), 100 * others));
}

}  // namespace

const Fields<quantisation::CacheOrigin>& CacheOriginFields() {
  using Origins = quantisation::CacheOrigin;
  static const Fields<Origins> fields = {
      {"k", "How K was quantised; null where it is not", &Origins::k, SideOriginFields()},
      {"v", "How V was quantised; null where it is not", &Origins::v, SideOriginFields()},
      {"named", "Whether both sides that are quantised are named", IsNamed}};
  return fields;
}

void PrintOrigin(Console& console, const quantisation::CacheOrigin& origin) {
  PrintSide(console, 'K', origin.k);
  PrintSide(console, 'V', origin.v);
  if (!origin.k && !origin.v) return;
  Table table({"layer", "K codes", "K blocks", "K furthest", "V codes", "V blocks", "V furthest"});
  const size_t layers = origin.k ? origin.k->layers.size() : origin.v->layers.size();
  for (size_t l = 0; l < layers; ++l) {
    std::vector<std::string> row = {std::to_string(l)};
    for (const auto* side : {&origin.k, &origin.v}) {
      if (!*side) {
        row.insert(row.end(), 3, "-");
        continue;
      }
      const Agreement& agreement = (*side)->layers[l];
      row.push_back(fmt::format("{:.2f}%", 100 * agreement.share()));
      row.push_back(fmt::format("{:.2f}%", 100 * agreement.block_share()));
      row.push_back(std::to_string(agreement.furthest));
    }
    table.Row(row);
  }
  console.Line("deeper layers drift apart with the hidden states of the two runs:");
  console.Data(table.Text());
}

bool IsNamed(const quantisation::CacheOrigin& origin) {
  return (!origin.k || origin.k->is_named()) && (!origin.v || origin.v->is_named());
}

}  // namespace kv
