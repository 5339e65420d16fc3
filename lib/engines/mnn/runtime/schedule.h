// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstdint>
#include <optional>

#include "lib/engines/mnn/runtime/config.h"

namespace kv::mnn::runtime {

// Decides when the engine's lossless path looks at a layer, and which tokens it then encodes. This
// is pure arithmetic on lengths. READ ME FIRST. The engine has three surprises, which a replay must
// repeat:
//  1. The token budget of a layer that H2O compacts is only a length. The encoded range is a prefix
//     of the cache as it is, not the tokens that H2O keeps.
//  2. Outside probe mode the first range is the end of the cold zone, and the watermark moves
//  there.
//     Tokens before that range are never compressed.
//  3. A call that triggered H2O may throw H2O's plan away again (the shrink rule).

// One layer call, as the rules see it.
struct LayerCall {
  uint32_t layer = 0;
  eviction::LayerRange h2o_range;  // whether or not H2O is enabled
  uint64_t token_step = 0;         // decode tokens so far, counted from 1
  uint64_t length = 0;             // tokens in the cache, including the new one
  uint64_t final_keep_tokens = 0;  // H2O's budget, or the length if H2O is off
};

// Returns the layer's token budget in this call, or nothing if scope, mode or sampling exclude it.
std::optional<uint64_t> TokenBudget(const Config& sanitised, const LayerCall& call);

struct ColdRange {
  uint64_t begin = 0, end = 0;
  uint64_t size() const { return end - begin; }
  bool operator==(const ColdRange&) const = default;
};
ColdRange ColdRangeOf(const Config& sanitised, uint64_t budget);

// What the engine remembers about a layer between calls.
struct LayerClock {
  uint64_t updates = 0;
  uint64_t last_step = 0;    // token step of the last update
  uint64_t last_budget = 0;  // the watermark: tokens before it have been handled
};

// Resets the clock and returns true if the cold range ends before the watermark, because the blocks
// made so far no longer fit then.
bool Shrink(const ColdRange& cold, LayerClock& clock);

struct EncodeRange {
  uint64_t begin = 0, tokens = 0;
  bool bootstrap = false;  // the layer's first range
};
// Returns the range to encode now, if any. `trigger_min` and `update_interval` are parameters of
// H2O; the interval counts tokens here.
std::optional<EncodeRange> NextEncode(const Config& sanitised, uint64_t trigger_min,
                                      uint64_t update_interval, const LayerClock& clock,
                                      const ColdRange& cold, uint64_t length, uint64_t token_step);
// Moves the clock on after the range was encoded, handed to a worker or skipped for good.
void Advance(const Config& sanitised, const ColdRange& cold, const EncodeRange& range,
             uint64_t token_step, LayerClock& clock);

}  // namespace kv::mnn::runtime
