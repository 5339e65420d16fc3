// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors

#include "lib/core/archive/regression_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lib/core/archive/reference.h"
#include "lib/core/base/error.h"
#include "lib/core/base/half.h"
#include "lib/core/base/utf8.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

constexpr uint64_t kHeldOutOneIn = 16;  // one block in this many is held out

const KvTensor& GetTensor(const Snapshot& snapshot, const Side& side) {
  const LayerKv& layer = snapshot.layers.at(side.index);
  return side.is_value ? *layer.v : layer.k;
}

[[noreturn]] void RefuseLayer(Finding finding, uint32_t layer, const std::string& why) {
  throw Error(finding, why).In(fmt::format("layer {}", layer));
}

// Returns K and V of every layer of a cache, after checking that all have the same tokens.
std::vector<Side> ListSidesAlone(const Snapshot& snapshot) {
  std::vector<Side> sides;
  for (uint64_t i = 0; i < snapshot.layers.size(); ++i) {
    const LayerKv& layer = snapshot.layers[i];
    if (!layer.has_k() || !layer.v || layer.k.tokens() == 0) continue;
    for (const bool is_value : {false, true}) {
      const KvTensor& tensor = is_value ? *layer.v : layer.k;
      if (!IsHalfFloat(tensor.dtype) || tensor.channels() > BlockRegression::kMaxColumns) {
        RefuseLayer(Finding::kUnsupportedDtype, layer.index,
                    fmt::format("regressions are learnt from f16 and bf16, in rows of at most {} "
                                "values",
                                BlockRegression::kMaxColumns));
      }
      sides.push_back({layer.index, is_value, static_cast<uint32_t>(tensor.channels()), i});
      if (tensor.tokens() != GetTensor(snapshot, sides.front()).tokens()) {
        RefuseLayer(Finding::kInconsistent, layer.index,
                    "regressions are learnt only from layers that all have the same tokens");
      }
    }
  }
  if (sides.empty()) throw Error(Finding::kUnsupportedDtype, "no layer has both K and V");
  std::ranges::stable_sort(sides, {}, &Side::layer);
  for (size_t i = 2; i < sides.size(); i += 2) {
    if (sides[i].layer == sides[i - 2].layer)
      RefuseLayer(Finding::kInconsistent, sides[i].layer, "the cache has this layer twice");
  }
  return sides;
}

// Returns the sides of a cache. Errors name its file.
std::vector<Side> ListSides(const Snapshot& snapshot) {
  try {
    return ListSidesAlone(snapshot);
  } catch (Error& error) {
    throw error.File(snapshot.source.path);
  }
}

// Converts halves of the other type in place: a chunk has one type, while caches may differ.
void ConvertHalves(DType to, Bytes& rows) {
  for (size_t i = 0; i < rows.size(); i += 2) {
    const auto half = LoadLE<uint16_t>(rows.data() + i);
    StoreLE(rows.data() + i,
            to == DType::kBF16 ? F32ToBF16(F16ToF32(half)) : F32ToF16(BF16ToF32(half)));
  }
}

bool IsHeldOut(uint64_t first) { return first / kFeatureRows % kHeldOutOneIn == kHeldOutOneIn - 1; }

uint32_t FindBlock(const Side& side, const Rotation& rotation) {
  const uint64_t unit = FindBlockUnit(side.is_value, rotation);
  return unit < side.columns ? static_cast<uint32_t>(unit) : 0;
}

}  // namespace

std::vector<Side> ListCommonSides(std::span<const Snapshot> snapshots) {
  const std::vector<Side> sides = ListSides(snapshots.front());
  for (const Snapshot& snapshot : snapshots.subspan(1)) {
    const auto same = [](const Side& a, const Side& b) {
      return a.layer == b.layer && a.columns == b.columns && a.index == b.index;
    };
    if (!std::ranges::equal(sides, ListSides(snapshot), same)) {
      throw Error(Finding::kInconsistent, "its layers or rows are not those of {}",
                  Printable(snapshots.front().source.path))
          .File(snapshot.source.path)
          .Hint("a profile is of one model: give caches of this model only");
    }
  }
  return sides;
}

void SideRows::Read(const Snapshot& snapshot, const RowOrders& cells, uint64_t first,
                    uint64_t count, float* out, uint64_t stride) {
  const KvTensor& tensor = GetTensor(snapshot, side_);
  const Bytes raw = Gather(tensor, first, count, Order::kTokenHeadDim);
  const bool bfloat = tensor.dtype == DType::kBF16;
  for (uint64_t row = 0; row < count; ++row, out += stride) {
    const std::byte* from = raw.data() + 2 * side_.columns * row;
    for (uint64_t c = 0; c < side_.columns; ++c) {
      const auto half = LoadLE<uint16_t>(from + 2 * c);
      const float value = bfloat ? BF16ToF32(half) : F16ToF32(half);
      x_[c] = std::isfinite(value) ? value : 0;
    }
    if (side_.is_value) {
      std::ranges::copy(x_, out);
    } else {
      rotator_.Rotate(0u - cells.FindPosition(side_.layer, first + row), x_.data(), out);
    }
  }
}

