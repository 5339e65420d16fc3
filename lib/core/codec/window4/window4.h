// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <optional>

#include "lib/core/codec/backends.h"

// Codes bf16 values with their exponents in four bits, at nearly the speed of copying.
// FORMAT.md in this folder is the grammar.
namespace kv {

// The window that leaves the fewest values of a sample outside. Compares its cost with that of
// coding exponents by their entropy; both costs are bits per 4096 values.
struct WindowPlan {
  uint32_t base = 0;
  uint64_t window_bits = 0, entropy_bits = 0;
};
WindowPlan PlanWindow(ByteSpan values);
// Appends the frame to `out`.
void EncodeWindow(ByteSpan values, uint32_t base, CodecScratch& scratch, Bytes& out);
// Throws kBadFrame, kBadPayload, kTruncated, kTrailingBytes.
void DecodeWindow(ByteSpan frame, std::span<std::byte> values);

}  // namespace kv
