// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/infinilm_dump/infinilm_dump.h"
#include "lib/core/snapshot/key_rotation.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/rope_pairs.h"
#include "lib/core/snapshot/select.h"

namespace kv::infinilm {
namespace {

// The one geometry that both files share.
DumpMeta MetaOf(const Snapshot& snapshot) {
  RequireHeads(snapshot, "an InfiniLM dump");
  RequireRotatedKeys(snapshot, "an InfiniLM dump");
  if (snapshot.layers.empty() || snapshot.layers.size() > kMostLayers) {
    throw Error(Finding::kUnsupportedLayout,
                fmt::format("an InfiniLM dump holds 1 to {} layers, the snapshot has {}",
                            kMostLayers, snapshot.layers.size()));
  }
  const KvTensor& first = snapshot.layers.front().k;
  for (const LayerKv& layer : snapshot.layers) {
    for (const KvTensor* tensor : {&layer.k, layer.v ? &*layer.v : nullptr}) {
      if (tensor == nullptr || tensor->heads != first.heads || tensor->head_dim != first.head_dim ||
          tensor->tokens() != first.tokens()) {
        throw Error(Finding::kUnsupportedLayout,
                    "an InfiniLM dump needs K and V of the same shape in every layer")
            .In(fmt::format("layer {}", layer.index));
      }
      if (tensor->dtype != DType::kF16) {
        throw Error(Finding::kUnsupportedDtype,
                    fmt::format("an InfiniLM dump holds f16 only, found {}", Name(tensor->dtype)))
            .In(fmt::format("layer {}", layer.index));
      }
    }
  }
  DumpMeta meta;
  meta.layers = snapshot.layers.size();
  meta.heads = first.heads;
  meta.head_dim = first.head_dim;
  meta.seq_len_in = meta.seq_len_out = first.tokens();
  meta.compression_factor = 1;
  meta.rope_pairs = PairsToRecord(snapshot);
  return meta;
}

void WriteCache(const Snapshot& snapshot, uint64_t tokens, Order order, std::string_view name,
                AtomicFolder& folder) {
  const auto file = folder.Create(std::string(name));
  for (const LayerKv& layer : snapshot.layers) {
    file->Write(Gather(layer.k, 0, tokens, order));
    file->Write(Gather(*layer.v, 0, tokens, order));
  }
  file->Close();
}

void WriteMeta(const DumpMeta& meta, AtomicFolder& folder) {
  const auto file = folder.Create(std::string(kMetaName));
  file->Write(AsBytes(DumpMetaText(meta)));
  file->Close();
}

}  // namespace

std::string DumpMetaText(const DumpMeta& meta) {
  nlohmann::ordered_json object = {
      {"layers", meta.layers},           {"heads", meta.heads},
      {"head_dim", meta.head_dim},       {"seq_len_in", meta.seq_len_in},
      {"seq_len_out", meta.seq_len_out}, {"compression_factor", meta.compression_factor},
      {"min_seq_len", meta.min_seq_len}, {"it_len", {meta.image_len, 0}}};
  if (!meta.rope_pairs.empty()) object["rope_pairs"] = meta.rope_pairs;
  return object.dump(2);
}

void WriteDump(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  const DumpMeta meta = MetaOf(snapshot);
  AtomicFolder folder(path, rules);
  WriteCache(snapshot, meta.seq_len_in, Order::kHeadTokenDim, kInputName, folder);
  WriteMeta(meta, folder);
  folder.Commit();
}

void WriteDumpPair(const Snapshot& before, const Snapshot& after, const StepPlan& plan,
                   const std::string& path, const OutputRules& rules) {
  DumpMeta meta = MetaOf(before);
  MetaOf(after);
  meta.seq_len_in = plan.tokens;
  meta.seq_len_out = plan.new_length;
  meta.compression_factor = plan.factor;
  meta.min_seq_len = plan.min_seq_len;
  meta.image_len = plan.image_len;
  AtomicFolder folder(path, rules);
  WriteCache(before, plan.tokens, Order::kHeadTokenDim, kInputName, folder);
  WriteCache(after, plan.new_length, Order::kTokenHeadDim, kOutputName, folder);
  WriteMeta(meta, folder);
  folder.Commit();
}

}  // namespace kv::infinilm
