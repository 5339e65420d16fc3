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

// Limit for FileSource::OpenSmall.
inline constexpr uint64_t kLargestDocument = 16 << 20;

// Reads a small JSON file: an object whose "schema" is `schema`. Throws kBadText, kBadVersion.
nlohmann::json ReadDocument(const FileSource& file, std::string_view schema);

// Return fields of an object, or nothing if the field is absent or null. All throw kBadField,
// naming the field, for values of another kind or range.
std::optional<uint64_t> CountField(const nlohmann::json& object, const char* key, uint64_t most);
std::optional<double> RealField(const nlohmann::json& object, const char* key, double least,
                                double most);
// Returns "" if there is no such field.
std::string TextField(const nlohmann::json& object, const char* key);
// Returns "" also for values of another kind: for files that other programs write.
std::string WordField(const nlohmann::json& object, const char* key);
// Returns an empty object if there is no such field.
nlohmann::json ObjectField(const nlohmann::json& object, const char* key);

}  // namespace kv
