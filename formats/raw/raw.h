// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/format.h"
#include "formats/raw/spec.h"

namespace kv::raw {
// An engine's headerless files: the preset knows the order of their axes, but not all sizes.
struct Preset {
  std::string_view name;     // what --raw says: "hicache"
  std::string_view summary;  // whose files, in which of its layouts
  std::string_view order;    // axes as in Spec; empty where the files are no plain array
  std::string_view needs;    // what the user gives, as the flag says it: "DTYPE:L=,H=,D="
  std::string_view engine;
  std::string_view names;  // what its files are called, as a glob: for hints only
};
std::span<const Preset> Presets();

// The sizes of a preset by their letters: {"L", 32}.
using Sizes = std::map<std::string, uint64_t, std::less<>>;

// What `--raw PRESET:DTYPE:KEY=VALUE,...` says.
struct PresetSpec {
  const Preset* preset = nullptr;
  std::optional<DType> dtype;  // none: left to the file's name
  Sizes sizes;
};

// Parses the text if it begins with the name of a preset. Throws kUsage, naming the wrong part.
std::optional<PresetSpec> ParsePreset(std::string_view text);

// Adds what flags and a model file say about layers and heads, and what the file's name says about
// its type.
void FillIn(const OpenOptions& options, std::string_view file, PresetSpec& spec);

// The order with its sizes. One of T and P may follow from the size of the file. Throws kUsage
// naming what is missing.
Spec BuildSpec(const PresetSpec& preset);

// The preset whose files have names like this one, or null.
const Preset* PresetForName(std::string_view file);

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

// The reader: OpenOptions::raw is required.
Snapshot OpenRaw(Source source, const OpenOptions& options);

}  // namespace kv::raw
