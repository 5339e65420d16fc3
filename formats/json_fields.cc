// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "formats/json_fields.h"

#include <fmt/format.h>

#include "lib/core/base/error.h"
#include "lib/core/base/json.h"

namespace kv {
namespace {

using nlohmann::json;

// Returns the field, or null if it is absent or null.
const json* Given(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Error WrongField(const char* key, const json& value, std::string_view expected) {
  return Error(Finding::kBadField, "'{}' is {}, expected {}", key, ShowJson(value), expected);
}

}  // namespace

json ReadDocument(const FileSource& file, std::string_view schema) {
  const auto refused = [&](Finding finding, std::string message) {
    return std::move(Error(finding, std::move(message)).File(file.name()));
  };
  json document = ReadJson(AsText(file.bytes()), {.bytes = kLargestDocument});
  if (!document.is_object()) throw refused(Finding::kBadText, "is not a JSON object");
  const auto found = document.find("schema");
  if (found == document.end() || *found != schema) {
    throw refused(Finding::kBadVersion,
                  fmt::format("\"schema\" is {}, expected \"{}\"",
                              found == document.end() ? "missing" : ShowJson(*found), schema));
  }
  return document;
}

std::optional<uint64_t> CountField(const json& object, const char* key, uint64_t most) {
  const json* value = Given(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_unsigned() || value->get<uint64_t>() > most) {
    throw WrongField(key, *value, fmt::format("a count up to {}", most));
  }
  return value->get<uint64_t>();
}

std::optional<double> RealField(const json& object, const char* key, double least, double most) {
  const json* value = Given(object, key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
    throw WrongField(key, *value, fmt::format("a number from {:g} to {:g}", least, most));
  }
  return value->get<double>();
}

std::string TextField(const json& object, const char* key) {
  const json* value = Given(object, key);
  if (value == nullptr) return {};
  if (!value->is_string()) throw WrongField(key, *value, "text");
  return value->get<std::string>();
}

std::string WordField(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

json ObjectField(const json& object, const char* key) {
  const json* value = Given(object, key);
  if (value == nullptr) return json::object();
  if (!value->is_object()) throw WrongField(key, *value, "an object");
  return *value;
}

}  // namespace kv