Rotation MeasureRotation(std::span<const Snapshot> snapshots, std::span<const Side> sides) {
  for (const Snapshot& snapshot : snapshots) {
    std::vector<const LayerKv*> layers;
    for (const Side& side : sides) {
      if (!side.is_value) layers.push_back(&snapshot.layers.at(side.index));
    }
    Rotation rotation = FindKeyRotation(snapshot, layers);
    if (!rotation.angles.empty()) return rotation;
  }
  return {};
}

LayerFeatures::LayerFeatures(std::span<const Side> sides, size_t key, uint32_t layers_back,
                             const Rotation& rotation) {
  for (size_t back = 1; back <= layers_back && 2 * back <= key; ++back) {
    used_.push_back(sides[key - 2 * back + 1]);
    used_.push_back(sides[key - 2 * back]);
  }
  const Side &k = sides[key], &v = sides[key + 1];
  blocks_ = {FindBlock(k, rotation), FindBlock(v, rotation)};
  uint64_t most = kMostRegressionTaps - v.columns;
  // Columns of the same row are taps only where all features fit.
  if (most < (used_.size() + 1) * k.columns && most < BlockRegression::kMaxTaps) {
    blocks_ = {0, 0};
    most = BlockRegression::kMaxTaps;
  }
  // All taps of V, which include the layer's K, share what a regression may have.
  const uint64_t share = most / (used_.size() + 1);
  if (share < k.columns) blocks_ = {0, 0};
  used_.insert(used_.end(), {k, v});
  for (const Side& side : used_) {
    wanted_.push_back(std::min<uint64_t>(side.columns, share));
    rows_.emplace_back(side, rotation);
  }
}

Regression LayerFeatures::MakeRegression(bool is_value) const {
  Regression regression;
  regression.layer = own(is_value).layer;
  regression.is_value = is_value;
  regression.columns = own(is_value).columns;
  regression.block = blocks_[is_value ? 1 : 0];
  for (size_t i = 0; i + (is_value ? 1 : 2) < used_.size(); ++i) {
    regression.neighbours.push_back(
        {used_[i].layer, used_[i].is_value, static_cast<uint16_t>(wanted_[i])});
  }
  return regression;
}

uint64_t LayerFeatures::CountTaps(bool is_value) const {
  const Regression regression = MakeRegression(is_value);
  return regression.neighbour_taps() + regression.own_taps();
}
uint64_t LayerFeatures::own_begin(bool is_value) const {
  uint64_t begin = MakeRegression(false).neighbour_taps();
  return is_value ? begin + own(false).columns : begin;
}

void LayerFeatures::ForEachBlock(std::span<const Snapshot> snapshots, const Cells& cells,
                                 bool held_out, const Take& take) {
  std::vector<float> rows(kFeatureRows * width()),
      wide(kFeatureRows * BlockRegression::kMaxColumns);
  for (size_t s = 0; s < snapshots.size(); ++s) {
    const uint64_t tokens = GetTensor(snapshots[s], used_.back()).tokens();
    for (uint64_t first = 0; first < tokens; first += kFeatureRows) {
      if (IsHeldOut(first) != held_out) continue;
      const uint64_t count = std::min(kFeatureRows, tokens - first);
      uint64_t begin = 0;
      for (size_t i = 0; i < used_.size(); ++i) {
        const uint64_t columns = used_[i].columns,
                       kept = i + 2 < used_.size() ? wanted_[i] : columns;
        rows_[i].Read(snapshots[s], *cells[s], first, count, wide.data(), columns);
        for (uint64_t row = 0; row < count; ++row)
          std::copy_n(wide.data() + row * columns, kept, rows.data() + row * width() + begin);
        begin += kept;
      }
      take(rows.data(), count);
    }
  }
}

SampleRows::SampleRows(std::span<const Snapshot> snapshots, const Cells& cells,
                       std::span<const Side> sides, uint64_t most)
    : snapshots_(snapshots), sides_(sides) {
  for (size_t s = 0; s < snapshots.size(); ++s) {
    const uint64_t tokens = GetTensor(snapshots[s], sides[0]).tokens(),
                   count = std::min(tokens, (most + snapshots.size() - 1) / snapshots.size());
    parts_.push_back({(tokens - count) / 2, count});
    for (uint64_t row = 0; row < count; ++row)
      positions_.push_back(cells[s]->FindPosition(sides[0].layer, parts_[s].first + row));
  }
}

NeighbourChunk SampleRows::Read(const Neighbour& neighbour) const {
  const auto side = std::ranges::find_if(sides_, [&](const Side& one) {
    return one.layer == neighbour.layer && one.is_value == neighbour.is_value;
  });
  KV_ASSERT(side != sides_.end());
  const DType dtype = GetTensor(snapshots_[0], *side).dtype;
  auto raw = std::make_shared<Bytes>();
  for (size_t s = 0; s < parts_.size(); ++s) {
    const KvTensor& tensor = GetTensor(snapshots_[s], *side);
    Bytes rows = Gather(tensor, parts_[s].first, parts_[s].count, Order::kTokenHeadDim);
    if (tensor.dtype != dtype) ConvertHalves(dtype, rows);
    raw->insert(raw->end(), rows.begin(), rows.end());
  }
  return {dtype, std::move(raw)};
}

}  // namespace kv
