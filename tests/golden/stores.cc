// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Tests files as engines' stores leave them. The manifest states the layout in words; this file
// reads elements by these words alone and compares them with the snapshot's.
#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>

#include "formats/registry.h"
#include "formats/safetensors/safetensors.h"
#include "lib/core/snapshot/layout.h"
#include "tests/golden/checks.h"
#include "tests/support/peak_memory.h"
#include "tests/support/sha256.h"

namespace kv::golden {
namespace {

using nlohmann::json;

constexpr std::string_view kStores = "safetensors/* lmcache* sglang*";

std::string Lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Parses "KV_2LTD [2,L,T,H*D]" to {"2", "L", "T", "HD"}; P, the tokens of a page, are T.
std::vector<std::string> AxesOf(const std::string& layout) {
  std::vector<std::string> axes(1);
  for (size_t i = layout.find('[') + 1; i < layout.size() && layout[i] != ']'; ++i) {
    if (layout[i] == ',') {
      axes.emplace_back();
    } else if (layout[i] != '*' && layout[i] != ' ') {
      axes.back() += layout[i] == 'P' ? 'T' : layout[i];
    }
  }
  return axes;
}

// An array whose elements are read by layer, part, token and channel.
class Truth {
 public:
  Truth(const std::string& layout, std::vector<uint64_t> shape, Bytes bytes, DType dtype)
      : axes_(AxesOf(layout)),
        shape_(std::move(shape)),
        bytes_(std::move(bytes)),
        unit_(Info(dtype).block_bytes) {
    REQUIRE(axes_.size() == shape_.size());
    uint64_t left = bytes_.size() / unit_;  // elements that remain after division by each extent
    for (const uint64_t extent : shape_) {
      REQUIRE(extent > 0);
      REQUIRE(left % extent == 0);
      left /= extent;
    }
    REQUIRE(left == 1);
  }

  uint64_t Extent(char role) const {
    uint64_t extent = 1;
    for (size_t i = 0; i < axes_.size(); ++i) {
      if (axes_[i] == std::string(1, role)) extent = shape_[i];
    }
    return extent;
  }
  bool HasParts() const {
    return std::any_of(axes_.begin(), axes_.end(),
                       [](const std::string& axis) { return axis[0] == '2'; });
  }
  // Returns the number of channels of one token: of the axes H and D, or of the one that combines
  // both.
  uint64_t channels() const {
    uint64_t count = 1;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const std::string& axis = axes_[i];
      if (axis == "2D") count *= shape_[i] / 2;
      if (axis == "H" || axis == "D" || axis == "C" || axis == "HD") count *= shape_[i];
    }
    return count;
  }

  Bytes Rows(uint64_t layer, uint64_t part) const {
    Bytes rows;
    for (uint64_t token = 0; token < Extent('T'); ++token) {
      for (uint64_t channel = 0; channel < channels(); ++channel) {
        const auto from = bytes_.begin() +
                          static_cast<std::ptrdiff_t>(Index(layer, part, token, channel) * unit_);
        rows.insert(rows.end(), from, from + static_cast<std::ptrdiff_t>(unit_));
      }
    }
    return rows;
  }

 private:
  uint64_t Index(uint64_t layer, uint64_t part, uint64_t token, uint64_t channel) const {
    uint64_t dims = 1;  // channels of a head; 1 if the shape has no axis for them
    for (size_t i = 0; i < axes_.size(); ++i) {
      if (axes_[i] == "D") dims = shape_[i];
      if (axes_[i] == "2D") dims = shape_[i] / 2;
    }
    uint64_t index = 0;
    for (size_t i = 0; i < axes_.size(); ++i) {
      const std::string& axis = axes_[i];
      const uint64_t at = axis == "2"                   ? part
                          : axis == "L"                 ? layer
                          : axis == "T"                 ? token
                          : axis == "H"                 ? channel / dims
                          : axis == "D"                 ? channel % dims
                          : axis == "2D"                ? part * dims + channel % dims
                          : axis == "HD" || axis == "C" ? channel
                                                        : 0;
      if (at >= shape_[i]) FAIL("axis " << axis << " has no element " << at);
      index = index * shape_[i] + at;
    }
    return index;
  }

