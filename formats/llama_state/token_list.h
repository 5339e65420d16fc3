// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>
#include <vector>

#include "lib/core/base/bytes.h"

namespace kv::llama_state {

// The token field of a file: a plain list of ids, or the byte record that newer servers pack into
// it for prompts with images or audio.
struct TokenList {
  std::vector<int32_t> tokens;          // of a record: its text tokens, -1 at media positions
  std::optional<uint32_t> media_count;  // set for a record
};
TokenList ReadTokenList(ByteReader& in);

// Writes the field, count first. It is a record without media if the source had a record, or if a
// plain list would look like one.
void WriteTokenList(const std::vector<int32_t>& tokens, bool as_record, ByteWriter& out);

}  // namespace kv::llama_state
