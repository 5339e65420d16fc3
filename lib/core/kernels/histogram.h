// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

namespace kv {

// Adds the number of occurrences of each byte to `counts`. Uses several tables in turn, so that
// equal neighbours do not wait for each other.
void CountBytes(const std::byte* from, size_t size, uint64_t counts[256]) noexcept;

// Does the same for `words` little-endian 16-bit words, at any alignment.
void CountWords(const std::byte* from, size_t words, uint64_t counts[65536]) noexcept;

}  // namespace kv
