// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Any bytes as an eviction plan: it is refused, or the tokens that its events leave add up.
#include <cstdlib>

#include "formats/plan/plan.h"
#include "lib/core/base/error.h"
#include "lib/core/snapshot/layout.h"
#include "tests/fuzz/accepted.h"

namespace {

constexpr uint64_t kTokens = 12;

kv::Snapshot TwoLayers() {
  static const kv::Bytes values(kTokens * 2 * 4 * 2);
  kv::Snapshot snapshot;
  for (uint32_t layer = 0; layer < 2; ++layer) {
    kv::LayerKv kv;
    kv.index = layer;
    kv.k = kv::ContiguousTensor(values.data(), kv::DType::kF16, kTokens, 2, 4,
                                kv::Order::kTokenHeadDim);
    snapshot.layers.push_back(kv);
  }
  return snapshot;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const kv::Snapshot snapshot = TwoLayers();
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const auto file = kv::FileSource::FromBytes(kv::Bytes(bytes, bytes + size), "fuzz");
  try {
    kv::EvictionPlanWalk walk(snapshot);
    kv::ReadPlan(*file, [&](uint64_t, const kv::PlanEvent& event) { walk.Apply(event); });
    for (const kv::EvictionPlanWalk::Layer& layer : walk.Layers()) {
      for (const uint64_t kept : layer.kept) {
        if (kept > kTokens) std::abort();
      }
    }
    if (walk.kept_bytes() > static_cast<double>(walk.full_bytes())) std::abort();
    ++kv::fuzz::accepted;
  } catch (const kv::Error&) {
  }
  return 0;
}
