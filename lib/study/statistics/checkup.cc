// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads samples of a cache, and looks for values that are not finite, zeros, and equal keys.
#include "lib/study/statistics/checkup.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "lib/core/archive/coded_rows.h"
#include "lib/core/base/arena.h"
#include "lib/core/base/hash.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/diff.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

// Maximum numbers of layers, and of places in each of their tensors.
constexpr uint64_t kSampledLayers = 32, kSampledPlaces = 4;
constexpr uint64_t kPlaceBytes = kCheckupBytes / kSampledLayers / 2 / kSampledPlaces;
constexpr uint64_t kChunkOfCheckup = uint64_t{1} << 20;

struct Look {
  CheckupPlace place;
  const KvTensor* tensor = nullptr;
  bool whole = false;
  uint64_t seen_bytes = 0, coded_bytes = 0, values = 0, nans = 0, infinities = 0;
  bool zeros = false;
  Hash128Bytes hash{};
};

bool HasBytes(const KvTensor& tensor) {
  return tensor.bytes() > 0 &&
         std::all_of(tensor.pieces.begin(), tensor.pieces.end(),
                     [](const StridedPiece& piece) { return piece.data != nullptr; });
}

// Returns all rows of a tensor, or samples spread over it; nothing if one row is longer than the
// sample.
Bytes Rows(const Look& look, uint64_t& tokens) {
  const KvTensor& tensor = *look.tensor;
  tokens = tensor.tokens();
  const uint64_t at_place = std::max<uint64_t>(1, kPlaceBytes / tensor.row_bytes());
  if (look.whole || tokens <= at_place * kSampledPlaces) {
    if (!look.whole && tensor.bytes() > kChunkOfCheckup) return {};
    return Gather(tensor, 0, tokens, Order::kTokenHeadDim);
  }
  if (tensor.row_bytes() > kChunkOfCheckup) return {};
  Bytes rows;
  const uint64_t step = (tokens - at_place) / (kSampledPlaces - 1);
  for (uint64_t place = 0; place < kSampledPlaces; ++place) {
    const Bytes some = Gather(tensor, place * step, at_place, Order::kTokenHeadDim);
    rows.insert(rows.end(), some.begin(), some.end());
  }
  tokens = at_place * kSampledPlaces;
  return rows;
}

void CountValues(const KvTensor& tensor, ByteSpan rows, Look& look) {
  static Reuse<std::vector<double>> scratch;
  const Reuse<std::vector<double>>::Lease lease(scratch);
  std::vector<double>& values = *lease;
  if (IsBlockQuantised(tensor.dtype)) {
    const DTypeInfo& info = Info(tensor.dtype);
    std::vector<float> floats(rows.size() / info.block_bytes * info.block_elements);
    ToFloats(tensor.dtype, rows, floats);
    values.assign(floats.begin(), floats.end());
  } else {
    ToDoubles(tensor.dtype, rows, values);
  }
  look.values += values.size();
  for (const double value : values) {
    look.nans += std::isnan(value);
    look.infinities += std::isinf(value);
    look.zeros = look.zeros && value == 0;
  }
}

// `orders` is null if all rows are in order. Samples spread over a tensor keep their order.
void LookAt(Look& look, Effort level, const RowOrders* orders) {
  const KvTensor& tensor = *look.tensor;
  uint64_t tokens = 0;
  const Bytes rows = Rows(look, tokens);
  if (rows.empty()) return;
  static Reuse<CodecScratch> scratches;
  const Reuse<CodecScratch>::Lease lease(scratches);
  CodecScratch& scratch = *lease;
  look.seen_bytes = rows.size();
  look.hash = Hash128(rows);
  look.zeros = true;
  const uint64_t step = std::max<uint64_t>(1, kChunkOfCheckup / tensor.row_bytes());
  ForEachPiece(tokens, step, [&](uint64_t begin, uint64_t count) {
    const ByteSpan part =
        ByteSpan(rows).subspan(begin * tensor.row_bytes(), count * tensor.row_bytes());
    CountValues(tensor, part, look);
    const ChunkShape shape{tensor.dtype, count, tensor.heads, tensor.units_per_head(),
                           Order::kTokenHeadDim};
    ChunkHead head = HeadOfRows(look.place.is_value, shape, tensor.heads_known);
    std::shared_ptr<const RowOrder> order;
    if (orders != nullptr && look.whole) order = orders->Of(look.place.layer, begin, count);
    EncodedChunk chunk = EncodeRows(head, part, order.get(), level, scratch);
    look.coded_bytes += chunk.payload.size();
    scratch.Recycle(std::move(chunk.payload));
  });
}

// Returns all layers, or some spread over the model.
std::vector<Look> Choose(const Snapshot& snapshot, Checkup& checkup) {
  std::vector<const LayerKv*> layers;
  for (const LayerKv& layer : snapshot.layers) {
    const bool has_v = layer.v && HasBytes(*layer.v);
    if (HasBytes(layer.k) || has_v) layers.push_back(&layer);
  }
  const bool whole = checkup.bytes <= kCheckupBytes;
  const size_t count = whole ? layers.size() : std::min<size_t>(layers.size(), kSampledLayers);
  std::vector<Look> looks;
  for (size_t i = 0; i < count; ++i) {
    // The first and the last layer are always included.
    const size_t at = count < 2 ? 0 : i * (layers.size() - 1) / (count - 1);
    const LayerKv& layer = *layers[at];
    if (HasBytes(layer.k)) looks.push_back({{layer.index, false}, &layer.k, whole});
    if (layer.v && HasBytes(*layer.v)) looks.push_back({{layer.index, true}, &*layer.v, whole});
  }
  checkup.seen_layers = count;
  return looks;
}

}  // namespace

Checkup CheckUp(const Snapshot& snapshot, Effort level, ThreadPool& pool) {
  Checkup checkup;
  checkup.bytes = snapshot.kv_bytes();
  checkup.layers = snapshot.layers.size();
  std::vector<Look> looks = Choose(snapshot, checkup);
  const RowOrders orders(snapshot);
  pool.ParallelFor(looks.size(), [&](uint64_t i) {
    LookAt(looks[i], level, orders.empty() ? nullptr : &orders);
  });
  std::map<Hash128Bytes, uint32_t> keys;
  for (const Look& look : looks) {
    if (look.seen_bytes == 0) continue;
    checkup.seen_bytes += look.seen_bytes;
    checkup.coded_bytes += look.coded_bytes;
    checkup.values += look.values;
    checkup.nans += look.nans;
    checkup.infinities += look.infinities;
    if (look.nans + look.infinities > 0) checkup.not_finite.push_back(look.place);
    if (look.zeros) checkup.zeros.push_back(look.place);
    if (look.zeros || look.place.is_value) continue;
    const auto [first, is_new] = keys.emplace(look.hash, look.place.layer);
    if (!is_new) checkup.same_keys.emplace_back(first->second, look.place.layer);
  }
  return checkup;
}

}  // namespace kv
