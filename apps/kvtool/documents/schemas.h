// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string_view>

namespace kv {

// A JSON Schema (2020-12) of apps/kvtool/documents/schema, compiled in by
// scripts/cmake/EmbedSchemas.cmake.
struct EmbeddedSchema {
  std::string_view name;  // "inspect"
  std::string_view text;
};
std::span<const EmbeddedSchema> EmbeddedSchemas();

}  // namespace kv
