// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/corpus/lines.h"

#include <fmt/format.h>

#include "lib/core/base/error.h"
#include "lib/core/base/json.h"

namespace kv::corpus {
namespace {

using LineJson = nlohmann::ordered_json;

Error Wrong(Finding finding, size_t number, const std::string& what) {
  return Error(finding, fmt::format("line {}: {}", number, what));
}

}  // namespace

nlohmann::ordered_json ParseLine(std::string_view line, size_t number) {
  LineJson json;
  try {
    json = ReadOrderedJson(line, {.bytes = UINT64_MAX});
  } catch (Error& error) {
    throw error.In(fmt::format("line {}", number));
  }
  if (!json.is_object()) throw Wrong(Finding::kBadField, number, "is no JSON object");
  return json;
}

std::string TextIn(const nlohmann::ordered_json& object, const char* key, size_t number) {
  if (!object.contains(key) || !object[key].is_string()) {
    throw Wrong(Finding::kBadField, number, fmt::format("'{}' is no text", key));
  }
  return object[key];
}

uint64_t NumberIn(const nlohmann::ordered_json& object, const char* key, size_t number,
                  uint64_t most) {
  if (!object.contains(key) || !object[key].is_number_unsigned() ||
      object[key].get<uint64_t>() > most) {
    throw Wrong(Finding::kBadField, number, fmt::format("'{}' is no whole number", key));
  }
  return object[key];
}

const nlohmann::ordered_json& ObjectIn(const nlohmann::ordered_json& object, const char* key,
                                       size_t number) {
  if (!object.contains(key) || !object[key].is_object()) {
    throw Wrong(Finding::kBadField, number, fmt::format("'{}' is no object", key));
  }
  return object[key];
}

}  // namespace kv::corpus
