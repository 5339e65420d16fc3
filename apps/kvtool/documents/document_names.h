// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// The table of documents and their schemas, and the fields from which schemas are made.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "lib/fields/fields.h"

namespace kv {

// A kind of document that --json prints in the envelope of a run.
struct DocumentKind {
  std::string_view command;  // the words of the command, as "weights inspect"
  std::string_view name;     // kvtool.NAME/2
  // fields of an element of "results", from which its schema is made
  const FieldTable& (*fields)();
  std::string_view title;
};

// Returns nullptr if the words do not name a command with documents.
const DocumentKind* FindDocument(std::string_view command);
// Returns the document of this name; nullptr for unknown names, and for plans, events and
// configurations, which are files.
const DocumentKind* DocumentNamed(std::string_view name);

// A JSON Schema (2020-12) of apps/kvtool/documents/schema, compiled in by
// scripts/cmake/EmbedSchemas.cmake.
struct EmbeddedSchema {
  std::string_view name;  // "inspect"
  std::string_view text;
};
std::span<const EmbeddedSchema> EmbeddedSchemas();

// A schema as `kvtool schema` prints it.
struct KnownSchema {
  std::string_view name;
  std::string_view text;                   // a file in apps/kvtool/documents/schema, or empty
  const DocumentKind* document = nullptr;  // null: the schema of a file
  const DocumentKind* file = nullptr;      // a file whose schema comes from its table of fields
};
// Returns all schemas, by name.
std::vector<KnownSchema> KnownSchemas();

}  // namespace kv
