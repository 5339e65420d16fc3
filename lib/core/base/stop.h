// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once  // implemented by parallel.cc

#include <atomic>

namespace kv {

// While this lives, what its thread hands to ThreadPool::ParallelFor stops between two indices once
// `stopped` is set, with kCancelled: how an embedded command is interrupted.
class StopScope {
 public:
  explicit StopScope(const std::atomic<bool>& stopped);
  ~StopScope();
  StopScope(const StopScope&) = delete;
  StopScope& operator=(const StopScope&) = delete;

 private:
  const std::atomic<bool>* before_;
};

}  // namespace kv
