// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "lib/core/base/file.h"

namespace kv {

// For FileSource::OpenSmall.
inline constexpr uint64_t kLargestDocument = 16 << 20;

// The whole of a small JSON file: an object whose "schema" is `schema`. Throws kBadText,
// kBadVersion.
nlohmann::json ReadDocument(const FileSource& file, std::string_view schema);

// Fields of an object. All throw kBadField, with the field's name, for values of another kind or
// range. Absent and null fields are nothing.
std::optional<uint64_t> CountField(const nlohmann::json& object, const char* key, uint64_t most);
std::optional<double> RealField(const nlohmann::json& object, const char* key, double least,
                                double most);
// Returns "" where there is none.
std::string TextField(const nlohmann::json& object, const char* key);
// The same, but "" for values of another kind too: for files that others write.
std::string WordField(const nlohmann::json& object, const char* key);
// Returns an empty object where there is none.
nlohmann::json ObjectField(const nlohmann::json& object, const char* key);

}  // namespace kv
