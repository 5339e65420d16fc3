// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "apps/kvtool/documents/document_names.h"

#include <algorithm>

namespace kv {

// The fields of each command's result, from which its schema is made, are defined in the file of
// the command.
const FieldTable& AdviseFields();
const FieldTable& AdviseStatesFields();  // without a run
const FieldTable& AnalyzeFields();
const FieldTable& BenchFields();
const FieldTable& CompressFields();
const FieldTable& ConvertFields();
const FieldTable& CorpusCheckFields();
const FieldTable& DecompressFields();
const FieldTable& DiffFields();
const FieldTable& DoctorFields();
const FieldTable& FailureFields();
const FieldTable& FormatsFields();
const FieldTable& FrameFields();
const FieldTable& GateFields();
const FieldTable& InspectFields();
const FieldTable& MergeFields();
const FieldTable& PlanCheckFields();
const FieldTable& ReplayBlendFields();
const FieldTable& ReplayH2oEventFields();  // a line of --jsonl-out
const FieldTable& ReplayH2oFields();
const FieldTable& ReplayLosslessEventFields();
const FieldTable& ReplayLosslessFields();
const FieldTable& ReplayMlpFields();
const FieldTable& ReplayQuantFields();
const FieldTable& ReplayQuantOriginFields();  // with --against
const FieldTable& StoreAddFields();
const FieldTable& StoreGcFields();
const FieldTable& StoreGetFields();
const FieldTable& StoreListFields();
const FieldTable& StorePruneFields();
const FieldTable& StoreRemoveFields();
const FieldTable& StoreStatsFields();
const FieldTable& StoreVerifyFields();
const FieldTable& TargetsFields();
const FieldTable& TraceFields();
const FieldTable& TrainFields();
const FieldTable& VerifyFields();
const FieldTable& VersionFields();
const FieldTable& WeightsConvertFields();
const FieldTable& WeightsDiffFields();
const FieldTable& WeightsInspectFields();
const FieldTable& WeightsVerifyFields();

namespace {

constexpr DocumentKind kDocuments[] = {
    {"advise", "advise", AdviseFields, "kvtool advise --json"},
    {"advise FOLDER", "advise-states", AdviseStatesFields,
     "kvtool advise --json of saved states without a run"},
    {"analyze", "analyze", AnalyzeFields, "kvtool analyze --json"},
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
    {"gate", "gate", GateFields, "kvtool gate: summary.json"},
    {"inspect", "inspect", InspectFields, "kvtool inspect --json"},
    {"merge", "merge", MergeFields, "kvtool merge --json"},
    {"plan check", "plan-check", PlanCheckFields, "kvtool plan check --json"},
    {"replay-blend", "blend", ReplayBlendFields, "kvtool replay-blend --json"},
    {"replay-h2o", "h2o", ReplayH2oFields, "kvtool replay-h2o --json"},
    {"replay-lossless", "replay-lossless", ReplayLosslessFields, "kvtool replay-lossless --json"},
    {"replay-mlp", "replay-mlp", ReplayMlpFields, "kvtool replay-mlp --json"},
    {"replay-quant", "quant", ReplayQuantFields, "kvtool replay-quant --json"},
    {"replay-quant --against", "quant-origin", ReplayQuantOriginFields,
     "kvtool replay-quant --against --json"},
#ifndef KVTOOL_WITHOUT_STORE
    {"store add", "store-add", StoreAddFields, "kvtool store add --json"},
    {"store gc", "store-gc", StoreGcFields, "kvtool store gc --json"},
    {"store get", "store-get", StoreGetFields, "kvtool store get --json"},
    {"store list", "store-list", StoreListFields, "kvtool store list --json"},
    {"store prune", "store-prune", StorePruneFields, "kvtool store prune --json"},
    {"store remove", "store-remove", StoreRemoveFields, "kvtool store remove --json"},
    {"store stats", "store-stats", StoreStatsFields, "kvtool store stats --json"},
    {"store verify", "store-verify", StoreVerifyFields, "kvtool store verify --json"},
#endif
    {"targets", "targets", TargetsFields, "kvtool targets --json"},
    {"trace inspect", "trace", TraceFields, "kvtool trace inspect --json"},
    {"verify", "verify", VerifyFields, "kvtool verify --json"},
    {"weights convert", "weights-convert", WeightsConvertFields, "kvtool weights convert --json"},
    {"weights diff", "weights-diff", WeightsDiffFields, "kvtool weights diff --json"},
    {"weights inspect", "weights-inspect", WeightsInspectFields, "kvtool weights inspect --json"},
    {"weights verify", "weights-verify", WeightsVerifyFields, "kvtool weights verify --json"},
    {"--version", "version", VersionFields, "kvtool --version --json"},
    {"", "failure", FailureFields, "kvtool --json with an unknown command"},
};

// Files that commands write besides their documents.
constexpr DocumentKind kFiles[] = {
    {"", "h2o-event", ReplayH2oEventFields, "one line of kvtool replay-h2o --jsonl-out"},
    {"", "replay-lossless-event", ReplayLosslessEventFields,
     "one line of kvtool replay-lossless --jsonl-out"},
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
    all.push_back({schema.name, schema.text, nullptr, nullptr});
  }
  for (const DocumentKind& kind : kFiles) all.push_back({kind.name, {}, nullptr, &kind});
  for (const DocumentKind& kind : kDocuments) all.push_back({kind.name, {}, &kind, nullptr});
  std::sort(all.begin(), all.end(),
            [](const KnownSchema& a, const KnownSchema& b) { return a.name < b.name; });
  return all;
}

}  // namespace kv
