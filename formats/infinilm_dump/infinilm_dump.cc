// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// Reads and writes the dump of InfiniLM's compression test: meta.json and the two caches in the
// layouts of the test.
#include "formats/infinilm_dump/infinilm_dump.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lib/core/base/bytes.h"
#include "lib/core/base/json.h"
#include "lib/core/snapshot/layout.h"
#include "lib/core/snapshot/rope.h"
#include "lib/core/snapshot/select.h"

namespace kv::infinilm {
namespace {

nlohmann::json ParseObject(ByteSpan json) {
  if (json.size() > kMostMetaBytes) {
    throw Error(Finding::kLimit, "meta.json has {} bytes, expected at most {}", json.size(),
                kMostMetaBytes);
  }
  nlohmann::json object = ReadJson(AsText(json), {.bytes = kMostMetaBytes});
  if (!object.is_object()) throw Error(Finding::kBadText, "meta.json is not a JSON object");
  return object;
}

uint64_t Number(const nlohmann::json& object, const char* key, uint64_t least, uint64_t most) {
  const auto found = object.find(key);
  if (found == object.end()) {
    throw Error(Finding::kMissingRecord, "meta.json has no \"{}\"", key);
  }
  if (!found->is_number_unsigned() || *found < least || *found > most) {
    throw Error(Finding::kBadField, "{} is {}, expected {} to {}", key, ShowJson(*found), least,
                most);
  }
  return found->get<uint64_t>();
}

// Returns true if the file `output` is read as the cache: if the user chose it, or there is no
// `input`.
bool ReadsOutput(const Source& source, const OpenOptions& options) {
  if (options.layout == "input") return false;
  if (options.layout == "output") return true;
  if (!options.layout.empty()) {
    throw Error(Finding::kUsage, "--layout '{}': expected input or output", options.layout);
  }
  return source.Find(kInputName) == nullptr;
}

}  // namespace

DumpMeta ParseDumpMeta(ByteSpan json) {
  const nlohmann::json object = ParseObject(json);
  constexpr uint64_t kMost = UINT32_MAX;
  DumpMeta meta;
  meta.layers = Number(object, "layers", 1, kMostLayers);
  meta.heads = Number(object, "heads", 1, kMost);
  meta.head_dim = Number(object, "head_dim", 1, kMost);
  meta.seq_len_in = Number(object, "seq_len_in", 1, kMost);
  meta.seq_len_out = Number(object, "seq_len_out", 1, kMost);
  meta.compression_factor = Number(object, "compression_factor", 0, kMost);
  meta.min_seq_len = Number(object, "min_seq_len", 0, kMost);
  const auto it_len = object.find("it_len");
  if (it_len == object.end() || !it_len->is_array() || it_len->size() != 2 ||
      !(*it_len)[0].is_number_unsigned() || !(*it_len)[1].is_number_unsigned()) {
    throw Error(Finding::kBadField, "it_len is not a list of two numbers, [image, 0]");
  }
  meta.image_len = (*it_len)[0].get<uint64_t>();
  const auto pairs = object.find("rope_pairs");
  if (pairs != object.end()) {
    if (!pairs->is_string()) throw Error(Finding::kBadField, "rope_pairs is not a string");
    meta.rope_pairs = pairs->get<std::string>();
  }
  return meta;
}

Confidence ProbeDump(const Source& source) {
  const SourceFile* meta = source.Find(kMetaName);
  if (!source.is_folder || meta == nullptr || meta->data->size() > kMostMetaBytes)
    return Confidence::kNo;
  if (source.Find(kInputName) == nullptr && source.Find(kOutputName) == nullptr)
    return Confidence::kNo;
  const std::string_view text = AsText(meta->data->bytes());
  const bool named = text.find("\"seq_len_in\"") != std::string_view::npos &&
                     text.find("\"seq_len_out\"") != std::string_view::npos;
  return named ? Confidence::kCertain : Confidence::kNo;
}

Snapshot OpenDump(Source source, const OpenOptions& options) {
  const SourceFile* meta_file = source.Find(kMetaName);
  if (meta_file == nullptr) throw Error(Finding::kMissingRecord, "there is no meta.json");
  const DumpMeta meta = ParseDumpMeta(meta_file->data->bytes());
  const bool is_output = ReadsOutput(source, options);
  const std::string_view name = is_output ? kOutputName : kInputName;
  const SourceFile* file = source.Find(name);
  if (file == nullptr) throw Error(Finding::kMissingRecord, "there is no {}", name);

  const uint64_t tokens = is_output ? meta.seq_len_out : meta.seq_len_in;
  const uint64_t tensor_bytes =
      CheckedProduct({meta.heads, tokens, meta.head_dim, sizeof(uint16_t)}, "size of a tensor");
  const uint64_t expected = CheckedMul(2 * meta.layers, tensor_bytes, "size of the dump");
  if (file->data->size() != expected) {
    throw Error(Finding::kSizeMismatch,
                "{} has {} bytes, expected {} ({} layers x K, V x {} heads x {} tokens "
                "x {} x 2 bytes)",
                name, file->data->size(), expected, meta.layers, meta.heads, tokens, meta.head_dim);
  }
  Snapshot snapshot;
  snapshot.engine = "InfiniLM";
  snapshot.format_version = std::string(name);
  AssumeRotated(snapshot, "InfiniLM caches keys after RoPE");
  const Order order = is_output ? Order::kTokenHeadDim : Order::kHeadTokenDim;
  const std::byte* at = file->data->bytes().data();
  for (uint32_t i = 0; i < meta.layers; ++i, at += 2 * tensor_bytes) {
    const auto tensor = [&](const std::byte* data) {
      return ContiguousTensor(data, DType::kF16, tokens, static_cast<uint32_t>(meta.heads),
                              static_cast<uint32_t>(meta.head_dim), order);
    };
    snapshot.layers.push_back({i, {}, {}, tensor(at), tensor(at + tensor_bytes)});
  }
  snapshot.facts = {{"seq_len_in", fmt::to_string(meta.seq_len_in)},
                    {"seq_len_out", fmt::to_string(meta.seq_len_out)},
                    {"compression_factor", fmt::to_string(meta.compression_factor)},
                    {"min_seq_len", fmt::to_string(meta.min_seq_len)},
                    {"image_tokens", fmt::to_string(meta.image_len)}};
  TakeRecordedPairs(meta.rope_pairs, snapshot);
  if (source.Find(kInputName) != nullptr && source.Find(kOutputName) != nullptr) {
    snapshot.notes.push_back({fmt::format("read {}; --layout {} reads the other file", name,
                                          is_output ? "input" : "output"),
                              false});
  }
  snapshot.source = std::move(source);
  return snapshot;
}

namespace {

// Returns the geometry that both files share.
DumpMeta BuildMeta(const Snapshot& snapshot) {
  RequireHeads(snapshot, "an InfiniLM dump");
  RequireRotatedKeys(snapshot, "an InfiniLM dump");
  if (snapshot.layers.empty() || snapshot.layers.size() > kMostLayers) {
    throw Error(Finding::kUnsupportedLayout,
                "an InfiniLM dump holds 1 to {} layers, the snapshot has {}", kMostLayers,
                snapshot.layers.size());
  }
  const KvTensor& first = snapshot.layers.front().k;
  for (const LayerKv& layer : snapshot.layers) {
    for (const KvTensor* tensor : {&layer.k, layer.v ? &*layer.v : nullptr}) {
      if (tensor == nullptr || tensor->heads != first.heads || tensor->head_dim != first.head_dim ||
          tensor->tokens() != first.tokens()) {
        throw Error(Finding::kUnsupportedLayout,
                    "an InfiniLM dump needs K and V of the same shape in every layer")
            .In("layer {}", layer.index);
      }
      if (tensor->dtype != DType::kF16) {
        throw Error(Finding::kUnsupportedDtype, "an InfiniLM dump holds f16 only, found {}",
                    Name(tensor->dtype))
            .In("layer {}", layer.index);
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

std::string DumpMetaText(const DumpMeta& meta) {
  nlohmann::ordered_json object = {
      {"layers", meta.layers},           {"heads", meta.heads},
      {"head_dim", meta.head_dim},       {"seq_len_in", meta.seq_len_in},
      {"seq_len_out", meta.seq_len_out}, {"compression_factor", meta.compression_factor},
      {"min_seq_len", meta.min_seq_len}, {"it_len", {meta.image_len, 0}}};
  if (!meta.rope_pairs.empty()) object["rope_pairs"] = meta.rope_pairs;
  return object.dump(2);
}

void WriteMeta(const DumpMeta& meta, AtomicFolder& folder) {
  const auto file = folder.Create(std::string(kMetaName));
  file->Write(AsBytes(DumpMetaText(meta)));
  file->Close();
}

}  // namespace

void WriteDump(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  const DumpMeta meta = BuildMeta(snapshot);
  AtomicFolder folder(path, rules);
  WriteCache(snapshot, meta.seq_len_in, Order::kHeadTokenDim, kInputName, folder);
  WriteMeta(meta, folder);
  folder.Commit();
}

void WriteDumpPair(const Snapshot& before, const Snapshot& after, const StepPlan& plan,
                   const std::string& path, const OutputRules& rules) {
  DumpMeta meta = BuildMeta(before);
  BuildMeta(after);
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
