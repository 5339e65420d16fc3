// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/safetensors/dtypes.h"
#include "formats/safetensors/header.h"
#include "formats/safetensors/safetensors.h"
#include "lib/core/base/checked.h"

namespace kv {
namespace {

using safetensors::Standing;
using safetensors::TypeWord;

constexpr uint64_t kHeaderAlignment = 8;

// Index in the official enumeration, whose reverse is the order of tensors in a file.
size_t WordIndex(DType dtype) {
  const auto* at =
      std::find_if(std::begin(safetensors::kTypeWords), std::end(safetensors::kTypeWords),
                   [&](const TypeWord& word) {
                     return word.dtype == dtype && word.standing == Standing::kOfficial;
                   });
  KV_ASSERT(at != std::end(safetensors::kTypeWords));
  return static_cast<size_t>(at - std::begin(safetensors::kTypeWords));
}

}  // namespace

Bytes SafetensorsHead(const std::vector<const TensorToWrite*>& order,
                      const TensorMetadata& metadata) {
  const auto dump = [](const nlohmann::json& value) {
    return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  // As text at once: an object that keeps its order looks through all names for each new one.
  std::string text = "{";
  const auto add = [&](const std::string& name, std::string_view value) {
    if (text.size() > 1) text += ',';
    text.append(dump(name)).append(":").append(value);
  };
  if (!metadata.empty()) add("__metadata__", dump(metadata));
  uint64_t position = 0;
  for (const TensorToWrite* tensor : order) {
    const uint64_t end = CheckedAdd(position, tensor->bytes(), "size of the file");
    add(tensor->name, fmt::format(R"({{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  safetensors::kTypeWords[WordIndex(tensor->dtype)].name,
                                  fmt::join(tensor->shape, ","), position, end));
    position = end;
  }
  text += '}';
  text.resize(RoundUp(text.size(), kHeaderAlignment), ' ');
  if (text.size() > safetensors::kHeaderCap) {
    throw Error(Finding::kLimit, fmt::format("header of {} bytes; the format allows {}",
                                             text.size(), safetensors::kHeaderCap));
  }
  ByteWriter head;
  head.U64(text.size());
  head.Append(text);
  return head.Release();
}

void WriteSafetensorsFile(const std::vector<TensorToWrite>& tensors, const TensorMetadata& metadata,
                          Sink& sink) {
  std::vector<const TensorToWrite*> order;
  for (const TensorToWrite& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorToWrite* a, const TensorToWrite* b) {
    const size_t word_a = WordIndex(a->dtype), word_b = WordIndex(b->dtype);
    return word_a != word_b ? word_a > word_b : a->name < b->name;
  });
  sink.Write(SafetensorsHead(order, metadata));
  for (const TensorToWrite* tensor : order) tensor->write(sink);
}

void WriteSafetensors(const Snapshot& snapshot, const std::string& path, const OutputRules& rules) {
  snapshot.CheckContent();
  const TensorExport content = ExportOf(snapshot);
  AtomicFile file(path, rules);
  WriteSafetensorsFile(content.tensors, content.metadata, file);
  file.Commit();
}

}  // namespace kv
