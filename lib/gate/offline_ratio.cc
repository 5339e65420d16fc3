// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/gate/offline_ratio.h"

#include <fmt/format.h>

#include "lib/offline/offline.h"

namespace kv::gate {
namespace {

constexpr std::string_view kName = "lossless_selected_value";

std::string WhyNothing(const offline::Result& result) {
  std::string why;
  for (const auto& [reason, count] : result.skip_reasons) {
    why += fmt::format("{}{} {}", why.empty() ? ": " : ", ", reason, count);
  }
  return "the offline estimate found no 16-bit layer to compress" + why;
}

}  // namespace

void MeasureOfflineRatio(const Subject& subject, Measurements& measured) {
  const std::vector<offline::Entry> entries = offline::EntriesOf(subject.snapshot);
  const offline::Options options = offline::OnlineSimOptions();
  const offline::Result whole = offline::Simulate(entries, options, subject.pool);
  if (whole.total().compressed == 0) return measured.Missing(kName, WhyNothing(whole));

  // The part that compresses worst: one front layer, K or V.
  Where where;
  double worst = 0;
  for (const int64_t layer : whole.layers) {
    offline::Options one = options;
    one.scope = offline::Scope::kLayerIds;
    one.layer_ids = {layer};
    const offline::Result result =
        whole.layers.size() == 1 ? whole : offline::Simulate(entries, one, subject.pool);
    for (const auto& [kind, bytes] : {std::pair{"K", &result.k}, {"V", &result.v}}) {
      if (bytes->compressed == 0 || (where.layer && bytes->ratio() >= worst)) continue;
      worst = bytes->ratio();
      where.layer = static_cast<uint32_t>(layer);
      where.kind = kind;
    }
  }
  if (const LayerKv* layer = subject.snapshot.Find(where.layer.value_or(0))) {
    where.token_begin = 0;
    where.token_end = layer->k.tokens();
  }
  measured.Set(kName, whole.ratio(), where,
               fmt::format("offline estimate, K {:.4f}x, V {:.4f}x; worst {:.4f}x here",
                           whole.k.ratio(), whole.v.ratio(), worst));
}

}  // namespace kv::gate
