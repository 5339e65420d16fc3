// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

// Lines of JSON that somebody else may have written.
namespace kv::corpus {

// A line that is a JSON object. Throws kBadField if it is none, and kLimit if it nests so deep that
// a copy of it would overflow the stack, or if an object has so many keys that finding them would
// take quadratic time.
nlohmann::ordered_json ParseLine(std::string_view line, size_t number);

// The value under a key. Throw kBadField.
std::string TextIn(const nlohmann::ordered_json& object, const char* key, size_t number);
uint64_t NumberIn(const nlohmann::ordered_json& object, const char* key, size_t number,
                  uint64_t most = UINT64_MAX);
const nlohmann::ordered_json& ObjectIn(const nlohmann::ordered_json& object, const char* key,
                                       size_t number);

}  // namespace kv::corpus
