// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/not_finite.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "lib/core/base/arena.h"
#include "lib/core/kernels/dequantise.h"
#include "lib/core/snapshot/diff.h"
#include "lib/core/snapshot/layout.h"

namespace kv {
namespace {

constexpr uint64_t kScanBytes = 1 << 20;

struct Task {
  const LayerKv* layer = nullptr;
  bool is_value = false;
  uint64_t begin = 0, count = 0;
  NotFinite found = {};

  const KvTensor& tensor() const { return is_value ? *layer->v : layer->k; }
};

// Reads these rows as [token][channel]; block types are decoded.
void ReadRows(const KvTensor& tensor, uint64_t begin, uint64_t count, std::vector<double>& out) {
  static Reuse<Bytes> scratch;
  const Reuse<Bytes>::Lease lease(scratch);
  Bytes& rows = *lease;
  rows.resize(count * tensor.row_bytes());
  Gather(tensor, begin, count, 0, tensor.heads, Order::kTokenHeadDim, rows);
  if (!IsBlockQuantised(tensor.dtype)) return ToDoubles(tensor.dtype, rows, out);
  std::vector<float> values(count * tensor.channels());
  ToFloats(tensor.dtype, rows, values);
  out.assign(values.begin(), values.end());
}

// Returns the same tensor of the reference, if its rows have the same width.
const KvTensor* Counterpart(const Snapshot* reference, const Task& task) {
  const LayerKv* layer = reference == nullptr ? nullptr : reference->Find(task.layer->index);
  if (layer == nullptr || (task.is_value ? !layer->v : !layer->has_k())) return nullptr;
  const KvTensor& tensor = task.is_value ? *layer->v : layer->k;
  return tensor.channels() == task.tensor().channels() ? &tensor : nullptr;
}

bool IsSame(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b; }

void Search(const Snapshot& snapshot, const Snapshot* reference, Task& task) {
  const KvTensor& tensor = task.tensor();
  static Reuse<std::array<std::vector<double>, 2>> scratch;
  const Reuse<std::array<std::vector<double>, 2>>::Lease lease(scratch);
  auto& [values, theirs] = *lease;
  ReadRows(tensor, task.begin, task.count, values);
  theirs.clear();
  const auto is_bad = [](double value) { return !std::isfinite(value); };
  auto at = std::find_if(values.begin(), values.end(), is_bad);
  if (const KvTensor* other = Counterpart(reference, task);
      other != nullptr && at != values.end()) {
    const uint64_t end = std::min(other->tokens(), task.begin + task.count);
    if (end > task.begin) ReadRows(*other, task.begin, end - task.begin, theirs);
  }
  for (; at != values.end(); at = std::find_if(at + 1, values.end(), is_bad)) {
    const auto i = static_cast<uint64_t>(at - values.begin());
    if (i < theirs.size() && IsSame(*at, theirs[i])) continue;
    ++(std::isnan(*at) ? task.found.nans : task.found.infinities);
    if (task.found.first) continue;
    const uint64_t channel = i % tensor.channels();
    task.found.first = NotFiniteValue{task.layer->index,
                                      task.is_value,
                                      task.begin + i / tensor.channels(),
                                      static_cast<uint32_t>(channel / tensor.head_dim),
                                      static_cast<uint32_t>(channel % tensor.head_dim),
                                      *at};
  }
  DropTokens(snapshot, tensor, task.begin, task.count);
  if (task.begin + task.count == tensor.tokens()) DropTensor(snapshot, tensor);
}

}  // namespace

void NotFinite::Add(const NotFinite& later) {
  nans += later.nans;
  infinities += later.infinities;
  if (!first) first = later.first;
}

NotFinite FindNotFinite(const Snapshot& snapshot, const Snapshot* reference, ThreadPool& pool) {
  snapshot.CheckContent();
  if (reference != nullptr) reference->CheckContent();
  std::vector<Task> tasks;
  for (const LayerKv& layer : snapshot.layers) {
    for (const bool is_value : {false, true}) {
      if (is_value ? !layer.v : !layer.has_k()) continue;
      const KvTensor& tensor = is_value ? *layer.v : layer.k;
      const uint64_t step =
          std::max<uint64_t>(1, kScanBytes / std::max<uint64_t>(1, tensor.row_bytes()));
      for (uint64_t begin = 0; begin < tensor.tokens(); begin += step) {
        tasks.push_back({&layer, is_value, begin, std::min(step, tensor.tokens() - begin)});
      }
    }
  }
  pool.ParallelFor(tasks.size(), [&](uint64_t i) { Search(snapshot, reference, tasks[i]); });
  NotFinite all;
  for (const Task& task : tasks) all.Add(task.found);
  return all;
}

}  // namespace kv
