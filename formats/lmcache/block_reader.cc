// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include "formats/lmcache/block_store.h"
#include "formats/pages.h"
#include "lib/core/snapshot/concatenate.h"

namespace kv::lmcache {
namespace {

constexpr size_t kKeysShown = 3;

Error NoOrder(const BlockStore& store) {
  std::string keys;
  for (const auto& [key, entry] : store.entries()) {
    static_cast<void>(entry);
    if (std::count(keys.begin(), keys.end(), '\'') == 2 * kKeysShown) {
      keys += " ...";
      break;
    }
    keys += fmt::format("{}'{}'", keys.empty() ? "" : ", ", Escaped(key, 120));
  }
  Error error(Finding::kUsage,
              fmt::format("holds {} chunks and does not say which follows which: {}",
                          store.entries().size(), keys));
  error.Hint("give --order FILE, a file with one of these keys per line, or --order 'PATTERN'");
  return error;
}

}  // namespace

Snapshot OpenBlocks(Source source, const OpenOptions& options) {
  BlockStore store(std::move(source));
  const size_t stored = store.entries().size();
  if (stored == 0) {
    throw Error(Finding::kMissingRecord,
                fmt::format("no chunk of its index is still there ({} are gone)", store.stale()));
  }
  if (options.order.empty() && stored > 1) throw NoOrder(store);
  Snapshot snapshot;
  if (options.order.empty()) {
    snapshot = store.Open(store.entries().begin()->first, options.batch);
    snapshot.source = store.Release();
  } else {
    const Source names = store.Names();
    std::vector<Snapshot> parts;
    for (const SourceFile* file : InOrder(names, options.order))
      parts.push_back(store.Open(file->name, options.batch));
    const size_t used = parts.size();
    snapshot = Concatenate(std::move(parts), store.Release());
    snapshot.facts.emplace_back(
        "chunks",
        fmt::format("{} of {}, in the order that --order {} gives, which the file cannot confirm",
                    used, stored, options.order));
  }
  if (store.stale() > 0) {
    snapshot.notes.push_back(
        {fmt::format("{} slot{} of the index hold{} something else by now", store.stale(),
                     store.stale() == 1 ? "" : "s", store.stale() == 1 ? "s" : ""),
         false});
  }
  return snapshot;
}

}  // namespace kv::lmcache
