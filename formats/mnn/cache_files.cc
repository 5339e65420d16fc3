// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads the cache files that MNN keeps on disk: groups them by name, and infers the capacity from
// sizes and packing.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "formats/format.h"
#include "formats/mnn/mnn.h"
#include "lib/core/base/bytes.h"
#include "lib/core/base/number.h"
#include "lib/core/snapshot/rope.h"

namespace kv::mnn {
namespace {

constexpr std::array<std::string_view, 6> kKeys = {"H", "D", "T", "hP", "lP", "FA"};
constexpr std::string_view kMarker = "_sync";
constexpr size_t kAddressDigits = 16;
constexpr uint64_t kWidest = 1 << 20;  // limit of heads, of dims and of packs

struct Pair {
  const SourceFile* k = nullptr;
  const SourceFile* v = nullptr;
  bool k_marked = false, v_marked = false;
};

struct CacheFolder {
  std::map<uint32_t, Pair> layers;
  bool by_address = false;
  std::string name;  // name of a prefix cache
  std::vector<std::string> strangers;
};

struct FileName {
  std::string name;  // without layer, marker and extension
  uint32_t layer = 0;
  bool is_value = false, is_marker = false;
};

std::optional<FileName> ParseName(std::string_view path) {
  FileName parsed;
  if (!path.ends_with(".k") && !path.ends_with(".v")) return std::nullopt;
  parsed.is_value = path.back() == 'v';
  path.remove_suffix(2);
  if (path.ends_with(kMarker)) {
    parsed.is_marker = true;
    path.remove_suffix(kMarker.size());
  }
  const size_t bar = path.rfind('_');
  if (bar == path.npos) return std::nullopt;
  const auto layer = ParseNumber<uint16_t>(path.substr(bar + 1));
  if (!layer) return std::nullopt;
  parsed.layer = *layer;
  parsed.name = std::string(path.substr(0, bar));
  return parsed;
}

bool IsAddress(std::string_view stem) {
  return stem.size() == kAddressDigits &&
         stem.find_first_not_of("0123456789abcdefABCDEF") == stem.npos;
}

void AddPrefixFile(const SourceFile& file, const FileName& name, CacheFolder& folder) {
  if (!folder.layers.empty() && folder.name != name.name) {
    throw Error(Finding::kAmbiguousFormat, "holds the caches '{}' and '{}'",
                Escaped(folder.name, 80), Escaped(name.name, 80))
        .Hint("give a folder with the files of one");
  }
  folder.name = name.name;
  Pair& pair = folder.layers[name.layer];
  if (name.is_marker) {
    (name.is_value ? pair.v_marked : pair.k_marked) = true;
  } else {
    (name.is_value ? pair.v : pair.k) = &file;
  }
}

CacheFolder ReadFolder(const Source& source) {
  CacheFolder folder;
  std::map<std::string, Pair> addresses;
  for (const SourceFile& file : source.files) {
    const std::string stem = file.name.substr(0, file.name.rfind('.'));
    const auto name = ParseName(file.name);
    if (name) {
      AddPrefixFile(file, *name, folder);
    } else if (file.name.ends_with(".k") && IsAddress(stem)) {
      addresses[stem].k = &file;
    } else if (file.name.ends_with(".v") && IsAddress(stem)) {
      addresses[stem].v = &file;
    } else {
      folder.strangers.push_back(Escaped(file.name, 60));
    }
  }
  if (folder.layers.empty()) {
    folder.by_address = !addresses.empty();
    for (const auto& [address, pair] : addresses)
      folder.layers.emplace(static_cast<uint32_t>(folder.layers.size()), pair);
  } else {
    for (const auto& [address, pair] : addresses) folder.strangers.push_back(address);
  }
  if (folder.layers.empty()) {
    throw Error(Finding::kMissingRecord,
                "it holds neither NAME_LAYER.k and .v nor ADDRESS.k and .v");
  }
  for (const auto& [layer, pair] : folder.layers) {
    if (pair.k != nullptr && pair.v != nullptr) continue;
    throw Error(Finding::kMissingRecord, pair.k == nullptr ? "has no .k file" : "has no .v file")
        .In("layer {}", layer);
  }
  return folder;
}

struct Packing {
  uint64_t heads = 0, unit = 0;
  PackGeometry geometry;  // with the tokens in use
  bool flash = false;
};

// The number of tokens that a file of one tensor has room for, as a range.
struct Capacity {
  uint64_t least = 0, most = 0;
};

// Infers the capacity. `row` is the size of one token over all heads, including padding. The file
// consists of units of `step` rows (also padded); each unit has room for `tokens` tokens.
Capacity InferCapacity(uint64_t bytes, uint64_t row, uint64_t step, uint64_t tokens,
                       std::string_view which) {
  if (bytes == 0 || bytes % CheckedMul(row, step, "packed row") != 0) {
    throw Error(Finding::kSizeMismatch,
                "{} has {} bytes, not a multiple of the {} that {} tokens take", which, bytes,
                row * step, tokens);
  }
  const uint64_t units = bytes / row / step;
  return {(units - 1) * tokens + 1, units * tokens};
}

LayerKv MakeLayer(uint32_t index, const Pair& pair, DType dtype, const Packing& packing) {
  PackGeometry geometry = packing.geometry;
  const auto row = [&](uint64_t pack) {
    return CheckedProduct({packing.heads, RoundUp(geometry.head_dim, pack), packing.unit},
                          "packed row");
  };
  const ByteSpan k = pair.k->data->bytes(), v = pair.v->data->bytes();
  const Capacity keys =
      InferCapacity(k.size(), row(geometry.pack_l), geometry.pack_h, geometry.pack_h, "K");
  const uint64_t block = packing.flash ? geometry.flash_block : geometry.pack_l;
  const Capacity values =
      InferCapacity(v.size(), row(geometry.pack_h), RoundUp(block, geometry.pack_l), block, "V");
  if (keys.least > values.most || values.least > keys.most) {
    throw Error(Finding::kSizeMismatch,
                "K has room for {} to {} tokens, V for {} to {}: the packing given does not fit",
                keys.least, keys.most, values.least, values.most);
  }
  const uint64_t capacity = std::min(keys.most, values.most);
  if (geometry.tokens > capacity) {
    throw Error(Finding::kSizeMismatch, "T={}, but there is room for {}", geometry.tokens,
                capacity);
  }
  if (!packing.flash) geometry.flash_block = v.size() / row(geometry.pack_h);
  LayerKv layer;
  layer.index = index;
  layer.label = pair.k->name.substr(0, pair.k->name.size() - 2);
  const auto heads = static_cast<uint32_t>(packing.heads);
  layer.k = PackedKeys(k.data(), dtype, geometry, heads, k.size() / packing.heads);
  layer.v = PackedValues(v.data(), dtype, geometry, heads, v.size() / packing.heads);
  return layer;
}

Packing InferPacking(DType dtype, const std::map<std::string, uint64_t, std::less<>>& sizes) {
  const auto size = [&](std::string_view key) {
    const auto at = sizes.find(key);
    if (at == sizes.end()) {
      throw Error(Finding::kUsage, "--raw {}: {}= is missing", kCachePreset, key);
    }
    if (key != "T" && at->second > kWidest) {
      throw Error(Finding::kUsage, "--raw {}: {}={} is more than {}", kCachePreset, key, at->second,
                  kWidest);
    }
    return at->second;
  };
  Packing packing{.heads = size("H"), .unit = Info(dtype).block_bytes, .geometry = {}};
  packing.flash = sizes.count("FA") != 0;
  packing.geometry = {.tokens = size("T"),
                      .head_dim = size("D"),
                      .pack_h = size("hP"),
                      .pack_l = size("lP"),
                      .flash_block = packing.flash ? size("FA") : 0};
  return packing;
}

void AddNotes(const CacheFolder& folder, Snapshot& snapshot) {
  if (folder.by_address) {
    snapshot.notes.push_back(
        {"files are named by memory addresses: layers are numbered in the order of the names, "
         "which need not be the model's"});
  } else {
    const bool valid =
        std::all_of(folder.layers.begin(), folder.layers.end(),
                    [](const auto& item) { return item.second.k_marked && item.second.v_marked; });
    if (!valid) {
      snapshot.notes.push_back(
          {"a layer lacks its _sync markers: the engine would not load this cache"});
    }
  }
  if (!folder.strangers.empty()) {
    snapshot.notes.push_back(
        {fmt::format("{} other file{} left out: {}", folder.strangers.size(),
                     folder.strangers.size() == 1 ? " is" : "s are", Listed(folder.strangers))});
  }
}

}  // namespace

bool IsCacheKey(std::string_view key) {
  return std::find(kKeys.begin(), kKeys.end(), key) != kKeys.end();
}

Snapshot OpenCacheFiles(Source source, DType dtype,
                        const std::map<std::string, uint64_t, std::less<>>& sizes) {
  if (!source.is_folder) {
    throw Error(Finding::kUnsupportedKind, "is one file of a cache, which is a folder")
        .Hint("give the folder");
  }
  const Packing packing = InferPacking(dtype, sizes);
  const CacheFolder folder = ReadFolder(source);
  Snapshot snapshot;
  snapshot.engine = "MNN";
  snapshot.format_version = folder.by_address ? "mapped files" : "prefix cache";
  AssumeRotated(snapshot,
                "MNN caches keys as attention gets them, after RoPE in models that have it");
  for (const auto& [index, pair] : folder.layers) {
    try {
      snapshot.layers.push_back(MakeLayer(index, pair, dtype, packing));
    } catch (Error& error) {
      throw error.In("layer {}", index);
    }
    for (const SourceFile* file : {pair.k, pair.v})
      snapshot.stored.push_back({file->data->bytes().data(), file->data->size(), dtype});
  }
  if (!folder.by_address) snapshot.facts.emplace_back("cache", Escaped(folder.name, 80));
  const PackGeometry& g = packing.geometry;
  snapshot.facts.emplace_back(
      "packing", fmt::format("hP {} lP {} {}, tokens in use as given: {}", g.pack_h, g.pack_l,
                             packing.flash ? fmt::format("flash block {}", g.flash_block)
                                           : std::string("without flash blocks"),
                             g.tokens));
  AddNotes(folder, snapshot);
  snapshot.source = std::move(source);
  return snapshot;
}

}  // namespace kv::mnn
