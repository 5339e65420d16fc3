// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/engines/mnn/gate/offline_ratio.h"

#include <fmt/format.h>

#include "lib/engines/mnn/offline/offline.h"

namespace kv::mnn {
namespace {

using namespace gate;

// The original's estimate, one layer at a time: groups and chunks never cross layers, so the sums
// are those of one run over all of them.
std::vector<offline::Result> FrontLayers(const Subject& subject) {
  const std::vector<DumpEntry> entries = DumpEntriesOf(subject.snapshot);
  offline::Options options = offline::OnlineSimOptions();
  options.scope = offline::Scope::kLayerIds;
  std::vector<offline::Result> results;
  for (int64_t layer = 0; layer < options.front_n; ++layer) {
    options.layer_ids = {layer};
    results.push_back(offline::Simulate(entries, options, subject.pool));
  }
  return results;
}

std::string WhyNothing(const std::vector<offline::Result>& layers) {
  std::string why;
  for (const offline::Result& layer : layers) {
    for (const auto& [reason, count] : layer.skip_reasons) {
      why += fmt::format("{}{} {}", why.empty() ? ": " : ", ", reason, count);
    }
  }
  return "the offline estimate found no 16-bit layer to compress" + why;
}

void Add(const offline::Sizes& part, offline::Sizes& sum) {
  sum.raw += part.raw;
  sum.compressed += part.compressed;
}

}  // namespace

void MeasureOfflineRatio(const Subject& subject, Measurements& measured) {
  const std::vector<offline::Result> layers = FrontLayers(subject);
  offline::Sizes k, v, both;
  Where where;
  double worst = 0;
  for (const offline::Result& layer : layers) {
    Add(layer.k, k);
    Add(layer.v, v);
    for (const auto& [kind, bytes] : {std::pair{"K", &layer.k}, {"V", &layer.v}}) {
      if (bytes->compressed == 0 || (where.layer && bytes->ratio() >= worst)) continue;
      worst = bytes->ratio();
      where.layer = static_cast<uint32_t>(*layer.layers.begin());
      where.kind = kind;
    }
  }
  Add(k, both);
  Add(v, both);
  if (both.compressed == 0) return measured.Missing(kOfflineRatio, WhyNothing(layers));
  if (const LayerKv* layer = subject.snapshot.Find(where.layer.value_or(0))) {
    where.token_begin = 0;
    where.token_end = layer->k.tokens();
  }
  measured.Set(kOfflineRatio, both.ratio(), where,
               fmt::format("offline estimate, K {:.4f}x, V {:.4f}x; worst {:.4f}x here", k.ratio(),
                           v.ratio(), worst));
}

}  // namespace kv::mnn