  std::vector<std::string> axes_;
  std::vector<uint64_t> shape_;
  Bytes bytes_;
  uint64_t unit_;
};

// Returns the preset of a page, by the first word of the manifest's layout.
std::string HicachePreset(const std::string& layout) {
  if (layout.starts_with("page_first_direct") || layout.starts_with("layer_first"))
    return "hicache";
  if (layout.starts_with("page_first")) return "hicache-page-first";
  return layout.starts_with("page_head") ? "hicache-page-head" : "hicache-mla";
}

// Returns the flags that a user must give for a file, according to the manifest.
OpenOptions OptionsFor(const json& item) {
  const std::string format = item.at("format"), layout = item.at("layout");
  OpenOptions options;
  if (item.contains("supply")) {
    const json& supply = item.at("supply");
    const bool page = format.starts_with("sglang");
    const std::string preset = page                                   ? HicachePreset(layout)
                               : layout.find("KV_MLA") != layout.npos ? "lmcache-disk-mla"
                                                                      : "lmcache-disk";
    options.raw = preset + ":" + Lower(supply.at("dtype")) +
                  ":L=" + std::to_string(supply.at("layers").get<int>());
    const auto add = [&](const char* key, const char* name) {
      if (!supply.contains(name)) return;
      options.raw += std::string(",") + key + "=" + std::to_string(supply.at(name).get<int>());
    };
    add("C", "hidden");
    if (page && preset != "hicache-mla") add("H", "heads");
    add("D", "head_dim");
  } else if (layout.find("2*D") != layout.npos) {
    options.layout = "th(2d)";
  } else if (layout.find("[T,H,") != layout.npos) {
    options.layout = "thd";
  } else if (layout.find("[L,2,H,T,D]") != layout.npos) {
    options.layout = "l2htd";
  }
  return options;
}

// Returns the file's only tensor and checks the manifest's hash. Raw bytes are at the end of the
// file.
Bytes ElementsOf(const json& item, const std::filesystem::path& path, DType dtype) {
  const auto tensor = item.at("tensors").begin();
  const std::string& name = tensor.key();
  const json& expected = tensor.value();
  Bytes bytes;
  if (item.at("format").get<std::string>().starts_with("safetensors")) {
    const TensorFile file = ReadSafetensors(Source::Open(path), {});
    REQUIRE(file.Find(name) != nullptr);
    const TensorView& view = file.Find(name)->view;
    CHECK(view.dtype == dtype);
    CHECK(view.shape == expected.at("shape").get<std::vector<uint64_t>>());
    if (item.contains("data_offset")) {
      CHECK(file.source.files.front().data->OffsetOf(view.data) == item.at("data_offset"));
    }
    bytes = CopyContiguous(view);
  } else {
    const auto shape = expected.at("shape").get<std::vector<uint64_t>>();
    const uint64_t size =
        std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>()) *
        Info(dtype).block_bytes;
    const auto source = FileSource::Open(path);
    REQUIRE(source->size() >= size);
    const ByteSpan last = source->bytes().last(size);
    bytes.assign(last.begin(), last.end());
  }
  CHECK(test::Sha256(bytes) == expected.at("sha256").get<std::string>());
  return bytes;
}

void CheckStore(const json& item, const std::filesystem::path& path, Run& run) {
  const json& expected = item.at("tensors").front();
  const std::optional<DType> dtype = ParseDType(Lower(expected.at("dtype")));
  REQUIRE(dtype);
  const Truth truth(item.at("layout"), expected.at("shape").get<std::vector<uint64_t>>(),
                    ElementsOf(item, path, *dtype), *dtype);
  const Snapshot snapshot = OpenSnapshot(Source::Open(path), OptionsFor(item));
  REQUIRE(snapshot.layers.size() == truth.Extent('L'));
  for (size_t i = 0; i < snapshot.layers.size(); ++i) {
    const LayerKv& layer = snapshot.layers[i];
    CHECK(layer.index == item.value("layer", i));
    CHECK(layer.v.has_value() == truth.HasParts());
    for (uint64_t part = 0; part < (layer.v ? 2 : 1); ++part) {
      const KvTensor& tensor = part == 0 ? layer.k : *layer.v;
      CHECK(tensor.dtype == *dtype);
      CHECK(tensor.tokens() == truth.Extent('T'));
      CHECK(tensor.channels() == truth.channels());
      CHECK(Gather(tensor, 0, tensor.tokens(), Order::kTokenHeadDim) == truth.Rows(i, part));
    }
  }
  run.Checked(2);
  if (item.at("format") != "lmcache-fs") return;
  CHECK(snapshot.format == "lmcache");
}

}  // namespace

void CheckStoreFiles(Run& run) {
  const json manifest = run.Json("blend/manifest.json");
  for (const json& item : manifest.value("files", json::array())) {
    const std::string name = item.at("file");
    if (!Matches(kStores, item.at("format").get<std::string>())) continue;
    const auto path = run.File("blend/" + name);
    if (!path) continue;
    INFO(name);
    CheckStore(item, *path, run);
    // Layers of one prompt are next to each other: the folder is the cache.
    if (item.value("format", "").starts_with("safetensors/vllm")) {
      const Snapshot whole = OpenSnapshot(Source::Open(path->parent_path()), OptionsFor(item));
      CHECK(whole.Find(item.at("layer")) != nullptr);
      run.Checked();
    }
  }
  for (const json& item : manifest.value("bad", json::array())) {
    const std::string name = item.at("file");
    if (!Matches("bad/lmcache_*", name)) continue;
    const auto path = run.File("blend/" + name);
    if (!path) continue;
    INFO(name);
    const test::PeakMemory memory;
    for (const char* from : {"", "lmcache"}) {
      OpenOptions options;
      options.from = from;
      try {
        OpenSnapshot(Source::Open(*path), options).CheckContent();
        CHECK(item.value("expect", "reject").find("accept") != std::string::npos);
      } catch (const Error& error) {
        CHECK((error.code() == ErrorCode::kInvalidData || error.code() == ErrorCode::kUnsupported));
      }
    }
    CHECK(memory.growth_bytes() < kMostMemory);
    run.Checked();
  }
}

}  // namespace kv::golden
