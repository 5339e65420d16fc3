// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

// The one reader of JSON that comes from outside (scripts/check/house.py keeps it so).
namespace kv {

// Copies, comparisons and dumps of a tree recurse once a level: 64 levels fit on any stack.
inline constexpr size_t kDeepestJson = 64;

// How much of a document is read. An object that keeps the order of its keys finds one by walking
// all of them, so that whoever looks up each key of a wide one takes quadratic time.
struct JsonLimits {
  uint64_t bytes = 16 << 20;
  size_t keys = 4096;     // in one object
  bool comments = false;  // passes over // and /* */
  bool unique_keys =
      false;  // a key that an object has twice is a mistake; else the last one counts
};

// Why a text is not JSON.
struct JsonMistake {
  enum class Kind { kSyntax, kRange, kTwice } kind = Kind::kSyntax;
  uint64_t at = 0;   // end of the token at fault; kSyntax and kRange only
  std::string text;  // the parser's words, or the key that is given twice
};

// Returns the document, or a discarded value and the reason if the text is not JSON. Throws kLimit
// if it is too long, nests too deep or has an object with too many keys.
nlohmann::json ReadJson(std::string_view text, const JsonLimits& limits = {},
                        JsonMistake* mistake = nullptr);
nlohmann::ordered_json ReadOrderedJson(std::string_view text, const JsonLimits& limits = {},
                                       JsonMistake* mistake = nullptr);

// Returns how a message shows a value: escaped and cut after 40 bytes, objects and arrays by their
// kind alone.
std::string ShowJson(const nlohmann::json& value);
std::string ShowJson(const nlohmann::ordered_json& value);

}  // namespace kv
