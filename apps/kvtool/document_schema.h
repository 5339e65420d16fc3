// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

// The schemas of version 2 of documents, made from those of version 1.
namespace kv {

// The schema of the envelope of `name`, from the text of the schema of version 1.
nlohmann::ordered_json EnvelopeSchema(std::string_view name, std::string_view first_version);

}  // namespace kv
