// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/snapshot/batch.h"

#include <fmt/format.h>

#include <charconv>

namespace kv {

uint64_t BatchRows(const Snapshot& snapshot) {
  const auto at = snapshot.storage.find(kBatchRows);
  if (at == snapshot.storage.end()) return 1;
  const std::string& text = at->second;
  uint64_t rows = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rows);
  bool divides = error == std::errc() && end == text.data() + text.size() && rows > 0;
  for (const LayerKv& layer : snapshot.layers)
    divides =
        divides && layer.k.tokens() % rows == 0 && (!layer.v || layer.v->tokens() % rows == 0);
  if (!divides)
    throw Error(Finding::kBadField, fmt::format("a batch of '{}' rows", Escaped(text, 40)));
  return rows;
}

}  // namespace kv
