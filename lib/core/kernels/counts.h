// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>
#include <cstdint>

namespace kv {

// The input of CountInContext: rows x columns symbols, one byte each.
struct CountedRows {
  const uint8_t* symbols = nullptr;
  size_t rows = 0, columns = 0;
  size_t row_step = 1;  // rows 1, 1 + row_step, ... are counted
  int cut = 0;          // low bits of each symbol that are ignored
};

// Adds 1 to counts[base_of[the symbol above] + (symbol >> cut)] for each symbol; all these cells
// are below `cells`, which is at most 65536. There are `turns` such arrays (1, 2 or 4), one after
// another, whose sum is the result: symbols alternate between them, because equal neighbours in one
// array would stall on store-to-load forwarding. base_of has 256 entries.
void CountInContext(const CountedRows& rows, const uint32_t* base_of, size_t turns, size_t cells,
                    uint32_t* counts) noexcept;

// Adds 1 to counts[contexts[i] << bits | symbols[i]] for each of `count` symbols, with arrays as
// above.
void CountWithContexts(const uint8_t* contexts, const uint8_t* symbols, size_t count, int bits,
                       size_t turns, size_t cells, uint32_t* counts) noexcept;

namespace ref {
void CountInContext(const CountedRows& rows, const uint32_t* base_of, size_t turns, size_t cells,
                    uint32_t* counts) noexcept;
void CountWithContexts(const uint8_t* contexts, const uint8_t* symbols, size_t count, int bits,
                       size_t turns, size_t cells, uint32_t* counts) noexcept;
}  // namespace ref

// Adds the number of occurrences of each byte to `counts`. Alternates between several tables as
// above.
void CountBytes(const std::byte* from, size_t size, uint64_t counts[256]) noexcept;

// Adds the occurrences of each of `words` little-endian 16-bit words, at any alignment.
void CountWords(const std::byte* from, size_t words, uint64_t counts[65536]) noexcept;

}  // namespace kv
