// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string_view>

namespace kv {

// Of a command's words, as "weights inspect", the name of its documents; empty: it has none.
std::string_view DocumentName(std::string_view command);
// Whether `name` is of a document that --json prints, in the envelope of a run. Plans, events and
// configurations are files.
bool HasEnvelope(std::string_view name);

}  // namespace kv
