// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/commands/replay/quant_against.h"

#include <fmt/format.h>

namespace kv {
namespace {

using quantisation::Agreement;
using quantisation::Hypothesis;
using quantisation::Origin;
using quantisation::SideOrigin;

std::string_view RoundingName(Q8Rounding rounding) {
  if (rounding == Q8Rounding::kAvx) return "avx";
  return rounding == Q8Rounding::kReference ? "ref" : "arm";
}

nlohmann::ordered_json AgreementJson(const Agreement& agreement) {
  return {{"codes", agreement.codes},
          {"equal_codes", agreement.equal_codes},
          {"equal_codes_fraction", agreement.share()},
          {"equal_blocks_fraction", agreement.block_share()},
          {"furthest", agreement.furthest}};
}

nlohmann::ordered_json HypothesisJson(const SideOrigin& side, const Hypothesis& hypothesis) {
  nlohmann::ordered_json json = {{"hadamard", hypothesis.origin.rotated}, {"rounding", nullptr}};
  if (side.dtype == DType::kQ8_0) json["rounding"] = RoundingName(hypothesis.origin.rounding);
  json["searched"] = hypothesis.origin.searched;
  json.update(AgreementJson(hypothesis.first_layer));
  return json;
}

nlohmann::ordered_json SideJson(const std::optional<SideOrigin>& side) {
  if (!side) return nullptr;
  nlohmann::ordered_json json = {{"type", Name(side->dtype)},
                                 {"named", side->is_named()},
                                 {"equally_good", side->equally_good()},
                                 {"tried", nlohmann::ordered_json::array()},
                                 {"layers", nlohmann::ordered_json::array()}};
  for (const Hypothesis& hypothesis : side->tried)
    json["tried"].push_back(HypothesisJson(*side, hypothesis));
  for (const Agreement& layer : side->layers) json["layers"].push_back(AgreementJson(layer));
  return json;
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
    text += RoundingName(side.tried[i].origin.rounding);
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

nlohmann::ordered_json OriginJson(const quantisation::CacheOrigin& origin) {
  return {{"k", SideJson(origin.k)}, {"v", SideJson(origin.v)}, {"named", IsNamed(origin)}};
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
