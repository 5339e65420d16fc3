// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "formats/mnn/meta.h"
#include "formats/mnn/mnn.h"
#include "lib/core/snapshot/key_rotation.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/residency.h"
#include "lib/core/snapshot/rope_pairs.h"

namespace kv::mnn {
namespace {

constexpr uint64_t kStepBytes = 1 << 20;  // gathered at a time

void CheckLayer(const LayerKv& layer) {
  const auto fail = [&](Finding finding, std::string message) {
    return Error(finding, std::move(message)).In(fmt::format("layer {}", layer.index));
  };
  if (!layer.v) throw fail(Finding::kUnsupportedLayout, "has no V, an MNN dump needs both");
  const KvTensor& k = layer.k;
  const KvTensor& v = *layer.v;
  for (const KvTensor* tensor : {&k, &v}) {
    if (tensor->dtype != DType::kF16 && tensor->dtype != DType::kF32) {
      throw fail(Finding::kUnsupportedDtype,
                 fmt::format("an MNN dump cannot hold {}, only f16 or f32", Name(tensor->dtype)))
          .Hint("--to safetensors keeps every element type");
    }
  }
  const bool same = k.dtype == v.dtype && k.heads == v.heads && k.head_dim == v.head_dim &&
                    k.tokens() == v.tokens();
  if (!same) {
    throw fail(Finding::kUnsupportedLayout,
               fmt::format("K is {} tokens of {} x {} {}, V {} of {} x {} {}; an MNN dump has one "
                           "shape for both",
                           k.tokens(), k.heads, k.head_dim, Name(k.dtype), v.tokens(), v.heads,
                           v.head_dim, Name(v.dtype)));
  }
  if (k.tokens() == 0) throw fail(Finding::kUnsupportedLayout, "has no tokens");
}

void WriteRows(const Snapshot& snapshot, const KvTensor& tensor, FolderFile& file) {
  const uint64_t row = tensor.row_bytes(), tokens = tensor.tokens();
  const uint64_t step = std::max<uint64_t>(1, kStepBytes / row);
  for (uint64_t begin = 0; begin < tokens; begin += step) {
    const uint64_t count = std::min(step, tokens - begin);
    file.Write(Gather(tensor, begin, count, Order::kTokenHeadDim));
    DropTokens(snapshot, tensor, begin, count);
  }
  DropTensor(snapshot, tensor);
  file.Close();
}

}  // namespace

void WriteDump(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  RequireHeads(snapshot, "an MNN dump");
  RequireRotatedKeys(snapshot, "an MNN dump");
  snapshot.CheckContent();
  std::set<uint32_t> indices;
  for (const LayerKv& layer : snapshot.layers) {
    CheckLayer(layer);
    if (!indices.insert(layer.index).second) {
      throw Error(Finding::kUnsupportedLayout,
                  fmt::format("two layers have the index {}", layer.index));
    }
  }
  AtomicFolder folder(path, rules);
  std::filesystem::path name = std::filesystem::path(path).lexically_normal();
  if (!name.has_filename()) name = name.parent_path();  // "out/"
  for (const LayerKv& layer : snapshot.layers) {
    DumpMeta meta;
    meta.layer = layer.index;
    meta.tokens = meta.added = layer.k.tokens();
    meta.kv_heads = layer.k.heads;
    meta.head_dim = layer.k.head_dim;
    meta.dtype = layer.k.dtype;
    meta.stage = meta.tokens == 1 ? "decode" : "prefill";
    meta.run_id = name.filename().string();
    meta.rope_pairs = PairsToRecord(snapshot);
    meta.k_file = fmt::format("k_t0_{}.bin", meta.tokens);
    meta.v_file = fmt::format("v_t0_{}.bin", meta.tokens);
    const std::string where = fmt::format("layer_{}/", layer.index);
    WriteRows(snapshot, layer.k, *folder.Create(where + meta.k_file));
    WriteRows(snapshot, *layer.v, *folder.Create(where + meta.v_file));
    const auto text = folder.Create(where + fmt::format("meta_t0_{}.json", meta.tokens));
    text->Write(AsBytes(LogicalMetaText(meta)));
    text->Close();
  }
  folder.Commit();
}

}  // namespace kv::mnn
