// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Presets of engines' headerless files: sizes from flags, models, file names and the config of
// vLLM's fs tier.
#include "formats/raw/raw.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/json_fields.h"
#include "formats/lmcache/lmcache.h"
#include "formats/mnn/mnn.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"
#include "lib/core/snapshot/rope.h"

namespace kv::raw {
namespace {

constexpr Preset kPresets[] = {
    {"lmcache-disk", "LMCache local disk: raw bytes in spite of .pt, KV_2LTD", "2LTHD",
     "DTYPE:L=,H=,D=", "LMCache", "*@*@*@*@*.pt"},
    {"lmcache-mp", "LMCache's server (fs adapters): MODEL@0xRANK@GROUP@HASH.data, no header",
     "2LTHD", "DTYPE:L=,H=,D=", "LMCache", "*@0x????????@*@*.data"},
    {"lmcache-mp-mla", "LMCache's server (fs adapters), latent attention", "LTD",
     "DTYPE:L=,D=", "LMCache", ""},
    {"lmcache-disk-layer", "LMCache local disk, layerwise: one layer a file, KV_T2D", "T2HD",
     "DTYPE:H=,D=", "LMCache", ""},
    {"lmcache-disk-layer-2td", "LMCache local disk, layerwise with K before V, KV_2TD", "2THD",
     "DTYPE:H=,D=", "LMCache", ""},
    {"lmcache-disk-mla", "LMCache local disk, latent attention, KV_MLA_FMT", "LTD",
     "DTYPE:L=,D=", "LMCache", ""},
    {"lmcache-fast", "LMCache 2024, remote serde 'fast'", "L2THD", "DTYPE:L=,H=,D=", "LMCache", ""},
    {"hicache", "SGLang HiCache pages, layer_first and page_first_direct", "2LPHD",
     "DTYPE:L=,H=,D=", "SGLang", "[0-9a-f][0-9a-f][0-9a-f][0-9a-f]*_*_*_*.bin"},
    {"hicache-page-first", "SGLang HiCache pages, page_first", "2PLHD", "DTYPE:L=,H=,D=", "SGLang",
     ""},
    {"hicache-page-head", "SGLang HiCache pages, page_head", "2HPLD", "DTYPE:L=,H=,D=", "SGLang",
     ""},
    {"hicache-unified", "SGLang HiCache pages, page_unified (G= groups of heads, 1 if not given)",
     "GL2PHD", "DTYPE:L=,H=,D=[,G=]", "SGLang", ""},
    {"hicache-mla", "SGLang HiCache pages, latent attention (page_unified too)", "LPD",
     "DTYPE:L=,D=", "SGLang", ""},
    {"vllm-fs", "vLLM fs tier blocks, also llm-d's (config.json gives L, P, DTYPE); [token][head]",
     "TL2PHD", "DTYPE:L=,P=,H=,D=", "vLLM", "*_g*/*.bin"},
    {"vllm-fs-hnd", "vLLM fs tier blocks of [head][token] (HND backends)", "TL2HPD",
     "DTYPE:L=,P=,H=,D=", "vLLM", ""},
    {"vllm-fs-packed", "vLLM >= 0.26: K and V side by side in a head; [token][head] (LBNHC, BLNHC)",
     "GLTPH2D", "DTYPE:L=,P=,H=,D=[,V=,T=,G=]", "vLLM", ""},
    {"vllm-fs-packed-hnd",
     "vLLM >= 0.26: K and V side by side in a head; [head][token] (LBHNC, BLHNC)", "GLTHP2D",
     "DTYPE:L=,P=,H=,D=[,V=,T=,G=]", "vLLM", ""},
    {"vllm-fs-mla", "vLLM fs tier blocks, latent attention", "TLPD", "DTYPE:L=,P=,D=", "vLLM", ""},
    {mnn::kCachePreset, "MNN prefix cache and mmap files: packed tiles, NAME_LAYER.k and .v", "",
     "DTYPE:H=,D=,T=,hP=,lP=[,FA=]", "MNN", "*.k"},
};

constexpr std::string_view kPlainKeys[] = {"L", "T", "P", "G", "H", "D", "V", "C", "B"};

template <typename... Values>
Error Wrong(const Preset& preset, fmt::format_string<Values...> text, Values&&... values) {
  return Error(Finding::kUsage, "--raw {}: {}", preset.name,
               fmt::format(text, std::forward<Values>(values)...))
      .Hint("--raw {}:{}", preset.name, preset.needs);
}

bool IsKey(const Preset& preset, std::string_view key) {
  if (preset.order.empty()) return mnn::IsCacheKey(key);
  for (const std::string_view known : kPlainKeys) {
    if (known != key) continue;
    if (key == "V") return preset.order.find('2') < preset.order.find('D');
    return key == "C" || preset.order.find(key) != preset.order.npos;
  }
  return false;
}

void ParseSize(const Preset& preset, std::string_view item, Sizes& sizes) {
  const size_t equals = item.find('=');
  const std::string_view key = item.substr(0, equals);
  const std::string_view text = equals == item.npos ? "" : item.substr(equals + 1);
  const uint64_t size = ParseNumber<uint64_t>(text).value_or(0);
  if (equals == item.npos || size == 0 || size > UINT32_MAX) {
    throw Wrong(preset, "'{}' is not KEY=NUMBER", Escaped(item, 40));
  }
  if (!IsKey(preset, key)) {
    throw Wrong(preset, "it has no size '{}'", Escaped(key, 40));
  }
  if (!sizes.emplace(key, size).second) {
    throw Wrong(preset, "'{}' is given twice", key);
  }
}

}  // namespace

std::span<const Preset> Presets() { return kPresets; }

std::optional<PresetSpec> ParsePreset(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  PresetSpec spec;
  for (const Preset& preset : kPresets) {
    if (preset.name == name) spec.preset = &preset;
  }
  if (spec.preset == nullptr) return std::nullopt;
  const Preset& preset = *spec.preset;
  if (name.size() == text.size()) return spec;
  text.remove_prefix(name.size() + 1);
  const std::string_view dtype = text.substr(0, text.find(':'));
  if (!dtype.empty() && dtype != "?") {
    spec.dtype = ParseDType(dtype);
    if (!spec.dtype || IsBlockQuantised(*spec.dtype)) {
      throw Wrong(preset, "'{}' is not an element type", Escaped(dtype, 40));
    }
  }
  if (dtype.size() == text.size()) return spec;
  text.remove_prefix(dtype.size() + 1);
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    ParseSize(preset, item, spec.sizes);
    text.remove_prefix(std::min(item.size() + 1, text.size()));
  }
  return spec;
}

