// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/study/gate/json.h"

#include <algorithm>
#include <cmath>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/json.h"
#include "lib/core/base/number.h"

namespace kv::gate {
namespace {

constexpr size_t kShownKey = 80;

// Returns whether a word is a number beyond the range of a double.
bool Overflows(std::string_view word) {
  if (word[0] == '-') word.remove_prefix(1);
  const bool is_digits = !word.empty() && word[0] >= '0' && word[0] <= '9';
  return is_digits && std::isinf(ParseNumber<double>(word).value_or(0));
}

// Writes what no strict parser takes for a number as a text.
std::string QuoteNonFinite(std::string_view json) {
  constexpr std::string_view kWord =
      "+-.0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string out;
  while (!json.empty()) {
    size_t length = 1;
    if (json[0] == '"') {
      while (length < json.size() && json[length] != '"') length += json[length] == '\\' ? 2 : 1;
      length = std::min(length + 1, json.size());
      out += json.substr(0, length);
    } else if (kWord.find(json[0]) != kWord.npos) {
      length = std::min(json.find_first_not_of(kWord), json.size());
      const std::string_view word = json.substr(0, length);
      const std::string_view size = word.substr(word.starts_with('-') ? 1 : 0);
      if (size == "Infinity" || size == "inf" || Overflows(word)) {
        out += word[0] == '-' ? "\"-Infinity\"" : "\"Infinity\"";
      } else {
        out += size == "NaN" || size == "nan" ? "\"NaN\"" : word;
      }
    } else {
      out += json[0];
    }
    json.remove_prefix(length);
  }
  return out;
}

}  // namespace

Json ParseJson(std::string_view text, std::string_view file) {
  const std::string quoted = QuoteNonFinite(text);
  JsonMistake mistake;
  Json json;
  try {
    json = ReadOrderedJson(quoted, {.bytes = UINT64_MAX, .unique_keys = true}, &mistake);
  } catch (Error& error) {
    throw error.File(file);
  }
  if (!json.is_discarded()) return json;
  if (mistake.kind == JsonMistake::Kind::kTwice) {
    throw Error(Finding::kBadText, "a JSON object has two keys '{}'",
                Escaped(mistake.text, kShownKey))
        .File(file);
  }
  if (mistake.kind == JsonMistake::Kind::kRange) {
    throw Error(Finding::kBadText, "a number of the JSON document is out of range").File(file);
  }
  throw Error(Finding::kBadText, "expected a JSON document")
      .At(std::min<size_t>(mistake.at > 0 ? mistake.at - 1 : 0, text.size()))
      .File(file);
}

const Json* Find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(std::string(key));
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<double> NumberIn(const Json& object, std::string_view key) {
  const Json* found = Find(object, key);
  if (found == nullptr || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::optional<bool> FlagIn(const Json& object, std::string_view key) {
  const Json* found = Find(object, key);
  if (found == nullptr || !found->is_boolean()) return std::nullopt;
  return found->get<bool>();
}

std::string TextAt(const Json& object, std::string_view key, std::string otherwise) {
  const Json* found = Find(object, key);
  return found != nullptr && found->is_string() ? found->get<std::string>() : otherwise;
}

bool TruthAt(const Json& object, std::string_view key) {
  const Json* found = Find(object, key);
  if (found == nullptr) return false;
  if (found->is_boolean()) return found->get<bool>();
  if (found->is_number()) return found->get<double>() != 0;
  if (found->is_string()) return !found->get_ref<const std::string&>().empty();
  return !found->empty();
}

}  // namespace kv::gate
