// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lib/core/base/tensor.h"
#include "lib/core/snapshot/attention_trace.h"

namespace kv {

// The layer that a part of a name says, within the cap on layers.
std::optional<uint32_t> TraceLayerNumber(std::string_view text);

// What the metadata of a trace made of arrays says beside its arrays.
struct TraceMetadata {
  bool is_marked = false;  // the file says itself that it is a trace
  std::optional<uint64_t> g_start;
  std::map<uint32_t, LayerRule> rules;  // of layers that differ from the whole
};

// Fills the trace's own fields and returns the rest. Throws for a safetensors file without the
// mark, for other versions and for values that are out of range.
TraceMetadata ReadTraceMetadata(const TensorFile& file, AttentionTrace& trace);

}  // namespace kv
