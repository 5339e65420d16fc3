// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// The byte run-length streams of the gear codec. A control byte c below 128 is followed by c + 1
// literal bytes; one from 128 on is followed by one byte, which is repeated (c & 127) + 4 times.
// The encoder takes the longest run at each place, up to 131 bytes, if it has at least 4, and
// gathers other bytes into literals of at most 128. An input therefore has exactly one encoding.
//
// RleBound returns the greatest length that an encoding of `size` bytes can have.
constexpr size_t RleBound(size_t size) { return size + (size + 127) / 128; }
// Returns the number of bytes that RleEncode would write.
size_t RleEncodedSize(const std::byte* from, size_t size) noexcept;
// Encodes and returns the number of bytes written. `to` must have room for RleEncodedSize(from,
// size).
size_t RleEncode(const std::byte* from, size_t size, std::byte* to) noexcept;
// Decodes the whole payload, canonical or not, to exactly `size` bytes. Returns false if the
// payload is cut short, decodes to more or fewer bytes, or if either is empty.
bool RleDecode(const std::byte* payload, size_t payload_size, std::byte* to, size_t size) noexcept;

}  // namespace kv