void FillIn(const OpenOptions& options, std::string_view file, PresetSpec& spec) {
  if (options.geometry && spec.sizes.count("C") == 0) {
    const ModelGeometry& geometry = *options.geometry;
    const ModelGeometry::Layer& layer =
        geometry.layers.empty() ? geometry.uniform : geometry.layers.front();
    const auto fill = [&](const char* key, uint64_t size) {
      if (size != 0 && IsKey(*spec.preset, key)) spec.sizes.try_emplace(key, size);
    };
    fill("L", geometry.layers.size());
    fill("H", layer.kv_heads);
    fill("D", layer.k_dim);
    if (layer.v_dim != layer.k_dim) fill("V", layer.v_dim);
  }
  const auto key = lmcache::ParseKeyFileName(file);
  if (key && !spec.dtype) spec.dtype = key->dtype;
}

namespace {

std::optional<uint64_t> FindSize(const PresetSpec& preset, char letter) {
  const auto at = preset.sizes.find(std::string_view(&letter, 1));
  return at == preset.sizes.end() ? std::nullopt : std::optional(at->second);
}

// Returns the axes of the preset's order. Throws if a size is missing.
std::vector<Axis> BuildAxes(const PresetSpec& preset, uint64_t groups) {
  const bool undivided = FindSize(preset, 'C').has_value();
  const std::string_view order = preset.preset->order;
  std::vector<Axis> axes;
  std::string missing;
  for (const char letter : order) {
    if ((letter == 'G' && groups == 1) || (letter == 'H' && undivided)) continue;
    const char axis = letter == 'D' && undivided ? 'C' : letter;
    std::optional<uint64_t> size = axis == '2' ? 2 : FindSize(preset, axis);
    if (axis == 'H' && size) *size /= groups;
    // The size of the file may give the number of blocks, or of tokens if it has one page.
    const bool may_follow = axis == (order.find('T') != order.npos ? 'T' : 'P');
    if (!size && !may_follow) missing += fmt::format("{}{}=", missing.empty() ? "" : ", ", axis);
    axes.push_back({axis, size});
  }
  if (!missing.empty()) throw Wrong(*preset.preset, "{} is missing", missing);
  return axes;
}

}  // namespace

