// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lib/core/archive/coded_rows.h"
#include "lib/core/codec/profiled/regressions.h"
#include "lib/core/kernels/panel.h"
#include "lib/core/snapshot/snapshot.h"

// The rows of whole caches as the training of regressions reads them (regression_trainer.h).
namespace kv {

constexpr uint64_t kFeatureRows = 64;  // most rows of features that are read together

// Positions of tokens, one for each cache.
using Cells = std::vector<std::unique_ptr<const RowOrders>>;

// K or V of a layer.
struct Side {
  uint32_t layer = 0;  // the layer's number
  bool is_value = false;
  uint32_t columns = 0;
  uint64_t index = 0;  // of the layer in the snapshot
};

// Returns the sides that all caches have, sorted by layer, K before V. Throws kInconsistent,
// kUnsupportedDtype.
std::vector<Side> ListCommonSides(std::span<const Snapshot> snapshots);
// Returns the rotation of K, found in the first cache that shows one.
Rotation MeasureRotation(std::span<const Snapshot> snapshots, std::span<const Side> sides);

// Reads rows of one side as plain floats, K without its rotation.
class SideRows {
 public:
  SideRows(const Side& side, const Rotation& rotation)
      : side_(side), rotator_(rotation, side.columns), x_(side.columns) {}

  // Writes rows [first, first + count), `stride` floats from each to the next.
  void Read(const Snapshot& snapshot, const RowOrders& cells, uint64_t first, uint64_t count,
            float* out, uint64_t stride);

 private:
  const Side side_;
  Rotator rotator_;
  std::vector<float> x_;
};

// The sides that one layer's regressions concern: taps from layers before, then its own K and V,
// side by side in rows of features. The taps of K and of V are the first features.
class LayerFeatures {
 public:
  LayerFeatures(std::span<const Side> sides, size_t key, uint32_t layers_back,
                const Rotation& rotation);

  // Returns a regression of the layer's K or V without weights.
  Regression MakeRegression(bool is_value) const;
  uint64_t CountTaps(bool is_value) const;
  const Side& own(bool is_value) const { return used_[used_.size() - (is_value ? 1 : 2)]; }
  // Returns the first feature of the layer's own K or V.
  uint64_t own_begin(bool is_value) const;
  uint64_t width() const { return PaddedToPanel(own_begin(true) + own(true).columns); }

  // Calls `take` with rows of features and their number, block by block: the blocks that are held
  // out to judge the result, or the others.
  using Take = std::function<void(float* rows, uint64_t count)>;
  void ForEachBlock(std::span<const Snapshot> snapshots, const Cells& cells, bool held_out,
                    const Take& take);

 private:
  std::vector<Side> used_;
  std::vector<uint64_t> wanted_;
  std::vector<SideRows> rows_;
  std::array<uint32_t, 2> blocks_{};  // of K and V
};

// Rows from the middle of every cache, one cache after another: about `most` rows in all. A side
// has the type that it has in the first cache.
class SampleRows : public NeighbourSource {
 public:
  SampleRows(std::span<const Snapshot> snapshots, const Cells& cells, std::span<const Side> sides,
             uint64_t most);
  NeighbourChunk Read(const Neighbour& neighbour) const override;
  const std::vector<uint32_t>& positions() const { return positions_; }

 private:
  struct Part {
    uint64_t first, count;
  };

  const std::span<const Snapshot> snapshots_;
  const std::span<const Side> sides_;
  std::vector<Part> parts_;
  std::vector<uint32_t> positions_;
};

}  // namespace kv
