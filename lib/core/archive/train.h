// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <map>
#include <tuple>

#include "lib/core/codec/profiled/profile.h"
#include "lib/core/snapshot/snapshot.h"

// Trains a profile on whole snapshots.
namespace kv {

class ProfileBuilder {
 public:
  // Learns from every K and V of f16 or bf16. Throws kInconsistent if the width of a layer's rows
  // differs from an earlier snapshot, kLimit for more tensors than a profile may describe.
  void Add(const Snapshot& snapshot);
  uint64_t values() const { return values_; }            // number of values learnt from
  uint64_t passed_over() const { return passed_over_; }  // bytes of other types, which are skipped
  // Throws kUnsupportedDtype if there was nothing to learn from.
  std::shared_ptr<const Profile> Finish(std::string name,
                                        const Regressions& regressions = {}) const;

 private:
  void AddTensor(uint32_t layer, bool is_value, const KvTensor& tensor);

  std::map<std::tuple<uint32_t, bool, DType>, std::pair<uint32_t, ProfileTrainer>> trainers_;
  uint64_t values_ = 0, passed_over_ = 0;
};

}  // namespace kv
