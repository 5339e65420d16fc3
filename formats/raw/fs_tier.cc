// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/raw/fs_tier.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "lib/core/base/json.h"
#include "lib/core/base/number.h"

namespace kv::raw {
namespace {

using nlohmann::json;

constexpr uint64_t kLargestConfig = 1 << 20;
constexpr std::string_view kConfigName = "config.json";
constexpr std::string_view kGroupMark = "_g";

json ParseConfig(const SourceFile& file) {
  if (file.data->size() > kLargestConfig) throw Error(Finding::kLimit, "is above 1 MiB");
  json config = ReadJson(AsText(file.data->bytes()), {.bytes = kLargestConfig});
  if (!config.is_object()) throw Error(Finding::kBadText, "is not a JSON object");
  return config;
}

std::optional<uint64_t> Count(const json& object, const char* key) {
  const auto at = object.find(key);
  if (at == object.end() || at->is_null()) return std::nullopt;
  if (!at->is_number_unsigned() || *at == 0 || *at > UINT32_MAX)
    throw Error(Finding::kBadField, fmt::format("{} is not a positive number", key));
  return at->get<uint64_t>();
}

// vLLM has renamed its fields: the newer name first.
std::optional<uint64_t> Count(const json& object, const char* key, const char* former) {
  const std::optional<uint64_t> count = Count(object, key);
  return count ? count : Count(object, former);
}

std::string Word(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? Escaped(at->get<std::string>(), 120) : "";
}

// <hh>_g<group>/<hash>.bin
std::set<uint64_t> GroupsOf(const Source& folder) {
  std::set<uint64_t> groups;
  for (const SourceFile& file : folder.files) {
    const size_t slash = file.name.rfind('/');
    if (slash == std::string::npos || !file.name.ends_with(".bin")) continue;
    const size_t mark = file.name.rfind(kGroupMark, slash);
    if (mark == std::string::npos) continue;
    const std::string digits =
        file.name.substr(mark + kGroupMark.size(), slash - mark - kGroupMark.size());
    const auto group = ParseNumber<uint64_t>(digits);
    if (group && digits.size() <= 6) groups.insert(*group);
  }
  return groups;
}

void FillGroup(const json& config, const Source& folder, PresetSpec& spec) {
  const auto groups = config.find("kv_cache_groups");
  if (groups == config.end() || !groups->is_array() || groups->empty()) {
    // Without groups a block is what a hash stands for.
    if (const auto tokens = Count(config, "tokens_per_hash", "hash_block_size"))
      spec.sizes.try_emplace("P", *tokens);
    return;
  }
  const std::set<uint64_t> used = GroupsOf(folder);
  if (groups->size() > 1 && used.size() != 1) {
    throw std::move(
        Error(Finding::kAmbiguousFormat,
              fmt::format("its {} cache groups differ in shape, and the folder holds blocks of {}",
                          groups->size(), used.size()))
            .Hint("give a folder with the blocks of one group, with L= and P="));
  }
  const uint64_t index = groups->size() == 1 ? 0 : *used.begin();
  if (index >= groups->size()) throw Error(Finding::kBadField, "has no such cache group");
  const json& group = (*groups)[index];
  if (!group.is_object()) throw Error(Finding::kBadField, "a cache group is not an object");
  if (const auto tokens = Count(group, "tokens_per_block", "block_size"))
    spec.sizes.try_emplace("P", *tokens);
  const auto names = group.find("layer_names");
  if (names != group.end() && names->is_array() && !names->empty())
    spec.sizes.try_emplace("L", names->size());
}

// Canonical pages say in a word whether heads or tokens are outside.
void CheckCanonical(const std::string& word, const Preset& preset) {
  const bool tokens_outside = preset.order.find('P') < preset.order.find('H');
  if (!word.ends_with(tokens_outside ? "-hnd" : "-nhd")) return;
  throw std::move(Error(Finding::kInconsistent,
                        fmt::format("its canonical format is {}, but {} puts {} outside", word,
                                    preset.name, tokens_outside ? "tokens" : "heads"))
                      .Hint(tokens_outside ? "--raw vllm-fs-packed-hnd" : "--raw vllm-fs-packed"));
}

// Where blocks of a file and cells of ranks lie is known of the rows that vLLM's own tier writes.
void FillRow(const json& config, PresetSpec& spec) {
  if (spec.preset->order.find('G') == std::string_view::npos) return;
  if (const auto blocks = Count(config, "blocks_per_file", "gpu_blocks_per_file"))
    spec.sizes.try_emplace("T", *blocks);
  const auto agnostic = config.find("parallel_agnostic");
  if (agnostic == config.end() || !agnostic->is_boolean() || agnostic->get<bool>()) return;
  for (const char* key : {"pp_size", "pcp_size", "dcp_size"}) {
    if (Count(config, key).value_or(1) > 1) {
      throw Error(
          Finding::kUnsupportedLayout,
          fmt::format(
              "{} {}: a row has cells of ranks that divide layers or tokens among themselves", key,
              *Count(config, key)));
    }
  }
  if (const auto ranks = Count(config, "tp_size")) spec.sizes.try_emplace("G", *ranks);
}

}  // namespace

std::optional<TierConfig> FillInFromTier(const Source& folder, PresetSpec& spec) {
  const std::string_view order = spec.preset->order;
  if (order.find('P') == order.npos || order.find('T') == order.npos) return std::nullopt;
  const SourceFile* config_file = nullptr;
  for (const SourceFile& file : folder.files) {
    if (file.name != kConfigName && !file.name.ends_with("/" + std::string(kConfigName))) continue;
    if (config_file != nullptr) {
      throw std::move(Error(Finding::kAmbiguousFormat, "holds blocks of several models")
                          .Hint("give the folder of one"));
    }
    config_file = &file;
  }
  if (config_file == nullptr) return std::nullopt;
  try {
    const json config = ParseConfig(*config_file);
    FillGroup(config, folder, spec);
    FillRow(config, spec);
    std::string dtype = Word(config, "dtype");
    if (dtype.starts_with("torch.")) dtype.erase(0, 6);
    if (!spec.dtype) spec.dtype = ParseDType(dtype);
    TierConfig told{.model = Word(config, "model_name"), .facts = {}};
    const std::string engine = Word(config, "inference_engine");
    if (!engine.empty()) told.facts.emplace_back("written by", engine);
    std::string ranks;
    for (const char* key : {"tp_size", "pp_size", "pcp_size", "dcp_size"}) {
      const auto size = Count(config, key);
      if (size && *size > 1) ranks += fmt::format("{}{} {}", ranks.empty() ? "" : ", ", key, *size);
    }
    if (!ranks.empty()) {
      const auto groups = spec.sizes.find("G");
      told.facts.emplace_back("ranks", groups != spec.sizes.end() && groups->second > 1
                                           ? ranks + ": a cell of each in every file"
                                           : ranks + ": each file is one rank's part");
    }
    const std::string canonical = Word(config, "canonical_format");
    if (!canonical.empty()) {
      CheckCanonical(canonical, *spec.preset);
      told.facts.emplace_back("canonical format", canonical);
    }
    return told;
  } catch (Error& error) {
    throw error.In(Escaped(config_file->name, 120));
  }
}

std::string Described(const PresetSpec& spec) {
  std::string text = fmt::format("{}:{}:", spec.preset->name, spec.dtype ? Name(*spec.dtype) : "?");
  for (const auto& [key, size] : spec.sizes)
    text += fmt::format("{}{}={}", text.back() == ':' ? "" : ",", key, size);
  return text;
}

}  // namespace kv::raw
