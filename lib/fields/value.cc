// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/fields/value.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <ctime>
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
    // Fills the underlying vector: operator[] searches all keys, which takes quadratic time.
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

namespace kv::format {
namespace {

struct PlainText {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const std::string& text) const { return text; }
  std::string operator()(const Value::List& list) const {
    std::string text;
    for (const Value& element : list) text += (text.empty() ? "" : ", ") + Plain(element);
    return text;
  }
  std::string operator()(const Value::Object& object) const {
    std::string text;
    for (const auto& [key, value] : object) {
      text += (text.empty() ? "" : ", ") + key + " " + Plain(value);
    }
    return text;
  }
  template <typename Number>
  std::string operator()(Number number) const {
    return fmt::format("{}", number);
  }
};

}  // namespace

std::string Plain(const Value& value) { return value.Visit(PlainText()); }
std::string Percent(double share) { return fmt::format("{:.2f}%", 100 * share); }
std::string Factor(double factor) { return fmt::format("{:.3f}x", factor); }
std::string Nats(double nats) { return fmt::format("{:.3g}", nats); }
std::string Rate(double rate) { return fmt::format("{:.{}f}", rate, rate < 99.95 ? 1 : 0); }
std::string Real(double number) { return fmt::format("{:.4g}", number); }

std::string Bytes(uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  for (value /= 1024; value >= 1023.95 && unit + 1 < kUnits.size(); value /= 1024) ++unit;
  return fmt::format("{:.{}f} {}", value, value < 10 ? 3 : value < 100 ? 2 : 1, kUnits[unit]);
}

std::string Plural(uint64_t count, std::string_view word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

std::string Time(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  char text[64];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%SZ", &parts)};
}

std::string AsPercent(const Value& value) { return Percent(value.number()); }
std::string AsFactor(const Value& value) { return Factor(value.number()); }
std::string AsNats(const Value& value) { return Nats(value.number()); }
std::string AsReal(const Value& value) { return Real(value.number()); }
std::string AsBytes(const Value& value) {
  const auto* bytes = value.get_if<uint64_t>();
  return bytes == nullptr ? Plain(value) : Bytes(*bytes);
}

}  // namespace kv::format
