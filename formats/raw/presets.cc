// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/raw/presets.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include "formats/lmcache/key_name.h"
#include "formats/mnn/cache_files.h"
#include "lib/core/base/number.h"

namespace kv::raw {
namespace {

constexpr Preset kPresets[] = {
    {"lmcache-disk", "LMCache local disk: raw bytes in spite of .pt, KV_2LTD", "2LTHD",
     "DTYPE:L=,H=,D=", "LMCache", "*@*@*@*@*.pt"},
    {"lmcache-mp", "LMCache's server (fs adapters): MODEL@0xRANK@GROUP@HASH.data, no header",
     "2LTHD", "DTYPE:L=,H=,D=", "LMCache", "*@0x????????@*@*.data"},
    {"lmcache-mp-mla", "the same, latent attention", "LTD", "DTYPE:L=,D=", "LMCache", ""},
    {"lmcache-disk-layer", "LMCache local disk, layerwise: one layer a file, KV_T2D", "T2HD",
     "DTYPE:H=,D=", "LMCache", ""},
    {"lmcache-disk-layer-2td", "the same with K before V, KV_2TD", "2THD", "DTYPE:H=,D=", "LMCache",
     ""},
    {"lmcache-disk-mla", "LMCache local disk, latent attention, KV_MLA_FMT", "LTD",
     "DTYPE:L=,D=", "LMCache", ""},
    {"lmcache-fast", "LMCache 2024, remote serde 'fast'", "L2THD", "DTYPE:L=,H=,D=", "LMCache", ""},
    {"hicache", "SGLang HiCache pages, layer_first and page_first_direct", "2LPHD",
     "DTYPE:L=,H=,D=", "SGLang", "[0-9a-f][0-9a-f][0-9a-f][0-9a-f]*_*_*_*.bin"},
    {"hicache-page-first", "SGLang HiCache pages, page_first", "2PLHD", "DTYPE:L=,H=,D=", "SGLang",
     ""},
    {"hicache-page-head", "SGLang HiCache pages, page_head", "2HPLD", "DTYPE:L=,H=,D=", "SGLang",
     ""},
    {"hicache-unified", "SGLang HiCache pages, page_unified (G= groups of heads, 1 if not said)",
     "GL2PHD", "DTYPE:L=,H=,D=[,G=]", "SGLang", ""},
    {"hicache-mla", "SGLang HiCache pages, latent attention (page_unified too)", "LPD",
     "DTYPE:L=,D=", "SGLang", ""},
    {"vllm-fs",
     "vLLM fs tier blocks, also llm-d's (config.json gives L, P, DTYPE); tokens outside heads",
     "TL2PHD", "DTYPE:L=,P=,H=,D=", "vLLM", "*_g*/*.bin"},
    {"vllm-fs-hnd", "the same with heads outside tokens (HND backends)", "TL2HPD",
     "DTYPE:L=,P=,H=,D=", "vLLM", ""},
    {"vllm-fs-packed",
     "vLLM >= 0.26: K and V side by side in a head; tokens outside heads (LBNHC, BLNHC)", "GLTPH2D",
     "DTYPE:L=,P=,H=,D=[,V=,T=,G=]", "vLLM", ""},
    {"vllm-fs-packed-hnd", "the same with heads outside tokens (LBHNC, BLHNC)", "GLTHP2D",
     "DTYPE:L=,P=,H=,D=[,V=,T=,G=]", "vLLM", ""},
    {"vllm-fs-mla", "vLLM fs tier blocks, latent attention", "TLPD", "DTYPE:L=,P=,D=", "vLLM", ""},
    {mnn::kCachePreset, "MNN prefix cache and mmap files: packed tiles, NAME_LAYER.k and .v", "",
     "DTYPE:H=,D=,T=,hP=,lP=[,FA=]", "MNN", "*.k"},
};

constexpr std::string_view kPlainKeys[] = {"L", "T", "P", "G", "H", "D", "V", "C", "B"};

Error Wrong(const Preset& preset, std::string message) {
  Error error(Finding::kUsage, fmt::format("--raw {}: {}", preset.name, message));
  error.Hint(fmt::format("--raw {}:{}", preset.name, preset.needs));
  return error;
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
    throw Wrong(preset, fmt::format("'{}' is not KEY=NUMBER", Escaped(item, 40)));
  }
  if (!IsKey(preset, key)) {
    throw Wrong(preset, fmt::format("it has no size '{}'", Escaped(key, 40)));
  }
  if (!sizes.emplace(key, size).second) {
    throw Wrong(preset, fmt::format("'{}' is given twice", key));
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
      throw Wrong(preset, fmt::format("'{}' is not an element type", Escaped(dtype, 40)));
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
  const auto key = lmcache::ParseKeyOfFile(file);
  if (key && !spec.dtype) spec.dtype = key->dtype;
}

Spec SpecOf(const PresetSpec& preset) {
  const auto size_of = [&](char letter) -> std::optional<uint64_t> {
    const auto at = preset.sizes.find(std::string_view(&letter, 1));
    return at == preset.sizes.end() ? std::nullopt : std::optional(at->second);
  };
  if (!preset.dtype) throw Wrong(*preset.preset, "the element type is not known");
  Spec spec{
      .name = fmt::format("--raw {}", preset.preset->name), .dtype = *preset.dtype, .axes = {}};
  const uint64_t groups = size_of('G').value_or(1);
  if (size_of('H') && *size_of('H') % groups != 0) {
    throw Wrong(*preset.preset, fmt::format("H={} heads do not divide into G={} equal groups",
                                            *size_of('H'), groups));
  }
  if (size_of('V') && size_of('V') != size_of('D')) spec.v_dim = size_of('V');
  const bool undivided = size_of('C').has_value();
  std::string missing;
  bool open = false;
  const std::string_view order = preset.preset->order;
  const bool has_tokens = order.find('T') != order.npos && order.find('P') != order.npos;
  for (const char letter : order) {
    if (undivided && (letter == 'H' || letter == 'D')) {
      if (letter == 'D') spec.axes.push_back({'C', size_of('C')});
      continue;
    }
    if (letter == 'G' && groups == 1) continue;
    std::optional<uint64_t> size = letter == '2' ? 2 : size_of(letter);
    if (letter == 'H' && size) size = *size / groups;
    // Blocks of a file, or else tokens of its only page, are what its size leaves open.
    const bool may_open = letter == 'T' || (letter == 'P' && !has_tokens);
    if (!size && may_open && !open) {
      open = true;
    } else if (!size) {
      missing += fmt::format("{}{}=", missing.empty() ? "" : ", ", letter);
    }
    spec.axes.push_back({letter, size});
  }
  const bool apart = order.find("HD") == order.npos || groups > 1 || spec.v_dim;
  if (undivided && apart && order.find('H') != order.npos) {
    throw Wrong(*preset.preset, "heads and dims are apart in it: give H= and D=, not C=");
  }
  if (size_of('L').value_or(1) > kMostLayers) {
    throw Wrong(*preset.preset, fmt::format("L={} is more than {}", *size_of('L'), kMostLayers));
  }
  if (!missing.empty()) throw Wrong(*preset.preset, missing + " is missing");
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

}  // namespace kv::raw
