// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace kv {

// A value of a document that kvtool writes. Documents use this type instead of the JSON library's,
// whose templates dominate the compile time of sources that use them; only lib/fields converts
// between the two.
class Value {
 public:
  using List = std::vector<Value>;
  using Member = std::pair<std::string, Value>;
  using Object = std::vector<Member>;  // keys in the order in which they are written

  Value() = default;
  Value(std::nullptr_t) {}
  Value(bool value) : data_(value) {}
  template <std::signed_integral T>
  Value(T value) : data_(static_cast<int64_t>(value)) {}
  template <std::unsigned_integral T>
  requires(!std::same_as<T, bool>) Value(T value) : data_(static_cast<uint64_t>(value)) {}
  Value(double value) : data_(value) {}
  Value(float value) : data_(static_cast<double>(value)) {}
  Value(std::string value) : data_(std::move(value)) {}
  Value(std::string_view value) : data_(std::string(value)) {}
  Value(const char* value) : data_(std::string(value)) {}
  Value(List value) : data_(std::move(value)) {}
  Value(Object value) : data_(std::move(value)) {}
  template <typename T>
  Value(const std::optional<T>& value) {
    if (value) *this = Value(*value);
  }
  template <typename T>
  requires(!std::same_as<T, Value> && !std::same_as<T, Member>) Value(const std::vector<T>& values)
      : data_(List(values.begin(), values.end())) {}
  template <typename T, size_t N>
  Value(const std::array<T, N>& values) : data_(List(values.begin(), values.end())) {}
  template <typename T>
  Value(const std::map<std::string, T>& values) : data_(Object(values.begin(), values.end())) {}

  bool is_null() const { return std::holds_alternative<std::monostate>(data_); }
  template <typename T>
  const T* get_if() const {
    return std::get_if<T>(&data_);
  }
  template <typename T>
  T* get_if() {
    return std::get_if<T>(&data_);
  }
  // Returns any number as a double, and NaN for everything else.
  double number() const;

  // Appends a key to an object; a null becomes an object first.
  Value& Put(std::string_view key, Value value);
  // Appends an element to a list; a null becomes a list first.
  Value& Push(Value value);
  // Returns the value of a key; nullptr if this is not an object or lacks the key.
  const Value* Find(std::string_view key) const;

  template <typename Visitor>
  decltype(auto) Visit(Visitor&& visitor) const {
    return std::visit(std::forward<Visitor>(visitor), data_);
  }

 private:
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, List, Object> data_;
};

// Converts to the JSON library's type; numbers that are not finite become null.
nlohmann::ordered_json ToJson(const Value& value);
// Converts back, for documents that are still made with the JSON library.
Value FromJson(const nlohmann::ordered_json& json);

// Formats a value that is not null for text tables.
using Format = std::string (*)(const Value&);

// The only way to write each kind of number.
namespace format {

std::string Plain(const Value& value);  // as in JSON; text without quotes
std::string Percent(double share);      // 0.1234 -> "12.34%"
std::string Factor(double factor);      // 3.5 -> "3.500x"
std::string Nats(double nats);          // three significant digits
std::string Real(double number);        // four significant digits
std::string Rate(double rate);          // returns "1234", "12.3": at least three digits
std::string Bytes(uint64_t bytes);      // "1.234 MiB", IEC units, 4 significant digits
std::string Plural(uint64_t count, std::string_view word);  // "1 state", "2 states"
std::string Time(int64_t seconds);                          // "2026-11-29 03:43:53Z", in UTC

std::string AsPercent(const Value& value);
std::string AsFactor(const Value& value);
std::string AsNats(const Value& value);
std::string AsReal(const Value& value);
std::string AsBytes(const Value& value);

}  // namespace format

}  // namespace kv
