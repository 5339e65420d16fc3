// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/batch.h"

#include <fmt/format.h>

#include "lib/core/base/number.h"

namespace kv {

uint64_t BatchRows(const Snapshot& snapshot) {
  const auto at = snapshot.storage.find(kBatchRows);
  if (at == snapshot.storage.end()) return 1;
  const std::string& text = at->second;
  const uint64_t rows = ParseNumber<uint64_t>(text).value_or(0);
  bool divides = rows > 0;
  for (const LayerKv& layer : snapshot.layers)
    divides =
        divides && layer.k.tokens() % rows == 0 && (!layer.v || layer.v->tokens() % rows == 0);
  if (!divides)
    throw Error(Finding::kBadField, fmt::format("a batch of '{}' rows", Escaped(text, 40)));
  return rows;
}

}  // namespace kv
