// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace kv {

// A command makes its documents in one form. Version 1 is that form, less what it did not have.
// Version 2 puts the documents of a run, as results, into one envelope, and names what version 1
// named badly by the tables in document_names.h, by which its schemas are made as well.

// Of a command's words, as "weights inspect", the name of its documents; empty: it has none.
std::string_view DocumentName(std::string_view command);
// Whether `name` is of a document that --json prints. Plans, events and configurations are files
// with one version.
bool HasEnvelope(std::string_view name);

// `made`, as version 1 has it.
nlohmann::ordered_json FirstVersion(nlohmann::ordered_json made);
// `made`, as an element of "results".
nlohmann::ordered_json ResultOf(nlohmann::ordered_json made);

}  // namespace kv
