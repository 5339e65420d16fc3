// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <string>

#include "lib/engines/mnn/offline/offline.h"
#include "lib/fields/fields.h"

namespace kv::mnn::offline {

// The result as the original's JSON document, with its keys in its order.
struct Document {
  std::string dump_dir;
  Options options;
  Result result;
  bool zero_is_null = false;  // true: without bytes the ratio is null; the original writes 0
};
const Fields<Document>& DocumentFields();
// Returns the result as the original's Markdown summary.
std::string ResultMarkdown(const std::string& dump_dir, const Options& options,
                           const Result& result);

}  // namespace kv::mnn::offline
