// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/archive/train.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/core/base/error.h"
#include "lib/core/snapshot/layout.h"

namespace kv {

void ProfileBuilder::AddTensor(uint32_t layer, bool is_value, const KvTensor& tensor) {
  constexpr uint64_t kTogether = 256;  // number of tokens copied at a time
  if (tensor.dtype != DType::kF16 && tensor.dtype != DType::kBF16) {
    passed_over_ += tensor.bytes();
    return;
  }
  if (tensor.tokens() == 0 || tensor.channels() == 0) return;
  const std::string where = fmt::format("layer {} {}", layer, is_value ? 'V' : 'K');
  if (tensor.channels() > kMostProfileColumns) {
    throw Error(Finding::kLimit, "rows of {} values, at most {} are supported", tensor.channels(),
                kMostProfileColumns)
        .In(where);
  }
  const auto columns = static_cast<uint32_t>(tensor.channels());
  const auto key = std::tuple(layer, is_value, tensor.dtype);
  auto at = trainers_.find(key);
  if (at == trainers_.end()) {
    if (trainers_.size() == kMostProfileEntries) {
      throw Error(Finding::kLimit, "a profile describes at most {} tensors", kMostProfileEntries);
    }
    at = trainers_
             .emplace(key,
                      std::pair(columns, ProfileTrainer(layer, is_value, tensor.dtype, columns)))
             .first;
  }
  if (at->second.first != columns) {
    throw Error(Finding::kInconsistent, "rows of {} values, but {} in an earlier snapshot", columns,
                at->second.first)
        .In(where)
        .Hint("a profile is of one model");
  }
  for (uint64_t token = 0; token < tensor.tokens(); token += kTogether) {
    const uint64_t count = std::min(kTogether, tensor.tokens() - token);
    at->second.second.Add(Gather(tensor, token, count, Order::kTokenHeadDim));
  }
  values_ += tensor.tokens() * columns;
}

void ProfileBuilder::Add(const Snapshot& snapshot) {
  for (const LayerKv& layer : snapshot.layers) {
    if (layer.has_k()) AddTensor(layer.index, false, layer.k);
    if (layer.v) AddTensor(layer.index, true, *layer.v);
  }
}

std::shared_ptr<const Profile> ProfileBuilder::Finish(std::string name,
                                                      const Regressions& regressions) const {
  if (trainers_.empty()) {
    throw Error(Finding::kUnsupportedDtype, "no K or V to learn from is f16 or bf16");
  }
  std::vector<ProfileEntry> entries;
  for (const auto& [key, trainer] : trainers_) entries.push_back(trainer.second.Finish());
  return Profile::Make(std::move(name), std::move(entries), regressions);
}

}  // namespace kv
