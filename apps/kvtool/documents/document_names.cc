// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/documents/document_names.h"

#include <algorithm>

#include "apps/kvtool/documents/result_fields.h"
#include "apps/kvtool/documents/schemas.h"

namespace kv {
namespace {

constexpr DocumentKind kDocuments[] = {
    {"advise", "advise"},
    {"analyze", "analyze"},
    {"bench", "bench", BenchFields, "kvtool bench --json"},
    {"compress", "compress", CompressFields, "kvtool compress --json"},
    {"convert", "convert", ConvertFields, "kvtool convert --json"},
    {"corpus check", "corpus-check", CorpusCheckFields, "kvtool corpus check --json"},
    {"train", "train", TrainFields, "kvtool train --json"},
    {"decompress", "decompress", DecompressFields,
     "kvtool decompress --json; with --to, of the tensors written"},
    {"diff", "diff", DiffFields, "kvtool diff --json"},
    {"doctor", "doctor", DoctorFields, "kvtool doctor --json"},
    {"formats", "formats", FormatsFields, "kvtool formats --json"},
    {"frame inspect", "frame", FrameFields, "kvtool frame inspect --json"},
    {"gate", "gate"},
    {"inspect", "inspect"},
    {"merge", "merge"},
    {"plan check", "plan-check", PlanCheckFields, "kvtool plan check --json"},
    {"replay-blend", "blend"},
    {"replay-h2o", "h2o"},
    {"replay-lossless", "replay-lossless"},
    {"replay-mlp", "replay-mlp"},
    {"replay-quant", "quant"},
    {"replay-quant --against", "quant-origin"},
    {"store add", "store-add", StoreAddFields, "kvtool store add --json"},
    {"store gc", "store-gc", StoreGcFields, "kvtool store gc --json"},
    {"store get", "store-get", StoreGetFields, "kvtool store get --json"},
    {"store list", "store-list", StoreListFields, "kvtool store list --json"},
    {"store prune", "store-prune", StorePruneFields, "kvtool store prune --json"},
    {"store stats", "store-stats", StoreStatsFields, "kvtool store stats --json"},
    {"store verify", "store-verify", StoreVerifyFields, "kvtool store verify --json"},
    {"targets", "targets", TargetsFields, "kvtool targets --json"},
    {"trace inspect", "trace"},
    {"verify", "verify", VerifyFields, "kvtool verify --json"},
    {"weights convert", "weights-convert"},
    {"weights diff", "weights-diff"},
    {"weights inspect", "weights-inspect"},
    {"weights verify", "weights-verify"},
    {"--version", "version", VersionFields, "kvtool --version --json"},
    {"", "failure", FailureFields, "kvtool --json of what is no command"},
};

}  // namespace

const DocumentKind* FindDocument(std::string_view command) {
  for (const DocumentKind& kind : kDocuments) {
    if (kind.command == command) return &kind;
  }
  return nullptr;
}

const DocumentKind* DocumentNamed(std::string_view name) {
  for (const DocumentKind& kind : kDocuments) {
    if (kind.name == name) return &kind;
  }
  return nullptr;
}

std::vector<KnownSchema> KnownSchemas() {
  std::vector<KnownSchema> all;
  for (const EmbeddedSchema& schema : EmbeddedSchemas()) {
    all.push_back({schema.name, schema.text, DocumentNamed(schema.name)});
  }
  for (const DocumentKind& kind : kDocuments) {
    if (kind.fields != nullptr) all.push_back({kind.name, {}, &kind});
  }
  std::sort(all.begin(), all.end(),
            [](const KnownSchema& a, const KnownSchema& b) { return a.name < b.name; });
  return all;
}

}  // namespace kv
