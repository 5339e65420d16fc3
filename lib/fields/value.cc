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

}  // namespace kv
