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
// Headerless files of an engine: the preset knows the order of their axes, but not all sizes.
struct Preset {
  std::string_view name;     // name for --raw: "hicache"
  std::string_view summary;  // the engine, and the layout that it writes
  std::string_view order;    // axes as in Spec; empty if the files are no plain array
  std::string_view needs;    // sizes that the user has to give, such as "DTYPE:L=,H=,D="
  std::string_view engine;
  std::string_view names;  // a pattern of file names, which only hints show
};
std::span<const Preset> Presets();

// The sizes of a preset by their letters: {"L", 32}.
using Sizes = std::map<std::string, uint64_t, std::less<>>;

// The parts of `--raw PRESET:DTYPE:KEY=VALUE,...`.
struct PresetSpec {
  const Preset* preset = nullptr;
  std::optional<DType> dtype;  // empty: the file's name has the type
  Sizes sizes;
};

// Parses the text if it begins with the name of a preset. Throws kUsage, naming the wrong part.
std::optional<PresetSpec> ParsePreset(std::string_view text);

// Adds layers and heads from flags and a model file, and the type from the file's name.
void FillIn(const OpenOptions& options, std::string_view file, PresetSpec& spec);

// Returns the order with its sizes. One of T and P may follow from the size of the file. Throws
// kUsage, naming what is missing.
Spec BuildSpec(const PresetSpec& preset);

// Returns the preset with such file names, or null.
const Preset* PresetForName(std::string_view file);

// The config.json that vLLM's fs tier (and llm-d) keeps above its blocks. It has their sizes, but
// not the order inside a block.
struct TierConfig {
  std::string model;
  std::vector<std::pair<std::string, std::string>> facts;  // for `inspect`
};

// Fills in sizes from the folder's config that the user did not give. Returns nothing if there is
// none. Throws kBadText, kBadField, kAmbiguousFormat for several configs.
std::optional<TierConfig> FillInFromTier(const Source& folder, PresetSpec& spec);

// Returns the text of the flag with all sizes.
std::string Described(const PresetSpec& spec);

// Reads raw data; OpenOptions::raw is required.
Snapshot OpenRaw(Source source, const OpenOptions& options);

}  // namespace kv::raw
