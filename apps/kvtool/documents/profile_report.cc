// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/documents/profile_report.h"

#include <fmt/format.h>

#include "apps/kvtool/documents/document_fields.h"

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

namespace {

const Fields<ProfileEntry>& ProfileEntryFields() {
  static const Fields<ProfileEntry> fields = {
      {"layer", "Number of the layer", &ProfileEntry::layer},
      {"kv",
       "K or V",
       [](const ProfileEntry& entry) { return entry.is_value ? "v" : "k"; },
       {.choices = {"k", "v"}}},
      {"dtype",
       "Element type",
       [](const ProfileEntry& entry) { return Name(entry.dtype); },
       {.choices = {"f16", "bf16"}}},
      {"row_values", "Values of a row: all heads of a token", &ProfileEntry::columns, {.least = 1}},
      {"tables",
       "Number of entropy tables",
       [](const ProfileEntry& entry) { return entry.model.tables.size(); },
       {.least = 1}},
      {"bits_per_value", "Bits that a value took in training", BitsPerValue, kFromZero},
      {"known_rows", "Rows that came back in training and are listed", &ProfileEntry::row_count}};
  return fields;
}

}  // namespace

const Fields<Profile>& ProfileFields() {
  static const Fields<Profile> fields = {
      {"name", "Name of the model", &Profile::name},
      {"hash",
       "By which frames and archives name the profile: XXH3 (128 bits, 32 hex digits)",
       [](const Profile& profile) { return ProfileHashText(profile.hash()); },
       {.pattern = kProfileHashPattern}},
      {"bytes", "Size of the profile in bytes",
       [](const Profile& profile) { return profile.file().size(); }},
      {"tensors",
       "K and V of the layers, by layer, K before V",
       &Profile::entries,
       ProfileEntryFields(),
       {.rows = true}}};
  return fields;
}

}  // namespace kv
