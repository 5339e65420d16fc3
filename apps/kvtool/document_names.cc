// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/document_names.h"

#include <algorithm>
#include <iterator>

namespace kv {
namespace {

struct Documented {
  std::string_view command, name;
};

constexpr Documented kDocumented[] = {
    {"advise", "advise"},
    {"analyze", "analyze"},
    {"bench", "bench"},
    {"compress", "compress"},
    {"convert", "convert"},
    {"corpus check", "corpus-check"},
    {"train", "train"},
    {"decompress", "decompress"},
    {"diff", "diff"},
    {"doctor", "doctor"},
    {"formats", "formats"},
    {"frame inspect", "frame"},
    {"gate", "gate"},
    {"inspect", "inspect"},
    {"merge", "merge"},
    {"plan check", "plan-check"},
    {"replay-blend", "blend"},
    {"replay-h2o", "h2o"},
    {"replay-lossless", "replay-lossless"},
    {"replay-mlp", "replay-mlp"},
    {"replay-quant", "quant"},
    {"replay-quant --against", "quant-origin"},
    {"store add", "store-add"},
    {"store gc", "store-gc"},
    {"store get", "store-get"},
    {"store list", "store-list"},
    {"store prune", "store-prune"},
    {"store stats", "store-stats"},
    {"store verify", "store-verify"},
    {"targets", "targets"},
    {"trace inspect", "trace"},
    {"verify", "verify"},
    {"weights convert", "weights-convert"},
    {"weights diff", "weights-diff"},
    {"weights inspect", "weights-inspect"},
    {"weights verify", "weights-verify"},
    {"--version", "version"},
    {"", "failure"},
};

}  // namespace

std::string_view DocumentName(std::string_view command) {
  for (const Documented& documented : kDocumented) {
    if (documented.command == command) return documented.name;
  }
  return {};
}

bool HasEnvelope(std::string_view name) {
  return std::any_of(std::begin(kDocumented), std::end(kDocumented),
                     [&](const Documented& documented) { return documented.name == name; });
}

}  // namespace kv
