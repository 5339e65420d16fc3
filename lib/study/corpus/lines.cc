// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/corpus/lines.h"

#include <fmt/format.h>

#include <array>

#include "lib/core/base/error.h"

namespace kv::corpus {
namespace {

using LineJson = nlohmann::ordered_json;

Error Wrong(Finding finding, size_t number, const std::string& what) {
  return Error(finding, fmt::format("line {}: {}", number, what));
}

// Before the line is parsed: the parser itself has no limits.
void RequireBounds(std::string_view line, size_t number) {
  constexpr size_t kMostDepth = 64, kMostKeys = 4096;
  std::array<size_t, kMostDepth + 1> keys{};
  size_t depth = 0;
  bool is_quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (is_quoted) {
      if (c == '\\') ++i;
      is_quoted = c != '"';
    } else if (c == '"') {
      is_quoted = true;
    } else if (c == '{' || c == '[') {
      if (depth == kMostDepth) {
        throw Wrong(Finding::kLimit, number, fmt::format("nests deeper than {}", kMostDepth));
      }
      keys[++depth] = 0;
    } else if (c == '}' || c == ']') {
      depth -= depth > 0 ? 1 : 0;
    } else if (c == ':' && ++keys[depth] > kMostKeys) {
      throw Wrong(Finding::kLimit, number,
                  fmt::format("an object has more than {} keys", kMostKeys));
    }
  }
}

}  // namespace

nlohmann::ordered_json ParseLine(std::string_view line, size_t number) {
  RequireBounds(line, number);
  LineJson json = LineJson::parse(line, nullptr, /*allow_exceptions=*/false);
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