Spec BuildSpec(const PresetSpec& preset) {
  const auto size_of = [&](char letter) { return FindSize(preset, letter); };
  if (!preset.dtype) throw Wrong(*preset.preset, "the element type is not known");
  Spec spec{
      .name = fmt::format("--raw {}", preset.preset->name), .dtype = *preset.dtype, .axes = {}};
  const uint64_t groups = size_of('G').value_or(1);
  if (size_of('H').value_or(0) % groups != 0) {
    throw Wrong(*preset.preset, "H={} heads do not divide into G={} equal groups", *size_of('H'),
                groups);
  }
  if (size_of('V') != size_of('D')) spec.v_dim = size_of('V');
  const std::string_view order = preset.preset->order;
  const bool apart = order.find("HD") == order.npos || groups > 1 || spec.v_dim;
  if (size_of('C') && apart && order.find('H') != order.npos) {
    throw Wrong(*preset.preset, "it separates heads and dims: give H= and D=, not C=");
  }
  if (size_of('L').value_or(1) > kMostLayers) {
    throw Wrong(*preset.preset, "L={} is more than {}", *size_of('L'), kMostLayers);
  }
  spec.axes = BuildAxes(preset, groups);
  return spec;
}

const Preset* PresetForName(std::string_view file) {
  const std::string name(file);
  for (const Preset& preset : kPresets) {
    if (!preset.names.empty() && ::fnmatch(preset.names.data(), name.c_str(), 0) == 0)
      return &preset;
  }
  return nullptr;
}

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
    throw Error(Finding::kBadField, "{} is not a positive number", key);
  return at->get<uint64_t>();
}

// Reads a count that vLLM has renamed; the newer name has precedence.
std::optional<uint64_t> Count(const json& object, const char* key, const char* former) {
  const std::optional<uint64_t> count = Count(object, key);
  return count ? count : Count(object, former);
}

std::string Word(const json& object, const char* key) {
  return Escaped(WordField(object, key), 120);
}

