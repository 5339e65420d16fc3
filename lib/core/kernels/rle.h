// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// Byte run-length streams of the gear codec. A control byte below 128 announces c + 1 literals, one
// from 128 a single byte to be repeated (c & 127) + 4 times. The encoder takes the longest run at
// each place, cut at 131, if it has at least 4 bytes, and gathers the rest into literals of at most
// 128: one input has exactly one encoding.

// The longest encoding of `size` bytes.
constexpr size_t RleBound(size_t size) { return size + (size + 127) / 128; }
// What RleEncode would write, without writing it.
size_t RleEncodedSize(const std::byte* from, size_t size) noexcept;
// Returns the bytes written; `to` has room for RleEncodedSize.
size_t RleEncode(const std::byte* from, size_t size, std::byte* to) noexcept;
// Fills `to` exactly from the whole payload, canonical or not; false if it is cut short, says more
// or less than `size` bytes, or either is empty.
bool RleDecode(const std::byte* payload, size_t payload_size, std::byte* to, size_t size) noexcept;

}  // namespace kv
