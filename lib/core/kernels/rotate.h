// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// Little-endian 16-bit words rotated by one bit, so that the sign of a float changes its end. `to`
// may be `from`; any alignment.
void RotateLeft16(const std::byte* from, size_t words, std::byte* to) noexcept;
void RotateRight16(const std::byte* from, size_t words, std::byte* to) noexcept;

}  // namespace kv