// Folder names have the form <hh>_g<group>/<hash>.bin.
std::set<uint64_t> ListGroups(const Source& folder) {
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
    // Without groups, a block is the number of tokens that a hash covers.
    if (const auto tokens = Count(config, "tokens_per_hash", "hash_block_size"))
      spec.sizes.try_emplace("P", *tokens);
    return;
  }
  const std::set<uint64_t> used = ListGroups(folder);
  if (groups->size() > 1 && used.size() != 1) {
    throw Error(Finding::kAmbiguousFormat,
                "its {} cache groups differ in shape, and the folder holds blocks of {}",
                groups->size(), used.size())
        .Hint("give a folder with the blocks of one group, with L= and P=");
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

// Checks the word by which canonical pages say whether heads or tokens are the outer axis.
void CheckCanonical(const std::string& word, const Preset& preset) {
  const bool tokens_outside = preset.order.find('P') < preset.order.find('H');
  if (!word.ends_with(tokens_outside ? "-hnd" : "-nhd")) return;
  throw Error(Finding::kInconsistent, "its canonical format is {}, but {} puts {} first", word,
              preset.name, tokens_outside ? "tokens" : "heads")
      .Hint(tokens_outside ? "--raw vllm-fs-packed-hnd" : "--raw vllm-fs-packed");
}

// Fills in the places of blocks in a file and of cells of ranks, which are known for the rows that
// vLLM's own tier writes.
void FillRow(const json& config, PresetSpec& spec) {
  if (spec.preset->order.find('G') == std::string_view::npos) return;
  if (const auto blocks = Count(config, "blocks_per_file", "gpu_blocks_per_file"))
    spec.sizes.try_emplace("T", *blocks);
  const auto agnostic = config.find("parallel_agnostic");
  if (agnostic == config.end() || !agnostic->is_boolean() || agnostic->get<bool>()) return;
  for (const char* key : {"pp_size", "pcp_size", "dcp_size"}) {
    if (Count(config, key).value_or(1) > 1) {
      throw Error(Finding::kUnsupportedLayout,
                  "{} {}: a row has cells of ranks that divide layers or tokens among themselves",
                  key, *Count(config, key));
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
      throw Error(Finding::kAmbiguousFormat, "holds blocks of several models")
          .Hint("give the folder of one model");
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
                                           ? ranks + ": every file has a cell of each rank"
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

namespace {

// Returns the only file of a source that is not a note.
const SourceFile& OnlyPage(const Source& source) {
  const SourceFile* only = nullptr;
  size_t pages = 0;
  for (const SourceFile& file : source.files) {
    if (source.is_folder && (file.name.ends_with(".json") || file.data->size() == 0)) continue;
    if (pages++ == 0) only = &file;
  }
  if (pages == 1) return *only;
  if (pages == 0) throw Error(Finding::kMissingRecord, "it holds no file with data");
  throw Error(Finding::kUsage, "holds {} files and does not say which follows which", pages)
      .Hint("give --order FILE, a file with one name per line, or --order '*.bin'");
}

// Removes the padding. Rows of vLLM's tier end at a memory page. If all sizes are known the rest is
// padding, which is never written: anything but zeros in it means that the sizes are wrong.
ByteSpan WithoutPadding(ByteSpan file, const Spec& spec) {
  const bool is_row = std::any_of(spec.axes.begin(), spec.axes.end(),
                                  [](const Axis& axis) { return axis.letter == 'T'; });
  for (const Axis& axis : spec.axes) {
    if (!axis.size || !is_row) return file;
  }
  const uint64_t values = BytesOf(spec);
  for (const uint64_t page : {4096, 16384, 65536}) {
    if (values >= file.size() || file.size() - values >= page || file.size() % page != 0) continue;
    const ByteSpan rest = file.subspan(values);
    if (std::all_of(rest.begin(), rest.end(), [](std::byte b) { return b == std::byte{0}; }))
      return file.first(values);
    throw Error(Finding::kSizeMismatch,
                "has {} bytes; the sizes of {} give {}, and the bytes that follow are not padding",
                file.size(), spec.name, values)
        .Hint("for cells of several ranks give G=RANKS, with H of all together");
  }
  if (values != 0 && file.size() > values && file.size() % values == 0) {
    throw Error(Finding::kSizeMismatch, "has {} bytes, {} times as many as the sizes give",
                file.size(), file.size() / values)
        .Hint("if it holds cells of {} ranks, give G={}, with H of all together",
              file.size() / values, file.size() / values);
  }
  return file;
}

Snapshot OpenPreset(Source source, PresetSpec spec, const OpenOptions& options) {
  std::optional<TierConfig> told;
  if (source.is_folder) told = FillInFromTier(source, spec);
  if (spec.preset->order.empty()) {
    FillIn(options, "", spec);
    if (!spec.dtype) throw Error(Finding::kUsage, "--raw mnn-cache: the element type is missing");
    return mnn::OpenCacheFiles(std::move(source), *spec.dtype, spec.sizes);
  }
  const SourceFile& page = OnlyPage(source);
  FillIn(options, page.name, spec);
  const ByteSpan bytes = page.data->bytes();
  const auto key = lmcache::ParseKeyFileName(page.name);
  const Spec axes = BuildSpec(spec);
  const ByteSpan values = WithoutPadding(bytes, axes);
  Snapshot snapshot = MakeSnapshot(std::move(source), values, axes, options.batch);
  if (values.size() < bytes.size()) {
    snapshot.facts.emplace_back(
        "padding", fmt::format("{} bytes to the end of a page", bytes.size() - values.size()));
  }
  if (key && key->layer && spec.preset->order.find('L') == std::string_view::npos)
    snapshot.layers.front().index = *key->layer;
  if (key) {
    snapshot.model = key->model;
    snapshot.facts.insert(snapshot.facts.end(), key->facts.begin(), key->facts.end());
  }
  snapshot.format_version = spec.preset->name;
  snapshot.engine = spec.preset->engine;
  AssumeRotated(snapshot, fmt::format("{} caches keys after RoPE", spec.preset->engine));
  if (told) {
    snapshot.model = told->model;
    snapshot.facts.insert(snapshot.facts.end(), told->facts.begin(), told->facts.end());
  }
  return snapshot;
}

// Refuses a first word that is not an element type but resembles the name of a preset.
void RefuseNearPreset(std::string_view text) {
  const std::string_view word = text.substr(0, text.find(':'));
  if (ParseDType(word)) return;
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.emplace_back(preset.name);
  const std::string nearest = Nearest(word, names);
  for (const Preset& preset : kPresets) {
    if (preset.name != nearest) continue;
    throw Error(Finding::kUsage, "--raw: '{}' is neither an element type nor a preset",
                Escaped(word, 40))
        .Hint("did you mean the preset '{0}': --raw {0}:{1}?", preset.name, preset.needs);
  }
}

}  // namespace

Snapshot OpenRaw(Source source, const OpenOptions& options) {
  if (options.raw.empty()) {
    throw Error(Finding::kUsage, "--from raw needs --raw DTYPE:ORDER:SIZES, or a preset")
        .Hint("e.g. --raw f16:2LTHD:2,32,?,8,128; kvtool formats lists the presets");
  }
  if (auto preset = ParsePreset(options.raw))
    return OpenPreset(std::move(source), std::move(*preset), options);
  RefuseNearPreset(options.raw);
  const Spec spec = ParseSpec(options.raw);
  const ByteSpan bytes = OnlyPage(source).data->bytes();
  return MakeSnapshot(std::move(source), bytes, spec, options.batch);
}

}  // namespace kv::raw
