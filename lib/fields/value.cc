// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/fields/value.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace kv {
namespace {

using Json = nlohmann::ordered_json;

struct MakeJson {
  Json operator()(std::monostate) const { return nullptr; }
  Json operator()(double number) const {
    return std::isfinite(number) ? Json(number) : Json(nullptr);
  }
  Json operator()(const Value::List& list) const {
    Json json = Json::array();
    for (const Value& element : list) json.push_back(ToJson(element));
    return json;
  }
  Json operator()(const Value::Object& object) const {
    // Filled as a vector: operator[] of an ordered object walks all keys, which is quadratic.
    Json::object_t members;
    members.reserve(object.size());
    for (const auto& [key, value] : object) {
      static_cast<std::vector<std::pair<const std::string, Json>>&>(members).emplace_back(
          key, ToJson(value));
    }
    return members;
  }
  template <typename T>
  Json operator()(const T& value) const {
    return value;
  }
};

}  // namespace

double Value::number() const {
  if (const auto* value = get_if<double>()) return *value;
  if (const auto* value = get_if<uint64_t>()) return static_cast<double>(*value);
  if (const auto* value = get_if<int64_t>()) return static_cast<double>(*value);
  return std::numeric_limits<double>::quiet_NaN();
}

Value& Value::Put(std::string_view key, Value value) {
  if (is_null()) data_ = Object();
  std::get<Object>(data_).emplace_back(key, std::move(value));
  return *this;
}

Value& Value::Push(Value value) {
  if (is_null()) data_ = List();
  std::get<List>(data_).push_back(std::move(value));
  return *this;
}

const Value* Value::Find(std::string_view key) const {
  const auto* object = get_if<Object>();
  if (object == nullptr) return nullptr;
  for (const auto& [name, value] : *object) {
    if (name == key) return &value;
  }
  return nullptr;
}

nlohmann::ordered_json ToJson(const Value& value) { return value.Visit(MakeJson()); }

Value FromJson(const nlohmann::ordered_json& json) {
  switch (json.type()) {
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<int64_t>();
    case Json::value_t::number_unsigned:
      return json.get<uint64_t>();
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return json.get<std::string>();
    case Json::value_t::array: {
      Value::List list;
      list.reserve(json.size());
      for (const Json& element : json) list.push_back(FromJson(element));
      return list;
    }
    case Json::value_t::object: {
      Value::Object object;
      object.reserve(json.size());
      for (const auto& [key, member] : json.items()) object.emplace_back(key, FromJson(member));
      return object;
    }
    default:
      return nullptr;
  }
}

}  // namespace kv
