// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace kv::gate {

// Every document of the gate keeps the order of its keys.
using Json = nlohmann::ordered_json;

// Parses a document that another program wrote. Python writes NaN, Infinity and numbers beyond the
// range of a double into JSON, and C nan and inf; these become the texts "NaN", "Infinity" and
// "-Infinity". Throws kBadText with the place of the mistake, and kLimit if the document nests too
// deep or an object has too many keys.
Json ParseJson(std::string_view text, std::string_view file);

// Returns the value under a key; null if `object` is not an object, lacks the key, or has null.
const Json* Find(const Json& object, std::string_view key);
// The number or the flag under a key; nothing if the value is of another type.
std::optional<double> NumberIn(const Json& object, std::string_view key);
std::optional<bool> FlagIn(const Json& object, std::string_view key);
// Returns the text under a key; `otherwise` if the value is not a text.
std::string TextAt(const Json& object, std::string_view key, std::string otherwise = {});
// True if the value under a key is true in Python's sense.
bool TruthAt(const Json& object, std::string_view key);

}  // namespace kv::gate
