// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "formats/raw/presets.h"

namespace kv::raw {

// The config.json that vLLM's fs tier (and llm-d) keeps above its blocks. It tells their sizes, but
// not the order inside a block.
struct TierConfig {
  std::string model;
  std::vector<std::pair<std::string, std::string>> facts;  // for `inspect`
};

// Fills in what the config of the folder says and the user did not. Returns nothing if there is
// none. Throws kBadText, kBadField, kAmbiguousFormat for several configs.
std::optional<TierConfig> FillInFromTier(const Source& folder, PresetSpec& spec);

// The flag's text after that.
std::string Described(const PresetSpec& spec);

}  // namespace kv::raw
