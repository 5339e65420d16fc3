// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string_view>
#include <vector>

namespace kv {

// Everything that can be read or written, for `kvtool formats`, collected from the tables that the
// readers and writers themselves use.
enum class FormatKind { kSnapshot, kNames, kPreset, kTrace, kWeights, kModel };
std::string_view Name(FormatKind kind);

struct FormatListing {
  std::string_view id;
  FormatKind kind;
  bool detected = false, reads = false, writes = false;
  std::string_view summary;
  std::string_view needs;  // what the user must supply beyond the file
};
std::vector<FormatListing> ListFormats();

}  // namespace kv
