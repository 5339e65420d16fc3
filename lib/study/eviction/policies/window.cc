// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <algorithm>

#include "lib/study/eviction/rule.h"

namespace kv::eviction {
namespace {

// Keeps the first `sinks` tokens and the most recent ones.
class WindowRule : public Rule {
 public:
  explicit WindowRule(uint64_t sinks) : sinks_(sinks) {}
  std::vector<KeepPlan> Choose(LayerCaches& caches, uint64_t, uint64_t keep) override {
    const auto n = static_cast<uint32_t>(caches.size()), kept = static_cast<uint32_t>(keep);
    const auto sinks = static_cast<uint32_t>(std::min(sinks_, keep));
    KeepPlan plan;
    Append(plan, {0, sinks});
    Append(plan, {n - (kept - sinks), kept - sinks});
    return {plan};
  }

 private:
  uint64_t sinks_;
};

}  // namespace

std::unique_ptr<Rule> MakeWindowRule(const RuleSetup&) { return std::make_unique<WindowRule>(0); }

std::unique_ptr<Rule> MakeStreamingRule(const RuleSetup& setup) {
  return std::make_unique<WindowRule>(setup.options.paper.sinks);
}

}  // namespace kv::eviction
