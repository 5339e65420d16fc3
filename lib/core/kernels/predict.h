// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
#pragma once

#include <cstddef>

namespace kv {

// The predictors of the gear codec replace each byte by its difference from the preceding byte,
// modulo 256, or by their exclusive or. The byte before the first is 0. `from` and `to` must not
// overlap.
void DeltaEncode(const std::byte* from, size_t size, std::byte* to) noexcept;
void XorEncode(const std::byte* from, size_t size, std::byte* to) noexcept;
// Undo the predictors. `to` may be `from`.
void DeltaDecode(const std::byte* from, size_t size, std::byte* to) noexcept;
void XorDecode(const std::byte* from, size_t size, std::byte* to) noexcept;

}  // namespace kv
