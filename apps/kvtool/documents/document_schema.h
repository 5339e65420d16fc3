// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <nlohmann/json.hpp>

#include "apps/kvtool/documents/document_names.h"

namespace kv {

// Returns the schema of a document: the envelope of a run, and an element of its "results".
nlohmann::ordered_json EnvelopeSchema(const KnownSchema& schema);
// Returns the schema of the gate's summary.json, kvtool.gate/1: a result of its document as a file.
nlohmann::ordered_json SummarySchema(const KnownSchema& schema);

}  // namespace kv
