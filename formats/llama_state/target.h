// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <string_view>

namespace kv::llama_state {

// A layout to write; FORMAT.md has the table.
struct Target {
  char letter = 'E';
  uint32_t session_version = 10, sequence_version = 3;
  bool has_streams = true;
  bool has_outputs = false;      // SESSION
  bool has_sequence_id = true;   // SEQ: one per cell
  uint32_t extension_words = 0;  // where the model has any
};

// What --target-version names: a layout's letter, or a build such as "b6122" or "v0.5.0"; empty is
// the newest. Throws kUsage for builds between two layouts, because it is unknown which one they
// write.
Target TargetOf(std::string_view version);

}  // namespace kv::llama_state
