// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

// The only reader of JSON from outside; scripts/check/house.py checks that.
namespace kv {

// Copies, comparisons and dumps of a tree recurse once per level; 64 levels fit on any stack.
inline constexpr size_t kDeepestJson = 64;

// Limits on a document. An object that keeps the order of its keys finds one by walking all of
// them, so that looking up every key of a wide one takes quadratic time.
struct JsonLimits {
  uint64_t bytes = 16 << 20;
  size_t keys = 4096;        // per object
  bool comments = false;     // accepts // and /* */
  bool unique_keys = false;  // a repeated key is an error; otherwise the last value counts
};

// The reason why a text is not JSON.
struct JsonMistake {
  enum class Kind { kSyntax, kRange, kTwice } kind = Kind::kSyntax;
  uint64_t at = 0;   // end of the token at fault; kSyntax and kRange only
  std::string text;  // the parser's message, or the repeated key
};

// Returns the document, or a discarded value and the reason if the text is not JSON. Throws kLimit
// if the text is too long, nests too deep or has an object with too many keys.
nlohmann::json ReadJson(std::string_view text, const JsonLimits& limits = {},
                        JsonMistake* mistake = nullptr);
nlohmann::ordered_json ReadOrderedJson(std::string_view text, const JsonLimits& limits = {},
                                       JsonMistake* mistake = nullptr);

// Returns a value as shown in messages: escaped and cut after 40 bytes; an object or array as its
// kind only.
std::string ShowJson(const nlohmann::json& value);
std::string ShowJson(const nlohmann::ordered_json& value);

}  // namespace kv
