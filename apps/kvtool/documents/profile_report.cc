// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/documents/profile_report.h"

#include <fmt/format.h>

namespace kv {
namespace {

double BitsPerValue(const ProfileEntry& entry) { return entry.expected / 1024.0; }
double ExpectedRatio(const ProfileEntry& entry) {
  return entry.expected == 0 ? 0 : 16 / BitsPerValue(entry);
}

}  // namespace

std::string ProfileSummary(const Profile& profile) {
  return fmt::format("profile{}, {} tensors, {}",
                     profile.name().empty() ? "" : " of " + Printable(profile.name()),
                     profile.entries().size(), HumanBytes(profile.file().size()));
}

std::string ProfileText(const Profile& profile) {
  Table table({"layer", "kv", "dtype", "row", "tables", "bits per value", "ratio", "known rows"});
  for (const ProfileEntry& entry : profile.entries()) {
    table.Row({std::to_string(entry.layer), entry.is_value ? "v" : "k",
               std::string(Name(entry.dtype)), std::to_string(entry.columns),
               std::to_string(entry.model.tables.size()),
               fmt::format("{:.3f}", BitsPerValue(entry)),
               fmt::format("{:.3f}x", ExpectedRatio(entry)), std::to_string(entry.row_count())});
  }
  return fmt::format("{}\nhash {}\n\n{}", ProfileSummary(profile), ProfileHashText(profile.hash()),
                     table.Text("  "));
}

nlohmann::ordered_json ProfileJson(const Profile& profile) {
  nlohmann::ordered_json json = {{"name", profile.name()},
                                 {"hash", ProfileHashText(profile.hash())},
                                 {"bytes", profile.file().size()}};
  json["tensors"] = nlohmann::ordered_json::array();
  for (const ProfileEntry& entry : profile.entries()) {
    json["tensors"].push_back({{"layer", entry.layer},
                               {"kv", entry.is_value ? "v" : "k"},
                               {"dtype", Name(entry.dtype)},
                               {"row_values", entry.columns},
                               {"tables", entry.model.tables.size()},
                               {"bits_per_value", BitsPerValue(entry)},
                               {"known_rows", entry.row_count()}});
  }
  return json;
}

}  // namespace kv
