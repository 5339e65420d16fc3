// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#include "lib/core/base/json.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "lib/core/base/bytes.h"
#include "lib/core/base/error.h"
#include "lib/core/base/number.h"

namespace kv {
namespace {

// Builds the tree while parsing, so that limits apply before anything nests. The library's own
// callback would search all earlier elements of an array after each object in it.
template <typename Json>
class TreeBuilder {
 public:
  explicit TreeBuilder(const JsonLimits& limits) : limits_(limits) {}

  Json Take() { return std::move(root_); }
  std::optional<JsonMistake>& mistake() { return mistake_; }

  bool null() { return Add(nullptr); }
  bool boolean(bool value) { return Add(value); }
  bool number_integer(typename Json::number_integer_t value) { return Add(value); }
  bool number_unsigned(typename Json::number_unsigned_t value) { return Add(value); }
  bool number_float(typename Json::number_float_t value, const std::string&) { return Add(value); }
  bool string(std::string& value) { return Add(std::move(value)); }
  bool binary(typename Json::binary_t&) { return false; }  // JSON text has no binary values

  bool start_object(size_t) { return Open(Json::object()); }
  bool end_object() { return Close(); }
  bool start_array(size_t) { return Open(Json::array()); }
  bool end_array() { return Close(); }

  bool key(std::string& name) {
    Level& level = open_.back();
    level.is_new = level.Insert(name);
    if (limits_.unique_keys && !level.is_new && !mistake_) {
      mistake_ =
          // reported only if no syntax error follows
          JsonMistake{JsonMistake::Kind::kTwice, 0, name};
    }
    if (level.value->size() == limits_.keys) {
      throw Error(Finding::kLimit, "a JSON object has more than {} keys", limits_.keys);
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(size_t at, const std::string&, const nlohmann::detail::exception& failure) {
    constexpr int kOutOfRange = 406;
    constexpr size_t kMostWords = 240;  // the parser repeats the whole token, however long it is
    std::string words = failure.what();
    if (words.size() > kMostWords) {
      size_t end = kMostWords;
      while ((static_cast<unsigned char>(words[end]) & 0xc0) == 0x80) --end;
      words.replace(end, words.npos, "...");
    }
    mistake_ = JsonMistake{
        failure.id == kOutOfRange ? JsonMistake::Kind::kRange : JsonMistake::Kind::kSyntax, at,
        std::move(words)};
    return false;
  }

 private:
  // An open array or object. An ordered object finds a key by walking all of its keys, so wide ones
  // keep a set of them here: 4,096 keys would otherwise cost 8 million comparisons.
  struct Level {
    Json* value;
    bool is_new = true;  // false if the last key was a repeated one
    std::unordered_set<std::string> keys = {};

    bool Insert(const std::string& name) {
      constexpr size_t kFew = 16;
      if constexpr (!kIsOrdered) return !value->contains(name);
      if (value->size() < kFew) return !value->contains(name);
      if (keys.empty()) {
        for (const auto& member : value->items()) keys.insert(member.key());
      }
      return keys.insert(name).second;
    }
  };

  static constexpr bool kIsOrdered = std::is_same_v<Json, nlohmann::ordered_json>;

  Json* Place(Json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    Json& parent = *open_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    if constexpr (kIsOrdered) {
      if (open_.back().is_new) {
        auto& members = parent.template get_ref<typename Json::object_t&>();
        members.emplace_back(key_, std::move(value));
        return &members.back().second;
      }
    }
    return &(parent[key_] = std::move(value));
  }
  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }
  bool Open(Json value) {
    if (open_.size() == kDeepestJson) {
      throw Error(Finding::kLimit, "JSON nests deeper than {} levels", kDeepestJson);
    }
    open_.push_back({Place(std::move(value))});
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  Json root_;
  std::vector<Level> open_;  // outermost first; no value moves while it is open
  std::string key_;
  std::optional<JsonMistake> mistake_;
};

template <typename Json>
Json Read(std::string_view text, const JsonLimits& limits, JsonMistake* mistake) {
  if (text.size() > limits.bytes) {
    throw Error(Finding::kLimit, "JSON of {} bytes; at most {} are read", text.size(),
                limits.bytes);
  }
  // The parser writes the locale's decimal point into a number, but only its first byte: under
  // ps_AF.UTF-8, whose point has two bytes, 1.5 would become 1.
  const CLocale locale;
  TreeBuilder<Json> builder(limits);
  Json::sax_parse(text.begin(), text.end(), &builder, Json::input_format_t::json, /*strict=*/true,
                  limits.comments);
  if (!builder.mistake()) return builder.Take();
  if (mistake != nullptr) *mistake = *std::move(builder.mistake());
  return Json(Json::value_t::discarded);
}

template <typename Json>
std::string Show(const Json& value) {
  if (value.is_structured()) return value.is_object() ? "an object" : "an array";
  return Escaped(value.dump(-1, ' ', false, Json::error_handler_t::replace), 40);
}

}  // namespace

nlohmann::json ReadJson(std::string_view text, const JsonLimits& limits, JsonMistake* mistake) {
  return Read<nlohmann::json>(text, limits, mistake);
}

nlohmann::ordered_json ReadOrderedJson(std::string_view text, const JsonLimits& limits,
                                       JsonMistake* mistake) {
  return Read<nlohmann::ordered_json>(text, limits, mistake);
}

std::string ShowJson(const nlohmann::json& value) { return Show(value); }
std::string ShowJson(const nlohmann::ordered_json& value) { return Show(value); }

}  // namespace kv
