// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/tensors/metadata.h"

#include <nlohmann/json.hpp>

#include "lib/core/base/json.h"

namespace kv {

std::string Lookup(const TensorMetadata& metadata, std::string_view key) {
  const auto at = metadata.find(std::string(key));
  return at == metadata.end() ? std::string() : at->second;
}

bool IsKvtoolFile(const TensorMetadata& metadata) {
  return metadata.count(std::string(kLayoutKey)) != 0;
}

std::optional<TensorMetadata> ParseMetadata(std::string_view json) {
  const auto document = ReadJson(json, {.keys = 1 << 16});
  if (!document.is_object()) return std::nullopt;
  TensorMetadata metadata;
  for (const auto& [key, value] : document.items()) {
    if (!value.is_string()) return std::nullopt;
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

std::string MetadataJson(const TensorMetadata& metadata) {
  return nlohmann::json(metadata).dump(2, ' ', /*ensure_ascii=*/true,
                                       nlohmann::json::error_handler_t::replace);
}

}  // namespace kv
