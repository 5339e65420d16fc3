// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string_view>

#include "lib/core/base/file.h"

namespace kv {

// Formats that people may try but kvtool does not read as a cache, with the reason: one table for
// refusals and for `kvtool formats`.
struct ForeignFormat {
  std::string_view id;
  std::string_view what;    // whose, and how it lies on disk
  std::string_view reason;  // why it is not read
  std::string_view hint;    // what to do instead; may be empty
  // Recognises a source by its bytes (by its name if the bytes tell nothing). Null if no file can
  // be of this format.
  bool (*recognise)(const Source& source);
};
std::span<const ForeignFormat> ForeignFormats();

// Throws kUnsupportedKind, with the reason, if the source is one of them.
void RefuseForeign(const Source& source);

}  // namespace kv
