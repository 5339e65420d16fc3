// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <span>
#include <string>

#include "formats/llama_state/cache_blob.h"

namespace kv::llama_state {

// The part of a file that all containers end with.
struct Body {
  ByteReader in;
  Scope scope;
  std::span<const Layout> layouts;
  std::string architecture;
};

// The one reading that fits the body, or the one that `layout` (--layout, may be empty) names.
// Throws the error of the best attempt, kAmbiguousFormat if several readings fit, and
// kUnsupportedKind for recurrent, hybrid and DeepSeek V4 states.
Reading ChooseReading(const Body& body, const std::string& layout);

}  // namespace kv::llama_state
